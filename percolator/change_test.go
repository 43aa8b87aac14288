package percolator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What an observer of old values is told, with values of both kinds.
func TestOldAndNewValues(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for i, size := range []int{1, 400} {
			v := func(s string) string { return strings.Repeat(s, size) }
			rowA, rowB := row(fmt.Sprint("a", i)), row(fmt.Sprint("b", i))
			c := w.client(opts...)
			o := newTold(t, c, fmt.Sprint("o", i), "t")
			last := func() Change { return o.changes[len(o.changes)-1] }
			is := func(old, now string) {
				t.Helper()
				require.True(t, o.run(rowA))
				require.Equal(t, old, shown(last().Old, last().OldFound))
				require.Equal(t, now, shown(last().New, last().NewFound))
				require.False(t, o.run(rowA), "it has seen that")
			}
			set(t, c.DB, rowA, v("a"))
			is("none", v("a"))
			require.True(t, last().First)
			require.Equal(t, 1, last().Attempt)
			row := w.raw(rowA)
			require.Equal(t, row.Newest(rowstore.Write, "v").TS, last().Commit)
			set(t, c.DB, rowA, v("b"))
			is(v("a"), v("b"))
			// Several changes come as one.
			for _, s := range []string{"c", "d", "e"} {
				set(t, c.DB, rowA, v(s))
			}
			is(v("b"), v("e"))
			set(t, c.DB, rowA, v("f"))
			set(t, c.DB, rowA, v("e"))
			is(v("e"), v("e"))
			remove(t, c.DB, rowA)
			is(v("e"), "none")
			require.False(t, last().First)
			remove(t, c.DB, rowA)
			is("none", "none")
			set(t, c.DB, rowA, "")
			is("none", "")
			require.NotNil(t, last().New)
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
			is("", "")
			require.NotNil(t, last().Old)
			// A cell that nobody ever wrote.
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowB) }))
			require.True(t, o.run(rowB))
			require.True(t, last().First)
			require.Zero(t, last().Commit)
			require.False(t, last().NewFound)
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowB) }))
			require.True(t, o.run(rowB))
			require.False(t, last().First)
		}
	})
}

// A run that failed has seen nothing, and the next one counts as another attempt for the change.
func TestOldValueAfterAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	o.fail = errTest
	set(t, c.DB, rowA, "2")
	require.True(t, o.run(rowA))
	w.clock.advance(time.Minute)
	o.fail = nil
	require.True(t, o.run(rowA))
	require.Equal(t, []int{1, 1, 2}, attemptsOf(o.changes))
	// A parked run counts as seen for finding, and its change is part of the next one.
	o.fail = errTest
	set(t, c.DB, rowA, "3")
	require.True(t, o.run(rowA))
	w.clock.advance(time.Minute)
	require.True(t, o.run(rowA))
	require.EqualValues(t, 1, c.Stats().ObserverParked)
	require.False(t, o.run(rowA))
	o.fail = nil
	set(t, c.DB, rowA, "4")
	require.True(t, o.run(rowA))
	require.Equal(t, "4", o.seen[rowA])
}

func attemptsOf(changes []Change) []int {
	var n []int
	for _, ch := range changes {
		n = append(n, ch.Attempt)
	}
	return n
}

// An observer that sets its own cell to what it has only locks it, and does not run again. To anything else,
// and it runs for that.
func TestObserverSetsItsOwnCell(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for _, value := range []string{"x", longText, ""} {
			c := w.client(opts...)
			o := newTold(t, c, "o"+fmt.Sprint(len(value)), "t")
			o.during = func(tx *Txn, ch Change) {
				require.NoError(t, tx.Set(ch.Cell, []byte(value)))
			}
			set(t, c.DB, rowA, "another")
			require.True(t, o.run(rowA))
			require.True(t, o.run(rowA), "it has changed its own cell")
			row := w.raw(rowA)
			n := len(row.All(rowstore.Write, "v"))
			require.False(t, o.run(rowA), "it has not changed its own cell")
			row = w.raw(rowA)
			require.Len(t, row.All(rowstore.Write, "v"), n)
			require.NoError(t, c.RemoveObserver(t.Context(), o.w.list[0].o.Name))
			w.pass(worldLease)
		}
		c := w.client(opts...)
		o := newTold(t, c, "deletes", "t")
		o.during = func(tx *Txn, ch Change) { require.NoError(t, tx.Delete(ch.Cell)) }
		set(t, c.DB, rowB, "1")
		require.True(t, o.run(rowB))
		require.True(t, o.run(rowB))
		require.False(t, o.run(rowB))
	})
}

// What a run that only locked its cell has seen is refused if somebody else wrote the cell meanwhile.
func TestOwnCellIsLocked(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		o := newTold(t, c, "o", "t")
		set(t, c.DB, rowA, "1")
		o.during = func(tx *Txn, ch Change) {
			o.during = nil
			require.NoError(t, tx.Set(ch.Cell, ch.New))
			set(t, c.DB, rowA, "2")
		}
		before := c.Stats().ObserverRuns
		require.Equal(t, runConflict, look(t, o.w, rowA))
		require.Equal(t, before, c.Stats().ObserverRuns)
		require.True(t, o.run(rowA))
		require.Equal(t, "2", value(t, c, rowA))
	})
}

