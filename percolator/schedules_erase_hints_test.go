package percolator

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Schedules in which names of erased rows are taken out of the hints of garbage, several of them at once.

// eraseOf erases rows of table t, and lets time pass.
func (w *world) eraseOf(c *client, from, to string) error {
	w.t.Helper()
	done := async(func() error {
		_, err := c.Erase(context.Background(), Range{Table: "t", From: from, To: to})
		return err
	})
	return w.passes(done)
}

// passes lets time pass until something is done.
func (w *world) passes(done <-chan error) (err error) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		select {
		case err = <-done:
			return true
		default:
			w.clock.advance(time.Second)
			return false
		}
	}, patience, time.Millisecond)
	return err
}

// restsOfHints are calls that put a name into a hint.
func restsOfHints(name string) matcher {
	return func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			if m.Table != format.TableHints || e.Kind != rowstore.DoPut || e.Family != rowstore.Write {
				return false
			}
			h, err := format.DecodeHint(e.Value)
			return err == nil && slices.Contains(h.Rows, name)
		})
	}
}

// An Erase has read a hint that names rows of two customers, and stalls. Meanwhile the other customer is erased too, and the hint may have gone as a
// whole. The first one must not put back the name of the second.
func TestScheduleE_HintOfTwoErasures(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, w *world, other *client){
		"the other customer": func(t *testing.T, w *world, other *client) {
			require.NoError(t, w.eraseOf(other, "bob", "bob0"))
		},
		"both customers": func(t *testing.T, w *world, other *client) {
			require.NoError(t, w.eraseOf(other, "a", "c"))
		},
		"a collection, then the other customer": func(t *testing.T, w *world, other *client) {
			w.pass(2 * worldRetention)
			_, err := w.collectBy(other, GCOptions{})
			require.NoError(t, err)
			require.NotContains(t, w.storedHints("t"), "bob")
			require.NoError(t, w.eraseOf(other, "bob", "bob0"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			c, other, writer := w.client(), w.client(), w.client()
			for range 2 {
				for _, cell := range []Cell{ann1, bob, row("zoe")} {
					set(t, writer.DB, cell, "secret")
				}
			}
			w.stored(writer)
			require.Subset(t, w.storedHints("t"), map[string]int{"ann/1": 1, "bob": 1, "zoe": 1})
			p := c.hold(t, restsOfHints("bob"))
			done := async(func() error {
				_, err := c.Erase(context.Background(), annRange)
				return err
			})
			reached := async(func() error { p.wait(); return nil })
			require.NoError(t, w.passes(reached))
			meanwhile(t, w, other)
			require.NotContains(t, w.storedHints("t"), "bob")
			p.release(pass)
			require.NoError(t, w.passes(done))
			require.Empty(t, w.traces("ann/", "bob"))
		})
	}
}
