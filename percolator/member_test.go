package percolator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
	eachCrew(t, func(t *testing.T, c *crew) {
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

// A worker may die at any call, while it joins beside one that was killed before it, while it
// beats, or while it leaves: the others miss it, and nothing waits for it.
func TestMemberDiesAtEachCall(t *testing.T) {
	for _, fault := range []verdict{die, dieAfter} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			t.Parallel()
			for n, died := 0, true; died; n++ {
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := newCrew(t)
						dead := c.hire(WorkerConfig{}, nil, "o").start()
						for range 3 {
							c.hire(WorkerConfig{}, nil, "o").start()
						}
						settle()
						dead.kill()
						time.Sleep(3010 * time.Millisecond) // its lease has just ended
						b := c.hire(WorkerConfig{}, nil, "o")
						rule := b.wire.AddRule(faultstore.Rule{Match: concernsMembers, Skip: n, Fault: fault})
						b.start()
						time.Sleep(7 * time.Second)
						b.stop()
						died = rule.Struck() > 0
						settle()
						c.change(rows("r", 64)...)
						c.handles(time.Second)
						require.Len(t, c.members(), 3)
					})
				})
			}
		})
	}
}

// The same for calls that fail, and for those whose reply is lost.
func TestMemberFailsAtEachCall(t *testing.T) {
	for _, fault := range []verdict{refuse, lose, loseReply, {Kind: faultstore.Late, Rows: 3}, {Kind: faultstore.Late, Rows: 60}} {
		t.Run(fmt.Sprint(fault, fault.Rows), func(t *testing.T) {
			t.Parallel()
			for n, failed := 0, true; failed; n++ {
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := newCrew(t)
						for range 3 {
							c.hire(WorkerConfig{}, nil, "o").start()
						}
						settle()
						b := c.hire(WorkerConfig{}, nil, "o")
						rule := b.wire.AddRule(faultstore.Rule{Match: concernsMembers, Skip: n, Fault: fault})
						b.start()
						time.Sleep(7 * time.Second)
						c.change(rows("r", 64)...)
						c.handles(6 * time.Second)
						b.stop()
						failed = rule.Struck() > 0
						settle()
						c.change(rows("s", 64)...)
						c.handles(time.Second)
						require.Len(t, c.members(), 3)
					})
				})
			}
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
