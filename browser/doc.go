// Package browser tests the page of package ui in a real Chromium: docs/howto/page.md is about it. It is a module of its own, so that users of
// the library need no driver of a browser.
//
// The tests use the browser that PERCOLATOR_TEST_BROWSER names, or a chromium of this machine, which scripts/test-browser installs.
// With -screenshots DIR they write the pictures of the documents.
package browser
