package backup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// everyValue lists the values of a database.
func everyValue(t *testing.T, db *percolator.DB) map[percolator.Cell]string {
	t.Helper()
	all := map[percolator.Cell]string{}
	require.NoError(t, exportTables(t.Context(), db, nil, func(c percolator.Cell, v []byte, _ float64) error {
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
		{JSONLines, good[:len(good)-1] + `}` + good},
		{JSONLines, good[:len(good)-1] + `]garbage`},
		{JSONLines, good[:len(good)-1] + `,`},
		{JSONLines, "{\"table\":\"t\",\"row\":\"r\",\"column\":\"c\",\"value\":\"caf\xe9\"}"},
		{JSONLines, "{\"table\":\"t\",\"row\":\"r\xe9\",\"column\":\"c\",\"value\":\"v\"}"},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"a \ud83d"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"\ud83d\ud83d\ude00"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"\uDE00\uD83D"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"\ud83d\\ude00"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"v","\ud83d":1}`},
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

// TestTextOfJSON: what JSON can write of any text is taken, also what looks like the escapes that are refused.
func TestTextOfJSON(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	for text, want := range map[string]string{
		`\ud83d\uDE00 \u00e9`: "\U0001f600 \u00e9",
		"\U0001f600\ufffd":    "\U0001f600\ufffd",
		`\ufffd`:              "\ufffd",
		`\\ud83d`:             `\ud83d`,
		`\\\\ud83d`:           `\\ud83d`,
		`\"\\\ud83d\ude00`:    "\"\\\U0001f600",
		`%E9\u0000`:           "\xe9\x00",
	} {
		_, err := Import(t.Context(), s.db, strings.NewReader(`{"table":"t","row":"r","column":"c","value":"`+text+`"} `), ImportOptions{})
		require.NoError(t, err, text)
		require.Equal(t, want, everyValue(t, s.db)[at("t", "r", "c")], text)
	}
	_, err := Import(t.Context(), s.db, strings.NewReader("t,r,c,caf\xe9\n"), ImportOptions{Format: CSV})
	require.NoError(t, err)
	require.Equal(t, "caf\xe9", everyValue(t, s.db)[at("t", "r", "c")], "CSV has bytes, and changes none")
}

// endless yields a line again and again, and calls at for each time that it is read.
type endless struct {
	line string
	at   func()
}

func (e endless) Read(b []byte) (int, error) {
	e.at()
	return copy(b, e.line), nil
}

// TestImportHeedsItsContext: also while it passes over lines that are left out, or empty, and writes nothing.
func TestImportHeedsItsContext(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	for _, line := range []string{`{"table":"t","row":"r","column":"c","value":"v"}` + "\n", "\n"} {
		ctx, cancel := context.WithCancel(t.Context())
		n, err := Import(ctx, s.db, endless{line, cancel}, ImportOptions{After: 1 << 40})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 1<<40, n)
	}
	require.Empty(t, everyValue(t, s.db))
	_, err := Import(t.Context(), s.db, io.MultiReader(strings.NewReader("\n\nhalf a li"), iotest.ErrReader(errBad)), ImportOptions{})
	require.ErrorIs(t, err, errBad)
	require.ErrorContains(t, err, "line 3")
}

// TestBadLinesTellNoValues: what is wrong with a line is said without its value, which may be a secret.
func TestBadLinesTellNoValues(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	for _, c := range []struct {
		f    Format
		line string
	}{
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"hunter2 100% of hunter2"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"hunter2 100%"}`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":"hunter2`},
		{JSONLines, `{"table":"t","row":"r","column":"c","value":{"hunter2":1}}`},
		{CSV, `t,r,c,hunter2 100% of hunter2`},
		{CSV, `t,r,c,hunter2 100%`},
		{CSV, `t,r,c,"hunter2`},
		{CSV, `t,r,c,hunter2,x`},
	} {
		_, err := Import(t.Context(), s.db, strings.NewReader(c.line), ImportOptions{Format: c.f})
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.NotContains(t, err.Error(), "hunter2", "%s", c.line)
	}
}

