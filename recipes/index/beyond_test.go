package index

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestRowsBeyondTheLimits has a process whose Limits allow shorter keys than those of another one. The other one's rows have their values all the same.
func TestRowsBeyondTheLimits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	wide := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	narrow := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings, percolator.WithLimits(percolator.Limits{Row: 1000}))
	for _, unique := range []bool{true, false} {
		long := strings.Repeat("w", 1500)
		name := map[bool]string{true: "one", false: "many"}[unique]
		of, err := New(wide, name, words, eachWord, Options{Unique: unique})
		require.NoError(t, err)
		other, err := New(narrow, name, words, eachWord, Options{Unique: unique})
		require.NoError(t, err)
		require.NoError(t, put(ctx, wide, long, name))
		_, err = of.Build(ctx, Pace{})
		require.NoError(t, err)
		if unique {
			require.ErrorIs(t, put(ctx, narrow, "x", name), ErrNotUnique)
			require.ErrorIs(t, put(ctx, wide, "x", name), ErrNotUnique)
		}
		if _, err = other.Repair(ctx, Pace{}); err != nil {
			require.ErrorIs(t, err, percolator.ErrTooLarge) // the name of an entry with the row in it
			require.False(t, unique)
		}
		matches(t, of)
		require.Equal(t, []string{long}, has(t, wide, of, name))
		require.NoError(t, Drop(ctx, wide, name, Pace{}))
	}
	// Both have the same value before there is an index. Whoever builds it finds two.
	require.NoError(t, put(ctx, wide, "x", "many"))
	for _, db := range []*percolator.DB{narrow, wide} {
		ix, err := New(db, "two", words, eachWord, Options{Unique: true})
		require.NoError(t, err)
		_, err = ix.Build(ctx, Pace{})
		require.ErrorIs(t, err, ErrNotUnique)
	}
}
