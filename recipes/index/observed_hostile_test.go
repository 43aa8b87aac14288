package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// troubled is an index of rows 1 and 2, which have the word a. Row 1 cannot be decoded while away has an error.
func troubled(t *testing.T, away *atomic.Pointer[error]) (*percolator.DB, *Observed[string], *percolator.Worker) {
	t.Helper()
	ctx, db := t.Context(), percolatetest.Open(t)
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: onlyRow{trouble{err: away}, "1"}}
	ix, err := NewObserved(db, "word", of, eachWord, ObservedOptions{})
	require.NoError(t, err)
	w, _, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, put(ctx, db, "2", "a"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	return db, ix, w
}

// TestObservedUnderOtherNames gives the observer another name, and the entries another table. What it acknowledged says nothing of that table.
func TestObservedUnderOtherNames(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := observedWords(t, db)
	_, stop, _ := keeping(t, db, ix.Observer())
	const rows = 5
	var want []string
	for i := range rows {
		row := strconv.Itoa(i)
		require.NoError(t, put(ctx, db, row, "a"))
		want = append(want, row+"=a")
	}
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.NoError(t, stop())
	for name, opt := range map[string]ObservedOptions{"word": {Entries: "elsewhere"}, "term": {}} {
		if name != "word" {
			require.NoError(t, db.RenameObserver(ctx, "observed/word", "observed/"+name))
		}
		other, err := NewObserved(db, name, words, eachWord, opt)
		require.NoError(t, err)
		_, stop, _ := keeping(t, db, other.Observer())
		require.NoError(t, other.Build(ctx, Pace{Rows: rows / 2})) // in several steps
		require.Equal(t, want, sees(t, db, other, "a"), name)
		require.NoError(t, stop())
		if name != "word" {
			require.NoError(t, db.RenameObserver(ctx, "observed/"+name, "observed/word"))
		}
	}
}

// TestObservedWithoutARun drops a parked run: nobody writes its entries any more, but for Build.
func TestObservedWithoutARun(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var away atomic.Pointer[error]
	db, ix, w := troubled(t, &away)
	newer := typed.ErrVersion
	away.Store(&newer)
	require.NoError(t, put(ctx, db, "1", "b"))
	require.NoError(t, w.WaitIdle(ctx))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.NoError(t, db.DropParked(ctx, parked...))
	away.Store(nil)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Delete(ix.markCell()) }))
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.Equal(t, []string{"1=b"}, sees(t, db, ix, "b"))
}

// TestObservedIsMadeAgainWhileDropped has the worker back at once, while the index is dropped. Drop deletes nothing that a build relies on.
func TestObservedIsMadeAgainWhileDropped(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := observedWords(t, db)
	_, _, end := keeping(t, db, ix.Observer())
	for i := range 3 {
		require.NoError(t, put(ctx, db, fmt.Sprint(i), "a"))
	}
	require.NoError(t, ix.Build(ctx, Pace{}))
	dropped := make(chan error, 1)
	go func() { dropped <- ix.Drop(ctx, Pace{Rows: 1}) }()
	require.ErrorIs(t, end(), percolator.ErrObserverRemoved)
	keeping(t, db, ix.Observer())
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.ErrorIs(t, <-dropped, percolator.ErrIndexChanged)
	require.Len(t, sees(t, db, ix, "a"), 3)
}

