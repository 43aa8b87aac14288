// Package erasing tests that nothing is left of what percolator's DB.Erase has erased: over each backend it searches every byte that the
// backend has, after the steps that docs/howto/erasing.md names.
package erasing
