package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// protocolStepsOnOneRow walks the mutations that transactions are made of, on one
// row, each twice: the second arrival of a request must change nothing.
func protocolStepsOnOneRow(t testing.TB, e *env) {
	h := e.harness(t)
	prewrite := func(start rowstore.Timestamp) rowstore.Mutation {
		return mut("row", when(rowstore.Absent(rowstore.Write, "c", start), rowstore.Absent(rowstore.Lock, "c", 0),
			rowstore.Absent(rowstore.Mark, "c", start)),
			write(ver(rowstore.Lock, "c", start, "lock")), write(ver(rowstore.Data, "c", start, "long")),
			write(ver(rowstore.Notify, "c", start, "n")))
	}
	commit := func(start, at rowstore.Timestamp) rowstore.Mutation {
		return mut("row", when(rowstore.Present("c", start)), write(ver(rowstore.Write, "c", at, num(start))),
			rowstore.Delete(rowstore.Lock, "c", start), rowstore.Delete(rowstore.Notify, "c", start),
			write(ver(rowstore.Notify, "c", at, "n")))
	}
	rollback := func(start rowstore.Timestamp) rowstore.Mutation {
		return mut("row", when(rowstore.Present("c", start)), rowstore.Delete(rowstore.Lock, "c", start),
			rowstore.Delete(rowstore.Data, "c", start), rowstore.Delete(rowstore.Notify, "c", start),
			write(ver(rowstore.Mark, "c", start, "")))
	}
	fence := func(start rowstore.Timestamp) rowstore.Mutation {
		return mut("row", when(rowstore.AbsentAt("c", start), rowstore.Absent(rowstore.Write, "c", start)),
			write(ver(rowstore.Mark, "c", start, "")))
	}
	step := func(name string, m rowstore.Mutation, applied bool, failed int, broke rowstore.Version) {
		t.Helper()
		out := h.apply(m)[0]
		require.Equal(t, applied, out.Applied, "%s: %+v", name, out)
		if !applied {
			require.Equal(t, failed, out.Failed, name)
			require.Equal(t, norm1(broke), norm1(out.Broke), name)
		}
	}
	var none rowstore.Version
	lock10 := ver(rowstore.Lock, "c", 10, "lock")
	step("prewrite 10", prewrite(10), true, 0, none)
	step("prewrite 10 again", prewrite(10), false, 1, lock10)
	step("prewrite 12 meets the lock", prewrite(12), false, 1, lock10)
	step("fence of 10 meets the lock", fence(10), false, 0, lock10)
	step("commit 10 at 20", commit(10, 20), true, 0, none)
	step("commit again", commit(10, 20), false, 0, none)
	step("roll back of the committed", rollback(10), false, 0, none)
	step("late prewrite 10", prewrite(10), false, 0, ver(rowstore.Write, "c", 20, "10"))
	step("fence of 10 after its commit", fence(10), false, 1, ver(rowstore.Write, "c", 20, "10"))
	step("prewrite 20 sees the write at 20", prewrite(20), false, 0, ver(rowstore.Write, "c", 20, "10"))
	step("prewrite 21", prewrite(21), true, 0, none)
	step("roll back 21", rollback(21), true, 0, none)
	step("roll back 21 again", rollback(21), false, 0, none)
	step("commit of the rolled back", commit(21, 30), false, 0, none)
	step("prewrite 21 after its roll back", prewrite(21), false, 2, ver(rowstore.Mark, "c", 21, ""))
	step("fence of 25, of which nothing is there", fence(25), true, 0, none)
	step("fence of 25 again", fence(25), true, 0, none)
	step("prewrite 25 is fenced", prewrite(25), false, 2, ver(rowstore.Mark, "c", 25, ""))
	step("prewrite 26", prewrite(26), true, 0, none)
	step("commit 26 at 27", commit(26, 27), true, 0, none)
	require.Equal(t, versions(
		ver(rowstore.Write, "c", 27, "26"), ver(rowstore.Write, "c", 20, "10"),
		ver(rowstore.Data, "c", 10, "long"), ver(rowstore.Data, "c", 26, "long"),
		ver(rowstore.Mark, "c", 25, ""),
		ver(rowstore.Notify, "c", 20, "n"), ver(rowstore.Notify, "c", 27, "n")), h.all("row"))
}

