package percolator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Schedules in which a range is erased ("Erased ranges" in docs/architecture.md).

// annRange are the rows of ann, in table t.
var annRange = Range{Table: "t", From: "ann/", To: "ann0"}

var ann1, ann2, bob = row("ann/1"), row("ann/2"), row("bob")

// erase erases the rows of ann, and lets time pass. step is called again and again meanwhile.
func (w *world) erase(c *client, step func()) (Receipt, error) {
	w.t.Helper()
	var receipt Receipt
	done := async(func() (err error) {
		receipt, err = c.Erase(context.Background(), annRange)
		return err
	})
	err := w.passesWith(done, step)
	return receipt, err
}

// sees has a worker look at cells. A look beside an erasure may fail, and is made again.
func sees(w *Worker, cells ...Cell) {
	for _, cell := range cells {
		_, _, _ = w.runCell(context.Background(), cell.stored())
	}
}

// traces are the places in the store that hold one of some words, but for the bounds of erased ranges.
func (w *world) traces(words ...string) (found []string) {
	w.t.Helper()
	for table, err := range w.mem.Tables(w.t.Context()) {
		require.NoError(w.t, err)
		for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: table, Selectors: erasedPicks}) {
			require.NoError(w.t, err)
			for i := range row.Versions {
				v := &row.Versions[i]
				for _, word := range words {
					if v.Column != format.ColumnErased && strings.Contains(row.Row+"|"+v.Column+"|"+string(v.Value), word) {
						found = append(found, fmt.Sprintf("%q %q %v %q %v: %q", table, row.Row, v.Family, v.Column, v.TS, word))
					}
				}
			}
		}
	}
	return found
}

// lived writes the history of ann and of bob: short and long values, failures, a parked run, timers and claims. It returns an
// old snapshot.
func (w *world) lived(c *client, o *told) (old Timestamp) {
	t := w.t
	for i := range 3 {
		for _, cell := range []Cell{ann1, ann2, bob} {
			set(t, c.DB, cell, fmt.Sprint("secret ", i, strings.Repeat("x", 300*(i%2))))
		}
		if i == 1 {
			o.fail = errTest // parked after two
			look(t, o.w, ann1)
			w.pass(time.Minute)
			look(t, o.w, ann1)
			w.pass(time.Minute)
			look(t, o.w, ann1)
			o.fail = nil
		}
		for _, cell := range []Cell{ann1, ann2, bob} {
			look(t, o.w, cell)
		}
	}
	w.timer(c, ann2, time.Hour)
	w.timer(c, bob, time.Hour)
	require.NoError(t, o.w.claim(t.Context(), []*task{{job: job{ann1, o.w.list[0].o}, q: o.w.list[0], claimed: w.clock.Now()}}))
	require.NoError(t, c.storeHints(t.Context()))
	old, err := c.Now(t.Context())
	require.NoError(t, err)
	return old
}

func (w *world) erasing() {
	w.timers()
	w.rowDeletes()
}

