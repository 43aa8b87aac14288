package index

import (
	"bytes"
	"context"
	"slices"
	"testing"

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
