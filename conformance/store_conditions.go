package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// conditional lists the families that a condition may name.
var conditional = []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Mark, rowstore.Notify}

func conditionTests() []test {
	return []test{
		{"AbsentOfOneVersion", Conditions, absentOfOneVersion},
		{"AbsentReportsTheNewest", Conditions, absentReportsTheNewest},
		{"AbsentAtTheGreatestTimestamp", Conditions, absentAtTheGreatestTimestamp},
		{"AbsentLooksAtItsColumnOnly", Conditions, absentLooksAtItsColumnOnly},
		{"AbsentOfAnAbsentRow", Conditions, absentOfAnAbsentRow},
		{"AbsentAtOneTimestamp", Conditions, absentAtOneTimestamp},
		{"PresentAtOneTimestamp", Conditions, presentAtOneTimestamp},
		{"IncarnationCondition", Conditions, incarnationCondition},
		{"FirstFailedConditionInOrder", Conditions, firstFailedConditionInOrder},
		{"BrokeCarriesTheValue", Conditions, brokeCarriesTheValue},
		{"ConditionsAreJudgedBeforeEdits", Conditions, conditionsAreJudgedBeforeEdits},
		{"CheckOnlyMutation", Conditions, checkOnlyMutation},
		{"ProtocolStepsOnOneRow", Conditions, protocolStepsOnOneRow},
	}
}

func absentOfOneVersion(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range conditional {
		row := fmt.Sprintf("family%d", f)
		v := ver(f, "c", 5, "five")
		h.put(row, write(v))
		for _, from := range []rowstore.Timestamp{0, 1, 4, 5} {
			h.breaks(row, 0, v, rowstore.Absent(f, "c", from))
		}
		for _, from := range []rowstore.Timestamp{6, 7, oracle.Max - 1, oracle.Max} {
			h.holds(row, rowstore.Absent(f, "c", from))
		}
	}
}

func absentReportsTheNewest(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range []rowstore.Family{rowstore.Write, rowstore.Notify} {
		row := fmt.Sprintf("family%d", f)
		// Not in the order of their timestamps, so that the last written is not
		// the newest.
		for _, ts := range []rowstore.Timestamp{3, 9, 7, 1, 8} {
			h.put(row, write(ver(f, "c", ts, num(ts))))
		}
		for _, from := range []rowstore.Timestamp{0, 1, 2, 3, 7, 8, 9} {
			h.breaks(row, 0, ver(f, "c", 9, "9"), rowstore.Absent(f, "c", from))
		}
		h.holds(row, rowstore.Absent(f, "c", 10))
		h.put(row, rowstore.Delete(f, "c", 9))
		h.breaks(row, 0, ver(f, "c", 8, "8"), rowstore.Absent(f, "c", 0))
		h.breaks(row, 0, ver(f, "c", 8, "8"), rowstore.Absent(f, "c", 8))
		h.holds(row, rowstore.Absent(f, "c", 9))
		h.put(row, rowstore.DeleteRange(f, "c", 0, oracle.Max))
		h.holds(row, rowstore.Absent(f, "c", 0))
	}
}

func absentAtTheGreatestTimestamp(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range conditional {
		for i, ts := range []rowstore.Timestamp{1, oracle.Max - 1, oracle.Max} {
			row := fmt.Sprintf("family%d-%d", f, i)
			v := ver(f, "c", ts, "edge")
			h.put(row, write(v))
			h.breaks(row, 0, v, rowstore.Absent(f, "c", 0))
			h.breaks(row, 0, v, rowstore.Absent(f, "c", ts))
			if ts < oracle.Max {
				h.holds(row, rowstore.Absent(f, "c", ts+1))
			}
			require.Equal(t, versions(v), h.all(row))
		}
	}
}

func absentLooksAtItsColumnOnly(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range families {
		h.put("row", write(ver(f, "c", 5, "x")), write(ver(f, "c\x00", 5, "x")))
	}
	for _, f := range conditional {
		h.holds("row", rowstore.Absent(f, "b", 0))
		h.holds("row", rowstore.Absent(f, "d", 0))
		h.holds("row", rowstore.Absent(f, "cc", 0))
		h.holds("row", rowstore.Absent(f, "c\x00\x00", 0))
		h.holds("ro", rowstore.Absent(f, "c", 0))
		h.holds("row2", rowstore.Absent(f, "c", 0))
		out := h.apply(rowstore.Mutation{Table: "tt", Row: "row", Conditions: when(rowstore.Absent(f, "c", 0))})
		require.True(t, out[0].Applied, "a row of another table does not count")
		h.put("row", rowstore.DeleteRange(f, "c", 0, oracle.Max))
		h.holds("row", rowstore.Absent(f, "c", 0))
	}
	require.Len(t, h.all("row"), len(families)+1, "Data of c, and all of the other column, are left")
}

