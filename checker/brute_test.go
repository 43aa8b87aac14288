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

// brute decides for a tiny history, by trying every order, whether there is an
// execution under snapshot isolation (or a serial one) that its values and times fit.
// All of its transactions must be committed.
type brute struct {
	h checker.History
	// serial tells of a transaction whether nothing happens between its beginning and its commit.
	serial func(txn int) bool
	// began and ended tell what has happened, in the order tried.
	began, ended []bool
	state        map[string]checker.Op // committed value, as a read of it
	changed      map[string]int        // when, in steps
	snapshots    []int                 // when a transaction began
	step         int
}

func possible(h checker.History, serial bool) bool {
	return possibleIf(h, func(int) bool { return serial })
}

// possibleByRecord has each transaction run under the isolation that it asked for.
func possibleByRecord(h checker.History) bool {
	return possibleIf(h, func(txn int) bool { return h[txn].Isolation == checker.Serializable })
}

func possibleIf(h checker.History, serial func(txn int) bool) bool {
	b := &brute{
		h: h, serial: serial, began: make([]bool, len(h)), ended: make([]bool, len(h)),
		state: map[string]checker.Op{}, changed: map[string]int{}, snapshots: make([]int, len(h)),
	}
	return b.try()
}

func (b *brute) try() bool {
	left := false
	for i := range b.h {
		if b.ended[i] {
			continue
		}
		left = true
		b.step++
		switch {
		case !b.began[i]:
			if !b.mayBegin(i) || !b.reads(i) {
				break
			}
			b.began[i], b.snapshots[i] = true, b.step
			if b.serial(i) {
				if b.commit(i) {
					return true
				}
			} else if b.try() {
				return true
			}
			b.began[i] = false
		case b.commit(i):
			return true
		}
		b.step--
	}
	return !left
}

// mayBegin: what was completed before this one was invoked has ended.
func (b *brute) mayBegin(i int) bool {
	for j := range b.h {
		if !b.ended[j] && b.h[j].Complete < b.h[i].Invoke {
			return false
		}
	}
	return true
}

func (b *brute) value(key string, list bool) checker.Op {
	if op, ok := b.state[key]; ok {
		return op
	}
	if list {
		return checker.Op{Kind: checker.ReadList, Key: key}
	}
	return checker.Op{Kind: checker.Read, Key: key, Absent: true}
}

// run executes a transaction on the present state, and gives what it leaves behind;
// ok is false if it reads something else than it did.
func (b *brute) run(i int) (left map[string]checker.Op, ok bool) {
	left = map[string]checker.Op{}
	for _, op := range b.h[i].Ops {
		now, own := left[op.Key]
		if !own {
			now = b.value(op.Key, op.Kind == checker.ReadList || op.Kind == checker.Append)
		}
		switch op.Kind {
		case checker.Read:
			if now.Absent != op.Absent || now.Value != op.Value {
				return nil, false
			}
		case checker.ReadList:
			if !slices.Equal(now.List, op.List) {
				return nil, false
			}
		case checker.Write:
			left[op.Key] = checker.Op{Kind: checker.Read, Key: op.Key, Value: op.Value}
		case checker.Append:
			now.List = append(slices.Clone(now.List), op.Value)
			left[op.Key] = now
		}
	}
	return left, true
}

func (b *brute) reads(i int) bool {
	_, ok := b.run(i)
	return ok
}

// commit commits transaction i and goes on.
func (b *brute) commit(i int) bool {
	// What it leaves of a list is the state at its beginning and its own; nobody has
	// changed it since, or this is no execution.
	for _, op := range b.h[i].Ops {
		if (op.Kind == checker.Write || op.Kind == checker.Append) && b.changed[op.Key] > b.snapshots[i] {
			return false
		}
	}
	left := map[string]checker.Op{}
	for _, op := range b.h[i].Ops {
		switch op.Kind {
		case checker.Write:
			left[op.Key] = checker.Op{Kind: checker.Read, Key: op.Key, Value: op.Value}
		case checker.Append:
			now, own := left[op.Key]
			if !own {
				now = b.value(op.Key, true)
			}
			now.List = append(slices.Clone(now.List), op.Value)
			left[op.Key] = now
		}
	}
	type before struct {
		op      checker.Op
		was     bool
		changed int
	}
	undo := map[string]before{}
	for key, op := range left {
		old, was := b.state[key]
		undo[key] = before{old, was, b.changed[key]}
		b.state[key], b.changed[key] = op, b.step
	}
	b.ended[i] = true
	if b.try() {
		return true
	}
	b.ended[i] = false
	for key, u := range undo {
		if b.changed[key] = u.changed; u.was {
			b.state[key] = u.op
		} else {
			delete(b.state, key)
		}
	}
	return false
}

