package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

func calls(all []*mate) (n int) {
	for _, m := range all {
		n += m.count()
	}
	return n
}

// While no worker comes or goes, each function is called once for a change, and all workers
// take their parts.
func TestEachChangeRunsOnce(t *testing.T) {
	for name, observers := range map[string][]string{"one": {"a"}, "three": {"a", "b", "c"}} {
		for _, takes := range []time.Duration{0, 300 * time.Millisecond, 1500 * time.Millisecond} {
			for _, concurrency := range []int{1, 16} {
				t.Run(fmt.Sprint(name, " ", takes, " ", concurrency), func(t *testing.T) {
					eachCrew(t, func(t *testing.T, c *crew) {
						var all []*mate
						c.rows = concurrency == 1 && takes == 0
						for range 4 {
							all = append(all, c.hire(WorkerConfig{Concurrency: concurrency}, sleeps(takes), observers...).start())
						}
						settle()
						want := 0
						n := 10 * len(all)
						if concurrency > 1 {
							n = 100 // more than there are places
						}
						for range 2 {
							c.change(rows("r", n)...)
							c.handles(20 * time.Minute)
							want += n * len(observers)
							require.Equal(t, want, calls(all))
						}
						for _, m := range all {
							require.Positive(t, m.count())
						}
					})
				})
			}
		}
	}
}

// The changes of a worker that was killed run elsewhere, without any other event.
func TestKilledWorkersChangesRunElsewhere(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 4 {
			all = append(all, c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start())
		}
		settle()
		for range 3 {
			all[0].kill()
			all = all[1:]
			c.change(rows("r", 64)...)
			c.handles(6100 * time.Millisecond)
		}
	})
}

// Two neighbours are killed at once, in the order of the ids, so that nobody who lives watches
// the second one.
func TestNeighboursAreKilled(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		byID := map[string]*mate{}
		for range 6 {
			c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").startIn(byID, c)
		}
		settle()
		ids := c.members()
		for _, id := range ids[1:5] {
			byID[id].kill()
		}
		c.change(rows("r", 64)...)
		c.handles(6100 * time.Millisecond)
	})
}

// startIn starts a worker, and notes it by the id of its membership.
func (m *mate) startIn(byID map[string]*mate, c *crew) {
	before := map[string]bool{}
	for _, id := range c.members() {
		before[id] = true
	}
	m.start()
	for len(c.members()) == len(before) {
		time.Sleep(time.Millisecond)
	}
	for _, id := range c.members() {
		if !before[id] {
			byID[id] = m
		}
	}
}

// A worker whose functions all hang leaves the other changes of its share to others, and has
// its share again once they have ended.
func TestHangingFunctions(t *testing.T) {
	for _, concurrency := range []int{1, 4, 16} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			eachFinding(t, func(t *testing.T, c *crew) {
				free := make(chan struct{})
				hang := func(ctx context.Context, cell Cell) error {
					if cell.Row[0] == 'h' {
						select {
						case <-free:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					return nil
				}
				config := WorkerConfig{Concurrency: concurrency, Rescan: time.Hour}
				a := c.hire(config, hang, "o").start()
				settle()
				c.change(rows("h", concurrency)...)
				time.Sleep(2 * time.Second)
				b := c.hire(config, nil, "o").start()
				settle()
				c.change(rows("r", 64)...)
				time.Sleep(6100 * time.Millisecond)
				synctest.Wait()
				require.Len(t, c.left(0), concurrency, "what hangs, and nothing else")
				require.Equal(t, 64, b.count())
				close(free)
				settle()
				require.Empty(t, c.left(0))
				before := a.count()
				c.change(rows("s", 64)...)
				c.handles(time.Second)
				require.Greater(t, a.count(), before)
			})
		})
	}
}

// Workers with different observers leave no change of any observer.
func TestDifferentObservers(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for _, observers := range [][]string{{"a"}, {"a", "b"}, {"b"}, {"c", "a"}} {
			all = append(all, c.hire(WorkerConfig{Rescan: time.Hour}, nil, observers...).start())
		}
		settle()
		c.change(rows("r", 100)...)
		c.handles(time.Second)
		require.Equal(t, 300, calls(all))
		all[1].stop()
		settle()
		c.change(rows("r", 100)...)
		c.handles(time.Second)
		require.Equal(t, 600, calls(all))
		all[3].kill() // nobody else runs c
		time.Sleep(7 * time.Second)
		c.change(rows("r", 100)...)
		settle()
		require.Len(t, c.left(0), 100)
		require.Equal(t, 800, calls(all))
		late := c.hire(WorkerConfig{Rescan: time.Hour}, nil, "c").start()
		c.handles(5 * time.Second)
		require.Equal(t, 100, late.count())
	})
}

// A worker that stands still is taken for dead, and works again when it goes on.
func TestStalledWorker(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start()
		b := c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start()
		settle()
		held := a.wire.AddRule(faultstore.Rule{Times: -1, Match: anyCall, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 20 * time.Second}})
		c.change(rows("r", 64)...)
		c.handles(6100 * time.Millisecond)
		time.Sleep(10 * time.Second)
		require.Len(t, c.members(), 1)
		held.Remove()
		time.Sleep(20 * time.Second)
		settle()
		require.Len(t, c.members(), 2)
		before := a.count()
		c.change(rows("r", 64)...)
		c.handles(time.Second)
		require.Greater(t, a.count(), before)
		require.Positive(t, b.count())
	})
}