// TestExportIsOfOneSnapshot commits a transaction over a table that is there and a new one when all tables were listed. Either both of its writes are exported or none.
func TestExportIsOfOneSnapshot(t *testing.T) {
	t.Parallel()
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db := everystore.Over(t, store)
	write := func(cells ...percolator.Cell) {
		require.NoError(t, db.Update(context.WithoutCancel(t.Context()), func(tx *percolator.Txn) error {
			for _, c := range cells {
				if err := tx.Set(c, []byte("x")); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	write(at("a", "1", "c"))
	store.AddRule(faultstore.Rule{Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallTables }, After: func(context.Context, *faultstore.Call) {
		write(at("a", "2", "c"), at("b", "2", "c"))
	}})
	var out bytes.Buffer
	n, err := Export(t.Context(), db, &out, ExportOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n, out.String())
	require.Len(t, everyValue(t, db), 3)
}

// TestExportOutlastsARetention collects a table of short retention before the export comes to it, which takes longer than that. What the export reads is still there.
func TestExportOutlastsARetention(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	store := memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
	pass := func(d time.Duration) { ahead.Add(int64(d)) }
	db := everystore.Over(t, store, percolator.WithSettings(percolator.Settings{MaxTxnAge: 20 * time.Millisecond, Retention: 24 * time.Hour, CatalogLease: 20 * time.Millisecond}))
	require.NoError(t, db.ConfigureTable(t.Context(), "queue", percolator.TableSettings{Retention: time.Second}))
	set := func(value string) {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return errors.Join(tx.Set(at("first", "r", "c"), []byte(value)), tx.Set(at("queue", "r", "c"), []byte(value)))
		}))
	}
	set("old")
	// moves collects until the safe point of the table moves, or a while has shown that it does not.
	moves := func() bool {
		before, err := db.TableSafePoint(t.Context(), "queue")
		require.NoError(t, err)
		for range 10 {
			pass(10 * time.Second)
			_, err = db.CollectGarbage(t.Context(), percolator.GCOptions{})
			require.NoError(t, err)
		}
		after, err := db.TableSafePoint(t.Context(), "queue")
		require.NoError(t, err)
		return after.Sub(before) > 30*time.Second
	}
	require.Eventually(t, moves, time.Minute, time.Millisecond, "the table is collected by its own retention")
	set("old")
	collected := false
	var out bytes.Buffer
	_, err := Export(t.Context(), db, &out, ExportOptions{Format: CSV, Progress: func(Progress) {
		if !collected {
			collected = true
			set("new")
			require.False(t, moves(), "the export does not hold the history")
		}
	}})
	require.NoError(t, err)
	require.True(t, collected)
	require.Equal(t, "table,row,column,value\nfirst,r,c,old\nqueue,r,c,old\n", out.String())
	holds, err := db.Holds(t.Context())
	require.NoError(t, err)
	require.Empty(t, holds)
}

// failing writes nothing.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errBad }

// TestExportLeavesNoHold: an export that fails, or is given up, holds no history any longer.
func TestExportLeavesNoHold(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	s.update(t, func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(at("a", "1", "c"), make([]byte, 1<<17)), tx.Set(at("b", "1", "c"), nil))
	})
	_, err := Export(t.Context(), s.db, failing{}, ExportOptions{})
	require.ErrorIs(t, err, errBad)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = Export(ctx, s.db, io.Discard, ExportOptions{Progress: func(Progress) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	holds, err := s.db.Holds(t.Context())
	require.NoError(t, err)
	require.Empty(t, holds)
}

// TestExportFromAFullStore: a store that takes no writes can be exported, at a snapshot that lasts as long as the retention.
func TestExportFromAFullStore(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{rowstore.ErrFull, rowstore.ErrDenied} {
		store := faultstore.New(memstore.New(), faultstore.Options{})
		db := everystore.Over(t, store)
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(at("a", "1", "c"), []byte("v")) }))
		store.AddRule(faultstore.Rule{Times: -1, Fault: faultstore.Fault{Kind: faultstore.Fail, Err: refusal}, Match: func(c *faultstore.Call) bool {
			return c.Kind == faultstore.CallApply || c.Kind == faultstore.CallGroup
		}})
		var out bytes.Buffer
		_, err := Export(t.Context(), db, &out, ExportOptions{Format: CSV})
		require.NoError(t, err)
		require.Equal(t, "table,row,column,value\na,1,c,v\n", out.String())
		store.SetRules()
	}
}

// TestLongestLines: a line may be as long as the longest value makes it when each byte is escaped, and not longer. A longer one is one line, also where it is left out.
func TestLongestLines(t *testing.T) {
	t.Parallel()
	escaped := func(n int) string {
		return `{"table":"t","row":"r","column":"c","value":"` + strings.Repeat("%00", n) + "\"}\n"
	}
	in := &source{r: bufio.NewReader(strings.NewReader(escaped(24 << 20))), most: mostLine(percolator.Limits{Value: 24 << 20})}
	text, err := in.line()
	require.NoError(t, err)
	require.Greater(t, len(text), 3*24<<20)
	s := openShop(t, "memory:")
	defer s.close(t)
	db := everystore.Over(t, s.db.Store(), percolator.WithLimits(percolator.Limits{Value: 1000, Table: 8, Row: 8, Column: 8}))
	_, err = Import(t.Context(), db, strings.NewReader(escaped(1000)), ImportOptions{})
	require.NoError(t, err)
	require.Len(t, everyValue(t, db)[at("t", "r", "c")], 1000)
	long := "t,r,c," + strings.Repeat("v", 1<<18)
	_, err = Import(t.Context(), db, strings.NewReader("t,r,c,1\n"+long+"\nt,s,c,2\n"), ImportOptions{Format: CSV})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	require.ErrorContains(t, err, "line 2")
	line, err := Import(t.Context(), db, strings.NewReader("t,r,c,1\n"+long+"\nt,s,c,2\n"+long), ImportOptions{Format: CSV, After: 2})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	require.ErrorContains(t, err, "line 4")
	require.EqualValues(t, 2, line)
	line, err = Import(t.Context(), db, strings.NewReader("t,r,c,1\n"+long+"\nt,s,c,2\n"+long), ImportOptions{Format: CSV, After: 4})
	require.NoError(t, err)
	require.EqualValues(t, 4, line)
	line, err = Import(t.Context(), db, strings.NewReader(long+"\nt,s,c,2\n"), ImportOptions{Format: CSV, After: 1})
	require.NoError(t, err)
	require.EqualValues(t, 2, line)
	require.Equal(t, "2", everyValue(t, db)[at("t", "s", "c")])
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
	atend.Do(t, func() { s.close(t) })
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