// Nothing is left of what was erased, and everything of what was not. Readers and writers by older snapshots are refused in the
// range alone.
func TestScheduleE_NothingIsLeft(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		c, reader := w.client(opts...), w.client()
		o := newTold(t, c, "o", "t")
		v, err := c.changeCatalog(t.Context(), func(v *catalogView) (bool, error) { v.Observers[0].Swept = 1; return true, nil })
		require.NoError(t, err)
		require.NotEmpty(t, v.Observers)
		old := w.lived(c, o)
		require.NotEmpty(t, w.traces("ann/"))
		open := begin(t, reader)
		_, err = open.Get(t.Context(), ann1)
		require.NoError(t, err)
		receipt, err := w.erase(c, func() { sees(o.w, ann1, ann2) })
		require.NoError(t, err)
		require.Empty(t, w.traces("ann/"))
		require.EqualValues(t, 2, receipt.Rows)
		require.EqualValues(t, 2, receipt.Cells)
		require.EqualValues(t, 1, receipt.Timers)
		require.EqualValues(t, 1, receipt.Parked)
		require.Zero(t, receipt.Kept)
		require.NotZero(t, receipt.Versions)
		require.NotEmpty(t, receipt.Elsewhere)
		deletions := 0
		for _, ch := range o.changes {
			if ch.OldFound && !ch.NewFound {
				deletions++
			}
		}
		require.Equal(t, 2, deletions, "the observer has seen them")

		for _, db := range []*client{c, reader} {
			for _, tx := range []*Txn{begin(t, db, WithAsOfTimestamp(old)), open} {
				_, err = tx.Get(t.Context(), ann1)
				require.ErrorIs(t, err, ErrSnapshotTooOld)
				_, err = tx.GetMany(t.Context(), bob, ann2)
				require.ErrorIs(t, err, ErrSnapshotTooOld)
				v, err := tx.Get(t.Context(), bob)
				require.NoError(t, err)
				require.Contains(t, string(v), "secret 2")
				for row, err := range tx.Scan(t.Context(), Range{Table: "t", From: "b"}) {
					require.NoError(t, err)
					require.Equal(t, "bob", row.Key)
				}
				var failed error
				for _, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
					failed = err
				}
				require.ErrorIs(t, failed, ErrSnapshotTooOld)
			}
		}
		require.True(t, w.hasTimer(bob))
		// What comes later is a new life.
		set(t, c.DB, ann1, "new")
		runs(t, o.w, ann1)
		require.True(t, o.changes[len(o.changes)-1].First)
		require.Equal(t, "new", value(t, reader, ann1))
		// It is erased again, with the same bounds.
		receipt, err = w.erase(c, func() { sees(o.w, ann1) })
		require.NoError(t, err)
		require.EqualValues(t, 1, receipt.Rows)
		require.Empty(t, w.traces("ann/"))
		require.Len(t, c.known().erased, 1)
	})
}

// A writer began before, and its requests leave when everything is over: it does not commit.
func TestScheduleE_LateWriter(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		c, late := w.client(), w.client(opts...)
		set(t, c.DB, ann1, "secret")
		sends := func(x *call) bool {
			return prewrites(x) || x.Kind.String() == "group" || strings.Contains(x.Kind.String(), "Group")
		}
		for _, cells := range [][]Cell{{ann1}, {ann2}, {bob, ann1}} {
			p := late.hold(t, sends)
			done := commit(late, writes(t, late, "late", cells...))
			p.wait()
			_, err := w.erase(c, nil)
			require.NoError(t, err)
			p.release(pass)
			if err := w.finish(done); !errors.Is(err, ErrUndetermined) { // as what it has written may have been erased
				require.ErrorIs(t, err, ErrTxnTooOld)
			} else {
				require.ErrorIs(t, err, ErrSnapshotTooOld)
			}
			require.NoError(t, late.drained(t.Context()))
			require.Equal(t, "none", value(t, c, ann1))
			require.Equal(t, "none", value(t, c, bob))
		}
	})
}

// A Serializable transaction has read what is erased, and commits elsewhere: the deletion that it would conflict with is gone.
func TestScheduleE_Validation(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		c, other := w.client(), w.client(opts...)
		set(t, c.DB, ann1, "secret")
		reads := begin(t, other, WithIsolation(Serializable))
		_, err := reads.Get(t.Context(), ann1)
		require.NoError(t, err)
		scans := begin(t, other, WithIsolation(Serializable))
		for _, err := range scans.Scan(t.Context(), Range{Table: "t", From: "ann"}) {
			require.NoError(t, err)
		}
		plain := begin(t, other)
		_, err = plain.Get(t.Context(), ann1)
		require.NoError(t, err)
		_, err = w.erase(c, nil)
		require.NoError(t, err)
		for _, tx := range []*Txn{reads, scans} {
			require.NoError(t, tx.Set(bob, []byte("x")))
			require.ErrorIs(t, tx.Commit(t.Context()), ErrTxnTooOld)
		}
		require.NoError(t, plain.Set(bob, []byte("x")))
		require.NoError(t, plain.Commit(t.Context()), "snapshot isolation allows it")
	})
}

