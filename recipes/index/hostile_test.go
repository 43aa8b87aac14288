package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

var errAway = errors.New("the keys are away")

// trouble is a codec of texts whose Decode returns an error while there is one.
type trouble struct {
	typed.Text[string]
	err *atomic.Pointer[error]
}

func (c trouble) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (string, error) {
	if err := c.err.Load(); err != nil {
		return "", *err
	}
	return c.Text.Decode(ctx, cell, stored)
}

// TestErrorsThatPass has a codec that cannot decode for a while. Entries neither stay behind nor go missing, and nobody gets a value that another row has.
func TestErrorsThatPass(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, err := range []error{errAway, fmt.Errorf("newer: %w", typed.ErrVersion)} {
		for _, unique := range []bool{false, true} {
			var away atomic.Pointer[error]
			db := percolatetest.Open(t)
			of := typed.Column[string]{Table: "doc", Name: "text", Codec: trouble{err: &away}}
			ix, nerr := New(db, "word", of, eachWord, Options{Unique: unique})
			require.NoError(t, nerr)
			require.NoError(t, put(ctx, db, "1", "a"))

			away.Store(&err)
			_, berr := ix.Build(ctx, Pace{})
			require.ErrorIs(t, berr, err, "it would be readable without the entry")
			away.Store(nil)
			_, berr = ix.Build(ctx, Pace{})
			require.NoError(t, berr)

			away.Store(&err)
			require.ErrorIs(t, remove(ctx, db, "1"), err, "its entry would stay")
			_, rerr := ix.Repair(ctx, Pace{})
			require.ErrorIs(t, rerr, err, "it would take the entry away")
			_, rerr = ix.Check(ctx, Pace{})
			require.ErrorIs(t, rerr, err)
			away.Store(nil)
			require.Equal(t, 1, matches(t, ix).Entries)
			require.Equal(t, []string{"1"}, has(t, db, ix, "a"))
		}
	}
}

// TestDuplicateBehindAnErrorThatPasses has a holder of a unique value that cannot be decoded at the moment: it has the value all the same.
func TestDuplicateBehindAnErrorThatPasses(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	var away atomic.Pointer[error]
	err := errAway
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: onlyRow{trouble{err: &away}, "1"}}
	ix, nerr := New(db, "word", of, eachWord, Options{Unique: true})
	require.NoError(t, nerr)
	require.NoError(t, put(ctx, db, "1", "a"))
	_, nerr = ix.Build(ctx, Pace{})
	require.NoError(t, nerr)
	info, nerr := infoOf(ctx, db, "word")
	require.NoError(t, nerr)
	away.Store(&err)
	nerr = db.Update(ctx, func(tx *percolator.Txn) error {
		_, err := ix.hasValue(ctx, tx, "1", key("a"))
		return err
	}, percolator.WithIndexUpkeep(info))
	require.ErrorIs(t, nerr, errAway)
}

// onlyRow has its trouble with one row alone.
type onlyRow struct {
	trouble
	row string
}

func (c onlyRow) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (string, error) {
	if cell.Row != c.row {
		return string(stored), nil
	}
	return c.trouble.Decode(ctx, cell, stored)
}

// TestDamagedForGood: what nobody can decode any more can be replaced.
func TestDamagedForGood(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, err := range []error{typed.ErrDecode, typed.ErrKeyGone} {
		var gone atomic.Pointer[error]
		db := percolatetest.Open(t)
		of := typed.Column[string]{Table: "doc", Name: "text", Codec: onlyRow{trouble{err: &gone}, "1"}}
		ix, nerr := New(db, "word", of, eachWord, Options{})
		require.NoError(t, nerr)
		require.NoError(t, put(ctx, db, "1", "a"))
		gone.Store(&err)
		r, nerr := ix.Build(ctx, Pace{})
		require.NoError(t, nerr)
		require.Equal(t, 1, r.Damaged)
		require.ErrorIs(t, r.FirstDamaged, err)
		require.NoError(t, remove(ctx, db, "1"))
		require.Zero(t, matches(t, ix).Entries)
	}
}

