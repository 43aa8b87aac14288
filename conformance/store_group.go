package conformance

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func groupTests() []test {
	return []test{
		{"GroupIsAllOrNone", Groups, groupIsAllOrNone},
		{"GroupNamesWhatFailed", Groups, groupNamesWhatFailed},
		{"GroupsAreIndependent", Groups, groupsAreIndependent},
		{"GroupKeyIsAFunction", Groups, groupKeyIsAFunction},
		{"GroupsUnderConcurrency", Groups, groupsUnderConcurrency},
		{"DrawReplacesDrawn", Groups, drawReplacesDrawn},
		{"DrawsRise", Groups, drawsRise},
		{"DrawNotAfter", Groups, drawNotAfter},
		{"DrawFailsOnConditions", Groups, drawFailsOnConditions},
		{"NoReaderMissesADrawnWrite", Groups, noReaderMissesADrawnWrite},
	}
}

// grouped is a harness over a store that groups, with rows that may share one.
type grouped struct {
	*harness
	g    rowstore.Grouper
	rows []string
}

// grouped finds n rows of table "t" that may share a group, with AssignTimestamp if asked
// for; it skips the test where there are none.
func (e *env) grouped(t testing.TB, n int, draw bool) *grouped {
	t.Helper()
	h := e.harness(t)
	g := ability[rowstore.Grouper](t, h.s, "Grouper")
	rows := rowsOfAGroup(g, n, draw)
	if rows == nil {
		t.Skipf("no %d rows of a table may share a group (with AssignTimestamp: %v)", n, draw)
	}
	return &grouped{h, g, rows}
}

// rowsOfAGroup finds n rows of table "t" that may share a group, with AssignTimestamp if asked for, in ascending order. It
// returns nil where there are none.
func rowsOfAGroup(g rowstore.Grouper, n int, draw bool) []string {
	byKey := map[string][]string{}
	for i := range 20_000 {
		k := g.GroupKey("t", key(i))
		if k == "" || draw && !g.AssignsTimestamps(k) {
			continue
		}
		if byKey[k] = append(byKey[k], key(i)); len(byKey[k]) == n {
			return byKey[k]
		}
	}
	return nil
}

// group runs one group.
func (h *grouped) group(gr rowstore.Group) rowstore.GroupOutcome {
	h.Helper()
	out := h.groups(gr)
	return out[0]
}

func (h *grouped) groups(gr ...rowstore.Group) []rowstore.GroupOutcome {
	h.Helper()
	out, err := h.g.Group(h.ctx, gr)
	require.NoError(h, err)
	require.Len(h, out, len(gr))
	for i := range out {
		require.NoError(h, out[i].Err)
		require.False(h, out[i].Applied && out[i].TooLate)
		if !gr[i].AssignTimestamp {
			require.Zero(h, out[i].Commit)
			require.False(h, out[i].TooLate)
		}
	}
	return out
}

