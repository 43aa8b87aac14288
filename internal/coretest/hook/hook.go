// Package hook lets package percolator hand options for tests to package coretest
// without exporting them.
package hook

// Options make a percolator.Option each. Package percolator fills them when it is
// initialized. They are of type any because percolator imports this package.
var Options struct {
	WithoutOnePhase, WithoutGroups, WithoutDeferred func() any
	WithSeed                                        func(seed uint64) any
	WithOwnership                                   func(owns Owns) any
}

// Owns tells whether a cell's changes are a worker's own for one of its observers.
type Owns func(observer, table, row, column string) bool
