package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// long makes a command that may take hours of one that waits for workers and leases: it has no bound unless the user has set one, and an error of
// that bound says that another call goes on. On the standard error it says from time to time that it waits, and the command that shows for what.
func (a *app) long(shows string, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.unbounded(cmd)
		stderr := a.err
		a.err = &oneByOne{w: stderr}
		stop := a.tellWaiting(shows)
		err := run(cmd, args)
		stop()
		a.err = stderr
		if a.timeout > 0 && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w; it was broken off after --timeout %v: call it again, with a longer one", err, a.timeout)
		}
		return err
	}
}

// tellWaiting writes a line from time to time, until stop returns.
func (a *app) tellWaiting(shows string) (stop func()) {
	if a.json {
		return func() {}
	}
	over := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		began, w := time.Now(), a.err
		next := time.NewTicker(lineEvery)
		defer next.Stop()
		for {
			select {
			case <-over:
				return
			case now := <-next.C:
				_, _ = fmt.Fprintf(w, "at it for %v; \"percolator %s\" shows what is left. It may be broken off: another call goes on.\n", now.Sub(began).Round(time.Second), shows)
			}
		}
	})
	return func() { close(over); told.Wait() }
}

// oneByOne lets one write at a time through.
type oneByOne struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneByOne) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}
