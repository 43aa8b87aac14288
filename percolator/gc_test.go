package percolator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// What a collection removes, column by column, and what it leaves.
func TestCollectionRemovesAndLeaves(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c := w.client(opts...)
		kept := Cell{"t", "a", "kept"}
		for i := range 3 {
			set(t, c.DB, kept, longText+fmt.Sprint(i))
			set(t, c.DB, rowB, fmt.Sprint(i))
		}
		require.NoError(t, c.Update(ctx, func(tx *Txn) error { return tx.Delete(rowB) }))
		set(t, c.DB, rowC, "once")
		w.clock.advance(worldRetention)
		w.clock.advance(2 * time.Minute)
		last := begin(t, c) // just above the safe point to be
		for i := range 2 {
			set(t, c.DB, kept, longText+fmt.Sprint("new", i))
			set(t, c.DB, rowB, "back")
		}
		require.NoError(t, c.drained(ctx))
		w.clock.advance(worldRetention - time.Minute)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Less(t, report.SafePoint, startOf(last))
		require.Zero(t, report.LocksResolved)
		require.Equal(t, 2, report.Rows)
		// Two old values with their data, three old ones and the delete.
		require.Equal(t, 2+2+4, report.Versions)
		row := w.raw(kept)
		require.Len(t, row.All(rowstore.Write, "kept"), 3)
		require.Len(t, row.All(rowstore.Data, "kept"), 3)
		got, err := last.Get(ctx, kept)
		require.NoError(t, err)
		require.Equal(t, longText+"2", string(got))
		_, err = last.Get(ctx, rowB)
		require.ErrorIs(t, err, ErrNotFound)
		require.Equal(t, "back", value(t, c, rowB))
		require.Equal(t, "once", value(t, c, rowC))
		require.EqualValues(t, 1, c.Stats().GCRuns)
		require.EqualValues(t, report.Versions, c.Stats().GCVersions)
		again, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Zero(t, again.Versions)
		require.GreaterOrEqual(t, again.SafePoint, report.SafePoint)
	})
}

// A safe point never goes back, also when a later collection asks for less.
func TestSafePointNeverGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	w.clock.advance(3 * worldRetention)
	near, err := w.collect(c, time.Nanosecond)
	require.NoError(t, err)
	far, err := w.collect(other, 2*worldRetention)
	require.NoError(t, err)
	require.Equal(t, near.SafePoint, far.SafePoint)
	_, err = c.CollectGarbage(t.Context(), GCOptions{Keep: -time.Second})
	require.ErrorIs(t, err, ErrInvalid)
}

// A young database has no history to collect.
func TestCollectionOfAYoungStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(withoutGroups())
	t1 := w.client(withoutGroups())
	t1.wire.verdict(prewrites, dieAfter)
	require.Error(t, writes(t, t1, "1", rowA).Commit(t.Context()))
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Zero(t, report.LocksResolved)
	require.Zero(t, report.Versions)
	require.Len(t, w.versions(rowstore.Lock), 1)
}

// A collection that ends at any of its calls has done no harm, and another one
// finishes its work: what is read at and above the safe point stays the same.
func TestCollectionCutAtEachCall(t *testing.T) {
	t.Parallel()
	for _, v := range []verdict{die, dieAfter, refuse, loseReply} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			n := 0
			for fired := true; fired; n++ {
				w := newWorld(t)
				committedPrimary(t, w, false, false)
				c := w.client()
				for i := range 3 {
					set(t, c.DB, rowC, fmt.Sprint(longText, i))
				}
				require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowC) }))
				dead := w.client(withoutGroups())
				dead.wire.verdict(prewrites, dieAfter)
				require.Error(t, writes(t, dead, longText, rowC, row("d")).Commit(t.Context()))
				w.clock.advance(2 * worldAge)
				cut := w.client()
				r := cut.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
				_, err := w.collect(cut, 1)
				fired = r.Remove() > 0
				if !fired {
					require.NoError(t, err)
				}
				if v == refuse && fired {
					require.ErrorIs(t, err, faultstore.ErrInjected)
				}
				require.Equal(t, "2 1 none none", value(t, c, rowA)+" "+value(t, c, rowB)+" "+value(t, c, rowC)+" "+value(t, c, row("d")), "call %d", n)
				_, err = w.collect(c, 1)
				require.NoError(t, err)
				require.Equal(t, "2 1 none none", value(t, c, rowA)+" "+value(t, c, rowB)+" "+value(t, c, rowC)+" "+value(t, c, row("d")), "call %d", n)
				require.Empty(t, w.versions(rowstore.Lock, rowstore.Data, rowstore.Mark))
				require.Len(t, w.versions(rowstore.Write), 2)
			}
			require.Greater(t, n, 8)
		})
	}
}

