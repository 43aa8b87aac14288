package redis

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// withGap has a store push as if so many listened that the gap is this. However busy the machine is, no push counts as late.
func withGap(s *direct, gap time.Duration) *direct {
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	s.pusher.gapOf = func(int) time.Duration { return gap }
	s.pusher.gap, s.pusher.late = gap, time.Hour
	s.pusher.last = time.Time{} // Open has written, too
	return s
}

// opened opens a store that merges calls, and closes it after the test.
func opened(t testing.TB, raw string) *Store {
	t.Helper()
	o, err := ParseURL(raw)
	require.NoError(t, err)
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// pending tells whether something waits to be published.
func pending(s *direct) bool {
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	return s.pusher.some
}

// takePending takes what waits to be published.
func takePending(s *direct) []rowstore.Wake {
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	s.pusher.some, s.pusher.oldest = false, time.Time{}
	return s.pusher.pending.Take()
}

// notifying is a mutation that commits a value of a row and notifies it.
func notifying(row string, ts rowstore.Timestamp) rowstore.Mutation {
	m := put(row, ts, "v")
	m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", ts, nil))
	return m
}

func slotOf(row string) uint16 { return rowstore.Slot("t", row) }

// subscribers are so many connections that listen to a store.
func subscribers(t *testing.T, s *direct, n int) {
	t.Helper()
	ctx := t.Context()
	for range n {
		sub := s.nodes.subscribe(ctx, s.channel)
		t.Cleanup(func() { _ = sub.Close() })
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
	}
}

func TestPushGap(t *testing.T) {
	t.Parallel()
	require.Zero(t, pushGap(0))
	require.Zero(t, pushGap(1))
	require.Zero(t, pushGap(fewListeners))
	require.Equal(t, 5*time.Millisecond, pushGap(50))
	require.Equal(t, mostGap, pushGap(1000))
}

// Beside many who listen, commits that come at once are published together, and each of their slots is named. They learn
// the number of listeners by themselves.
func TestPushesGoInGroups(t *testing.T) {
	t.Parallel()
	const listeners, rounds, lanes = 50, 30, 16
	for name, open := range map[string]func(t *testing.T) (writes rowstore.Store, d, listens *direct){
		"merged": func(t *testing.T) (rowstore.Store, *direct, *direct) {
			url := with(t, testserver.Redis(t))
			s := opened(t, url)
			return s, s.direct, bare(t, url)
		},
		"partitions": func(t *testing.T) (rowstore.Store, *direct, *direct) {
			url := with(t, testserver.Redis(t), "partitions", "5")
			s := bare(t, url)
			return s, s, bare(t, url)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, d, listens := open(t)
			gap := 40 * time.Millisecond
			d.pusher.mu.Lock()
			d.pusher.late = time.Hour
			d.pusher.gapOf = func(n int) time.Duration {
				if n < listeners {
					return 0
				}
				return gap
			}
			d.pusher.mu.Unlock()
			subscribers(t, d, listeners)
			hear, _ := hears(ctx, t, listens)
			last := 0
			require.Eventually(t, func() bool {
				last++
				require.NoError(t, tryApply(ctx, s, notifying("first", rowstore.Timestamp(last))))
				d.pusher.mu.Lock()
				defer d.pusher.mu.Unlock()
				return d.pusher.gap == gap
			}, time.Minute, time.Millisecond)
			began := time.Now()
			missing := map[uint16]bool{}
			var writing sync.WaitGroup
			for lane := range lanes {
				for i := range rounds {
					missing[slotOf(fmt.Sprint(lane, "/", i))] = true
				}
				writing.Go(func() { writeInLane(ctx, t, s, lane, rounds) })
			}
			writing.Wait()
			messages := 0
			for len(missing) > 0 {
				for _, slot := range hear().Slots {
					delete(missing, slot)
				}
				messages++
			}
			// Those of the first row may be among them.
			require.LessOrEqual(t, messages, int(time.Since(began)/gap)+2+last)
		})
	}
}

// writeInLane commits rows, by both kinds of calls.
func writeInLane(ctx context.Context, t *testing.T, s rowstore.Store, lane, rounds int) {
	t.Helper()
	grouper, _ := rowstore.Unwrap[rowstore.Grouper](s)
	for i := range rounds {
		m := notifying(fmt.Sprint(lane, "/", i), 5)
		if i%2 == 0 || grouper == nil {
			if err := tryApply(ctx, s, m); err != nil {
				t.Errorf("apply: %v", err)
			}
			continue
		}
		g := rowstore.Group{Mutations: []rowstore.Mutation{m}}
		if i%4 == 1 {
			g.AssignTimestamp = true
			g.Mutations[0].Edits[0].TS = rowstore.AssignedTimestamp
		}
		if out, err := grouper.Group(ctx, []rowstore.Group{g}); err != nil || !out[0].Applied {
			t.Errorf("group: %v, %v", out, err)
		}
	}
}

