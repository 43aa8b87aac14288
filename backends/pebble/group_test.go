package pebble

import (
	"context"
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

// drawnHistory is what writers and readers of a few rows saw of each row.
type drawnHistory struct {
	s       *Store
	mu      sync.Mutex
	commits [drawnRows][]rowstore.Timestamp
	reads   [drawnRows][]drawnRead
	count   atomic.Int64
}

const drawnRows = 3

// drawnRead is the newest commit that a reader at a timestamp saw, 0 for none.
type drawnRead struct{ at, version rowstore.Timestamp }

func missNothing(t *testing.T, s *Store) {
	t.Helper()
	const writers, readers = 4, 4
	h := &drawnHistory{s: s}
	var stop atomic.Bool
	errs := make(chan error, writers+readers)
	var wg sync.WaitGroup
	run := func(n int, f func(ctx context.Context, rng *rand.Rand) error) {
		for range n {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
				for !stop.Load() {
					if err := f(t.Context(), rng); err != nil {
						errs <- err
						return
					}
				}
			})
		}
	}
	run(writers, h.write)
	run(readers, h.read)
	const goal = 2000
	require.Eventually(t, func() bool { return h.count.Load() > goal || len(errs) > 0 }, waitFor, tick)
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-errs:
		require.NoError(t, err)
	default:
	}
	h.judge(t)
}

func drawnRow(i int) string { return "row" + strconv.Itoa(i) }

// write commits to two rows at a timestamp that the store assigns.
func (h *drawnHistory) write(ctx context.Context, rng *rand.Rand) error {
	a := rng.IntN(drawnRows)
	b := (a + 1) % drawnRows
	out, err := h.s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(drawnRow(a), 0, nil), put(drawnRow(b), 0, nil)}}})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commits[a] = append(h.commits[a], out[0].Commit)
	h.commits[b] = append(h.commits[b], out[0].Commit)
	h.count.Add(1)
	return nil
}

// read draws a timestamp, and reads or scans every row at it.
func (h *drawnHistory) read(ctx context.Context, rng *rand.Rand) error {
	at, err := h.s.Oracle().Draw(ctx, 1)
	if err != nil {
		return err
	}
	picks := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}
	var got []rowstore.Row
	if rng.IntN(2) == 0 {
		for r, err := range h.s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: picks, Reverse: rng.IntN(2) == 0}) {
			if err != nil {
				return err
			}
			got = append(got, r)
		}
	} else {
		var reads []rowstore.RowRead
		for i := range drawnRows {
			reads = append(reads, rowstore.RowRead{Table: "t", Row: drawnRow(i), Selectors: picks})
		}
		if got, err = h.s.Read(ctx, reads); err != nil {
			return err
		}
	}
	var found [drawnRows]rowstore.Timestamp
	for _, r := range got {
		if len(r.Versions) > 0 {
			found[r.Row[3]-'0'] = r.Versions[0].TS
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range found {
		h.reads[i] = append(h.reads[i], drawnRead{at, found[i]})
	}
	h.count.Add(1)
	return nil
}

// judge holds each read to the newest commit at or below its timestamp.
func (h *drawnHistory) judge(t *testing.T) {
	t.Helper()
	for i, commits := range h.commits {
		slices.Sort(commits)
		require.Equal(t, len(commits), len(slices.Compact(slices.Clone(commits))))
		require.NotEmpty(t, h.reads[i])
		for _, r := range h.reads[i] {
			n, exact := slices.BinarySearch(commits, r.at)
			require.False(t, exact, "a timestamp was drawn twice")
			want := rowstore.Timestamp(0)
			if n > 0 {
				want = commits[n-1]
			}
			require.Equal(t, want, r.version, "row %d at %d", i, r.at)
		}
	}
}