// TestDropIsLate has a drop that is about to delete entries when the observer is registered again and the index built. It deletes none, also where no run has written the entry anew: the run was
// parked, and dropped.
func TestDropIsLate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	store := faultstore.New(inner, faultstore.Options{KeepOpen: true})
	late, db := everystore.Over(t, store, settings), everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	var away atomic.Pointer[error]
	ix := observedWords(t, late)
	again, err := NewObserved(db, "word", typed.Column[string]{Table: "doc", Name: "text", Codec: trouble{err: &away}}, eachWord, ObservedOptions{})
	require.NoError(t, err)
	_, _, end := keeping(t, late, ix.Observer())
	require.NoError(t, put(ctx, late, "1", "a"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	held := store.Hold(faultstore.Rule{Match: func(c *faultstore.Call) bool {
		muts := c.Muts
		for _, g := range c.Groups {
			muts = append(slices.Clone(muts), g.Mutations...)
		}
		return slices.ContainsFunc(muts, func(m rowstore.Mutation) bool {
			return strings.HasSuffix(m.Table, "observed/word") && m.Row != rowProgress
		})
	}})
	dropped := make(chan error, 1)
	go func() { dropped <- ix.Drop(ctx, Pace{}) }()
	require.ErrorIs(t, end(), percolator.ErrObserverRemoved)
	select {
	case <-held.Reached():
	case err := <-dropped:
		require.FailNow(t, "it has ended before it deletes an entry", "%v", err)
	}
	newer := typed.ErrVersion
	away.Store(&newer)
	keeping(t, db, again.Observer())
	var parked []percolator.ParkedRun
	require.Eventually(t, func() bool {
		parked, err = db.Parked(ctx)
		return err == nil && len(parked) == 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, db.DropParked(ctx, parked...))
	away.Store(nil)
	require.NoError(t, again.Build(ctx, Pace{}))
	held.Release(faultstore.Fault{})
	require.ErrorIs(t, <-dropped, percolator.ErrIndexChanged)
	require.Equal(t, []string{"1=a"}, sees(t, db, again, "a"))
}

// TestObservedPace waits after each step, for as long as it is told.
func TestObservedPace(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := observedWords(t, db)
	require.NoError(t, put(ctx, db, "1", "a"))
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := ix.Check(short, Pace{Pause: time.Hour})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestDroppedBetweenTheEndsOfABuild deletes entries and the mark while an index is built, as one does who began to drop it before: the build begins anew.
func TestDroppedBetweenTheEndsOfABuild(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	var dropped atomic.Bool
	var ix *Observed[string]
	ix, err := NewObserved(db, "word", words, func(row, text string) ([]keys.Key, error) {
		if mark, err := db.Begin(ctx); err == nil && row == "2" {
			// The build has been begun, and looks at the last row.
			if _, err := mark.Get(ctx, ix.markCell()); err == nil && dropped.CompareAndSwap(false, true) {
				require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
					return errors.Join(tx.Delete(ix.markCell()), tx.Delete(ix.ix.entry(key("a"), "1")))
				}))
			}
			require.NoError(t, mark.Rollback(ctx))
		}
		return eachWord(row, text)
	}, ObservedOptions{})
	require.NoError(t, err)
	w, _, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, put(ctx, db, "2", "a"))
	require.NoError(t, w.WaitIdle(ctx))
	require.NoError(t, ix.Build(ctx, Pace{Rows: 1}))
	require.True(t, dropped.Load())
	require.Equal(t, []string{"1=a", "2=a"}, sees(t, db, ix, "a"))
}

// TestObservedOfBadWords has values that the function refuses, or panics for.
func TestObservedOfBadWords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, ix, w := troubled(t, new(atomic.Pointer[error]))
	for _, bad := range []string{"bad", "worse"} {
		require.NoError(t, put(ctx, db, "3", bad))
		require.NoError(t, w.WaitIdle(ctx))
		parked, err := db.Parked(ctx)
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.Contains(t, parked[0].Error, "values of the row cannot be told")
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			return tx.Delete(ix.markCell())
		}))
		require.ErrorIs(t, ix.Build(ctx, Pace{Rows: 1}), percolator.ErrParked)
		require.NoError(t, put(ctx, db, "3", "c"))
		require.NoError(t, w.WaitIdle(ctx))
		require.NoError(t, ix.Build(ctx, Pace{}))
		require.Equal(t, []string{"3=c"}, sees(t, db, ix, "c"))
	}
}

// TestObservedBehindTrouble has a row that cannot be decoded, now or ever.
func TestObservedBehindTrouble(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var away atomic.Pointer[error]
	db, ix, w := troubled(t, &away)
	for _, why := range []error{errAway, typed.ErrVersion, typed.ErrDecode} {
		away.Store(&why)
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			var rows []string
			for row, err := range ix.Lookup(ctx, tx, key("a")) {
				if row.Key == "1" {
					require.ErrorIs(t, err, why)
					require.ErrorIs(t, err, ErrValues)
					require.Empty(t, row.Value)
				} else {
					require.NoError(t, err)
				}
				rows = append(rows, row.Key)
			}
			require.Equal(t, []string{"1", "2"}, rows)
			return nil
		}))
	}
	gone := typed.ErrKeyGone
	away.Store(&gone)
	require.Equal(t, []string{"2=a"}, sees(t, db, ix, "a"))
	require.NoError(t, put(ctx, db, "1", "a z"))
	require.NoError(t, w.WaitIdle(ctx))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Empty(t, parked)
	away.Store(nil)
	require.Empty(t, sees(t, db, ix, "z"), "it had no values when the observer looked")
	require.Equal(t, []string{"1=a z", "2=a"}, sees(t, db, ix, "a"), "nobody could tell the entries of what it had before")
	newer := typed.ErrVersion
	away.Store(&newer)
	require.NoError(t, put(ctx, db, "1", "a y"))
	require.NoError(t, w.WaitIdle(ctx))
	parked, err = db.Parked(ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, 1, parked[0].Attempts, "a newer program has to look at it")
	away.Store(nil)
	require.NoError(t, db.Release(ctx, parked...))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1=a y"}, sees(t, db, ix, "y"))
}

