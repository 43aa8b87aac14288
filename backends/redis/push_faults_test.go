package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pushHook meets the calls of a pusher before they leave. A nil function lets them pass.
type pushHook struct {
	push, count atomic.Pointer[func(ctx context.Context) error]
}

func (h *pushHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *pushHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (h *pushHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		met := &h.push
		if cmd.Name() == "pubsub" {
			met = &h.count
		} else if what := cmd.Args()[1:]; len(what) == 0 || what[0] != pushScript.sha && what[0] != pushScript.source {
			return next(ctx, cmd)
		}
		if f := met.Load(); f != nil {
			if err := (*f)(ctx); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// hookedPusher is a store with such a gap whose calls that publish or count the hook meets, and may hold for as long as it likes.
func hookedPusher(t *testing.T, url string, gap time.Duration) (*direct, *pushHook) {
	t.Helper()
	s, h := withGap(bare(t, url), gap), &pushHook{}
	s.pusher.bound, s.pusher.late = time.Minute, lateAfter
	s.nodes.(single).client.AddHook(h)
	return s, h
}

// silence is a server that does not answer for a while: asked is closed at the first call, and answer has it go on.
func silence() (meet func(ctx context.Context) error, asked chan struct{}, answer func()) {
	asked, answered := make(chan struct{}), make(chan struct{})
	var first, last atomic.Bool
	meet = func(ctx context.Context) error {
		if !first.Swap(true) {
			close(asked)
		}
		select {
		case <-answered:
		case <-ctx.Done():
		}
		return nil
	}
	return meet, asked, func() {
		if !last.Swap(true) {
			close(answered)
		}
	}
}

// writesUntil notifies rows until it is done, and returns their slots.
func writesUntil(t *testing.T, s *direct, what string, done func() bool) map[uint16]bool {
	t.Helper()
	slots := map[uint16]bool{}
	for i := 0; !done(); i++ {
		row := fmt.Sprint(what, "/", i)
		require.NoError(t, tryApply(t.Context(), s, notifying(row, 5)))
		slots[slotOf(row)] = true
	}
	return slots
}

// hearsOf reads all messages that are there, and tells whether one names any of these slots.
func hearsOf(heard chan rowstore.Wake, slots ...uint16) bool {
	for {
		select {
		case w := <-heard:
			if slices.ContainsFunc(w.Slots, func(s uint16) bool { return slices.Contains(slots, s) }) {
				return true
			}
		default:
			return false
		}
	}
}

// While a call that publishes for others is not answered, writes publish by themselves, but for some of the first moment. Those
// follow, and then pushes go in groups as before.
func TestSlowPushHoldsUpFew(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	url := with(t, testserver.Redis(t))
	s, h := hookedPusher(t, url, mostGap)
	hear, heard := hears(ctx, t, bare(t, url))
	meet, asked, answer := silence()
	defer answer()
	h.push.Store(&meet)
	s.pusher.hold([]heldWake{{table: "t", slot: slotOf("slow")}})
	await.Value(ctx, t, asked, nil)
	missing := writesUntil(t, s, "meanwhile", func() bool {
		require.NoError(t, ctx.Err(), "no write was heard of")
		return len(heard) > 0
	})
	missing[slotOf("slow")] = true
	hearUntil := func(done func() bool) {
		for !done() {
			for _, slot := range hear().Slots {
				delete(missing, slot)
			}
		}
	}
	for i := range 20 {
		slot := slotOf(fmt.Sprint("alone/", i))
		missing[slot] = true
		apply(t, s, notifying(fmt.Sprint("alone/", i), 5))
		hearUntil(func() bool { return !missing[slot] })
	}
	require.Contains(t, missing, slotOf("slow"))
	answer()
	hearUntil(func() bool { return len(missing) == 0 })
	require.Eventually(t, func() bool {
		s.pusher.mu.Lock()
		defer s.pusher.mu.Unlock()
		return s.pusher.oldest.IsZero()
	}, time.Minute, time.Millisecond)
	s.pusher.mu.Lock()
	s.pusher.gap, s.pusher.last = time.Hour, time.Now()
	s.pusher.mu.Unlock()
	apply(t, s, notifying("later", 5))
	require.True(t, pending(s), "in a group again")
}

// While calls that publish for others fail, each write publishes by itself.
func TestWritesPublishBesideFailingPushes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	url := with(t, testserver.Redis(t))
	s, h := hookedPusher(t, url, time.Hour)
	hear, _ := hears(ctx, t, bare(t, url))
	var tries atomic.Int64
	fail := func(context.Context) error {
		tries.Add(1)
		return errors.New("ERR no")
	}
	h.push.Store(&fail)
	s.pusher.hold([]heldWake{{table: "t", slot: slotOf("failing")}})
	require.Eventually(t, func() bool { return tries.Load() > 0 && pending(s) }, time.Minute, time.Millisecond)
	// Not even a try that fails holds one up.
	for i := 0; i < 300 || tries.Load() < 3; i++ {
		apply(t, s, notifying(fmt.Sprint(i), 5))
		require.Equal(t, []uint16{slotOf(fmt.Sprint(i))}, hear().Slots)
	}
	h.push.Store(nil)
	require.Equal(t, []uint16{slotOf("failing")}, hear().Slots)
	require.Eventually(t, func() bool {
		s.pusher.mu.Lock()
		defer s.pusher.mu.Unlock()
		return !s.pusher.failing
	}, time.Minute, time.Millisecond)
	apply(t, s, notifying("in a group", 5))
	require.True(t, pending(s))
}

// A server that does not say how many listen holds up nothing for long, and one that fails to say so changes nothing.
func TestSlowCountHoldsUpFew(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	url := with(t, testserver.Redis(t))
	s, h := hookedPusher(t, url, mostGap)
	_, heard := hears(ctx, t, bare(t, url))
	meet, asked, answer := silence()
	defer answer()
	silent := func(ctx context.Context) error {
		_ = meet(ctx)
		return errors.New("ERR no")
	}
	h.count.Store(&silent)
	isAsked := func() bool {
		require.NoError(t, ctx.Err())
		hearsOf(heard) // or the listener would wait for its reader
		select {
		case <-asked:
			return true
		default:
			return false
		}
	}
	writesUntil(t, s, "before", isAsked)
	var after []uint16
	writesUntil(t, s, "after", func() bool {
		require.NoError(t, ctx.Err(), "no write was heard of")
		after = append(after, slotOf(fmt.Sprint("after/", len(after))))
		return hearsOf(heard, after...)
	})
	answer()
	require.Eventually(t, func() bool {
		s.pusher.mu.Lock()
		defer s.pusher.mu.Unlock()
		return s.pusher.countAt.After(time.Now())
	}, time.Minute, time.Millisecond)
	s.pusher.mu.Lock()
	defer s.pusher.mu.Unlock()
	require.Equal(t, mostGap, s.pusher.gap)
}

// Which writes publish by themselves, and when the goroutine publishes for the others.
func TestWhoPublishes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ahead, past := now.Add(time.Hour), now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		p      *pusher
		within bool
		moves  bool // the gap begins anew
	}{
		"after a pause":          {&pusher{gap: mostGap, last: past}, true, true},
		"without a gap":          {&pusher{last: now}, true, true},
		"in the gap":             {&pusher{gap: time.Hour, last: now}, false, false},
		"something is pending":   {&pusher{gap: mostGap, last: past, some: true, oldest: ahead}, false, false},
		"something waits long":   {&pusher{gap: time.Hour, last: now, some: true, oldest: past}, true, false},
		"a call lasts":           {&pusher{gap: time.Hour, last: now, oldest: past}, true, false},
		"a call is under way":    {&pusher{gap: time.Hour, last: now, oldest: ahead}, false, false},
		"a call has failed":      {&pusher{gap: time.Hour, last: now, some: true, oldest: ahead, failing: true}, true, false},
		"the store is closed":    {&pusher{gap: time.Hour, last: now, some: true, oldest: ahead, ended: true}, true, false},
		"nobody may ask for now": {&pusher{gap: mostGap, last: past, countAt: ahead}, true, true},
	} {
		p := tc.p
		last := p.last
		p.started, p.asking, p.late = true, true, lateAfter // nobody looks
		require.Equal(t, tc.within, p.within(), name)
		require.Equal(t, tc.moves, p.last != last, name)
	}
	for name, tc := range map[string]struct {
		p           *pusher
		least, most time.Duration
	}{
		"in the gap":        {&pusher{gap: time.Hour, last: now, some: true}, time.Hour - time.Minute, time.Hour},
		"after the gap":     {&pusher{gap: mostGap, last: past, some: true}, -2 * time.Hour, 0},
		"a call has failed": {&pusher{gap: time.Hour, last: now.Add(time.Hour), some: true, failing: true}, time.Hour, time.Hour + pushWithin},
		"it has to ask":     {&pusher{gap: time.Hour, last: now, some: true, asking: true}, 0, 0},
	} {
		p := tc.p
		do, wait := p.next()
		require.NotNil(t, do, name)
		require.GreaterOrEqual(t, wait, tc.least, name)
		require.LessOrEqual(t, wait, tc.most, name)
	}
	do, _ := (&pusher{last: now}).next()
	require.Nil(t, do)
}