// RetryAfter discards what a run has written, counts no failure, and holds for every process. A newer
// change runs at once.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for kind, wrap := range map[string]func(error) error{
		"as it is": func(err error) error { return err },
		"wrapped":  func(err error) error { return fmt.Errorf("not yet: %w", err) },
		"joined":   func(err error) error { return errors.Join(errTest, err) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c, c2 := w.client(), w.client()
			o := newTold(t, c, "o", "t")
			calls := 0
			_, err := c2.loadCatalog(t.Context())
			require.NoError(t, err)
			other := watching(t, c2, Observer{Name: "o", OnChange: func(context.Context, *Txn, Change) error { calls++; return nil }})
			o.fail = wrap(RetryAfter(time.Hour))
			o.during = func(tx *Txn, _ Change) { require.NoError(t, tx.Set(rowB, []byte("written"))) }
			set(t, c.DB, rowA, "1")
			require.True(t, o.run(rowA))
			require.Equal(t, "none", value(t, c, rowB))
			require.Equal(t, runWaiting, look(t, other, rowA))
			w.clock.advance(59 * time.Minute)
			require.Equal(t, runWaiting, look(t, other, rowA))
			require.Zero(t, calls)
			for range 5 { // more often than an observer may fail
				w.clock.advance(time.Hour + time.Second)
				require.True(t, o.run(rowA))
			}
			require.Equal(t, []int{1, 1, 1, 1, 1, 1}, attemptsOf(o.changes))
			require.Zero(t, c.Stats().ObserverFailures)
			require.Zero(t, c.Stats().ObserverParked)
			set(t, c.DB, rowA, "2")
			require.True(t, o.run(rowA), "a newer change")
			w.clock.advance(time.Hour + time.Second)
			runs(t, other, rowA)
			require.Equal(t, 1, calls)
			row := w.raw(rowA)
			f := row.Newest(rowstore.Write, format.FailureColumn("o", "v"))
			wv, err := format.DecodeWrite(f.Value)
			require.NoError(t, err)
			require.Equal(t, format.KindDelete, wv.Kind, "the record is left")
		})
	}
}

// At once, and at most in 30 days.
func TestRetryAfterLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	for _, d := range []time.Duration{0, -time.Hour, -1 << 63} {
		o.fail = RetryAfter(d)
		require.True(t, o.run(rowA))
		require.NotEmpty(t, o.fail.Error())
	}
	o.fail = RetryAfter(1<<63 - 1)
	require.True(t, o.run(rowA))
	o.fail = nil
	require.False(t, o.run(rowA))
	w.clock.advance(mostRetryAfter + time.Second)
	require.True(t, o.run(rowA))
}

// Park parks a run at the first attempt, with the error that it was given.
func TestPark(t *testing.T) {
	t.Parallel()
	for text, cause := range map[string]error{"parked the run": nil, errTest.Error(): errTest, ErrConflict.Error(): ErrConflict} {
		for _, wrapped := range []bool{false, true} {
			w := newWorld(t)
			c := w.client()
			o := newTold(t, c, "o", "t")
			o.fail = Park(cause)
			if wrapped {
				o.fail = fmt.Errorf("not like this: %w", o.fail)
			}
			if cause != nil {
				require.ErrorIs(t, o.fail, cause)
			}
			set(t, c.DB, rowA, "1")
			require.True(t, o.run(rowA))
			require.EqualValues(t, 1, c.Stats().ObserverParked)
			require.False(t, o.run(rowA))
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.Contains(t, parked[0].Error, text)
			require.Equal(t, 1, parked[0].Attempts)
			o.fail = nil
			require.NoError(t, c.Release(t.Context(), parked...))
			require.True(t, o.run(rowA))
		}
	}
}

// Exactly one of Func and OnChange is set, and an observer does not change its kind.
func TestObserversOfOneKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	onChange := func(context.Context, *Txn, Change) error { return nil }
	wk := NewWorker(c.DB, WorkerConfig{})
	require.ErrorIs(t, wk.Observe(Observer{Name: "o", Table: "t", Column: "v"}), ErrInvalid)
	err := wk.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing, OnChange: onChange})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "OnChange")
	kinds := map[string]Observer{"Func": {Name: "o", Table: "t", Column: "v", Func: nothing}, "OnChange": {Name: "o", Table: "t", Column: "v", OnChange: onChange}}
	for was, is := range map[string]string{"Func": "OnChange", "OnChange": "Func"} {
		first := watching(t, c, kinds[was])
		require.NoError(t, first.publish(t.Context()))
		second := watching(t, w.client(), kinds[is])
		err = second.Run(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "registered with "+was)
		require.NoError(t, c.RemoveObserver(t.Context(), "o"))
		require.NoError(t, second.publish(t.Context()))
		v, err := c.loadCatalog(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, first.checkRegistered(v), ErrInvalid)
		require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	}
}

// The catalog gets its version with the first observer of old values, and keeps it.
func TestCatalogOfOldValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.lowerTo(format.PlainCatalogVersion)
	version := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Versions[0].Value[0]
	}
	require.NoError(t, watching(t, c, Observer{Name: "f", Func: nothing}).publish(t.Context()))
	require.EqualValues(t, format.PlainCatalogVersion, version())
	newTold(t, c, "o", "t")
	require.EqualValues(t, format.ControlledVersion, version())
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	require.EqualValues(t, format.ControlledVersion, version())
}
