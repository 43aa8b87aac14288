package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// The other side is away for longer than ten attempts take. The letter is sent when it comes back, without anybody's help.
func TestMailboxIsAway(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	s, err := newShop(db, time.Hour)
	require.NoError(t, err)
	box, away := newMailbox(), atomic.Int64{}
	away.Store(20)
	all, err := s.observers(export.SinkFunc(func(ctx context.Context, customer string, items []export.Item) (int, error) {
		if away.Add(-1) >= 0 {
			return 0, errors.New("nobody is there")
		}
		return box.Send(ctx, customer, items)
	}))
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{Backoff: percolator.Backoff{Min: time.Millisecond, Max: time.Millisecond}})
	for _, o := range all {
		require.NoError(t, w.Observe(o))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	require.NoError(t, w.WaitIdle(ctx)) // the observers are registered
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		id, err := s.welcome(ctx, tx, Person{Name: "Ann", Mail: "ann@example.org"})
		if err != nil {
			return err
		}
		return s.tell(ctx, tx, Order{ID: "1", Customer: id, Status: Placed})
	}))
	require.NoError(t, w.WaitIdle(ctx))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Empty(t, parked)
	require.Equal(t, []Letter{{To: "ann@example.org", News: News{Order: "1", Status: Placed}}}, box.all())
}