// tiny makes a small history whose reads are guesses. If final, a last transaction has
// read all.
func tiny(rng *rand.Rand, lists, final bool) checker.History {
	n := 2 + rng.IntN(4)
	if final {
		n = 2 + rng.IntN(3)
	}
	keys := []string{"x", "y"}[:1+rng.IntN(2)]
	var h checker.History
	written := map[string][]int64{}
	for i := range n {
		t := checker.Txn{Process: i, Outcome: checker.Committed, Invoke: int64(1 + rng.IntN(8))}
		t.Complete = t.Invoke + int64(1+rng.IntN(8))
		for range 1 + rng.IntN(3) {
			key := keys[rng.IntN(len(keys))]
			if rng.IntN(2) == 0 {
				v := int64(len(written[key]) + 1)
				written[key] = append(written[key], v)
				kind := checker.Write
				if lists {
					kind = checker.Append
				}
				t.Ops = append(t.Ops, checker.Op{Kind: kind, Key: key, Value: v})
				continue
			}
			kind := checker.Read
			if lists {
				kind = checker.ReadList
			}
			t.Ops = append(t.Ops, checker.Op{Kind: kind, Key: key})
		}
		h = append(h, t)
	}
	if final {
		t := checker.Txn{Process: n, Outcome: checker.Committed, Invoke: 100, Complete: 101}
		for _, key := range keys {
			kind := checker.Read
			if lists {
				kind = checker.ReadList
			}
			t.Ops = append(t.Ops, checker.Op{Kind: kind, Key: key})
		}
		h = append(h, t)
	}
	// An order of the elements that most reads hold to.
	for key := range written {
		rng.Shuffle(len(written[key]), func(i, j int) { written[key][i], written[key][j] = written[key][j], written[key][i] })
	}
	for i := range h {
		for o := range h[i].Ops {
			op := &h[i].Ops[o]
			all := written[op.Key]
			n := rng.IntN(len(all) + 1)
			if final && i == len(h)-1 {
				n = len(all)
			}
			switch op.Kind {
			case checker.ReadList:
				if n > 0 {
					op.List = slices.Clone(all[:n])
				}
			case checker.Read:
				if op.Absent = n == 0; n > 0 {
					op.Value = all[n-1]
				}
			case checker.Write, checker.Append:
			}
		}
	}
	return h
}

// What the black box checker reports is impossible indeed, and of lists that were all
// read in the end everything impossible is reported.
func TestValuesAgainstBruteForce(t *testing.T) {
	t.Parallel()
	good, bad, skew, missed, mixed := 0, 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 7))
		lists, final := rapid.Bool().Draw(t, "lists"), rapid.Bool().Draw(t, "final")
		for range 50 {
			var h checker.History
			if rng.IntN(2) == 0 {
				h = tiny(rng, lists, final)
			} else {
				h = simulation{Seed: rng.Uint64(), Txns: 1 + rng.IntN(4), Processes: 4, Keys: 2, Ops: 3, Lists: lists, ReadAll: final}.run()
				h = slices.DeleteFunc(h, func(t checker.Txn) bool { return t.Outcome != checker.Committed })
				if len(h) > 5 {
					continue
				}
				mutate(rng, h)
			}
			si, ser := possible(h, false), possible(h, true)
			require.True(t, si || !ser, "what is serial is possible under snapshot isolation")
			bySI := checkValues(t, h, checker.ValueOptions{Judge: checker.AsSnapshotIsolation})
			bySer := checkValues(t, h, checker.ValueOptions{Judge: checker.AsSerializable})
			if si {
				require.NoError(t, bySI.Err(), "%v", h)
			}
			if ser {
				require.NoError(t, bySer.Err(), "%v", h)
			}
			for i := range h {
				if h[i].Isolation = checker.SnapshotIsolation; rng.IntN(2) == 0 {
					h[i].Isolation = checker.Serializable
				}
			}
			byRecord := checkValues(t, h, checker.ValueOptions{})
			switch {
			case possibleByRecord(h):
				require.NoError(t, byRecord.Err(), "%v", h)
			case bySI.OK() && !byRecord.OK():
				mixed++
			}
			if lists && final {
				require.Equal(t, si, bySI.OK(), "%v", h)
				require.Equal(t, ser, bySer.OK(), "%v", h)
			}
			switch {
			case ser:
				good++
			case si:
				skew++
			case bySI.OK():
				missed++
			default:
				bad++
			}
		}
	})
	t.Logf("%d serializable, %d under snapshot isolation alone, %d impossible and reported, %d impossible and not reported", good, skew, bad, missed)
	t.Logf("%d reported for what some of their transactions asked for", mixed)
	require.Positive(t, mixed)
	require.Positive(t, good)
	require.Positive(t, skew)
	require.Positive(t, bad)
	require.Less(t, missed, bad)
}

