package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// secondOpenOfAStoreInUse opens a store that is open already. Either the second open
// returns an error, or both work on the same data.
func secondOpenOfAStoreInUse(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil {
		t.Skip("the store has no hook Reopen")
	}
	want := h.populate()
	var second rowstore.Store
	var err error
	func() {
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("opening a store that is in use panicked: %v", p)
			}
		}()
		second, err = k.Reopen(h.ctx)
	}()
	switch {
	case t.Failed():
		return
	case err != nil:
		t.Logf("refused: %v", err)
		require.Nil(t, second, "an error and a store")
	default:
		other := &harness{TB: t, s: second, ctx: h.ctx}
		require.Equal(t, want, other.contents())
		h.put("one", write(ver(rowstore.Lock, "c", 5, "one")))
		other.breaks("one", 0, ver(rowstore.Lock, "c", 5, "one"), rowstore.Absent(rowstore.Lock, "c", 0))
		other.put("two", write(ver(rowstore.Lock, "c", 6, "two")))
		h.breaks("two", 0, ver(rowstore.Lock, "c", 6, "two"), rowstore.Absent(rowstore.Lock, "c", 0))
		h.seesChangesOf(other, "changed in the second store")
		other.seesChangesOf(h, "changed in the first store")
		h.hearsOf(other, "notified in the second store")
		other.hearsOf(h, "notified in the first store")
		if a, ok := rowstore.Unwrap[rowstore.OracleProvider](h.s); ok {
			b, ok := rowstore.Unwrap[rowstore.OracleProvider](second)
			require.True(t, ok)
			var last oracle.Timestamp
			for i := range 20 {
				ts, err := []oracle.Oracle{a.Oracle(), b.Oracle()}[i%2].Draw(h.ctx, 1)
				require.NoError(t, err)
				require.Greater(t, ts, last, "both draw from the same timestamps")
				last = ts
			}
		}
		require.NoError(t, second.Close())
	}
	// The first is unharmed.
	h.put("after", write(ver(rowstore.Write, "c", 5, "x")))
	require.Len(t, h.all("after"), 1)
}

// changesOf are mutations of a row of table "t", as each way in which a store can make them. Each way has a row of its own.
func (h *harness) changesOf(name string) map[string]func(edits ...rowstore.Edit) {
	h.Helper()
	apply := func(row string, opts rowstore.ApplyOptions) func(edits ...rowstore.Edit) {
		return func(edits ...rowstore.Edit) {
			h.Helper()
			out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(row, nil, edits...)}, opts)
			require.NoError(h, err)
			require.NoError(h, out[0].Err)
			require.True(h, out[0].Applied)
		}
	}
	applied, deferred, grouped := name+" by Apply", name+" by a deferred Apply", name+" by Group"
	ways := map[string]func(edits ...rowstore.Edit){applied: apply(applied, rowstore.ApplyOptions{}), deferred: apply(deferred, rowstore.ApplyOptions{Deferred: true})}
	if g := grouper(h.s); g != nil && g.GroupKey("t", grouped) != "" {
		ways[grouped] = func(edits ...rowstore.Edit) {
			h.Helper()
			out, err := group1(h, mut(grouped, nil, edits...))
			require.NoError(h, err)
			require.True(h, out.Applied)
		}
	}
	return ways
}

// seesChangesOf reads what another store of the same data changes, each time that it has changed it, so that answers that were kept show.
func (h *harness) seesChangesOf(other *harness, name string) {
	h.Helper()
	for row, change := range other.changesOf(name) {
		h.sees(row)
		for _, ts := range []rowstore.Timestamp{5, 6} {
			edits := []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "c", 0, ts-1), rowstore.DeleteRange(rowstore.Notify, "c", 0, ts-1)}
			want := versions(ver(rowstore.Write, "c", ts, row), ver(rowstore.Notify, "c", ts, ""))
			for _, v := range want {
				edits = append(edits, write(v))
			}
			change(edits...)
			h.sees(row, want...)
		}
		change(rowstore.Delete(rowstore.Write, "c", 6), rowstore.Delete(rowstore.Notify, "c", 6))
		h.sees(row)
	}
}

// sees reads a row of table "t" in each way.
func (h *harness) sees(row string, want ...rowstore.Version) {
	h.Helper()
	want = norm(want)
	require.Equal(h, want, h.all(row), "a read of row %q", row)
	scanned := func(s rowstore.ScanRange) []rowstore.Version {
		h.Helper()
		for _, r := range h.scan(s) {
			if r.Row == row {
				return r.Versions
			}
		}
		return norm(nil)
	}
	require.Equal(h, want, scanned(rowstore.ScanRange{From: row, To: row + "\x00", Selectors: everything()}), "a scan over row %q", row)
	if _, ok := rowstore.Unwrap[rowstore.SlotScanner](h.s); !ok {
		return
	}
	slot := rowstore.Slot("t", row)
	notify := []rowstore.Selector{pick(rowstore.Notify)}
	require.Equal(h, norm(selected(want, notify)), scanned(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(slot, slot)}, Selectors: notify}),
		"a scan of the slot of row %q", row)
}

// hearsOf listens while another store of the same data notifies.
func (h *harness) hearsOf(other *harness, name string) {
	h.Helper()
	if _, ok := rowstore.Unwrap[rowstore.Waker](h.s); !ok {
		return
	}
	l := h.listen()
	for row, change := range other.changesOf(name) {
		change(write(ver(rowstore.Notify, "c", 9, "")), write(ver(rowstore.Write, "c", 9, "")))
		l.wait("the wake for row "+row, "t", row)
	}
	l.end()
}
