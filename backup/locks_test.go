package backup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// leaveLocks locks cells as a transaction of a process does that died before its commit point.
func leaveLocks(t *testing.T, store rowstore.Store, cells ...percolator.Cell) {
	t.Helper()
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](store)
	require.True(t, ok)
	start, err := p.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	primary := format.Cell{Table: format.Escape(cells[0].Table), Row: cells[0].Row, Column: format.Escape(cells[0].Column)}
	for _, c := range cells {
		l := format.Lock{Kind: format.KindPut, Session: "dead", Expiry: start, Primary: primary, Value: []byte("9")}
		outs, err := store.Apply(t.Context(), []rowstore.Mutation{{
			Table: format.Escape(c.Table), Row: c.Row,
			Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, format.Escape(c.Column), start, l.Encode())},
		}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
	}
}
