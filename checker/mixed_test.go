package checker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/checker"
)

// Transactions under snapshot isolation between two serializable ones do not hide that these are not serializable among
// themselves. Where one of the reads that were overwritten is theirs, nobody promised anything.
func TestSkewAroundSnapshotIsolation(t *testing.T) {
	t.Parallel()
	read := func(key string, v int64) checker.Op {
		return checker.Op{Kind: checker.Read, Key: key, Value: v, Absent: v == 0}
	}
	write := func(key string, v int64) checker.Op {
		return checker.Op{Kind: checker.Write, Key: key, Value: v}
	}
	list := func(key string, all ...int64) checker.Op {
		return checker.Op{Kind: checker.ReadList, Key: key, List: all}
	}
	add := func(key string, v int64) checker.Op {
		return checker.Op{Kind: checker.Append, Key: key, Value: v}
	}
	type ops []checker.Op
	// The first and the last are serializable, and those between under snapshot isolation.
	for name, txns := range map[string][]ops{
		"side by side":               {{read("x", 0), write("y", 1)}, {read("y", 0), write("x", 1)}},
		"a write between":            {{read("x", 0), read("y", 0), write("y", 1)}, {read("x", 0), write("x", 5)}, {read("x", 5), write("x", 6), read("y", 0)}},
		"a write between, only read": {{read("x", 0), write("y", 1)}, {read("x", 0), write("x", 5)}, {read("x", 5), write("z", 1), read("y", 0)}},
		"two writes between":         {{read("x", 0), write("y", 1)}, {read("x", 0), write("x", 5)}, {read("x", 5), write("x", 6)}, {read("x", 6), write("x", 7), read("y", 0)}},
		"an append between":          {{list("x"), add("y", 1)}, {add("x", 5)}, {list("x", 5), add("x", 6), list("y")}},
		"an append that one saw":     {{list("x"), add("y", 1)}, {add("x", 5)}, {list("x", 5), add("z", 1), list("y")}},
		"an append between in vain":  {{list("x", 1), add("y", 1)}, {add("x", 1)}, {add("x", 5), add("z", 1)}, {list("z", 1), add("z", 2), list("y")}},
	} {
		var h checker.History
		for i, ops := range txns {
			level := checker.SnapshotIsolation
			if i == 0 || i == len(txns)-1 {
				level = checker.Serializable
			}
			h = append(h, checker.Txn{Process: i, Invoke: 1, Complete: 100, Outcome: checker.Committed, Isolation: level, Ops: ops})
		}
		r := checkValues(t, h, checker.ValueOptions{})
		require.Equal(t, map[checker.Kind]int{checker.KindG2Item: 1}, r.Counts, "%s: %v", name, r.Err())
		for _, weak := range []int{0, len(h) - 1} {
			h[weak].Isolation = checker.SnapshotIsolation
			r = checkValues(t, h, checker.ValueOptions{})
			require.NoError(t, r.Err(), "%s, transaction %d under snapshot isolation", name, weak)
			require.Len(t, r.Permitted, 1, name)
			h[weak].Isolation = checker.Serializable
		}
	}
}