// The record of a commit lies in the range, and another row's lock depends on it, whose client has died.
func TestScheduleE_LocksElsewhere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"session gone", "session lives"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			c := w.client()
			_, err := w.erase(c, nil) // the first one of all resolves every lock
			require.NoError(t, err)
			dead := w.client(withoutGroups())
			dead.wire.verdict(secondaries(ann1), die)
			require.NoError(t, writes(t, dead, "1", ann1, bob).Commit(t.Context()))
			if name == "session gone" {
				w.pass(worldSession + time.Second)
			}
			require.Len(t, w.versions(rowstore.Lock), 1)
			_, err = w.erase(c, nil)
			require.NoError(t, err)
			require.Empty(t, w.versions(rowstore.Lock))
			require.Equal(t, "1", value(t, c, bob))
			require.Empty(t, w.traces("ann/"))
		})
	}
}

// The process dies at each of its calls. Another one calls again, and nothing is left then.
func TestScheduleE_DeathAtEachStep(t *testing.T) {
	t.Parallel()
	const stride = 11 // about twenty of the calls; which ones differs from run to run
	deaths := 0
	for n := rand.IntN(stride); ; n += stride {
		t.Log("death at call", n)
		w := newWorld(t)
		w.erasing()
		c := w.client()
		o := newTold(t, c, "o", "t")
		_, err := c.changeCatalog(t.Context(), func(v *catalogView) (bool, error) { v.Observers[0].Swept = 1; return true, nil })
		require.NoError(t, err)
		w.lived(c, o)
		dying := w.client()
		i := -1
		dying.wire.verdict(func(*call) bool { i++; return i == n }, []verdict{die, dieAfter}[deaths%2])
		step := func() { sees(o.w, ann1, ann2) }
		if _, err := w.erase(dying, step); err == nil {
			break
		}
		deaths++
		_, err = w.erase(c, step)
		require.NoError(t, err, "death %d", n)
		require.Empty(t, w.traces("ann/"), "death %d", n)
		require.Contains(t, value(t, c, bob), "secret 2")
	}
	require.Greater(t, deaths, 5)
}

// Who is waited for, and what ends the wait.
func TestScheduleE_Observers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	w.observed("t", "v", "o", "nobody runs it")
	cause, calls, waits := error(nil), 0, 0
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error {
		calls++
		return cause
	}})
	set(t, c.DB, ann1, "secret")
	look(t, worker, ann1)
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { _, err := c.Erase(ctx, annRange); return err })
	require.Eventually(t, func() bool {
		w.clock.advance(time.Second)
		sees(worker, ann1)
		if calls == 2 {
			waits++ // for the other one
		}
		return waits > 100
	}, patience, time.Millisecond)
	cancel()
	err := w.finish(done)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, `"nobody runs it"`)
	require.NotContains(t, err.Error(), `"o"`)

	require.NoError(t, c.PauseObserver(t.Context(), "nobody runs it"))
	_, err = w.erase(c, nil)
	require.ErrorIs(t, err, ErrObserverPaused)
	require.NoError(t, c.RemoveObserver(t.Context(), "nobody runs it"))
	set(t, c.DB, ann1, "secret")
	cause = errTest
	_, err = w.erase(c, func() { sees(worker, ann1) })
	var parked *ParkedError
	require.ErrorAs(t, err, &parked)
	require.Equal(t, "o", parked.Run.Observer)
	require.Equal(t, ann1, parked.Run.Cell)
	_, err = w.erase(c, func() { sees(worker, ann1) })
	require.ErrorIs(t, err, ErrParked, "still")
	require.NoError(t, c.DropParked(t.Context(), parked.Run))
	_, err = w.erase(c, func() { sees(worker, ann1) })
	require.NoError(t, err)
	require.Empty(t, w.traces("ann/"))
}

