package tikvraw

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/tikv/client-go/v2/tikvrpc"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// defaultPatience is for how long a call keeps trying while none of its requests succeeds,
// not counting the time that the requests take. Regions that split, merge or move, and
// leaders that hand over, are found again within milliseconds. A server that died is
// replaced after about ten seconds; the caller decides whether to wait for that.
const defaultPatience = 2 * time.Second

// call is one call of TiKV's client, and what its requests tell each other. It is the
// parent of the context that the client gets. It has the caller's values, but not the
// caller's deadline: the client takes a deadline that passes for a failure of the server,
// and keeps all callers away from that server. A cancellation has no such effect.
//
// The client itself would try for 40 seconds. A call gives up earlier: when none of its
// requests has succeeded for its patience and none is under way, or when a request fails
// after patience and a request's timeout together.
type call struct {
	caller            context.Context //nolint:containedctx // it is a context itself
	patience, timeout time.Duration
	// lost: an attempt of a swap ended, and no answer proves that it was not applied.
	lost atomic.Bool
	// pair is an error that a server answered in the place of a pair. The client ignores
	// it, and would say that there is no such key.
	pair atomic.Pointer[string]

	cancel context.CancelFunc // ends what the client gets
	stop   func() bool        // ends the watch over the caller's context
	timer  *time.Timer

	mu       sync.Mutex
	flying   int       // requests under way
	fired    bool      // the timer has, while there were some
	progress time.Time // of the last success, or of the beginning
	until    time.Time // when it gives up, if nothing is under way
	trouble  string    // what the last request failed with
	full     bool      // the last request that failed did so because a server's disk is full
	gaveUp   bool
}

type callKey struct{}

// newCall begins a call, which end must end, and makes the context for the client.
func newCall(ctx context.Context, patience, timeout time.Duration) (*call, context.Context) {
	now := time.Now()
	k := &call{caller: ctx, patience: patience, timeout: timeout, progress: now, until: now.Add(patience)}
	inner, cancel := context.WithCancel(k)
	k.cancel = cancel
	if ctx.Err() != nil {
		cancel() // at once: AfterFunc would take a moment
	}
	k.stop = context.AfterFunc(ctx, cancel)
	k.mu.Lock()
	k.timer = time.AfterFunc(patience, k.waited)
	k.mu.Unlock()
	return k, inner
}

func (k *call) end() {
	k.stop()
	k.timer.Stop()
	k.cancel()
}

// Deadline implements context.Context: there is none.
func (k *call) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context: it does not end by itself.
func (k *call) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (k *call) Err() error { return nil }

// Value implements context.Context.
func (k *call) Value(key any) any {
	if key == (callKey{}) {
		return k
	}
	return k.caller.Value(key)
}

// sent notes that a request leaves.
func (k *call) sent() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flying++
	return time.Now()
}

// answered notes how a request ended that left at a time; trouble is "" if it succeeded, and full says that a server's disk is full.
func (k *call) answered(left time.Time, trouble string, full bool) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flying--
	if trouble == "" {
		k.progress, k.until = now, now.Add(k.patience)
	} else {
		k.trouble, k.full = trouble, full
		// The time of a request does not count, up to a limit: else a server that hangs would
		// leave no time to ask the one that took over.
		k.until = k.until.Add(now.Sub(left))
		if last := k.progress.Add(k.patience + k.timeout); k.until.After(last) {
			k.until = last
		}
	}
	if k.flying > 0 {
		return
	}
	if trouble != "" && !now.Before(k.until) {
		k.giveUp()
	} else if k.fired {
		k.fired = false
		k.timer.Reset(k.until.Sub(now))
	}
}

// waited is called by the timer.
func (k *call) waited() {
	k.mu.Lock()
	defer k.mu.Unlock()
	left := time.Until(k.until)
	switch {
	case k.flying > 0:
		k.fired = true
	case left > 0:
		k.timer.Reset(left)
	default:
		k.giveUp()
	}
}

// giveUp ends the client's attempts, with the lock held.
func (k *call) giveUp() {
	k.gaveUp = true
	k.cancel()
}

// explain makes the call's error from the client's.
func (k *call) explain(err error) error {
	if err == nil {
		return nil
	}
	k.mu.Lock()
	gaveUp, trouble, full := k.gaveUp, k.trouble, k.full
	k.mu.Unlock()
	if ended := k.caller.Err(); ended != nil {
		if errors.Is(err, context.Canceled) {
			// The client says no more than that its context was cancelled.
			err = errors.New(trouble)
		}
		return endedBy(ended, err)
	}
	if gaveUp {
		if full {
			// The server refuses before it proposes anything.
			return fmt.Errorf("%w: make room on the disks of TiKV's servers: %s", rowstore.ErrFull, trouble)
		}
		if trouble == "" {
			trouble = "PD does not answer"
		}
		return fmt.Errorf("%w: %s", rowstore.ErrUnavailable, trouble)
	}
	if msg := err.Error(); strings.Contains(msg, "no available peer") || strings.Contains(msg, "Regions with no peer") {
		// PD knows that all servers of a region are down.
		return fmt.Errorf("%w: %w", rowstore.ErrUnavailable, err)
	}
	return explain(k.caller, err)
}

// explainSwap is explain for a swap, which may have happened.
func (k *call) explainSwap(err error) error {
	explained := k.explain(err)
	switch {
	case explained == nil || !k.lost.Load():
		return explained
	case k.caller.Err() != nil:
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, explained)
	}
	return fmt.Errorf("%w: %s", rowstore.ErrAmbiguous, strings.TrimPrefix(explained.Error(), rowstore.ErrUnavailable.Error()+": "))
}

// refused returns err or else the error that the call's answer had.
func (k *call) refused(err error) error {
	if msg := k.pair.Load(); err == nil && msg != nil {
		return errors.New(*msg)
	}
	return err
}

// troubleOf says why a request has to be sent again, "" if it succeeded, and whether that is because a server's disk is full.
func troubleOf(resp *tikvrpc.Response, err error) (trouble string, full bool) {
	if err != nil {
		return err.Error(), false
	}
	if resp == nil || resp.Resp == nil {
		return "", false
	}
	if e, err := resp.GetRegionError(); err == nil && e != nil {
		return regionTrouble(e), e.GetDiskFull() != nil
	}
	return "", false
}

func regionTrouble(e *errorpb.Error) string {
	if msg := e.GetMessage(); msg != "" {
		return msg
	}
	return e.String()
}

// endedBy makes the error of a call that ended with its context: ended is the context's
// error, err what the call met last.
func endedBy(ended, err error) error {
	if errors.Is(err, ended) {
		return err
	}
	if err.Error() == "" {
		return ended
	}
	return fmt.Errorf("%w: %s", ended, err.Error())
}

// apart returns a context for PD's client that is cancelled when ctx ends, however it
// ends: a deadline makes that client look for another leader. end must be called.
func apart(ctx context.Context) (inner context.Context, end func()) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return inner, func() {
		stop()
		cancel()
	}
}

// pdFailed makes the call's error from one of PD's client. No request to PD changes
// anything, so each may be sent again.
func pdFailed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := contexts.Ended(ctx); ended != nil {
		return endedBy(ended, err)
	}
	return fmt.Errorf("%w: asking PD: %w", rowstore.ErrUnavailable, err)
}
