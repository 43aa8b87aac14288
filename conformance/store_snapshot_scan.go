package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// snapshotScanner is a harness of a store whose scans take a snapshot, with its oracle.
func (e *env) snapshotScanner(t testing.TB) (h *harness, draw func() rowstore.Timestamp) {
	h, o := e.oracle(t)
	ability[rowstore.SnapshotScanner](t, h.s, "SnapshotScanner")
	return h, func() rowstore.Timestamp {
		ts, err := o.Draw(h.ctx, 1)
		require.NoError(t, err)
		return ts
	}
}

// A scan at a snapshot visits what one at its timestamp does, for the picks of a transaction and for any others. It
// draws that timestamp unless it is given one, also where there are no rows. What it says of the age of its
// rows is no less than what was drawn before.
func snapshotScansAreScans(t testing.TB, e *env) {
	h, draw := e.snapshotScanner(t)
	for i := range 200 {
		row := fmt.Sprintf("r%03d", i)
		for range 1 + i%3 {
			h.put(row, rowstore.Put(rowstore.Write, "v", draw(), []byte(row)), rowstore.Put(rowstore.Write, "w", draw(), nil))
		}
		switch i % 7 {
		case 0:
			h.put(row, rowstore.Put(rowstore.Lock, "v", draw(), []byte("lock")))
		case 1:
			h.put(row, rowstore.Put(rowstore.Mark, "w", draw(), nil), rowstore.Put(rowstore.Notify, "v", draw(), []byte("n")))
		}
	}
	old := draw()
	h.put("r007", rowstore.Put(rowstore.Write, "v", draw(), []byte("later")))
	h.put("r008", rowstore.Put(rowstore.Lock, "v", draw(), []byte("later")))
	h.put("r009", rowstore.Put(rowstore.Write, "v", oracle.Max-1, []byte("ahead")))
	picks := func(at rowstore.Timestamp) [][]rowstore.Selector {
		return [][]rowstore.Selector{
			snapshotAt("v", at),
			append(snapshotAt("v", at), snapshotAt("w", at)...),
			snapshotAt(rowstore.AllColumns, at),
			append(snapshotAt("v", at), rowstore.Selector{Family: rowstore.Mark, Column: "w", To: oracle.Max}),
			append(snapshotAt("v", at), rowstore.Selector{Family: rowstore.Write, Column: "w", To: old, Limit: 1}),
			{{Family: rowstore.Write, Column: "v", To: at}},
			{{Family: rowstore.Notify, Column: "v", To: at}},
			{{Family: rowstore.Write, Column: "none", To: at, Limit: 1}},
			{{Family: rowstore.Write, Column: "v", To: old, Limit: 1}},
			{{Family: rowstore.Lock, Column: "v", To: at, Limit: 1}, {Family: rowstore.Write, Column: "v", To: old, Limit: 1}},
			{{Family: rowstore.Lock, Column: "v", To: at, Limit: 1}},
		}
	}
	ranges := []rowstore.ScanRange{
		{Table: table},
		{Table: table, Reverse: true},
		{Table: table, From: "r010", To: "r150", Limit: 100},
		{Table: table, From: "r010", To: "r150", Limit: 3, Reverse: true},
		{Table: table, From: "r020", To: "r020"},
		{Table: table, From: "x"},
		{Table: "none"},
	}
	last := draw()
	for _, r := range ranges {
		for i := range picks(0) {
			for _, start := range []rowstore.Timestamp{0, old, 7} {
				r.Selectors, r.Snapshot = picks(rowstore.AssignedTimestamp)[i], &rowstore.ScanSnapshot{Start: start}
				got := h.scan(r)
				at := *r.Snapshot
				if start == 0 {
					require.Greater(t, at.Start, last, "the timestamp of the scan")
				} else {
					require.Equal(t, start, at.Start)
				}
				if at.Latest != 0 {
					require.GreaterOrEqual(t, at.Latest, max(last, at.Start), "the last timestamp that was drawn")
				}
				require.Equal(t, picks(rowstore.AssignedTimestamp)[i], r.Selectors, "they are the caller's")
				r.Selectors, r.Snapshot = picks(at.Start)[i], nil
				require.Equal(t, h.scan(r), got, "picks %d of %q to %q", i, r.From, r.To)
				last = draw()
			}
		}
	}
}

