package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// chase is work that two workers move between the tables a and b, each time behind the look of a
// third one's WaitIdle. What lies in a is the one's own, and what lies in b the other's.
type chase struct {
	*crew
	asker  *mate
	movers []*mate
	moves  int64 // how often the work moves
	done   atomic.Int64
	gate   chan struct{} // lets a run end; nil if runs do not wait
	at     map[string]string
}

var tablesOfChase = []string{"a", "b"}

// seldom is a worker that looks when it is kicked.
var seldom = WorkerConfig{Poll: Backoff{Min: time.Hour, Max: time.Hour}, Rescan: time.Hour}

func newChase(t *testing.T, quiet, gated bool, moves int64) *chase {
	t.Helper()
	c := &chase{crew: newCrew(t), moves: moves, at: map[string]string{}}
	c.quiet = quiet
	if gated {
		c.gate = make(chan struct{})
	}
	for range 3 {
		m := c.mover(seldom, c.move)
		if !quiet && c.asker == nil {
			// It hears of nothing.
			m.wire.AddRule(faultstore.Rule{Times: -1, Match: func(x *call) bool { return x.Kind == faultstore.CallListen }, Before: func(ctx context.Context, _ *call) faultstore.Fault {
				<-ctx.Done()
				return faultstore.Fault{}
			}})
		}
		if m.start(); c.asker == nil {
			c.asker = m
		} else {
			c.movers = append(c.movers, m)
		}
	}
	settle()
	for i, table := range tablesOfChase {
		m := c.movers[i]
		for n := 0; c.at[table] == ""; n++ {
			q, cell := m.queues[Cell{Table: table, Column: "v"}][0], Cell{table, fmt.Sprint(n), "v"}
			if m.owns(q, cell, m.now()) {
				c.at[table] = cell.Row
			}
		}
	}
	return c
}

// mover makes a worker whose observers do something with cells of both tables.
func (c *chase) mover(config WorkerConfig, move func(context.Context, *Txn, Cell) error) *mate {
	c.t.Helper()
	m := c.hire(config, nil)
	for _, table := range tablesOfChase {
		require.NoError(c.t, m.Observe(Observer{Name: "o" + table, Table: table, Column: "v", Func: move}))
	}
	return m
}

// move is the function: it sets the cell in the other table.
func (c *chase) move(ctx context.Context, tx *Txn, cell Cell) error {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c.done.Add(1) >= c.moves {
		return nil
	}
	to := "a"
	if cell.Table == to {
		to = "b"
	}
	return tx.Set(Cell{to, c.at[to], "v"}, []byte("x"))
}

// begin sets the cell in b.
func (c *chase) begin() {
	c.t.Helper()
	require.NoError(c.t, c.source.Update(c.t.Context(), func(tx *Txn) error { return tx.Set(Cell{"b", c.at["b"], "v"}, []byte("x")) }))
}

// evade has the work move each time that a look of the asker has passed one table and comes to the
// other, where the work is.
func (c *chase) evade(move func(table string)) {
	last := ""
	c.asker.wire.AddRule(faultstore.Rule{
		Times: -1,
		Match: func(x *call) bool {
			return x.Kind == faultstore.CallScan && x.Range.Limit == 0 && (x.Range.Table == "a" || x.Range.Table == "b")
		},
		Before: func(_ context.Context, x *call) faultstore.Fault {
			if last == "" {
				last = x.Range.Table
				return faultstore.Fault{}
			}
			last = ""
			move(x.Range.Table)
			return faultstore.Fault{}
		},
	})
}

// waits requires that WaitIdle does not return before the work has come to rest.
func (c *chase) waits() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Minute)
	defer cancel()
	require.NoError(c.t, c.asker.WaitIdle(ctx))
	require.Equal(c.t, c.moves, c.done.Load(), "WaitIdle has returned while there was work")
	for _, table := range tablesOfChase {
		for r, err := range c.mem.Scan(c.t.Context(), rowstore.ScanRange{Table: table, Selectors: []rowstore.Selector{everything(rowstore.Notify, "v")}}) {
			require.NoError(c.t, err)
			require.Fail(c.t, "WaitIdle has returned while there was work", "%s/%s", table, r.Row)
		}
	}
}

