// Package atend has functions called at the end of a test, and forgets them then.
package atend

import "testing"

// Do has f called when the test has ended, as Cleanup of package testing does, and lets go of it then. Cleanup alone keeps f, with all
// that it holds, until every parallel test of the package has ended: with the stores of a thousand tests, the heap is all that they wrote.
func Do(t testing.TB, f func()) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		once := f
		f = nil
		once()
	})
}
