// Package hook lets package percolator hand options for tests to package coretest
// without exporting them.
package hook

import (
	"context"
	"time"
)

// Options make a percolator.Option each. Package percolator fills them when it is
// initialized. They are of type any because percolator imports this package.
var Options struct {
	WithoutOnePhase, WithoutGroups, WithoutDeferred func() any
	WithoutHints                                    func() any
	WithIDs                                         func(ids func() string) any
	WithSeed                                        func(seed uint64) any
	WithOwnership                                   func(owns Owns) any
	WithBegin                                       func(begins func(ctx context.Context)) any
}

// Owns tells whether a cell's changes are a worker's own for one of its observers.
type Owns func(observer, table, row, column string) bool

// Run names an observer and a cell that it has yet to see.
type Run struct{ Observer, Table, Row, Column string }

// Workers are steps of a worker that does not run, and Slots, which is of one that does. A worker is a *percolator.Worker.
var Workers struct {
	Publish  func(ctx context.Context, worker any) error
	Left     func(ctx context.Context, worker any) ([]Run, error)
	Attempt  func(ctx context.Context, worker any, r Run) (wait time.Duration, err error)
	Timers   func(ctx context.Context, worker any) error
	Cascades func(ctx context.Context, worker any) error
	Timer    func(ctx context.Context, worker any) (next Run, due time.Time, err error)
	Slots    func(worker any, observer string) (own []uint64, starts bool)
}
