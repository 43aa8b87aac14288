package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

func observedWords(t testing.TB, db *percolator.DB) *Observed[string] {
	t.Helper()
	ix, err := NewObserved(db, "word", words, eachWord, ObservedOptions{})
	require.NoError(t, err)
	return ix
}

// keeping runs the observer of an index until the test ends, or stop is called. Both functions return the error of Run; end waits for it.
func keeping(t testing.TB, db *percolator.DB, o percolator.Observer) (w *percolator.Worker, stop, end func() error) {
	t.Helper()
	w = percolator.NewWorker(db, percolator.WorkerConfig{MaxAttempts: 2, Backoff: percolator.Backoff{Min: time.Millisecond}})
	require.NoError(t, w.Observe(o))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	end = func() error {
		err := <-ended
		ended <- err
		return err
	}
	stop = func() error {
		cancel()
		return end()
	}
	t.Cleanup(func() { _ = stop() })
	return w, stop, end
}

func seen(seq iter.Seq2[typed.Row[string], error]) (all []string, err error) {
	for row, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, row.Key+"="+row.Value)
	}
	return all, nil
}

// sees returns the rows that have a word, with their texts.
func sees(t testing.TB, db *percolator.DB, ix *Observed[string], word string) (all []string) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		all, err = seen(ix.Lookup(t.Context(), tx, key(word)))
		return err
	}))
	return all
}

// TestObserved writes in a process that knows nothing of the index, before and after it is built, and reads in both.
func TestObserved(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		for i := range 20 {
			require.NoError(t, put(ctx, two, fmt.Sprintf("old %02d", i), "old"))
		}
		ix, other := observedWords(t, one), observedWords(t, two)
		require.ErrorIs(t, two.View(ctx, func(tx *percolator.Txn) error {
			_, err := other.Find(ctx, tx, key("old"))
			return err
		}), ErrNotReadable)
		before, err := two.Begin(ctx)
		require.NoError(t, err)
		w, _, _ := keeping(t, one, ix.Observer())
		require.NoError(t, other.Build(ctx, Pace{Rows: 7}))
		require.NoError(t, ix.Build(ctx, Pace{}), "again is no harm")
		require.Len(t, sees(t, one, ix, "old"), 20)
		require.Len(t, sees(t, two, other, "old"), 20)
		_, err = other.Find(ctx, before, key("old"))
		require.ErrorIs(t, err, ErrNotReadable, "an older snapshot")
		require.NoError(t, before.Rollback(ctx))

		require.NoError(t, put(ctx, two, "1", "a b b"))
		require.NoError(t, put(ctx, one, "2", "b c"))
		require.NoError(t, put(ctx, two, "3", "c"))
		require.NoError(t, put(ctx, two, "3", "a"))
		require.NoError(t, w.WaitIdle(ctx))
		require.Equal(t, []string{"1=a b b", "3=a"}, sees(t, two, other, "a"))
		require.Equal(t, []string{"1=a b b", "2=b c"}, sees(t, one, ix, "b"))
		require.NoError(t, two.Update(ctx, func(tx *percolator.Txn) error {
			row, err := other.Find(ctx, tx, key("c"))
			require.NoError(t, err)
			require.Equal(t, typed.Row[string]{Key: "2", Value: "b c"}, row)
			if err := words.Set(ctx, tx, "2", "x"); err != nil {
				return err
			}
			_, err = other.Find(ctx, tx, key("c"))
			require.ErrorIs(t, err, percolator.ErrNotFound, "it has lost the value in this transaction")
			all, err := seen(other.Scan(ctx, tx, Range{From: key("a"), To: key("old"), Reverse: true}))
			require.Equal(t, []string{"1=a b b", "3=a", "1=a b b"}, []string{all[0], all[1], all[2]})
			require.Len(t, all, 3)
			return err
		}))
		require.NoError(t, remove(ctx, two, "3"))
		require.Equal(t, []string{"1=a b b"}, sees(t, one, ix, "a"), "a row that is gone is not seen, whoever knows of it")
		require.NoError(t, w.WaitIdle(ctx))
		require.Equal(t, []string{"2=x"}, sees(t, two, other, "x"))
		require.NoError(t, two.View(ctx, func(tx *percolator.Txn) error {
			all, err := seen(other.Scan(ctx, tx, Range{Limit: 2}))
			require.Equal(t, []string{"1=a b b", "1=a b b"}, all)
			return err
		}))
		r, err := other.Check(ctx, Pace{Rows: 3})
		require.NoError(t, err)
		require.True(t, r.Matches(), "%+v", r)
		require.Equal(t, 23, r.Entries)
	}, settings)
}

