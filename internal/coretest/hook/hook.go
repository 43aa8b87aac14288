// Package hook lets package percolator hand options for tests to package coretest
// without exporting them.
package hook

// Options make a percolator.Option each. Package percolator fills them when it is
// initialized. They are of type any because percolator imports this package.
var Options struct {
	WithoutOnePhase, WithoutGroups, WithoutDeferred func() any
	WithSeed                                        func(seed uint64) any
}
