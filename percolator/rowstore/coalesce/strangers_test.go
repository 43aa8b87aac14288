package coalesce_test

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
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Strangers share no fate here: these tests have two of them, of whom one is
// slow, large or late.

// eachShardedKind is eachKind over a store with a Sharder.
func eachShardedKind(t *testing.T, opts coalesce.Options, test func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store)) {
	eachKindOver(t, func(g *storetest.Gate) rs.Store { return storetest.Sharded{Gate: g} }, opts, test)
}

func TestCoalesceKeepsShardsApart(t *testing.T) {
	eachShardedKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a1")
		hanging := g.Next(t)
		waiting := storetest.Start(t.Context(), s, ask, "a2")
		g.None(t)
		for range 3 {
			b := storetest.Start(t.Context(), s, ask, "b1")
			call := g.Next(t)
			require.Equal(t, []string{"b1"}, call.RowNames())
			storetest.Start(t.Context(), s, ask, "b2")
			call.Finish()
			require.Equal(t, []string{"b1"}, b.Names)
			g.Next(t).Finish()
		}
		require.False(t, waiting.Done)
		hanging.Finish()
		g.Next(t).Finish()
		require.Equal(t, []string{"a2"}, waiting.Names)
	})
}

func TestCoalesceCutsACallForSeveralShards(t *testing.T) {
	failure := errors.New("server a is away")
	eachShardedKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		both := storetest.Start(t.Context(), s, ask, "a1", "b1", "a2", "b2")
		calls := map[string]*storetest.GateCall{}
		for range 2 {
			c := g.Next(t)
			calls[c.RowNames()[0]] = c
		}
		require.Equal(t, []string{"a1", "a2"}, calls["a1"].RowNames())
		require.Equal(t, []string{"b1", "b2"}, calls["b1"].RowNames())
		calls["a1"].Fail(failure)
		synctest.Wait()
		require.False(t, both.Done)
		calls["b1"].Finish()
		require.NoError(t, both.Err)
		require.ErrorIs(t, both.Errs[0], failure)
		require.ErrorIs(t, both.Errs[2], failure)
		require.NoError(t, both.Errs[1])
		require.Equal(t, []string{"b1", "b2"}, []string{both.Names[1], both.Names[3]})
	})
}

func TestCoalesceDrawsOnlyAfterAWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(storetest.Sharded{Gate: g}, coalesce.Options{})
		ask := storetest.AskApplyWith(rs.ApplyOptions{AssignTimestamp: true})
		storetest.Start(t.Context(), s, ask, "a1", "a2")
		one := g.Next(t)
		require.True(t, one.Opts.AssignTimestamp)
		storetest.Start(t.Context(), s, ask, "a3", "b1")
		for range 2 {
			part := g.Next(t)
			require.Len(t, part.Muts, 1)
			require.False(t, part.Opts.AssignTimestamp, "the other part may not be applied yet")
			part.OK()
		}
		one.Finish()
		require.NoError(t, s.Close())
	})
}

// moving is sharded once its rows have moved, which lay on one server before.
type moving struct {
	storetest.Sharded
	asked atomic.Int64
	after int64
}

func (m *moving) Shard(table, row string) string {
	if m.asked.Add(1) <= m.after {
		return "all"
	}
	return m.Sharded.Shard(table, row)
}

// A batch that draws stays whole, whenever it is that its rows move apart.
func TestCoalesceDrawsForNoPartOfABatchThatMoves(t *testing.T) {
	t.Parallel()
	for after := range int64(5) {
		synctest.Test(t, func(t *testing.T) {
			g := storetest.NewGate(memstore.New())
			s := coalesce.New(&moving{Sharded: storetest.Sharded{Gate: g}, after: after}, coalesce.Options{})
			storetest.Start(t.Context(), s, storetest.AskApplyWith(rs.ApplyOptions{AssignTimestamp: true}), "a1", "b1")
			for done := 0; done < 2; {
				call := g.Next(t)
				require.True(t, !call.Opts.AssignTimestamp || len(call.Muts) == 2, "the other part may not be applied yet")
				done += len(call.Muts)
				call.OK()
			}
			synctest.Wait()
			require.NoError(t, s.Close())
		})
	}
}