// Close waits for a silent server once.
func TestLastPushIsTriedOnce(t *testing.T) {
	t.Parallel()
	o, err := ParseURL(with(t, testserver.Redis(t)))
	require.NoError(t, err)
	store, err := Open(t.Context(), o)
	require.NoError(t, err)
	s, h := withGap(store.direct, time.Hour), &pushHook{}
	s.nodes.(single).client.AddHook(h)
	s.pusher.bound, s.pusher.last = time.Millisecond, time.Now()
	meet, asked, answer := silence()
	defer answer()
	var tries atomic.Int64
	count := func(ctx context.Context) error {
		tries.Add(1)
		return meet(ctx)
	}
	h.push.Store(&count)
	apply(t, s, notifying("held", 5))
	require.True(t, pending(s))
	require.NoError(t, store.Close())
	await.Value(t.Context(), t, asked, nil)
	require.EqualValues(t, 1, tries.Load())
	require.True(t, pending(s))
}

// Beside a server of a Cluster that does not answer, what was applied on another one is published.
func TestHeldBackUntilItsOwnServerAnswers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := withGap(bare(t, with(t, testserver.NewRedisCluster(t, nil).URL)), time.Hour)
	apply(t, s, notifying("first", 5))
	// A row of another server than the first one's.
	home, err := s.nodes.of(ctx, s.partOf("t", "first"))
	require.NoError(t, err)
	var row string
	var away *goredis.Client
	for i := 0; away == nil || away == home; i++ {
		row = fmt.Sprint("away/", i)
		away, err = s.nodes.of(ctx, s.partOf("t", row))
		require.NoError(t, err)
	}
	apply(t, s, notifying(row, 5)) // the scripts are there
	require.Eventually(t, func() bool { return pending(s) }, time.Minute, time.Millisecond)
	takePending(s)
	meet, asked, answer := silence()
	defer answer()
	away.AddHook(hungHook{meet})
	done := make(chan error, 1)
	go func() {
		_, err := s.Apply(ctx, []rowstore.Mutation{notifying("first", 6), notifying(row, 6)}, rowstore.ApplyOptions{})
		done <- err
	}()
	await.Value(ctx, t, asked, done)
	require.Eventually(t, func() bool { return pending(s) || ctx.Err() != nil }, time.Minute, time.Millisecond)
	require.NoError(t, ctx.Err(), "it waits for the other server")
	require.Equal(t, []rowstore.Wake{{Table: "t", Slots: []uint16{slotOf("first")}}}, takePending(s))
	answer()
	require.NoError(t, await.Value(ctx, t, done, nil))
	require.Equal(t, []rowstore.Wake{{Table: "t", Slots: []uint16{slotOf(row)}}}, takePending(s), "each once")
}

// hungHook is a server whose pipelines wait.
type hungHook struct {
	meet func(ctx context.Context) error
}

func (h hungHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hungHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (h hungHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		_ = h.meet(ctx)
		return next(ctx, cmds)
	}
}
