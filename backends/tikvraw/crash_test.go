package tikvraw

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// everything picks all versions of a row.
func everything() []rowstore.Selector {
	var picks []rowstore.Selector
	for f := rowstore.Lock; f <= rowstore.Notify; f++ {
		picks = append(picks, rowstore.Selector{Family: f, To: oracle.Max})
	}
	return picks
}

// contents returns all that a store holds.
func contents(t testing.TB, s rowstore.Store) []rowstore.Row {
	t.Helper()
	var all []rowstore.Row
	for table, err := range s.Tables(context.Background()) {
		require.NoError(t, err)
		for row, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: table, Selectors: everything()}) {
			require.NoError(t, err)
			all = append(all, row)
		}
	}
	return all
}

// pointedTo returns how many keys a store without garbage has for its heads.
func pointedTo(t testing.TB, s *Store, f *fakeRaw) int {
	t.Helper()
	n := 0
	for _, p := range f.dump() {
		if p.key[len(s.keys.base)] != spaceHead {
			continue
		}
		r, err := s.decodeRow(p.key, p.value)
		require.NoError(t, err)
		if r.index != 0 {
			n++
		}
		count := func(entries []entry) {
			for _, e := range entries {
				if e.value.id != 0 {
					n++
				}
			}
		}
		count(r.entries)
		for _, c := range r.head.chunks {
			n++
			entries, err := r.load(context.Background(), c)
			require.NoError(t, err)
			count(entries)
			require.Equal(t, c.values, hasFar(entries))
		}
	}
	return n
}

func hasFar(entries []entry) bool {
	for _, e := range entries {
		if e.value.id != 0 {
			return true
		}
	}
	return false
}

// beside counts the keys that are neither heads nor of the whole store.
func beside(s *Store, f *fakeRaw) int {
	n := 0
	for _, p := range f.dump() {
		if space := p.key[len(s.keys.base)]; space == spaceSide || space == spaceIndex {
			n++
		}
	}
	return n
}

// script is a sequence of changes that uses every kind of key: long values, markers,
// chunks that are made, merged, rewritten and dropped.
func script(rng *rand.Rand) []rowstore.Mutation {
	var all []rowstore.Mutation
	value := func() []byte {
		if rng.IntN(3) == 0 {
			return []byte(strings.Repeat("long", inlineMax/4+1+rng.IntN(50)))
		}
		return []byte(strings.Repeat("v", 1+rng.IntN(40)))
	}
	for ts := rowstore.Timestamp(10); ts < 60; ts++ {
		row := fmt.Sprintf("row%d", rng.IntN(2))
		column := fmt.Sprintf("c%d", rng.IntN(2))
		edits := []rowstore.Edit{rowstore.Put(rowstore.Write, column, ts, value())}
		switch rng.IntN(6) {
		case 0:
			edits = append(edits, rowstore.Put(rowstore.Notify, column, ts, []byte{1}))
		case 1:
			edits = append(edits, rowstore.DeleteRange(rowstore.Notify, column, 0, oracle.Max))
		case 2:
			edits = append(edits, rowstore.DeleteRange(rowstore.Write, column, 0, ts-rowstore.Timestamp(1+rng.IntN(20))))
		case 3:
			edits = append(edits, rowstore.Put(rowstore.Data, column, ts, value()), rowstore.Delete(rowstore.Write, "c0", ts-5))
		case 4:
			edits = append(edits, rowstore.Put(rowstore.Mark, column, ts, nil), rowstore.DeleteRange(rowstore.Lock, column, 0, ts-1), rowstore.Put(rowstore.Lock, column, ts, value()))
		case 5:
			edits = append(edits, rowstore.DeleteRange(rowstore.Data, column, 0, ts-10), rowstore.Delete(rowstore.Lock, column, ts-3))
		}
		m := rowstore.Mutation{Table: "t", Row: row, Edits: edits}
		if rowstore.CheckBatch([]rowstore.Mutation{m}) == nil {
			all = append(all, m)
		}
	}
	return all
}