// The first write after a pause publishes in its script. The next ones within the gap do not, and Close publishes for them.
func TestFirstPushIsTheWrites(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	url := with(t, testserver.Redis(t))
	o, err := ParseURL(url)
	require.NoError(t, err)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	hear, heard := hears(ctx, t, bare(t, url))
	withGap(s.direct, time.Hour)
	apply(t, s, notifying("a", 5))
	require.Equal(t, rowstore.Wake{Table: "t", Slots: []uint16{slotOf("a")}}, hear())
	require.False(t, pending(s.direct))
	for _, row := range []string{"b", "c"} {
		apply(t, s, notifying(row, 5))
		require.True(t, pending(s.direct))
	}
	apply(t, s, put("d", 5, "nobody hears of it"))
	require.Empty(t, heard)
	require.NoError(t, s.Close())
	w := hear()
	require.Equal(t, "t", w.Table)
	require.ElementsMatch(t, []uint16{slotOf("b"), slotOf("c")}, w.Slots)
	require.Empty(t, heard)
}

// What is held back is pending once its outcome is known, and no sooner: who heard of it before the write was applied would
// look for nothing. What was certainly not applied is never published.
func TestHeldBackUntilTheOutcome(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := withGap(bare(t, with(t, testserver.Redis(t))), time.Hour)
	apply(t, s, notifying("first", 5))
	ready := func(muts ...rowstore.Mutation) ([]*batch, *writes) {
		var groups []rowstore.Group
		for i := range muts {
			groups = append(groups, rowstore.Group{Mutations: muts[i : i+1]})
		}
		w, _ := groupWrites(groups)
		batches, err := s.pack(w, writeScript)
		require.NoError(t, err)
		require.False(t, pending(s), "the write has not left")
		return batches, w
	}
	refused := notifying("first", 6)
	refused.Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)}
	damaged := notifying("damaged", 6)
	require.NoError(t, admin(t, testserver.Redis(t)).HSet(ctx, s.parts[0].tag+"r:t/damaged", string(appendField(nil, 'W', "c")), "\x07").Err())

	batches, _ := ready(refused, damaged)
	s.send(ctx, batches)
	require.NoError(t, batches[0].call.err)
	require.False(t, pending(s), "nothing was applied")

	s.lateAfter = -time.Hour
	batches, _ = ready(notifying("late", 6))
	s.send(ctx, batches)
	require.ErrorIs(t, batches[0].call.err, errLate)
	require.False(t, pending(s), "it was not applied")
	s.lateAfter = time.Minute

	batches, _ = ready(refused, notifying("a", 6), damaged, refused, notifying("b", 6))
	s.send(ctx, batches)
	require.NoError(t, batches[0].call.err)
	require.True(t, pending(s))
	wakes := takePending(s)
	require.Len(t, wakes, 1)
	require.ElementsMatch(t, []uint16{slotOf("a"), slotOf("b")}, wakes[0].Slots)

	// Nobody knows what became of this one.
	batches, _ = ready(notifying("unknown", 6))
	s.nodes.(single).client.AddHook(lostAnswers{})
	s.send(ctx, batches)
	require.ErrorIs(t, batches[0].call.err, rowstore.ErrAmbiguous)
	require.True(t, pending(s))
}

// lostAnswers is a hook under which each answer gets lost.
type lostAnswers struct{}

func (lostAnswers) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (lostAnswers) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (lostAnswers) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		_ = next(ctx, cmd)
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

// Whoever hears of a row finds what was committed.
func TestWhoHearsOfARowReadsIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	url := with(t, testserver.Redis(t))
	s, reads := withGap(bare(t, url), time.Millisecond), bare(t, url)
	hear, _ := hears(ctx, t, reads)
	const lanes, rounds = 4, 100
	rows, shared := map[uint16]string{}, map[uint16]bool{}
	for lane := range lanes {
		for i := range rounds {
			row := fmt.Sprint(lane, "/", i)
			_, shared[slotOf(row)] = rows[slotOf(row)]
			rows[slotOf(row)] = row
		}
	}
	var writing sync.WaitGroup
	for lane := range lanes {
		writing.Go(func() { writeInLane(ctx, t, s, lane, rounds) })
	}
	for len(rows) > 0 {
		for _, slot := range hear().Slots {
			row, ok := rows[slot]
			if ok && !shared[slot] { // else another row may be meant
				require.Equal(t, "v", newest(t, reads, row))
			}
			delete(rows, slot)
		}
	}
	writing.Wait()
}

