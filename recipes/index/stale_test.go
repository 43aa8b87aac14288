package index

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// TestStaleEntryOfAnOldView: while an index is new, a process that does not know of it yet takes a value away from a row, and leaves the entry. Another row may have the value.
func TestStaleEntryOfAnOldView(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	one := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	two := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	ix, _ := wordIndex(t, one, Options{Unique: true}), wordIndex(t, two, Options{Unique: true})
	_, err := one.DefineIndex(ctx, ix.upkeep)
	require.NoError(t, err)
	require.NoError(t, put(ctx, one, "1", "v"))
	require.NoError(t, put(ctx, two, "1", "w")) // by its older view, usually
	require.NoError(t, put(ctx, one, "2", "v"), "no row has it")
	require.ErrorIs(t, put(ctx, one, "3", "v"), ErrNotUnique)
	built(t, one, Options{Unique: true})
	require.Equal(t, []string{"2"}, has(t, one, ix, "v"))
}

// stale makes the entry of a value name a row that does not have it.
func stale(ctx context.Context, db *percolator.DB, ix *Index[string], word, row string) error {
	info, err := infoOf(ctx, db, ix.name)
	if err != nil {
		return err
	}
	return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(ix.entry(key(word), ""), []byte(row)) }, percolator.WithIndexUpkeep(info))
}

// TestTakeOver has stale entries, which name a row with another value, one that is not there, and no row at all; and holders that cannot be decoded, who may have the value.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	var away atomic.Pointer[error]
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: onlyRow{trouble{err: &away}, "1"}}
	ix, err := New(db, "word", of, eachWord, Options{Unique: true})
	require.NoError(t, err)
	_, err = ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.NoError(t, put(ctx, db, "1", "a"))
	for i, row := range []string{"1", "nobody", ""} {
		word := fmt.Sprint("w", i)
		require.NoError(t, stale(ctx, db, ix, word, row))
		require.NoError(t, put(ctx, db, "2", word))
		require.Equal(t, []string{"2"}, has(t, db, ix, word))
		require.ErrorIs(t, put(ctx, db, "3", word), ErrNotUnique)
	}
	for _, err := range []error{errAway, typed.ErrDecode} {
		away.Store(&err)
		require.ErrorIs(t, put(ctx, db, "2", "a"), ErrNotUnique)
		away.Store(nil)
	}

	// A transaction that takes the value away from the row with the stale entry, and another one's in the same commit.
	require.NoError(t, stale(ctx, db, ix, "x", "1"))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(words.Set(ctx, tx, "1", "b"), words.Set(ctx, tx, "3", "x"))
	}))
	require.NoError(t, stale(ctx, db, ix, "y", "1"))
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(words.Set(ctx, tx, "1", "y"), words.Set(ctx, tx, "4", "y"))
	}), ErrNotUnique)
	r, err := ix.Repair(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, 1, r.Stale, "that of y")
	require.Zero(t, r.Missing+r.Duplicated)
}

// oneRow checks that no two rows have the same value, and that each has its entries. Entries may be stale.
func oneRow(ctx context.Context, tx *percolator.Txn) error {
	ix := &Index[string]{db: new(percolator.DB), name: "word", of: words, values: eachWord, opt: Options{Unique: true, Entries: "index/word"}}
	for row, err := range words.Scan(ctx, tx, percolator.Range{}) {
		if err != nil {
			return err
		}
		values, _ := eachWord(row.Key, row.Value)
		for _, v := range values {
			got, err := tx.Get(ctx, ix.entry(v, ""))
			if err != nil {
				return fmt.Errorf("row %q has %s: %w", row.Key, row.Value, err)
			}
			if string(got) != row.Key {
				return fmt.Errorf("row %q has %s, whose entry names %q", row.Key, row.Value, got)
			}
		}
	}
	return nil
}

// TestEveryInterleavingOfTakeOver: one takes a value over whose entry is stale while another one gives it back to the row of the entry, or takes it over too.
func TestEveryInterleavingOfTakeOver(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string][]percolatetest.Client{
		"gained":    {writer("ann", true, [2]string{"1", "a"}), writer("bob", true, [2]string{"2", "a"})},
		"came back": {writer("ann", true, [2]string{"1", "a"}, [2]string{"1", "b"}), writer("bob", true, [2]string{"2", "a"})},
		"two":       {writer("ann", true, [2]string{"3", "a"}), writer("bob", true, [2]string{"2", "a"})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			percolatetest.Explore(t, percolatetest.Program{
				Setup: func(ctx context.Context, db *percolator.DB) error {
					ix, err := New(db, "word", words, eachWord, Options{Unique: true})
					if err == nil {
						err = put(ctx, db, "1", "c")
					}
					if err == nil {
						_, err = ix.Build(ctx, Pace{})
					}
					if err == nil {
						err = stale(ctx, db, ix, "a", "1")
					}
					return err
				},
				Clients: clients,
				Always:  oneRow, Finally: oneRow,
				Faults: percolatetest.Faults{Conflicts: 1, Deaths: 1},
			})
		})
	}
}