// TestObservedOfGarbage has entries that name no row, and values too long for an entry.
func TestObservedOfGarbage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, ix, w := troubled(t, new(atomic.Pointer[error]))
	long := strings.Repeat("l", 600)
	require.NoError(t, put(ctx, db, "4", long+"1 "+long+"2"))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i, row := range []string{"", "nobody", strings.Repeat("r", 5000)} {
			if err := tx.Set(percolator.Cell{Table: "observed/word", Row: begin(key("a")) + fmt.Sprint("damaged", i), Column: column}, []byte(row)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1=a", "2=a"}, sees(t, db, ix, "a"))
	require.Len(t, sees(t, db, ix, long+"2"), 1)
	require.Empty(t, sees(t, db, ix, long+"3"))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		all, err := seen(ix.Scan(ctx, tx, Begins(key("l").Text("")))) // no value begins so
		require.NoError(t, err)
		require.Empty(t, all)
		_, err = seen(ix.Scan(ctx, tx, Begins(key(long))))
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = seen(ix.Scan(ctx, tx, Range{Limit: -1}))
		require.ErrorIs(t, err, percolator.ErrInvalid)
		return nil
	}))
}

func TestNewObservedOfNoSense(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	sealed := typed.Column[string]{Table: "doc", Name: "text", Codec: typed.Encrypted[string]{Codec: words.Codec, Keys: oneKey{}}}
	for what, make := range map[string]func() (*Observed[string], error){
		"database": func() (*Observed[string], error) { return NewObserved(nil, "word", words, eachWord, ObservedOptions{}) },
		"codec": func() (*Observed[string], error) {
			return NewObserved(db, "word", typed.Column[string]{Table: "doc", Name: "text"}, eachWord, ObservedOptions{})
		},
		"values": func() (*Observed[string], error) { return NewObserved(db, "word", words, nil, ObservedOptions{}) },
		"name":   func() (*Observed[string], error) { return NewObserved(db, "", words, eachWord, ObservedOptions{}) },
		"long name": func() (*Observed[string], error) {
			return NewObserved(db, strings.Repeat("n", 120), words, eachWord, ObservedOptions{})
		},
		"encrypted": func() (*Observed[string], error) { return NewObserved(db, "word", sealed, eachWord, ObservedOptions{}) },
	} {
		_, err := make()
		require.ErrorIs(t, err, percolator.ErrInvalid, what)
	}
	ix, err := NewObserved(db, strings.Repeat("n", 119), words, eachWord, ObservedOptions{})
	require.NoError(t, err)
	require.NoError(t, percolator.NewWorker(db, percolator.WorkerConfig{}).Observe(ix.Observer()))
	_, err = NewObserved(db, "word", words, eachWord, ObservedOptions{Entries: words.Table})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = NewObserved(db, "word", words, eachWord, ObservedOptions{Entries: strings.Repeat("e", 513)})
	require.ErrorIs(t, err, percolator.ErrTooLarge)
	bad := Pace{Rows: -1}
	require.ErrorIs(t, ix.Build(t.Context(), bad), percolator.ErrInvalid)
	require.ErrorIs(t, ix.Drop(t.Context(), bad), percolator.ErrInvalid)
	_, err = ix.Repair(t.Context(), bad)
	require.ErrorIs(t, err, percolator.ErrInvalid)
}

// scribbler is a codec that changes what it is given.
type scribbler struct{ typed.Text[string] }

func (c scribbler) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (string, error) {
	text, err := c.Text.Decode(ctx, cell, stored)
	text = strings.Clone(text)
	clear(stored)
	return text, err
}

// TestObservedOfScribbler has a codec that changes the bytes that it decodes: of a row that comes twice, and of one that the transaction has written.
func TestObservedOfScribbler(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: scribbler{}}
	ix, err := NewObserved(db, "word", of, eachWord, ObservedOptions{})
	require.NoError(t, err)
	w, _, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a b c"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		if err := words.Set(ctx, tx, "1", "a b"); err != nil {
			return err
		}
		all, err := seen(ix.Scan(ctx, tx, Range{}))
		require.Equal(t, []string{"1=a b", "1=a b"}, all)
		return err
	}))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1=a b"}, sees(t, db, ix, "b"))
	require.Empty(t, sees(t, db, ix, "c"))
	r, err := ix.Repair(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, Report{Rows: 1, Entries: 2}, r, "both entries are read in one step")
}