func TestCoalesceDrawsBeforeItReadsSeveralShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(storetest.Sharded{Gate: g}, coalesce.Options{})
		d, ok := rs.Unwrap[rs.SnapshotReader](s)
		require.True(t, ok)
		read := func(rows ...string) chan []rs.SnapshotRows {
			var ask rs.SnapshotRead
			for _, row := range rows {
				ask.Reads = append(ask.Reads, rs.RowRead{Table: "t", Row: row, Selectors: []rs.Selector{{Family: rs.Write, Column: "c", To: rs.AssignedTimestamp}}})
			}
			answers := make(chan []rs.SnapshotRows, 1)
			go func() {
				got, err := d.ReadSnapshot(t.Context(), []rs.SnapshotRead{ask})
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
			synctest.Wait()
			return answers
		}
		one := read("a1", "a2")
		call := g.Next(t)
		require.Equal(t, 1, call.Timestamps)
		require.Equal(t, []string{"a1", "a2"}, call.RowNames())
		call.OK()
		require.Len(t, (<-one)[0].Rows, 2)

		both := read("a1", "b1")
		call = g.Next(t)
		require.Equal(t, 1, call.Timestamps)
		require.Empty(t, call.RowNames())
		call.Answer <- storetest.GateAnswer{First: 77}
		synctest.Wait()
		for range 2 {
			call = g.Next(t)
			require.Len(t, call.Reads, 1)
			require.Equal(t, rs.Timestamp(77), call.Reads[0].Selectors[0].To)
			call.OK()
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
			inner := &servers{Store: memstore.New()}
			s := wrap(inner)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var readers sync.WaitGroup
			for i := range 16 {
				readers.Go(func() {
					for ctx.Err() == nil {
						storetest.AskRead(ctx, s, string("ab"[i%2])+"row")
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
	merged := count(func(s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{}) })
	t.Logf("%d reads without Coalesce, %d with it", alone, merged)
	require.Greater(t, alone, int64(10_000))
	require.Greater(t, merged, alone*8/10)
}

func TestCoalesceLetsMoreLeaveBesideOnesThatHang(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 2}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		var hanging []*storetest.GateCall
		hang := func(rows ...string) {
			for _, row := range rows {
				storetest.Start(t.Context(), s, ask, row)
				hanging = append(hanging, g.Next(t))
			}
		}
		for range 3 {
			hang("a", "b")
			waiting := storetest.Start(t.Context(), s, ask, "c")
			g.None(t)
			select {
			case call := <-g.Calls:
				require.Equal(t, []string{"c"}, call.RowNames())
				call.OK()
			case <-time.After(100 * time.Millisecond):
				require.FailNow(t, "it still waits")
			}
			synctest.Wait()
			require.Equal(t, []string{"c"}, waiting.Names)
			// What hangs is known now, and keeps nobody waiting any more.
			d := storetest.Start(t.Context(), s, ask, "d")
			g.Next(t).Finish()
			require.Equal(t, []string{"d"}, d.Names)
		}
		require.Len(t, hanging, 6)
		for _, call := range hanging {
			call.OK()
		}
		synctest.Wait()
		// All is as at the beginning.
		hanging = nil
		hang("a", "b")
		storetest.Start(t.Context(), s, ask, "c")
		g.None(t)
		hanging[0].OK()
		hanging[1].Finish()
		g.Next(t).Finish()
	})
}

// What is slow is compared with what is usual.
func TestCoalesceIsPatientWithASlowServer(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "first")
		call := g.Next(t)
		for range 20 {
			storetest.Start(t.Context(), s, ask, "a")
			call.Finish()
			call = g.Next(t) // went with a batch
			time.Sleep(10 * time.Millisecond)
		}
		storetest.Start(t.Context(), s, ask, "b")
		time.Sleep(60 * time.Millisecond) // no longer than six times as long as usual
		synctest.Wait()
		g.None(t)
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		g.Next(t).OK()
		call.Finish()
	})
}

