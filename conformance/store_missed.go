package conformance

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// noReaderMissesADrawnWrite is the promise that the one-phase commit stands on: a
// reader that got its timestamp, by any call, and then read sees every write that was drawn
// below it. The history that is left at the end says what it had to see.
func noReaderMissesADrawnWrite(t testing.TB, e *env) {
	h := e.grouped(t, 3, true)
	o := ability[rowstore.OracleProvider](t, h.s, "OracleProvider").Oracle()
	rounds := e.n(200, 60)
	const writers = 3
	readers := sightsOf(h.harness, o)
	sights := make([][]sight, len(readers))
	var g errgroup.Group
	for range writers {
		g.Go(func() error {
			for i := range rounds {
				var muts []rowstore.Mutation
				for _, r := range h.rows {
					muts = append(muts, mut(r, nil, drawn(rowstore.Write, "c", fmt.Sprint(i))))
				}
				out, err := h.g.Group(h.ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: muts}})
				if err != nil {
					return fmt.Errorf("group: %w", err)
				}
				if out[0].Err != nil || !out[0].Applied {
					return fmt.Errorf("group: %+v", out[0])
				}
			}
			return nil
		})
	}
	for w, look := range readers {
		g.Go(func() error {
			for i := range rounds {
				rows := h.rows // all of them, or one
				if i%2 == 1 {
					rows = rows[i/2%len(rows):][:1]
				}
				seen, err := look(rows)
				if err != nil {
					return err
				}
				sights[w] = append(sights[w], seen...)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	checkDrawnWrites(t, h, slices.Concat(sights...), writers*rounds)
}

// checkDrawnWrites holds what readers saw to the history of each row, which has so many writes.
func checkDrawnWrites(t testing.TB, h *grouped, sights []sight, writes int) {
	t.Helper()
	checked := 0
	for _, r := range h.rows {
		history := h.all(r)
		require.Len(t, history, writes)
		for _, v := range sights {
			if v.row != r {
				continue
			}
			var want rowstore.Timestamp
			for _, w := range history {
				if w.TS <= v.at {
					want = w.TS
					break
				}
			}
			require.Equal(t, want, v.write, "a reader at %d of row %q, by %s", v.at, r, v.by)
			checked++
		}
	}
	require.Positive(t, checked)
}

// sight is what a reader at a timestamp saw of column "c" of a row: the newest lock and the newest write up to the
// timestamp, or 0.
type sight struct {
	by, row         string
	at, lock, write rowstore.Timestamp
}

func sightOf(by string, at rowstore.Timestamp, r *rowstore.Row) sight {
	s := sight{by: by, row: r.Row, at: at}
	if v := r.Newest(rowstore.Lock, "c"); v != nil {
		s.lock = v.TS
	}
	if v := r.Newest(rowstore.Write, "c"); v != nil {
		s.write = v.TS
	}
	return s
}

// sightsOf returns a function for each way in which a transaction gets its timestamp and reads at it, as far as the store
// has them. Each looks at rows of table "t", which ascend, and must have no other row between them.
func sightsOf(h *harness, o oracle.Oracle) []func(rows []string) ([]sight, error) {
	drawAnd := func(look func(at rowstore.Timestamp, rows []string) ([]sight, error)) func([]string) ([]sight, error) {
		return func(rows []string) ([]sight, error) {
			at, err := o.Draw(h.ctx, 1)
			if err != nil {
				return nil, fmt.Errorf("drawing: %w", err)
			}
			return look(at, rows)
		}
	}
	read := drawAnd(func(at rowstore.Timestamp, rows []string) ([]sight, error) { return readSights(h, at, rows) })
	scan := drawAnd(func(at rowstore.Timestamp, rows []string) ([]sight, error) { return scanSights(h, at, nil, rows) })
	all := []func([]string) ([]sight, error){read, read, scan}
	if _, ok := rowstore.Unwrap[rowstore.SnapshotScanner](h.s); ok {
		all = append(all, func(rows []string) ([]sight, error) {
			return scanSights(h, rowstore.AssignedTimestamp, &rowstore.ScanSnapshot{}, rows)
		})
	}
	if d, ok := rowstore.Unwrap[rowstore.SnapshotReader](h.s); ok {
		all = append(all, func(rows []string) ([]sight, error) { return snapshotSights(h, d, rows) })
	}
	return all
}

func readsAt(at rowstore.Timestamp, rows []string) []rowstore.RowRead {
	reads := make([]rowstore.RowRead, len(rows))
	for i, r := range rows {
		reads[i] = rowstore.RowRead{Table: "t", Row: r, Selectors: snapshotAt("c", at)}
	}
	return reads
}

func readSights(h *harness, at rowstore.Timestamp, rows []string) ([]sight, error) {
	answers, err := h.s.Read(h.ctx, readsAt(at, rows))
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	return sightsIn("Read", at, answers)
}

func sightsIn(by string, at rowstore.Timestamp, answers []rowstore.Row) ([]sight, error) {
	sights := make([]sight, len(answers))
	for i := range answers {
		if err := answers[i].Err; err != nil {
			return nil, fmt.Errorf("%s: %w", by, err)
		}
		sights[i] = sightOf(by, at, &answers[i])
	}
	return sights, nil
}

// snapshotSights has one call get two timestamps, each with a read of all rows.
func snapshotSights(h *harness, d rowstore.SnapshotReader, rows []string) ([]sight, error) {
	ask := rowstore.SnapshotRead{Reads: readsAt(rowstore.AssignedTimestamp, rows)}
	answers, err := d.ReadSnapshot(h.ctx, []rowstore.SnapshotRead{ask, ask})
	if err != nil {
		return nil, fmt.Errorf("reading at a snapshot: %w", err)
	}
	var sights []sight
	for _, a := range answers {
		if a.Err != nil {
			return nil, fmt.Errorf("reading at a snapshot: %w", a.Err)
		}
		seen, err := sightsIn("ReadSnapshot", a.TS, a.Rows)
		if err != nil {
			return nil, err
		}
		sights = append(sights, seen...)
	}
	return sights, nil
}

// scanSights scans at a timestamp, or at that of a snapshot.
func scanSights(h *harness, at rowstore.Timestamp, s *rowstore.ScanSnapshot, rows []string) ([]sight, error) {
	scanned, err := collect(h.ctx, h.s, rowstore.ScanRange{
		Table: "t", From: rows[0], To: rows[len(rows)-1] + "\x00", Selectors: snapshotAt("c", at), Snapshot: s,
	})
	if err != nil {
		return nil, err
	}
	by := "Scan"
	if s != nil {
		by, at = "Scan at a snapshot", s.Start
	}
	sights := make([]sight, len(rows))
	for i, r := range rows {
		sights[i] = sight{by: by, row: r, at: at}
		if j := slices.IndexFunc(scanned, func(s rowstore.Row) bool { return s.Row == r }); j >= 0 {
			sights[i] = sightOf(by, at, &scanned[j])
		}
	}
	return sights, nil
}

// noReaderMissesALock is the promise that the commit in two phases stands on: a reader whose timestamp is above the commit
// timestamp sees the locks. The commit timestamp is drawn after they are there, by the Apply that writes them if the
// store does that (ApplyOptions.AssignTimestamp), else by the writer.
func noReaderMissesALock(t testing.TB, e *env) {
	h, o := e.oracle(t)
	const writers, width = 2, 3
	rounds := e.n(12, 6) // few, since readers are there in each, and crowd out the writer of a store in memory
	var byTheStore atomic.Int64
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			for i := range rounds {
				rows := make([]string, width)
				for j := range rows {
					rows[j] = fmt.Sprintf("%d-%05d-%d", w, i, j)
				}
				drew, err := lockUnderReaders(h, o, rows, i%2 == 1)
				if err != nil {
					return err
				}
				if drew {
					byTheStore.Add(1)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("%d of %d commit timestamps came with the locks", byTheStore.Load(), writers*rounds)
}

// lockUnderReaders locks rows while readers of every kind look at them, from before the call until after it.
func lockUnderReaders(h *harness, o oracle.Oracle, rows []string, deferred bool) (drew bool, err error) {
	start, err := o.Draw(h.ctx, 1)
	if err != nil {
		return false, err
	}
	readers := sightsOf(h, o)
	sights := make([][]sight, len(readers))
	var looking sync.WaitGroup
	looking.Add(len(readers))
	var done atomic.Bool
	var g errgroup.Group
	for w, look := range readers {
		g.Go(func() error {
			looking.Done()
			for last := false; !last; {
				last = done.Load() // then this look begins after all of it
				seen, err := look(rows)
				if err != nil {
					return err
				}
				sights[w] = append(sights[w], seen...)
			}
			return nil
		})
	}
	looking.Wait()
	commit, drew, err := lockAndDraw(h, o, rows, start, deferred)
	done.Store(true)
	if err := errors.Join(err, g.Wait()); err != nil {
		return false, err
	}
	for _, seen := range sights {
		above := 0
		for _, s := range seen {
			if s.at <= commit {
				continue
			}
			if above++; s.lock != start {
				return false, fmt.Errorf("row %q was locked at %d, with the commit timestamp %d (drawn by the store: %v), and a reader at %d, by %s, missed the lock", s.row, start, commit, drew, s.at, s.by)
			}
		}
		if above == 0 {
			return false, fmt.Errorf("a draw after the commit timestamp %d gave no greater one", commit)
		}
	}
	return drew, nil
}

// lockAndDraw makes the prewrites of a transaction. It returns its commit timestamp: the least one that came with the
// locks, or if none came, one of its own.
func lockAndDraw(h *harness, o oracle.Oracle, rows []string, start rowstore.Timestamp, deferred bool) (commit rowstore.Timestamp, drew bool, err error) {
	muts := make([]rowstore.Mutation, len(rows))
	for i, r := range rows {
		muts[i] = mut(r, when(rowstore.Absent(rowstore.Write, "c", start), rowstore.Absent(rowstore.Lock, "c", 0)), rowstore.Put(rowstore.Lock, "c", start, []byte(r)))
	}
	outs, err := h.s.Apply(h.ctx, muts, rowstore.ApplyOptions{AssignTimestamp: true, Deferred: deferred})
	if err != nil {
		return 0, false, err
	}
	for i := range outs {
		if outs[i].Err != nil || !outs[i].Applied {
			return 0, false, fmt.Errorf("locking row %q: %+v", rows[i], outs[i])
		}
		if ts := outs[i].Timestamp; i == 0 || ts < commit {
			commit = ts
		}
	}
	if commit != 0 {
		return commit, true, nil
	}
	commit, err = o.Draw(h.ctx, 1)
	return commit, false, err
}
