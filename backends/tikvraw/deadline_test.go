package tikvraw_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestShortDeadlines has callers whose deadlines pass while their requests are under way.
// That is their own affair: client-go takes a deadline for a failure of the server, and
// would keep everybody else away from it for a second.
func TestShortDeadlines(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := tikvtest.New(t, tikvtest.Options{})
	s, err := rowstore.Open(t.Context(), c.URL()+"?prefix="+prefix())
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	accounts(t, db, 8)
	done := make(chan struct{})
	var late, inTime atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				select {
				case <-done:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(4*time.Millisecond))))
				_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: fmt.Sprint(i), Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1 << 60}}}})
				cancel()
				if err == nil {
					inTime.Add(1)
					continue
				}
				late.Add(1)
				if !isDeadline(err) {
					t.Errorf("a read with a short deadline: %v", err)
					return
				}
			}
		})
	}
	var took []time.Duration
	for i := range 80 {
		began := time.Now()
		err := db.Update(t.Context(), func(tx *percolator.Txn) error {
			return transfer(t.Context(), tx, cell(fmt.Sprintf("%03d", i%8)), cell(fmt.Sprintf("%03d", (i+1)%8)))
		}, percolator.WithMaxAttempts(3))
		if err != nil {
			t.Errorf("a transaction beside them: %v", err)
		}
		took = append(took, time.Since(began))
	}
	close(done)
	wg.Wait()
	slices.Sort(took)
	t.Logf("a quarter within %v, median %v, greatest %v; %d reads were late and %d in time", took[len(took)/4], took[len(took)/2], took[len(took)-1], late.Load(), inTime.Load())
	require.Positive(t, late.Load())
	// A server that is taken for dead costs a second at least, over and over: all but a few would take
	// longer. A busy machine makes some slow as well.
	require.Less(t, took[len(took)/4], time.Second)
}

func isDeadline(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
