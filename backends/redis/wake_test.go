package redis

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a stranger or another version publishes may mean any row, and never nothing.
func TestParseWake(t *testing.T) {
	t.Parallel()
	require.Equal(t, rowstore.Wake{Table: "a/b%", Slots: []uint16{0xabcd, 1}}, parseWake("a%2Fb%25/abcd0001"))
	require.Equal(t, rowstore.Wake{Table: "t"}, parseWake("t/"), "any row of the table")
	require.Len(t, parseWake("t/"+strings.Repeat("abcd", wakeSlots)).Slots, wakeSlots)
	require.Equal(t, rowstore.Wake{Table: "t"}, parseWake("t/"+strings.Repeat("abcd", wakeSlots+1)), "longer than the script's: any row, and nothing to read")
	for _, s := range []string{"", "t", "t/abc", "t/abcg", "t/+123", "t/0_12", "t/abcd/abcd", "t/abcd/123", "\x00", "%"} {
		require.Zero(t, parseWake(s), "%q", s)
	}
}

// hears listens to a store. hear returns the next message.
func hears(ctx context.Context, t *testing.T, s *direct) (hear func() rowstore.Wake, heard chan rowstore.Wake) {
	t.Helper()
	heard = make(chan rowstore.Wake, 1000)
	go func() {
		_ = s.Listen(ctx, func(w rowstore.Wake) {
			select {
			case heard <- w:
			case <-ctx.Done(): // nobody may read it any more
			}
		})
	}()
	hear = func() rowstore.Wake {
		select {
		case w := <-heard:
			return w
		case <-ctx.Done():
			require.FailNow(t, "nothing was published")
			return rowstore.Wake{}
		}
	}
	require.Zero(t, hear())
	return hear, heard
}

// notesOf are mutations that notify rows.
func notesOf(table string, rows int) (muts []rowstore.Mutation) {
	for i := range rows {
		edits := []rowstore.Edit{rowstore.Delete(rowstore.Lock, "c", 2)}
		for c := range 3 {
			edits = append(edits, rowstore.Put(rowstore.Notify, fmt.Sprint("c", c), 5, nil))
		}
		muts = append(muts, rowstore.Mutation{Table: table, Row: fmt.Sprint("r/", i), Edits: edits})
	}
	return muts
}

// slotsOfRows are the slots of their rows, each once.
func slotsOfRows(muts []rowstore.Mutation) (slots []uint16) {
	for i := range muts {
		slots = append(slots, rowstore.Slot(muts[i].Table, muts[i].Row))
	}
	slices.Sort(slots)
	return slices.Compact(slots)
}

// Each row is heard of, whatever its table is called, and however many rows are changed at
// once.
func TestWakesNameEachRow(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hear, heard := hears(ctx, t, s)
	for _, table := range []string{"t", "a/b", "%", "%2F", "/", "a:b", "\x00", "\xff\xfe", "ab12", "abcd/abcd", strings.Repeat("/", maxTable/3)} {
		for _, rows := range []int{1, 2, 256, 1000} {
			muts := notesOf(table, rows)
			_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
			require.NoError(t, err)
			missing := map[uint16]bool{}
			for _, slot := range slotsOfRows(muts) {
				missing[slot] = true
			}
			for sent := 0; sent < rows && len(missing) > 0; { // a call may be sent in parts
				w := hear()
				require.Equal(t, table, w.Table)
				require.NotEmpty(t, w.Slots)
				for _, slot := range w.Slots {
					delete(missing, slot)
				}
				sent += len(w.Slots)
			}
			require.Empty(t, missing)
		}
	}
	// A stranger's message makes everybody look; what comes after it is heard of.
	c := admin(t, testserver.Redis(t))
	for _, garbage := range []string{"t", "", "t/xyz", strings.Repeat("\x00", 1<<20)} {
		require.NoError(t, c.Publish(ctx, s.channel, garbage).Err())
		for hear().Table != "" { // the rest of what came before
			continue
		}
	}
	muts := notesOf("t", 1)
	_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, slotsOfRows(muts), hear().Slots)
	require.Empty(t, heard)
}

