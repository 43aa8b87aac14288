package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// B4. Guards: a sweep that takes longer than history is kept goes on by another snapshot where it was: every cell that its observer has yet to see
// gets one notification, however long that takes. It ends if nobody needs it any more.
func TestScheduleB4_SweepOutlivesItsSnapshot(t *testing.T) {
	t.Parallel()
	const rows, changed = 3*sweepBatch - 10, 2 * sweepBatch
	cell := func(i int) Cell { return row(fmt.Sprintf("r%06d", i)) }
	notifies := func(x *call) bool { return edits(x, puts(rowstore.Notify)) && x.Mutations()[0].Table == "t" }
	for name, ends := range map[string]func(t *testing.T, other *client){
		"goes on": nil,
		"another worker has swept": func(t *testing.T, other *client) {
			_, err := other.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
				v.Observers[0].Swept = 1
				return true, nil
			})
			require.NoError(t, err)
		},
		"the observer was removed": func(t *testing.T, other *client) { require.NoError(t, other.RemoveObserver(t.Context(), "o")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client(WithSettings(Settings{MaxTxnAge: 10 * time.Second, Retention: time.Minute, CatalogLease: worldLease}))
			setEach(t, c.DB, rows, cell)
			var s saw
			wk := watching(t, c, s.observer("o"))
			require.NoError(t, wk.publish(t.Context()))
			other := w.client()
			p := c.hold(t, notifies)
			swept := async(func() error { return wk.sweepNew(t.Context()) })
			p.wait()
			// What the sweep would have read of this cell is collected. Its change has notified.
			set(t, other.DB, cell(changed), "2")
			w.pass(20 * time.Second)
			_, err := w.collect(other, 1)
			require.NoError(t, err)
			if ends != nil {
				ends(t, other)
			}
			p.release(pass)
			require.NoError(t, w.finish(swept))
			if ends != nil {
				require.Len(t, c.wire.sent(notifies), 1)
				return
			}
			require.Len(t, c.wire.sent(notifies), 3)
			for i := range rows {
				want := 1
				if i == changed {
					want = 2
				}
				require.Len(t, w.notified(cell(i)), want, "row %d", i)
			}
			v, err := c.loadCatalog(t.Context())
			require.NoError(t, err)
			require.Empty(t, wk.unswept(v))
			for _, i := range []int{0, sweepBatch, changed, rows - 1} {
				runs(t, wk, cell(i))
				rests(t, wk, cell(i))
			}
			require.Equal(t, []string{"1", "1", "2", "1"}, s.values)
		})
	}
}

// slowRows lets time pass with each row of table t that a scan hands out.
type slowRows struct {
	*memstore.Store
	pass func()
}

func (s slowRows) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, r) {
			if r.Table == "t" && len(r.Selectors) > 2 {
				s.pass()
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// A sweep of a table that takes several retentions to read, in which few cells are left to notify, comes to its end.
func TestScheduleB4_SweepOfFewCellsOutlivesItsSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var passing func()
	c := w.clientOver(newWireTo(slowRows{w.mem, func() { passing() }}, w.mem), WithSettings(Settings{MaxTxnAge: 10 * time.Second, Retention: time.Minute, CatalogLease: worldLease}))
	other := w.client()
	const rows = 2000
	passing = func() {}
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) (err error) {
		for i := range rows {
			err = errors.Join(err, tx.Set(row(fmt.Sprintf("r%06d", i)), []byte("1")))
		}
		return err
	}))
	var s saw
	wk := watching(t, c, s.observer("o"))
	require.NoError(t, wk.publish(t.Context()))
	v, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	// Somebody else has seen all but the first and the last cell.
	seen, err := c.Now(t.Context())
	require.NoError(t, err)
	ack := format.Write{Kind: format.KindPut, Start: seen, Value: format.EncodeAck(seen)}
	var muts []rowstore.Mutation
	for i := 1; i < rows-1; i++ {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprintf("r%06d", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.AckColumn("o", "v"), seen, ack.Encode())}})
	}
	_, err = w.mem.Apply(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	n := 0
	passing = func() {
		n++
		w.clock.advance(100 * time.Millisecond) // so 600 rows in a retention
		if n%100 == 0 {
			later, err := other.Now(t.Context())
			require.NoError(t, err)
			v, err := other.loadCatalog(t.Context())
			require.NoError(t, err)
			_, err = other.publishSafePoint(t.Context(), v, later.Add(-time.Minute))
			require.NoError(t, err)
		}
		require.Less(t, n, 20*rows, "it comes to no end")
	}
	at, err := c.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, wk.sweepFor(t.Context(), v.Observers[0], at))
	scans := c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" })
	require.Greater(t, len(scans), 1, "it has gone on by another snapshot")
	require.Less(t, len(scans), 6)
	require.Less(t, n, 3*rows)
	require.Len(t, w.notified(row("r000000")), 1)
	require.Len(t, w.notified(row(fmt.Sprintf("r%06d", rows-1))), 1)
}
