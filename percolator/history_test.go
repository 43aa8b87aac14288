package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// histories reads a history as "value@index of the commit", the newest first.
func histories(t testing.TB, c *client, cell Cell, from, to Timestamp) (all []CellVersion, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for v, err := range c.History(ctx, cell, from, to) {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// versionsOf makes a history of a cell with a long value, an empty one and a delete in it.
func versionsOf(t testing.TB, c *client, cell Cell, n int) (want []CellVersion) {
	t.Helper()
	for i := range n {
		v := CellVersion{Value: fmt.Append(nil, "v", i)}
		switch i % 5 {
		case 1:
			v.Value = []byte(longText + fmt.Sprint(i))
		case 2:
			v.Value = []byte{}
		case 3:
			v = CellVersion{Deleted: true}
		}
		at, err := c.UpdateAt(t.Context(), func(tx *Txn) error {
			if v.Deleted {
				return tx.Delete(cell)
			}
			return tx.Set(cell, v.Value)
		})
		require.NoError(t, err)
		v.Commit = at
		want = append(want, v)
	}
	slices.Reverse(want)
	return want
}

func TestHistory(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		cell := Cell{"\x00odd", "a", "\x00v"}
		want := versionsOf(t, c, cell, 2*historyPage+3)
		set(t, c.DB, rowA, "another cell")
		got, err := histories(t, c, cell, 0, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for range 20 {
			i := int(c.rand.int64N(int64(len(want))))
			j := i + int(c.rand.int64N(int64(len(want)-i)))
			got, err := histories(t, w.client(), cell, want[j].Commit, want[i].Commit)
			require.NoError(t, err)
			require.Equal(t, want[i:j+1], got)
			// Both ends are included, and nothing else.
			if i == j {
				continue
			}
			got, err = histories(t, c, cell, want[j].Commit+1, want[i].Commit)
			require.NoError(t, err)
			require.Equal(t, want[i:j], got)
		}
		none, err := histories(t, c, rowB, 0, 0)
		require.NoError(t, err)
		require.Empty(t, none)
		for v, err := range c.History(t.Context(), cell, 0, 0) {
			require.NoError(t, err)
			v.Value[0] = 'X' // the caller's own
			break
		}
		again, err := histories(t, c, cell, 0, 0)
		require.NoError(t, err)
		require.Equal(t, want, again)
	})
}

func TestHistoryRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	at, err := c.UpdateAt(t.Context(), func(tx *Txn) error { return tx.Set(rowA, nil) })
	require.NoError(t, err)
	for name, bad := range map[string]struct {
		cell     Cell
		from, to Timestamp
		err      error
	}{
		"no table":          {Cell{"", "a", "v"}, 0, 0, ErrInvalid},
		"no row":            {Cell{"t", "", "v"}, 0, 0, ErrInvalid},
		"no column":         {Cell{"t", "a", ""}, 0, 0, ErrInvalid},
		"too long a name":   {Cell{"t", strings.Repeat("r", 4000), "v"}, 0, 0, ErrTooLarge},
		"from above to":     {rowA, at + 1, at, ErrInvalid},
		"to in the future":  {rowA, 0, at.Add(time.Hour), ErrSnapshotInFuture},
		"all of the future": {rowA, 0, oracle.Max, ErrSnapshotInFuture},
		"from the future":   {rowA, at.Add(time.Hour), 0, ErrSnapshotInFuture},
	} {
		got, err := histories(t, c, bad.cell, bad.from, bad.to)
		require.ErrorIs(t, err, bad.err, name)
		require.Empty(t, got, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range c.History(ctx, rowA, 0, 0) {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, c.Close(t.Context()))
	for _, err := range c.History(t.Context(), rowA, 0, 0) {
		require.ErrorIs(t, err, ErrClosed)
	}
}

// A history whose beginning was collected says so, and one of all that is kept ends with
// the version at the safe point.
func TestHistoryBelowTheSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, other := w.client(opts...), w.client(opts...)
		old := versionsOf(t, c, rowA, 8)
		deleted := versionsOf(t, c, rowB, 4)
		w.clock.advance(2 * worldRetention)
		young := versionsOf(t, c, rowA, 3)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Positive(t, report.Versions)
		got, err := histories(t, other, rowA, 0, 0)
		require.NoError(t, err)
		require.Equal(t, append(slices.Clone(young), old[0]), got)
		got, err = histories(t, other, rowA, young[2].Commit, 0)
		require.NoError(t, err)
		require.Equal(t, young, got)
		got, err = histories(t, other, rowA, report.SafePoint+1, 0)
		require.NoError(t, err)
		require.Equal(t, young, got)
		for _, from := range []Timestamp{1, old[0].Commit, report.SafePoint} {
			_, err = histories(t, other, rowA, from, 0)
			require.ErrorIs(t, err, ErrSnapshotTooOld)
		}
		// The delete is gone, and so is what it deleted.
		got, err = histories(t, other, rowB, 0, 0)
		require.NoError(t, err)
		require.Empty(t, got)
		_, err = histories(t, other, rowB, deleted[0].Commit, 0)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		// Nor can it be told from a cell that had nothing, if only that time is asked for.
		for _, cell := range []Cell{rowA, rowB} {
			got, err = histories(t, other, cell, 0, old[1].Commit)
			require.ErrorIs(t, err, ErrSnapshotTooOld)
			require.Empty(t, got)
		}
		got, err = histories(t, other, rowA, 0, report.SafePoint-1)
		require.NoError(t, err)
		require.Equal(t, old[:1], got, "what is found is right")
	})
}