// A scan without a snapshot draws nothing, and neither one of slots nor the beginning of a range in time can be at one.
func snapshotScansOfNoSense(t testing.TB, e *env) {
	h, draw := e.snapshotScanner(t)
	h.put("a", rowstore.Put(rowstore.Write, "v", draw(), nil))
	for _, bad := range []rowstore.ScanRange{
		{Table: table, Selectors: snapshotAt("v", rowstore.AssignedTimestamp)},
		{Table: table, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "v", From: rowstore.AssignedTimestamp, To: 1}}, Snapshot: &rowstore.ScanSnapshot{}},
		{Table: table, Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "v", To: 1}}, Slots: []rowstore.SlotRange{{First: 0, Last: 1}}, Snapshot: &rowstore.ScanSnapshot{}},
	} {
		_, err := collect(h.ctx, h.s, bad)
		require.ErrorIs(t, err, rowstore.ErrInvalid)
	}
}

// Each use of the sequence is a scan of its own, so one without a timestamp draws another, and sees what was done since. One that has
// the timestamp of the first sees the same.
func snapshotScansAgain(t testing.TB, e *env) {
	h, draw := e.snapshotScanner(t)
	first := draw()
	h.put("a", rowstore.Put(rowstore.Write, "v", first, nil))
	at := &rowstore.ScanSnapshot{}
	rows := h.s.Scan(h.ctx, rowstore.ScanRange{Table: table, Selectors: snapshotAt("v", rowstore.AssignedTimestamp), Snapshot: at})
	newest := func() (ts rowstore.Timestamp) {
		for row, err := range rows {
			require.NoError(t, err)
			ts = row.Versions[0].TS
		}
		return ts
	}
	require.Equal(t, first, newest())
	start := at.Start
	second := draw()
	require.Greater(t, second, start)
	h.put("a", rowstore.Put(rowstore.Write, "v", second, nil))
	require.Equal(t, first, newest())
	require.Equal(t, start, at.Start)
	at.Start = 0
	require.Equal(t, second, newest())
	require.Greater(t, at.Start, second)
}

// The rows of a scan that draws its timestamp are of moments after that: it shows a write whose timestamp was drawn, and
// which was done, before the call, however many others write and scan.
func snapshotScansSeeWhatWasDone(t testing.TB, e *env) {
	h, draw := e.snapshotScanner(t)
	const workers = 6
	rounds := e.n(100, 30)
	first := draw()
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			row, last := fmt.Sprint("r", w), first
			for i := range rounds {
				outs, err := h.s.Apply(h.ctx, []rowstore.Mutation{{Table: table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", last, []byte(row))}}}, rowstore.ApplyOptions{})
				if err == nil {
					err = outs[0].Err
				}
				if err != nil {
					return err
				}
				r := rowstore.ScanRange{Table: table, Selectors: snapshotAt("v", rowstore.AssignedTimestamp), Snapshot: &rowstore.ScanSnapshot{}, Reverse: i%2 == 0}
				var own rowstore.Row
				for found, err := range h.s.Scan(h.ctx, r) {
					if err != nil {
						return err
					}
					if found.Row == row {
						own = found
					}
				}
				if vs := own.Versions; r.Snapshot.Start <= last || len(vs) != 1 || vs[0].TS != last || string(vs[0].Value) != row {
					return fmt.Errorf("at %d, after a write at %d, the row %s is %v", uint64(r.Snapshot.Start), uint64(last), row, vs)
				}
				last = r.Snapshot.Start
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}
