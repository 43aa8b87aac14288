package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The categories of the tests that need hooks.
const (
	// Reopening: the data that is there after Close, after a crash, and for a second
	// process.
	Reopening Category = "Reopening"
	// Breaking: calls whose server or disk fails; what they answer, and how soon.
	Breaking Category = "Breaking"
)

// Moment says when a call breaks.
type Moment int

// The moments.
const (
	// BeforeCall: the request does not reach the server.
	BeforeCall Moment = 1 + iota
	// InCall: a part of the request reaches the server.
	InCall
	// AfterCall: the server carries the request out, and its answer gets lost.
	AfterCall
	// HangCall: neither request nor answer gets through until the break ends. An
	// embedded store hangs where it waits for its disk.
	HangCall
)

// String names the moment.
func (m Moment) String() string {
	switch m {
	case BeforeCall:
		return "before the call"
	case InCall:
		return "in the call"
	case AfterCall:
		return "after the call"
	case HangCall:
		return "while the call hangs"
	}
	return "at an unknown moment"
}

// Hooked is a store, and functions by which a test opens it again, crashes and breaks
// it. Each function may be nil; tests that need it are then skipped.
type Hooked struct {
	// Store is empty, and in a name space of its own, as in Open. The suite closes it.
	Store rowstore.Store
	// Reopen opens the data of Store once more, as another process would. The suite calls
	// it after it closed the store, after Crash, and while the store is in use. In the
	// last case, a store that serves one process at a time returns an error. The suite
	// closes the store that Reopen returns.
	Reopen func(ctx context.Context) (rowstore.Store, error)
	// Crash ends the process or the server of the store at once, so that everything that
	// is not durable is lost. Afterwards the suite only closes the store, and calls
	// Reopen.
	Crash func()
	// Break makes all calls of Store fail at a moment, also calls under way. The break
	// lasts from Break's return until the function that it returns was called. Break
	// returns nil for a moment that it cannot bring about. A store over the network has a
	// [Proxy] for this.
	Break func(m Moment) (mend func())
}

// WithHooks gives the suite a way to open stores that it may crash and break. Without
// it, the tests of the categories Reopening and Breaking are skipped.
func WithHooks(open func(t testing.TB) Hooked) Option {
	return func(cfg *config) { cfg.hooks = open }
}

// hooked opens a store with hooks, or skips the test.
func (e *env) hooked(t testing.TB) (*harness, Hooked) {
	t.Helper()
	if e.cfg.hooks == nil {
		t.Skip("the run has no hooks: see WithHooks")
	}
	k := e.cfg.hooks(t)
	if k.Store == nil {
		t.Fatal("the function that opens a store with hooks returned none")
	}
	atend.Do(t, func() {
		// A test may have closed or crashed it, or broken what Close needs.
		_ = k.Store.Close()
	})
	return &harness{TB: t, s: k.Store, ctx: e.context(t)}, k
}

// reopen opens the data once more, and fails the test if it cannot.
func (h *harness) reopen(k Hooked) *harness {
	h.Helper()
	s, err := k.Reopen(h.ctx)
	if err != nil {
		h.Fatalf("opening the same data again: %v", err)
	}
	atend.Do(h, func() {
		if err := s.Close(); err != nil {
			h.Errorf("closing the store that was opened again: %v", err)
		}
	})
	return &harness{TB: h.TB, s: s, ctx: h.ctx}
}

// ambiguous tells whether a change may have happened, by the error that its caller got.
func ambiguous(out []rowstore.Outcome, err error) bool {
	if err == nil && len(out) > 0 {
		err = out[0].Err
	}
	return errors.Is(err, rowstore.ErrAmbiguous)
}
