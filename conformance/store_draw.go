package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// snapshotReads is ReadSnapshot with what every answer must be.
func (h *harness) snapshotReads(d rowstore.SnapshotReader, asks ...rowstore.SnapshotRead) []rowstore.SnapshotRows {
	h.Helper()
	answers, err := d.ReadSnapshot(h.ctx, asks)
	require.NoError(h, err)
	require.Len(h, answers, len(asks))
	for i, a := range answers {
		require.NoError(h, a.Err)
		require.Len(h, a.Rows, len(asks[i].Reads))
		for j, r := range a.Rows {
			require.NoError(h, r.Err)
			require.Equal(h, []string{asks[i].Reads[j].Table, asks[i].Reads[j].Row}, []string{r.Table, r.Row})
		}
	}
	return answers
}

// snapshotAt returns the selectors of a read at a snapshot.
func snapshotAt(column string, at rowstore.Timestamp) []rowstore.Selector {
	return []rowstore.Selector{
		{Family: rowstore.Lock, Column: column, To: at, Limit: 1},
		{Family: rowstore.Write, Column: column, To: at, Limit: 1},
	}
}

// A ReadSnapshot answers the same as a Read at its timestamp, for the reads of a
// snapshot and for any others, also where a row has versions that lie ahead of it.
func snapshotReadsAreReads(t testing.TB, e *env) {
	h, o := e.oracle(t)
	d := ability[rowstore.SnapshotReader](t, h.s, "SnapshotReader")
	draw := func() rowstore.Timestamp {
		ts, err := o.Draw(h.ctx, 1)
		require.NoError(t, err)
		return ts
	}
	for i := range 3 { // history, a lock, a mark, notifications, data
		h.put("a", rowstore.Put(rowstore.Write, "v", draw(), fmt.Appendf(nil, "v%d", i)), rowstore.Put(rowstore.Notify, "v", draw(), []byte("n")))
	}
	h.put("b", rowstore.Put(rowstore.Lock, "v", draw(), []byte("lock")), rowstore.Put(rowstore.Mark, "v", draw(), nil), rowstore.Put(rowstore.Write, "w", draw(), nil))
	h.put("b", rowstore.Put(rowstore.Data, "w", draw(), []byte("long")))
	for _, ts := range []rowstore.Timestamp{draw(), oracle.Max - 2, oracle.Max - 1} { // a lease is written at its end
		h.put("ahead", rowstore.Put(rowstore.Write, "v", ts, []byte("v")), rowstore.Put(rowstore.Notify, "v", ts, nil), rowstore.Put(rowstore.Mark, "v", ts, nil))
		h.put("half", rowstore.Put(rowstore.Write, "w", ts, []byte("w")))
	}
	h.put("half", rowstore.Put(rowstore.Write, "v", draw(), []byte("v")))
	h.put("ahead", rowstore.Put(rowstore.Lock, "v", oracle.Max-1, []byte("lock")))
	last := draw()
	picks := func(at rowstore.Timestamp) [][]rowstore.Selector {
		return [][]rowstore.Selector{
			snapshotAt("v", at),
			append(snapshotAt("v", at), snapshotAt("w", at)...),
			append(snapshotAt("v", at), rowstore.Selector{Family: rowstore.Notify, Column: "v", To: oracle.Max}),
			snapshotAt(rowstore.AllColumns, at),
			{{Family: rowstore.Write, Column: "v", To: at}},
			{{Family: rowstore.Lock, Column: "v", To: at, Limit: 1}, {Family: rowstore.Write, Column: "v", To: at, Limit: 2}, {Family: rowstore.Mark, Column: "w", To: oracle.Max, Limit: 1}},
			{{Family: rowstore.Write, Column: "v", To: last, Limit: 2}, {Family: rowstore.Data, Column: "w", To: at}},
			{{Family: rowstore.Mark, Column: "v", To: at}, {Family: rowstore.Lock, Column: "v", From: 1, To: oracle.Max}},
		}
	}
	for i := range picks(rowstore.AssignedTimestamp) {
		var ask rowstore.SnapshotRead
		for _, row := range []string{"a", "b", "none", "a", "ahead", "half"} {
			ask.Reads = append(ask.Reads, rowstore.RowRead{Table: table, Row: row, Selectors: picks(rowstore.AssignedTimestamp)[i]})
		}
		answers := h.snapshotReads(d, ask, ask)
		for _, a := range answers {
			require.Greater(t, a.TS, last)
			last = a.TS
			for j, r := range a.Rows {
				require.Equal(t, h.readOf(table, ask.Reads[j].Row, picks(a.TS)[i]...), norm(r.Versions), "picks %d of row %s", i, r.Row)
			}
		}
	}
	require.Greater(t, draw(), last)
	none, err := d.ReadSnapshot(h.ctx, nil)
	require.NoError(t, err)
	require.Empty(t, none)
	for _, bad := range []rowstore.SnapshotRead{
		{},
		{Reads: []rowstore.RowRead{{Table: table, Row: "a"}}},
		{Reads: []rowstore.RowRead{{Table: table, Selectors: snapshotAt("v", 1)}}},
		{Reads: []rowstore.RowRead{{Table: table, Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "v", From: rowstore.AssignedTimestamp, To: rowstore.AssignedTimestamp}}}}},
	} {
		_, err := d.ReadSnapshot(h.ctx, []rowstore.SnapshotRead{bad})
		require.ErrorIs(t, err, rowstore.ErrInvalid)
	}
	_, err = h.s.Read(h.ctx, []rowstore.RowRead{{Table: table, Row: "a", Selectors: snapshotAt("v", rowstore.AssignedTimestamp)}})
	require.ErrorIs(t, err, rowstore.ErrInvalid, "only a SnapshotRead draws")
}

