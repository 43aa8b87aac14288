package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// oneServer is a store whose server serves one call after the other, in the order in which they came, and
// counts the rows that it has served. A row takes it a tenth of a millisecond.
type oneServer struct {
	*gauge
	turn   chan struct{} // a channel, because a bubble's time does not pass for who waits for a mutex
	served atomic.Int64
	most   atomic.Int64 // rows of one call
}

func (s *oneServer) serve(ctx context.Context, rows int) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	for most := s.most.Load(); int64(rows) > most && !s.most.CompareAndSwap(most, int64(rows)); most = s.most.Load() { //nolint:revive // it tries again
	}
	s.served.Add(int64(rows))
	time.Sleep(time.Duration(rows) * 100 * time.Microsecond)
	return nil
}

func (s *oneServer) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := s.serve(ctx, len(muts)); err != nil {
		return nil, err
	}
	return s.gauge.Apply(ctx, muts, opts)
}

func (s *oneServer) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if err := s.serve(ctx, len(reads)); err != nil {
		return nil, err
	}
	return s.gauge.Read(ctx, reads)
}

// Beside a transaction of 40,000 rows, in the same process and on a server that does one thing at a time,
// the small ones go on: none waits for more than a few pieces of the large one at each
// of its calls. The session is renewed in time, so that nobody takes the process for dead.
func TestSmallTransactionsBesideALargeOne(t *testing.T) {
	t.Parallel()
	const (
		rows = 15_000
		// A small transaction makes about six calls, before each of which a few pieces of 256 rows come first.
		ahead = 3000
	)
	for name, wrap := range map[string]func(rowstore.Store) rowstore.Store{
		"bare":     func(s rowstore.Store) rowstore.Store { return s },
		"coalesce": func(s rowstore.Store) rowstore.Store { return coalesce.New(s, coalesce.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &oneServer{gauge: newGauge(rowstore.Limits{}), turn: make(chan struct{}, 1)}
				opts := []Option{
					withoutGroups(), WithSessionLease(2 * time.Second), WithLockExpiry(2 * time.Second), WithLogger(slog.New(slog.DiscardHandler)),
					WithSettings(Settings{MaxTxnAge: 2 * time.Hour, Retention: 24 * time.Hour, CatalogLease: time.Hour}),
				}
				db, err := New(t.Context(), wrap(s), opts...)
				require.NoError(t, err)
				other, err := New(t.Context(), s.mem, opts...)
				require.NoError(t, err)
				defer func() { require.NoError(t, errors.Join(db.Close(t.Context()), other.Close(t.Context()))) }()
				set(t, db, row("small 0"), "0")
				stop := poll(t, other, row("large 00000"), row("large 14999"), row("small 0"), row("small 1"))
				defer stop()

				before := s.served.Load()
				large := async(func() error { return writeLarge(t.Context(), db, rows) })
				var worst [2]int64
				var small atomic.Int64
				var wg sync.WaitGroup
				var committed atomic.Bool
				for c := range worst {
					wg.Go(func() {
						for i := 0; !committed.Load() || i == 0; i++ {
							from := s.served.Load()
							err := db.Update(t.Context(), func(tx *Txn) error {
								v, err := tx.Get(t.Context(), row(fmt.Sprint("small ", c)))
								if err != nil && !errors.Is(err, ErrNotFound) {
									return err
								}
								return tx.Set(row(fmt.Sprint("small ", c)), append(v, 'x'))
							})
							if err != nil {
								t.Errorf("small transaction %d: %v", i, err)
								return
							}
							small.Add(1)
							worst[c] = max(worst[c], s.served.Load()-from)
						}
					})
				}
				require.NoError(t, <-large)
				committed.Store(true)
				wg.Wait()
				require.NoError(t, db.drained(t.Context()))
				stop()
				t.Logf("the large one took %d rows, beside %d small ones, the slowest of which had %d rows ahead; the largest call has %d rows",
					s.served.Load()-before, small.Load(), max(worst[0], worst[1]), s.most.Load())
				require.Greater(t, small.Load(), int64(10))
				require.Less(t, max(worst[0], worst[1]), int64(ahead))
				require.Zero(t, other.Stats().RolledBack)
				require.Zero(t, db.Stats().RolledBack)
			})
		})
	}
}

// writeLarge writes so many rows in one transaction, at the first attempt.
func writeLarge(ctx context.Context, db *DB, rows int) error {
	return db.Update(ctx, func(tx *Txn) error {
		for i := range rows {
			if err := tx.Set(row(fmt.Sprintf("large %05d", i)), []byte("x")); err != nil {
				return err
			}
		}
		return nil
	}, WithMaxAttempts(1))
}
