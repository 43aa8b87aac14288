package tikvraw_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikvrpc"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func cell(row string) percolator.Cell {
	return percolator.Cell{Table: "accounts", Row: row, Column: "balance"}
}

// database is a DB over a store in a cluster, without the background work that a test
// would count: sweeps, and the renewal of leases, which the test's own time bounds.
func database(t testing.TB, c *tikvtest.Cluster, layers ...tikvtest.Layer) *percolator.DB {
	t.Helper()
	pdc, rpc := c.Clients(t, layers...)
	s, err := tikvraw.New(t.Context(), pdc, tikvraw.Options{Prefix: prefix(), Patience: patience, SweepEvery: -1}.Through(rpc))
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), s,
		percolator.WithSessionLease(10*time.Minute), percolator.WithSettings(percolator.Settings{CatalogLease: 5 * time.Minute}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}

func put(ctx context.Context, db *percolator.DB, c percolator.Cell, n uint64) error {
	return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, binary.BigEndian.AppendUint64(nil, n)) })
}

func get(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (uint64, error) {
	v, err := tx.Get(ctx, c)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// transfer reads both cells, at once, and writes both.
func transfer(ctx context.Context, tx *percolator.Txn, a, b percolator.Cell) error {
	got, err := tx.GetMany(ctx, a, b)
	if err != nil {
		return err
	}
	if err := tx.Set(a, binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(got[a])-1)); err != nil {
		return err
	}
	return tx.Set(b, binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(got[b])+1))
}

// settled waits until the background has nothing to do any more: until the counts
// stay what they are once the secondaries are committed, which want tells.
func settled(t testing.TB, n *tikvtest.Counter, want func(tikvtest.Counts) bool) tikvtest.Counts {
	t.Helper()
	require.Eventually(t, func() bool { return want(n.Now()) }, time.Minute, time.Millisecond, "got %s", n.Now())
	return n.Take()
}

// TestRequests counts what a read and a transfer cost.
func TestRequests(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var n tikvtest.Counter
	db := database(t, c, &n)
	ctx := t.Context()
	a, b := cell("a"), cell("b")
	for _, at := range []percolator.Cell{a, b} {
		require.NoError(t, put(ctx, db, at, 100))
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return transfer(ctx, tx, a, b) }))
	settled(t, &n, func(n tikvtest.Counts) bool { return n.Stores[tikvrpc.CmdRawCompareAndSwap] > 0 })

	t.Run("ReadOfOneCell", func(t *testing.T) {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		got := n.Take()
		require.Equal(t, 1, got.Timestamps, "%s", got)
		_, err = get(ctx, tx, a)
		require.NoError(t, err)
		got = n.Take()
		require.Equal(t, 1, got.Total(), "%s", got)
		require.Zero(t, got.Timestamps, "%s", got)
	})
	t.Run("Transfer", func(t *testing.T) {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		for _, at := range []percolator.Cell{a, b} {
			_, err := get(ctx, tx, at)
			require.NoError(t, err)
		}
		require.Equal(t, 1, n.Take().Timestamps, "the start")
		require.NoError(t, tx.Set(a, []byte("1")))
		require.NoError(t, tx.Set(b, []byte("2")))
		require.NoError(t, tx.Commit(ctx))
		got := settled(t, &n, func(n tikvtest.Counts) bool { return n.Stores[tikvrpc.CmdRawCompareAndSwap] >= 4 })
		require.Equal(t, map[tikvrpc.CmdType]int{tikvrpc.CmdRawCompareAndSwap: 4}, got.Stores,
			"two swaps to prewrite, one to commit, one in the background")
		require.Equal(t, 1, got.Timestamps, "the commit")
		require.Zero(t, n.Take().Total(), "nothing follows")
	})
}

