package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// eachFinding is eachCrew for workers that find rows by slots, and for workers that read all
// notifications, as they must over a store without [rowstore.SlotScanner].
func eachFinding(t *testing.T, test func(t *testing.T, c *crew)) {
	t.Helper()
	t.Parallel()
	for _, rows := range []bool{false, true} {
		t.Run(fmt.Sprint("in row order ", rows), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				c.rows = rows
				test(t, c)
			})
		})
	}
}

// scansOfT are the looks at table "t".
func scansOfT(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" }

// Pushes of some slots, one behind the other, do not keep a worker from the rest of its rows.
func TestPushesDoNotHoldUpTheRest(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		c.quiet = true
		m := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		m.wire.AddRule(faultstore.Rule{Match: scansOfT, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 5 * time.Millisecond}, Times: -1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for (systemClock{}).Sleep(ctx, time.Millisecond) == nil {
				m.kick(rowstore.Wake{Table: "t", Slots: []uint16{rowstore.Slot("t", "r") + 1}})
			}
		}()
		defer func() {
			cancel()
			<-ended
		}()
		c.change("r")
		c.handles(5 * time.Second)
	})
}

// A change is run while a walk through a backlog goes on, whose functions have all places but
// those that are its turn, and so is the backlog while changes keep coming.
func TestChangeDoesNotWaitForTheBacklog(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		const backlog = 4 * queueLength
		c.quiet = true // no push tells of the backlog
		work := func(ctx context.Context, _ Cell) error { return (systemClock{}).Sleep(ctx, 100*time.Millisecond) }
		m := c.hire(WorkerConfig{Concurrency: 2}, work, "o").start()
		settle()
		c.change(rows("backlog", backlog)...)
		m.kick(rowstore.Wake{Table: "t"})
		require.Eventually(t, func() bool {
			m.Worker.mu.Lock()
			defer m.Worker.mu.Unlock()
			return len(m.list[0].tasks) > lowWater
		}, time.Minute, time.Millisecond)
		first := m.count()
		for i := range 10 {
			row := fmt.Sprint("fresh", i)
			c.change(row)
			m.kick(rowstore.Wake{Table: "t", Slots: []uint16{rowstore.Slot("t", row)}})
			time.Sleep(time.Second)
			require.True(t, m.called("o/"+row), "change %d", i)
		}
		require.Greater(t, m.count(), first+15, "the backlog goes on")
		require.Less(t, m.count(), backlog)
	})
}

// The backlog of one observer is read a few times, and not once for each page that its functions handle, where another observer of the
// table has room for more. What is there for that one does not wait until the backlog is handled, even if its functions
// hang; no push has told of it.
func TestBacklogBesideAnotherObserver(t *testing.T) {
	for name, hangs := range map[string]bool{"it is handled": false, "it hangs": true} {
		t.Run(name, func(t *testing.T) {
			eachFinding(t, func(t *testing.T, c *crew) {
				const pages = 20
				c.quiet = true
				var scans, ran, others atomic.Int64
				m := c.hire(WorkerConfig{Concurrency: 16}, func(ctx context.Context, _ Cell) error {
					if hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					ran.Add(1)
					return systemClock{}.Sleep(ctx, 10*time.Millisecond)
				}, "o")
				require.NoError(t, m.Observe(counting("other", "other", &others)))
				m.start()
				settle()
				m.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
					if scansOfT(x) {
						scans.Add(1)
					}
					return scansOfT(x)
				}, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 5 * time.Millisecond}, Times: -1})
				c.change(rows("backlog", pages*lookPage)...)
				for i := range 10 {
					set(t, c.source, Cell{"t", fmt.Sprint("backlog", 500*i), "other"}, "x")
				}
				m.kick(rowstore.Wake{Table: "t"})
				until(t, func() bool { return others.Load() == 10 })
				if hangs {
					return
				}
				require.Less(t, ran.Load(), int64(pages*lookPage/2), "others wait for the backlog")
				until(t, func() bool { return ran.Load() == pages*lookPage })
				t.Logf("%d scans for %d pages", scans.Load(), pages)
				require.LessOrEqual(t, scans.Load(), int64(8*pages), "scans")
			})
		})
	}
}

