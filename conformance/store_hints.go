package conformance

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slotsWithHints compares scans that take hints with those that do not: the same rows come in the
// same order, and none is a hint twice, as long as its notification stays. A store need not give any.
func slotsWithHints(t testing.TB, e *env) {
	h := e.slots(t)
	rows := rowsIn("t", 3, 0, 77, 78, 4000, rowstore.Slots-1)
	for i, row := range rows {
		h.put(row, write(ver(rowstore.Write, "a", 5, "x")), notifiedOf([]string{"a", "a", "b"}[i%3], 5))
	}
	hints := map[string]bool{}
	compare := func(s rowstore.ScanRange) {
		t.Helper()
		s.Table, s.Selectors = "t", []rowstore.Selector{{Family: rowstore.Notify, Column: "a", To: oracle.Max, Limit: 2}}
		want := h.bySlot(s)
		s.Hints = true
		got := h.scan(s)
		exact := slices.DeleteFunc(slices.Clone(got), func(r rowstore.Row) bool {
			if r.Hint {
				require.False(t, hints[r.Row], "row %q is a hint again", r.Row)
				hints[r.Row] = true
			}
			return r.Hint && !slices.Contains(keysOf(want), r.Row)
		})
		require.Equal(t, keysOf(want), keysOf(exact))
		for i, r := range exact {
			require.True(t, r.Hint || slices.EqualFunc(want[i].Versions, r.Versions, func(a, b rowstore.Version) bool { return a.TS == b.TS && a.Column == b.Column }), "row %q", r.Row)
		}
		require.True(t, slices.IsSortedFunc(got, compareBySlot))
	}
	some := []rowstore.SlotRange{span(0, 77), span(4000, 5000)}
	compare(rowstore.ScanRange{Slots: some})
	compare(rowstore.ScanRange{Slots: some})
	compare(rowstore.ScanRange{Slots: allSlots()})
	for i, row := range rows {
		h.put(row, notifiedOf("a", rowstore.Timestamp(10+i)), notifiedOf("b", 5)) //nolint:gosec // positive
	}
	compare(rowstore.ScanRange{Slots: allSlots()})
	compare(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(77, 4000)}, From: rows[4]})
	for _, row := range rows {
		h.put(row, rowstore.DeleteRange(rowstore.Notify, "a", 0, oracle.Max))
	}
	compare(rowstore.ScanRange{Slots: allSlots()})
	for _, row := range rows {
		h.put(row, rowstore.DeleteRange(rowstore.Notify, "b", 0, oracle.Max))
	}
	require.Zero(t, h.scansSlots(rowstore.ScanRange{Slots: allSlots()}))
	clear(hints)
	h.put(rows[5], notifiedOf("a", 90))
	compare(rowstore.ScanRange{Slots: allSlots()})
	compare(rowstore.ScanRange{Slots: allSlots()})
}