func editTests() []test {
	return []test{
		{"PutOverwrites", Edits, putOverwrites},
		{"RollbackKeepsTheGreatest", Edits, rollbackKeepsTheGreatest},
		{"DeleteOfAbsent", Edits, deleteOfAbsent},
		{"DeleteRangeIsClosed", Edits, deleteRangeIsClosed},
		{"DeleteRangeOfItsFamilyAndColumn", Edits, deleteRangeOfItsFamilyAndColumn},
		{"PutBesideDeleteRange", Edits, putBesideDeleteRange},
		{"AllOrNothingOverColumns", Edits, allOrNothingOverColumns},
		{"RowsOfABatchAreIndependent", Edits, rowsOfABatchAreIndependent},
		{"EmptiedRowIsGone", Edits, emptiedRowIsGone},
		{"OldVersionsUnderNewOnes", Edits, oldVersionsUnderNewOnes},
		{"LockReplacedByAnother", Edits, lockReplacedByAnother},
		{"ManyNotificationsOfAColumn", Edits, manyNotificationsOfAColumn},
		{"CallerReusesItsSlices", Edits, callerReusesItsSlices},
		{"AnswersBelongToTheCaller", Edits, answersBelongToTheCaller},
		{"EmptyBatch", Edits, emptyBatch},
	}
}

func putOverwrites(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Mark, rowstore.Notify} {
		row := fmt.Sprintf("family%d", f)
		for _, value := range []string{"one", "", "three, and longer than the first", "4", string(make([]byte, 500))} {
			h.put(row, write(ver(f, "c", 5, value)))
			require.Equal(t, versions(ver(f, "c", 5, value)), h.all(row), "family %d", f)
		}
	}
	// Data is never overwritten with another value, but the same one may arrive twice.
	h.put("data", write(ver(rowstore.Data, "c", 5, "same")))
	h.put("data", write(ver(rowstore.Data, "c", 5, "same")))
	require.Equal(t, versions(ver(rowstore.Data, "c", 5, "same")), h.all("data"))
	// An old version, under a newer one.
	h.put("old", write(ver(rowstore.Write, "c", 3, "a")), write(ver(rowstore.Write, "c", 7, "b")))
	h.put("old", write(ver(rowstore.Write, "c", 3, "z")))
	require.Equal(t, versions(ver(rowstore.Write, "c", 3, "z"), ver(rowstore.Write, "c", 7, "b")), h.all("old"))
}

func rollbackKeepsTheGreatest(t testing.TB, e *env) {
	h := e.harness(t)
	is := func(ts rowstore.Timestamp, value string) {
		t.Helper()
		require.Equal(t, versions(ver(rowstore.Mark, "c", ts, value), ver(rowstore.Mark, "other", 2, "o")), h.all("row"))
	}
	h.put("row", write(ver(rowstore.Mark, "other", 2, "o")))
	h.put("row", write(ver(rowstore.Mark, "c", 5, "five")))
	is(5, "five")
	h.put("row", write(ver(rowstore.Mark, "c", 4, "four")))
	is(5, "five")
	h.put("row", write(ver(rowstore.Mark, "c", 5, "again")))
	is(5, "again")
	h.put("row", write(ver(rowstore.Mark, "c", 6, "six")))
	is(6, "six")
	// A put that changes nothing leaves the other edits of its mutation alone.
	h.put("row", write(ver(rowstore.Mark, "c", 1, "one")), write(ver(rowstore.Write, "c", 1, "w")))
	require.Equal(t, versions(ver(rowstore.Write, "c", 1, "w"), ver(rowstore.Mark, "c", 6, "six"),
		ver(rowstore.Mark, "other", 2, "o")), h.all("row"))
	h.put("row", rowstore.Delete(rowstore.Write, "c", 1))
	h.put("row", rowstore.Delete(rowstore.Mark, "c", 5))
	is(6, "six")
	h.put("row", rowstore.DeleteRange(rowstore.Mark, "c", 0, 5))
	is(6, "six")
	h.put("row", rowstore.Delete(rowstore.Mark, "c", 6))
	require.Equal(t, versions(ver(rowstore.Mark, "other", 2, "o")), h.all("row"))
	h.put("row", write(ver(rowstore.Mark, "c", 3, "three")))
	is(3, "three")
	h.put("row", write(ver(rowstore.Mark, "c", oracle.Max, "max")))
	h.put("row", write(ver(rowstore.Mark, "c", oracle.Max-1, "less")))
	is(oracle.Max, "max")
	h.put("row", rowstore.DeleteRange(rowstore.Mark, "c", oracle.Max, oracle.Max))
	require.Equal(t, versions(ver(rowstore.Mark, "other", 2, "o")), h.all("row"))
}

