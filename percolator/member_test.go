package percolator

import (
	"fmt"
	"testing"
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
		require.Equal(t, 200, a.count()+b.count())
	})
}
