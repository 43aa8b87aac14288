package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A client's wire to the store of a world, the calls that go over it, and what a test
// can do to them.

type (
	call    = faultstore.Call
	verdict = faultstore.Fault
)

// What becomes of a call.
var (
	pass      = verdict{}
	lose      = verdict{Kind: faultstore.LoseReply}                  // it does not arrive; the client does not know that
	loseReply = verdict{Kind: faultstore.LoseReply, Applied: true}   // it arrives; the client does not know that
	refuse    = verdict{Kind: faultstore.Fail}                       // it fails, for certain
	die       = verdict{Kind: faultstore.CrashClient}                // it does not arrive, and the client does nothing any more
	dieAfter  = verdict{Kind: faultstore.CrashClient, Applied: true} // it arrives, and the client does nothing any more
)

// again is a second arrival of an Apply or Group, or a late first one. It tells
// how many of its parts were applied.
func again(t testing.TB, c *call) int {
	t.Helper()
	applied, err := c.Again(context.Background())
	require.NoError(t, err)
	return applied
}

// edits tells whether a mutation of a call has an edit for which f holds.
func edits(c *call, f func(m *rowstore.Mutation, e *rowstore.Edit) bool) bool {
	muts := c.Mutations()
	for i := range muts {
		for j := range muts[i].Edits {
			if f(&muts[i], &muts[i].Edits[j]) {
				return true
			}
		}
	}
	return false
}

func puts(family rowstore.Family) func(m *rowstore.Mutation, e *rowstore.Edit) bool {
	return func(m *rowstore.Mutation, e *rowstore.Edit) bool {
		return !format.Reserved(m.Table) && e.Kind == rowstore.DoPut && e.Family == family
	}
}

// What a test looks for in the calls of a client.
type matcher = func(*call) bool

// prewrites are calls that put locks where there are none.
func prewrites(c *call) bool {
	return c.Kind == faultstore.CallApply && edits(c, puts(rowstore.Lock)) && !heartbeats(c)
}

func heartbeats(c *call) bool {
	return c.Kind == faultstore.CallApply && edits(c, puts(rowstore.Lock)) && len(c.Muts[0].Conditions) == 1 && c.Muts[0].Conditions[0].Kind == rowstore.IfPresent
}

// commits are calls that put committed versions: a commit point, secondaries, a
// roll forward.
func commits(c *call) bool { return edits(c, puts(rowstore.Write)) }

// secondaries are a plain batch of commits without the row of the primary.
func secondaries(primary Cell) matcher {
	return func(c *call) bool {
		return c.Kind == faultstore.CallApply && commits(c) && !on(primary)(c)
	}
}

// commitPoint commits the row of the primary.
func commitPoint(primary Cell) matcher {
	return func(c *call) bool { return commits(c) && on(primary)(c) }
}

// on are calls that change a row.
func on(cell Cell) matcher {
	return func(c *call) bool {
		return slices.ContainsFunc(c.Mutations(), func(m rowstore.Mutation) bool { return m.Table == cell.Table && m.Row == cell.Row })
	}
}

func marks(c *call) bool { return edits(c, puts(rowstore.Mark)) }

func op(kind faultstore.CallKind) matcher { return func(c *call) bool { return c.Kind == kind } }

// anyCall leaves out calls that a client may do without.
func anyCall(c *call) bool { return c.Kind != faultstore.CallListen && c.Kind != faultstore.CallSplit }

func both(a, b matcher) matcher { return func(c *call) bool { return a(c) && b(c) } }

// commitDraw is the draw of a commit timestamp: one after a prewrite.
func (c *client) commitDraw() matcher {
	return func(x *call) bool {
		return x.Kind == faultstore.CallDraw && len(c.wire.sent(prewrites)) > 0
	}
}

// wire is a client's connection to the store: a faultstore, and a record of what went
// over it.
type wire struct {
	*faultstore.Store
	mem *memstore.Store

	mu     sync.Mutex
	calls  []*call
	closed bool // Close was called
	// What no client may do at all, checked in every test.
	primaries map[Timestamp]Cell
	decided   map[Timestamp]bool
	breaches  []string
}

func newWire(mem *memstore.Store) *wire { return newWireTo(mem, mem) }

// placedStore is a store of several, of which placed tells the tables of the authoritative one.
type placedStore struct {
	*memstore.Store
	placed func(table string) bool
}

func (s placedStore) Authoritative(table string) bool { return s.placed(table) }