func eachChase(t *testing.T, test func(t *testing.T, quiet bool)) {
	t.Helper()
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("without push ", quiet), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, quiet) })
		})
	}
}

// Runs of other workers that are under way all the time move work behind each look.
func TestWaitIdleWaitsForRunsOfOthers(t *testing.T) {
	eachChase(t, func(t *testing.T, quiet bool) {
		c := newChase(t, quiet, true, 20)
		c.begin()
		kick := func() {
			for _, m := range c.movers {
				m.kickAll()
			}
			time.Sleep(time.Millisecond)
		}
		kick()
		c.evade(func(string) {
			select {
			case c.gate <- struct{}{}:
			case <-time.After(time.Millisecond): // it has come to rest
			}
			time.Sleep(time.Millisecond)
			kick()
		})
		c.waits()
	})
}

// Runs of other workers begin and end between two answers, in which nothing runs, and what
// they leave is where the looks have been.
func TestWaitIdleWaitsForRunsBetweenAnswers(t *testing.T) {
	for _, before := range []string{"nothing", "asked", "answers to what nobody asked"} {
		t.Run(before, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, _ *crew) {
				c := newChase(t, true, false, 20)
				switch before {
				case "asked":
					require.NoError(t, c.asker.WaitIdle(t.Context()))
				case "answers to what nobody asked":
					a := format.Answer{Works: make([]format.WorkCount, 2)}
					for _, id := range c.members() {
						_, err := c.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableMembers, Row: id, Edits: []rowstore.Edit{
							rowstore.Put(rowstore.Write, format.ColumnAnswer, c.now().Add(time.Hour), a.Encode()),
						}}}, rowstore.ApplyOptions{})
						require.NoError(t, err)
					}
				}
				c.begin()
				c.evade(func(table string) {
					c.movers[map[string]int{"a": 0, "b": 1}[table]].kickAll()
					time.Sleep(time.Millisecond)
				})
				c.waits()
			})
		})
	}
}

// Workers join behind each look, move the work, and leave, so that no list shows them.
func TestWaitIdleSeesThoseThatCameAndWent(t *testing.T) {
	eachCrew(t, func(t *testing.T, _ *crew) {
		c := &chase{crew: newCrew(t), moves: 6, at: map[string]string{"a": "r", "b": "r"}}
		c.quiet = true
		c.asker = c.mover(WorkerConfig{Concurrency: 1}, c.move)
		c.asker.start()
		settle()
		// It finds nothing by itself, whatever its shares become.
		c.asker.wire.AddRule(faultstore.Rule{
			Times: -1,
			Match: func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Limit > 0 },
			Before: func(ctx context.Context, _ *call) faultstore.Fault {
				<-ctx.Done()
				return faultstore.Fault{}
			},
		})
		settle()
		c.begin()
		c.evade(func(from string) {
			if c.done.Load() == c.moves {
				return
			}
			m := c.mover(WorkerConfig{Concurrency: 1 << 20, StopTimeout: time.Millisecond}, func(ctx context.Context, tx *Txn, cell Cell) error {
				if cell.Table == from {
					return c.move(ctx, tx, cell)
				}
				<-ctx.Done()
				return ctx.Err()
			})
			m.start()
			settle() // it has its shares
			m.stop()
		})
		c.waits()
	})
}

