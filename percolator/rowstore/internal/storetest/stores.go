package storetest

import (
	"context"
	"runtime"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Plain hides the optional abilities of a store: embedded as a Store, it has no
// other methods.
type Plain struct{ rs.Store }

// Transparent is a Wrapper.
type Transparent struct{ rs.Store }

func (w Transparent) Unwrap() rs.Store { return w.Store }

// Spin lets other goroutines run for a little.
func Spin() {
	for range 20 {
		runtime.Gosched()
	}
}

// Slowed yields in each call, so that others arrive meanwhile.
type Slowed struct{ *memstore.Store }

// Read implements Store.
func (s Slowed) Read(ctx context.Context, r []rs.RowRead) ([]rs.Row, error) {
	Spin()
	return s.Store.Read(ctx, r)
}

// Apply implements Store.
func (s Slowed) Apply(ctx context.Context, m []rs.Mutation, o rs.ApplyOptions) ([]rs.Outcome, error) {
	Spin()
	return s.Store.Apply(ctx, m, o)
}

// Group implements Grouper.
func (s Slowed) Group(ctx context.Context, g []rs.Group) ([]rs.GroupOutcome, error) {
	Spin()
	return s.Store.Group(ctx, g)
}
