package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A beat that fails after it has read the list does not forget what it has read.
func TestBeatThatFailsHalfway(t *testing.T) {
	for _, fault := range []verdict{refuse, lose, loseReply} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				var all []*mate
				for range 4 {
					all = append(all, c.hire(WorkerConfig{}, nil, "o").start())
				}
				settle()
				for _, m := range all[1:] {
					// The first renewal after the list was read again fails.
					read := false
					m.wire.AddRule(faultstore.Rule{Fault: fault, Match: func(x *call) bool {
						read = read || scansMembers(x)
						return read && touches(false)(x)
					}})
				}
				all[0].stop()
				settle()
				c.change(rows("r", 64)...)
				c.handles(time.Second)
			})
		})
	}
}

// A worker whose first announcement fails gets its share nevertheless.
func TestJoinerWhoseAnnouncementFails(t *testing.T) {
	for _, fault := range []verdict{refuse, lose, loseReply} {
		for _, others := range []int{0, 1} {
			t.Run(fmt.Sprint(fault, ", others ", others), func(t *testing.T) {
				eachCrew(t, func(t *testing.T, c *crew) {
					for range others {
						c.hire(WorkerConfig{}, nil, "o").start()
					}
					settle()
					b := c.hire(WorkerConfig{}, nil, "o")
					b.wire.AddRule(faultstore.Rule{Match: touches(true), Fault: fault})
					b.start()
					settle()
					c.change(rows("r", 64)...)
					c.handles(time.Second)
					require.Positive(t, b.count())
				})
			})
		}
	}
}

// A worker that joins looks for changes at the moment from which on it has a share, however
// long it would wait for its next look.
func TestJoinerLooksWhenItsShareBegins(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		config := WorkerConfig{Concurrency: 1, Rescan: time.Hour}
		slow := sleeps(100 * time.Millisecond)
		a := c.hire(config, slow, "o").start()
		settle()
		c.change(rows("r", 200)...)
		time.Sleep(time.Second)
		b := c.hire(config, slow, "o").start()
		time.Sleep(2500 * time.Millisecond)
		require.Positive(t, b.count(), "a worker with a share of the backlog does nothing")
		c.handles(20 * time.Second)
		require.LessOrEqual(t, a.count()+b.count(), 202, "besides what ran when the share moved, functions were called once")
	})
}

// A beat that fails after a share has begun leaves the look for it to the next one.
func TestBeatThatFailsAsAShareBegins(t *testing.T) {
	eachFinding(t, func(t *testing.T, c *crew) {
		config := WorkerConfig{Concurrency: 1, Rescan: time.Hour}
		slow := sleeps(100 * time.Millisecond)
		c.hire(config, slow, "o").start()
		settle()
		c.change(rows("r", 200)...)
		time.Sleep(time.Second)
		b := c.hire(config, slow, "o")
		// Its renewals fail from before its share begins (after two seconds) to after it.
		began := time.Now()
		b.wire.AddRule(faultstore.Rule{Fault: refuse, Times: -1, Match: func(x *call) bool {
			since := time.Since(began)
			return since > 1500*time.Millisecond && since < 3*time.Second && touches(false)(x)
		}})
		b.start()
		time.Sleep(6 * time.Second)
		require.Positive(t, b.count(), "a worker with a share of the backlog does nothing")
		c.handles(20 * time.Second)
	})
}

// A worker whose last word was lost is missed by all others, though only one of them
// watches it.
func TestLeaverWhoseAnnouncementIsLost(t *testing.T) {
	for _, fault := range []verdict{refuse, lose, die} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				var all []*mate
				for range 4 {
					all = append(all, c.hire(WorkerConfig{}, nil, "o").start())
				}
				settle()
				all[0].wire.AddRule(faultstore.Rule{Match: touches(true), Fault: fault, Times: -1})
				all[0].stop()
				require.Len(t, c.members(), 3)
				settle()
				c.change(rows("r", 64)...)
				c.handles(time.Second)
			})
		})
	}
}