// Random histories: what a snapshot at or above the safe point reads is the same
// before and after, and nothing more is kept than what such a snapshot can see.
func TestCollectionOfRandomHistories(t *testing.T) {
	t.Parallel()
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		w := newWorld(t)
		c := w.client(withoutGroups())
		ctx := t.Context()
		cells := []Cell{{"t", "a", "1"}, {"t", "a", "2"}, {"t", "b", "1"}, {"u", "a", "1"}}
		for range 40 {
			require.NoError(t, c.Update(ctx, func(tx *Txn) error {
				return changeSome(ctx, r, tx, cells)
			}))
			w.clock.advance(time.Duration(r.IntN(100)) * time.Second)
		}
		require.NoError(t, c.drained(ctx))
		now, err := c.Now(ctx)
		require.NoError(t, err)
		view := func(at Timestamp) string {
			got, err := begin(t, c, WithAsOfTimestamp(at)).GetMany(ctx, cells...)
			require.NoError(t, err)
			return fmt.Sprint(got)
		}
		oldest := now.Add(-worldAge - worldLease + time.Second)
		before := map[Timestamp]string{}
		for at := oldest; at <= now; at = at.Add(16 * time.Second) {
			before[at] = view(at)
		}
		report, err := w.collect(c, 1)
		require.NoError(t, err)
		require.LessOrEqual(t, report.SafePoint, oldest)
		for at, want := range before {
			require.Equal(t, want, view(at), "at %v", at)
		}
		for _, cell := range cells {
			row := w.raw(cell)
			below := 0
			for _, v := range row.All(rowstore.Write, cell.Column) {
				if v.TS <= report.SafePoint {
					below++
					wv, err := format.DecodeWrite(v.Value)
					require.NoError(t, err)
					require.Equal(t, format.KindPut, wv.Kind, "an old delete is left")
				}
			}
			require.LessOrEqual(t, below, 1)
			long := 0
			for _, v := range row.All(rowstore.Write, cell.Column) {
				wv, err := format.DecodeWrite(v.Value)
				require.NoError(t, err)
				if wv.Long {
					long++
				}
			}
			require.Len(t, row.All(rowstore.Data, cell.Column), long)
		}
	}
}

// changeSome deletes, writes or locks some of the cells.
func changeSome(ctx context.Context, r *rand.Rand, tx *Txn, cells []Cell) error {
	for _, cell := range cells {
		var err error
		switch r.IntN(6) {
		case 0:
			err = tx.Delete(cell)
		case 1:
			err = tx.Set(cell, []byte(fmt.Sprint(r.IntN(1000))))
		case 2:
			err = tx.Set(cell, []byte(longText+fmt.Sprint(r.IntN(1000))))
		case 3:
			if _, err = tx.GetForUpdate(ctx, cell); errors.Is(err, ErrNotFound) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Sessions of processes that died long ago go too, and those of the living stay.
func TestCollectionOfSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead, c := w.client(withoutGroups()), w.client(withoutGroups())
	set(t, dead.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	dead.wire.CrashClient()
	w.clock.advance(2 * worldAge)
	w.pass(worldSession)
	_, err := w.collect(c, 1)
	require.NoError(t, err)
	for id, want := range map[string]int{dead.session.id: 0, c.session.id: 1} {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{sessionRead(id)})
		require.NoError(t, err)
		require.Len(t, rows[0].Versions, want)
	}
}

// Acknowledgments go with the deleted column that they are about, and only then.
func TestCollectionOfAcknowledgments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var s saw
	wk := watching(t, c, s.observer("o"))
	acks := func(cell Cell) int {
		row := w.raw(cell)
		return len(row.All(rowstore.Write, format.AckColumn("o", "v")))
	}
	for _, cell := range []Cell{rowA, rowB} {
		for range 3 {
			set(t, c.DB, cell, "1")
			runs(t, wk, cell)
		}
		require.Equal(t, 3, acks(cell))
	}
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowB) }))
	runs(t, wk, rowB)
	w.clock.advance(2 * worldRetention)
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, 1, acks(rowA))
	require.Zero(t, acks(rowB))
	row := w.raw(rowB)
	require.Empty(t, row.Versions)
	// It comes back, and is seen.
	set(t, c.DB, rowB, "back")
	runs(t, wk, rowB)
	rests(t, wk, rowA)
	require.Equal(t, "back", s.values[len(s.values)-1])
}

// A collection whose safe point lies between a delete and its acknowledgment leaves both to
// a later one: alone, the acknowledgment would stay for ever.
func TestCollectionBetweenADeleteAndItsAcknowledgment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var s saw
	wk := watching(t, c, s.observer("o"))
	set(t, c.DB, rowA, "1")
	runs(t, wk, rowA)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
	w.clock.advance(time.Minute)
	runs(t, wk, rowA)
	row := w.raw(rowA)
	deleted, acked := row.Newest(rowstore.Write, "v").TS, row.Newest(rowstore.Write, format.AckColumn("o", "v")).TS
	w.clock.advance(worldRetention - 30*time.Second)
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	safe, err := c.SafePoint(t.Context())
	require.NoError(t, err)
	require.True(t, deleted < safe && safe < acked, "%v, %v, %v", deleted, safe, acked)
	w.clock.advance(2 * worldRetention)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	row = w.raw(rowA)
	require.Empty(t, row.Versions)
}

