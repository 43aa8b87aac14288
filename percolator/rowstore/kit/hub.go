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

// Hub passes on where there are notifications, to all who listen in this process: the
// whole of a rowstore.Waker for a store of one process, and for another store the part
// behind the server's messages. The zero Hub is ready, and must not be copied. All methods
// may be called concurrently.
type Hub struct {
	count     atomic.Int32 // of listeners, so that a writer without any takes no lock
	mu        sync.Mutex
	listeners map[*listener]struct{}
}

// listener is one call of Listen, with what it was not told yet.
type listener struct {
	ready chan struct{} // of capacity 1
	news  News
}

// Tell wakes all listeners, and keeps nothing of wakes. It never waits for a listener: what
// a listener was not told yet goes together, and in bounded memory (see [News]).
func (h *Hub) Tell(wakes ...rowstore.Wake) {
	if len(wakes) == 0 || h.count.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		for _, w := range wakes {
			l.news.Add(w)
		}
		select {
		case l.ready <- struct{}{}:
		default: // it was told, and will find these too
		}
	}
}

// Applied tells what an Apply has to wake for: the rows of mutations that were applied
// and that [Wakes] is true for. Call it once the changes can be seen.
func (h *Hub) Applied(muts []rowstore.Mutation, outs []rowstore.Outcome) {
	if h.count.Load() == 0 {
		return
	}
	var news News
	for i := range outs {
		if outs[i].Applied {
			news.Applied(&muts[i])
		}
	}
	h.Tell(news.Take()...)
}

// Committed is Applied for groups.
func (h *Hub) Committed(groups []rowstore.Group, outs []rowstore.GroupOutcome) {
	if h.count.Load() == 0 {
		return
	}
	var news News
	for i := range outs {
		for j := range groups[i].Mutations {
			if outs[i].Applied {
				news.Applied(&groups[i].Mutations[j])
			}
		}
	}
	h.Tell(news.Take()...)
}

// Listen calls wake with the zero Wake at once, and then with all that is told, until ctx
// ends, whose error it returns. wake is called by this goroutine alone.
func (h *Hub) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	l := &listener{ready: make(chan struct{}, 1)}
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
	wake(rowstore.Wake{})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.ready:
		}
		h.mu.Lock()
		news := l.news.Take()
		h.mu.Unlock()
		for _, w := range news {
			wake(w)
		}
	}
}