func deleteOfAbsent(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range families {
		h.put("nowhere", rowstore.Delete(f, "c", 5), rowstore.DeleteRange(f, "d", 0, oracle.Max))
		h.put("row", write(ver(f, "c", 5, "x")))
		h.put("row", rowstore.Delete(f, "c", 4), rowstore.Delete(f, "c", 6), rowstore.Delete(f, "d", 5))
	}
	require.Len(t, h.all("row"), len(families))
	require.Equal(t, []string{"row"}, h.keys(rowstore.ScanRange{Selectors: everything()}), "a delete creates no row")
}

func deleteRangeIsClosed(t testing.TB, e *env) {
	h := e.harness(t)
	cases := []struct{ from, to rowstore.Timestamp }{
		{3, 6},
		{5, 5},
		{0, 5},
		{5, oracle.Max},
		{0, oracle.Max},
		{6, 3},
		{0, 0},
		{9, 20},
		{10, 20},
		{0, 1},
		{1, 1},
		{oracle.Max, 0},
		{oracle.Max, oracle.Max},
	}
	for _, f := range []rowstore.Family{rowstore.Write, rowstore.Data, rowstore.Notify} {
		for i, c := range cases {
			row := fmt.Sprintf("%d-%d", f, i)
			var puts []rowstore.Edit
			var want []rowstore.Version
			for ts := rowstore.Timestamp(1); ts <= 9; ts++ {
				v := ver(f, "c", ts, num(ts))
				puts = append(puts, write(v))
				if ts < c.from || ts > c.to {
					want = append(want, v)
				}
			}
			h.put(row, puts...)
			h.put(row, rowstore.DeleteRange(f, "c", c.from, c.to))
			require.Equal(t, versions(want...), h.all(row), "family %d without [%d, %d]", f, c.from, c.to)
		}
	}
	// The families that have one version.
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Mark} {
		for i, c := range cases {
			row := fmt.Sprintf("%d-%d", f, i)
			v := ver(f, "c", 5, "x")
			h.put(row, write(v))
			h.put(row, rowstore.DeleteRange(f, "c", c.from, c.to))
			var want []rowstore.Version
			if 5 < c.from || 5 > c.to {
				want = append(want, v)
			}
			require.Equal(t, versions(want...), h.all(row), "family %d without [%d, %d]", f, c.from, c.to)
		}
	}
}

func deleteRangeOfItsFamilyAndColumn(t testing.TB, e *env) {
	h := e.harness(t)
	var puts []rowstore.Edit
	var all []rowstore.Version
	for _, f := range families {
		for _, c := range []string{"a", "a\x00", "a\xff", "ab", "b"} {
			v := ver(f, c, 5, "x")
			puts, all = append(puts, write(v)), append(all, v)
		}
	}
	for i, f := range families {
		row := key(i)
		h.put(row, puts...)
		h.put(row, rowstore.DeleteRange(f, "a", 0, oracle.Max))
		var want []rowstore.Version
		for _, v := range all {
			if v.Family != f || v.Column != "a" {
				want = append(want, v)
			}
		}
		require.Equal(t, versions(want...), h.all(row), "family %d", f)
	}
}

func putBesideDeleteRange(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("row", write(ver(rowstore.Write, "c", 3, "3")), write(ver(rowstore.Write, "c", 4, "4")), write(ver(rowstore.Write, "c", 9, "9")))
	h.put("row", rowstore.DeleteRange(rowstore.Write, "c", 0, 4), write(ver(rowstore.Write, "c", 5, "5")),
		rowstore.Delete(rowstore.Write, "c", 9), rowstore.DeleteRange(rowstore.Write, "d", 0, oracle.Max),
		write(ver(rowstore.Data, "c", 3, "d")))
	require.Equal(t, versions(ver(rowstore.Write, "c", 5, "5"), ver(rowstore.Data, "c", 3, "d")), h.all("row"))
}