// A barrier is one version, however often and by how many it is put, and one that no oracle
// has drawn does not stay.
func TestBarriers(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		var all []*mate
		for range 3 {
			all = append(all, c.hire(WorkerConfig{}, nil, "o").start())
		}
		settle()
		read := func(row string, family rowstore.Family, column string) []rowstore.Version {
			rows, err := c.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableMembers, Row: row, Selectors: []rowstore.Selector{everything(family, column)}}})
			require.NoError(t, err)
			return rows[0].Versions
		}
		put := func(ts Timestamp) {
			_, err := c.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableMembers, Row: format.RowGeneration, Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Notify, format.ColumnBarrier, ts, nil),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		for _, garbage := range []Timestamp{0, c.now().Add(time.Hour), oracle.Max} {
			if garbage > 0 {
				put(garbage)
				time.Sleep(5 * time.Second) // all have answered it
			}
			done := make(chan error)
			for range 4 {
				for _, m := range all {
					go func() { done <- m.WaitIdle(t.Context()) }()
				}
			}
			began := time.Now()
			for range 4 * len(all) {
				require.NoError(t, <-done)
			}
			require.Less(t, time.Since(began), time.Second)
			require.Len(t, read(format.RowGeneration, rowstore.Notify, format.ColumnBarrier), 1)
		}
		for _, id := range c.members() {
			answers := read(id, rowstore.Write, format.ColumnAnswer)
			require.NotEmpty(t, answers)
			require.LessOrEqual(t, len(answers), 3, "of the barriers that nobody has drawn, and of the last one")
			a, err := format.DecodeAnswer(answers[0].Value)
			require.NoError(t, err)
			require.Equal(t, []format.WorkCount{{}}, a.Works)
		}
		for _, m := range all {
			m.stop()
		}
		require.Empty(t, c.members())
	})
}

// A worker that does not answer is waited for until its lease ends, and one that runs other
// observers not at all.
func TestWaitIdleWaitsForAnswers(t *testing.T) {
	for _, observer := range []string{"o", "another"} {
		t.Run(observer, func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				a := c.hire(WorkerConfig{}, nil, "o").start()
				b := c.hire(WorkerConfig{}, nil, observer).start()
				settle()
				for range 3 {
					began := time.Now()
					require.NoError(t, a.WaitIdle(t.Context()))
					require.Less(t, time.Since(began), 200*time.Millisecond)
				}
				time.Sleep(100 * time.Millisecond)
				b.kill()
				began := time.Now()
				require.NoError(t, a.WaitIdle(t.Context()))
				if observer == "o" {
					require.Greater(t, time.Since(began), 500*time.Millisecond)
					require.Less(t, time.Since(began), 4*time.Second)
				} else {
					require.Less(t, time.Since(began), 200*time.Millisecond)
				}
			})
		})
	}
}

// What is in the members' table and cannot be read is waited for until its lease ends.
func TestWaitIdleWithWhatItCannotRead(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		now := c.now()
		c.put("0", []byte{format.Version + 1, 1, 2, 3}, now, now.Add(2*time.Second))
		c.put("1", recordOf("o", 3*time.Second, 16), now, now.Add(time.Second))
		c.put("2", []byte("garbage"), now, oracle.Max)                                  // no worker's
		c.put("3", recordOf("o", 3*time.Second, 16), now, oracle.Max)                   // neither
		c.put("4", recordOf("another", 3*time.Second, 16), now, now.Add(3*time.Second)) // another observer's
		for _, id := range []string{"0", "1"} {
			_, err := c.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableMembers, Row: id, Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, format.ColumnAnswer, now, []byte("garbage")),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		require.NoError(t, a.announce(t.Context(), now))
		began := time.Now()
		require.NoError(t, a.WaitIdle(t.Context()))
		require.Greater(t, time.Since(began), 1900*time.Millisecond)
		require.Less(t, time.Since(began), 2900*time.Millisecond)
	})
}

