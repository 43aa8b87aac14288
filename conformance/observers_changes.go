package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// transitions keeps, for each row, what an observer of old values was told: each change is joined to the
// one before, so a gap shows.
func transitions(name, from string) percolator.Observer {
	o := observer(name, from, nil)
	o.Func, o.OnChange = nil, func(ctx context.Context, tx *percolator.Txn, ch percolator.Change) error {
		entry := percolator.Cell{Table: "transitions " + name, Row: ch.Cell.Row, Column: "all"}
		before, err := get(ctx, tx, entry)
		if err != nil {
			return err
		}
		short := func(value []byte, found bool) string {
			if !found {
				return "none"
			}
			return strings.TrimRight(string(value), "x")
		}
		if before == missing {
			before = ""
		}
		return tx.Set(entry, []byte(before+short(ch.Old, ch.OldFound)+">"+short(ch.New, ch.NewFound)+" "))
	}
	return o
}

// collectionKeepsOldValues collects garbage while no worker runs, after many changes that an observer of
// old values has not seen, of short values, long ones and deletes. It is told what it saw last.
func collectionKeepsOldValues(t testing.TB, e *env) {
	e.in(t, "Default", nil, func(w *world) {
		db, loader := w.db(quickly()), w.db()
		long := strings.Repeat("x", 3000)
		run := func() {
			r := w.work(db, quickWorker, transitions("told", "a"))
			r.idle()
			r.end()
		}
		w.set(loader, col("short", "a"), "1", col("long", "a"), "1"+long, col("deleted", "a"), "1")
		run()
		w.set(loader, col("deleted", "a"), missing)
		run()
		for round := range 2 {
			for i := range 30 {
				v := fmt.Sprint(round, "-", i)
				w.set(loader, col("short", "a"), v, col("long", "a"), v+long, col("deleted", "a"), v+long)
			}
			// Who writes knows where the garbage is.
			for _, by := range []*percolator.DB{loader, db} {
				report := w.collectOld(by)
				require.NotZero(w, report.SafePoint)
			}
			for _, row := range []string{"short", "long", "deleted"} {
				rows, err := w.inner.Read(w.ctx, []rowstore.RowRead{{Table: table, Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "a", To: oracle.Max}}}})
				require.NoError(w, err)
				require.NoError(w, rows[0].Err)
				require.Len(w, rows[0].Versions, 1, "the history was to be collected")
			}
			run()
		}
		of := func(row string) string {
			return w.now(loader, percolator.Cell{Table: "transitions told", Row: row, Column: "all"})[0]
		}
		for _, row := range []string{"short", "long"} {
			require.Equal(w, "none>1 1>0-29 0-29>1-29 ", of(row), row)
		}
		require.Equal(w, "none>1 1>none none>0-29 0-29>1-29 ", of("deleted"))
	})
}