// Of two observers of the same cells a quick one does not wait for a slow one: it goes through the backlog as fast as pages are read.
func TestQuickObserverBesideASlowOne(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		const pages = 10
		c.quiet = true
		m := c.hire(WorkerConfig{Concurrency: 16}, sleeps(time.Second), "slow")
		var quick atomic.Int64
		require.NoError(t, m.Observe(counting("quick", "v", &quick)))
		m.start()
		settle()
		m.wire.AddRule(faultstore.Rule{Match: scansOfT, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 20 * time.Millisecond}, Times: -1})
		c.change(rows("backlog", pages*lookPage)...)
		m.kick(rowstore.Wake{Table: "t"})
		began := time.Now()
		until(t, func() bool { return quick.Load() >= pages*lookPage })
		// Each page takes 20 ms, and ten times as long if the walk rests after it.
		require.Less(t, time.Since(began), pages*100*time.Millisecond)
	})
}

// What waits in the share of a worker that was killed does not wait for the rest of a walk through
// the backlog of the one that takes the share over, although no push has told of it.
func TestGainedChangesDoNotWaitForTheBacklog(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		c.quiet = true
		b := c.hire(WorkerConfig{Concurrency: 1}, sleeps(100*time.Millisecond), "o").start()
		a := c.hire(WorkerConfig{Concurrency: 1}, nil, "o").start()
		settle()
		q := b.list[0]
		owned := func(prefix string, by *mate, n int) (names []string) {
			for i := 0; len(names) < n; i++ {
				name := fmt.Sprint(prefix, i)
				if by.owns(by.list[0], row(name).stored(), by.now()) {
					names = append(names, name)
				}
			}
			return names
		}
		const backlog = 8 * queueLength
		late := owned("late", a, 64)
		c.change(owned("backlog", b, backlog)...)
		b.kick(rowstore.Wake{Table: "t"})
		waiting := func() int {
			b.Worker.mu.Lock()
			defer b.Worker.mu.Unlock()
			return len(q.tasks)
		}
		until(t, func() bool { return waiting() > lowWater })
		a.kill()
		c.change(late...)
		until(t, func() bool { return b.owns(q, row(late[0]).stored(), b.now()) })
		before := b.count()
		require.Less(t, before, backlog/4, "the backlog goes on for long")
		until(t, func() bool {
			return !slices.ContainsFunc(late, func(name string) bool { return !b.called("o/" + name) })
		})
		// Those that were queued before, and a page that was being read, are run first.
		require.LessOrEqual(t, b.count()-before, 2*queueLength+len(late))
	})
}

// until waits in steps of the bubble's clock, an hour at most.
func until(t *testing.T, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Hour, 100*time.Millisecond)
}

// A worker whose looks fail leaves its share to others, and has it again once they do not.
func TestFailingLook(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		fails := a.wire.AddRule(faultstore.Rule{Match: scansOfT, Fault: faultstore.Fault{Kind: faultstore.Fail}, Times: -1})
		c.change(rows("r", 64)...)
		c.handles(6100 * time.Millisecond)
		require.Positive(t, fails.Struck())
		settle()
		before := a.count()
		c.change(rows("s", 64)...)
		c.handles(time.Second)
		require.Equal(t, before, a.count(), "it has no share")
		a.wire.SetRules()
		settle()
		settle()
		c.change(rows("t", 64)...)
		c.handles(time.Second)
		require.Greater(t, a.count(), before, "it has its share again")
	})
}

// A push whose slots have been taken already, by the look before, leads to none.
func TestNothingAskedForIsNoLook(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		m := c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start()
		settle()
		scanned := m.db.count.notifyScans.Load()
		leaveToken(m.asked["t"].some)
		settle()
		require.Equal(t, scanned, m.db.count.notifyScans.Load())
	})
}

// What a worker does besides calling functions goes on soon after the store has failed, however long functions that failed wait.
func TestFailedLookIsNotPacedByTheBackoff(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{Backoff: Backoff{Min: time.Hour, Max: 24 * time.Hour}}, nil, "o").start()
		settle()
		fails := a.wire.AddRule(faultstore.Rule{Match: scansOfT, Fault: faultstore.Fault{Kind: faultstore.Fail}, Times: 3})
		c.change("r")
		c.handles(4 * time.Second)
		require.Positive(t, fails.Struck())
	})
}
