package checker_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/checker"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// seen is a history of four transactions. T keeps K by a lock or as a serializable one, and writes J; V writes K; two readers tell that V is
// committed and, if T is of unknown outcome, between which timestamps T is committed.
func seen(t, v checker.Txn, locks bool, readers ...checker.Txn) checker.History {
	t.Ops = []checker.Op{{Kind: checker.Read, Key: "K", Absent: true, Locks: locks}, {Kind: checker.Write, Key: "J", Value: 5}}
	v.Ops = []checker.Op{{Kind: checker.Write, Key: "K", Value: 1}}
	if !locks {
		t.Isolation = checker.Serializable
	}
	h := append(checker.History{t, v}, readers...)
	for i := range h {
		h[i].Process = i
	}
	return h
}

func reads(start oracle.Timestamp, ops ...checker.Op) checker.Txn {
	return checker.Txn{Start: start, Outcome: checker.Committed, Ops: ops}
}

// What a transaction locked, or read as a serializable one, is kept also if its outcome or that of whoever wrote it is not known.
func TestKeptAgainstUnknown(t *testing.T) {
	t.Parallel()
	committed := func(start, commit oracle.Timestamp) checker.Txn {
		return checker.Txn{Start: start, Commit: commit, Outcome: checker.Committed}
	}
	unknown := func(start oracle.Timestamp) checker.Txn { return checker.Txn{Start: start} }
	newK, noK := checker.Op{Kind: checker.Read, Key: "K", Value: 1}, checker.Op{Kind: checker.Read, Key: "K", Absent: true}
	newJ, noJ := checker.Op{Kind: checker.Read, Key: "J", Value: 5}, checker.Op{Kind: checker.Read, Key: "J", Absent: true}
	for name, c := range map[string]struct {
		h    checker.History
		want checker.Kind // "" if it is right
	}{
		"locked, V began within":                       {seen(committed(10, 20), unknown(15), true, reads(40, newK)), checker.KindOverlap},
		"locked, V began before":                       {seen(committed(10, 20), unknown(5), true, reads(40, newK)), checker.KindOverlap},
		"locked, V began after":                        {seen(committed(10, 20), unknown(25), true, reads(40, newK)), ""},
		"serializable, V may be committed later":       {seen(committed(10, 20), unknown(15), false, reads(40, newK)), ""},
		"serializable, V is committed within":          {seen(committed(10, 30), unknown(15), false, reads(25, newK)), checker.KindTorn},
		"T unknown, locked, V within":                  {seen(unknown(10), committed(15, 20), true, reads(30, noJ), reads(40, newJ)), checker.KindTorn},
		"T unknown, locked, V began before":            {seen(unknown(10), committed(5, 20), true, reads(40, newJ)), checker.KindOverlap},
		"T unknown, locked, T may end before V":        {seen(unknown(10), committed(15, 20), true, reads(40, newJ)), ""},
		"T unknown, locked, T ends after V began":      {seen(unknown(10), committed(15, 30), true, reads(20, noJ), reads(40, newJ)), checker.KindTorn},
		"T unknown, serializable, V within":            {seen(unknown(10), committed(15, 20), false, reads(30, noJ), reads(40, newJ)), checker.KindTorn},
		"T unknown, serializable, T has no place left": {seen(unknown(10), committed(15, 20), false, reads(19, noJ), reads(40, newJ)), checker.KindTorn},
		"T unknown, serializable, T may end before":    {seen(unknown(10), committed(15, 30), false, reads(20, noJ), reads(40, newJ)), ""},
		"both unknown, locked, T ends after V began":   {seen(unknown(10), unknown(15), true, reads(20, noJ), reads(40, newJ, newK)), checker.KindTorn},
		"both unknown, locked, V began before":         {seen(unknown(10), unknown(5), true, reads(40, newJ, newK)), checker.KindOverlap},
		"both unknown, locked, right":                  {seen(unknown(10), unknown(15), true, reads(40, newJ, newK)), ""},
		"both unknown, serializable, V first":          {seen(unknown(10), unknown(15), false, reads(30, noJ, newK), reads(40, newJ)), checker.KindTorn},
		"both unknown, serializable, T first":          {seen(unknown(10), unknown(15), false, reads(30, newJ, noK), reads(40, newK)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := checkTimestamps(t, c.h, checker.TimestampOptions{NoRealTime: true})
			if c.want == "" {
				require.NoError(t, r.Err())
				return
			}
			require.True(t, r.Has(c.want), "%v", r.Err())
		})
	}
}

// Two serializable transactions of unknown outcome, each of which wrote what the other had read, cannot both be committed.
func TestWriteSkewOfUnknown(t *testing.T) {
	t.Parallel()
	skew := func(start oracle.Timestamp, read, write string) checker.Txn {
		return checker.Txn{Process: int(start), Start: start, Isolation: checker.Serializable, Ops: []checker.Op{
			{Kind: checker.Read, Key: read, Absent: true}, {Kind: checker.Write, Key: write, Value: int64(start)},
		}}
	}
	h := checker.History{skew(10, "x", "y"), skew(11, "y", "x"), reads(40, checker.Op{Kind: checker.Read, Key: "x", Value: 11}, checker.Op{Kind: checker.Read, Key: "y", Value: 10})}
	r := checkTimestamps(t, h, checker.TimestampOptions{NoRealTime: true})
	require.True(t, r.Has(checker.KindUnserializable), "%v", r.Err())
}

