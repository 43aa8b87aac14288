package howto

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/once"
	"github.com/percolate-go/percolate/typed"
)

// openOrders makes the keys of requests. An answer is kept for a day.
func openOrders(db *percolator.DB) (*once.Keys[string], error) {
	return once.New(db, "request", typed.Text[string]{}, once.Options{Keep: 24 * time.Hour})
}

// placeOnce places an order, once for each request.
func placeOnce(ctx context.Context, orders *once.Keys[string], request, item string) (answer string, err error) {
	answer, _, err = orders.Do(ctx, request, func(ctx context.Context, tx *percolator.Txn) (string, error) {
		cell := percolator.Cell{Table: "order", Row: request, Column: "item"}
		return "placed: " + item, tx.Set(cell, []byte(item))
	})
	return answer, err
}

// sendOnce sends a letter, if nobody has sent it or is about to.
func sendOnce(ctx context.Context, db *percolator.DB, letters *once.Keys[string], letter string, send func(epoch uint64) error) error {
	claim, _, err := letters.Claim(ctx, letter, time.Minute)
	if err != nil || claim == nil {
		return err // once.ErrClaimed, say; without a claim or an error it was sent before
	}
	if err := send(claim.Epoch()); err != nil {
		return errors.Join(err, claim.Release(ctx))
	}
	return db.Update(ctx, func(tx *percolator.Txn) error { return claim.Finish(ctx, tx, "sent") })
}

func TestOrderIsPlacedOnce(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	orders, err := openOrders(db)
	require.NoError(t, err)
	for _, item := range []string{"chair", "table"} { // the second is another attempt, as far as anybody can tell
		answer, err := placeOnce(ctx, orders, "17", item)
		require.NoError(t, err)
		require.Equal(t, "placed: chair", answer)
	}

	sent, failing := 0, true
	send := func(uint64) error {
		if failing {
			failing = false
			return errors.New("the post office is closed")
		}
		sent++
		return nil
	}
	require.ErrorContains(t, sendOnce(ctx, db, orders, "welcome", send), "closed")
	for range 2 {
		require.NoError(t, sendOnce(ctx, db, orders, "welcome", send))
	}
	require.Equal(t, 1, sent)
}