// TestObservedIsDropped has one who looks up all the time while the index is dropped, is made again and dropped: who gets an answer gets all rows.
func TestObservedIsDropped(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		const all = 300
		require.NoError(t, one.Update(ctx, func(tx *percolator.Txn) error {
			for i := range all {
				if err := words.Set(ctx, tx, fmt.Sprint(i), "a"); err != nil {
					return err
				}
			}
			return nil
		}))
		ix, other := observedWords(t, one), observedWords(t, two)
		_, _, end := keeping(t, one, ix.Observer())
		require.NoError(t, ix.Build(ctx, Pace{}))
		looking, enough := context.WithCancel(ctx)
		var answers atomic.Int64
		ended := make(chan error, 1)
		go func() {
			for looking.Err() == nil {
				err := two.View(ctx, func(tx *percolator.Txn) error {
					rows, err := seen(other.Lookup(ctx, tx, key("a")))
					if err == nil && len(rows) != all {
						return fmt.Errorf("%d rows", len(rows))
					}
					return err
				})
				if err != nil && !errors.Is(err, ErrNotReadable) {
					ended <- err
					return
				}
				if err == nil {
					answers.Add(1)
				}
			}
			ended <- nil
		}()
		defer enough()
		require.Eventually(t, func() bool { return answers.Load() > 0 }, time.Minute, time.Millisecond)
		require.NoError(t, ix.Drop(ctx, Pace{Rows: 100}))
		require.ErrorIs(t, end(), percolator.ErrObserverRemoved)
		require.NoError(t, ix.Drop(ctx, Pace{}), "again is no harm")
		require.NoError(t, one.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "observed/word"}) {
				require.NoError(t, err)
				require.Fail(t, "left behind", "%v", row)
			}
			return nil
		}))

		was := answers.Load()
		keeping(t, one, ix.Observer())
		require.NoError(t, other.Build(ctx, Pace{}))
		require.Eventually(t, func() bool { return answers.Load() > was || len(ended) > 0 }, time.Minute, time.Millisecond)
		enough()
		require.NoError(t, <-ended)
	}, settings)
}

// TestObservedBegunAgain removes the observer behind the back of the index. What is written then is in no entry, so nobody reads them until the index is built again.
func TestObservedBegunAgain(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := observedWords(t, db)
	_, _, end := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.NoError(t, db.RemoveObserver(ctx, ix.observer()))
	require.ErrorIs(t, end(), percolator.ErrObserverRemoved)
	require.NoError(t, put(ctx, db, "1", "b"))
	again := observedWords(t, db) // a process that has not looked yet
	find := func() (row typed.Row[string], err error) {
		err = db.View(ctx, func(tx *percolator.Txn) error {
			row, err = again.Find(ctx, tx, key("b"))
			return err
		})
		return row, err
	}
	_, err := find()
	require.ErrorIs(t, err, ErrNotReadable)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err = again.Build(short, Pace{})
	require.ErrorIs(t, err, percolator.ErrNotObserved)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	w, _, _ := keeping(t, db, again.Observer())
	require.NoError(t, w.WaitIdle(ctx))
	_, err = find()
	require.ErrorIs(t, err, ErrNotReadable, "of the registration before")
	require.NoError(t, again.Build(ctx, Pace{}))
	row, err := find()
	require.NoError(t, err)
	require.Equal(t, "1", row.Key)
	require.Empty(t, sees(t, db, again, "a"), "its entry is there still, and the row has another value")
	r, err := again.Repair(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, 1, r.Stale)
	r, err = again.Check(ctx, Pace{})
	require.NoError(t, err)
	require.True(t, r.Matches(), "%+v", r)
}

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
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.NoError(t, stop())
	for name, opt := range map[string]ObservedOptions{"word": {Entries: "elsewhere"}, "term": {}} {
		if name != "word" {
			require.NoError(t, db.RenameObserver(ctx, "observed/word", "observed/"+name))
		}
		other, err := NewObserved(db, name, words, eachWord, opt)
		require.NoError(t, err)
		_, stop, _ := keeping(t, db, other.Observer())
		require.NoError(t, other.Build(ctx, Pace{}))
		require.Equal(t, []string{"1=a"}, sees(t, db, other, "a"), name)
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

// TestErasedFromObserved erases a row: its entry goes with it.
func TestErasedFromObserved(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := observedWords(t, db)
	w, _, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, put(ctx, db, "2", "a"))
	require.NoError(t, w.WaitIdle(ctx))
	_, err := db.Erase(ctx, percolator.Range{Table: words.Table, From: "1", To: "2"})
	require.NoError(t, err)
	r, err := ix.Check(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, Report{Rows: 1, Entries: 1}, r)
}

