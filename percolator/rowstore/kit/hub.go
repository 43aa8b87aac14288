package kit

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Wakes tells whether a mutation that was applied wakes those who listen (rowstore.Waker):
// it puts a Notify and no Lock, so it is a commit and not a prewrite.
func Wakes(m *rowstore.Mutation) bool {
	notifies := false
	for i := range m.Edits {
		if e := &m.Edits[i]; e.Kind == rowstore.DoPut {
			if e.Family == rowstore.Lock {
				return false
			}
			notifies = notifies || e.Family == rowstore.Notify
		}
	}
	return notifies
}

// Hub passes on that tables have notifications, to all who listen in this process: the
// whole of a rowstore.Waker for a store of one process, and for another store the part
// behind the server's messages. The zero Hub is ready, and must not be copied. All methods
// may be called concurrently.
type Hub struct {
	count     atomic.Int32 // of listeners, so that a writer without any takes no lock
	mu        sync.Mutex
	listeners map[*listener]struct{}
}

// listener is one call of Listen, with the tables that it was not told yet.
type listener struct {
	ready  chan struct{} // of capacity 1
	tables map[string]struct{}
}

// Tell wakes all listeners for the tables; "" is any table. It never waits for a listener:
// a table that a listener was not told yet is not told twice.
func (h *Hub) Tell(tables ...string) {
	if len(tables) == 0 || h.count.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		for _, t := range tables {
			l.tables[t] = struct{}{}
		}
		select {
		case l.ready <- struct{}{}:
		default: // it was told, and will find these tables too
		}
	}
}

// Applied tells the tables that an Apply has to wake: those of mutations that were applied
// and that [Wakes] is true for. Call it once the changes can be seen.
func (h *Hub) Applied(muts []rowstore.Mutation, outs []rowstore.Outcome) {
	for i := range outs {
		if outs[i].Applied && Wakes(&muts[i]) {
			h.Tell(muts[i].Table)
		}
	}
}

// Committed is Applied for groups.
func (h *Hub) Committed(groups []rowstore.Group, outs []rowstore.GroupOutcome) {
	for i := range outs {
		for j := range groups[i].Mutations {
			if m := &groups[i].Mutations[j]; outs[i].Applied && Wakes(m) {
				h.Tell(m.Table)
			}
		}
	}
}

// Listen calls wake("") at once, and then wake for every table that is told, until ctx
// ends, whose error it returns. wake is called by this goroutine alone.
func (h *Hub) Listen(ctx context.Context, wake func(table string)) error {
	l := &listener{ready: make(chan struct{}, 1), tables: map[string]struct{}{}}
	h.mu.Lock()
	if h.listeners == nil {
		h.listeners = map[*listener]struct{}{}
	}
	h.listeners[l] = struct{}{}
	h.count.Add(1)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.listeners, l)
		h.count.Add(-1)
		h.mu.Unlock()
	}()
	// What was told before this call may have been missed.
	wake("")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.ready:
		}
		h.mu.Lock()
		tables := l.tables
		l.tables = make(map[string]struct{}, len(tables))
		h.mu.Unlock()
		for t := range tables {
			wake(t)
		}
	}
}