// A collection between two pages of a history: what is handed out has no gap above the
// safe point, and ends with the version there.
func TestCollectionWithinAHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, reader := w.client(), w.client()
	want := versionsOf(t, c, rowA, historyPage+20)
	w.clock.advance(2 * worldRetention)
	young := versionsOf(t, c, rowA, 1)
	all := append(young, want...)
	var got []CellVersion
	for v, err := range reader.History(t.Context(), rowA, 0, 0) {
		require.NoError(t, err)
		if got = append(got, v); len(got) == 3 {
			report, err := w.collect(c, 0)
			require.NoError(t, err)
			require.Greater(t, report.Versions, len(want)-2)
		}
	}
	require.GreaterOrEqual(t, len(got), 3)
	require.Less(t, len(got), historyPage)
	require.Equal(t, all[:len(got)], got)
	// One that was asked for further back says that it lacks something.
	w.clock.advance(2 * worldRetention)
	young = versionsOf(t, c, rowA, historyPage+1)
	from := young[len(young)-1].Commit
	n := 0
	var end error
	for v, err := range reader.History(t.Context(), rowA, from, 0) {
		if end = err; err != nil {
			break
		}
		require.Equal(t, young[n], v)
		if n++; n == 3 {
			w.clock.advance(2 * worldRetention)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
		}
	}
	require.ErrorIs(t, end, ErrSnapshotTooOld)
}

// A lock at or below to belongs to the history as soon as its transaction is decided: that of a
// process that died is resolved, and that of a living one is waited for.
func TestHistoryMeetsLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(withoutGroups()), w.client()
	set(t, c.DB, rowB, "0")
	// Committed, but not here yet.
	t1.hold(t, secondaries(rowA))
	tx := writes(t, t1, "1", rowA, rowB)
	require.NoError(t, tx.Commit(t.Context()))
	got, err := histories(t, c, rowB, 0, 0)
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, CellVersion{Commit: tx.CommitTimestamp(), Value: []byte("1")}, got[0])

	// Locked by one that will commit.
	t2 := w.client(withoutGroups())
	p := t2.hold(t, commitPoint(rowA))
	later := writes(t, t2, "2", rowA, rowB)
	committing := commit(t2, later)
	p.wait()
	reading := async(func() (err error) {
		got, err = histories(t, c, rowB, 0, 0)
		return err
	})
	require.Eventually(t, func() bool { return c.Stats().LocksMet > 1 }, patience, time.Millisecond)
	p.release(pass)
	require.NoError(t, w.finish(committing))
	require.NoError(t, w.finish(reading))
	require.NotEmpty(t, got)
	if got[0].Commit != later.CommitTimestamp() {
		require.Less(t, got[0].Commit, later.CommitTimestamp(), "it committed above the present of the history")
	}

	// Locked by one that died before its commit point.
	t3 := w.client(withoutGroups())
	t3.wire.verdict(prewrites, dieAfter)
	require.Error(t, writes(t, t3, "3", rowB).Commit(t.Context()))
	w.clock.advance(worldExpiry + worldSession)
	got, err = histories(t, c, rowB, 0, 0)
	require.NoError(t, err)
	require.Equal(t, "2", string(got[0].Value))
	left := w.raw(rowB)
	require.Empty(t, left.All(rowstore.Lock, "v"))
}

