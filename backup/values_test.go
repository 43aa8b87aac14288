package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
)

// everyValue lists the values of a database.
func everyValue(t *testing.T, db *percolator.DB) map[percolator.Cell]string {
	t.Helper()
	all := map[percolator.Cell]string{}
	tables, err := userTables(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, exportTables(t.Context(), db, tables, func(c percolator.Cell, v []byte, _ float64) error {
		all[c] = string(v)
		return nil
	}))
	return all
}

// TestExportAndImport takes the values of a shop into an empty database, in both formats, and observers run for them.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{JSONLines, CSV} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			s := openShop(t, "memory:")
			defer s.close(t)
			s.fill(t, far)
			var out bytes.Buffer
			n, err := Export(t.Context(), s.db, &out, ExportOptions{Format: f})
			require.NoError(t, err)
			want := everyValue(t, s.db)
			require.Len(t, want, int(n))
			require.Contains(t, out.String(), "%00%FE")

			into := openShop(t, "memory:")
			defer into.close(t)
			text := out.String()
			lines := strings.Count(text, "\n")
			half, err := Import(t.Context(), into.db, strings.NewReader(text[:len(text)/2]+"\x00"), ImportOptions{Format: f, Batch: 7})
			require.ErrorIs(t, err, percolator.ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("line %d", 1+strings.Count(text[:len(text)/2], "\n")))
			require.Positive(t, half)
			for c, v := range everyValue(t, into.db) {
				require.Equal(t, want[c], v)
			}
			last, err := Import(t.Context(), into.db, strings.NewReader(text), ImportOptions{Format: f, After: half})
			require.NoError(t, err)
			require.EqualValues(t, lines, last)
			require.Equal(t, want, everyValue(t, into.db))
			into.work(t, nil)
			require.NotEmpty(t, into.took(), "no observer ran")
		})
	}
}

// TestBadLines: a line that will not do is named, and nothing of its batch is written.
func TestBadLines(t *testing.T) {
	t.Parallel()
	good := `{"table":"t","row":"r","column":"c","value":"v"}` + "\n"
	for _, c := range []struct {
		f    Format
		line string
	}{
		{JSONLines, `{"table":"t","row":"r","column":"c"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"v","more":1}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"%4"}`},
		{JSONLines, `{"table":"","row":"r","column":"c","value":"v"}`},
		{JSONLines, `{"table":"t","row":"` + strings.Repeat("r", 1<<20) + `","column":"c","value":"v"}`},
		{JSONLines, `{} {}`},
		{JSONLines, `t,r,c,v`},
		{CSV, `t,r,c`},
		{CSV, `t,r,c,"v`},
		{CSV, `t,r,c,%`},
	} {
		s := openShop(t, "memory:")
		before := good + "\n"
		if c.f == CSV {
			before = "table,row,column,value\nt,r,c,v\n"
		}
		line, err := Import(t.Context(), s.db, strings.NewReader(before+c.line+"\n"), ImportOptions{Format: c.f})
		if c.line == `t,r,c,%` { // an empty value
			require.NoError(t, err)
			s.close(t)
			continue
		}
		require.Error(t, err, c.line)
		require.True(t, errors.Is(err, percolator.ErrInvalid) || errors.Is(err, percolator.ErrTooLarge), "%v", err)
		require.ErrorContains(t, err, "line 3")
		require.Zero(t, line)
		require.Empty(t, everyValue(t, s.db), c.line)
		s.close(t)
	}
}

// TestHeaders: a first line that names the fields is no cell, however a spreadsheet has written it. Where it names them in another way the file is refused.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for head, good := range map[string]bool{
		"table,row,column,value":                 true,
		"\ufefftable,row,column,value":           true,
		`"table","row","column","value"`:         true,
		"\ufeff\"table\",row,column,\"value\"\r": true,
		"Table,Row,Column,Value":                 false,
		"row,table,column,value":                 false,
		"table, row, column, value":              false,
		"\ufeffTABLE,ROW,COLUMN,VALUE":           false,
	} {
		s := openShop(t, "memory:")
		line, err := Import(t.Context(), s.db, strings.NewReader(head+"\nt,r,c,v\n"), ImportOptions{Format: CSV})
		if good {
			require.NoError(t, err, "%q", head)
			require.EqualValues(t, 2, line)
			require.Equal(t, map[percolator.Cell]string{at("t", "r", "c"): "v"}, everyValue(t, s.db), "%q", head)
		} else {
			require.ErrorIs(t, err, percolator.ErrInvalid, "%q", head)
			require.ErrorContains(t, err, "line 1")
			require.Empty(t, everyValue(t, s.db), "%q", head)
		}
		s.close(t)
	}
}

// TestImportOfAnIndexedColumn: a program that does not keep the index must not write its column.
func TestImportOfAnIndexedColumn(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	_, err := s.db.DefineIndex(t.Context(), percolator.Upkeep{
		Name: "by value", Table: "t", Column: "c", Entries: "entries",
		Keep: func(context.Context, *percolator.Txn, []percolator.RowChange) error { return nil },
	})
	require.NoError(t, err)
	other := everystore.Over(t, s.db.Store())
	_, err = Import(t.Context(), other, strings.NewReader(`{"table":"t","row":"r","column":"c","value":"v"}`), ImportOptions{})
	require.ErrorIs(t, err, percolator.ErrIndexed)
	require.Empty(t, everyValue(t, s.db))
}

// TestHeaderBehindAfter: the fields are named in another order. Whoever goes on behind the first line, as the error of that line may suggest, would have every value in the wrong place.
func TestHeaderBehindAfter(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	t.Cleanup(func() { s.close(t) })
	for _, after := range []int64{0, 1, 5} {
		_, err := Import(t.Context(), s.db, strings.NewReader("row,table,column,value\nr,t,c,v\n"), ImportOptions{Format: CSV, After: after})
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.ErrorContains(t, err, "line 1")
	}
	require.NoError(t, s.db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), percolator.Cell{Table: "r", Row: "t", Column: "c"})
		require.ErrorIs(t, err, percolator.ErrNotFound)
		return nil
	}))
}