// A worker collects by itself, once for all workers.
func TestWorkersCollect(t *testing.T) {
	t.Parallel()
	settings := Settings{MaxTxnAge: 2 * time.Second, Retention: 2500 * time.Millisecond, CatalogLease: 200 * time.Millisecond}
	db := open(t, memstore.New(), WithSettings(settings))
	config := WorkerConfig{GCInterval: 10 * time.Millisecond}
	startWorker(t, db, config)
	startWorker(t, db, config)
	for i := range 5 {
		set(t, db, rowA, strings.Repeat("x", 300+i))
	}
	require.Eventually(t, func() bool {
		rows, err := db.Store().Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{everything(rowstore.Write, "v"), everything(rowstore.Data, "v")}}})
		return err == nil && len(rows[0].Versions) == 2
	}, patience, time.Millisecond)
	require.Positive(t, db.Stats().GCRuns)
}

// A worker collects the tables with a retention of their own by that, and leaves the others alone.
func TestWorkersCollectShortTables(t *testing.T) {
	t.Parallel()
	settings := Settings{MaxTxnAge: time.Second, Retention: time.Hour, CatalogLease: 50 * time.Millisecond}
	db := open(t, memstore.New(), WithSettings(settings))
	startWorker(t, db, WorkerConfig{})
	startWorker(t, db, WorkerConfig{})
	require.NoError(t, db.ConfigureTable(t.Context(), "queue", TableSettings{MaxTxnAge: 100 * time.Millisecond, Retention: 300 * time.Millisecond}))
	for i := range 5 {
		set(t, db, rowA, strings.Repeat("x", 300+i))
		set(t, db, queueA, strings.Repeat("x", 300+i))
	}
	versions := func(c Cell) int {
		rows, err := db.Store().Read(t.Context(), []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{everything(rowstore.Write, "v"), everything(rowstore.Data, "v")}}})
		require.NoError(t, err)
		return len(rows[0].Versions)
	}
	require.Eventually(t, func() bool { return versions(queueA) == 2 }, patience, time.Millisecond)
	require.Equal(t, 10, versions(rowA))
	// And again, without one of all tables.
	safe, err := db.SafePoint(t.Context())
	require.NoError(t, err)
	set(t, db, queueA, strings.Repeat("y", 300))
	require.Eventually(t, func() bool { return versions(queueA) == 2 }, patience, time.Millisecond)
	same, err := db.SafePoint(t.Context())
	require.NoError(t, err)
	require.Equal(t, safe, same)
}

// One worker cleans a table whose retention was shortened, not each of them: that takes a collection
// of all tables.
func TestOneWorkerCleansAShortenedTable(t *testing.T) {
	t.Parallel()
	settings := Settings{MaxTxnAge: time.Second, Retention: time.Hour, CatalogLease: 500 * time.Millisecond}
	mem := memstore.New()
	var whole atomic.Int32
	var db *DB
	for range 8 {
		db = open(t, faultstore.New(mem, faultstore.Options{KeepOpen: true, Watch: func(c *call) {
			if c.Kind == faultstore.CallScan && c.Range.Table == "t" && c.Range.Selectors[0].Family == rowstore.Lock {
				whole.Add(1)
			}
		}}), WithSettings(settings))
		startWorker(t, db, WorkerConfig{})
	}
	set(t, db, rowA, "1")
	require.NoError(t, db.ConfigureTable(t.Context(), "queue", TableSettings{MaxTxnAge: 100 * time.Millisecond, Retention: time.Minute}))
	require.Eventually(t, func() bool {
		v, err := db.loadCatalog(t.Context())
		return err == nil && len(v.shortTables(0)) > 0 && v.clean("queue")
	}, patience, time.Millisecond)
	time.Sleep(2 * settings.CatalogLease)
	n := whole.Load() // a collection scans a table twice
	t.Log("scans", n)
	require.LessOrEqual(t, n, int32(2*3))
}

// The request that publishes the very first safe point is lost, or late. Then there is none, and the collection leaves everything alone; the next
// one collects.
func TestFirstSafePointIsLost(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]GCOptions{"by the hints": {}, "full": {Full: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			set(t, c.DB, rowA, "old")
			set(t, c.DB, rowA, "new")
			w.clock.advance(2 * worldRetention)
			c.wire.verdict(stores(format.ColumnSafePoint), lose)
			report, err := w.collectBy(c, opts)
			require.NoError(t, err)
			require.Zero(t, report.SafePoint)
			require.Zero(t, report.Versions)
			require.Len(t, w.versions(rowstore.Write), 2)
			report, err = w.collectBy(c, opts)
			require.NoError(t, err)
			require.NotZero(t, report.SafePoint)
			require.Len(t, w.versions(rowstore.Write), 1)
		})
	}
}
