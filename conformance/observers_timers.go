package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// rings has a row for each cell whose timers have run: when they were due.
var rings = percolator.Cell{Table: "rings", Column: "due"}

// ringer is an observer that writes rings.
func ringer() percolator.Observer {
	o := observer("ring", "a", nil)
	o.Func, o.OnChange = nil, func(ctx context.Context, tx *percolator.Txn, ch percolator.Change) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if now.Before(ch.Due) {
			return fmt.Errorf("a run at %v for a timer that is due at %v", now, ch.Due)
		}
		entry := rings
		entry.Row = ch.Cell.Row
		before, err := get(ctx, tx, entry)
		if err != nil {
			return err
		}
		if before == missing {
			before = ""
		}
		return tx.Set(entry, []byte(before+ch.Due.Format(time.RFC3339Nano)+" "))
	}
	return o
}

// timersRunWhenDue sets timers, replaces some and cancels others, first while timers are new to the data, which
// are then all in the index, and then again. Each runs once, and not before it is due. It is long because it is one story.
func timersRunWhenDue(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, ringer())
		r.idle()
		set := func(row string, ahead time.Duration) (due time.Time) {
			require.NoError(w, loader.Update(w.ctx, func(tx *percolator.Txn) error {
				now, err := tx.Now(w.ctx)
				due = now.Add(ahead)
				return errors.Join(err, tx.Set(col("beside "+row, "v"), []byte("x")), tx.NotifyAt(col(row, "a"), due))
			}))
			return due
		}
		cancel := func(row string) (at time.Time) {
			require.NoError(w, loader.Update(w.ctx, func(tx *percolator.Txn) error {
				var err error
				at, err = tx.Now(w.ctx)
				return errors.Join(err, tx.CancelNotify(col(row, "a")))
			}))
			return at
		}
		w.until("the loader to know the observer", func() bool {
			return !errors.Is(loader.Update(w.ctx, func(tx *percolator.Txn) error { return tx.NotifyAfter(w.ctx, col("none", "a"), time.Hour) }), percolator.ErrNotObserved)
		})
		cancel("none")
		want, late := map[string]string{}, map[string]bool{}
		for round := range 2 {
			for i, ahead := range []time.Duration{-time.Hour, 0, 150 * time.Millisecond, 300 * time.Millisecond} {
				row := fmt.Sprint("r", i)
				want[row] += set(row, ahead).Format(time.RFC3339Nano) + " "
			}
			set("replaced", 10*time.Minute)
			want["replaced"] += set("replaced", 200*time.Millisecond).Format(time.RFC3339Nano) + " "
			// On a slow machine a timer may be due before it is cancelled: one that was cancelled in time must not
			// run, and there is one.
			for ahead := 200 * time.Millisecond; ; ahead *= 4 {
				row := fmt.Sprint("cancelled", round, ahead)
				due := set(row, ahead)
				if cancel(row).Before(due) {
					break
				}
				late[row] = true
			}
			set("far", time.Hour)
			rung := func() map[string]string {
				got := map[string]string{}
				require.NoError(w, loader.View(w.ctx, func(tx *percolator.Txn) error {
					for row, err := range tx.Scan(w.ctx, percolator.Range{Table: rings.Table}) {
						if err != nil {
							return err
						}
						if !late[row.Key] {
							got[row.Key] = string(row.Columns[rings.Column])
						}
					}
					return nil
				}))
				return got
			}
			w.until("every timer that is due to have run", func() bool {
				got := rung()
				for row, all := range want {
					if len(got[row]) < len(all) {
						return false
					}
				}
				return true
			})
			r.idle()
			require.Equal(w, want, rung(), "round %d", round)
			require.Equal(w, missing, w.now(loader, col("r0", "a"))[0], "a timer writes nothing")
		}
		w.cleared()
	})
}
