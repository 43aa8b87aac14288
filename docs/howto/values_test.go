package howto

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

var balance = typed.Column[int]{Table: "account", Name: "balance", Codec: typed.Number[int]{}}

func pay(ctx context.Context, tx *percolator.Txn, account string, amount int) error {
	have, err := balance.Get(ctx, tx, account)
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return err
	}
	return balance.Set(ctx, tx, account, have+amount)
}

func TestValues(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	for range 3 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return pay(ctx, tx, "ann", 5) }))
	}
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		have, err := balance.Get(ctx, tx, "ann")
		require.Equal(t, 15, have)
		return err
	}))
}

func place(tx *percolator.Txn, customer string, placed time.Time, number int64) error {
	row := string(keys.Key("").Text(customer).Time(placed).Int(number))
	return tx.Set(percolator.Cell{Table: "order", Row: row, Column: "placed"}, nil)
}

func ordersOf(ctx context.Context, tx *percolator.Txn, customer string, visit func(name string, placed time.Time, number int64)) error {
	for row, err := range tx.Scan(ctx, keys.Key("").Text(customer).Range("order")) {
		if err != nil {
			return err
		}
		key := keys.Read(row.Key)
		name, placed, number := key.Text(), key.Time(), key.Int()
		if err := key.End(); err != nil {
			return err
		}
		visit(name, placed, number)
	}
	return nil
}

func TestKeys(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	day := func(d int) time.Time { return time.Date(2026, 1, d, 0, 0, 0, 0, time.UTC) }
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(place(tx, "ann", day(10), 9), place(tx, "ann", day(9), 10), place(tx, "ann/2", day(1), 1), place(tx, "ann", day(9), 9))
	}))
	var numbers []int64
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		return ordersOf(ctx, tx, "ann", func(_ string, _ time.Time, number int64) { numbers = append(numbers, number) })
	}))
	require.Equal(t, []int64{9, 10, 9}, numbers)
}
