package percolator

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// What an erasure costs while it waits for observers, what its receipt counts, and how many ranges there may be.

// An erasure that waits looks at a page of notified cells with one read and one timestamp, and no further if somebody has something to see there.
func TestEraseLooksAtPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	c, counted := w.client(), w.client()
	var cells []Cell
	for i := range 4 * awaitedPage {
		cells = append(cells, Cell{"t", fmt.Sprintf("ann/%05d", i), "v"})
	}
	require.NoError(t, writes(t, c, "1", cells...).Commit(t.Context()))
	_, err := counted.loadCatalog(t.Context())
	require.NoError(t, err)
	e := &erasure{db: counted.DB, span: span{table: "t", from: "ann/", to: "ann0"}, receipt: &Receipt{}, found: newRowsFound(), seen: oracle.Max}
	counted.wire.forget()
	names, at, err := e.uncovered(t.Context(), "ann/")
	require.NoError(t, err)
	require.Equal(t, []string{`"o"`}, names)
	require.Equal(t, "ann/", at)
	rows, reads := 0, counted.wire.sent(op(faultstore.CallRead))
	for _, x := range reads {
		for i := range x.Reads {
			if x.Reads[i].Table == "t" {
				rows++
			}
		}
	}
	require.Equal(t, awaitedPage, rows, "it has read on, though one page suffices")
	require.LessOrEqual(t, len(reads), 3)
	require.LessOrEqual(t, len(counted.wire.sent(op(faultstore.CallDraw))), 3, "for the catalog and for the page")
}

// An erasure begins at the page at which it waited, and is done only when a look at the whole range finds nobody.
func TestEraseGoesOnWhereItWaited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	c := w.client()
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	var cells []Cell
	for i := range 3 * awaitedPage {
		cells = append(cells, Cell{"t", fmt.Sprintf("ann/%05d", i), "v"})
	}
	require.NoError(t, writes(t, c, "secret", cells...).Commit(t.Context()))
	next := 0
	receipt, err := w.erase(c, func() {
		if valueBeside(t, c, cells[len(cells)-1]) != "none" {
			return // the deletion is still under way
		}
		for range 100 {
			sees(worker, cells[next%len(cells)])
			next++
		}
	})
	require.NoError(t, err)
	require.EqualValues(t, len(cells), receipt.Rows)
	require.EqualValues(t, len(cells), receipt.Cells)
	require.Empty(t, w.traces("ann/"))
}

// The first look has found two rows. The call that removes their history is lost, so there is a second look; before that one row was written anew, and a third
// one for the first time. What was written stays, without any history.
func TestScheduleE_ReceiptOfTwoRounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, other := w.client(), w.client()
	set(t, c.DB, ann1, "secret")
	set(t, c.DB, ann2, "secret")
	require.NoError(t, c.drained(t.Context()))
	var once sync.Once
	var written error
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
		return x.Kind == faultstore.CallApply && on(ann2)(x) && edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return e.Kind == rowstore.DoDeleteRange && e.Family == rowstore.Mark && len(m.Conditions) > 0
		})
	}, Before: func(context.Context, *call) verdict {
		once.Do(func() {
			written = other.Update(context.Background(), func(tx *Txn) error {
				for _, cell := range []Cell{ann1, row("ann/3")} {
					if err := tx.Set(cell, []byte("anew")); err != nil {
						return err
					}
				}
				return nil
			})
		})
		return lose
	}})
	receipt, err := w.erase(c, nil)
	require.NoError(t, err)
	require.NoError(t, written)
	require.EqualValues(t, 2, receipt.Kept)
	require.EqualValues(t, 1, receipt.Rows, "ann/2 alone: of the others something is left")
	require.EqualValues(t, 2, receipt.Cells)
	require.Empty(t, w.traces("ann/2", "secret"))
	receipt, err = w.erase(c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, receipt.Rows)
	require.Zero(t, receipt.Kept)
	require.Empty(t, w.traces("ann/"))
}

// With as many erased ranges as the catalog takes, a further one is refused before anything is deleted. One that an earlier range is, or that contains
// earlier ones, is none too many.
func TestScheduleE_TooManyRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	_, err := w.erase(c, nil)
	require.NoError(t, err)
	safe := c.known().erased[0].SafePoint
	var spans []span
	for i := 1; i < format.MaxErased; i++ {
		spans = append(spans, span{table: "t", from: fmt.Sprintf("b/%03d", i), to: fmt.Sprintf("b/%03d0", i)})
	}
	require.NoError(t, c.publishErased(t.Context(), spans, safe))
	_, err = c.loadCatalog(t.Context())
	require.NoError(t, err)
	require.Len(t, c.known().erased, format.MaxErased)
	set(t, c.DB, row("c"), "1")
	err = w.eraseOf(c, "c", "d")
	require.ErrorIs(t, err, ErrTooLarge)
	require.Equal(t, "1", value(t, c, row("c")), "it was deleted")

	set(t, c.DB, ann1, "secret")
	_, err = w.erase(c, nil)
	require.NoError(t, err)
	require.Len(t, c.known().erased, format.MaxErased)
	require.NoError(t, w.eraseOf(c, "b/", "d"))
	require.Len(t, c.known().erased, 2)
	require.Empty(t, w.traces("ann/"))
	require.Equal(t, "none", value(t, c, row("c")))
	v := c.known()
	require.GreaterOrEqual(t, v.safePointIn(span{table: "t", from: "b/007", row: true}), safe)
	require.Less(t, v.safePointIn(span{table: "t", from: "e", row: true}), safe)
	require.Less(t, safe, oracle.Max)
}

// Two calls erase the same rows, or rows of one index: one publishes its safe point while the other one deletes. Both succeed.
func TestScheduleE_DeletionBesideAnotherErasure(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]Range{
		"the same rows": annRange, "more rows": {Table: "t"}, "rows of the same index": {Table: "t", From: "bob", To: "bob0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			c, _ := indexed(t, w)
			second := w.client()
			require.NoError(t, second.KeepIndex(byValue()))
			for _, cell := range []Cell{ann1, bob, row("zoe")} {
				set(t, c.DB, cell, "of "+cell.Row)
			}
			p := c.hold(t, scansOfT)
			done := async(func() error {
				_, err := c.Erase(context.Background(), annRange)
				return err
			})
			reached := async(func() error { p.wait(); return nil })
			require.NoError(t, w.passes(reached))
			require.NoError(t, w.eraseOf(second, other.From, other.To))
			p.release(pass)
			require.NoError(t, w.passes(done))
			require.Empty(t, w.traces("ann/"))
			require.Equal(t, "none", value(t, second, ann1))
		})
	}
}