// What is written while the call is under way stays, and is counted.
func TestScheduleE_WrittenMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, other := w.client(), w.client()
	set(t, c.DB, ann1, "secret")
	set(t, c.DB, ann2, "secret")
	written := false
	receipt, err := w.erase(c, func() {
		if !written && len(other.known().erased) == 0 && c.known().erasedAt != 0 {
			set(t, other.DB, ann1, "meanwhile")
			written = true
		}
	})
	require.NoError(t, err)
	require.True(t, written)
	require.EqualValues(t, 1, receipt.Kept)
	require.Equal(t, "meanwhile", value(t, c, ann1))
	require.Empty(t, w.traces("secret", "ann/2"))
	receipt, err = w.erase(c, nil)
	require.NoError(t, err)
	require.Zero(t, receipt.Kept)
	require.Empty(t, w.traces("ann/"))
}

// What is written while the call waits for observers lies below the safe point of the range, and stays too.
func TestScheduleE_WrittenBeforeTheSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, other := w.client(), w.client()
	w.observed("t", "v", "o")
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	set(t, c.DB, ann1, "secret")
	set(t, c.DB, ann2, "secret")
	look(t, worker, ann1)
	look(t, worker, ann2)
	var written Timestamp
	receipt, err := w.erase(c, func() {
		if written == 0 {
			if valueBeside(t, other, ann2) != "none" {
				return
			}
			set(t, other.DB, ann1, "meanwhile")
			at, err := other.Now(t.Context())
			require.NoError(t, err)
			written = at
		}
		sees(worker, ann1, ann2)
	})
	require.NoError(t, err)
	require.NotZero(t, written)
	require.Less(t, written, receipt.SafePoint)
	require.EqualValues(t, 1, receipt.Kept)
	require.Equal(t, "meanwhile", value(t, c, ann1))
	require.Empty(t, w.traces("secret", "ann/2"))
}

// An erased range that holds no row, which a program of before may have stored, ends no read: neither of the rows about it nor of a range that
// holds no row itself. A range without rows has none in common with one that has some.
func TestScheduleE_RangesWithoutRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	for _, r := range []string{"b", "n", "x"} {
		set(t, c.DB, row(r), "v")
	}
	_, err := w.erase(c, nil) // the first one, so that everybody knows of erased ranges
	require.NoError(t, err)
	old := begin(t, c)
	_, err = old.Get(t.Context(), row("b"))
	require.NoError(t, err)
	safe, err := c.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.publishErased(t.Context(), []span{{table: "t", from: "m", to: "a"}, {table: "t", from: "n", to: "n"}, {table: "u", from: "b", to: "c"}}, safe))
	_, err = c.loadCatalog(t.Context())
	require.NoError(t, err)
	for _, r := range []Range{{Table: "t"}, {Table: "t", From: "a", To: "z"}, {Table: "t", Reverse: true}, {Table: "u", From: "m", To: "a"}} {
		n := 0
		for _, err := range old.Scan(t.Context(), r) {
			require.NoError(t, err, "%+v", r)
			n++
		}
		require.Equal(t, map[string]int{"t": 3}[r.Table], n, "%+v", r)
	}
	require.ErrorIs(t, scanError(old.Scan(t.Context(), Range{Table: "u"})), ErrSnapshotTooOld)
}

func TestEraseRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, r := range []Range{
		{},
		{Table: "t", Columns: []string{"v"}},
		{Table: "t", Limit: 1},
		{Table: "t", Reverse: true},
		{Table: "t", Timestamps: true},
		{Table: "t", From: "m", To: "a"},
		{Table: "t", From: "m", To: "m"},
	} {
		err := w.passes(async(func() error {
			_, err := c.Erase(t.Context(), r)
			return err
		}))
		require.ErrorIs(t, err, ErrInvalid, "%+v", r)
	}
	require.False(t, c.known().Erased)
	require.NoError(t, c.Close(t.Context()))
	_, err := c.Erase(t.Context(), annRange)
	require.ErrorIs(t, err, ErrClosed)
}
