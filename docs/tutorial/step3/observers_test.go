package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestWordsWithASlash: a / parts words, since it ends the word in the name of a row. Each word is counted by its own name.
func TestWordsWithASlash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := percolatetest.Open(t)
	observers := []percolator.Observer{
		{Name: "split", Table: "note", Column: "text", OnChange: split},
		{Name: "count", Table: "word", Column: "in", OnChange: count},
	}
	counts := func() map[string]string {
		percolatetest.RunUntilIdle(t, db, observers...)
		all := map[string]string{}
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "count"}) {
				require.NoError(t, err)
				all[row.Key] = string(row.Columns["notes"])
			}
			return nil
		}))
		return all
	}
	require.NoError(t, add(ctx, db, "1", "and/or"))
	require.NoError(t, add(ctx, db, "2/3", "/and\tmore/ //"))
	require.Equal(t, map[string]string{"and": "2", "or": "1", "more": "1"}, counts())
	require.NoError(t, add(ctx, db, "1", "or"))
	require.Equal(t, map[string]string{"and": "1", "or": "1", "more": "1"}, counts())
}
