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

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestShortDeadlines has callers of each kind whose deadlines pass while their requests are under way.
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
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	accounts(t, db, 8)
	done := make(chan struct{})
	var late, inTime atomic.Int64
	lateBy := map[string]*atomic.Int64{"Read": {}, "Apply": {}, "Scan": {}, "Draw": {}}
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
				what, err := lateCall(ctx, s, rng, i)
				cancel()
				if err == nil {
					inTime.Add(1)
					continue
				}
				late.Add(1)
				lateBy[what].Add(1)
				if !isDeadline(err) || errors.Is(err, rowstore.ErrAmbiguous) && what != "Apply" {
					t.Errorf("%s with a short deadline: %v", what, err)
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
	t.Logf("a quarter within %v, median %v, greatest %v; %d calls were late and %d in time", took[len(took)/4], took[len(took)/2], took[len(took)-1], late.Load(), inTime.Load())
	for what, n := range lateBy {
		require.Positive(t, n.Load(), what)
	}
	// A server that is taken for dead costs a second at least, over and over: all but a few would take
	// longer. A busy machine makes some slow as well.
	require.Less(t, took[len(took)/4], time.Second)
}

// lateCall makes a call of one of four kinds on a row that no other caller has. Of them only Apply may have had an effect.
func lateCall(ctx context.Context, s rowstore.Store, rng *rand.Rand, i int) (what string, err error) {
	row := fmt.Sprint("late", i)
	newest := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: 1 << 60, Limit: 1}}
	switch rng.IntN(4) {
	case 0:
		out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, []byte("v"))}}}, rowstore.ApplyOptions{})
		if err == nil {
			err = out[0].Err
		}
		return "Apply", err
	case 1:
		for _, e := range s.Scan(ctx, rowstore.ScanRange{Table: "t", From: row, To: row + "\x00", Selectors: newest}) {
			err = e
		}
		return "Scan", err
	case 2:
		p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
		_, err = p.Oracle().Draw(ctx, 1)
		return "Draw", err
	}
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: newest}})
	if err == nil {
		err = rows[0].Err
	}
	return "Read", err
}

func isDeadline(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