// notAlike leaves out those calls of a worker of the default lease that are like the others beside them: of the beats after it has joined, which come 16
// in a lease, the first, those about the change of the shares, and the last are enough.
func notAlike(match matcher) matcher {
	began := time.Now()
	return func(x *call) bool {
		at := time.Since(began)
		alike := at > 300*time.Millisecond && at < 2*time.Second || at > 2400*time.Millisecond && at < 2900*time.Millisecond
		return match(x) && !alike
	}
}

// meets hires a worker beside three whose nth call about members meets a fault, and which leaves after seven seconds: nothing waits for it then.
// during comes before it leaves. struck is false if it made fewer calls.
func (c *crew) meets(n int, fault verdict, during func()) (struck bool) {
	c.t.Helper()
	b := c.hire(WorkerConfig{}, nil, "o")
	rule := b.wire.AddRule(faultstore.Rule{Match: notAlike(concernsMembers), Skip: n, Fault: fault})
	b.start()
	time.Sleep(7 * time.Second)
	during()
	b.stop()
	settle()
	c.change(rows("s", 32)...)
	c.handles(time.Second, "call ", n)
	require.Len(c.t, c.members(), 3, "call %d", n)
	c.dismiss(b)
	return rule.Struck() > 0
}

// memberCalls are fewer than a member makes that are not alike: it reads and writes its record, and looks at the others.
const memberCalls = 15

// A worker may die at any call, while it joins beside one that was killed before it, while it
// beats, or while it leaves: the others miss it, and nothing waits for it.
func TestMemberDiesAtEachCall(t *testing.T) {
	for _, fault := range []verdict{die, dieAfter} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				for range 3 {
					c.hire(WorkerConfig{}, nil, "o").start()
				}
				n := 0
				for died := true; died; n++ {
					dead := c.hire(WorkerConfig{}, nil, "o").start()
					settle()
					dead.kill()
					time.Sleep(3010 * time.Millisecond) // its lease has just ended
					died = c.meets(n, fault, func() {})
					c.dismiss(dead)
				}
				require.Greater(t, n, memberCalls)
			})
		})
	}
}

// The same for calls that fail, that come late, and those whose reply is lost.
func TestMemberFailsAtEachCall(t *testing.T) {
	for _, fault := range []verdict{refuse, lose, loseReply, {Kind: faultstore.Late, Rows: 3}, {Kind: faultstore.Late, Rows: 60}} {
		t.Run(fmt.Sprint(fault, fault.Rows), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				for range 3 {
					c.hire(WorkerConfig{}, nil, "o").start()
				}
				settle()
				n := 0
				for failed := true; failed; n++ {
					failed = c.meets(n, fault, func() {
						c.change(rows("r", 32)...)
						c.handles(6*time.Second, "call ", n)
					})
				}
				require.Greater(t, n, memberCalls)
			})
		})
	}
}

// How soon a worker that was killed is missed depends on its own lease, and on nobody
// else's.
func TestLeasesOfDifferentLength(t *testing.T) {
	for _, longer := range []int{1, 2} {
		t.Run(fmt.Sprint(longer, " long"), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				var short []*mate
				for i := range 4 {
					lease := WorkerConfig{}.MemberLease
					if i < longer {
						lease = 2 * time.Minute
					}
					m := c.hire(WorkerConfig{MemberLease: lease}, nil, "o").start()
					if i >= longer {
						short = append(short, m)
					}
				}
				time.Sleep(5 * time.Minute)
				c.change(rows("r", 64)...)
				c.handles(time.Second)
				short[0].wire.CrashClient()
				settle()
				c.change(rows("s", 64)...)
				c.handles(time.Second)
				short[1].stop()
				settle()
				c.change(rows("t", 64)...)
				c.handles(time.Second)
			})
		})
	}
}

