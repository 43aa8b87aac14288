package rowstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// Strangers share no fate in a Coalesce: these tests have two of them, of whom one is
// slow, large or late.

// sharded is a gate whose rows lie on the server that their first letter names.
type sharded struct{ *gate }

func (sharded) Shard(_, row string) string { return row[:1] }

// DrawRead passes the gate as a read does.
func (s sharded) DrawRead(ctx context.Context, asks []rs.DrawRead) ([]rs.DrawnRows, error) {
	var reads []rs.RowRead
	for _, a := range asks {
		reads = append(reads, a.Reads...)
	}
	a := s.pass(&gateCall{ctx: ctx, reads: reads, drawn: len(asks)})
	var answers []rs.DrawnRows
	for _, ask := range asks {
		n := len(ask.Reads)
		answers = append(answers, rs.DrawnRows{TS: 1, Rows: a.rows[:n]})
		a.rows = a.rows[n:]
	}
	return answers, a.err
}

// eachShardedKind is eachKind over a store with a Sharder.
func eachShardedKind(t *testing.T, opts rs.CoalesceOptions, test func(t *testing.T, ask asker, g *gate, s rs.Store)) {
	t.Parallel()
	for name, ask := range askers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGate(rs.NewMemory())
				s := rs.Coalesce(sharded{g}, opts)
				test(t, ask, g, s)
				require.NoError(t, s.Close())
			})
		})
	}
}

func TestCoalesceKeepsShardsApart(t *testing.T) {
	eachShardedKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a1")
		hanging := g.next(t)
		waiting := start(t.Context(), s, ask, "a2")
		g.none(t)
		for range 3 {
			b := start(t.Context(), s, ask, "b1")
			call := g.next(t)
			require.Equal(t, []string{"b1"}, call.rowNames())
			start(t.Context(), s, ask, "b2")
			call.ok()
			synctest.Wait()
			require.Equal(t, []string{"b1"}, b.names)
			g.next(t).ok()
			synctest.Wait()
		}
		require.False(t, waiting.done)
		hanging.ok()
		synctest.Wait()
		g.next(t).ok()
		synctest.Wait()
		require.Equal(t, []string{"a2"}, waiting.names)
	})
}

func TestCoalesceCutsACallForSeveralShards(t *testing.T) {
	failure := errors.New("server a is away")
	eachShardedKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		both := start(t.Context(), s, ask, "a1", "b1", "a2", "b2")
		calls := map[string]*gateCall{}
		for range 2 {
			c := g.next(t)
			calls[c.rowNames()[0]] = c
		}
		require.Equal(t, []string{"a1", "a2"}, calls["a1"].rowNames())
		require.Equal(t, []string{"b1", "b2"}, calls["b1"].rowNames())
		calls["a1"].fail(failure)
		synctest.Wait()
		require.False(t, both.done)
		calls["b1"].ok()
		synctest.Wait()
		require.NoError(t, both.err)
		require.ErrorIs(t, both.errs[0], failure)
		require.ErrorIs(t, both.errs[2], failure)
		require.NoError(t, both.errs[1])
		require.Equal(t, []string{"b1", "b2"}, []string{both.names[1], both.names[3]})
	})
}

func TestCoalesceDrawsOnlyAfterAWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(sharded{g}, rs.CoalesceOptions{})
		ask := askApplyWith(rs.ApplyOptions{Draw: true})
		start(t.Context(), s, ask, "a1", "a2")
		one := g.next(t)
		require.True(t, one.opts.Draw)
		start(t.Context(), s, ask, "a3", "b1")
		for range 2 {
			part := g.next(t)
			require.Len(t, part.muts, 1)
			require.False(t, part.opts.Draw, "the other part may not be applied yet")
			part.ok()
		}
		one.ok()
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

// moving is sharded once its rows have moved, which lay on one server before.
type moving struct {
	sharded
	asked atomic.Int64
	after int64
}

func (m *moving) Shard(table, row string) string {
	if m.asked.Add(1) <= m.after {
		return "all"
	}
	return m.sharded.Shard(table, row)
}

// A batch that draws stays whole, whenever it is that its rows move apart.
func TestCoalesceDrawsForNoPartOfABatchThatMoves(t *testing.T) {
	t.Parallel()
	for after := range int64(5) {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(rs.NewMemory())
			s := rs.Coalesce(&moving{sharded: sharded{g}, after: after}, rs.CoalesceOptions{})
			start(t.Context(), s, askApplyWith(rs.ApplyOptions{Draw: true}), "a1", "b1")
			for done := 0; done < 2; {
				call := g.next(t)
				require.True(t, !call.opts.Draw || len(call.muts) == 2, "the other part may not be applied yet")
				done += len(call.muts)
				call.ok()
			}
			synctest.Wait()
			require.NoError(t, s.Close())
		})
	}
}

