package percolator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/internal/hash"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// put stores a member that no process stands behind.
func (c *crew) put(id string, record []byte, joined, ends Timestamp) {
	c.t.Helper()
	m := rowstore.Mutation{Table: format.TableMembers, Row: id, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Lock, format.ColumnMember, joined, record),
	}}
	if ends > 0 {
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, format.ColumnLease, ends, format.TimestampOnly))
	}
	_, err := c.mem.Apply(c.t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	require.NoError(c.t, err)
}

// now draws a timestamp.
func (c *crew) now() Timestamp {
	c.t.Helper()
	ts, err := c.source.Now(c.t.Context())
	require.NoError(c.t, err)
	return ts
}

// recordOf is the record of a member that runs an observer.
func recordOf(observer string, lease time.Duration, weight int) []byte {
	m := format.Member{From: 1, Lease: lease, Works: []format.MemberWork{{Observer: observer, Table: "t", Column: "v", Weight: weight}}}
	return m.Encode()
}

// slow lets each call of a mate take some time.
func (m *mate) slow(d time.Duration) *mate {
	m.wire.AddRule(faultstore.Rule{Times: -1, Match: anyCall, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: d}})
	return m
}

// A thousand workers have died at once. Those that come take their shares at once, and those
// that were there are not taken for dead meanwhile.
func TestManyDeadMembersHoldNobodyUp(t *testing.T) {
	for _, before := range []int{0, 2} {
		t.Run(fmt.Sprint(before, " there"), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				var all []*mate
				for range before {
					all = append(all, c.hire(WorkerConfig{}, nil, "o").slow(10*time.Millisecond).start())
				}
				settle()
				now := c.now()
				for i := range 1000 {
					c.put(fmt.Sprintf("%016x", hash.Mix(uint64(i))), recordOf("o", 3*time.Second, 16), now, now-1)
				}
				c.change(rows("r", 64)...)
				if before == 0 {
					time.Sleep(1100 * time.Millisecond) // the catalog's lease, for the new observer
				}
				for range 2 {
					all = append(all, c.hire(WorkerConfig{}, nil, "o").slow(10*time.Millisecond).start())
				}
				c.handles(4 * time.Second)
				settle()
				require.Len(t, c.members(), before+2)
				c.change(rows("s", 64)...)
				c.handles(time.Second)
				require.LessOrEqual(t, calls(all), 128+32, "nobody was taken for dead")
			})
		})
	}
}

// Records that this program cannot read, and members of other observers, change nothing. What no worker can have taken
// is removed, and of what stays each worker tells once.
func TestForeignMembersChangeNothing(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		var log syncBuffer
		c.log = slog.NewTextHandler(&log, nil)
		newer := []byte{format.Version + 1, 1, 2, 3}
		now := c.now()
		far := now.Add(100 * 365 * 24 * time.Hour)
		c.put("0", []byte("garbage"), now, far)
		c.put("5", nil, now, far)
		c.put("9", newer, now, far)
		c.put("f", newer, now, 0)
		stays := []string{"1", "8", "e"}
		for i, record := range [][]byte{newer, []byte("garbage"), newer} {
			c.put(stays[i], record, now, now.Add(mostMemberLease))
		}
		for i := range 100 {
			c.put(fmt.Sprintf("%016x", hash.Mix(uint64(i))), recordOf("nobody", 3*time.Second, 16), now, far)
		}
		var all []*mate
		for range 3 {
			all = append(all, c.hire(WorkerConfig{}, nil, "o").start())
		}
		settle()
		require.Len(t, c.members(), 3+len(stays), "the others' leases end later than any worker takes one")
		require.Subset(t, c.members(), stays)
		c.change(rows("r", 64)...)
		c.handles(time.Second)
		require.Equal(t, 64, calls(all))
		for _, m := range all {
			require.Positive(t, m.count())
		}
		all[0].kill()
		c.change(rows("s", 64)...)
		c.handles(6100 * time.Millisecond)

		told := func() int { return strings.Count(log.String(), "record cannot be read") }
		require.Equal(t, len(all)*len(stays), told(), "each worker tells of each once, however often it reads the list")
		_, err := c.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableMembers, Row: "1", Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Lock, format.ColumnMember, 0, oracle.Max), rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, oracle.Max),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		require.Equal(t, len(all)*len(stays)+2, told(), "the new one tells of the other two")
		c.put("1", newer, c.now(), c.now().Add(mostMemberLease))
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		require.Equal(t, len(all)*len(stays)+2+3+3, told(), "it is there again, and the newest one tells of all")
		time.Sleep(2 * mostMemberLease)
		c.hire(WorkerConfig{}, nil, "o").start() // nobody watches those leases: who reads the list the next time removes them
		settle()
		require.Len(t, c.members(), 5, "nothing is left of them")
		require.Equal(t, len(all)*len(stays)+2+3+3, told())
	})
}

// The oracle's time stands still, as after somebody has set its clock back. A worker that was
// killed is missed nevertheless.
func TestKilledWorkerIsMissedWhileTheOracleStandsStill(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("the first ", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var back atomic.Int64 // how far the clock was set back
				c := &crew{t: t, mem: memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }))}
				c.source = c.open(faultstore.New(c.mem, faultstore.Options{KeepOpen: true, Seed: 1}))
				var all []*mate
				for range 3 {
					all = append(all, c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start())
				}
				settle()
				back.Store(int64(time.Hour))
				time.Sleep(10 * time.Second)
				synctest.Wait()
				c.change(rows("r", 64)...)
				c.handles(time.Second)
				if first {
					all[0].kill()
				} else {
					all[2].kill()
				}
				c.change(rows("s", 64)...)
				c.handles(30 * time.Second)
			})
		})
	}
}