func groupIsAllOrNone(t testing.TB, e *env) {
	h := e.grouped(t, 3, false)
	a, b, c := h.rows[0], h.rows[1], h.rows[2]
	h.put(b, write(ver(rowstore.Lock, "c", 4, "held")))
	free := when(rowstore.Absent(rowstore.Lock, "c", 0))
	edits := []rowstore.Edit{write(ver(rowstore.Lock, "c", 9, "mine")), write(ver(rowstore.Notify, "d", 9, "n"))}
	gr := rowstore.Group{Mutations: []rowstore.Mutation{mut(a, free, edits...), mut(b, free, edits...), mut(c, free, edits...)}}
	out := h.group(gr)
	require.False(t, out.Applied)
	require.Equal(t, 1, out.Failed)
	require.Equal(t, 0, out.Outcome.Failed)
	require.False(t, out.Outcome.Applied)
	require.Equal(t, norm1(ver(rowstore.Lock, "c", 4, "held")), norm1(out.Outcome.Broke))
	require.Empty(t, h.all(a))
	require.Empty(t, h.all(c))
	require.Equal(t, versions(ver(rowstore.Lock, "c", 4, "held")), h.all(b))

	h.put(b, rowstore.Delete(rowstore.Lock, "c", 4))
	require.True(t, h.group(gr).Applied)
	for _, r := range h.rows {
		require.Equal(t, versions(ver(rowstore.Lock, "c", 9, "mine"), ver(rowstore.Notify, "d", 9, "n")), h.all(r))
	}
	// A group of one, a group of checks, and one whose checks fail.
	require.True(t, h.group(rowstore.Group{Mutations: []rowstore.Mutation{mut(a, nil, rowstore.Delete(rowstore.Lock, "c", 9))}}).Applied)
	require.True(t, h.group(rowstore.Group{Mutations: []rowstore.Mutation{mut(a, free), mut(b, when(rowstore.Present("c", 9)))}}).Applied)
	out = h.group(rowstore.Group{Mutations: []rowstore.Mutation{mut(a, nil, write(ver(rowstore.Write, "c", 5, "x"))), mut(b, when(rowstore.Present("c", 8)))}})
	require.False(t, out.Applied, "a mutation without edits has its say")
	require.Equal(t, 1, out.Failed)
	require.Equal(t, versions(ver(rowstore.Notify, "d", 9, "n")), h.all(a))
}

func groupNamesWhatFailed(t testing.TB, e *env) {
	h := e.grouped(t, 3, false)
	lock := ver(rowstore.Lock, "c", 5, "lock")
	for _, r := range h.rows[1:] {
		h.put(r, write(lock), write(ver(rowstore.Write, "c", 4, r)))
	}
	out := h.group(rowstore.Group{Mutations: []rowstore.Mutation{
		mut(h.rows[0], when(rowstore.Absent(rowstore.Lock, "c", 0)), write(ver(rowstore.Lock, "c", 9, ""))),
		mut(h.rows[1], when(rowstore.Present("c", 5), rowstore.Absent(rowstore.Write, "c", 2), rowstore.Absent(rowstore.Lock, "c", 1))),
		mut(h.rows[2], when(rowstore.Present("c", 5), rowstore.Absent(rowstore.Write, "c", 5), rowstore.Present("c", 6))),
	}})
	require.False(t, out.Applied)
	switch out.Failed { // a mutation that did not hold: either of the two
	case 1:
		require.Equal(t, 1, out.Outcome.Failed)
		require.Equal(t, norm1(ver(rowstore.Write, "c", 4, h.rows[1])), norm1(out.Outcome.Broke))
	case 2:
		require.Equal(t, 2, out.Outcome.Failed)
		require.Zero(t, out.Outcome.Broke)
	default:
		t.Fatalf("mutation %d did not fail", out.Failed)
	}
	require.Empty(t, h.all(h.rows[0]))
}

func groupsAreIndependent(t testing.TB, e *env) {
	h := e.grouped(t, 8, false)
	h.put(h.rows[3], write(ver(rowstore.Lock, "c", 4, "held")))
	free := when(rowstore.Absent(rowstore.Lock, "c", 0))
	lock := write(ver(rowstore.Lock, "c", 9, "mine"))
	var all []rowstore.Group
	for i := 0; i < 8; i += 2 {
		all = append(all, rowstore.Group{Mutations: []rowstore.Mutation{mut(h.rows[i], free, lock), mut(h.rows[i+1], free, lock)}})
	}
	out := h.groups(all...)
	for i := range out {
		require.Equal(t, i != 1, out[i].Applied, "group %d", i)
		for j := 2 * i; j < 2*i+2; j++ {
			held := len(h.read(h.rows[j], rowstore.Selector{Family: rowstore.Lock, From: 9, To: 9})) == 1
			require.Equal(t, i != 1, held, "row %d", j)
		}
	}
	require.Equal(t, 1, out[1].Failed)
	outs, err := h.g.Group(h.ctx, nil)
	require.NoError(t, err)
	require.Empty(t, outs)
}