var errDied = errors.New("the process died")

// TestCrashBetweenCalls lets a process die at each call that it makes, with the call
// done or not. What another process finds then is what was acknowledged, and the
// change under way whole or not at all; and a sweep leaves no key that nothing points
// to.
func TestCrashBetweenCalls(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	muts := script(rand.New(rand.NewPCG(seed, 0)))
	calls, garbage := 0, 0
	for ; ; calls++ {
		finished := false
		for _, done := range []bool{false, true} {
			data := newFakeData()
			var end bool
			end, garbage = crashRun(t, data, muts, calls, done, garbage)
			finished = finished || end
		}
		if finished {
			break
		}
	}
	t.Logf("%d calls for %d changes, %d keys left behind and swept", calls, len(muts), garbage)
	require.Greater(t, calls, len(muts), "the script was to need more than swaps")
	require.Positive(t, garbage, "some crash was to leave garbage")
}

// crashRun runs the changes in a process that dies at its n-th call. It tells whether
// it got to the end.
func crashRun(t *testing.T, data *fakeData, muts []rowstore.Mutation, n int, done bool, garbage int) (bool, int) {
	ctx := context.Background()
	one := data.client()
	s := openFake(t, one, small(Options{SweepEvery: -1}))
	var mu sync.Mutex
	left, dead := n, false
	hook := func(first bool) func(string, []byte) error {
		return func(string, []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if first && !dead {
				left--
			}
			// Done, the call dies in its second half.
			if dead = dead || left < 0 && first != done; dead {
				return errDied
			}
			return nil
		}
	}
	one.before, one.after = hook(true), hook(false)
	model := memstore.New()
	applied, flying := 0, false
	for i := range muts {
		out, err := s.Apply(ctx, muts[i:i+1], rowstore.ApplyOptions{})
		require.NoError(t, err)
		if out[0].Err != nil {
			require.ErrorIs(t, out[0].Err, errDied)
			flying = errors.Is(out[0].Err, rowstore.ErrAmbiguous)
			break
		}
		require.True(t, out[0].Applied)
		_, err = model.Apply(ctx, muts[i:i+1], rowstore.ApplyOptions{})
		require.NoError(t, err)
		applied++
		s.clean.idle()
	}
	mu.Lock()
	finished := !dead
	dead = true
	mu.Unlock()
	require.NoError(t, s.Close())

	two := data.client()
	after := openFake(t, two, small(Options{SweepEvery: -1}))
	defer func() { require.NoError(t, after.Close()) }()
	got := contents(t, after)
	if flying {
		whole := memstore.New()
		for _, m := range muts[:applied+1] {
			_, err := whole.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		if fmt.Sprint(got) != fmt.Sprint(contents(t, model)) {
			model = whole
		}
	}
	require.Equal(t, contents(t, model), got, "after a crash at call %d (done: %v)", n, done)
	require.Equal(t, notified(t, model), notified(t, after))

	wanted := pointedTo(t, after, two)
	lost := beside(after, two) - wanted
	require.GreaterOrEqual(t, lost, 0)
	res, err := after.Sweep(ctx)
	require.NoError(t, err)
	require.Equal(t, SweepResult{Keys: wanted + lost, Removed: lost}, res)
	require.Equal(t, wanted, beside(after, two))
	require.Equal(t, got, contents(t, after), "a sweep changes nothing that can be seen")
	return finished, garbage + lost
}

// notified lists the rows that have a notification, in their order. By slots they are the same.
func notified(t *testing.T, s rowstore.Store) (rows []string) {
	t.Helper()
	for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
		require.NoError(t, err)
		rows = append(rows, r.Row)
	}
	if s, ok := s.(*Store); ok {
		require.ElementsMatch(t, rows, scanned(t, s, allSlots()))
	}
	return rows
}