func allOrNothingOverColumns(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("row", write(ver(rowstore.Lock, "b", 4, "held")), write(ver(rowstore.Write, "a", 3, "old")),
		write(ver(rowstore.Write, "c", 3, "old")), write(ver(rowstore.Notify, "c", 3, "n")))
	before := h.all("row")
	edits := []rowstore.Edit{
		write(ver(rowstore.Lock, "a", 9, "new")), write(ver(rowstore.Data, "a", 9, "long")),
		write(ver(rowstore.Lock, "c", 9, "new")), write(ver(rowstore.Write, "d", 9, "w")),
		rowstore.Delete(rowstore.Notify, "c", 3), rowstore.DeleteRange(rowstore.Write, "c", 0, oracle.Max),
		write(ver(rowstore.Mark, "a", 9, "r")), write(ver(rowstore.Notify, "e", 9, "n")),
	}
	for i, c := range []rowstore.Condition{
		rowstore.Absent(rowstore.Lock, "b", 0), rowstore.Absent(rowstore.Write, "a", 3), rowstore.Absent(rowstore.Notify, "c", 2),
		rowstore.AbsentAt("b", 4), rowstore.Present("a", 9), rowstore.SameIncarnation("another"),
	} {
		for _, conds := range [][]rowstore.Condition{
			when(c), when(rowstore.Absent(rowstore.Lock, "a", 0), c), when(c, rowstore.Absent(rowstore.Lock, "c", 0)),
		} {
			out := h.apply(mut("row", conds, edits...))
			require.False(t, out[0].Applied, "condition %d", i)
			require.Equal(t, before, h.all("row"), "a mutation with a failed condition (%d) edits nothing", i)
		}
	}
	out := h.apply(mut("row", when(rowstore.Absent(rowstore.Lock, "a", 0), rowstore.Present("b", 4)), edits...))
	require.True(t, out[0].Applied)
	require.Equal(t, versions(
		ver(rowstore.Lock, "a", 9, "new"), ver(rowstore.Lock, "b", 4, "held"), ver(rowstore.Lock, "c", 9, "new"),
		ver(rowstore.Write, "a", 3, "old"), ver(rowstore.Write, "d", 9, "w"), ver(rowstore.Data, "a", 9, "long"),
		ver(rowstore.Mark, "a", 9, "r"), ver(rowstore.Notify, "e", 9, "n")), h.all("row"), "all edits happen")
}

func rowsOfABatchAreIndependent(t testing.TB, e *env) {
	h := e.harness(t)
	const n = 40
	for i := range n {
		if i%3 == 1 {
			h.put(key(i), write(ver(rowstore.Lock, "c", 5, fmt.Sprint(i))))
		}
	}
	var muts []rowstore.Mutation
	for i := range n {
		// In no order of keys, and over two tables.
		j := (i * 7) % n
		m := mut(key(j), when(rowstore.Absent(rowstore.Lock, "d", 0), rowstore.Absent(rowstore.Lock, "c", 0)),
			write(ver(rowstore.Lock, "c", 9, "mine")), write(ver(rowstore.Notify, "x", 9, "n")))
		if j%5 == 0 {
			m.Table = "t2"
		}
		muts = append(muts, m)
	}
	out := h.apply(muts...)
	for i := range muts {
		j := (i * 7) % n
		held := j%3 == 1 && j%5 != 0
		require.Equal(t, !held, out[i].Applied, "row %d", j)
		got := h.readOf(muts[i].Table, muts[i].Row, everything()...)
		if held {
			require.Equal(t, 1, out[i].Failed)
			require.Equal(t, norm1(ver(rowstore.Lock, "c", 5, fmt.Sprint(j))), norm1(out[i].Broke), "the outcomes are in the order of the batch")
			require.Equal(t, versions(ver(rowstore.Lock, "c", 5, fmt.Sprint(j))), got)
			continue
		}
		require.Equal(t, versions(ver(rowstore.Lock, "c", 9, "mine"), ver(rowstore.Notify, "x", 9, "n")), got)
	}
	// The same key in two tables names two rows.
	out = h.apply(rowstore.Mutation{Table: "x", Row: "same", Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 1, "x"))}},
		rowstore.Mutation{Table: "y", Row: "same", Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 1, "y"))}})
	require.True(t, out[0].Applied && out[1].Applied)
	require.Equal(t, versions(ver(rowstore.Write, "c", 1, "x")), h.readOf("x", "same", everything()...))
	require.Equal(t, versions(ver(rowstore.Write, "c", 1, "y")), h.readOf("y", "same", everything()...))
}

