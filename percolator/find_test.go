package percolator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// dealt runs one look of a worker and tells which rows it dealt with.
func dealt(t testing.TB, wk *Worker, rows *saw) []string {
	t.Helper()
	rows.mu.Lock()
	rows.values = nil
	rows.mu.Unlock()
	_, err := wk.look(t.Context(), "t", nil, 0)
	require.NoError(t, err)
	wk.tasks.Wait()
	rows.mu.Lock()
	defer rows.mu.Unlock()
	slices.Sort(rows.values)
	return slices.Clone(rows.values)
}

// rowWorker keeps the rows that its observer is called for, and fails them, so that
// their notifications stay.
func rowWorker(t testing.TB, c *client, rows *saw) *Worker {
	t.Helper()
	return watching(t, c, Observer{Name: "o", Func: func(_ context.Context, _ *Txn, cell Cell) error {
		rows.mu.Lock()
		defer rows.mu.Unlock()
		rows.values = append(rows.values, cell.Row)
		return nil
	}})
}

func notifyRows(t testing.TB, c *client, n int) (names []string) {
	t.Helper()
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range n {
			names = append(names, fmt.Sprintf("%04d", i))
			if err := tx.Set(row(names[i]), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	return names
}

// A look goes round the whole table, whether the store finds rows by slots or not. Else looks
// begin at random places where there is much to find.
func TestLookGoesRoundTheTable(t *testing.T) {
	t.Parallel()
	for _, slots := range []bool{false, true} {
		t.Run(fmt.Sprint("by slots ", slots), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			var rows saw
			wk := rowWorker(t, c, &rows)
			require.True(t, wk.db.slots)
			wk.db.slots = slots
			starts := map[string]bool{}
			for range 4 {
				names := notifyRows(t, c, 2*lookPage+10)
				scanned := len(c.wire.sent(op(faultstore.CallScan)))
				require.Equal(t, names, dealt(t, wk, &rows), "each row once")
				scans := c.wire.sent(op(faultstore.CallScan))[scanned:]
				starts[scans[0].Range.From] = true
				for _, s := range scans {
					require.Equal(t, slots, len(s.Range.Slots) > 0)
				}
			}
			if !slots {
				require.Greater(t, len(starts), 1, "every look began at the same place")
			}
			require.EqualValues(t, 4*(2*lookPage+10), c.Stats().ObserverRuns)
			require.Empty(t, w.versions(rowstore.Notify))
		})
	}
}

// A look at the slots that a push has named finds their rows and reads no others.
func TestLookAtSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var rows saw
	wk := rowWorker(t, c, &rows)
	notifyRows(t, c, 100)
	slot := rowstore.Slot("t", "0042")
	l, err := wk.look(t.Context(), "t", []uint16{slot, slot + 1, slot}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, l.found)
	wk.tasks.Wait()
	require.Equal(t, []string{"0042"}, rows.values)
	require.Len(t, w.versions(rowstore.Notify), 99)
	// Others' slots are theirs.
	wk.member.shares.Store(&shares{wk.list[0]: {{kind: shareNone}}})
	scanned := len(c.wire.sent(op(faultstore.CallScan)))
	for _, slots := range [][]uint16{nil, {slot}} {
		_, err = wk.look(t.Context(), "t", slots, 0)
		require.NoError(t, err)
	}
	require.Len(t, c.wire.sent(op(faultstore.CallScan)), scanned)
}

// What pushes tell of is looked at, or everything if they tell of too much.
func TestAsked(t *testing.T) {
	t.Parallel()
	a := asked{some: make(chan struct{}, 1)}
	take := func(token bool) []uint16 {
		require.Equal(t, token, len(a.some) == 1)
		if token {
			<-a.some
		}
		return a.take()
	}
	require.Empty(t, take(false))
	require.True(t, a.add([]uint16{3, 1}))
	require.True(t, a.add([]uint16{2}))
	require.Equal(t, []uint16{3, 1, 2}, take(true))
	require.Empty(t, take(false))
	var most []uint16
	for slot := range uint16(mostAsked) {
		most = append(most, slot)
	}
	require.True(t, a.add(most))
	require.True(t, a.add(most), "these are asked for already")
	require.False(t, a.add([]uint16{mostAsked}))
	require.Empty(t, take(true))
	require.True(t, a.add([]uint16{3, 3}))
	require.Equal(t, []uint16{3}, take(true))
	require.True(t, a.add([]uint16{1}))
	require.Equal(t, []uint16{1}, take(true))
}

// Two workers over one large table at once: every change is run once, though each
// looks everywhere, and none stays because both left it to the other.
func TestTwoWorkersOfOneTable(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	var mu sync.Mutex
	ran := map[string]int{}
	o := Observer{Name: "o", Table: "t", Column: "v", Func: func(_ context.Context, tx *Txn, c Cell) error {
		out := c
		out.Column = "out"
		return tx.Set(out, []byte(c.Row))
	}}
	var dbs []*DB
	var workers []*Worker
	for range 2 {
		db, err := New(t.Context(), newWire(mem), WithSettings(Settings{CatalogLease: time.Second}))
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, db.Close(context.Background())) })
		dbs = append(dbs, db)
		workers = append(workers, startWorker(t, db, WorkerConfig{MemberLease: 20 * time.Millisecond, Rescan: 30 * time.Millisecond}, o))
	}
	for _, w := range workers {
		idle(t, w)
	}
	const rows = 1500
	require.NoError(t, dbs[0].Update(t.Context(), func(tx *Txn) error {
		for i := range rows {
			if err := tx.Set(row(fmt.Sprintf("%05d", i)), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, w := range workers {
		idle(t, w)
	}
	require.NoError(t, dbs[0].View(t.Context(), func(tx *Txn) error {
		for r, err := range tx.Scan(t.Context(), Range{Table: "t", Columns: []string{"out"}}) {
			if err != nil {
				return err
			}
			mu.Lock()
			ran[r.Key]++
			mu.Unlock()
		}
		return nil
	}))
	require.Len(t, ran, rows)
	s1, s2 := dbs[0].Stats(), dbs[1].Stats()
	require.EqualValues(t, rows, s1.ObserverRuns+s2.ObserverRuns)
	t.Logf("runs %d and %d, conflicts %d and %d", s1.ObserverRuns, s2.ObserverRuns, s1.ObserverConflicts, s2.ObserverConflicts)
}

// A look waits for room in a queue, as long as functions take, and finds nothing. That is
// no reason to rest from looking.
func TestLookThatWaitedForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := New(t.Context(), memstore.New(), WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		registered(t, db, "of nobody here", "other")
		hang := make(chan struct{})
		var ran atomic.Int64
		w := NewWorker(db, WorkerConfig{GCInterval: -1})
		require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
			<-hang
			ran.Add(1)
			return nil
		}}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(time.Minute)
		setRows(t, db, "v", 16+lowWater+10)
		time.Sleep(time.Second)
		set(t, db, Cell{"t", "x", "other"}, "1") // the look that it causes finds no room
		time.Sleep(time.Second)
		close(hang)
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 16+lowWater+10, ran.Load())
		set(t, db, Cell{"t", "y", "v"}, "1")
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 16+lowWater+11, ran.Load())
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, db.Close(context.WithoutCancel(t.Context())))
	})
}