func TestCoalesceSendsALargeCallApart(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1, MaxBatch: 3}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		large := storetest.Start(t.Context(), s, ask, "a1", "a2", "a3", "a4", "a5")
		call := g.Next(t)
		require.Len(t, call.RowNames(), 5)
		small := storetest.Start(t.Context(), s, ask, "b")
		g.Next(t).Finish()
		require.Equal(t, []string{"b"}, small.Names)
		// Nor does it wait for others.
		storetest.Start(t.Context(), s, ask, "c")
		c := g.Next(t)
		storetest.Start(t.Context(), s, ask, "d1", "d2", "d3", "d4")
		d := g.Next(t)
		require.Len(t, d.RowNames(), 4)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		c.OK()
		d.Finish()
		require.Empty(t, closed, "Close waits for the large call too")
		call.OK()
		require.NoError(t, <-closed)
		synctest.Wait()
		require.Len(t, large.Names, 5)
		require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "e1", "e2", "e3", "e4").Err, rs.ErrClosed)
	})
}

func TestCoalesceLetsUrgentAppliesPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
		urgent := storetest.AskApplyWith(rs.ApplyOptions{Urgent: true})
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "a")
		a := g.Next(t)
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "b")
		g.None(t)
		renewal := storetest.Start(t.Context(), s, urgent, "session")
		call := g.Next(t)
		require.Equal(t, []string{"session"}, call.RowNames())
		require.True(t, call.Opts.Urgent)
		storetest.Start(t.Context(), s, urgent, "lock 1")
		storetest.Start(t.Context(), s, urgent, "lock 2")
		call.Finish()
		require.True(t, renewal.Done)
		locks := g.Next(t)
		require.Equal(t, []string{"lock 1", "lock 2"}, locks.RowNames(), "urgent ones are merged with each other")
		locks.OK()
		a.Finish()
		b := g.Next(t)
		require.Equal(t, []string{"b"}, b.RowNames())
		require.False(t, b.Opts.Urgent)
		b.Finish()
		require.NoError(t, s.Close())
	})
}

// Bulk applies leave apart from all others, and from each other.
func TestCoalesceLetsNobodyWaitForBulk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
		bulk := storetest.AskApplyWith(rs.ApplyOptions{Bulk: true})
		storetest.Start(t.Context(), s, bulk, "a", "b")
		first := g.Next(t)
		require.True(t, first.Opts.Bulk)
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "small")
		small := g.Next(t)
		require.Equal(t, []string{"small"}, small.RowNames(), "it does not wait for what is bulk")
		require.False(t, small.Opts.Bulk)
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "waits")
		g.None(t)
		storetest.Start(t.Context(), s, bulk, "c")
		second := g.Next(t)
		require.Equal(t, []string{"c"}, second.RowNames(), "it merges with none")
		small.Finish()
		waits := g.Next(t)
		require.Equal(t, []string{"waits"}, waits.RowNames())
		waits.Finish()
		first.Finish()
		second.Finish()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceKeepsToEachCallersDeadline(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		storetest.Start(t.Context(), s, ask, "a")
		first := g.Next(t)
		hurried, patient := storetest.Start(soon, s, ask, "b"), storetest.Start(late, s, ask, "c")
		first.Finish()
		merged := g.Next(t)
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, hurried.Err, context.DeadlineExceeded)
		require.False(t, patient.Done)
		require.NoError(t, merged.Ctx.Err(), "the deadline of one is not that of the other")
		merged.Finish()
		require.Equal(t, []string{"c"}, patient.Names)
	})
}

func TestCoalesceMergesNothingWithLargeValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "a")
		call := g.Next(t)
		go func() {
			m := storetest.Mutations("large")
			m[0].Edits[0].Value = make([]byte, 2<<20)
			_, _ = s.Apply(t.Context(), m, rs.ApplyOptions{})
		}()
		synctest.Wait()
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "b")
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "c")
		for _, want := range [][]string{{"large"}, {"b", "c"}} {
			call.Finish()
			call = g.Next(t)
			require.Equal(t, want, call.RowNames())
		}
		call.Finish()
		require.NoError(t, s.Close())
	})
}

// A shard that is met for the first time while the store closes gets no call through.
func TestCoalesceClosesEveryShard(t *testing.T) {
	eachShardedKind(t, coalesce.Options{}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a")
		g.Next(t).Finish()
		require.NoError(t, s.Close())
		for _, rows := range [][]string{{"a"}, {"b"}, {"a", "c"}} {
			require.ErrorIs(t, storetest.Start(t.Context(), s, ask, rows...).Err, rs.ErrClosed)
		}
		require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "").Err, rs.ErrInvalid)
		g.None(t)
	})
}
