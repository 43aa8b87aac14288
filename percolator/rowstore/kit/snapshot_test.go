package kit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// drawFunc is an oracle.
type drawFunc func(ctx context.Context, n int) (oracle.Timestamp, error)

func (f drawFunc) Draw(ctx context.Context, n int) (oracle.Timestamp, error) { return f(ctx, n) }

// readFunc is a store that can do nothing but Read.
type readFunc struct {
	rowstore.Store
	read func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error)
}

func (s readFunc) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return s.read(ctx, reads)
}

func TestTimestampThenRead(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	defer func() { require.NoError(t, s.Close()) }()
	var muts []rowstore.Mutation
	for _, row := range []string{"a", "b", "c"} {
		m := rowstore.Mutation{Table: "t", Row: row}
		for ts := range rowstore.Timestamp(40) {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, "c", ts+1, []byte(row)))
		}
		muts = append(muts, m)
	}
	_, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	read := func(row string) rowstore.RowRead {
		return rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: rowstore.AssignedTimestamp, Limit: 1}}}
	}
	draws := 0
	draw := drawFunc(func(_ context.Context, n int) (oracle.Timestamp, error) {
		draws++
		require.Equal(t, 3, n, "a timestamp for each")
		return 10, nil
	})
	answers, err := kit.TimestampThenRead(t.Context(), draw, s, []rowstore.SnapshotRead{
		{Reads: []rowstore.RowRead{read("a"), read("b")}}, {Reads: []rowstore.RowRead{read("c")}}, {Reads: []rowstore.RowRead{read("a"), read("none")}},
	})
	require.NoError(t, err)
	require.Equal(t, 1, draws)
	row := func(name string, ts rowstore.Timestamp) rowstore.Row {
		return rowstore.Row{Table: "t", Row: name, Versions: []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: ts, Value: []byte(name)}}}
	}
	require.Equal(t, []rowstore.SnapshotRows{
		{TS: 10, Apart: true, Rows: []rowstore.Row{row("a", 10), row("b", 10)}},
		{TS: 11, Apart: true, Rows: []rowstore.Row{row("c", 11)}},
		{TS: 12, Apart: true, Rows: []rowstore.Row{row("a", 12), {Table: "t", Row: "none"}}},
	}, answers)
	// A caller may append to its own rows.
	require.Len(t, answers[0].Rows[:2:2], cap(answers[0].Rows))
}

func TestTimestampThenReadFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	fine := drawFunc(func(context.Context, int) (oracle.Timestamp, error) { return 1, nil })
	never := drawFunc(func(context.Context, int) (oracle.Timestamp, error) { panic("nothing to draw for") })
	fails := drawFunc(func(context.Context, int) (oracle.Timestamp, error) { return 0, broken })
	unread := readFunc{read: func(context.Context, []rowstore.RowRead) ([]rowstore.Row, error) { panic("nothing to read") }}
	unreadable := readFunc{read: func(context.Context, []rowstore.RowRead) ([]rowstore.Row, error) { return nil, broken }}
	asks := []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write}}}}}}

	answers, err := kit.TimestampThenRead(t.Context(), never, unread, nil)
	require.NoError(t, err)
	require.Empty(t, answers)
	_, err = kit.TimestampThenRead(gone, never, unread, nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = kit.TimestampThenRead(t.Context(), never, unread, []rowstore.SnapshotRead{{}})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	_, err = kit.TimestampThenRead(t.Context(), fails, unread, asks)
	require.ErrorIs(t, err, broken)
	_, err = kit.TimestampThenRead(t.Context(), fine, unreadable, asks)
	require.ErrorIs(t, err, broken)
}
