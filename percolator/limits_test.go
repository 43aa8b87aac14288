package percolator

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// calls are all calls of a transaction with a cell, as their errors.
func cellCalls(ctx context.Context, tx *Txn, c Cell) map[string]error {
	_, get := tx.Get(ctx, c)
	_, many := tx.GetMany(ctx, rowA, c)
	_, update := tx.GetForUpdate(ctx, c)
	return map[string]error{"Get": get, "GetMany": many, "GetForUpdate": update, "Set": tx.Set(c, nil), "Delete": tx.Delete(c), "Notify": tx.Notify(c)}
}

func scanError(seq iter.Seq2[Row, error]) (err error) {
	for _, err = range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestBadCells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(WithLimits(Limits{Table: 8, Row: 9, Column: 10}))
	tx := begin(t, c)
	for _, test := range []struct {
		cell Cell
		is   error
		says string
	}{
		{Cell{"", "r", "c"}, ErrInvalid, "table's name is empty"},
		{Cell{"t", "", "c"}, ErrInvalid, "row's key is empty"},
		{Cell{"t", "r", ""}, ErrInvalid, "column's name is empty"},
		{Cell{strings.Repeat("t", 9), "r", "c"}, ErrTooLarge, "table's name has 9 bytes, the limit is 8"},
		{Cell{"t", strings.Repeat("r", 10), "c"}, ErrTooLarge, "row's key has 10 bytes, the limit is 9"},
		{Cell{"t", "r", strings.Repeat("c", 11)}, ErrTooLarge, "column's name has 11 bytes, the limit is 10"},
	} {
		for name, err := range cellCalls(t.Context(), tx, test.cell) {
			require.ErrorIs(t, err, test.is, "%s of %v", name, test.cell)
			require.ErrorContains(t, err, test.says)
		}
		_, err := c.Outcome(t.Context(), startOf(tx), test.cell)
		require.ErrorIs(t, err, test.is)
		require.ErrorIs(t, c.Release(t.Context(), ParkedRun{Observer: "o", Cell: test.cell}), test.is)
	}
	for _, r := range []struct {
		r  Range
		is error
	}{
		{Range{}, ErrInvalid},
		{Range{Table: "t", Limit: -1}, ErrInvalid},
		{Range{Table: "t", Columns: []string{"v", ""}}, ErrInvalid},
		{Range{Table: strings.Repeat("t", 9)}, ErrTooLarge},
		{Range{Table: "t", Columns: []string{strings.Repeat("c", 11)}}, ErrTooLarge},
	} {
		require.ErrorIs(t, scanError(tx.Scan(t.Context(), r.r)), r.is, "%+v", r.r)
	}
	require.NoError(t, scanError(tx.Scan(t.Context(), Range{Table: "t", From: "z", To: "a"})), "an empty range is none")
	// The transaction is as it was.
	longest := Cell{strings.Repeat("t", 8), strings.Repeat("r", 9), strings.Repeat("c", 10)}
	require.NoError(t, tx.Set(longest, []byte("fits")))
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, "fits", value(t, c, longest))
}

// A transaction that grows over a limit is told so by the call that does it, and
// nothing is written by anybody.
func TestTransactionLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client(WithLimits(Limits{Value: 100, Cells: 5, Bytes: 1000}))
	require.Equal(t, 100, c.Limits().Value)
	require.Equal(t, 512, c.Limits().Table)
	tx := begin(t, c)
	err := tx.Set(rowA, make([]byte, 101))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "101")
	require.ErrorContains(t, err, "t/a/v")
	require.NoError(t, tx.Set(rowA, make([]byte, 100)))
	require.NoError(t, tx.Set(rowA, make([]byte, 100)), "the same cell counts once")
	for i := range 2 {
		require.NoError(t, tx.Delete(row(fmt.Sprint(i))))
	}
	_, err = tx.GetForUpdate(t.Context(), rowB)
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, tx.Notify(rowC))
	require.NoError(t, tx.Notify(rowC), "the same cell counts once")
	// Five it is.
	for _, err := range []error{tx.Set(row("6"), nil), tx.Delete(row("6")), tx.Notify(row("6"))} {
		require.ErrorIs(t, err, ErrTooLarge)
		require.ErrorContains(t, err, "more than 5 cells")
	}
	_, err = tx.GetForUpdate(t.Context(), row("6"))
	require.ErrorIs(t, err, ErrTooLarge)
	require.NoError(t, tx.Set(rowB, []byte("was locked")), "it counts already")
	require.NoError(t, tx.Rollback(t.Context()))

	tx = begin(t, c)
	var n int
	for err = nil; err == nil; n++ {
		err = tx.Set(Cell{"t", "r", fmt.Sprint("col", n)}, make([]byte, 100))
	}
	require.ErrorIs(t, err, ErrTooLarge)
	require.Equal(t, 6, n)
	tx = begin(t, c)
	big := begin(t, w.client(WithLimits(Limits{Bytes: 250})))
	require.NoError(t, big.Set(rowA, make([]byte, 100)))
	require.NoError(t, big.Set(rowB, make([]byte, 100)))
	require.ErrorIs(t, big.Set(rowC, make([]byte, 100)), ErrTooLarge)
	require.NoError(t, big.Set(rowB, nil))
	require.NoError(t, big.Set(rowC, make([]byte, 100)), "what was replaced does not count")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, big.Rollback(t.Context()))
	require.Empty(t, w.versions(rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Notify))
}