// A lease that ends later than any that a worker takes is no lease.
func TestLeaseThatEndsFarAhead(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for _, lasts := range []time.Duration{3 * time.Second, century} {
		t.Run(fmt.Sprint("by its record ", lasts), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				now := c.now()
				c.put("5", recordOf("o", lasts, 16), now, now.Add(century))
				c.hire(WorkerConfig{}, nil, "o").start()
				settle()
				c.change(rows("r", 64)...)
				c.handles(time.Second)
			})
		})
	}
}

// A worker whose lease was meant to last for hours and that died is missed in minutes.
func TestLongLeaseOfTheDead(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		c.hire(WorkerConfig{MemberLease: 10_000 * time.Hour}, nil, "o").start().kill()
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		c.change(rows("r", 64)...)
		c.handles(2 * mostMemberLease)
	})
}

// A worker that joins need not wait for its time if those before it are all stuck, however long
// their leases are.
func TestJoinerBesideStuckWorkersBeginsAtOnce(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		hang := func(ctx context.Context, _ Cell) error {
			<-ctx.Done()
			return ctx.Err()
		}
		c.hire(WorkerConfig{Concurrency: 1, MemberLease: 2 * time.Minute}, hang, "o").start()
		settle()
		c.change(rows("r", 16)...)
		time.Sleep(5 * time.Minute)
		b := c.hire(WorkerConfig{}, nil, "o").start()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Len(t, c.left(0), 1, "what hangs, and nothing else")
		require.Equal(t, 15, b.count())
	})
}

// The store stands still for longer than all leases, and goes on. Nobody takes anybody for dead
// or stuck because of that, and each change that waits runs once.
func TestWorkersSurviveAnOutageOfTheStore(t *testing.T) {
	for name, busy := range map[string]int{"idle": 0, "busy": 256} {
		t.Run(name, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				var all []*mate
				for range 4 {
					all = append(all, c.hire(WorkerConfig{}, sleeps(100*time.Millisecond), "o").start())
				}
				settle()
				for range 2 {
					before, ids, generation := calls(all), c.members(), c.generation()
					c.change(rows("b", busy)...)
					time.Sleep(50 * time.Millisecond) // the pools of the busy ones are full
					back := c.standStill(all, 8*time.Second)
					c.change(rows("r", 128)...)
					back()
					c.handles(5 * time.Second)
					settle()
					require.Equal(t, ids, c.members())
					require.Equal(t, generation, c.generation(), "somebody has told the others something")
					require.Equal(t, before+busy+128, calls(all))
				}
				all[0].kill()
				c.change(rows("s", 64)...)
				c.handles(6100 * time.Millisecond)
			})
		})
	}
}

// One of those that an outage has cut off comes back later than the others, while they read
// the list anew because another one leaves.
func TestWorkerThatIsBackLastAfterAnOutage(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 4 {
			all = append(all, c.hire(WorkerConfig{}, nil, "o").start())
		}
		settle()
		before := c.members()
		last := c.standStill(all[3:], 12*time.Second)
		c.standStill(all[:3], 8*time.Second)()
		all[0].stop()
		last()
		settle()
		after := c.members()
		require.Len(t, after, 3)
		require.Subset(t, before, after)
	})
}

// Where each beat takes longer than a lease, no worker ever renews its lease in time. One that
// was killed is missed nevertheless.
func TestKilledWorkerIsMissedWhereBeatsTakeLong(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 3 {
			all = append(all, c.hire(WorkerConfig{MemberLease: 500 * time.Millisecond}, nil, "o").slow(200*time.Millisecond).start())
		}
		settle()
		all[0].kill()
		c.change(rows("s", 64)...)
		c.handles(60 * time.Second)
	})
}

// standStill lets no call of some mates begin for a time. back waits until that is over.
func (c *crew) standStill(all []*mate, d time.Duration) (back func()) {
	over := time.Now().Add(d)
	var rules []*faultstore.Added
	for _, m := range all {
		rules = append(rules, m.wire.AddRule(faultstore.Rule{Times: -1, Match: anyCall, Before: func(ctx context.Context, _ *call) faultstore.Fault {
			_ = systemClock{}.Sleep(ctx, time.Until(over))
			return faultstore.Fault{}
		}}))
	}
	return func() {
		time.Sleep(time.Until(over))
		for _, r := range rules {
			r.Remove()
		}
	}
}

// generation is that of the members.
func (c *crew) generation() Timestamp {
	c.t.Helper()
	rows, err := c.mem.Read(c.t.Context(), []rowstore.RowRead{memberRead(format.RowGeneration, format.ColumnChange)})
	require.NoError(c.t, err)
	return rows[0].Newest(rowstore.Write, format.ColumnChange).TS
}

// A member that renews its lease just before it is removed stays in the list.
func TestMemberThatRenewsInTime(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		now := c.now()
		record := recordOf("o", 3*time.Second, 16)
		c.put("4", record, now, now-1)
		c.put("5", record, now, now-1)
		a := c.hire(WorkerConfig{}, nil, "o")
		a.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Before: func(context.Context, *call) faultstore.Fault {
			c.put("5", record, now, now.Add(3*time.Second))
			return faultstore.Fault{}
		}})
		require.NoError(t, a.readMembers(t.Context(), now, false))
		require.Equal(t, []string{"5"}, c.members())
		require.Len(t, a.member.list, 1)
		require.Equal(t, "5", a.member.list[0].id)
		require.Len(t, a.member.list[0].record.Works, 1)
	})
}