// mutate changes something about a history, or not.
func mutate(rng *rand.Rand, h checker.History) {
	if len(h) == 0 {
		return
	}
	i, j := rng.IntN(len(h)), rng.IntN(len(h))
	switch rng.IntN(4) {
	case 0:
		h[i].Invoke, h[i].Complete, h[j].Invoke, h[j].Complete = h[j].Invoke, h[j].Complete, h[i].Invoke, h[i].Complete
	case 1:
		if n := len(h[i].Ops); n > 0 {
			o := rng.IntN(n)
			h[i].Ops = slices.Delete(h[i].Ops, o, o+1)
		}
	case 2:
		for o := range h[i].Ops {
			a := &h[i].Ops[o]
			for p := range h[j].Ops {
				if b := &h[j].Ops[p]; a.Kind == b.Kind && a.Key == b.Key && (a.Kind == checker.Read || a.Kind == checker.ReadList) {
					*a, *b = *b, *a
					return
				}
			}
		}
	}
}

// What has timestamps that pass is possible, and what is impossible by its values
// does not pass, whatever its timestamps.
func TestTimestampsAgainstBruteForce(t *testing.T) {
	t.Parallel()
	passed, reported := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 8))
		lists, final := rapid.Bool().Draw(t, "lists"), rapid.Bool().Draw(t, "final")
		for range 50 {
			h := simulation{Seed: rng.Uint64(), Txns: 1 + rng.IntN(4), Processes: 4, Keys: 2, Ops: 3, Lists: lists, ReadAll: final, Serializable: 0.3}.run()
			h = slices.DeleteFunc(h, func(t checker.Txn) bool { return t.Outcome != checker.Committed })
			if len(h) > 5 {
				continue
			}
			mutate(rng, h)
			if rng.IntN(4) == 0 && len(h) > 1 {
				i, j := rng.IntN(len(h)), rng.IntN(len(h))
				h[i].Start, h[i].Commit, h[j].Start, h[j].Commit = h[j].Start, h[j].Commit, h[i].Start, h[i].Commit
				for _, k := range []int{i, j} {
					if h[k].Commit == 0 {
						h[k].Commit = h[k].Start + 1
					}
				}
			}
			ok := checkTimestamps(t, h, checker.TimestampOptions{}).OK()
			if ok {
				passed++
				require.True(t, possible(h, false), "%v", h)
			} else {
				reported++
			}
			if !checkValues(t, h, checker.ValueOptions{}).OK() {
				require.False(t, ok, "%v", h)
			}
		}
	})
	t.Logf("%d passed, %d reported", passed, reported)
	require.Positive(t, passed)
	require.Positive(t, reported)
}

// A correct history is never reported.
func TestValuesPassCorrectHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := anySimulation(t).run()
		r := checkValues(t, h, checker.ValueOptions{})
		require.NoError(t, r.Err())
		// Without help from the clock, nor from the processes, there is less to find.
		r = checkValues(t, h, checker.ValueOptions{NoRealTime: true, NoProcess: true})
		require.NoError(t, r.Err())
	})
}