// The store's own limits hold too, and leave room for what the library adds to
// names: a cell that Set takes can be committed, observed and parked.
func TestLimitsOfTheStore(t *testing.T) {
	t.Parallel()
	limits := rowstore.Limits{Table: 20, Row: 300, Column: 200, Value: 2000}
	db := open(t, memstore.New(memstore.WithLimits(limits)), quick)
	l := db.Limits()
	require.Less(t, l.Table, limits.Table+1)
	require.Less(t, l.Column, limits.Column)
	name := func(first string, n int) string { return first + strings.Repeat("x", n-len(first)) }
	for _, first := range []string{"\x00", "y"} {
		cell := Cell{name(first, l.Table), name(first, 30), name(first, l.Column)}
		observer := name("o", format.MaxObserverName)
		fails := true
		w := startWorker(t, db, WorkerConfig{MaxAttempts: 1}, Observer{Name: observer, Table: cell.Table, Column: cell.Column, Func: func(context.Context, *Txn, Cell) error {
			if fails {
				return fmt.Errorf("on purpose")
			}
			return nil
		}})
		idle(t, w)
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(cell, bytes.Repeat([]byte("v"), 1000)) }))
		idle(t, w)
		parked, err := db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.Equal(t, cell, parked[0].Cell)
		require.Equal(t, observer, parked[0].Observer)
		fails = false
		require.NoError(t, db.Release(t.Context(), parked...))
		idle(t, w)
		over := cell
		over.Column += "x"
		require.ErrorIs(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(over, nil) }), ErrTooLarge)
		over = cell
		over.Table += "x"
		require.ErrorIs(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(over, nil) }), ErrTooLarge)
	}
	// A value of just the limit, and a transaction over it in two phases: nothing of
	// it is there.
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(rowA, make([]byte, l.Value)) }))
	require.ErrorIs(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(rowA, make([]byte, l.Value+1)) }), ErrTooLarge)
}

// What the store refuses at last, after the library let it by, is a clear error
// with nothing written.
func TestStoreRefusesAPrewrite(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		refused := func(x *call) bool { return prewrites(x) || x.Kind == faultstore.CallGroup }
		c.wire.AddRule(faultstore.Rule{Match: refused, Fault: refuse})
		err := writes(t, c, "1", rowA, rowB).Commit(t.Context())
		require.ErrorIs(t, err, faultstore.ErrInjected)
		require.NotErrorIs(t, err, ErrUndetermined)
		require.NoError(t, c.drained(t.Context()))
		require.Empty(t, w.versions(rowstore.Lock, rowstore.Write))
		set(t, c.DB, rowA, "2")
	})
}

// Names of the library's own and user's names that look like them do not mix.
func TestNamesThatLookReserved(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		names := []string{format.TableCatalog, format.TableSessions, format.TableParked, "\x00", "\x00\x00", "\x00\x00catalog", format.AckColumn("o", "c"), "\xff"}
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			for _, table := range names {
				for _, col := range names {
					if err := tx.Set(Cell{table, format.RowCatalog, col}, []byte(table+"|"+col)); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		require.NoError(t, db.View(ctx, func(tx *Txn) error {
			for _, table := range names {
				rows := 0
				for row, err := range tx.Scan(ctx, Range{Table: table}) {
					require.NoError(t, err)
					require.Equal(t, format.RowCatalog, row.Key)
					require.Len(t, row.Columns, len(names))
					for _, col := range names {
						require.Equal(t, table+"|"+col, string(row.Columns[col]))
					}
					rows++
				}
				require.Equal(t, 1, rows)
			}
			return nil
		}))
		_, err := db.loadCatalog(ctx)
		require.NoError(t, err)
	})
}