func groupKeyIsAFunction(t testing.TB, e *env) {
	h := e.harness(t)
	g := ability[rowstore.Grouper](t, h.s, "Grouper")
	w := write(ver(rowstore.Write, "c", 5, "x"))
	for i := range 200 {
		table, row := fmt.Sprintf("t%d", i%3), key(i)
		k := g.GroupKey(table, row)
		require.Equal(t, k, g.GroupKey(table, row))
		gr := rowstore.Group{Mutations: []rowstore.Mutation{{Table: table, Row: row, Edits: []rowstore.Edit{w}}}}
		out, err := g.Group(h.ctx, []rowstore.Group{gr})
		if k == "" {
			require.ErrorIs(t, err, rowstore.ErrInvalid, "a row whose key is empty may be in no group, not even alone")
			require.False(t, g.AssignsTimestamps(k))
			continue
		}
		require.NoError(t, err)
		require.True(t, out[0].Applied)
		require.Equal(t, g.AssignsTimestamps(k), g.AssignsTimestamps(k))
	}
}

// groupsUnderConcurrency moves counts between rows, by groups, while others change
// the same rows one at a time: nothing is lost, and every step has one winner.
func groupsUnderConcurrency(t testing.TB, e *env) {
	h := e.grouped(t, 4, false)
	for _, r := range h.rows {
		h.put(r, write(ver(rowstore.Write, "c", 1, "first")))
	}
	const workers = 6
	wins := e.n(40, 10)
	rng := seeded(t)
	steps := make([]atomic.Int64, len(h.rows))
	var refused atomic.Int64
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		g.Go(func() error {
			for n := 0; n < wins; {
				// Two rows in any order by most, one row by the others.
				picked := rng.Perm(len(h.rows))[:2]
				if w%3 == 2 {
					picked = picked[:1]
				}
				var muts []rowstore.Mutation
				for _, i := range picked {
					r, err := read1(h.harness, h.rows[i], newestWrite)
					if err != nil {
						return err
					}
					next := r.Newest(rowstore.Write, "c").TS + 1
					muts = append(muts, mut(h.rows[i], when(rowstore.Absent(rowstore.Write, "c", next)), write(ver(rowstore.Write, "c", next, fmt.Sprintf("%d/%d", w, n)))))
				}
				runtime.Gosched() // between the look and the change, so that they collide
				applied, err := applyTogether(h, muts)
				if err != nil {
					return err
				}
				if !applied {
					refused.Add(1)
					continue
				}
				n++
				for _, i := range picked {
					steps[i].Add(1)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	count := map[string]int{}
	for i, r := range h.rows {
		all := h.all(r)
		require.Len(t, all, int(steps[i].Load())+1, "row %d has a version for each step that was acknowledged", i)
		for j, v := range all {
			require.Equal(t, rowstore.Timestamp(len(all)-j), v.TS) //nolint:gosec // positive
			count[string(v.Value)]++
		}
	}
	delete(count, "first")
	for id, n := range count {
		var w, i int
		_, err := fmt.Sscanf(id, "%d/%d", &w, &i)
		require.NoError(t, err)
		if w%3 == 2 {
			require.Equal(t, 1, n, "step %s", id)
		} else {
			require.Equal(t, 2, n, "step %s happened on both rows or on none", id)
		}
	}
	t.Logf("%d groups or mutations were refused", refused.Load())
}

// applyTogether applies one mutation by itself, and several as a group.
func applyTogether(h *grouped, muts []rowstore.Mutation) (applied bool, err error) {
	if len(muts) == 1 {
		out, err := apply1(h.harness, muts[0])
		return out.Applied, err
	}
	out, err := h.g.Group(h.ctx, []rowstore.Group{{Mutations: muts}})
	if err != nil {
		return false, fmt.Errorf("group: %w", err)
	}
	if out[0].Err != nil {
		return false, out[0].Err
	}
	if !out[0].Applied && out[0].Outcome.Broke.TS == 0 {
		return false, fmt.Errorf("a failed group names no version: %+v", out[0])
	}
	return out[0].Applied, nil
}

// drawn makes the edit that puts a version at the timestamp to be drawn.
func drawn(f rowstore.Family, column, value string) rowstore.Edit {
	return rowstore.Put(f, column, rowstore.AssignedTimestamp, []byte(value))
}

func drawReplacesDrawn(t testing.TB, e *env) {
	h := e.grouped(t, 2, true)
	a, b := h.rows[0], h.rows[1]
	out := h.group(rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{
		mut(a, when(rowstore.Absent(rowstore.Write, "c", 5), rowstore.Absent(rowstore.Lock, "c", 0)),
			drawn(rowstore.Write, "c", "w"), drawn(rowstore.Notify, "c", "n"), write(ver(rowstore.Data, "c", 5, "long")),
			drawn(rowstore.Write, "d", "w2")),
		mut(b, when(rowstore.Absent(rowstore.Mark, "c", 5)), drawn(rowstore.Mark, "c", "r"), write(ver(rowstore.Write, "old", 3, "x"))),
	}})
	require.True(t, out.Applied)
	require.NotZero(t, out.Commit)
	require.LessOrEqual(t, out.Commit, oracle.Max)
	require.Equal(t, versions(ver(rowstore.Write, "c", out.Commit, "w"), ver(rowstore.Write, "d", out.Commit, "w2"),
		ver(rowstore.Notify, "c", out.Commit, "n"), ver(rowstore.Data, "c", 5, "long")), h.all(a))
	require.Equal(t, versions(ver(rowstore.Mark, "c", out.Commit, "r"), ver(rowstore.Write, "old", 3, "x")), h.all(b))

	// The drawn mark obeys the family's rule.
	h.put(b, write(ver(rowstore.Mark, "high", oracle.Max, "max")))
	out = h.group(rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(b, nil, drawn(rowstore.Mark, "high", "low"), drawn(rowstore.Mark, "c", "r2"))}})
	require.Equal(t, versions(ver(rowstore.Mark, "c", out.Commit, "r2"), ver(rowstore.Mark, "high", oracle.Max, "max")),
		h.read(b, pick(rowstore.Mark)))
	// A lock, too.
	out = h.group(rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(b, when(rowstore.Absent(rowstore.Lock, "lock", 0)), drawn(rowstore.Lock, "lock", "l"))}})
	require.True(t, out.Applied)
	require.Equal(t, versions(ver(rowstore.Lock, "lock", out.Commit, "l")), h.read(b, pick(rowstore.Lock)))
	h.put(b, rowstore.Delete(rowstore.Lock, "lock", out.Commit))
	// AssignTimestamp without an edit at AssignedTimestamp draws all the same.
	out2 := h.group(rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(a, nil, rowstore.Delete(rowstore.Data, "c", 5))}})
	require.True(t, out2.Applied)
	require.Greater(t, out2.Commit, out.Commit)
}