// All workers start at once, again and again, and stop at once.
func TestAllComeAndGoAtOnce(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		for round := range 4 {
			var all []*mate
			for i := range 8 {
				m := c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o")
				if i%2 == 1 {
					m.wire.AddRule(faultstore.Rule{Times: -1, Match: anyCall, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: time.Duration(i) * 5 * time.Millisecond}})
				}
				all = append(all, m)
			}
			for _, m := range all {
				m.start()
			}
			c.change(rows("r", 64)...)
			c.handles(6 * time.Second)
			settle()
			c.change(rows("r", 64)...)
			c.handles(2 * time.Second)
			for _, m := range all {
				if round%2 == 0 {
					m.cancel()
				} else {
					m.wire.CrashClient()
					m.cancel()
				}
			}
			for _, m := range all {
				<-m.ended
			}
			c.change(rows("r", 64)...)
			if round%2 == 0 {
				require.Empty(t, c.members())
			}
		}
	})
}

// WaitIdle of each worker waits for the changes of all, and ends.
func TestWaitIdleOfSeveralWorkers(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 3 {
			all = append(all, c.hire(WorkerConfig{Concurrency: 2}, sleeps(100*time.Millisecond), "o").start())
		}
		for round := range 4 {
			c.change(rows("r", 100)...)
			if round == 2 { // shares move, and jobs are dropped
				all = append(all, c.hire(WorkerConfig{Concurrency: 2}, sleeps(100*time.Millisecond), "o").start())
			}
			done := make(chan error, len(all))
			for _, m := range all {
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					err := m.WaitIdle(ctx)
					if left := len(c.left(0)); left > 0 {
						err = errors.Join(err, fmt.Errorf("%d are left", left))
					}
					done <- err
				}()
			}
			for range all {
				require.NoError(t, <-done)
			}
		}
	})
}

// A failed run goes on in the worker that its cell has gone to, and a parked one after its
// release.
func TestFailuresMoveWithTheirCells(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		config := WorkerConfig{MaxAttempts: 100, Backoff: Backoff{Min: 4 * time.Second, Max: 4 * time.Second}, Rescan: time.Hour}
		fails := func(context.Context, Cell) error { return errTest }
		a := c.hire(config, fails, "o").start()
		settle()
		c.change(rows("r", 32)...)
		time.Sleep(time.Second)
		require.Equal(t, 32, a.count())
		b := c.hire(config, nil, "o").start()
		settle()
		a.stop()
		c.handles(6 * time.Second)
		require.Equal(t, 32, b.count())
		b.stop()

		config.MaxAttempts = 1
		config.Rescan = 2 * time.Second
		d := c.hire(config, fails, "o").start()
		settle()
		c.change(rows("r", 32)...)
		time.Sleep(time.Second)
		parked, err := c.source.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 32)
		e := c.hire(config, nil, "o").start()
		settle()
		d.stop()
		settle()
		require.NoError(t, c.source.Release(t.Context(), parked...))
		c.handles(time.Second)
		require.Equal(t, 32, e.count())
	})
}

// Workers whose functions take longer than a lease keep their shares, and do not run those of
// the others.
func TestSlowFunctions(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		const takes = 10 * time.Second
		var all []*mate
		for range 4 {
			all = append(all, c.hire(WorkerConfig{}, sleeps(takes), "o").start())
		}
		settle()
		c.change(rows("r", 400)...)
		c.handles(takes * 400 / 64 * 3 / 2)
		require.LessOrEqual(t, calls(all), 420)
	})
}

// A worker whose look hangs, wherever it does, leaves its share to others.
func TestHangingLook(t *testing.T) {
	for _, kind := range []faultstore.CallKind{faultstore.CallScan, faultstore.CallSplit} {
		t.Run(kind.String(), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				a := c.hire(WorkerConfig{}, nil, "o")
				a.db.slots = kind != faultstore.CallSplit // else it does not split the table
				a.start()
				c.hire(WorkerConfig{}, nil, "o").start()
				settle()
				hangs := a.wire.AddRule(faultstore.Rule{
					Match: func(x *call) bool { return x.Kind == kind && (kind == faultstore.CallSplit || x.Range.Table == "t") },
					Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: time.Hour}, Times: -1,
				})
				c.change(rows("r", 4*lookPage)...)
				time.Sleep(10 * time.Second)
				require.Positive(t, hangs.Struck())
				c.change(rows("r", 64)...)
				c.handles(6100 * time.Millisecond)
			})
		})
	}
}

// A worker whose own places for an observer all hang hands over what waits for them, and
// nothing else: another observer of the column goes on beside.
func TestHangingOwnPlaces(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var stuck, beside, helped atomic.Int64
		observe := func(m *mate, name string, places int, work func(context.Context) error) {
			require.NoError(t, m.Observe(Observer{Name: name, Table: "t", Column: "v", Concurrency: places, Func: func(ctx context.Context, _ *Txn, _ Cell) error {
				return work(ctx)
			}}))
		}
		m := c.hire(WorkerConfig{Concurrency: 1}, nil)
		observe(m, "hangs", 2, func(ctx context.Context) error {
			stuck.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		observe(m, "beside", 0, func(context.Context) error { beside.Add(1); return nil })
		m.start()
		settle()
		c.change(rows("x", 30)...)
		time.Sleep(time.Second)
		require.Equal(t, []int64{2, 30}, []int64{stuck.Load(), beside.Load()})

		other := c.hire(WorkerConfig{}, nil)
		observe(other, "hangs", 1, func(context.Context) error { helped.Add(1); return nil })
		other.start()
		settle()
		require.Equal(t, []int64{2, 28}, []int64{stuck.Load(), helped.Load()}, "the rows whose functions hang are claimed, and all others are done")
	})
}