// A user who may not ask how many listen pushes with each write.
func TestPushesOfWhoMayNotAsk(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	o, err := ParseURL(with(t, srv.URL))
	require.NoError(t, err)
	require.NoError(t, c.Do(ctx, append(readmeACL(t, "few", o.Prefix), "-pubsub|numsub")...).Err())
	o.Username, o.Password, o.NoCoalesce = "few", secret, true
	store, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	s := store.direct
	withGap(s, 0).pusher.gapOf = func(n int) time.Duration { return time.Duration(n) * time.Hour }
	hear, _ := hears(ctx, t, bare(t, with(t, srv.URL, "prefix", o.Prefix)))
	asked := func() bool {
		s.pusher.mu.Lock()
		defer s.pusher.mu.Unlock()
		return !s.pusher.countAt.IsZero()
	}
	for ts := rowstore.Timestamp(1); !asked() || ts < 20; ts++ {
		apply(t, s, notifying("r", ts))
		require.Equal(t, []uint16{slotOf("r")}, hear().Slots)
	}
	_, err = s.listeners(ctx)
	require.ErrorIs(t, err, rowstore.ErrDenied)
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	require.Zero(t, s.pusher.gap)
	require.Greater(t, time.Until(s.pusher.countAt), time.Minute, "it does not ask in vain again and again")
}

// What could not be published is published later, by whoever may, and on a server that was away.
func TestFailedPushIsSentAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	o, err := ParseURL(with(t, srv.URL))
	require.NoError(t, err)
	require.NoError(t, c.Do(ctx, readmeACL(t, "app", o.Prefix)...).Err())
	o.Username, o.Password, o.NoCoalesce = "app", secret, true
	store, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	s := withGap(store.direct, time.Millisecond)
	listens := bare(t, with(t, srv.URL, "prefix", o.Prefix))
	hear, _ := hears(ctx, t, listens)
	fails := func() bool {
		s.pusher.mu.Lock()
		defer s.pusher.mu.Unlock()
		return s.pusher.failing
	}
	named := func(row string) {
		t.Helper()
		for w := hear(); len(w.Slots) == 0 || w.Slots[0] != slotOf(row); {
			w = hear()
		}
	}
	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "app", "-publish").Err())
	s.pusher.hold([]heldWake{{table: "t", slot: slotOf("denied")}})
	require.Eventually(t, fails, time.Minute, time.Millisecond)
	require.True(t, pending(s))
	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "app", "+publish").Err())
	apply(t, s, notifying("beside", 5))
	named("denied")
	require.Eventually(t, func() bool { return !fails() && !pending(s) }, time.Minute, time.Millisecond)

	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "default", "on").Err())
	require.NoError(t, srv.Stop())
	s.pusher.hold([]heldWake{{table: "t", slot: slotOf("away")}})
	require.Eventually(t, fails, time.Minute, time.Millisecond)
	require.NoError(t, srv.Start())
	again, _ := hears(ctx, t, listens)                                    // before it can be sent again
	require.NoError(t, c.Do(ctx, readmeACL(t, "app", o.Prefix)...).Err()) // it was in memory alone
	for w := again(); len(w.Slots) == 0 || w.Slots[0] != slotOf("away"); {
		w = again()
	}
}

// The number of those who listen in a Cluster is that at the server of the channel, and a message goes to all servers.
func TestListenersInACluster(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl := testserver.NewRedisCluster(t, nil)
	url := with(t, cl.URL)
	s := bare(t, url)
	hear, _ := hears(ctx, t, bare(t, url))
	n, err := s.listeners(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	subscribers(t, s, 2*fewListeners)
	n, err = s.listeners(ctx)
	require.NoError(t, err)
	require.Equal(t, 1+2*fewListeners+len(cl.Addrs)-1, n)
	// What is published apart goes to them from any server.
	withGap(s, time.Millisecond)
	missing := map[uint16]bool{}
	for i := range 50 {
		row := fmt.Sprint(i)
		missing[slotOf(row)] = true
		apply(t, s, notifying(row, 5))
	}
	for len(missing) > 0 {
		for _, slot := range hear().Slots {
			delete(missing, slot)
		}
	}
}
