package checker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// TestLedgerPassesEachChangeOnce asks for changes as the runs of a key do, and takes those away that were passed: no later answer may need them.
func TestLedgerPassesEachChangeOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := &tsChecker{}
		var versions []version
		for range rng.IntN(30) {
			at := oracle.Timestamp(1 + rng.Uint64N(100))
			v := version{commit: at}
			if rng.IntN(3) == 0 {
				v.unknown = &bounds{over: at, upTo: at + oracle.Timestamp(rng.Uint64N(30))}
			}
			versions = append(versions, v)
		}
		l := c.ledgerChanges(-1, versions)
		from, to := oracle.Timestamp(0), oracle.Timestamp(0)
		for to < 150 {
			to += oracle.Timestamp(rng.Uint64N(10))
			want := slices.ContainsFunc(versions, func(v version) bool {
				if v.unknown != nil {
					return v.unknown.upTo > from && v.unknown.over < to
				}
				return v.commit > from && v.commit <= to
			})
			require.Equal(t, want, l.between(from, to), "in (%d, %d], seed %d", from, to, seed)
			clear(l.spans[:l.passed])
			if rng.IntN(2) == 0 {
				from = to
			}
		}
		require.Equal(t, len(l.spans), l.passed)
	}
}

// TestReadsAreJudgedByTheDigest has operations of a transaction that are gone once the digest is made: no read is judged by a walk through them.
func TestReadsAreJudgedByTheDigest(t *testing.T) {
	t.Parallel()
	read := func(key string, locks bool) Op { return Op{Kind: Read, Key: key, Absent: true, Locks: locks} }
	for name, c := range map[string]struct {
		ops       []Op
		left      int // of them once the digest is made; 0 is one
		isolation Isolation
		kind      Kind // of what is wrong, if another transaction writes x meanwhile
	}{
		"locked by a later read": {ops: []Op{read("x", false), read("x", true), {Kind: Write, Key: "y", Value: 1}}, kind: KindOverlap},
		"serializable":           {ops: []Op{read("x", false), {Kind: Write, Key: "y", Value: 1}}, isolation: Serializable, kind: KindUnserializable},
		"no lock":                {ops: []Op{read("x", false), {Kind: Write, Key: "y", Value: 1}}},
		"a lock of another key":  {ops: []Op{read("z", true), read("x", false), {Kind: Write, Key: "y", Value: 1}}, left: 2},
		"no write":               {ops: []Op{read("x", true)}, isolation: Serializable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := History{
				{Start: 10, Commit: 40, Outcome: Committed, Isolation: c.isolation, Ops: c.ops},
				{Process: 1, Start: 20, Commit: 30, Outcome: Committed, Ops: []Op{{Kind: Write, Key: "x", Value: 2}}},
			}
			k := &tsChecker{h: h, r: newReport("timestamps", h, 0)}
			var err error
			k.d, err = newDigest(h, func(int, int, string) { t.Error("nothing contradicts itself") })
			require.NoError(t, err)
			k.prove()
			h[0].Ops = h[0].Ops[:max(c.left, 1)]
			k.sweep()
			if c.kind == "" {
				require.NoError(t, k.r.Err())
				return
			}
			require.True(t, k.r.Has(c.kind), "%v", k.r.Err())
		})
	}
}

// TestWritersAreGroupedOnce has a bad read of each of many keys that one transaction wrote: its operations are gone through once, and not for each key.
func TestWritersAreGroupedOnce(t *testing.T) {
	t.Parallel()
	const keys = 100
	h := History{{Start: 10, Commit: 20, Outcome: Committed}, {Process: 1, Start: 30, Outcome: Committed}}
	for i := range keys {
		key := fmt.Sprint(i)
		h[0].Ops = append(h[0].Ops, Op{Kind: Write, Key: key, Value: 1}, Op{Kind: Write, Key: key, Value: 2})
		h[1].Ops = append(h[1].Ops, Op{Kind: Read, Key: key, Value: 1})
	}
	k := &tsChecker{h: h, r: newReport("timestamps", h, 0)}
	var err error
	k.d, err = newDigest(h, func(int, int, string) { t.Error("nothing contradicts itself") })
	require.NoError(t, err)
	k.prove()
	k.writersOf(0)
	require.Len(t, k.every, 2*keys)
	grouped := &k.every[0]
	k.sweep()
	require.Same(t, grouped, &k.every[0])
	require.Equal(t, keys, k.r.Counts[KindG1b])
}

// With a value that several wrote, a read may be of one of unknown outcome that began after the newest version, and before the read.
func TestUnprovedWriters(t *testing.T) {
	t.Parallel()
	write := func(start, commit oracle.Timestamp, outcome Outcome, value int64) Txn {
		return Txn{Process: int(start), Start: start, Commit: commit, Outcome: outcome, Ops: []Op{{Kind: Write, Key: "x", Value: value}}}
	}
	for at, right := range map[oracle.Timestamp]bool{15: true, 25: true, 31: false, 41: true, 45: true, 51: true, 71: false} {
		h := History{
			write(50, 0, Unknown, 7), write(40, 0, Unknown, 7), write(10, 0, Unknown, 7),
			write(20, 30, Committed, 1), write(60, 70, Committed, 2),
			{Process: 1, Start: at, Outcome: Committed, Ops: []Op{{Kind: Read, Key: "x", Value: 7}}},
		}
		r, err := CheckTimestamps(h, TimestampOptions{NoRealTime: true})
		require.NoError(t, err)
		require.Equal(t, right, r.OK(), "at %d: %v", at, r.Err())
	}
}