func drawsRise(t testing.TB, e *env) {
	h := e.grouped(t, 6, true)
	o := ability[rowstore.OracleProvider](t, h.s, "OracleProvider").Oracle()
	const workers = 6
	rounds := e.n(60, 20)
	var mu sync.Mutex
	seen := map[rowstore.Timestamp]bool{}
	claim := func(ts rowstore.Timestamp) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[ts] {
			return fmt.Errorf("timestamp %d was drawn twice", ts)
		}
		seen[ts] = true
		return nil
	}
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			for i := range rounds {
				before, err := o.Draw(h.ctx, 1)
				if err != nil {
					return fmt.Errorf("drawing: %w", err)
				}
				out, err := h.g.Group(h.ctx, []rowstore.Group{
					{AssignTimestamp: true, NotAfter: before.Add(1 << 40), Mutations: []rowstore.Mutation{mut(h.rows[w], nil, drawn(rowstore.Write, "c", fmt.Sprint(i)))}},
				})
				if err != nil {
					return fmt.Errorf("group: %w", err)
				}
				if out[0].Err != nil || !out[0].Applied {
					return fmt.Errorf("group: %+v", out[0])
				}
				after, err := o.Draw(h.ctx, 1)
				if err != nil {
					return fmt.Errorf("drawing: %w", err)
				}
				if before >= out[0].Commit || out[0].Commit >= after {
					return fmt.Errorf("drew %d, then %d in a group, then %d", before, out[0].Commit, after)
				}
				for _, ts := range []rowstore.Timestamp{before, out[0].Commit, after} {
					if err := claim(ts); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, seen, 3*workers*rounds)

	// Several groups in one call.
	var all []rowstore.Group
	for _, r := range h.rows {
		all = append(all, rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(r, nil, drawn(rowstore.Write, "c", "x"))}})
	}
	for _, out := range h.groups(all...) {
		require.True(t, out.Applied)
		require.NoError(t, claim(out.Commit))
	}
}

