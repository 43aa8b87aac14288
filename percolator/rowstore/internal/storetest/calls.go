package storetest

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// Apply runs one mutation and returns its outcome.
func Apply(t testing.TB, s rs.Store, m rs.Mutation, opts ...rs.ApplyOptions) rs.Outcome {
	t.Helper()
	var o rs.ApplyOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	out, err := s.Apply(t.Context(), []rs.Mutation{m}, o)
	require.NoError(t, err)
	require.Len(t, out, 1)
	require.NoError(t, out[0].Err)
	return out[0]
}

// Put makes edits of one row without conditions.
func Put(t testing.TB, s rs.Store, table, row string, edits ...rs.Edit) {
	t.Helper()
	require.True(t, Apply(t, s, rs.Mutation{Table: table, Row: row, Edits: edits}).Applied)
}

// Everything selects every version of a row.
var Everything = []rs.Selector{
	{Family: rs.Lock, To: oracle.Max},
	{Family: rs.Write, To: oracle.Max},
	{Family: rs.Data, To: oracle.Max},
	{Family: rs.Mark, To: oracle.Max},
	{Family: rs.Notify, To: oracle.Max},
}

// Read returns the versions of a row that selectors select, all without selectors, as
// text: family/column@timestamp=value.
func Read(t testing.TB, s rs.Store, table, row string, selectors ...rs.Selector) []string {
	t.Helper()
	if len(selectors) == 0 {
		selectors = Everything
	}
	rows, err := s.Read(t.Context(), []rs.RowRead{{Table: table, Row: row, Selectors: selectors}})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.NoError(t, rows[0].Err)
	require.Equal(t, table, rows[0].Table)
	require.Equal(t, row, rows[0].Row)
	return Texts(rows[0].Versions)
}

// Texts writes versions as Read does.
func Texts(versions []rs.Version) []string {
	var out []string
	for _, v := range versions {
		out = append(out, fmt.Sprintf("%d/%s@%d=%s", v.Family, v.Column, uint64(v.TS), v.Value))
	}
	return out
}

// Scanned returns the keys of the rows that a scan visits.
func Scanned(t testing.TB, s rs.Store, r rs.ScanRange) []string {
	t.Helper()
	var keys []string
	for row, err := range s.Scan(t.Context(), r) {
		require.NoError(t, err)
		require.NotEmpty(t, row.Versions)
		require.Equal(t, r.Table, row.Table)
		keys = append(keys, row.Row)
	}
	return keys
}

// Tables lists the tables of a store.
func Tables(t testing.TB, s rs.Store) []string {
	t.Helper()
	var names []string
	for name, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
		names = append(names, name)
	}
	return names
}

// FirstError returns the error that ends a sequence, or nil.
func FirstError[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

// Calls makes one call of every method that can end with an error.
func Calls(ctx context.Context, s rs.Store) map[string]error {
	errs := map[string]error{}
	_, errs["Read"] = s.Read(ctx, []rs.RowRead{{Table: "t", Row: "r", Selectors: Everything}})
	_, errs["Apply"] = s.Apply(ctx, []rs.Mutation{{Table: "t", Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 9, nil)}}}, rs.ApplyOptions{})
	errs["Scan"] = FirstError(s.Scan(ctx, rs.ScanRange{Table: "t", Selectors: Everything}))
	errs["Tables"] = FirstError(s.Tables(ctx))
	if g, ok := rs.Unwrap[rs.Grouper](s); ok {
		_, errs["Group"] = g.Group(ctx, []rs.Group{{Mutations: []rs.Mutation{{Table: "t", Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 9, nil)}}}}})
	}
	if d, ok := rs.Unwrap[rs.Deferrer](s); ok {
		errs["Flush"] = d.Flush(ctx)
	}
	if p, ok := rs.Unwrap[rs.OracleProvider](s); ok {
		_, errs["Draw"] = p.Oracle().Draw(ctx, 1)
	}
	if p, ok := rs.Unwrap[rs.Splitter](s); ok {
		_, errs["Split"] = p.Split(ctx, "t", 2)
	}
	if w, ok := rs.Unwrap[rs.Waker](s); ok {
		errs["Listen"] = w.Listen(ctx, func(rs.Wake) {})
	}
	if r, ok := rs.Unwrap[rs.Reporter](s); ok {
		_, errs["Report"] = r.Report(ctx)
	}
	return errs
}

// RequireEnds checks that every call ends at once and does nothing, with a
// context that ended and after Close.
func RequireEnds(t *testing.T, s rs.Store) {
	t.Helper()
	Put(t, s, "t", "r", rs.Put(rs.Write, "c", 1, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range Calls(ctx, s) {
		require.ErrorIs(t, err, context.Canceled, name)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
	}
	require.Equal(t, []string{"2/c@1="}, Read(t, s, "t", "r"))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	for name, err := range Calls(t.Context(), s) {
		require.ErrorIs(t, err, rs.ErrClosed, name)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
	}
}

// Step makes a mutation of so many conditions and edits.
func Step(row string, conditions, edits int) rs.Mutation {
	m := rs.Mutation{Table: "t", Row: row}
	for i := range conditions {
		m.Conditions = append(m.Conditions, rs.Absent(rs.Lock, fmt.Sprintf("c%02d", i), 0))
	}
	for i := range edits {
		m.Edits = append(m.Edits, rs.Put(rs.Write, fmt.Sprintf("c%02d", i), 1, []byte("value")))
	}
	return m
}
