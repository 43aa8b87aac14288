package percolator

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// claims are the cells that are claimed.
func (c *crew) claims(observers ...string) (n int) {
	c.t.Helper()
	for _, o := range observers {
		for _, err := range c.mem.Scan(c.t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{everything(rowstore.Mark, format.ClaimColumn(o, "v"))}}) {
			require.NoError(c.t, err)
			n++
		}
	}
	return n
}

// Functions that take long are not called again by the workers that their cells go to
// meanwhile, also where two observers of a cell run at once.
func TestLongRunsAreClaimed(t *testing.T) {
	for _, observers := range [][]string{{"a"}, {"a", "b"}} {
		t.Run("", func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				config := WorkerConfig{Concurrency: 64}
				long := sleeps(30 * time.Second)
				all := []*mate{c.hire(config, long, observers...).start()}
				settle()
				c.change(rows("r", 16)...)
				for range 3 {
					time.Sleep(3 * time.Second)
					all = append(all, c.hire(config, long, observers...).start())
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.Equal(t, 16*len(observers), c.claims(observers...))
				c.handles(40 * time.Second)
				calls := 0
				for _, m := range all {
					calls += m.count()
				}
				require.Equal(t, 16*len(observers), calls)
				synctest.Wait()
				require.Zero(t, c.claims(observers...))
			})
		})
	}
}

// Claims and their renewals wake nobody: each worker looks once in a while, as without them.
func TestClaimsWakeNobody(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 4 {
			all = append(all, c.hire(WorkerConfig{Concurrency: 64, Rescan: 10 * time.Second}, sleeps(time.Minute), "o").start())
			time.Sleep(130 * time.Millisecond)
		}
		settle()
		c.change(rows("r", 40)...)
		time.Sleep(5 * time.Second)
		require.Equal(t, 40, c.claims("o"))
		looks := func() (n uint64) {
			for _, m := range all {
				n += m.db.Stats().NotifyScans
			}
			return n
		}
		before := looks()
		time.Sleep(40 * time.Second)
		require.LessOrEqual(t, looks()-before, uint64(4*(4+1)))
		require.Equal(t, 40, c.claims("o"))
	})
}

// The claims of a worker that was killed end, and are collected.
func TestClaimsOfTheDeadEnd(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, sleeps(time.Hour), "o").start()
		settle()
		c.change(rows("r", 16)...)
		time.Sleep(5 * time.Second)
		b := c.hire(WorkerConfig{}, nil, "o").start()
		time.Sleep(5 * time.Second)
		require.Equal(t, 16, c.claims("o"))
		a.wire.CrashClient()
		c.handles(6*time.Second + 100*time.Millisecond)
		require.Equal(t, 16, b.count())
		time.Sleep(70 * time.Minute) // more than the retention
		_, err := c.source.CollectGarbage(t.Context(), GCOptions{})
		require.NoError(t, err)
		require.Zero(t, c.claims("o"))
	})
}

// Claims that fail, or whose replies are lost, keep nobody from the work.
func TestClaimsThatFail(t *testing.T) {
	for name, fault := range map[string]verdict{"fail": refuse, "lost": lose, "lost reply": loseReply} {
		t.Run(name, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				a := c.hire(WorkerConfig{}, sleeps(5*time.Second), "o")
				a.wire.AddRule(faultstore.Rule{Times: -1, Fault: fault, Match: func(x *call) bool {
					return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
						return e.Column == format.ClaimColumn("o", "v")
					})
				}})
				a.start()
				settle()
				c.change(rows("r", 16)...)
				c.handles(6 * time.Second)
				require.Equal(t, 16, a.count())
				c.hire(WorkerConfig{}, nil, "o").start()
				settle()
				c.change(rows("r", 16)...)
				c.handles(6 * time.Second)
			})
		})
	}
}