func TestCoalesceDrawsBeforeItReadsSeveralShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(sharded{g}, rs.CoalesceOptions{})
		d, ok := rs.Unwrap[rs.DrawReader](s)
		require.True(t, ok)
		read := func(rows ...string) chan []rs.DrawnRows {
			var ask rs.DrawRead
			for _, row := range rows {
				ask.Reads = append(ask.Reads, rs.RowRead{Table: "t", Row: row, Picks: []rs.Pick{{Family: rs.Write, Column: "c", To: rs.Drawn}}})
			}
			answers := make(chan []rs.DrawnRows, 1)
			go func() {
				got, err := d.DrawRead(t.Context(), []rs.DrawRead{ask})
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
			synctest.Wait()
			return answers
		}
		one := read("a1", "a2")
		call := g.next(t)
		require.Equal(t, 1, call.drawn)
		require.Equal(t, []string{"a1", "a2"}, call.rowNames())
		call.ok()
		require.Len(t, (<-one)[0].Rows, 2)

		both := read("a1", "b1")
		call = g.next(t)
		require.Equal(t, 1, call.drawn)
		require.Empty(t, call.rowNames())
		call.answer <- gateAnswer{first: 77}
		synctest.Wait()
		for range 2 {
			call = g.next(t)
			require.Len(t, call.reads, 1)
			require.Equal(t, rs.Timestamp(77), call.reads[0].Picks[0].To)
			call.ok()
		}
		require.Equal(t, rs.Timestamp(77), (<-both)[0].TS)
		require.NoError(t, s.Close())
	})
}

// servers is a store on two servers, of which one answers each row after a second, with
// an error, and the other after a millisecond.
type servers struct {
	rs.Store
	done atomic.Int64 // reads of the good server
}

func (s *servers) Shard(_, row string) string { return row[:1] }

func (s *servers) Read(ctx context.Context, reads []rs.RowRead) ([]rs.Row, error) {
	rows := make([]rs.Row, len(reads))
	wait := time.Millisecond
	for i, r := range reads {
		rows[i] = rs.Row{Table: r.Table, Row: r.Row}
		if r.Row[0] == 'a' {
			rows[i].Err = errors.New("no answer")
			wait = time.Second
		} else {
			s.done.Add(1)
		}
	}
	select {
	case <-time.After(wait):
		return rows, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestCoalesceReadsPastAServerThatHangs(t *testing.T) {
	t.Parallel()
	count := func(wrap func(rs.Store) rs.Store) (done int64) {
		synctest.Test(t, func(t *testing.T) {
			inner := &servers{Store: rs.NewMemory()}
			s := wrap(inner)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var readers sync.WaitGroup
			for i := range 16 {
				readers.Go(func() {
					for ctx.Err() == nil {
						askRead(ctx, s, string("ab"[i%2])+"row")
					}
				})
			}
			readers.Wait()
			require.NoError(t, s.Close())
			done = inner.done.Load()
		})
		return done
	}
	alone := count(func(s rs.Store) rs.Store { return s })
	merged := count(func(s rs.Store) rs.Store { return rs.Coalesce(s, rs.CoalesceOptions{}) })
	t.Logf("%d reads without Coalesce, %d with it", alone, merged)
	require.Greater(t, alone, int64(10_000))
	require.Greater(t, merged, alone*8/10)
}

func TestCoalesceLetsMoreLeaveBesideOnesThatHang(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 2}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		var hanging []*gateCall
		hang := func(rows ...string) {
			for _, row := range rows {
				start(t.Context(), s, ask, row)
				hanging = append(hanging, g.next(t))
			}
		}
		for range 3 {
			hang("a", "b")
			waiting := start(t.Context(), s, ask, "c")
			g.none(t)
			select {
			case call := <-g.calls:
				require.Equal(t, []string{"c"}, call.rowNames())
				call.ok()
			case <-time.After(100 * time.Millisecond):
				require.FailNow(t, "it still waits")
			}
			synctest.Wait()
			require.Equal(t, []string{"c"}, waiting.names)
			// What hangs is known now, and keeps nobody waiting any more.
			d := start(t.Context(), s, ask, "d")
			g.next(t).ok()
			synctest.Wait()
			require.Equal(t, []string{"d"}, d.names)
		}
		require.Len(t, hanging, 6)
		for _, call := range hanging {
			call.ok()
		}
		synctest.Wait()
		// All is as at the beginning.
		hanging = nil
		hang("a", "b")
		start(t.Context(), s, ask, "c")
		g.none(t)
		hanging[0].ok()
		hanging[1].ok()
		synctest.Wait()
		g.next(t).ok()
		synctest.Wait()
	})
}