// UpdateAt returns a timestamp at which what the function did can be read.
func TestUpdateAt(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c := w.client(opts...)
		at, err := c.UpdateAt(ctx, func(tx *Txn) error { return tx.Set(rowA, []byte("1")) })
		require.NoError(t, err)
		set(t, c.DB, rowA, "2")
		v, err := begin(t, c, WithAsOfTimestamp(at)).Get(ctx, rowA)
		require.NoError(t, err)
		require.Equal(t, "1", string(v))
		_, err = begin(t, c, WithAsOfTimestamp(at-1)).Get(ctx, rowA)
		require.ErrorIs(t, err, ErrNotFound)
		// One that only reads, or does nothing.
		now, err := c.Now(ctx)
		require.NoError(t, err)
		var start Timestamp
		at, err = c.UpdateAt(ctx, func(tx *Txn) error {
			_, err := tx.GetForUpdate(ctx, rowA)
			start = startOf(tx)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, start, at)
		require.Greater(t, at, now)
		nothing, err := c.UpdateAt(ctx, func(*Txn) error { return nil })
		require.NoError(t, err)
		require.Greater(t, nothing, at)
		// Errors.
		at, err = c.UpdateAt(ctx, func(*Txn) error { return errTest })
		require.ErrorIs(t, err, errTest)
		require.Zero(t, at)
		_, err = c.UpdateAt(ctx, nil)
		require.ErrorIs(t, err, ErrInvalid)
		// It is that of the attempt that was committed.
		tries := 0
		at, err = c.UpdateAt(ctx, func(tx *Txn) error {
			if tries++; tries == 1 {
				return fmt.Errorf("%w: once", ErrConflict)
			}
			start = startOf(tx)
			return tx.Set(rowB, nil)
		})
		require.NoError(t, err)
		require.Greater(t, at, start)
	})
}

// A scan tells on request when each value was committed.
func TestScanTimestamps(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c := w.client(opts...)
		odd := Cell{"t", "a", "\x00odd"}
		first, err := c.UpdateAt(ctx, func(tx *Txn) error { return errors.Join(tx.Set(rowA, []byte("1")), tx.Set(odd, []byte(longText))) })
		require.NoError(t, err)
		second, err := c.UpdateAt(ctx, func(tx *Txn) error { return errors.Join(tx.Set(rowA, []byte("2")), tx.Set(rowB, nil)) })
		require.NoError(t, err)
		tx := begin(t, c)
		require.NoError(t, tx.Set(rowB, []byte("own")))
		require.NoError(t, tx.Set(rowC, []byte("own")))
		for _, reverse := range []bool{false, true} {
			var got []map[string]Timestamp
			for row, err := range tx.Scan(ctx, Range{Table: "t", Timestamps: true, Reverse: reverse}) {
				require.NoError(t, err)
				got = append(got, row.Timestamps)
			}
			want := []map[string]Timestamp{{"v": second, odd.Column: first}, {}, {}}
			if reverse {
				slices.Reverse(want)
			}
			require.Equal(t, want, got)
		}
		for row, err := range tx.Scan(ctx, Range{Table: "t"}) {
			require.NoError(t, err)
			require.Nil(t, row.Timestamps)
		}
	})
}

// The history up to a time below the safe point, of which a collection removes the long values between the look at the versions and the call for their
// values: what the cell had then is gone, and nothing is damaged. So is a history of several pages.
func TestCollectionOfTheLongValuesOfAHistory(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, historyPage + 3} {
		w := newWorld(t)
		c, reader := w.client(), w.client()
		var at Timestamp
		for range n {
			at = updateAt(t, c, longText, rowA)
		}
		set(t, c.DB, rowA, "newer")
		w.clock.advance(2 * worldRetention)
		set(t, c.DB, rowA, "newest")
		p := reader.hold(t, func(x *call) bool {
			return x.Kind == faultstore.CallRead && len(x.Reads) > 0 && x.Reads[0].Selectors[0].Family == rowstore.Data
		})
		var got []CellVersion
		done := async(func() (err error) {
			got, err = histories(t, reader, rowA, 0, at)
			return err
		})
		p.wait()
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		p.release(pass)
		err = w.finish(done)
		var old *SnapshotTooOldError
		require.ErrorAs(t, err, &old, "of %d versions", n)
		require.Equal(t, at, old.Snapshot)
		require.Equal(t, report.SafePoint, old.SafePoint)
		require.Empty(t, got)
	}
}
