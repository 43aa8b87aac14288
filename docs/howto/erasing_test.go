package howto

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/recipes/combine"
	"github.com/percolate-go/percolate/recipes/export"
	"github.com/percolate-go/percolate/recipes/once"
	"github.com/percolate-go/percolate/typed"
)

// eraseCustomer erases the customer's rows in a table. Rows are named CUSTOMER/... there.
func eraseCustomer(ctx context.Context, db *percolator.DB, table, customer string) (percolator.Receipt, error) {
	prefix := customer + "/"
	return db.Erase(ctx, percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix)})
}

// eraseElsewhere erases what is kept about a customer in tables of recipes, and in one whose rows are named by package keys. The key of an
// answer is that of its request, of which a customer has many, so the program must know them.
func eraseElsewhere(ctx context.Context, db *percolator.DB, customer string, requests []string,
	letters *export.Outbox, visits *combine.Combiner[int64], answers *once.Keys[string],
) error {
	ranges := []percolator.Range{letters.Range(customer), visits.Range(customer), keys.Key("").Text(customer).Range("invoice")}
	for _, request := range requests {
		ranges = append(ranges, answers.Range(request))
	}
	for _, r := range ranges {
		if _, err := db.Erase(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// compactPebble writes all files of an embedded store anew. It does nothing over another one.
func compactPebble(ctx context.Context, db *percolator.DB) error {
	if store, ok := rowstore.Unwrap[*pebble.Store](db.Store()); ok {
		return store.Compact(ctx)
	}
	return nil
}

func TestErasing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := percolator.Open(ctx, "memory:", percolator.WithSettings(percolator.Settings{
		CatalogLease: 50 * time.Millisecond, MaxTxnAge: 2 * time.Second, Retention: 24 * time.Hour,
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }) // once the worker has stopped
	w := startWorker(t, db, percolator.Observer{
		Name: "sum", Table: "order", Column: "amount",
		Func: func(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
			return tx.Set(percolator.Cell{Table: "changed", Row: "last", Column: "at"}, nil)
		},
	})
	order := func(row string) percolator.Cell { return percolator.Cell{Table: "order", Row: row, Column: "amount"} }
	var before percolator.Timestamp
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		require.NoError(t, tx.Set(order("ann/1"), []byte("10")))
		require.NoError(t, tx.Set(order("ann/2"), []byte("20")))
		return tx.Set(order("bob/1"), []byte("30"))
	}, percolator.WithCommitTimestamp(&before)))
	require.NoError(t, w.WaitIdle(ctx))

	receipt, err := eraseCustomer(ctx, db, "order", "ann")
	require.NoError(t, err)
	require.EqualValues(t, 2, receipt.Rows)
	require.Zero(t, receipt.Kept)

	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, order("ann/1"))
		return err
	}, percolator.WithAsOfTimestamp(before)), percolator.ErrSnapshotTooOld)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, order("bob/1"))
		require.Equal(t, "30", string(v))
		return err
	}, percolator.WithAsOfTimestamp(before)), "other rows are read as before")
	require.NoError(t, compactPebble(ctx, db))
	// The store has nothing of these rows any more, not even their names.
	var picks []rowstore.Selector
	for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: family, Column: rowstore.AllColumns, To: math.MaxInt64})
	}
	for row, err := range db.Store().Scan(ctx, rowstore.ScanRange{Table: "order", Selectors: picks}) {
		require.NoError(t, err)
		require.Equal(t, "bob/1", row.Row, "%+v", row)
	}
}

func TestErasingElsewhere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := percolator.Open(ctx, "memory:", percolator.WithSettings(percolator.Settings{
		CatalogLease: 50 * time.Millisecond, MaxTxnAge: 2 * time.Second, Retention: 24 * time.Hour,
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }) // once the worker has stopped
	letters, err := export.New(db, "letter")
	require.NoError(t, err)
	refuses := export.SinkFunc(func(context.Context, string, []export.Item) (int, error) {
		return 0, errors.New("the address is unknown")
	})
	sends, err := letters.Observer("send letters", refuses, export.Options{MaxAttempts: 1, Skip: true})
	require.NoError(t, err)
	visits, err := combine.New(db, "visit", typed.Number[int64]{}, combine.Sum[int64])
	require.NoError(t, err)
	answers, err := once.New(db, "answer", typed.Text[string]{}, once.Options{Keep: time.Hour})
	require.NoError(t, err)
	w := startWorker(t, db, sends)
	require.NoError(t, w.WaitIdle(ctx), "the observer is registered")
	invoice := func(customer string) percolator.Cell {
		return percolator.Cell{Table: "invoice", Row: string(keys.Key("").Text(customer).Int(1)), Column: "body"}
	}
	for _, customer := range []string{"ann", "anne", "bob"} {
		_, _, err := answers.Do(ctx, "request of "+customer, func(ctx context.Context, tx *percolator.Txn) (string, error) {
			return "secret of " + customer, errors.Join(
				letters.Put(ctx, tx, customer, []byte("secret of "+customer)), visits.Add(ctx, tx, customer, 1),
				tx.Set(invoice(customer), []byte("secret of "+customer)))
		})
		require.NoError(t, err)
	}
	require.NoError(t, w.WaitIdle(ctx))
	receipt, err := eraseCustomer(ctx, db, "letter", "ann")
	require.NoError(t, err)
	require.Zero(t, receipt.Rows, "rows of recipes are named in another way")
	left := everything(ctx, t, db, "letter", "visit", "answer", "invoice")
	require.True(t, bytes.Contains(left, []byte("secret of ann\x00")))
	require.NoError(t, eraseElsewhere(ctx, db, "ann", []string{"request of ann"}, letters, visits, answers))
	left = everything(ctx, t, db, "letter", "visit", "answer", "invoice")
	require.False(t, bytes.Contains(left, []byte("ann\x00")), "%q", left)
	for _, other := range []string{"anne", "bob"} {
		require.True(t, bytes.Contains(left, []byte("secret of "+other)))
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			n, err := visits.Get(ctx, tx, other)
			require.EqualValues(t, 1, n)
			return err
		}))
	}
}

// everything is all that the store has in some tables, with a zero byte after each value and each name of a row.
func everything(ctx context.Context, t *testing.T, db *percolator.DB, tables ...string) (all []byte) {
	t.Helper()
	var picks []rowstore.Selector
	for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: family, Column: rowstore.AllColumns, To: math.MaxInt64})
	}
	for _, table := range tables {
		for row, err := range db.Store().Scan(ctx, rowstore.ScanRange{Table: table, Selectors: picks}) {
			require.NoError(t, err)
			all = append(append(all, row.Row...), 0)
			for _, v := range row.Versions {
				all = append(append(append(append(all, v.Column...), 0), v.Value...), 0)
			}
		}
	}
	return all
}
