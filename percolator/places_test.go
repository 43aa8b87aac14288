package percolator

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Observers with places of their own (Observer.Concurrency).

// gate holds the runs of a function until it is opened, and counts them.
type gate struct {
	open         chan struct{}
	inside, most atomic.Int64
	ended        atomic.Int64
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) pass(ctx context.Context, _ *Txn, _ Cell) error {
	n := g.inside.Add(1)
	defer g.inside.Add(-1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
	select {
	case <-g.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	g.ended.Add(1)
	return nil
}

// observes adds an observer of the crew's rows to a worker that does not run yet.
func (m *mate) observes(o Observer) *mate {
	m.t.Helper()
	o.Table, o.Column = "t", "v"
	require.NoError(m.t, m.Observe(o))
	return m
}

// An observer with one place hangs: it never has a second run, whatever waits for it, and
// the others run everything. Nor does it wait for them when their places are taken.
func TestObserverWithAPlaceOfItsOwn(t *testing.T) {
	for _, concurrency := range []int{1, 4, 16} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				const changes = 600 // more than any queue takes
				slow, fast, quick := newGate(), newGate(), newGate()
				close(quick.open)
				c.hire(WorkerConfig{Concurrency: concurrency}, nil).observes(Observer{Name: "slow", Func: slow.pass, Concurrency: 1}).
					observes(Observer{Name: "quick", Func: quick.pass}).start()
				settle()
				c.change(rows("r", changes)...)
				synctest.Wait()
				require.EqualValues(t, changes, quick.ended.Load(), "with no time gone, the other one has run for all")
				require.EqualValues(t, 1, slow.inside.Load())
				require.Zero(t, slow.ended.Load())
				close(slow.open)
				c.handles(5 * time.Second)
				require.EqualValues(t, changes, slow.ended.Load())
				require.EqualValues(t, 1, slow.most.Load(), "its runs overlapped")

				// The other way round: those that share places hang in all of them.
				own := newGate()
				close(own.open)
				c.hire(WorkerConfig{Concurrency: concurrency}, nil).observes(Observer{Name: "own", Func: own.pass, Concurrency: 1}).
					observes(Observer{Name: "hangs", Func: fast.pass}).start()
				settle()
				require.EqualValues(t, changes, own.ended.Load(), "its sweep")
				require.EqualValues(t, concurrency, fast.inside.Load())
				close(fast.open)
				c.handles(5 * time.Second)
				require.EqualValues(t, concurrency, fast.most.Load())
				require.EqualValues(t, 1, own.most.Load())
			})
		})
	}
}

// An observer may have more places than the worker has for all others.
func TestObserverWithMorePlacesThanItsWorker(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		many, shared := newGate(), newGate()
		c.hire(WorkerConfig{Concurrency: 2}, nil).observes(Observer{Name: "many", Func: many.pass, Concurrency: 40}).
			observes(Observer{Name: "shared", Func: shared.pass}).start()
		settle()
		c.change(rows("r", 100)...)
		synctest.Wait()
		require.EqualValues(t, 40, many.inside.Load())
		require.EqualValues(t, 2, shared.inside.Load())
		close(many.open)
		close(shared.open)
		c.handles(5 * time.Second)
		require.EqualValues(t, 40, many.most.Load())
		require.EqualValues(t, 2, shared.most.Load())
		require.EqualValues(t, 200, many.ended.Load()+shared.ended.Load())
	})
}

// records are the members' records as the store has them.
func (c *crew) records() (all []format.Member) {
	c.t.Helper()
	for r, err := range c.mem.Scan(c.t.Context(), rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{everything(rowstore.Lock, format.ColumnMember)}}) {
		require.NoError(c.t, err)
		m, err := format.DecodeMember(r.Versions[0].Value)
		require.NoError(c.t, err)
		all = append(all, m)
	}
	return all
}

// A worker says with which weight it takes part: the number of runs that it makes at once.
// One without places of its own says the worker's.
func TestWeightsOfObservers(t *testing.T) {
	for name, x := range map[string]struct {
		worker, own int
		want        int
	}{
		"default":                   {0, 0, 16},
		"the worker's":              {5, 0, 5},
		"its own":                   {5, 2, 2},
		"above the worker's":        {5, 70, 70},
		"more than a record takes":  {5, math.MaxInt, format.MaxWeight},
		"a worker's that is larger": {math.MaxInt, 0, format.MaxWeight},
	} {
		t.Run(name, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				c.hire(WorkerConfig{Concurrency: x.worker}, nil).observes(Observer{Name: "o", Func: nothing, Concurrency: x.own}).start()
				settle()
				all := c.records()
				require.Len(t, all, 1)
				require.Equal(t, []format.MemberWork{{Observer: "o", Table: "t", Column: "v", Weight: x.want}}, all[0].Works)
				c.change(rows("r", 10)...)
				c.handles(time.Second)
			})
		})
	}
}