func drawNotAfter(t testing.TB, e *env) {
	h := e.grouped(t, 2, true)
	o := ability[rowstore.OracleProvider](t, h.s, "OracleProvider").Oracle()
	ts, err := o.Draw(h.ctx, 1)
	require.NoError(t, err)
	run := func(notAfter rowstore.Timestamp) rowstore.GroupOutcome {
		return h.group(rowstore.Group{AssignTimestamp: true, NotAfter: notAfter, Mutations: []rowstore.Mutation{
			mut(h.rows[0], nil, drawn(rowstore.Write, "c", "x"), write(ver(rowstore.Notify, "n", 5, ""))),
			mut(h.rows[1], nil, drawn(rowstore.Write, "c", "x")),
		}})
	}
	for _, late := range []rowstore.Timestamp{1, ts - 1, ts} {
		out := run(late)
		require.True(t, out.TooLate, "a timestamp above %d is later than %d", ts, late)
		require.False(t, out.Applied)
		require.Zero(t, out.Commit)
		require.Empty(t, h.all(h.rows[0]))
		require.Empty(t, h.all(h.rows[1]))
	}
	for _, fine := range []rowstore.Timestamp{0, oracle.Max, ts.Add(1 << 50)} {
		out := run(fine)
		require.True(t, out.Applied, "not after %d", fine)
		require.Greater(t, out.Commit, ts)
	}
	// One group too late, its neighbour not.
	out := h.groups(
		rowstore.Group{AssignTimestamp: true, NotAfter: ts, Mutations: []rowstore.Mutation{mut(h.rows[0], nil, drawn(rowstore.Write, "e", "x"))}},
		rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(h.rows[1], nil, drawn(rowstore.Write, "e", "x"))}})
	require.True(t, out[0].TooLate)
	require.True(t, out[1].Applied)
	require.Empty(t, h.read(h.rows[0], rowstore.Selector{Family: rowstore.Write, Column: "e", To: oracle.Max}))
}

func drawFailsOnConditions(t testing.TB, e *env) {
	h := e.grouped(t, 2, true)
	a, b := h.rows[0], h.rows[1]
	h.put(b, write(ver(rowstore.Write, "c", 7, "w")))
	for _, notAfter := range []rowstore.Timestamp{0, 1} {
		out := h.group(rowstore.Group{AssignTimestamp: true, NotAfter: notAfter, Mutations: []rowstore.Mutation{
			mut(a, when(rowstore.Absent(rowstore.Write, "c", 7)), drawn(rowstore.Write, "c", "x")),
			mut(b, when(rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Write, "c", 7)), drawn(rowstore.Write, "c", "x")),
		}})
		require.False(t, out.Applied)
		require.False(t, out.TooLate, "nothing is drawn before every condition holds")
		require.Zero(t, out.Commit)
		require.Equal(t, 1, out.Failed)
		require.Equal(t, 1, out.Outcome.Failed)
		require.Equal(t, norm1(ver(rowstore.Write, "c", 7, "w")), norm1(out.Outcome.Broke))
		require.Empty(t, h.all(a))
	}
}
