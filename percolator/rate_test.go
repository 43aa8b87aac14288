package percolator

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestRateIsChecked(t *testing.T) {
	t.Parallel()
	c := newWorld(t).client()
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		w := NewWorker(c.DB, WorkerConfig{})
		err := w.Observe(Observer{Name: "o", Table: "t", Column: "v", Rate: bad, Func: func(context.Context, *Txn, Cell) error { return nil }})
		require.ErrorIs(t, err, ErrInvalid, "%v", bad)
		require.Empty(t, w.list)
	}
}

// The parts of all members are the whole, in proportion to their weights, also while some come or go.
func TestPartsOfTheRate(t *testing.T) {
	t.Parallel()
	q := shareQueues[0]
	for _, weights := range [][]int{{1}, {4, 4}, {1, 2, 5}, {0, 3}, {0, 0}} {
		var list []member
		for i, weight := range weights {
			list = append(list, sharer(fmt.Sprint(i), 1, 0, weight))
		}
		list = append(list, sharer("later", 100, 0, 8), sharer("gone", 1, 50, 8))
		for _, now := range []Timestamp{60, 120} {
			sum := 0.0
			for _, o := range ownersAt(list, q, now) {
				sum += o.part
			}
			require.InDelta(t, 1, sum, 1e-9, "weights %v at %d", weights, now)
		}
	}
	all := ownersAt([]member{sharer("a", 1, 0, 1), sharer("b", 1, 0, 3)}, q, 10)
	require.InDelta(t, 0.25, all[0].part, 1e-9)
	require.InDelta(t, 0.75, all[1].part, 1e-9)
}

// Some workers with much to do make as many runs as the rate allows, whatever their parts are.
func TestPacers(t *testing.T) {
	t.Parallel()
	const rate, seconds = 200.0, 20
	for _, weights := range [][]int{{1}, {1, 1}, {1, 2, 5}, {1, 1, 1, 1, 1, 1, 1, 1}} {
		sum := 0
		for _, w := range weights {
			sum += w
		}
		pacers := make([]pacer, len(weights))
		made, now := 0, time.UnixMilli(1_700_000_000_000)
		for range seconds * 1000 {
			now = now.Add(time.Millisecond)
			for i := range pacers {
				p := &pacers[i]
				p.most = rate
				for p.wait(float64(weights[i])/float64(sum), now) == 0 && p.take(now) {
					made++
				}
			}
		}
		require.LessOrEqual(t, float64(made), rate*(seconds+rateBurst.Seconds())+float64(len(weights)), "weights %v", weights)
		require.Greater(t, float64(made), 0.95*rate*seconds, "weights %v", weights)
	}
	// Jobs that wait get turns, within a bound, and a part that grows ends the old ones.
	now := time.UnixMilli(1_700_000_000_000)
	p := pacer{most: 10}
	require.Zero(t, p.wait(1, now))
	require.True(t, p.take(now))
	for i := range 300 {
		require.Equal(t, min(time.Duration(i+1)*100*time.Millisecond, rateHorizon), p.wait(1, now))
	}
	require.Equal(t, 200*time.Millisecond, p.wait(0.5, now))
	require.Equal(t, noPartPause, p.wait(0, now))
	none := pacer{}
	require.Zero(t, none.wait(0, now))
	require.True(t, none.take(now))
}

// Two workers of a rate take the time that it asks for, and all changes are seen.
func TestRateOfTwoWorkers(t *testing.T) {
	t.Parallel()
	const rate, rows = 100.0, 60
	mem := memstore.New()
	var seen saw
	begun := time.Now()
	o := seen.observer("o")
	o.Table, o.Column, o.Rate = "t", "v", rate
	var first *DB
	for range 2 {
		db, err := New(t.Context(), newWire(mem), quick)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
		if first == nil {
			first = db
		}
		startWorker(t, db, WorkerConfig{}, o)
	}
	for i := range rows {
		set(t, first, row(fmt.Sprint(i)), "x")
	}
	require.Eventually(t, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.values) >= rows
	}, patience, 5*time.Millisecond)
	took := time.Since(begun).Seconds()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	// Before the second worker is a member, and is known to the first, both may have all of the rate.
	require.LessOrEqual(t, float64(len(seen.values)), 2*(rate*(took+rateBurst.Seconds())+1))
	require.Greater(t, took, rows/(2*rate)-rateBurst.Seconds())
}