// A message names up to 1,024 slots, each once. With more it means any row.
func TestWakesOfOneGroup(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hear, heard := hears(ctx, t, s)
	var few []rowstore.Mutation // slots, of more rows
	for i := 0; len(few) < 1100; i++ {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint("few/", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
		if rowstore.Slot(m.Table, m.Row) < wakeSlots {
			few = append(few, m)
		}
	}
	require.Greater(t, len(slotsOfRows(notesOf("t", 1100))), wakeSlots)
	for _, muts := range [][]rowstore.Mutation{notesOf("t", 257), notesOf("t", 1000), few, notesOf("t", 1100)} {
		outs, err := s.Group(ctx, []rowstore.Group{{Mutations: muts}})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
		require.True(t, outs[0].Applied)
		w := hear()
		require.Equal(t, "t", w.Table)
		if slots := slotsOfRows(muts); len(slots) <= wakeSlots {
			require.ElementsMatch(t, slots, w.Slots)
		} else {
			require.Empty(t, w.Slots, "any row")
		}
	}
	require.Empty(t, heard)
}

// What a mutation with notifications is sent as takes no memory besides the encoder's own.
func TestEncodingNotificationsTakesNoMemory(t *testing.T) {
	m := rowstore.Mutation{Table: "t", Row: "r", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "c", 5, nil), rowstore.DeleteRange(rowstore.Notify, "d", 1, 4),
	}}
	var e writeEncoder
	require.Zero(t, testing.AllocsPerRun(100, func() {
		e.begin("", "channel")
		end := e.group(1, false, 0)
		e.mutation("{t:0}", &m)
		e.endGroup(end)
	}))
}

// listening begins to listen, and returns the end of that once the subscription is there.
func listening(t *testing.T, s *direct) (end <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	heard, lost := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		lost <- s.Listen(ctx, func(rowstore.Wake) {
			select {
			case heard <- struct{}{}:
			case <-ctx.Done(): // nobody may read it any more
			}
		})
	}()
	t.Cleanup(cancel)
	select {
	case <-heard:
	case err := <-lost:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.FailNow(t, "no subscription")
	}
	return lost
}

func requireMoved(t *testing.T, end <-chan error) {
	t.Helper()
	select {
	case err := <-end:
		require.ErrorIs(t, err, errMoved)
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
	case <-time.After(time.Minute):
		require.FailNow(t, "the listener did not hear of it")
	}
}

// After a failover the subscription stays with the old server, which may be cut off from the new one. Then
// the listener ends, since nothing is published there any more.
func TestListenerLeavesTheOldPrimary(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	one, two := testserver.NewRedis(t, nil), testserver.NewRedis(t, nil)
	var primary atomic.Pointer[testserver.Server]
	primary.Store(one)
	c := program(t, &goredis.Options{Addr: hostOf(t, one.URL), Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, hostOf(t, primary.Load().URL))
	}})
	s := openNew(t, c, Options{NoCoalesce: true}).direct
	first, second := admin(t, one.URL), admin(t, two.URL)
	follow(t, second, one)
	end := listening(t, s)
	promote(t, second)
	primary.Store(two)
	// The connections of the pool are closed, as at a failover, and that of the subscription is not.
	require.NoError(t, first.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	require.Eventually(t, func() bool { return tryApply(ctx, s, put("r", 1, "on two")) == nil }, time.Minute, time.Millisecond)
	require.Equal(t, int64(1), first.PubSubNumSub(ctx, s.channel).Val()[s.channel])
	requireMoved(t, end)
	listening(t, s)
	require.Equal(t, int64(1), second.PubSubNumSub(ctx, s.channel).Val()[s.channel])
}

// In a Cluster a subscription goes to the server that has the slot of the channel. If another one has it, perhaps since
// the first one was cut off, the listener ends.
func TestListenerOfACluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cl := testserver.NewRedisCluster(t, nil)
	s := bare(t, with(t, cl.URL))
	end := listening(t, s)
	at, err := s.nodes.holder(ctx, s.channel)
	require.NoError(t, err)
	from := slices.Index(cl.Addrs, at.Options().Addr)
	require.GreaterOrEqual(t, from, 0)
	to := admin(t, "redis://"+cl.Addrs[(from+1)%len(cl.Addrs)])
	slot, err := to.ClusterKeySlot(ctx, s.channel).Result()
	require.NoError(t, err)
	id, err := to.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	was, err := admin(t, "redis://"+cl.Addrs[from]).ClusterMyID(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", was).Err())
	require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id).Err())
	for _, addr := range cl.Addrs {
		require.NoError(t, admin(t, "redis://"+addr).Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id).Err())
	}
	require.Eventually(t, func() bool {
		s.nodes.moved(ctx)
		at, err := s.nodes.holder(ctx, s.channel)
		return err == nil && at.Options().Addr != cl.Addrs[from]
	}, time.Minute, 10*time.Millisecond)
	requireMoved(t, end)
}