func absentOfAnAbsentRow(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range conditional {
		h.holds("nowhere", rowstore.Absent(f, "c", 0), rowstore.Absent(f, "c", 1), rowstore.Absent(f, "c", oracle.Max))
	}
	h.holds("nowhere", rowstore.AbsentAt("c", 0), rowstore.AbsentAt("c", 5))
	h.breaks("nowhere", 0, rowstore.Version{}, rowstore.Present("c", 5))
}

func absentAtOneTimestamp(t testing.TB, e *env) {
	h := e.harness(t)
	lock := ver(rowstore.Lock, "c", 5, "the lock")
	h.put("row", write(lock), write(ver(rowstore.Write, "c", 4, "w")), write(ver(rowstore.Mark, "c", 6, "r")))
	h.breaks("row", 0, lock, rowstore.AbsentAt("c", 5))
	for _, ts := range []rowstore.Timestamp{0, 1, 4, 6, oracle.Max} {
		h.holds("row", rowstore.AbsentAt("c", ts))
	}
	h.holds("row", rowstore.AbsentAt("d", 5))
	h.put("row", rowstore.Delete(rowstore.Lock, "c", 5))
	h.holds("row", rowstore.AbsentAt("c", 5))
}

func presentAtOneTimestamp(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("row", write(ver(rowstore.Lock, "c", 5, "the lock")), write(ver(rowstore.Write, "c", 4, "w")),
		write(ver(rowstore.Notify, "c", 6, "n")), write(ver(rowstore.Data, "c", 3, "d")))
	h.holds("row", rowstore.Present("c", 5))
	for _, ts := range []rowstore.Timestamp{0, 1, 3, 4, 6, oracle.Max} {
		h.breaks("row", 0, rowstore.Version{}, rowstore.Present("c", ts))
	}
	h.breaks("row", 0, rowstore.Version{}, rowstore.Present("d", 5))
	h.put("row", rowstore.Delete(rowstore.Lock, "c", 5))
	h.breaks("row", 0, rowstore.Version{}, rowstore.Present("c", 5))
}

func incarnationCondition(t testing.TB, e *env) {
	h := e.harness(t)
	is := h.apply(mut("row", nil, write(ver(rowstore.Write, "c", 1, "x"))))[0].Incarnation
	if _, ok := rowstore.Unwrap[rowstore.Deferrer](h.s); ok {
		require.NotEmpty(t, is, "each outcome of a Deferrer carries its incarnation")
		h.breaks("row", 0, rowstore.Version{}, rowstore.SameIncarnation(""))
	} else {
		require.Empty(t, is, "a store that defers nothing has the incarnation \"\"")
	}
	h.holds("row", rowstore.SameIncarnation(is))
	h.breaks("row", 0, rowstore.Version{}, rowstore.SameIncarnation(is+"x"))
	h.breaks("row", 1, rowstore.Version{}, rowstore.Absent(rowstore.Write, "c", 2), rowstore.SameIncarnation("other"))
	h.breaks("row", 0, ver(rowstore.Write, "c", 1, "x"), rowstore.Absent(rowstore.Write, "c", 1), rowstore.SameIncarnation("other"))
	h.breaks("row", 0, rowstore.Version{}, rowstore.SameIncarnation("other"), rowstore.Absent(rowstore.Write, "c", 1))

	// A failed outcome carries the incarnation too.
	out := h.apply(
		mut("row", when(rowstore.SameIncarnation("other")), write(ver(rowstore.Write, "c", 2, "x"))),
		mut("row2", when(rowstore.Present("c", 3))),
		mut("row3", nil))
	for i := range out {
		require.Equal(t, is, out[i].Incarnation, "outcome %d", i)
	}
	require.Equal(t, versions(ver(rowstore.Write, "c", 1, "x")), h.all("row"))
}

