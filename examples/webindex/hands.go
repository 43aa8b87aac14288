package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/percolator"
)

// hands are who runs the observers: this process, its worker processes, or nobody here.
type hands struct {
	crew     *crew                           // nil without worker processes
	ready    func(ctx context.Context) error // waits until pages may be loaded
	waitIdle func(ctx context.Context) error // waits until nothing is left to do
	progress func(r *report) *progress
	stop     func() error
}

// hire starts them. ctx ends them at the latest; if this process's worker cannot go on, it
// calls fail.
func (s *settings) hire(ctx context.Context, db *percolator.DB, x *index.Index, sc *screen, fail func(error)) (*hands, error) {
	h := &hands{
		ready:    func(context.Context) error { return nil },
		waitIdle: func(context.Context) error { return nil },
		progress: func(r *report) *progress { return startProgress(sc, r, x) },
		stop:     func() error { return nil },
	}
	switch {
	case s.workers == 0:
	case s.processes > 1:
		c, err := s.startCrew(ctx, sc)
		if err != nil {
			return nil, err
		}
		h.crew, h.waitIdle = c, c.waitIdle
		h.ready = func(ctx context.Context) error {
			defer c.show(s.every, func() string { return "starting" })()
			if err := c.ready(ctx); err != nil {
				return err
			}
			return x.WaitObserved(ctx) // so that this process's commits tell of themselves
		}
		h.progress = func(r *report) *progress { return c.progress(r, s.every) }
		h.stop = func() error {
			c.stop()
			return nil
		}
	default:
		w, stop, err := s.startWorker(ctx, db, x, fail)
		if err != nil {
			return nil, err
		}
		h.waitIdle, h.stop = w.WaitIdle, stop
		h.ready = func(ctx context.Context) error {
			defer sc.doing("waiting until every process knows of the observers")()
			return x.WaitObserved(ctx)
		}
	}
	return h, nil
}

// checkProcesses looks at -processes and the flags that it goes with.
func (s *settings) checkProcesses() error {
	switch {
	case s.processes < 1:
		return fmt.Errorf("-processes %d: it must be 1 or more", s.processes)
	case s.processes > mostProcesses:
		return fmt.Errorf("-processes %d: it must be %d or less, which is more than a machine has use for; start webindex on further machines with the same -store", s.processes, mostProcesses)
	case s.processes == 1:
		return nil
	case s.workers == 0:
		return fmt.Errorf("-processes %d: they run the observers, so they need -workers 1 or more", s.processes)
	}
	stores := []string{s.store}
	if s.config != "" {
		f, err := config.Load(s.config)
		if err != nil {
			return err
		}
		stores = stores[:0]
		for _, store := range f.Stores {
			stores = append(stores, store.Scheme+store.URL)
		}
	}
	if slices.ContainsFunc(stores, ofOneProcess) {
		return errors.New("-processes: a store memory: or pebble: belongs to one process; name a server with -store, for example redis://localhost:6379 or postgres://localhost/db")
	}
	return nil
}

// ofOneProcess tells whether no other process can open the store.
func ofOneProcess(store string) bool {
	scheme, _, _ := strings.Cut(strings.ToLower(store), ":")
	return scheme == "memory" || scheme == "pebble"
}

// startWorker runs the observers until stop is called. A worker that cannot go on
// calls fail.
func (s *settings) startWorker(ctx context.Context, db *percolator.DB, x *index.Index, fail func(error)) (w *percolator.Worker, stop func() error, err error) {
	w = percolator.NewWorker(db, percolator.WorkerConfig{Concurrency: s.workers})
	if err := x.Observe(w); err != nil {
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := w.Run(running)
		if err != nil {
			fail(err)
		}
		done <- err
	}()
	return w, func() error {
		cancel()
		if err := <-done; err != nil {
			return fmt.Errorf("the worker stopped: %w", err)
		}
		return nil
	}, nil
}
