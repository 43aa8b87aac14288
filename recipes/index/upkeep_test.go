package index

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// inPlace is a codec that decodes in place, as typed.Codec allows: what Decode is given belongs to it.
type inPlace struct{}

func (inPlace) Encode(_ context.Context, _ percolator.Cell, v string) ([]byte, error) {
	return flip([]byte(v)), nil
}

func (inPlace) Decode(_ context.Context, _ percolator.Cell, stored []byte) (string, error) {
	return string(flip(stored)), nil
}

func flip(b []byte) []byte {
	for i := range b {
		b[i] ^= 0x20
	}
	return b
}

// TestCodecInPlace: the cell keeps what was set, also if the index reads it before the commit, and the entries of an old value go.
func TestCodecInPlace(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: inPlace{}}
	values := func(_ string, v string) ([]keys.Key, error) { return []keys.Key{key(v)}, nil }
	ix, err := New(db, "word", of, values, Options{})
	require.NoError(t, err)
	second, err := New(db, "word again", of, values, Options{Unique: true})
	require.NoError(t, err)
	for _, x := range []*Index[string]{ix, second} {
		_, err = x.Build(ctx, Pace{})
		require.NoError(t, err)
	}
	for _, text := range []string{"hello", "world"} {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			if err := of.Set(ctx, tx, "1", text); err != nil {
				return err
			}
			_, err := ix.Find(ctx, tx, key(text))
			return err
		}))
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			got, err := of.Get(ctx, tx, "1")
			require.Equal(t, text, got)
			return err
		}))
	}
	require.Equal(t, 1, matches(t, ix).Entries)
	require.Equal(t, 1, matches(t, second).Entries)
}

// TestValuesThatSort has a function of the values that sorts the letters of what it is given.
func TestValuesThatSort(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	of := typed.Column[[]byte]{Table: "doc", Name: "text", Codec: typed.Bytes{}}
	ix, err := New(db, "anagram", of, func(_ string, v []byte) ([]keys.Key, error) {
		slices.Sort(v)
		return []keys.Key{keys.Key("").Bytes(bytes.Clone(v))}, nil
	}, Options{})
	require.NoError(t, err)
	_, err = ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return of.Set(ctx, tx, "1", []byte("hello")) }))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		got, err := of.Get(ctx, tx, "1")
		require.Equal(t, "hello", string(got))
		return err
	}))
}

// TestObserverThatCannotBeIndexed has an observer whose writes the upkeep refuses at the commit: its runs count as failures, and are parked after the last.
func TestObserverThatCannotBeIndexed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{"a": ErrNotUnique, "bad": ErrValues} {
		synctest.Test(t, func(t *testing.T) {
			ctx, db := t.Context(), percolatetest.Open(t)
			built(t, db, Options{Unique: true})
			require.NoError(t, put(ctx, db, "1", "a"))
			var calls atomic.Int64
			told := make(chan error, 10)
			w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
			require.NoError(t, w.OnError(func(_ context.Context, e percolator.RunError) { told <- e.Err }))
			require.NoError(t, w.Observe(percolator.Observer{Name: "copy", Table: "in", Column: "c", MaxAttempts: 2, Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error {
				calls.Add(1)
				return words.Set(ctx, tx, "2", text)
			}}))
			run, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- w.Run(run) }()
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				return tx.Set(percolator.Cell{Table: "in", Row: "x", Column: "c"}, nil)
			}))
			idle, cancel := context.WithTimeout(ctx, 5*time.Minute)
			defer cancel()
			for range 2 {
				select {
				case err := <-told:
					require.ErrorIs(t, err, want)
				case <-idle.Done():
					require.Fail(t, "nobody was told", "after %d calls", calls.Load())
				}
			}
			require.NoError(t, w.WaitIdle(idle))
			parked, err := db.Parked(ctx)
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.EqualValues(t, 2, calls.Load())
			stop()
			require.NoError(t, <-ended)
		})
	}
}
