package percolator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
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
		atend.Do(t, func() { require.NoError(t, db.Close(context.Background())) })
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

// A job has one turn, however often it is looked at before that, and the next job has the next one.
func TestTurnsOfJobs(t *testing.T) {
	t.Parallel()
	wk, w := idleWorker(t)
	q := wk.list[0]
	q.pacer.most = 1
	waits := func(j *task, want time.Duration) {
		t.Helper()
		r, held := wk.held(j)
		require.Equal(t, want > 0, held)
		require.Equal(t, want, r.wait)
	}
	first, second := &task{job: job{rowA, q.o}, q: q}, &task{job: job{rowB, q.o}, q: q}
	waits(first, 0)
	require.Zero(t, wk.letThrough(first))
	for range 5 {
		waits(first, time.Second) // one that is found again while it runs is looked at again at once
	}
	waits(second, 2*time.Second)
	waits(first, time.Second)
	// A pause that ends early, because all that wait for the observer are looked at, does not end the turn.
	wk.mu.Lock()
	p := &pausedJob{job: first.job, q: q, until: w.clock.Now().Add(time.Second), waits: true, turn: first.turn}
	wk.pauseJob(p)
	wk.endPause(p)
	first = wk.jobs[first.job]
	wk.mu.Unlock()
	waits(first, time.Second)
	w.clock.advance(time.Second)
	waits(first, 0)
	require.Zero(t, wk.letThrough(first))
	waits(second, time.Second)
	waits(first, 2*time.Second)
	w.clock.advance(time.Second)
	waits(second, 0)
}

// A cell that changes all the time has one turn of a rate, as any other. Its newest change is seen.
func TestRateOfAHotCell(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var hot, others, newest atomic.Int64
		m := c.hire(WorkerConfig{}, nil).observes(Observer{Name: "o", Rate: 1, Func: func(ctx context.Context, tx *Txn, cell Cell) error {
			if cell != rowA {
				others.Add(1)
				return nil
			}
			v, err := tx.Get(ctx, cell)
			if err != nil {
				return err
			}
			n, err := strconv.ParseInt(string(v), 10, 64)
			hot.Add(1)
			newest.Store(n)
			return err
		}}).start()
		settle()
		changes := int64(0)
		change := func() {
			changes++
			set(t, c.source, rowA, strconv.FormatInt(changes, 10))
		}
		change()
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 1, hot.Load())
		set(t, c.source, rowB, "x")
		for range 1500 {
			change()
			time.Sleep(10 * time.Millisecond)
		}
		require.Positive(t, others.Load(), "it waits for ever")
		require.Greater(t, hot.Load(), int64(10))
		require.NoError(t, m.WaitIdle(t.Context()))
		require.Equal(t, changes, newest.Load())
		require.NoError(t, c.source.WaitObserved(t.Context(), 0, "o", rowA, rowB))
	})
}
