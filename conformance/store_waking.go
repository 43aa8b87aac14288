package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// listener runs Listen and keeps what it hears.
type listener struct {
	h       *harness
	mu      sync.Mutex
	heard   []rowstore.Wake
	news    chan struct{}
	held    chan struct{} // the next wake waits until it is closed
	inside  atomic.Int32
	overlap atomic.Bool
	ended   chan error
	stop    context.CancelFunc
}

func (h *harness) listen() *listener {
	h.Helper()
	w := ability[rowstore.Waker](h, h.s, "Waker")
	ctx, cancel := context.WithCancel(h.ctx)
	l := &listener{h: h, news: make(chan struct{}, 1), ended: make(chan error, 1), stop: cancel}
	go func() {
		l.ended <- w.Listen(ctx, func(at rowstore.Wake) {
			if l.inside.Add(1) != 1 {
				l.overlap.Store(true)
			}
			defer l.inside.Add(-1)
			l.mu.Lock()
			l.heard = append(l.heard, at)
			held := l.held
			l.held = nil
			l.mu.Unlock()
			select {
			case l.news <- struct{}{}:
			default:
			}
			if held != nil {
				<-held
			}
		})
	}()
	h.Cleanup(cancel)
	l.wait("the wake on listening", "")
	return l
}

// wait returns when all rows of a table were heard of since the last wait. Without rows
// the wake must be for any table.
func (l *listener) wait(what, table string, rows ...string) {
	l.h.Helper()
	for {
		l.mu.Lock()
		heard := l.has(table, rows)
		if heard {
			l.heard = nil
		}
		l.mu.Unlock()
		if heard {
			return
		}
		select {
		case <-l.news:
		case err := <-l.ended:
			l.h.Fatalf("Listen ended while the test waited for %s: %v", what, err)
		case <-l.h.ctx.Done():
			l.h.Fatalf("waited in vain for %s: the wakes since the last one were %v", what, l.heard)
		}
	}
}

// holdUp has a listener hear of a row, and be busy with that until release is called. It has heard of nothing else then.
func (l *listener) holdUp() (release func()) {
	l.h.Helper()
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	l.h.Cleanup(release)
	l.mu.Lock()
	l.held = held
	l.mu.Unlock()
	l.h.put("holds it up", write(ver(rowstore.Notify, "c", 5, "")))
	l.wait("the wake that is to last", "t", "holds it up")
	return release
}

// has tells whether the rows were heard of. l.mu is held.
func (l *listener) has(table string, rows []string) bool {
	slots := map[uint16]bool{}
	for _, at := range l.heard {
		if at.Table == "" || at.Table == table && len(at.Slots) == 0 {
			return true
		}
		if at.Table == table {
			for _, slot := range at.Slots {
				slots[slot] = true
			}
		}
	}
	missing := slices.ContainsFunc(rows, func(row string) bool { return !slots[rowstore.Slot(table, row)] })
	return len(rows) > 0 && !missing
}

// end stops listening.
func (l *listener) end() {
	l.h.Helper()
	l.stop()
	require.ErrorIs(l.h, await(l.h, l.ended, "the end of Listen"), context.Canceled)
	require.False(l.h, l.overlap.Load(), "wake is called from one goroutine at a time")
}