// Slices given and returned belong to the caller.
func TestSlicesBelongToTheCaller(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		for _, n := range []int{3, 1000} {
			given := bytes.Repeat([]byte("a"), n)
			want := bytes.Clone(given)
			scribble := func(b []byte) {
				for i := range b {
					b[i] = '!'
				}
			}
			require.NoError(t, db.Update(ctx, func(tx *Txn) error {
				require.NoError(t, tx.Set(rowA, given))
				scribble(given)
				own, err := tx.Get(ctx, rowA)
				require.NoError(t, err)
				scribble(own)
				many, err := tx.GetMany(ctx, rowA)
				require.NoError(t, err)
				scribble(many[rowA])
				for row, err := range tx.Scan(ctx, Range{Table: "t"}) {
					require.NoError(t, err)
					scribble(row.Columns["v"])
				}
				own, err = tx.Get(ctx, rowA)
				require.NoError(t, err)
				require.Equal(t, want, own)
				return nil
			}))
			require.NoError(t, db.View(ctx, func(tx *Txn) error {
				for range 2 {
					v, err := tx.Get(ctx, rowA)
					require.NoError(t, err)
					require.Equal(t, want, v)
					scribble(v)
				}
				return nil
			}))
		}
		require.NoError(t, db.Update(ctx, func(tx *Txn) error { return tx.Set(rowA, nil) }))
		require.NoError(t, db.View(ctx, func(tx *Txn) error {
			v, err := tx.Get(ctx, rowA)
			require.NoError(t, err)
			require.NotNil(t, v)
			require.Empty(t, v)
			return nil
		}))
	})
}

// Scans against a model: any range, direction, limit and choice of columns, with the
// transaction's own writes over what is committed, and locks of dead clients in
// between.
func TestScanAgainstAModel(t *testing.T) {
	t.Parallel()
	name := rapid.SampledFrom([]string{"a", "ab", "b", "b\x00", "c", "\x00", "\xff", "\xff\xff"})
	column := rapid.SampledFrom([]string{"1", "2", "\x00"})
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		c := w.client(withoutGroups())
		model := map[string]map[string]string{}
		apply := func(tx *Txn, m map[string]map[string]string) {
			for range rapid.IntRange(0, 6).Draw(rt, "writes") {
				cell := Cell{"t", name.Draw(rt, "row"), column.Draw(rt, "column")}
				if rapid.Bool().Draw(rt, "delete") {
					require.NoError(rt, tx.Delete(cell))
					delete(m[cell.Row], cell.Column)
					continue
				}
				v := rapid.SampledFrom([]string{"", "short", longText}).Draw(rt, "value")
				require.NoError(rt, tx.Set(cell, []byte(v)))
				if m[cell.Row] == nil {
					m[cell.Row] = map[string]string{}
				}
				m[cell.Row][cell.Column] = v
			}
		}
		for range 3 {
			tx, err := c.Begin(t.Context())
			require.NoError(rt, err)
			apply(tx, model)
			require.NoError(rt, tx.Commit(t.Context()))
		}
		require.NoError(rt, c.drained(t.Context()))
		dead := w.client(withoutGroups())
		dead.wire.verdict(prewrites, dieAfter)
		tx, err := dead.Begin(t.Context())
		require.NoError(rt, err)
		ignored := map[string]map[string]string{}
		apply(tx, ignored)
		_ = tx.Commit(t.Context()) // it dies, unless it has nothing to write
		w.clock.advance(2 * worldSession)
		tx, err = c.Begin(t.Context())
		require.NoError(rt, err)
		apply(tx, model)
		if rapid.Bool().Draw(rt, "lock") { // what is only locked is not written
			_, _ = tx.GetForUpdate(t.Context(), Cell{"t", name.Draw(rt, "locked"), column.Draw(rt, "column")})
		}
		r := Range{
			Table: "t", Reverse: rapid.Bool().Draw(rt, "reverse"), Limit: rapid.IntRange(0, 4).Draw(rt, "limit"),
			From: rapid.OneOf(rapid.Just(""), name).Draw(rt, "from"), To: rapid.OneOf(rapid.Just(""), name).Draw(rt, "to"),
			Columns: rapid.SliceOfN(column, 0, 2).Draw(rt, "columns"),
		}
		want := scanModel(model, r)
		var got []string
		for row, err := range tx.Scan(t.Context(), r) {
			require.NoError(rt, err)
			columns := map[string]string{}
			for col, v := range row.Columns {
				require.NotNil(rt, v)
				columns[col] = string(v)
			}
			got = append(got, fmt.Sprintf("%q %q", row.Key, columns))
		}
		require.Equal(rt, want, got, "%+v", r)
	})
}

// scanModel is what a scan of a model yields.
func scanModel(model map[string]map[string]string, r Range) []string {
	var want []string
	for _, key := range slices.Sorted(maps.Keys(model)) {
		if key < r.From || r.To != "" && key >= r.To {
			continue
		}
		visible := map[string]string{}
		for col, v := range model[key] {
			if len(r.Columns) == 0 || slices.Contains(r.Columns, col) {
				visible[col] = v
			}
		}
		if len(visible) > 0 {
			want = append(want, fmt.Sprintf("%q %q", key, visible))
		}
	}
	if r.Reverse {
		slices.Reverse(want)
	}
	if r.Limit > 0 && len(want) > r.Limit {
		want = want[:r.Limit]
	}
	return want
}