func emptiedRowIsGone(t testing.TB, e *env) {
	h := e.harness(t)
	for round := range 3 {
		for _, f := range families {
			v := ver(f, "c", 5, fmt.Sprint(round))
			h.put("row", write(v))
			require.Equal(t, versions(v), h.all("row"))
			require.Equal(t, []string{"row"}, h.keys(rowstore.ScanRange{Selectors: everything()}))
			h.put("row", rowstore.Delete(f, "c", 5))
			require.Empty(t, h.all("row"))
			require.Empty(t, h.keys(rowstore.ScanRange{Selectors: everything()}), "a row without versions does not exist")
		}
	}
}

func oldVersionsUnderNewOnes(t testing.TB, e *env) {
	h := e.harness(t)
	// A layout that keeps the newest write apart from the others must not lose its
	// place when an older one arrives later, or when the newest goes.
	h.put("row", write(ver(rowstore.Write, "c", 10, "10")))
	h.put("row", write(ver(rowstore.Write, "c", 5, "5")))
	h.put("row", write(ver(rowstore.Write, "c", 7, "7")))
	newest := rowstore.Selector{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}
	require.Equal(t, versions(ver(rowstore.Write, "c", 10, "10")), h.read("row", newest))
	newest.To = 9
	require.Equal(t, versions(ver(rowstore.Write, "c", 7, "7")), h.read("row", newest))
	newest.To = oracle.Max
	h.put("row", rowstore.Delete(rowstore.Write, "c", 10))
	require.Equal(t, versions(ver(rowstore.Write, "c", 7, "7")), h.read("row", newest))
	h.breaks("row", 0, ver(rowstore.Write, "c", 7, "7"), rowstore.Absent(rowstore.Write, "c", 0))
	h.put("row", rowstore.DeleteRange(rowstore.Write, "c", 6, oracle.Max))
	require.Equal(t, versions(ver(rowstore.Write, "c", 5, "5")), h.read("row", newest))
	h.put("row", write(ver(rowstore.Write, "c", 6, "6")), rowstore.Delete(rowstore.Write, "c", 5))
	require.Equal(t, versions(ver(rowstore.Write, "c", 6, "6")), h.all("row"))
	// Below the newest is trimmed, the newest stays.
	h.put("row", write(ver(rowstore.Write, "c", 1, "1")), write(ver(rowstore.Write, "c", 2, "2")), write(ver(rowstore.Write, "c", 9, "9")))
	h.put("row", rowstore.DeleteRange(rowstore.Write, "c", 0, 8))
	require.Equal(t, versions(ver(rowstore.Write, "c", 9, "9")), h.all("row"))
}

func lockReplacedByAnother(t testing.TB, e *env) {
	h := e.harness(t)
	take := func(ts rowstore.Timestamp) rowstore.Outcome {
		return h.apply(mut("row", when(rowstore.Absent(rowstore.Lock, "c", 0)), write(ver(rowstore.Lock, "c", ts, num(ts)))))[0]
	}
	require.True(t, take(9).Applied)
	require.False(t, take(5).Applied)
	require.False(t, take(12).Applied)
	// A heartbeat replaces the value at the same timestamp.
	out := h.apply(mut("row", when(rowstore.Present("c", 9)), write(ver(rowstore.Lock, "c", 9, "longer life"))))
	require.True(t, out[0].Applied)
	require.Equal(t, versions(ver(rowstore.Lock, "c", 9, "longer life")), h.all("row"))
	h.put("row", rowstore.Delete(rowstore.Lock, "c", 9))
	require.True(t, take(5).Applied, "a lock below the one that was there")
	require.Equal(t, versions(ver(rowstore.Lock, "c", 5, "5")), h.all("row"))
	h.put("row", rowstore.Delete(rowstore.Lock, "c", 9))
	require.Equal(t, versions(ver(rowstore.Lock, "c", 5, "5")), h.all("row"), "the delete of another lock leaves this one")
}