// A worker dies after it has joined and before it has told so. One of the others, which
// reads the list just then, knows it, and the one that should watch it does not.
func TestMemberThatOneAloneKnowsDies(t *testing.T) {
	for i := range 6 {
		t.Run(fmt.Sprint("known to ", i), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				byID := map[string]*mate{}
				for range 6 {
					c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").startIn(byID, c)
				}
				settle()
				one := byID[c.members()[i]]
				slow := one.wire.AddRule(faultstore.Rule{Match: scansMembers, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 1400 * time.Millisecond}})
				c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start() // is what they read the list for
				for slow.Struck() == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(700 * time.Millisecond)
				dead := c.hire(WorkerConfig{}, nil, "o")
				tells := dead.wire.AddRule(faultstore.Rule{Match: touches(true), Fault: die})
				dead.start()
				time.Sleep(6100 * time.Millisecond)
				require.Equal(t, 1, tells.Struck())
				c.change(rows("r", 64)...)
				c.handles(time.Second)
				require.Len(t, c.members(), 7)
			})
		})
	}
}

// A worker whose store is away tries again less and less often, also once the lease of the
// one that it watches has ended.
func TestBeatsWhileTheStoreIsAway(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		away := a.wire.AddRule(faultstore.Rule{Times: -1, Match: concernsMembers, Fault: refuse})
		time.Sleep(time.Minute)
		require.Greater(t, away.Struck(), 10)
		require.Less(t, away.Struck(), 100)
		away.Remove()
		settle()
		require.Len(t, c.members(), 2)
	})
}

// Workers that know each other make two calls at each beat, and no others; they look at
// their table no more often than they must.
func TestCallsOfABeat(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 3 {
			all = append(all, c.hire(WorkerConfig{Rescan: time.Hour}, nil, "o").start())
		}
		settle()
		for _, m := range all {
			seen := m.wire.AddRule(faultstore.Rule{Times: -1, Match: concernsMembers})
			looks := m.db.Stats().NotifyScans
			time.Sleep(30 * time.Second)
			require.InDelta(t, 2*30/1.5, seen.Struck(), 3)
			require.Equal(t, looks, m.db.Stats().NotifyScans)
			seen.Remove()
		}
	})
}

// The generation may go back: that of the last one to say something was drawn before that
// of another.
func TestGenerationThatGoesBack(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		m := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		read := m.wire.AddRule(faultstore.Rule{Times: -1, Match: scansMembers})
		require.NoError(t, c.hire(WorkerConfig{}, nil, "o").announce(t.Context(), 1))
		time.Sleep(2 * time.Second)
		require.Positive(t, read.Struck())
	})
}

// Of workers that start at once one alone begins at once, by what the store has of them.
func TestRecordsOfThoseWhoStartAtOnce(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for i := range 6 {
			m := c.hire(WorkerConfig{}, nil, "o")
			m.wire.AddRule(faultstore.Rule{Times: -1, Match: anyCall, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: time.Duration(i+1) * time.Millisecond}})
			all = append(all, m)
		}
		for _, m := range all {
			m.start()
		}
		settle()
		first := 0
		for r, err := range c.mem.Scan(t.Context(), rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{everything(rowstore.Lock, format.ColumnMember)}}) {
			require.NoError(t, err)
			record, err := format.DecodeMember(r.Versions[0].Value)
			require.NoError(t, err)
			if record.From == r.Versions[0].TS {
				first++
			}
		}
		require.Equal(t, 1, first)
	})
}

// When the shares of a member begin that joins.
func TestBeginningOfShares(t *testing.T) {
	t.Parallel()
	wk := watching(t, newWorld(t).client(), Observer{Name: "a", Func: func(context.Context, *Txn, Cell) error { return nil }})
	now := oracle.FromTime(time.Unix(1000, 0))
	other := func(joined Timestamp, lease time.Duration, weights ...int) member {
		m := sharer("x", 0, 0, weights...)
		m.joined, m.record.Lease = joined, lease
		return m
	}
	for name, x := range map[string]struct {
		list []member
		want Timestamp
	}{
		"alone":            {nil, now},
		"with an earlier":  {[]member{other(now-1, time.Second, 16)}, dated(now, 2*time.Second)},
		"longer lease":     {[]member{other(now-1, 9*time.Second, 16)}, dated(now, 6*time.Second)},
		"with a later":     {[]member{other(now+1, time.Second, 16)}, now},
		"at the same time": {[]member{other(now, time.Second, 16)}, now},
		"other observers":  {[]member{other(now-1, time.Second, -1, 16)}, now},
		"stuck":            {[]member{other(now-1, time.Second, 0)}, dated(now, 2*time.Second)},
	} {
		wk.member.list = x.list
		require.Equal(t, x.want, wk.begin(now), name)
	}
}