// TestFindingNotifications counts the requests that a scan for notifications costs.
func TestFindingNotifications(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var n tikvtest.Counter
	s := open(t, c, tikvraw.Options{SweepEvery: -1}, &n)
	ctx := t.Context()
	const rows, notified = 3000, 150
	for i := range rows {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprintf("r%05d", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 7, []byte("v"))}}
		if i%(rows/notified) == 0 {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", 7, nil))
		}
		apply(t, s, m)
	}
	// Half of the slots, in a thousand ranges, is what one of two workers has.
	half := make([]rowstore.SlotRange, 1024)
	for i := range half {
		half[i] = rowstore.SlotRange{First: uint16(64 * i), Last: uint16(64*i + 31)} //nolint:gosec // slots
	}
	for _, slots := range [][]rowstore.SlotRange{nil, {{First: 0, Last: rowstore.Slots - 1}}, half} {
		n.Take()
		found := 0
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Slots: slots, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 1 << 62}}}) {
			require.NoError(t, err)
			found++
		}
		if len(slots) < len(half) {
			require.Equal(t, notified, found)
		}
		require.Greater(t, found, notified/4)
		got := n.Take()
		t.Logf("%d notifications in %d ranges: %s", found, len(slots), got)
		require.LessOrEqual(t, got.Total(), found/10, "at most 0.1 requests for each: %s", got)
	}
	n.Take()
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "none", Slots: half, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 1 << 62}}}) {
		require.NoError(t, err)
	}
	require.Equal(t, 1, n.Take().Total(), "a thousand ranges that hold nothing")
}

// TestFindingAcrossRegions counts what it costs to find cells whose rows lie in as many regions. A
// scan without hints reads each head, with a request for each region.
func TestFindingAcrossRegions(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var n tikvtest.Counter
	s := open(t, c, tikvraw.Options{Prefix: "shop", SweepEvery: -1}, &n)
	const rows = 200
	for i := range rows {
		apply(t, s, rowstore.Mutation{Table: "t", Row: fmt.Sprintf("r%05d", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 7, nil)}})
	}
	heads, _ := c.Keys([]byte("shop\x00r"), []byte("shop\x00s"))
	require.Len(t, heads, rows)
	for _, key := range heads {
		c.Split(key)
	}
	find := func(hints bool) (got tikvtest.Counts) {
		n.Take()
		found := 0
		for row, err := range s.Scan(t.Context(), rowstore.ScanRange{
			Table: "t", Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}, Hints: hints,
			Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: 1 << 62}},
		}) {
			require.NoError(t, err)
			require.Equal(t, hints, row.Hint)
			found++
		}
		require.Equal(t, rows, found)
		got = n.Take()
		t.Logf("%d cells in as many regions, hints %v: %s", found, hints, got)
		return got
	}
	find(false) // it meets the regions
	require.GreaterOrEqual(t, find(false).Total(), rows, "a request for each region")
	require.LessOrEqual(t, find(true).Total(), rows/10, "at most 0.1 requests for each")
}

// TestMarkersInRegions has the markers of a table in many regions, cut where slots and rows
// are, and in the middle of a slot.
func TestMarkersInRegions(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var n tikvtest.Counter
	s := open(t, c, tikvraw.Options{Prefix: "shop", SweepEvery: -1}, &n)
	const rows = 300
	slot := map[string]uint16{}
	for i := range rows {
		row := fmt.Sprintf("r%05d", i)
		slot[row] = rowstore.Slot("t", row)
		apply(t, s, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 7, nil)}})
	}
	markers, _ := c.Keys([]byte("shop\x00m"), []byte("shop\x00n"))
	require.Len(t, markers, rows)
	for i := 0; i < rows; i += 20 {
		c.Split(markers[i][:len(markers[i])-i%9])
	}
	for _, width := range []int{rowstore.Slots, 4096, 300} {
		var slots []rowstore.SlotRange
		for first := 0; first < rowstore.Slots; first += 2 * width {
			slots = append(slots, rowstore.SlotRange{First: uint16(first), Last: uint16(min(first+width, rowstore.Slots) - 1)}) //nolint:gosec // slots
		}
		want := map[string]bool{}
		for row, in := range slot {
			if int(in)%(2*width) < width {
				want[row] = true
			}
		}
		n.Take()
		last := -1
		for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Slots: slots, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 1 << 62}}}) {
			require.NoError(t, err)
			require.True(t, want[r.Row])
			require.GreaterOrEqual(t, int(slot[r.Row]), last)
			last = int(slot[r.Row])
			delete(want, r.Row)
		}
		require.Empty(t, want)
		t.Logf("%d ranges: %s", len(slots), n.Take())
	}
}

