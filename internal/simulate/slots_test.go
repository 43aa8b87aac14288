package simulate

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slotStep is how often the shares of all workers are looked at. What lasts for less may be missed.
const slotStep = 5 * time.Millisecond

// tenure says for how long slots were whose, in slots times looks.
type tenure struct {
	all      int // slots times looks
	none     int // no living worker takes the slot for its own
	stopping int // those that do have been told to stop, and begin nothing
	two      int // two or more take it for their own, and begin runs
}

const tenureHead = "of slot-time: no owner\towner stops\ttwo owners"

func (s *tenure) line() string {
	return fmt.Sprintf("%.2f%%\t%.2f%%\t%.2f%%", s.percent(s.none), s.percent(s.stopping), s.percent(s.two))
}

func (s *tenure) percent(n int) float64 { return 100 * float64(n) / float64(s.all) }

func (s *tenure) add(other tenure) {
	s.all, s.none, s.stopping, s.two = s.all+other.all, s.none+other.none, s.stopping+other.stopping, s.two+other.two
}

// look adds a look at the shares of workers. starts says which of them begin runs.
func (s *tenure) look(shares [][]uint64, starts []bool) {
	s.all += rowstore.Slots
	for word := range rowstore.Slots / 64 {
		var one, two, stopping uint64
		for i, own := range shares {
			switch {
			case own == nil:
			case starts[i]:
				two |= one & own[word]
				one |= own[word]
			default:
				stopping |= own[word]
			}
		}
		s.two += bits.OnesCount64(two)
		s.stopping += bits.OnesCount64(stopping &^ one)
		s.none += bits.OnesCount64(^(one | stopping))
	}
}

// watchSlots looks again and again at whose the slots of the first observer are, by what each living worker takes for its own, until the
// function that it returns is called.
func (w *world) watchSlots() (stop func() tenure) {
	var sum tenure
	end := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(slotStep)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			w.mu.Lock()
			processes := slices.Clone(w.processes)
			w.mu.Unlock()
			var shares [][]uint64
			var starts []bool
			for _, p := range processes {
				if p.dead.Load() || p.ended.Load() {
					continue
				}
				own, begins := coretest.Slots(p.worker, w.observers[0])
				shares, starts = append(shares, own), append(starts, begins)
			}
			sum.look(shares, starts)
		}
	})
	return func() tenure {
		close(end)
		watching.Wait()
		return sum
	}
}

// TestSlotsAreWatched lets the second of two workers die, and then the first stop: what is said of the slots follows.
func TestSlotsAreWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Second)
		first := w.start()
		second := w.start()
		time.Sleep(time.Minute)
		watch := func(d time.Duration) tenure {
			stop := w.watchSlots()
			time.Sleep(d)
			return stop()
		}
		s := watch(time.Second)
		require.Positive(t, s.all)
		require.Zero(t, s.none+s.stopping+s.two, "each slot has one owner")

		second.die()
		s = watch(time.Second)
		require.InDelta(t, 50, s.percent(s.none), 10, "its slots are nobody's until it is missed")
		require.Zero(t, s.stopping+s.two)
		time.Sleep(10 * time.Second)
		s = watch(time.Second)
		require.Zero(t, s.none+s.stopping+s.two, "the other has them all")

		require.NoError(t, w.change())
		time.Sleep(100 * time.Millisecond) // the function is called
		var stopped sync.WaitGroup
		stopped.Go(func() { _ = first.stop() }) // close looks at the error
		time.Sleep(100 * time.Millisecond)
		s = watch(500 * time.Millisecond)
		require.Equal(t, s.all, s.stopping, "it has them, and begins nothing")
		stopped.Wait()
		s = watch(time.Second)
		require.Equal(t, s.all, s.none, "nobody is left")
		w.close()
	})
	// Three workers of whom one stops: 64 slots are of two, 64 of the one that stops alone, 64 of one and of it.
	var s tenure
	shares := make([][]uint64, 4)
	for i := range 3 {
		shares[i] = make([]uint64, rowstore.Slots/64)
	}
	shares[0][0], shares[1][0] = ^uint64(0), ^uint64(0)
	shares[2][1] = ^uint64(0)
	shares[0][2], shares[2][2] = ^uint64(0), ^uint64(0)
	s.look(shares, []bool{true, true, false, true})
	require.Equal(t, tenure{all: rowstore.Slots, two: 64, stopping: 64, none: rowstore.Slots - 3*64}, s)
}