// What makes a beat come before its time.
func TestWhenTheNextBeatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wk := watching(t, w.client(), Observer{Name: "a", Func: func(context.Context, *Txn, Cell) error { return nil }})
	now := oracle.FromTime(w.clock.Now())
	q := wk.list[0]
	for name, x := range map[string]struct {
		change func(m *membership)
		want   time.Duration
	}{
		"nothing":                   {func(*membership) {}, 1500 * time.Millisecond},
		"just joined":               {func(m *membership) { m.joined = now.Add(-2 * time.Second) }, 3 * time.Second / 16},
		"a share begins":            {func(m *membership) { (*m.shares.Load())[q] = []share{{}, {from: now.Add(700 * time.Millisecond)}} }, 700 * time.Millisecond},
		"the successor's lease":     {func(m *membership) { m.successor, m.ends = "s", now.Add(400*time.Millisecond) }, 401 * time.Millisecond},
		"its lease was not read":    {func(m *membership) { m.successor = "s" }, 1500 * time.Millisecond},
		"its lease has ended":       {func(m *membership) { m.successor, m.ends = "s", now.Add(-time.Second) }, time.Millisecond},
		"a short lease":             {func(m *membership) { m.list = []member{{record: format.Member{Lease: time.Second}}} }, 500 * time.Millisecond},
		"one that is too short":     {func(m *membership) { m.list = []member{{record: format.Member{Lease: time.Millisecond}}} }, shortestLease / 2},
		"stuck soon":                {func(*membership) { wk.looking["t"] = w.clock.Now().Add(-2 * time.Second) }, time.Second},
		"stuck, and others know it": {func(*membership) { wk.looking["t"], q.stuck = w.clock.Now().Add(-4*time.Second), true }, 1500 * time.Millisecond},
	} {
		m := &wk.member
		m.joined, m.successor, m.ends, m.list = now.Add(-time.Hour), "", 0, nil
		q.stuck = false
		clear(wk.looking)
		m.time.Store(&oracleTime{now, w.clock.Now()})
		m.shares.Store(&shares{q: {{}}})
		x.change(m)
		require.Equal(t, x.want, wk.untilBeat(), name)
	}
}

// A worker that reads the record of one that has not yet taken back that it begins at once
// leaves nothing to it before its time.
func TestShareOutDatesJoins(t *testing.T) {
	t.Parallel()
	wk := watching(t, newWorld(t).client(), Observer{Name: "a", Func: func(context.Context, *Txn, Cell) error { return nil }})
	now := oracle.FromTime(time.Unix(1000, 0))
	m := &wk.member
	m.id, m.joined, m.record = "me", now, sharer("me", now, 0, 16).record
	m.record.Lease = time.Second
	later := sharer("x", now+1, 0, 16)
	later.joined = now + 1
	m.list = []member{later}
	wk.shareOut(now + 2)
	require.Equal(t, shareAll, m.shares.Load().at(wk.list[0], now+2).kind)
	require.Equal(t, shareSlots, m.shares.Load().at(wk.list[0], now.Add(time.Second)).kind)
	require.Equal(t, now+1, m.list[0].record.From, "the list stays as it was read")
}

// What a worker that stops leaves, the others take over at once.
func TestLeaverIsMissedAtOnce(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		b := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		b.stop()
		c.change(rows("r", 64)...)
		c.handles(100 * time.Millisecond)
		require.Equal(t, 64, a.count())
	})
}