// TestWorkersScans counts the scans of a worker that has work: what it reads and writes
// for the runs themselves is not finding. Its clock moves only when everybody waits: on
// a slow machine there would be more of the looks that a worker takes now and then.
func TestWorkersScans(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	synctest.Test(t, func(t *testing.T) { countWorkersScans(t, c) })
}

func countWorkersScans(t *testing.T, c *tikvtest.Cluster) {
	t.Helper()
	var n tikvtest.Counter
	pdc, rpc := c.Clients(t, &n)
	s, err := tikvraw.New(t.Context(), pdc, tikvraw.Options{Prefix: prefix(), Patience: patience, SweepEvery: -1}.Through(rpc))
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), s, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	const changed = 400
	var runs atomic.Int64
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{
		Name: "count", Table: "accounts", Column: "balance",
		Func: func(context.Context, *percolator.Txn, percolator.Cell) error { runs.Add(1); return nil },
	}))
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { require.NoError(t, w.Run(ctx)) })
	defer working.Wait()
	defer stop()
	require.NoError(t, w.WaitIdle(t.Context()))
	n.Take()
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for i := range changed {
			if err := tx.Set(cell(fmt.Sprintf("%03d", i)), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, w.WaitIdle(t.Context()))
	got := n.Take()
	t.Logf("%d changes, %d runs: %s", changed, runs.Load(), got)
	require.GreaterOrEqual(t, runs.Load(), int64(changed))
	require.LessOrEqual(t, got.Stores[tikvrpc.CmdRawScan], changed/10, "%s", got)
}

// TestRoundTrips runs transactions with 2 ms added to each request, on a clock that
// moves only when everybody waits: what they take is their round trips, exactly.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	const latency = 2 * time.Millisecond
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	c.Split([]byte("tm"))
	synctest.Test(t, func(t *testing.T) {
		var l tikvtest.Latency
		var n tikvtest.Counter
		db := database(t, c, &n, &l)
		defer func() { require.NoError(t, db.Close(t.Context())) }()
		ctx := t.Context()
		const pairs = 1000
		for i := range pairs {
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				if err := tx.Set(cell(fmt.Sprintf("a%d", i)), binary.BigEndian.AppendUint64(nil, 100)); err != nil {
					return err
				}
				return tx.Set(cell(fmt.Sprintf("b%d", i)), binary.BigEndian.AppendUint64(nil, 100))
			}))
		}
		synctest.Wait()
		one := func(i int) {
			err := db.Update(ctx, func(tx *percolator.Txn) error {
				return transfer(ctx, tx, cell(fmt.Sprintf("a%d", i)), cell(fmt.Sprintf("b%d", i)))
			})
			require.NoError(t, err)
		}
		n.Take()
		l.Set(latency)
		start := time.Now()
		one(0)
		took := time.Since(start)
		t.Logf("one transaction: %d round trips, %s", took/latency, n.Take())
		require.LessOrEqual(t, took, 6*latency)
		time.Sleep(time.Second) // the secondary

		start = time.Now()
		var wg sync.WaitGroup
		for i := range pairs {
			wg.Go(func() { one(i) })
		}
		wg.Wait()
		together := time.Since(start)
		t.Logf("%d together: %d round trips, %s", pairs, together/latency, n.Take())
		// A call that finds one of its kind under way waits for that at most, and goes with
		// all that wait: so each may take twice as long, whatever their number.
		require.LessOrEqual(t, together, 2*took)
		l.Set(0)
	})
}
