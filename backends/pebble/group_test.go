package pebble

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestNoReaderMissesACommit draws timestamps for readers while one-phase commits
// draw theirs, and holds each read and scan to the newest commit at or below it.
func TestNoReaderMissesACommit(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", t.TempDir()} {
		t.Run("disk="+strconv.FormatBool(path != ""), func(t *testing.T) {
			t.Parallel()
			missNothing(t, mustOpen(t, Options{Path: path}))
		})
	}
}

func missNothing(t *testing.T, s *Store) {
	const rows, writers, readers = 3, 4, 4
	ctx := t.Context()
	type seen struct{ at, version rowstore.Timestamp }
	var mu sync.Mutex
	commits := make([][]rowstore.Timestamp, rows)
	reads := make([][]seen, rows)
	var stop atomic.Bool
	var count atomic.Int64
	errs := make(chan error, writers+readers)
	var wg sync.WaitGroup
	row := func(i int) string { return "row" + strconv.Itoa(i) }
	run := func(f func(rng *rand.Rand) error) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for !stop.Load() {
				if err := f(rng); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range writers {
		run(func(rng *rand.Rand) error {
			a := rng.IntN(rows)
			b := (a + 1) % rows
			out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(row(a), 0, nil), put(row(b), 0, nil)}}})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			commits[a] = append(commits[a], out[0].Commit)
			commits[b] = append(commits[b], out[0].Commit)
			count.Add(1)
			return nil
		})
	}
	for range readers {
		run(func(rng *rand.Rand) error {
			at, err := s.Oracle().Draw(ctx, 1)
			if err != nil {
				return err
			}
			picks := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}
			var got []rowstore.Row
			if rng.IntN(2) == 0 {
				for r, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: picks, Reverse: rng.IntN(2) == 0}) {
					if err != nil {
						return err
					}
					got = append(got, r)
				}
			} else {
				got, err = s.Read(ctx, []rowstore.RowRead{
					{Table: "t", Row: row(0), Selectors: picks}, {Table: "t", Row: row(1), Selectors: picks}, {Table: "t", Row: row(2), Selectors: picks},
				})
				if err != nil {
					return err
				}
			}
			var found [rows]rowstore.Timestamp
			for _, r := range got {
				if len(r.Versions) > 0 {
					found[r.Row[3]-'0'] = r.Versions[0].TS
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range found {
				reads[i] = append(reads[i], seen{at, found[i]})
			}
			count.Add(1)
			return nil
		})
	}
	const goal = 5000
	require.Eventually(t, func() bool { return count.Load() > goal || len(errs) > 0 }, waitFor, tick)
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-errs:
		require.NoError(t, err)
	default:
	}
	for i := range rows {
		slices.Sort(commits[i])
		require.Equal(t, len(commits[i]), len(slices.Compact(slices.Clone(commits[i]))))
		require.NotEmpty(t, reads[i])
		for _, r := range reads[i] {
			n, exact := slices.BinarySearch(commits[i], r.at)
			require.False(t, exact, "a timestamp was drawn twice")
			want := rowstore.Timestamp(0)
			if n > 0 {
				want = commits[i][n-1]
			}
			require.Equal(t, want, r.version, "row %d at %d", i, r.at)
		}
	}
}