// Runs of an observer of which the earlier one's outcome is unknown overlap too.
func TestOverlapOfAnUnknownRun(t *testing.T) {
	t.Parallel()
	run := func(start oracle.Timestamp, value int64) checker.Txn {
		return checker.Txn{Process: int(start), Start: start, Run: &checker.Run{Observer: "o", Key: "x"}, Ops: []checker.Op{{Kind: checker.Write, Key: "y" + string(rune('0'+value)), Value: value}}}
	}
	write := func(start, commit oracle.Timestamp, value int64) checker.Txn {
		return checker.Txn{Process: int(start), Start: start, Commit: commit, Outcome: checker.Committed, Ops: []checker.Op{{Kind: checker.Write, Key: "x", Value: value}}}
	}
	second := run(30, 2)
	second.Outcome, second.Commit = checker.Committed, 50
	sees := checker.Op{Kind: checker.Read, Key: "y1", Value: 1}
	o := checker.TimestampOptions{NoRealTime: true, Observers: []checker.Observer{{Name: "o", Observes: func(key string) bool { return key == "x" }}}}
	h := checker.History{write(1, 2, 1), run(10, 1), write(12, 13, 2), second, reads(60, sees)}
	require.NoError(t, checkTimestamps(t, h, o).Err())
	h = append(h, reads(35, checker.Op{Kind: checker.Read, Key: "y1", Absent: true}))
	require.True(t, checkTimestamps(t, h, o).Has(checker.KindUnneededRun))
}

// A history with transactions of unknown outcome passes if, and only if, there are commit timestamps for those that somebody saw with which it
// passes as a known one does.
func TestUnknownAgainstBruteForce(t *testing.T) {
	t.Parallel()
	passed, reported, hidden := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 10))
		lists := rapid.Bool().Draw(t, "lists")
		for range 30 {
			h := simulation{Seed: rng.Uint64(), Txns: 3 + rng.IntN(5), Processes: 4, Keys: 2, Ops: 3, Lists: lists, ReadAll: true, Serializable: 0.5, Lock: 0.4}.run()
			h = slices.DeleteFunc(h, func(t checker.Txn) bool { return t.Outcome != checker.Committed })
			for i := range h {
				h[i].Start, h[i].Commit = 10*h[i].Start, 10*h[i].Commit
			}
			mutate(rng, h)
			if rng.IntN(2) == 0 { // what was right for two others
				i, j := rng.IntN(len(h)), rng.IntN(len(h))
				h[i].Start, h[j].Start = h[j].Start, h[i].Start
			}
			promise(rng, h)
			var unknown []int
			for i := range h {
				if h[i].Commit > 0 && h[i].Writes() && len(unknown) < 2 && rng.IntN(2) == 0 {
					unknown = append(unknown, i)
				}
			}
			if len(unknown) == 0 {
				continue
			}
			known := slices.Clone(h)
			wasRight := checkTimestamps(t, known, checker.TimestampOptions{NoRealTime: true}).OK()
			for _, i := range unknown {
				h[i].Outcome, h[i].Commit = checker.Unknown, 0
			}
			r := checkTimestamps(t, h, checker.TimestampOptions{NoRealTime: true})
			if r.Proved < len(unknown) {
				continue // no timestamp is needed
			}
			require.Equal(t, fits(t, known, h, unknown), r.OK(), "%v\n%v", h, r.Err())
			switch {
			case !r.OK():
				reported++
			case wasRight:
				passed++
			default:
				hidden++
			}
		}
	})
	t.Logf("%d passed, %d reported, %d are right with other timestamps", passed, reported, hidden)
	require.Positive(t, passed)
	require.Positive(t, reported)
}

// promise lets some transactions ask for more than they did, which they need not have got.
func promise(rng *rand.Rand, h checker.History) {
	for i := range h {
		switch rng.IntN(4) {
		case 0:
			h[i].Isolation = checker.Serializable
		case 1:
			for o := range h[i].Ops {
				op := &h[i].Ops[o]
				op.Locks = op.Kind == checker.Read || op.Kind == checker.ReadList
			}
		}
	}
}

// fits tells whether commit timestamps of the unknown transactions, two at most, let a history pass. It tries each order of them in each gap between
// the timestamps of h, which are 10 apart.
func fits(t require.TestingT, known, h checker.History, unknown []int) bool {
	if len(unknown) == 0 {
		return checkTimestamps(t, known, checker.TimestampOptions{NoRealTime: true}).OK()
	}
	places := []oracle.Timestamp{1, 3}
	if len(unknown) == 1 {
		places = []oracle.Timestamp{2}
	}
	for i := range h {
		for _, ts := range []oracle.Timestamp{h[i].Start, h[i].Commit} {
			for _, place := range places {
				known[unknown[0]].Commit = ts + place
				if ts > 0 && fits(t, known, h, unknown[1:]) {
					return true
				}
			}
		}
	}
	return false
}
