package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func ownWritesInScans(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		var pairs []any
		for i := range 10 {
			pairs = append(pairs, at(fmt.Sprintf("r%02d", 2*i)), fmt.Sprint(2*i))
		}
		w.set(db, pairs...)
		tx := w.begin(db)
		model := map[string]string{}
		for i := range 10 {
			model[fmt.Sprintf("r%02d", 2*i)] = fmt.Sprint(2 * i)
		}
		for i := range 20 {
			row := fmt.Sprintf("r%02d", i)
			switch i % 5 {
			case 1:
				w.write(tx, at(row), "new")
				model[row] = "new"
			case 2:
				w.write(tx, at(row), missing)
				delete(model, row)
			}
		}
		w.write(tx, at("a"), "first", at("z"), "last")
		model["a"], model["z"] = "first", "last"
		var want []string
		for row, v := range model {
			want = append(want, row+".v="+v)
		}
		slices.Sort(want)
		require.Equal(w, want, w.scanned(tx, percolator.Range{}))
		backwards := slices.Clone(want)
		slices.Reverse(backwards)
		require.Equal(w, backwards, w.scanned(tx, percolator.Range{Reverse: true}))
		for _, n := range []int{1, 3, 5, 100} {
			require.Equal(w, want[:min(n, len(want))], w.scanned(tx, percolator.Range{Limit: n}))
			require.Equal(w, backwards[:min(n, len(want))], w.scanned(tx, percolator.Range{Limit: n, Reverse: true}))
		}
		within := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s < "r03" || s >= "r12" })
		require.Equal(w, within, w.scanned(tx, percolator.Range{From: "r03", To: "r12"}))
		w.commit(tx)
		require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
			require.Equal(w, want, w.scanned(tx, percolator.Range{}), "what is committed is what was seen")
			return nil
		}))
	})
}

func txnScans(t testing.TB, e *env) {
	w := e.world(t)
	db := w.db()
	cell := func(row, column string) percolator.Cell {
		return percolator.Cell{Table: table, Row: row, Column: column}
	}
	w.set(db, cell("a", "x"), "1", cell("a", "y"), "2", cell("b", "x"), "3", cell("c", "y"), "4", cell("d", "z"), "", cell("a\x00", "x"), "5",
		percolator.Cell{Table: "other", Row: "a", Column: "x"}, "no")
	w.set(db, cell("b", "x"), missing, cell("e", "x"), "6")
	w.set(db, cell("e", "x"), missing)
	tx := w.begin(db)
	all := []string{"a.x=1.y=2", "a\x00.x=5", "c.y=4", "d.z="}
	require.Equal(t, all, w.scanned(tx, percolator.Range{}))
	require.Equal(t, []string{"a.x=1", "a\x00.x=5"}, w.scanned(tx, percolator.Range{Columns: []string{"x"}}))
	require.Equal(t, []string{"a.y=2", "c.y=4", "d.z="}, w.scanned(tx, percolator.Range{Columns: []string{"z", "y", "none"}}))
	require.Empty(t, w.scanned(tx, percolator.Range{Columns: []string{"none"}}))
	require.Equal(t, []string{"c.y=4", "a\x00.x=5"}, w.scanned(tx, percolator.Range{From: "a\x00", To: "d", Reverse: true}))
	require.Equal(t, []string{"a\x00.x=5"}, w.scanned(tx, percolator.Range{From: "a\x00", Limit: 1}))
	require.Empty(t, w.scanned(tx, percolator.Range{From: "c", To: "a"}))
	require.Empty(t, w.scanned(tx, percolator.Range{Table: "none"}))
	require.Equal(t, all[:2], w.scanned(tx, percolator.Range{From: "a", To: percolator.PrefixEnd("a")}))
	// The loop may stop, use the transaction and write.
	for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
		require.NoError(t, err)
		require.NoError(t, tx.Set(cell(row.Key, "seen"), []byte("yes")))
		_, err := tx.GetMany(w.ctx, cell(row.Key, "x"), cell("c", "y"))
		require.NoError(t, err)
		if row.Key == "c" {
			break
		}
	}
	require.Equal(t, []string{"a.seen=yes", "a\x00.seen=yes", "c.seen=yes"}, w.scanned(tx, percolator.Range{Columns: []string{"seen"}}))

	// Many rows, long values among them.
	n := e.n(1000, 400)
	require.NoError(t, db.Update(w.ctx, func(tx *percolator.Txn) error {
		for i := range n {
			v := fmt.Sprint(i)
			if i%50 == 0 {
				v = strings.Repeat("long", 100) + v
			}
			w.write(tx, percolator.Cell{Table: "many", Row: key(i), Column: "v"}, v)
		}
		return nil
	}))
	for _, reverse := range []bool{false, true} {
		i := 0
		for row, err := range w.begin(db).Scan(w.ctx, percolator.Range{Table: "many", Reverse: reverse}) {
			require.NoError(t, err)
			at := i
			if reverse {
				at = n - 1 - i
			}
			require.Equal(t, key(at), row.Key)
			require.True(t, strings.HasSuffix(string(row.Columns["v"]), fmt.Sprint(at)))
			i++
		}
		require.Equal(t, n, i)
	}
}

func rowsAndTablesTogether(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, other := w.db(), w.db()
		var cells []percolator.Cell
		for _, tab := range []string{"t", "u", "v"} {
			for _, row := range []string{"a", "b"} {
				for _, column := range []string{"x", "y", "z"} {
					cells = append(cells, percolator.Cell{Table: tab, Row: row, Column: column})
				}
			}
		}
		for round := range 3 {
			tx := w.begin(db)
			for i, c := range cells {
				v := fmt.Sprintf("%d of round %d", i, round)
				if i%4 == 1 {
					v = strings.Repeat("long ", 100) + v
				}
				if i%5 == 2 && round == 1 {
					v = missing
				}
				w.write(tx, c, v)
			}
			w.commit(tx)
			reader := w.begin(other)
			got, err := reader.GetMany(w.ctx, cells...)
			require.NoError(w, err)
			for i, c := range cells {
				if i%5 == 2 && round == 1 {
					require.NotContains(w, got, c)
					continue
				}
				require.True(w, strings.HasSuffix(string(got[c]), fmt.Sprintf("%d of round %d", i, round)), "%v: %q", c, got[c])
			}
		}
		require.NoError(w, other.Close(w.ctx))
		require.Empty(w, w.settled(db))
	})
}
