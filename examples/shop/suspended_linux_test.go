package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/percolate-go/percolate/internal/everystore"
)

// TestSuspendedUnderLoad suspends a process while buyers buy, for longer than its locks, and its claims on customers' mail, last. Buyers who wait for it ask another one. When it goes on, it
// has requests that were answered by then, letters that were sent, and timers that have run.
func TestSuspendedUnderLoad(t *testing.T) {
	t.Parallel()
	everystore.Servers(t, func(t *testing.T, url string) {
		f := startFleet(t, url, 2)
		f.disturb(time.Second, func(ctx context.Context, l *load) error {
			p := f.children[0].cmd.Process
			before := l.done.Load()
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			f.avoided.Store(1)
			// The claims last for three times the timeout of the mail, which is 2 s.
			for begun := time.Now(); time.Since(begun) < 4*fleetLease || l.done.Load() < before+buyers; {
				select {
				case <-ctx.Done():
					return errors.Join(fmt.Errorf("%d purchases while a process is suspended", l.done.Load()-before), p.Signal(syscall.SIGCONT))
				case <-time.After(5 * time.Millisecond): // until the next look
				}
			}
			f.avoided.Store(0)
			if err := p.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			// It goes on.
			status, answer, err := send(ctx, "GET", f.children[0].url+"/totals", "", "")
			if err == nil && status != 200 {
				err = fmt.Errorf("%d %s", status, answer)
			}
			return err
		})
	})
}