// broken breaks a correct history in a way that both checkers must see. It returns
// false if it found no place to. It is long because it is a list of ways.
func broken(rng *rand.Rand, h checker.History, how string) bool {
	type place struct{ txn, op int }
	var places []place
	for i := range h {
		for o := range h[i].Ops {
			places = append(places, place{i, o})
		}
	}
	rng.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	final := &h[len(h)-1]
	if final.Outcome != checker.Committed {
		return false
	}
	seen := func(key string, v int64) bool {
		for _, op := range final.Ops {
			if op.Key == key && slices.Contains(op.List, v) {
				return true
			}
		}
		return false
	}
	for _, p := range places {
		t := &h[p.txn]
		op := &t.Ops[p.op]
		if t.Outcome != checker.Committed || t == final {
			continue
		}
		switch {
		case how == "drop a write" && op.Kind == checker.Append && seen(op.Key, op.Value):
			t.Ops = slices.Delete(t.Ops, p.op, p.op+1)
			return true
		case how == "lose a write" && op.Kind == checker.Append && seen(op.Key, op.Value):
			for i := range h {
				for o := range h[i].Ops {
					if r := &h[i].Ops[o]; r.Key == op.Key && i != p.txn {
						r.List = slices.DeleteFunc(slices.Clone(r.List), func(v int64) bool { return v == op.Value })
					}
				}
			}
			return true
		case how == "swap a read" && op.Kind == checker.ReadList && len(op.List) > 1:
			op.List = slices.Clone(op.List)
			op.List[0], op.List[1] = op.List[1], op.List[0]
			return true
		case how == "abort a writer" && op.Kind == checker.Append && seen(op.Key, op.Value):
			t.Outcome, t.Commit = checker.Aborted, 0
			return true
		case how == "reorder" && op.Kind == checker.Append && seen(op.Key, op.Value) && t.Invoke > h[0].Complete && h[0].Outcome == checker.Committed && h[0].Complete > 0:
			// As if it began after all had ended.
			t.Invoke, t.Complete = final.Complete+1, final.Complete+2
			t.Start, t.Commit = final.Start+1, final.Start+2
			t.Process = 1000
			return true
		case how == "read the past" && op.Kind == checker.ReadList && !t.AsOf && len(op.List) > 0 && t.Run == nil:
			// The element was acknowledged before this began.
			last := op.List[len(op.List)-1]
			for i := range h {
				if h[i].Outcome != checker.Committed || h[i].Complete >= t.Invoke || i == p.txn {
					continue
				}
				for _, a := range h[i].Ops {
					if a.Kind == checker.Append && a.Key == op.Key && a.Value == last {
						op.List = op.List[:len(op.List)-1]
						return true
					}
				}
			}
		}
	}
	return false
}

// A history that was broken is reported, by both.
func TestBrokenHistoriesAreReported(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"drop a write", "lose a write", "swap a read", "abort a writer", "reorder", "read the past"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := 0
			rapid.Check(t, func(t *rapid.T) {
				s := anySimulation(t)
				s.Lists, s.ReadAll, s.AsOf = true, true, 0
				h := s.run()
				if !broken(rand.New(rand.NewPCG(s.Seed, 9)), h, how) {
					return
				}
				n++
				require.False(t, checkTimestamps(t, h, checker.TimestampOptions{}).OK())
				require.False(t, checkValues(t, h, checker.ValueOptions{}).OK())
			})
			require.Greater(t, n, 10)
		})
	}
}

// A broken ledger is reported.
func TestBrokenLedgersAreReported(t *testing.T) {
	t.Parallel()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		s := simulation{Seed: rapid.Uint64().Draw(t, "seed"), Txns: 40, Processes: 4, Keys: 3, Ops: 3, Observed: 2, Lists: rapid.Bool().Draw(t, "lists")}
		h := s.run()
		o := checker.TimestampOptions{Idle: true, Observers: []checker.Observer{{Name: "o", Observes: func(key string) bool { return key != "k2" }}}}
		require.NoError(t, checkTimestamps(t, h, o).Err())
		// The last run of a key was not committed, or a run more was.
		var last *checker.Txn
		for i := range h {
			if h[i].Run != nil && h[i].Outcome == checker.Committed && (last == nil || h[i].Start > last.Start) {
				last = &h[i]
			}
		}
		if last == nil {
			return
		}
		n++
		again := *last
		again.Invoke, again.Complete, again.Start, again.Commit = h[len(h)-1].Complete+1000, h[len(h)-1].Complete+1001, oracle.Max-1, oracle.Max
		last.Outcome, last.Commit = checker.Aborted, 0
		require.True(t, checkTimestamps(t, h, o).Has(checker.KindMissedChange))
		last.Outcome = checker.Committed
		r := checkTimestamps(t, append(h, again), o)
		require.True(t, r.Has(checker.KindUnneededRun), "%v", r.Err())
	})
	require.Greater(t, n, 10)
}