// TestObservedUnderFaults loses a call or its reply, or a process, in each call of a build and of a repair, and of a drop.
func TestObservedUnderFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	t.Cleanup(func() { _ = inner.Close() })
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	ix := observedWords(t, db)
	w, _, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, w.WaitIdle(ctx))
	stale := percolator.Cell{Table: "observed/word", Row: nameOf(key("b"), "1"), Column: column}
	everystore.EachFault(t, inner, func(name string, faulty *percolator.DB) {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			if err := tx.Delete(ix.markCell()); err != nil {
				return err
			}
			return tx.Set(stale, []byte("1"))
		}), name)
		hurt := observedWords(t, faulty)
		_, _ = hurt.Repair(ctx, Pace{Rows: 1})
		_ = hurt.Build(ctx, Pace{Rows: 1})
		_, err := ix.Repair(ctx, Pace{})
		require.NoError(t, err, name)
		require.NoError(t, ix.Build(ctx, Pace{}), name)
		r, err := ix.Check(ctx, Pace{})
		require.NoError(t, err, name)
		require.Equal(t, Report{Rows: 1, Entries: 1}, r, name)
		require.Equal(t, []string{"1=a"}, sees(t, db, ix, "a"), name)
	})
}

// TestObservedInEveryOrder has writers, runs of the observer, in two processes, and one who repairs meanwhile. In the end no entry is missing: a repair by a snapshot from in between takes
// none away.
func TestObservedInEveryOrder(t *testing.T) {
	t.Parallel()
	plain := &Observed[string]{ix: Index[string]{name: "word", of: words, values: eachWord, opt: Options{Entries: "observed/word"}}}
	write := func(name string, texts ...string) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			for _, text := range texts {
				if err := put(ctx, db, "1", text); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	percolatetest.Explore(t, percolatetest.Program{
		Setup: func(ctx context.Context, db *percolator.DB) error { return put(ctx, db, "1", "a") },
		Clients: []percolatetest.Client{
			write("ann", "b", "a"),
			{Name: "repair", Run: func(ctx context.Context, db *percolator.DB) error {
				ix, err := NewObserved(db, "word", words, eachWord, ObservedOptions{})
				if err == nil {
					_, err = ix.Repair(ctx, Pace{})
				}
				return err
			}},
		},
		Observers: []percolator.Observer{plain.Observer()},
		Workers:   2,
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			value, err := words.Get(ctx, tx, "1")
			if err != nil {
				return err
			}
			b, err := tx.Get(ctx, plain.ix.entry(key(value), "1"))
			if err != nil || !bytes.Equal(b, []byte("1")) {
				return fmt.Errorf("the row is %q, and its entry %q: %w", value, b, err)
			}
			return nil
		},
		Faults: percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
		Time:   10 * time.Second,
	})
}

// TestLookupOfObservedIsTwoCalls: a lookup costs the scan and the read of the rows, and nothing for the question whether the index is readable.
func TestLookupOfObservedIsTwoCalls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var calls atomic.Int64
	db := everystore.Over(t, faultstore.New(memstore.New(), faultstore.Options{Watch: func(*faultstore.Call) { calls.Add(1) }}))
	ix := observedWords(t, db)
	w, stop, _ := keeping(t, db, ix.Observer())
	require.NoError(t, put(ctx, db, "1", "a"))
	require.NoError(t, ix.Build(ctx, Pace{}))
	require.NoError(t, w.WaitIdle(ctx))
	require.NoError(t, stop())
	require.Eventually(t, func() bool { // it looks anew now and then, and a process has calls of its own
		before := calls.Load()
		require.Equal(t, []string{"1=a"}, sees(t, db, ix, "a"))
		return calls.Load() == before+2
	}, time.Minute, time.Millisecond)
}