// What is slow is compared with what is usual.
func TestCoalesceIsPatientWithASlowServer(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "first")
		call := g.next(t)
		for range 20 {
			start(t.Context(), s, ask, "a")
			call.ok()
			synctest.Wait()
			call = g.next(t) // went with a batch
			time.Sleep(10 * time.Millisecond)
		}
		start(t.Context(), s, ask, "b")
		time.Sleep(60 * time.Millisecond) // no longer than six times as long as usual
		synctest.Wait()
		g.none(t)
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		g.next(t).ok()
		call.ok()
		synctest.Wait()
	})
}

func TestCoalesceSendsALargeCallApart(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1, MaxBatch: 3}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		large := start(t.Context(), s, ask, "a1", "a2", "a3", "a4", "a5")
		call := g.next(t)
		require.Len(t, call.rowNames(), 5)
		small := start(t.Context(), s, ask, "b")
		g.next(t).ok()
		synctest.Wait()
		require.Equal(t, []string{"b"}, small.names)
		// Nor does it wait for others.
		start(t.Context(), s, ask, "c")
		c := g.next(t)
		start(t.Context(), s, ask, "d1", "d2", "d3", "d4")
		d := g.next(t)
		require.Len(t, d.rowNames(), 4)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		c.ok()
		d.ok()
		synctest.Wait()
		require.Empty(t, closed, "Close waits for the large call too")
		call.ok()
		require.NoError(t, <-closed)
		synctest.Wait()
		require.Len(t, large.names, 5)
		require.ErrorIs(t, start(t.Context(), s, ask, "e1", "e2", "e3", "e4").err, rs.ErrClosed)
	})
}

func TestCoalesceLetsUrgentAppliesPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1})
		urgent := askApplyWith(rs.ApplyOptions{Urgent: true})
		start(t.Context(), s, askers["Apply"], "a")
		a := g.next(t)
		start(t.Context(), s, askers["Apply"], "b")
		g.none(t)
		renewal := start(t.Context(), s, urgent, "session")
		call := g.next(t)
		require.Equal(t, []string{"session"}, call.rowNames())
		require.True(t, call.opts.Urgent)
		start(t.Context(), s, urgent, "lock 1")
		start(t.Context(), s, urgent, "lock 2")
		call.ok()
		synctest.Wait()
		require.True(t, renewal.done)
		locks := g.next(t)
		require.Equal(t, []string{"lock 1", "lock 2"}, locks.rowNames(), "urgent ones are merged with each other")
		locks.ok()
		a.ok()
		synctest.Wait()
		b := g.next(t)
		require.Equal(t, []string{"b"}, b.rowNames())
		require.False(t, b.opts.Urgent)
		b.ok()
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceKeepsToEachCallersDeadline(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start(t.Context(), s, ask, "a")
		first := g.next(t)
		hurried, patient := start(soon, s, ask, "b"), start(late, s, ask, "c")
		first.ok()
		synctest.Wait()
		merged := g.next(t)
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, hurried.err, context.DeadlineExceeded)
		require.False(t, patient.done)
		require.NoError(t, merged.ctx.Err(), "the deadline of one is not that of the other")
		merged.ok()
		synctest.Wait()
		require.Equal(t, []string{"c"}, patient.names)
	})
}

func TestCoalesceMergesNothingWithLargeValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1})
		start(t.Context(), s, askers["Apply"], "a")
		call := g.next(t)
		go func() {
			m := mutations("large")
			m[0].Edits[0].Value = make([]byte, 2<<20)
			_, _ = s.Apply(t.Context(), m, rs.ApplyOptions{})
		}()
		synctest.Wait()
		start(t.Context(), s, askers["Apply"], "b")
		start(t.Context(), s, askers["Apply"], "c")
		for _, want := range [][]string{{"large"}, {"b", "c"}} {
			call.ok()
			synctest.Wait()
			call = g.next(t)
			require.Equal(t, want, call.rowNames())
		}
		call.ok()
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

// A shard that is met for the first time while the store closes gets no call through.
func TestCoalesceClosesEveryShard(t *testing.T) {
	eachShardedKind(t, rs.CoalesceOptions{}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a")
		g.next(t).ok()
		synctest.Wait()
		require.NoError(t, s.Close())
		for _, rows := range [][]string{{"a"}, {"b"}, {"a", "c"}} {
			require.ErrorIs(t, start(t.Context(), s, ask, rows...).err, rs.ErrClosed)
		}
		require.ErrorIs(t, start(t.Context(), s, ask, "").err, rs.ErrInvalid)
		g.none(t)
	})
}