func wakeOnListening(t testing.TB, e *env) {
	h := e.harness(t)
	for range 3 {
		h.listen().end()
	}
	// A deadline ends it, too.
	ctx, cancel := context.WithTimeout(h.ctx, 20*time.Millisecond)
	defer cancel()
	err := ability[rowstore.Waker](t, h.s, "Waker").Listen(ctx, func(rowstore.Wake) {})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// nothingIsMissedOnceItListens puts a notification as soon as Listen has said that it
// listens, and expects the wake for it.
func nothingIsMissedOnceItListens(t testing.TB, e *env) {
	h := e.harness(t)
	for i := range e.n(20, 8) {
		l := h.listen()
		table := fmt.Sprintf("t%d", i%2)
		h.apply(rowstore.Mutation{Table: table, Row: key(i), Edits: []rowstore.Edit{write(ver(rowstore.Notify, "c", 5, ""))}})
		l.wait("the wake after the first notification", table, key(i))
		l.end()
	}
}

func wakeAfterANotification(t testing.TB, e *env) {
	h := e.harness(t)
	l := h.listen()
	for i := range 5 {
		table := fmt.Sprintf("t%d", i%2)
		ts := rowstore.Timestamp(10 * (i + 1)) //nolint:gosec // positive
		// Commit: the lock goes, the notification comes.
		h.apply(rowstore.Mutation{Table: table, Row: "r", Edits: []rowstore.Edit{write(ver(rowstore.Lock, "c", ts, ""))}})
		h.apply(rowstore.Mutation{Table: table, Row: "r", Conditions: when(rowstore.Present("c", ts)), Edits: []rowstore.Edit{
			rowstore.Delete(rowstore.Lock, "c", ts), write(ver(rowstore.Write, "c", ts+1, "")), write(ver(rowstore.Notify, "c", ts+1, "")),
		}})
		l.wait("the wake after a commit", table, "r")
		// A notification alone, among other rows of a batch.
		h.apply(mut(key(i), nil, write(ver(rowstore.Write, "c", 5, "x"))),
			rowstore.Mutation{Table: table, Row: "r2", Edits: []rowstore.Edit{write(ver(rowstore.Notify, "c", ts, "weak"))}})
		l.wait("the wake after a weak notification", table, "r2")
		out, err := h.s.Apply(h.ctx, []rowstore.Mutation{{Table: table, Row: "r3", Edits: []rowstore.Edit{write(ver(rowstore.Notify, "c", ts, ""))}}},
			rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
		l.wait("the wake after a deferred one", table, "r3")
	}
	l.end()
}

// wakeForEachRow notifies many rows at once: the wakes leave none of them out.
func wakeForEachRow(t testing.TB, e *env) {
	h := e.harness(t)
	for _, n := range []int{2, 40, 400, 1500} { // 1,500 are more than a Wake should name
		l := h.listen()
		muts, rows := make([]rowstore.Mutation, n), make([]string, n)
		for i := range muts {
			rows[i] = key(i)
			muts[i] = mut(rows[i], nil, write(ver(rowstore.Notify, "c", rowstore.Timestamp(n), ""))) //nolint:gosec // positive
		}
		h.apply(muts...)
		l.wait(fmt.Sprintf("the wakes of %d rows", n), "t", rows...)
		l.end()
	}
}

func wakeAfterAGroup(t testing.TB, e *env) {
	h := e.grouped(t, 2, false)
	l := h.listen()
	for i := range 3 {
		ts := rowstore.Timestamp(i + 1) //nolint:gosec // positive
		out := h.group(rowstore.Group{Mutations: []rowstore.Mutation{
			mut(h.rows[0], nil, write(ver(rowstore.Write, "c", ts, ""))), mut(h.rows[1], nil, write(ver(rowstore.Notify, "c", ts, ""))),
		}})
		require.True(t, out.Applied)
		l.wait("the wake after a group", "t", h.rows[1])
		if h.g.AssignsTimestamps(h.g.GroupKey("t", h.rows[0])) {
			out = h.group(rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut(h.rows[0], nil, drawn(rowstore.Notify, "c", ""), drawn(rowstore.Write, "c", ""))}})
			require.True(t, out.Applied)
			l.wait("the wake after a one-phase commit", "t", h.rows[0])
		}
	}
	l.end()
}

func listenersDoNotDisturbEachOther(t testing.TB, e *env) {
	h := e.harness(t)
	a, b, c := h.listen(), h.listen(), h.listen()
	a.end()
	h.put("r", write(ver(rowstore.Notify, "c", 5, "")))
	b.wait("a wake after another listener ended", "t", "r")
	c.wait("a wake after another listener ended", "t", "r")
	b.end()
	h.put("r", write(ver(rowstore.Notify, "c", 6, "")))
	c.wait("a wake", "t", "r")
	// Many notifications at once: at least one wake comes after the last.
	var g errgroup.Group
	for w := range 4 {
		g.Go(func() error {
			for i := range 25 {
				if _, err := apply1(h, mut(fmt.Sprint(w), nil, write(ver(rowstore.Notify, "c", rowstore.Timestamp(i+1), "")))); err != nil { //nolint:gosec // positive
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	c.wait("a wake for each of many", "t", "0", "1", "2", "3")
	out := h.apply(rowstore.Mutation{Table: "last", Row: "r", Edits: []rowstore.Edit{write(ver(rowstore.Notify, "c", 5, ""))}})
	require.True(t, out[0].Applied)
	c.wait("the wake of the last table", "last", "r")
	c.end()
}

// wakesWhileAListenerIsHeldUp notifies more rows than a wake should name, in several calls, while one wake lasts: what a machine with much else
// to do makes of one that returns at once. No change waits for that, and the listener hears of each row afterwards.
func wakesWhileAListenerIsHeldUp(t testing.TB, e *env) {
	h := e.harness(t)
	l := h.listen()
	release := l.holdUp()
	const n = 2000
	fill(h, "t", n, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Notify, "c", 5, ""))} })
	release()
	rows := make([]string, n)
	for i := range rows {
		rows[i] = key(i)
	}
	l.wait("the wakes of what came during another one", "t", rows...)
	l.end()
}