// Two workers share the changes of each observer by the places that each has for it.
func TestSharesByPlacesOfObservers(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var count [2][2]atomic.Int64 // by worker, by observer
		counts := func(n *atomic.Int64) func(context.Context, *Txn, Cell) error {
			return func(context.Context, *Txn, Cell) error {
				n.Add(1)
				return nil
			}
		}
		for i, own := range []int{3, 1} {
			c.hire(WorkerConfig{Concurrency: []int{4, 12}[i]}, nil).observes(Observer{Name: "own", Func: counts(&count[i][0]), Concurrency: own}).
				observes(Observer{Name: "shares", Func: counts(&count[i][1])}).start()
		}
		settle()
		const changes = 2000
		c.change(rows("r", changes)...)
		c.handles(time.Second)
		// A quarter of each goes to one of them: seven standard deviations of 2,000 draws.
		for observer, quarter := range []int{1, 0} {
			require.EqualValues(t, changes, count[0][observer].Load()+count[1][observer].Load(), "observer %d", observer)
			require.InDelta(t, changes/4, count[quarter][observer].Load(), 136, "observer %d", observer)
		}
	})
}

// A worker that has no place left for an observer, its only run hangs, leaves that
// observer's changes to others. It keeps its part of the other observer's.
func TestHangsInItsOwnPlace(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		slow, quick := newGate(), newGate()
		close(quick.open)
		a := c.hire(WorkerConfig{Rescan: time.Hour}, nil).observes(Observer{Name: "slow", Func: slow.pass, Concurrency: 1}).
			observes(Observer{Name: "quick", Func: quick.pass}).start()
		settle()
		c.change(rows("r", 1)...)
		time.Sleep(2 * time.Second)
		b := newGate()
		close(b.open)
		c.hire(WorkerConfig{Rescan: time.Hour}, nil).observes(Observer{Name: "slow", Func: b.pass, Concurrency: 1}).
			observes(Observer{Name: "quick", Func: quick.pass}).start()
		settle()
		c.change(rows("s", 200)...)
		time.Sleep(6100 * time.Millisecond)
		synctest.Wait()
		require.Len(t, c.left(0), 1, "what hangs, and nothing else")
		require.EqualValues(t, 200, b.ended.Load())
		weights := map[string][]int{}
		for _, m := range c.records() {
			for _, w := range m.Works {
				weights[w.Observer] = append(weights[w.Observer], w.Weight)
			}
		}
		require.ElementsMatch(t, []int{0, 1}, weights["slow"])
		require.Equal(t, []int{16, 16}, weights["quick"])
		close(slow.open)
		c.handles(time.Second)
		a.stop()
	})
}

// Whose job is started next where observers have places of their own.
func TestWhoseJobIsNextOfTheirOwn(t *testing.T) {
	t.Parallel()
	const nobody = -1
	for name, x := range map[string]struct {
		concurrency         int
		own, running, waits [3]int
		want                int
		places              [3]bool
	}{
		"a place of its own":     {2, [3]int{1}, [3]int{0, 2, 0}, [3]int{1, 1, 1}, 0, [3]bool{true, false, false}},
		"its own is taken":       {2, [3]int{1}, [3]int{1, 1, 0}, [3]int{1, 0, 0}, nobody, [3]bool{false, true, true}},
		"others go on beside it": {2, [3]int{1}, [3]int{1, 1, 0}, [3]int{1, 1, 0}, 1, [3]bool{false, true, true}},
		"more than the worker's": {2, [3]int{40}, [3]int{39, 1, 1}, [3]int{1, 1, 1}, 0, [3]bool{true, false, false}},
		"nothing is kept for it": {4, [3]int{1}, [3]int{0, 2, 1}, [3]int{0, 1, 0}, 1, [3]bool{true, true, true}},
		"its runs take no place": {16, [3]int{16}, [3]int{16, 0, 0}, [3]int{1, 1, 0}, 1, [3]bool{false, true, true}},
		"all have their own":     {1, [3]int{1, 2, 3}, [3]int{1, 2, 2}, [3]int{1, 1, 1}, 2, [3]bool{false, false, true}},
	} {
		wk, _ := idleWorker(t)
		wk.config.Concurrency = x.concurrency
		for i, q := range wk.list {
			q.running, q.tasks, q.o.Concurrency = x.running[i], make([]*task, x.waits[i]), x.own[i]
		}
		for i, q := range wk.list {
			require.Equal(t, x.places[i], wk.hasPlace(q), "%s: place of %d", name, i)
		}
		if x.want == nobody {
			require.Nil(t, wk.nextQueue(), name)
			continue
		}
		require.Same(t, wk.list[x.want], wk.nextQueue(), name)
	}
}
