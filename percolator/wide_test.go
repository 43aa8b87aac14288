package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Rows of thousands of columns. What is done with one must not cost the square of their number.

func wideColumns(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("column%05d", i)
	}
	return names
}

// wideRows puts rows of some widths, whose columns have a value each. Each value is long if suffix is.
func (w *world) wideRows(c *client, suffix string, widths ...int) (names []string) {
	w.t.Helper()
	ts := mustNow(w.t, c)
	names = wideColumns(slices.Max(widths))
	for _, n := range widths {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprintf("%05d%s", n, suffix)}
		for _, name := range names[:n] {
			v := format.Write{Kind: format.KindPut, Start: ts, Long: suffix != ""}
			if v.Long {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, name, ts, []byte(longText)))
			} else {
				v.Value = []byte(name)
			}
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, name, ts+1, v.Encode()))
		}
		out, err := w.mem.Apply(w.t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
		require.NoError(w.t, err)
		require.NoError(w.t, out[0].Err)
	}
	return names
}

// A scan costs in proportion to the columns that it names, that have long values, and that the transaction itself has written: a few times what the
// scan of a row costs that has as many columns. The square of their number would be far more than that.
func TestScanOfAWideRow(t *testing.T) {
	t.Parallel()
	const columns, most, tries = 16_000, 15, 3
	const long = "long"
	w := newWorld(t)
	c := w.client()
	names := w.wideRows(c, "", columns)
	w.wideRows(c, long, columns)
	w.clock.advance(time.Second)
	scan := func(suffix string, named, sets, deletes bool) time.Duration {
		tx := begin(t, c)
		row := fmt.Sprintf("%05d%s", columns, suffix)
		r := Range{Table: "t", From: row, To: row + "\x00"}
		if named {
			r.Columns = slices.Concat(names, names[:1], []string{"another"})
		}
		for i, name := range names {
			switch cell := (Cell{"t", row, name}); {
			case deletes && i%2 == 0:
				require.NoError(t, tx.Delete(cell))
			case sets:
				require.NoError(t, tx.Set(cell, []byte("own "+name)))
			}
		}
		began, took, rows := time.Now(), time.Duration(0), 0
		for row, err := range tx.Scan(t.Context(), r) {
			took, rows = time.Since(began), rows+1
			require.NoError(t, err)
			for i, name := range names {
				want := name
				switch {
				case deletes && i%2 == 0:
					want = ""
				case sets:
					want = "own " + name
				case suffix == long:
					want = longText
				}
				if string(row.Columns[name]) != want {
					require.Equal(t, want, string(row.Columns[name]))
				}
			}
		}
		require.Equal(t, 1, rows)
		require.NoError(t, tx.Rollback(t.Context()))
		return took
	}
	shortest := func(suffix string, named, sets, deletes bool) time.Duration { // which a busy machine spoils least
		took := scan(suffix, named, sets, deletes)
		for range tries - 1 {
			took = min(took, scan(suffix, named, sets, deletes))
		}
		return took
	}
	plain := shortest("", false, false, false)
	for name, took := range map[string]time.Duration{
		"all columns named": shortest("", true, false, false),
		"long values":       shortest(long, false, false, false),
		"own writes":        shortest("", false, true, false),
		"own deletes":       shortest("", false, false, true),
	} {
		t.Logf("%s: %v, and %v for the scan of %d columns alone", name, took, plain, columns)
		require.Less(t, took, most*plain, name)
	}
}

// A transaction writes a cell again after it was deleted, and the other way round: the last one counts, in a narrow row as in a wide one.
func TestScanOfOwnWritesMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	names := w.wideRows(c, "", 3, 4*indexFrom)
	w.clock.advance(time.Second)
	for _, n := range []int{3, 4 * indexFrom} {
		tx := begin(t, c)
		row := fmt.Sprintf("%05d", n)
		want := map[string][]byte{}
		for i, name := range names[:n] {
			cell := Cell{"t", row, name}
			want[name] = []byte("own")
			require.NoError(t, tx.Delete(cell))
			require.NoError(t, tx.Set(cell, want[name]))
			if i%2 == 0 {
				require.NoError(t, tx.Delete(cell))
				require.NoError(t, tx.Delete(Cell{"t", row, "none " + name}))
				delete(want, name)
			}
		}
		rows := 0
		for got, err := range tx.Scan(t.Context(), Range{Table: "t", From: row, To: row + "\x00"}) {
			require.NoError(t, err)
			require.Equal(t, want, got.Columns)
			rows++
		}
		require.Equal(t, 1, rows)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// askedContext counts how often somebody asks whether a context has ended.
type askedContext struct {
	context.Context
	times atomic.Int64
}

func (c *askedContext) Err() error {
	c.times.Add(1)
	return c.Context.Err()
}

// A scan asks every few hundred columns whether its context has ended, and does not go through the whole of a wide row otherwise.
func TestScanOfAWideRowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	const parts = 20
	w := newWorld(t)
	c := w.client()
	w.wideRows(c, "", 1, parts*scanColumns)
	w.clock.advance(time.Second)
	scan := func(columns int) int64 {
		ctx := &askedContext{Context: t.Context()}
		row, rows := fmt.Sprintf("%05d", columns), 0
		for got, err := range begin(t, c).Scan(ctx, Range{Table: "t", From: row, To: row + "\x00"}) {
			require.NoError(t, err)
			require.Len(t, got.Columns, columns)
			rows++
		}
		require.Equal(t, 1, rows)
		return ctx.times.Load()
	}
	require.GreaterOrEqual(t, scan(parts*scanColumns)-scan(1), int64(parts-1))
}

// A commit looks for each cell that it has read, and for each that it notifies, among its writes. It holds its locks meanwhile.
func TestWritesOfAWideRowAreFound(t *testing.T) {
	t.Parallel()
	const columns = 40_000
	cell := func(i int) Cell { return Cell{"t", "r", fmt.Sprintf("column%05d", i)} }
	narrow, wide := &committer{}, &committer{}
	for i := range columns {
		wide.writes = append(wide.writes, write{cell: cell(i)})
		c := cell(i)
		c.Row = c.Column
		narrow.writes = append(narrow.writes, write{cell: c}) // a row for each
	}
	for _, c := range []*committer{narrow, wide} {
		c.writes = append(c.writes, write{cell: Cell{"a", "r", "v"}}, write{cell: Cell{"z", "r", "v"}})
		c.sortWrites(c.writes[0].cell)
	}
	for _, c := range []*committer{narrow, wide} {
		for i := range c.writes {
			if at := c.find(c.writes[i].cell); at != i {
				t.Fatalf("write %d was found at %d", i, at)
			}
		}
	}
	require.Nil(t, narrow.places)
	require.Len(t, wide.places, len(wide.writes), "a walk through the row for each of its cells takes time that is quadratic in their number")
	for _, missing := range []Cell{cell(columns), {"t", "q", "v"}, {"a", "r", "w"}, {"zz", "r", "v"}} {
		require.Equal(t, -1, wide.find(missing))
	}
	wide.writes = append(wide.writes, write{cell: Cell{"a", "a", "v"}}) // as ownPrimary does
	wide.sortWrites(cell(0))
	require.Equal(t, 2, wide.find(cell(0)))
	require.Equal(t, columns+1, wide.find(cell(columns-1)))
}
