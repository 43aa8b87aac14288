package howto

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// openOutbox makes the outbox of orders, and the observer that sends them to sink. Its table has a short history.
func openOutbox(ctx context.Context, db *percolator.DB, sink export.Sink) (*export.Outbox, percolator.Observer, error) {
	err := db.ConfigureTable(ctx, "outbox", percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
	if err != nil {
		return nil, percolator.Observer{}, err
	}
	outbox, err := export.New(db, "outbox")
	if err != nil {
		return nil, percolator.Observer{}, err
	}
	observer, err := outbox.Observer("send orders", sink, export.Options{Concurrency: 8})
	return outbox, observer, err
}

func placeAndTell(ctx context.Context, db *percolator.DB, outbox *export.Outbox, customer, order string) error {
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		if err := tx.Set(percolator.Cell{Table: "order", Row: order, Column: "customer"}, []byte(customer)); err != nil {
			return err
		}
		return outbox.Put(ctx, tx, customer, []byte(order))
	})
	return err
}

// receiver is the other system.
type receiver struct {
	mu     sync.Mutex
	last   map[string]export.Item
	orders []string
}

// take takes each item once and in order, whatever dies or stands still on the other side.
func (r *receiver) take(_ context.Context, key string, items []export.Item) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, item := range items {
		last := r.last[key]
		switch {
		case item.Epoch < last.Epoch:
			return i, export.ErrSuperseded // by one that was suspended and has a successor
		case item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index:
			r.last[key] = export.Item{Epoch: item.Epoch, Commit: last.Commit, Index: last.Index}
			continue // it was taken before
		}
		r.orders = append(r.orders, string(item.Payload))
		r.last[key] = item
	}
	return len(items), nil
}

func TestOrdersAreTold(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	other := &receiver{last: map[string]export.Item{}}
	outbox, observer, err := openOutbox(ctx, db, export.SinkFunc(other.take))
	require.NoError(t, err)
	percolatetest.RunUntilIdle(t, db, observer)
	for _, order := range []string{"1", "2", "3"} {
		require.NoError(t, placeAndTell(ctx, db, outbox, "ann", order))
	}
	percolatetest.RunUntilIdle(t, db, observer)
	require.Equal(t, []string{"1", "2", "3"}, other.orders)

	// Items that come again, and those of an exporter with a successor.
	last := other.last["ann"]
	n, err := other.take(ctx, "ann", []export.Item{last})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	late := last
	late.Epoch--
	_, err = other.take(ctx, "ann", []export.Item{late})
	require.ErrorIs(t, err, export.ErrSuperseded)
	require.Equal(t, []string{"1", "2", "3"}, other.orders)
}
