package howto

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// rebuild has the observer of prices run again for all products of a shop. It returns when that
// is done.
func rebuild(ctx context.Context, db *percolator.DB, shop string) error {
	report, err := db.Replay(ctx, "price tags", percolator.Range{
		Table: "product", From: shop + "/", To: percolator.PrefixEnd(shop + "/"),
	})
	if err == nil && report.Parked+report.Waiting > 0 {
		err = fmt.Errorf("%d runs failed: see DB.Parked, and %d wait for their next attempt", report.Parked, report.Waiting)
	}
	return err
}

func TestReplaying(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	product := func(row string) percolator.Cell {
		return percolator.Cell{Table: "product", Row: row, Column: "price"}
	}
	tag := func(row string) percolator.Cell { return percolator.Cell{Table: "tag", Row: row, Column: "text"} }
	var fixed atomic.Bool
	w := startWorker(t, db, percolator.Observer{
		Name: "price tags", Table: "product", Column: "price",
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			text := "$" + string(v)
			if fixed.Load() {
				text = string(v) + " €"
			}
			return tx.Set(tag(c.Row), []byte(text))
		},
	})
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for _, row := range []string{"north/tea", "north/milk", "south/tea"} {
			if err := tx.Set(product(row), []byte("3")); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, w.WaitIdle(ctx))
	fixed.Store(true)
	require.NoError(t, rebuild(ctx, db, "north"))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "tag"}) {
			require.NoError(t, err)
			require.Equal(t, strings.HasPrefix(row.Key, "north/"), string(row.Columns["text"]) == "3 €", "%v", row)
		}
		return nil
	}))
}

var current = percolator.Cell{Table: "sum", Row: "orders", Column: "version"}

func totalOf(version string) percolator.Cell {
	return percolator.Cell{Table: "sum", Row: "orders", Column: "amount " + version}
}

// addUpInto keeps the total of all orders in a row of its own for each version.
func addUpInto(version string) percolator.Observer {
	return percolator.Observer{
		Name: "add up " + version, Table: "order", Column: "amount",
		OnChange: func(ctx context.Context, tx *percolator.Txn, change percolator.Change) error {
			was, err := parse(change.Old, change.OldFound)
			if err != nil {
				return percolator.Park(err)
			}
			is, err := parse(change.New, change.NewFound)
			if err != nil {
				return percolator.Park(err)
			}
			sum, err := number(ctx, tx, totalOf(version))
			if err != nil {
				return err
			}
			return setNumber(tx, totalOf(version), sum+is-was)
		},
	}
}

// switchTo lets all readers read another version of the total from now on.
func switchTo(ctx context.Context, db *percolator.DB, version string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(current, []byte(version)) })
}

// readTotal is what readers call.
func readTotal(ctx context.Context, tx *percolator.Txn) (int, error) {
	version, err := tx.Get(ctx, current)
	if err != nil {
		return 0, err
	}
	return number(ctx, tx, totalOf(string(version)))
}

func TestRebuildingATotal(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	is := func(want int) {
		t.Helper()
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			sum, err := readTotal(ctx, tx)
			require.Equal(t, want, sum)
			return err
		}))
	}
	require.NoError(t, switchTo(ctx, db, "1"))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		if err := setNumber(tx, amount("1"), 5); err != nil {
			return err
		}
		return setNumber(tx, amount("2"), 7)
	}))
	percolatetest.RunUntilIdle(t, db, addUpInto("1"))
	is(12)
	// Somebody has damaged the total.
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return setNumber(tx, totalOf("1"), 99) }))
	percolatetest.RunUntilIdle(t, db, addUpInto("1"), addUpInto("2"))
	is(99)
	require.NoError(t, switchTo(ctx, db, "2"))
	is(12)
	require.NoError(t, db.RemoveObserver(ctx, "add up 1"))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return setNumber(tx, amount("1"), 6) }))
	percolatetest.RunUntilIdle(t, db, addUpInto("2"))
	is(13)
}
