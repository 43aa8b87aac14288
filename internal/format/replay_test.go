package format

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestReplays(t *testing.T) {
	t.Parallel()
	cells := map[Cell]string{}
	rapid.Check(t, func(t *rapid.T) {
		name := func(what string) []byte { return []byte(anyName.Draw(t, what)) }
		r := Replay{Observer: name("observer"), Table: name("table"), Column: name("column"), From: name("from"), To: name("to"), ID: 1 + anyTS.Draw(t, "id")/2, Next: name("next"), Cells: rapid.Int64Min(0).Draw(t, "cells")}
		b, err := r.Encode()
		require.NoError(t, err)
		got, err := DecodeReplay(b)
		require.NoError(t, err)
		require.Equal(t, r, got)
		c := r.Cell()
		require.True(t, OwnCell(c))
		require.True(t, Transactional(c.Table))
		rest := Replay{Observer: r.Observer, Table: r.Table, Column: r.Column, From: r.From, To: r.To}
		b, err = rest.Encode()
		require.NoError(t, err)
		if was, ok := cells[c]; ok {
			require.Equal(t, was, string(b), "two replays share a cell")
		}
		cells[c] = string(b)
		require.Equal(t, c, rest.Cell())
	})
	require.Equal(t, "\x00replays", TableReplays)
	require.Equal(t, []string{"\x00d", "replay"}, []string{ColumnWholeRow, ColumnReplay})
	for _, b := range []string{"", "\x00{}", "\x01", "\x01{", "\x01{}", `\x01{"observer":"bw==","table":"dA==","id":9}`} {
		_, err := DecodeReplay([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
	bad := Replay{Observer: []byte("o"), Table: []byte("t"), Column: []byte("c"), ID: oracle.Max + 1}
	b, err := bad.Encode()
	require.NoError(t, err)
	_, err = DecodeReplay(b)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = DecodeReplay([]byte("\x02{}"))
	require.ErrorIs(t, err, rowstore.ErrFormat)
}