// TestManyEntriesForFewCells has rows of which a few have more entries than a transaction may write.
func TestManyEntriesForFewCells(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t, percolator.WithLimits(percolator.Limits{Cells: 40}))
	const rows, each = 12, 30
	for row := range rows {
		require.NoError(t, put(ctx, db, fmt.Sprint(row), manyWords(each)))
	}
	ix := wordIndex(t, db, Options{})
	_, err := ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, rows*each, matches(t, ix).Entries)
	require.Len(t, has(t, db, ix, "m7"), rows)

	// An entry that a row should not have, for each of them, is more than one transaction may remove.
	info, err := infoOf(ctx, db, "word")
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for j := range 30 {
				if err := tx.Set(ix.entry(key(fmt.Sprint(i, j)), "1"), []byte("1")); err != nil {
					return err
				}
			}
			return nil
		}, percolator.WithIndexUpkeep(info)))
	}
	_, err = ix.Repair(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, rows*each, matches(t, ix).Entries)
	require.NoError(t, Drop(ctx, db, "word", Pace{}))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "index/word"}) {
			require.NoError(t, err)
			require.Fail(t, "an entry is left", "%q", row.Key)
		}
		return nil
	}))

	// One row that has more is an error, not an endless build.
	require.NoError(t, put(ctx, db, "wide", manyWords(41)))
	_, err = ix.Build(ctx, Pace{})
	require.ErrorIs(t, err, percolator.ErrTooLarge)
}

func manyWords(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "m%d ", i)
	}
	return b.String()
}

type oneKey struct{}

func (oneKey) Current(context.Context, percolator.Cell) (string, []byte, error) {
	return "k", bytes.Repeat([]byte{7}, 32), nil
}

func (oneKey) Key(context.Context, percolator.Cell, string) ([]byte, error) {
	return bytes.Repeat([]byte{7}, 32), nil
}

// TestEncryptedColumn: whoever encrypts a column must say that its values may lie in the clear.
func TestEncryptedColumn(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	secret := typed.Encrypted[string]{Codec: typed.Text[string]{}, Keys: oneKey{}}
	for _, codec := range []typed.Codec[string]{secret, typed.Versions[string]{Current: 1, Codecs: map[byte]typed.Codec[string]{0: typed.Text[string]{}, 1: secret}}} {
		_, err := New(db, "word", typed.Column[string]{Table: "doc", Name: "text", Codec: codec}, eachWord, Options{})
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.ErrorContains(t, err, "in the clear")
	}
	of := typed.Column[string]{Table: "doc", Name: "text", Codec: secret}
	ix, err := New(db, "word", of, eachWord, Options{Clear: true})
	require.NoError(t, err)
	_, err = ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return of.Set(ctx, tx, "1", "a") }))
	require.Equal(t, []string{"1"}, has(t, db, ix, "a"))
}

// TestDeletedRows deletes rows as wholes, and ranges of them: their entries go too.
func TestDeletedRows(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := built(t, db, Options{Unique: true})
	for i := range 4 {
		require.NoError(t, put(ctx, db, fmt.Sprint(i), fmt.Sprintf("w%d", i)))
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.DeleteRow(ctx, "doc", "0") }))
	require.NoError(t, put(ctx, db, "9", "w0"), "the value is free")
	require.Equal(t, 4, matches(t, ix).Entries)
	_, err := db.DeleteRange(ctx, percolator.Range{Table: "doc", From: "1", To: "3"})
	require.NoError(t, err)
	require.Equal(t, 2, matches(t, ix).Entries)
	require.Equal(t, []string{"9"}, has(t, db, ix, "w0"))
}

// TestEraseTakesEntriesAway: to erase rows takes their entries away, with the history of all entries. Nobody else may erase in that table.
func TestEraseTakesEntriesAway(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := built(t, db, Options{})
	require.NoError(t, put(ctx, db, "1", "a"))
	var before percolator.Timestamp
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return words.Set(ctx, tx, "2", "b") }, percolator.WithCommitTimestamp(&before)))
	_, err := db.Erase(ctx, percolator.Range{Table: "index/word"})
	require.ErrorIs(t, err, percolator.ErrIndexed)
	_, err = db.Erase(ctx, percolator.Range{Table: "doc", From: "1", To: "2"})
	require.NoError(t, err)
	require.Empty(t, has(t, db, ix, "a"))
	require.Equal(t, []string{"2"}, has(t, db, ix, "b"))
	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, ix.entry(key("b"), "2"))
		return err
	}, percolator.WithAsOfTimestamp(before)), percolator.ErrSnapshotTooOld)
}
