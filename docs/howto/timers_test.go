package howto

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// openCart puts something into a cart, and has the cart looked at when nobody has touched it for half an hour.
func openCart(ctx context.Context, db *percolator.DB, cart, item string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		cell := percolator.Cell{Table: "cart", Row: cart, Column: "item"}
		if err := tx.Set(cell, []byte(item)); err != nil {
			return err
		}
		return tx.NotifyAfter(ctx, cell, 30*time.Minute) // it replaces the timer from before
	})
}

// buy empties a cart, and takes the timer back in the same transaction.
func buy(ctx context.Context, db *percolator.DB, cart string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		cell := percolator.Cell{Table: "cart", Row: cart, Column: "item"}
		if err := tx.Delete(cell); err != nil {
			return err
		}
		return tx.CancelNotify(cell)
	})
}

// remind is the observer of carts. A run for a timer has Due; one for a change has not.
func remind() percolator.Observer {
	return percolator.Observer{
		Name: "remind", Table: "cart", Column: "item",
		OnChange: func(_ context.Context, tx *percolator.Txn, ch percolator.Change) error {
			if ch.Due.IsZero() || !ch.NewFound {
				return nil
			}
			return tx.Set(percolator.Cell{Table: "reminder", Row: ch.Cell.Row, Column: "text"}, []byte("You left a "+string(ch.New)))
		},
	}
}

// addReport has a worker write a report, each working day at six in the evening of Berlin.
func addReport(w *percolator.Worker, loc *time.Location) error {
	evenings, err := percolator.Cron("0 18 * * mon-fri", loc)
	if err != nil {
		return err
	}
	return w.Every(percolator.Periodic{
		Name: "report", Version: 1, Schedule: evenings, Missed: percolator.Once,
		Func: report,
	})
}

// report counts the carts. The tick names the report, so each day has one, however late it is written.
func report(ctx context.Context, tx *percolator.Txn, tick time.Time) error {
	carts := 0
	for _, err := range tx.Scan(ctx, percolator.Range{Table: "cart"}) {
		if err != nil {
			return err
		}
		carts++
	}
	return tx.Set(percolator.Cell{Table: "report", Row: tick.Format(time.DateOnly), Column: "carts"}, []byte(strconv.Itoa(carts)))
}

// The reminder comes after half an hour, not before, and not for what was bought. The time is that of a bubble.
func TestReminders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		percolatetest.RunUntilIdle(t, db, remind())
		require.NoError(t, openCart(ctx, db, "1", "chair"))
		require.NoError(t, openCart(ctx, db, "2", "table"))
		time.Sleep(20 * time.Minute)
		require.NoError(t, openCart(ctx, db, "1", "lamp"))
		require.NoError(t, buy(ctx, db, "2"))
		time.Sleep(20 * time.Minute)
		percolatetest.RunUntilIdle(t, db, remind())
		require.Empty(t, rows(t, db, "reminder"))

		time.Sleep(10 * time.Minute)
		percolatetest.RunUntilIdle(t, db, remind())
		require.Equal(t, []string{"1"}, rows(t, db, "reminder"))
	})
}

// What comes due while no worker runs is made up for by one report, and each day after that has its own.
func TestReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins on Saturday, the first of January 2000
		db := percolatetest.Open(t)
		berlin, err := time.LoadLocation("Europe/Berlin")
		require.NoError(t, err)
		works := func() {
			w := percolator.NewWorker(db, percolator.WorkerConfig{MemberLease: 100 * time.Millisecond})
			require.NoError(t, addReport(w, berlin))
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- w.Run(ctx) }()
			require.NoError(t, w.WaitIdle(ctx))
			stop()
			require.NoError(t, <-ended)
		}
		works()
		require.Empty(t, rows(t, db, "report"))
		const carts = 300 // more than a byte can tell
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			for i := range carts {
				if err := tx.Set(percolator.Cell{Table: "cart", Row: strconv.Itoa(i), Column: "item"}, []byte("hat")); err != nil {
					return err
				}
			}
			return nil
		}))
		for _, days := range []time.Duration{5, 1, 1, 1} { // Thursday, Friday, Saturday, Sunday
			time.Sleep(days * 24 * time.Hour)
			works()
		}
		require.Equal(t, []string{"2000-01-05", "2000-01-06", "2000-01-07"}, rows(t, db, "report"))
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			v, err := tx.Get(t.Context(), percolator.Cell{Table: "report", Row: "2000-01-07", Column: "carts"})
			require.Equal(t, strconv.Itoa(carts), string(v))
			return err
		}))
	})
}

func rows(t *testing.T, db *percolator.DB, table string) (keys []string) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		keys = keys[:0]
		for row, err := range tx.Scan(t.Context(), percolator.Range{Table: table}) {
			if err != nil {
				return err
			}
			keys = append(keys, row.Key)
		}
		return nil
	}))
	return keys
}
