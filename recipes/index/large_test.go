package index

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestRowsOfLargeValues: whoever compares entries with their rows, or looks rows up, reads a few rows at a time if their values are large, and many if they are small.
func TestRowsOfLargeValues(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var most atomic.Int64 // rows of data in a call
	db := everystore.Over(t, faultstore.New(memstore.New(), faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
		n := int64(0)
		for _, r := range c.Reads {
			if r.Table == words.Table {
				n++
			}
		}
		for _, ask := range c.Asks {
			for _, r := range ask.Reads {
				if r.Table == words.Table {
					n++
				}
			}
		}
		most.Store(max(most.Load(), n))
		return faultstore.Fault{}
	}}), settings)
	const rows, size = 32, 1 << 20
	ix, err := New(db, "first", words, firstOf, Options{})
	require.NoError(t, err)
	o, err := NewObserved(db, "first", words, firstOf, ObservedOptions{})
	require.NoError(t, err)
	w, _, _ := keeping(t, db, o.Observer())
	for _, c := range []struct {
		size, least, most int64
	}{{10, 9, 32}, {size, 1, leastRead}} {
		text := "a" + strings.Repeat(" b", int(c.size/2))
		for i := range rows {
			require.NoError(t, put(ctx, db, fmt.Sprintf("%02d", i), text))
		}
		require.NoError(t, w.WaitIdle(ctx))
		require.NoError(t, o.Build(ctx, Pace{}))
		_, err := ix.Build(ctx, Pace{})
		require.NoError(t, err)
		for name, f := range map[string]func(tx *percolator.Txn) (int, error){
			"Check": func(tx *percolator.Txn) (int, error) {
				_, r, err := ix.step(ctx, tx, position{Part: partEntries}, defaultRows, false)
				return r.Entries - r.Stale, err
			},
			"Observed.Lookup": func(tx *percolator.Txn) (int, error) {
				all, err := seen(o.Lookup(ctx, tx, key("a")))
				return len(all), err
			},
		} {
			most.Store(0)
			n := 0
			require.NoError(t, db.View(ctx, func(tx *percolator.Txn) (err error) { n, err = f(tx); return err }))
			require.Equal(t, rows, n, name)
			require.GreaterOrEqual(t, most.Load(), c.least, name)
			require.LessOrEqual(t, most.Load(), c.most, name)
		}
	}
}

// firstOf is the Values of the first word.
func firstOf(_ string, text string) ([]keys.Key, error) {
	first, _, _ := strings.Cut(text, " ")
	return []keys.Key{key(first)}, nil
}

func TestFitting(t *testing.T) {
	t.Parallel()
	require.Equal(t, 32, fitting(32, 8, 0))
	require.Equal(t, 32, fitting(32, 8, 8*100))
	require.Equal(t, 16, fitting(32, 8, readBytes/2))
	require.Equal(t, 1, fitting(32, 8, 8*2*readBytes))
}