// The view of a ReadSnapshot is of a moment after its timestamp was drawn: it shows a
// write whose timestamp was drawn, and which was done, before the call.
func snapshotReadsSeeWhatWasDone(t testing.TB, e *env) {
	h, o := e.oracle(t)
	d := ability[rowstore.SnapshotReader](t, h.s, "SnapshotReader")
	const workers = 6
	rounds := e.n(100, 30)
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			row := fmt.Sprint("r", w)
			for range rounds {
				ts, err := o.Draw(h.ctx, 1)
				if err != nil {
					return err
				}
				outs, err := h.s.Apply(h.ctx, []rowstore.Mutation{{Table: table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", ts, []byte(row))}}}, rowstore.ApplyOptions{})
				if err == nil {
					err = outs[0].Err
				}
				if err != nil {
					return err
				}
				answers, err := d.ReadSnapshot(h.ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: table, Row: row, Selectors: snapshotAt("v", rowstore.AssignedTimestamp)}}}})
				if err != nil {
					return err
				}
				a := &answers[0]
				if a.Err != nil || a.Rows[0].Err != nil {
					return fmt.Errorf("%w, %w", a.Err, a.Rows[0].Err)
				}
				if vs := a.Rows[0].Versions; a.TS <= ts || len(vs) != 1 || vs[0].TS != ts || string(vs[0].Value) != row {
					return fmt.Errorf("at %d, after a write at %d, the row %s is %v", uint64(a.TS), uint64(ts), row, vs)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// If an Apply draws timestamps, it draws them after its changes, one for each mutation
// that it applied. A store may also draw none at all.
func appliesDrawAfterwards(t testing.TB, e *env) {
	h, o := e.oracle(t)
	before, err := o.Draw(h.ctx, 1)
	require.NoError(t, err)
	h.put("taken", rowstore.Put(rowstore.Lock, "v", before, nil))
	muts := []rowstore.Mutation{
		{Table: table, Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", before, []byte("x"))}},
		{Table: table, Row: "taken", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "v", 0)}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", before, nil)}},
		{Table: table, Row: "b", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", before, []byte("y"))}},
	}
	for _, deferred := range []bool{false, true} {
		outs, err := h.s.Apply(h.ctx, muts, rowstore.ApplyOptions{AssignTimestamp: true, Deferred: deferred})
		require.NoError(t, err)
		require.Equal(t, []bool{true, false, true}, []bool{outs[0].Applied, outs[1].Applied, outs[2].Applied})
		require.Zero(t, outs[1].Timestamp)
		after, err := o.Draw(h.ctx, 1)
		require.NoError(t, err)
		if outs[0].Timestamp == 0 {
			require.Zero(t, outs[2].Timestamp, "a store draws for all or for none")
			t.Logf("the store draws no timestamps in an Apply")
			continue
		}
		require.NotEqual(t, outs[0].Timestamp, outs[2].Timestamp)
		for _, i := range []int{0, 2} {
			require.Greater(t, outs[i].Timestamp, before)
			require.Less(t, outs[i].Timestamp, after)
		}
	}
}
