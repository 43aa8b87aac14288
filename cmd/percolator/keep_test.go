package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestCollectionOfSomeTables: what gc run says is of the tables that --within chooses.
func TestCollectionOfSomeTables(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), "pebble:"+filepath.Join(t.TempDir(), "data")
	open := func() *percolator.DB {
		db, err := percolator.Open(ctx, url, percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond, MaxTxnAge: time.Minute, Retention: time.Hour}))
		require.NoError(t, err)
		return db
	}
	db := open()
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(cell("queue", "1", "v"), nil), tx.Set(cell("kept", "1", "v"), nil))
	}))
	require.NoError(t, db.Close(ctx))

	a := ask(t, url, "gc", "run", "--within", "30m")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "no table has a retention of its own of at most 30m0s")
	require.NotContains(t, a.out, "is gone")

	db = open()
	require.NoError(t, db.ConfigureTable(ctx, "queue", percolator.TableSettings{MaxTxnAge: time.Second, Retention: 10 * time.Minute}))
	require.NoError(t, db.Close(ctx))
	a = ask(t, url, "gc", "run") // resolves the locks of the time before
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "history from before 20")
	for until := time.Now().Add(time.Minute); ; { // the setting takes effect two leases later
		a = ask(t, url, "gc", "run", "--within", "30m")
		require.Equal(t, exitOK, a.status, a.err)
		if strings.Contains(a.out, "history of table queue from before 20") {
			break
		}
		require.True(t, time.Now().Before(until), a.out)
	}
	require.NotContains(t, a.out, "kept")
	a = ask(t, url, "gc", "run", "--within", "5m", "--json")
	require.Equal(t, exitOK, a.status, a.err)
	require.NotContains(t, a.out, "queue")
	a = ask(t, url, "gc", "run", "--within", "30m", "--json")
	var c struct{ Tables []struct{ Name string } }
	require.NoError(t, json.Unmarshal([]byte(a.out), &c), a.out)
	require.Len(t, c.Tables, 1)
	require.Equal(t, "queue", c.Tables[0].Name)
}

// TestSizesOfManyTables: a list that is cut says so.
func TestSizesOfManyTables(t *testing.T) {
	t.Parallel()
	opened := inMemory(t)
	store, err := opened(t.Context(), false)
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for i := range 1001 {
			if err := tx.Set(cell(fmt.Sprintf("t%04d", i), "r", "c"), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.Close(context.WithoutCancel(t.Context())))
	var out, errs strings.Builder
	require.Equal(t, exitOK, run(t.Context(), []string{"sizes"}, strings.NewReader(""), &out, &errs, opened), errs.String())
	require.Contains(t, out.String(), "t0999")
	require.NotContains(t, out.String(), "t1000")
	require.Contains(t, out.String(), "... and more tables")
}
