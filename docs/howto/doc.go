// Package howto has tests only: they compile and run the code of the pages beside this
// file.
package howto
