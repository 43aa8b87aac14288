package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/everystore"
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

// keeping runs the observer of an index until the test ends, or stop is called. Both functions return the error of Run; end waits for it, but
// not for ever: nothing may end the worker if what should remove its observer has failed.
func keeping(t testing.TB, db *percolator.DB, o percolator.Observer) (w *percolator.Worker, stop, end func() error) {
	t.Helper()
	w = percolator.NewWorker(db, percolator.WorkerConfig{MaxAttempts: 2, Backoff: percolator.Backoff{Min: time.Millisecond}})
	require.NoError(t, w.Observe(o))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	end = func() error {
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(time.Minute):
			return errors.New("the worker does not end")
		}
	}
	stop = func() error {
		cancel()
		return end()
	}
	atend.Do(t, func() { _ = stop() })
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
		const all = 60 // a lookup reads them by several calls
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
		var looks, answers atomic.Int64
		ended := make(chan error, 1)
		go func() {
			for ; looking.Err() == nil; looks.Add(1) {
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
				_ = contexts.Sleep(looking, 10*time.Millisecond) // a drop waits for seconds
			}
			ended <- nil
		}()
		defer enough()
		require.Eventually(t, func() bool { return answers.Load() > 0 }, time.Minute, time.Millisecond)
		require.NoError(t, ix.Drop(ctx, Pace{Rows: 20}))
		require.ErrorIs(t, end(), percolator.ErrObserverRemoved)
		atLeast := looks.Load() + 2 // one that began when the entries had gone has ended
		require.Eventually(t, func() bool { return looks.Load() >= atLeast || len(ended) > 0 }, time.Minute, time.Millisecond)
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
	atend.Do(t, func() { _ = inner.Close() })
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
		Faults:    percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
		Schedules: inOrder, Random: atRandom,
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