func manyNotificationsOfAColumn(t testing.TB, e *env) {
	h := e.harness(t)
	for _, ts := range []rowstore.Timestamp{4, 2, 8, 6} {
		h.put("row", write(ver(rowstore.Notify, "c", ts, num(ts))))
	}
	h.put("row", rowstore.Delete(rowstore.Notify, "c", 4), rowstore.Delete(rowstore.Notify, "c", 8))
	require.Equal(t, versions(ver(rowstore.Notify, "c", 6, "6"), ver(rowstore.Notify, "c", 2, "2")), h.all("row"))
	require.Equal(t, []string{"row"}, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Notify)}}))
	require.Equal(t, []string{"row"}, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 2}}}))
	require.Empty(t, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Notify, From: 3, To: 5}}}))
	h.put("row", rowstore.Delete(rowstore.Notify, "c", 6))
	require.Equal(t, []string{"row"}, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Notify)}}), "one is left")
	h.put("row", rowstore.Delete(rowstore.Notify, "c", 2))
	require.Empty(t, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Notify)}}))
}

func callerReusesItsSlices(t testing.TB, e *env) {
	h := e.harness(t)
	value := []byte("value")
	conds := when(rowstore.Absent(rowstore.Lock, "c", 0))
	edits := []rowstore.Edit{
		rowstore.Put(rowstore.Lock, "c", 5, value), rowstore.Put(rowstore.Write, "c", 5, value),
		rowstore.Put(rowstore.Data, "c", 5, value), rowstore.Put(rowstore.Mark, "c", 5, value), rowstore.Put(rowstore.Notify, "c", 5, value),
	}
	muts := []rowstore.Mutation{{Table: "t", Row: "row", Conditions: conds, Edits: edits}}
	out := h.apply(muts...)
	require.True(t, out[0].Applied)
	copy(value, "XXXXX")
	conds[0], edits[0], muts[0] = rowstore.Condition{}, rowstore.Edit{}, rowstore.Mutation{}

	var want []rowstore.Version
	for _, f := range families {
		want = append(want, ver(f, "c", 5, "value"))
	}
	picks := everything()
	reads := []rowstore.RowRead{{Table: "t", Row: "row", Selectors: picks}}
	rows, err := h.s.Read(h.ctx, reads)
	require.NoError(t, err)
	clear(picks)
	clear(reads)
	require.Equal(t, versions(want...), norm(rows[0].Versions), "a store keeps no slice of its caller")
}

func answersBelongToTheCaller(t testing.TB, e *env) {
	h := e.harness(t)
	var puts []rowstore.Edit
	var want []rowstore.Version
	for _, f := range families {
		for _, c := range []string{"a", "b"} {
			v := ver(f, c, 5, "value")
			puts, want = append(puts, write(v)), append(want, v)
		}
	}
	h.put("row", puts...)
	spoil := func(v []rowstore.Version) {
		for i := range v {
			for j := range v[i].Value {
				v[i].Value[j] = 'X'
			}
			v[i].Value = append(v[i].Value, "XXX"...)
			v[i].Column = "X"
		}
	}
	rows, err := h.s.Read(h.ctx, []rowstore.RowRead{{Table: "t", Row: "row", Selectors: everything()}})
	require.NoError(t, err)
	spoil(rows[0].Versions)
	require.Equal(t, versions(want...), h.all("row"), "after what Read returned was changed")
	for row, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything()}) {
		require.NoError(t, err)
		spoil(row.Versions)
	}
	require.Equal(t, versions(want...), h.all("row"), "after what Scan yielded was changed")
	out := h.apply(mut("row", when(rowstore.Absent(rowstore.Lock, "a", 0))))
	spoil([]rowstore.Version{out[0].Broke})
	require.Equal(t, versions(want...), h.all("row"), "after what Apply returned was changed")
}

func emptyBatch(t testing.TB, e *env) {
	h := e.harness(t)
	require.Empty(t, h.apply())
	rows, err := h.s.Read(h.ctx, nil)
	require.NoError(t, err)
	require.Empty(t, rows)
	require.Empty(t, h.tables())
}
