package index

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// TestBuildOverAnyNames builds over rows and values that are no UTF-8, as package keys has them, a few in each step: where a step ends
// is stored.
func TestBuildOverAnyNames(t *testing.T) {
	t.Parallel()
	sold := typed.Column[int64]{Table: "product", Name: "sold", Codec: typed.Number[int64]{}}
	most := func(_ string, n int64) ([]keys.Key, error) { return []keys.Key{keys.Key("").Int(-n)}, nil }
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, row := range map[string]func(i int) keys.Key{
		"text":    func(i int) keys.Key { return keys.Key("").Text(strconv.Itoa(i)) },
		"times":   func(i int) keys.Key { return keys.Key("").Time(first.Add(time.Duration(i) * time.Hour)) },
		"numbers": func(i int) keys.Key { return keys.Key("").Int(int64(i - 100)) },
		"bytes":   func(i int) keys.Key { sum := sha256.Sum256([]byte{byte(i)}); return keys.Key("").Bytes(sum[:8]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a walk that goes back never ends
			defer cancel()
			inner := memstore.New()
			atend.Do(t, func() { _ = inner.Close() })
			db := everystore.Over(t, inner, settings)
			const data = 200
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				for i := range data {
					if err := sold.Set(ctx, tx, string(row(i)), int64(i%40)); err != nil {
						return err
					}
				}
				return nil
			}))
			ix, err := New(db, "best seller", sold, most, Options{})
			require.NoError(t, err)
			_, err = ix.Build(ctx, Pace{Rows: 8})
			require.NoError(t, err)
			r, err := ix.Check(ctx, Pace{})
			require.NoError(t, err)
			require.True(t, r.Matches(), "%+v", r)
			require.Equal(t, data, r.Entries)
		})
	}
}

// TestBuildForgetsProgressOfAnOlderForm has a progress of the form that may have passed rows over, of a program before, say.
func TestBuildForgetsProgressOfAnOlderForm(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	db := everystore.Over(t, inner, settings)
	const data = 20
	for i := range data {
		require.NoError(t, put(ctx, db, strconv.Itoa(i), "w"))
	}
	ix := wordIndex(t, db, Options{})
	info, err := db.DefineIndex(ctx, ix.upkeep)
	require.NoError(t, err)
	require.Equal(t, percolator.IndexMaintained, info.State)
	info, err = db.MoveIndex(ctx, info, percolator.IndexBuilding)
	require.NoError(t, err)
	text, err := json.Marshal(map[string]any{"since": info.Since, "at": info.At, "round": 1, "part": partEntries, "from": "", "differs": false})
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: ix.opt.Entries, Row: rowProgress, Column: columnProgress}, text)
	}, percolator.WithIndexUpkeep(info)))
	_, err = ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, data, matches(t, ix).Entries)
}