// A worker that stops keeps its claims until its last function has ended, begins nothing,
// and gives its shares up at once.
func TestStopWhileFunctionsRun(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		config := WorkerConfig{StopTimeout: time.Minute}
		a := c.hire(config, sleeps(20*time.Second), "o").start()
		settle()
		c.change(rows("r", 8)...)
		b := c.hire(config, func(context.Context, Cell) error { return nil }, "o").start()
		time.Sleep(6 * time.Second)
		began := a.count()
		require.Equal(t, 8, began)
		a.cancel()
		time.Sleep(10 * time.Millisecond)
		c.change(rows("s", 64)...)
		time.Sleep(3 * time.Second)
		require.Equal(t, 64, b.count(), "the new changes wait for a worker that stops")
		<-a.ended
		require.NoError(t, a.ranErr)
		c.handles(time.Second)
		require.Equal(t, 8, a.count())
		require.Equal(t, 64, b.count())
	})
}

// A run that ends removes its own claims, also those before one that failed, and leaves those
// of another worker, whose run of the same change may go on.
func TestClaimsAreRemovedByTheirOwner(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		lost, won := c.hire(WorkerConfig{}, nil, "o"), c.hire(WorkerConfig{MemberLease: time.Minute}, nil, "o")
		claim := func(m *mate, x *task) *task {
			if x == nil {
				x = &task{job: job{Cell{"t", "r", "v"}.stored(), m.list[0].o}, claimed: time.Now()}
			}
			_ = m.claim(t.Context(), []*task{x})
			return x
		}
		a, b := claim(lost, nil), claim(won, nil)
		lost.dropClaim(a)
		require.Equal(t, 1, c.claims("o"), "the one that goes on")
		won.dropClaim(b)
		require.Zero(t, c.claims("o"))
		require.Empty(t, b.claims)

		claim(won, b)
		require.Zero(t, c.claims("o"), "a run that has ended is claimed")

		a = claim(lost, nil)
		lost.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Fault: refuse})
		claim(lost, a)
		require.Equal(t, 1, c.claims("o"), "the first one")
		lost.dropClaim(a)
		require.Zero(t, c.claims("o"))

		a = claim(lost, nil)
		lost.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Before: func(context.Context, *call) faultstore.Fault {
			lost.dropClaim(a)
			return faultstore.Fault{}
		}})
		claim(lost, a)
		require.Zero(t, c.claims("o"), "the run has ended while it was claimed")

		a = claim(lost, nil)
		for range 20 {
			time.Sleep(time.Second)
			claim(lost, a)
		}
		require.Less(t, len(a.claims), 6, "those that have ended are forgotten")
		lost.dropClaim(a)
		require.Zero(t, c.claims("o"))
	})
}

// claimAll claims cells for the run of a worker of which nothing else is known.
func (c *crew) claimAll(rows []string, ends Timestamp) {
	c.t.Helper()
	var muts []rowstore.Mutation
	for _, r := range rows {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: r, Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, format.ClaimColumn("o", "v"), ends, []byte("somebody"))}})
	}
	_, err := c.mem.Apply(c.t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(c.t, err)
}

// A claim that ends later than any that a worker makes is no claim.
func TestClaimThatEndsFarAhead(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		c.claimAll(rows("r", 16), c.now().Add(100*365*24*time.Hour))
		c.change(rows("r", 16)...)
		c.handles(time.Second)
	})
}

// The claims of a worker that has died end though the oracle's time stands still, as after somebody has set its clock back.
func TestClaimsOfTheDeadEndWhileTheOracleStandsStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Int64
		c := &crew{t: t, mem: memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }))}
		c.source = c.open(faultstore.New(c.mem, faultstore.Options{KeepOpen: true, Seed: 1}))
		m := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		c.claimAll(rows("r", 16), c.now().Add(3*time.Second))
		back.Store(int64(time.Hour))
		c.change(rows("r", 16)...)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, m.count(), "they are claimed")
		c.handles(30 * time.Second)
	})
}