// newWireTo is newWire to a store over mem.
func newWireTo(s rowstore.Store, mem *memstore.Store) *wire {
	w := &wire{mem: mem, primaries: map[Timestamp]Cell{}, decided: map[Timestamp]bool{}}
	w.Store = faultstore.New(s, faultstore.Options{KeepOpen: true, Watch: w.record})
	return w
}

// verdict makes the next call that matches end so.
func (w *wire) verdict(match matcher, v verdict) {
	w.AddRule(faultstore.Rule{Match: match, Fault: v})
}

// sent are the calls so far that match.
func (w *wire) sent(match matcher) []*call {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*call
	for _, c := range w.calls {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

// forget forgets the calls so far, which keep what they answered.
func (w *wire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = nil
}

// record keeps a call, and notes those that are wrong whatever the schedule: a mark, a roll
// back or a commit point that is deferred (A1), and a prewrite of a transaction whose
// commit was sent (C6).
func (w *wire) record(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, c)
	breach := func(format string, args ...any) { w.breaches = append(w.breaches, fmt.Sprintf(format, args...)) }
	if c.Opts.Deferred && edits(c, func(_ *rowstore.Mutation, e *rowstore.Edit) bool {
		return e.Family == rowstore.Mark && e.Kind == rowstore.DoPut && edits(c, func(_ *rowstore.Mutation, o *rowstore.Edit) bool {
			return o.Family == rowstore.Lock && o.Kind == rowstore.DoDelete && o.TS == e.TS
		})
	}) {
		breach("a mark was deferred: %+v", c.Muts)
	}
	edits(c, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
		switch {
		case format.Reserved(m.Table) && m.Table != format.TableParked || e.Kind != rowstore.DoPut:
		case e.Family == rowstore.Lock:
			l, err := format.DecodeLock(e.Value)
			if err != nil {
				breach("%v", err)
				return false
			}
			w.primaries[e.TS] = Cell(l.Primary)
			if w.decided[e.TS] && !heartbeats(c) {
				breach("a prewrite of %d was sent after its commit", e.TS)
			}
		case e.Family == rowstore.Write:
			wv, err := format.DecodeWrite(e.Value)
			if err != nil {
				breach("%v", err)
				return false
			}
			// A single step that names its latest timestamp cannot be applied after it
			// was refused, so that prewrites may follow.
			w.decided[wv.Start] = w.decided[wv.Start] || e.TS != rowstore.AssignedTimestamp
			if p, ours := w.primaries[wv.Start]; ours && c.Opts.Deferred && p == (Cell{m.Table, m.Row, e.Column}) {
				breach("a commit point was deferred")
			}
		}
		return false
	})
}

// Abilities hides that a read may come with its timestamp: with a draw for each, there are
// more interleavings.
func (w *wire) Abilities() rowstore.Abilities {
	a := w.Store.Abilities()
	a.SnapshotReader = nil
	return a
}

// Close leaves the store to the other clients.
func (w *wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.Store.Close()
}

func (w *wire) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// pause is a call that is held.
type pause struct {
	t    testing.TB
	held *faultstore.Held
}

// hold stops the next call that matches before it is sent.
func (c *client) hold(t testing.TB, match matcher) *pause {
	return newPause(t, c.wire.Hold(faultstore.Rule{Match: match}))
}

// holdReply stops it between its arrival and its reply.
func (c *client) holdReply(t testing.TB, match matcher, v verdict) *pause {
	return newPause(t, c.wire.HoldReply(faultstore.Rule{Match: match, Fault: v}))
}

func newPause(t testing.TB, held *faultstore.Held) *pause {
	p := &pause{t, held}
	atend.Do(t, func() { p.release(pass) })
	return p
}

// wait waits until the call is held.
func (p *pause) wait() *call {
	p.t.Helper()
	select {
	case c := <-p.held.Reached():
		return c
	case <-time.After(patience):
		require.FailNow(p.t, "the call that was to be held was never made")
		return nil
	}
}

func (p *pause) release(v verdict) { p.held.Release(v) }

// place finds a row in a call.
func place(c *call, row string) int {
	return slices.IndexFunc(c.Muts, func(m rowstore.Mutation) bool { return m.Row == row })
}

// only lets of a batch arrive what concerns one row, and loses the rest.
func (c *client) only(match matcher, keep Cell) {
	c.wire.AddRule(faultstore.Rule{Match: match, Before: func(_ context.Context, x *call) verdict {
		return verdict{Kind: faultstore.LoseOthers, Row: place(x, keep.Row)}
	}})
}