func firstFailedConditionInOrder(t testing.TB, e *env) {
	h := e.harness(t)
	lock, mark, w := ver(rowstore.Lock, "a", 5, "lock"), ver(rowstore.Mark, "b", 6, "mark"), ver(rowstore.Write, "c", 7, "write")
	n := ver(rowstore.Notify, "d", 8, "note")
	h.put("row", write(lock), write(mark), write(w), write(n))

	good := []rowstore.Condition{
		rowstore.Absent(rowstore.Lock, "a", 6), rowstore.Absent(rowstore.Lock, "b", 0), rowstore.AbsentAt("a", 4),
		rowstore.Present("a", 5), rowstore.Absent(rowstore.Write, "c", 8), rowstore.Absent(rowstore.Mark, "b", 7),
	}
	bad := []struct {
		c     rowstore.Condition
		broke rowstore.Version
	}{
		{rowstore.Absent(rowstore.Lock, "a", 0), lock},
		{rowstore.AbsentAt("a", 5), lock},
		{rowstore.Present("a", 6), rowstore.Version{}},
		{rowstore.Present("x", 5), rowstore.Version{}},
		{rowstore.Absent(rowstore.Mark, "b", 6), mark},
		{rowstore.Absent(rowstore.Write, "c", 1), w},
		{rowstore.Absent(rowstore.Notify, "d", 8), n},
	}
	rng := seeded(t)
	for i := range bad {
		for range 4 {
			// Some that hold, one that does not, then any.
			var c []rowstore.Condition
			for range rng.IntN(4) {
				c = append(c, good[rng.IntN(len(good))])
			}
			at := len(c)
			c = append(c, bad[i].c)
			for range rng.IntN(4) {
				if rng.IntN(2) == 0 {
					c = append(c, good[rng.IntN(len(good))])
				} else {
					c = append(c, bad[rng.IntN(len(bad))].c)
				}
			}
			h.breaks("row", at, bad[i].broke, c...)
		}
	}
	h.holds("row", good...)
}

func brokeCarriesTheValue(t testing.TB, e *env) {
	h := e.harness(t)
	for i, value := range []string{"", "v", "\x00", "\xff\x00\xfe", string(make([]byte, 300)), string(make([]byte, h.mostValue(70_000)))} {
		row := key(i)
		for _, f := range conditional {
			v := ver(f, "c", 5, value)
			h.put(row, write(v))
			h.breaks(row, 0, v, rowstore.Absent(f, "c", 0))
		}
		h.breaks(row, 0, ver(rowstore.Lock, "c", 5, value), rowstore.AbsentAt("c", 5))
	}
}

func conditionsAreJudgedBeforeEdits(t testing.TB, e *env) {
	h := e.harness(t)
	out := h.apply(mut("row", when(rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Write, "c", 5),
		rowstore.Absent(rowstore.Notify, "c", 0)),
		write(ver(rowstore.Lock, "c", 5, "l")), write(ver(rowstore.Notify, "c", 5, "n"))))
	require.True(t, out[0].Applied, "the row as it was satisfies the conditions")
	out = h.apply(mut("row", when(rowstore.Present("c", 5)),
		rowstore.Delete(rowstore.Lock, "c", 5), write(ver(rowstore.Write, "c", 9, "w"))))
	require.True(t, out[0].Applied)
	out = h.apply(mut("row", when(rowstore.Present("c", 7)),
		write(ver(rowstore.Lock, "c", 7, "l"))))
	require.False(t, out[0].Applied, "an edit does not satisfy a condition of its own mutation")
	out = h.apply(mut("row", when(rowstore.Absent(rowstore.Write, "c", 9)), rowstore.Delete(rowstore.Write, "c", 9)))
	require.False(t, out[0].Applied)
	require.Equal(t, versions(ver(rowstore.Notify, "c", 5, "n"), ver(rowstore.Write, "c", 9, "w")), h.all("row"))
}

func checkOnlyMutation(t testing.TB, e *env) {
	h := e.harness(t)
	out := h.apply(mut("nothing", nil), mut("checked", when(rowstore.Absent(rowstore.Write, "c", 0))))
	require.True(t, out[0].Applied, "a mutation without conditions and edits applies")
	require.True(t, out[1].Applied)
	require.Empty(t, h.keys(rowstore.ScanRange{Selectors: everything()}), "a check creates no row")
	require.Empty(t, h.tables(), "a check creates no table")
	h.put("there", write(ver(rowstore.Write, "c", 3, "x")))
	h.holds("there", rowstore.Absent(rowstore.Write, "c", 4))
	h.breaks("there", 0, ver(rowstore.Write, "c", 3, "x"), rowstore.Absent(rowstore.Write, "c", 3))
	require.Equal(t, versions(ver(rowstore.Write, "c", 3, "x")), h.all("there"))
}