// A worker that stops stays a member, and answers, until its functions have ended.
func TestWaitIdleWaitsForThoseThatStop(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		b := c.hire(WorkerConfig{StopTimeout: time.Minute}, sleeps(20*time.Second), "o").start()
		settle()
		c.change("r")
		time.Sleep(time.Second)
		a := c.hire(WorkerConfig{}, nil, "o").start()
		settle() // and it takes over
		ended := make(chan struct{})
		go func() { b.stop(); close(ended) }()
		time.Sleep(4 * time.Second)
		require.Len(t, c.members(), 2, "its lease is renewed")
		barrier, err := a.putBarrier(t.Context())
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		all, err := a.muster(t.Context())
		require.NoError(t, err)
		require.Len(t, all.members, 1)
		require.True(t, all.members[0].busy)
		require.GreaterOrEqual(t, all.members[0].at, barrier)
		began := time.Now()
		require.NoError(t, a.WaitIdle(t.Context()))
		require.Less(t, time.Since(began), 5*time.Second)
		<-ended
		require.Equal(t, 1, b.count())
		require.Zero(t, a.count())
		require.Len(t, c.members(), 1)
	})
}

// A worker that an outage has cut off for longer than its lease is waited for while it may
// come back.
func TestWaitIdleWaitsForThoseCutOff(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		b := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		late := c.standStill([]*mate{b}, 12*time.Second)
		c.standStill([]*mate{a}, 8*time.Second)()
		time.Sleep(100 * time.Millisecond)
		all, err := a.muster(t.Context())
		require.NoError(t, err)
		require.Len(t, all.members, 1)
		require.True(t, all.members[0].busy)
		began := time.Now()
		require.NoError(t, a.WaitIdle(t.Context()))
		require.Greater(t, time.Since(began), 3500*time.Millisecond)
		require.Less(t, time.Since(began), 6*time.Second)
		late()
	})
}

// A worker that stops settles the commits that its runs have left open. If it cannot, its
// lease ends by itself.
func TestOpenCommitsAreSettled(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", away), func(t *testing.T) {
			eachCrew(t, func(t *testing.T, c *crew) {
				a := c.hire(WorkerConfig{}, nil, "o").start()
				b := c.hire(WorkerConfig{}, nil, "o").start()
				settle()
				b.open = []*UndeterminedError{{Start: c.now(), Primary: Cell{"t", "r", "v"}}}
				require.Equal(t, []format.WorkCount{{Running: 1}}, b.counts())
				if away {
					b.wire.AddRule(faultstore.Rule{Times: -1, Fault: refuse, Match: func(x *call) bool {
						return slices.ContainsFunc(x.Reads, func(r rowstore.RowRead) bool { return r.Table == "t" })
					}})
				}
				b.stop()
				if away {
					require.Len(t, c.members(), 2)
				} else {
					require.Len(t, c.members(), 1)
				}
				require.NoError(t, a.WaitIdle(t.Context()))
				all, err := a.muster(t.Context())
				require.NoError(t, err)
				require.Empty(t, all.members)
			})
		})
	}
}

// A record that cannot be read, with a lease that has ended, is waited for by nobody: nobody
// watches its lease either.
func TestUnreadableMemberWhoseLeaseEnded(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		now := c.now()
		c.put("junk", []byte("junk"), now, now.Add(time.Second))
		time.Sleep(500 * time.Millisecond)
		all, err := a.muster(t.Context())
		require.NoError(t, err)
		require.Len(t, all.members, 1)
		time.Sleep(time.Second)
		all, err = a.muster(t.Context())
		require.NoError(t, err)
		require.Empty(t, all.members)
	})
}

// A member that renewed its lease while the look at the members was held up is no stranger's record: the look fails, and comes again.
func TestLookAtMembersThatTakesLong(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		a := c.hire(WorkerConfig{}, nil, "o").start()
		c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		all, err := a.muster(t.Context())
		require.NoError(t, err)
		require.Len(t, all.members, 1)
		held := a.wire.AddRule(faultstore.Rule{Match: scansMembers, Fault: faultstore.Fault{Kind: faultstore.Delay, Delay: 10 * time.Second}, Times: -1})
		_, err = a.muster(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Positive(t, held.Struck())
		a.wire.SetRules()
		require.NoError(t, a.WaitIdle(t.Context()))
	})
}
