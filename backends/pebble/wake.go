package pebble

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// wakers are those who listen for notifications.
type wakers struct {
	count atomic.Int32 // listeners, so that a writer without any takes no lock
	mu    sync.Mutex
	all   map[*listener]struct{}
}

// listener collects the tables that it has not been told yet.
type listener struct {
	ready  chan struct{} // holds one signal
	tables map[string]struct{}
}

func (w *wakers) init() { w.all = map[*listener]struct{}{} }

// wake tells every listener that notifications were put into tables. It never
// waits for one.
func (w *wakers) wake(tables []string) {
	if len(tables) == 0 || w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.all {
		for _, t := range tables {
			l.tables[t] = struct{}{}
		}
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
}

// Listen implements rowstore.Waker. It returns rowstore.ErrClosed when the store
// is closed.
func (s *Store) Listen(ctx context.Context, wake func(table string)) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.listen.Add(1)
	s.leave()
	defer s.listen.Done()
	l := &listener{ready: make(chan struct{}, 1), tables: map[string]struct{}{}}
	w := &s.wakes
	w.mu.Lock()
	w.all[l] = struct{}{}
	w.count.Add(1)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.all, l)
		w.count.Add(-1)
		w.mu.Unlock()
	}()
	// What was put before this call may have been missed.
	wake("")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ending:
			return rowstore.ErrClosed
		case <-l.ready:
		}
		w.mu.Lock()
		tables := l.tables
		l.tables = make(map[string]struct{}, len(tables))
		w.mu.Unlock()
		for t := range tables {
			wake(t)
		}
	}
}
