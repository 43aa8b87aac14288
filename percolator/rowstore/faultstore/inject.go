package faultstore

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// errCrashed is what a call gets that is made after the client crashed.
var errCrashed = fmt.Errorf("%w: the client crashed earlier: %w", ErrInjected, rowstore.ErrClosed)

// errClosed is what a call gets that is made after Close.
func errClosed(call *Call) error {
	if call.Kind == CallDraw {
		return fmt.Errorf("faultstore: %s: %w: %w", call.Kind, oracle.ErrClosed, rowstore.ErrClosed)
	}
	return fmt.Errorf("faultstore: %s: %w", call.Kind, rowstore.ErrClosed)
}

// failure is injected for a call that fails for certain.
func failure(call *Call, fault Fault, what string) error {
	err := injected(call, what)
	if fault.Err != nil {
		err = fmt.Errorf("%w (%w)", fault.Err, err)
	}
	return err
}

func injected(call *Call, what string) error {
	return fmt.Errorf("%w: %s %d: %s", ErrInjected, call.Kind, call.Seq, what)
}

// unknown is injected for a reply that does not come.
func unknown(call *Call, what string) error {
	err := injected(call, what)
	if call.Kind == CallApply || call.Kind == CallGroup {
		err = fmt.Errorf("%w (%w)", rowstore.ErrAmbiguous, err)
	}
	return err
}

// begin chooses the fault of a call and does what comes before the call. After an error
// the caller must return it; otherwise the caller makes the call, and then calls end.
func (f *Store) begin(ctx context.Context, call *Call) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return Fault{}, fmt.Errorf("faultstore: %s: %w", call.Kind, err)
	}
	fault, due, err := f.admit(call)
	if err != nil {
		return Fault{}, err
	}
	for _, l := range due {
		l.deliver()
	}
	switch {
	case call.rule != nil && call.rule.Before != nil:
		fault = call.rule.Before(ctx, call)
	case call.rule != nil:
		fault = call.rule.Fault
	case f.opts.OnCall != nil:
		fault = f.opts.OnCall(*call)
	}
	if !call.may(fault.Kind) {
		fault = Fault{}
	}
	if fault.Kind == CrashStore && f.abilities.Crasher == nil {
		return Fault{}, fmt.Errorf("faultstore: %w: a crash of a store that is no Crasher", rowstore.ErrInvalid)
	}
	if err := f.count(call, fault); err != nil {
		return Fault{}, err
	}
	return fault, f.strikeBefore(ctx, call, fault)
}

// admit numbers a call and rolls its fault, unless a rule or a hook is to say it. due are the
// late calls that arrive before this one.
func (f *Store) admit(call *Call) (fault Fault, due []lateCall, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Fault{}, nil, errClosed(call)
	}
	if f.crashed {
		return Fault{}, nil, errCrashed
	}
	f.seq++
	call.Seq = f.seq
	kept := f.late[:0]
	for _, l := range f.late {
		if l.due <= f.seq {
			due = append(due, l)
		} else {
			kept = append(kept, l)
		}
	}
	f.late = kept
	call.f = f
	f.strike(call)
	if call.rule == nil && f.opts.OnCall == nil {
		fault = f.roll(call)
	}
	return fault, due, nil
}

// count counts a fault that was chosen. It fails if the client crashed while a hook chose.
func (f *Store) count(call *Call, fault Fault) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return errCrashed
	}
	if f.counts[call.Kind] == nil {
		f.counts[call.Kind] = map[FaultKind]int{}
	}
	f.counts[call.Kind][fault.Kind]++
	if fault.Kind == CrashClient && !fault.Applied {
		f.crash()
	}
	return nil
}

// strikeBefore does of a fault what comes before the call.
func (f *Store) strikeBefore(ctx context.Context, call *Call, fault Fault) error {
	switch fault.Kind {
	case Fail:
		if call.Kind != CallScan && call.Kind != CallTables {
			return failure(call, fault, "failed")
		}
	case LoseReply:
		if !fault.Applied {
			return unknown(call, "the request was lost")
		}
	case Delay:
		if err := contexts.Sleep(ctx, fault.Delay); err != nil {
			return fmt.Errorf("faultstore: %s: %w", call.Kind, err)
		}
	case CrashClient:
		if !fault.Applied {
			return unknown(call, "the client crashed before it")
		}
	case CrashStore:
		if !fault.Applied {
			f.abilities.Crasher.Crash()
		}
	}
	return nil
}

// may tells whether a fault can strike a call.
func (c *Call) may(kind FaultKind) bool {
	switch kind {
	case FailRow, LoseRow:
		return len(c.Reads)+len(c.Asks)+len(c.Muts)+len(c.Groups) > 0
	case LoseOthers:
		return len(c.Muts)+len(c.Groups) > 0
	case Late, Twice:
		return c.Kind == CallApply || c.Kind == CallGroup
	}
	return true
}

// end does what comes after a call to the store that returned err. It returns the error
// for the caller.
func (f *Store) end(ctx context.Context, call *Call, fault Fault, err error) error {
	if call.rule != nil && call.rule.After != nil {
		call.Err = err
		call.rule.After(ctx, call)
	}
	return f.verdict(call, fault, err)
}

// verdict returns the error for the caller of a call to the store that returned err.
func (f *Store) verdict(call *Call, fault Fault, err error) error {
	if fault.Kind == CrashStore && fault.Applied {
		f.abilities.Crasher.Crash()
		return unknown(call, "the store crashed after it")
	}
	f.mu.Lock()
	if fault.Kind == CrashClient {
		f.crash()
	}
	crashed := f.crashed
	f.mu.Unlock()
	switch {
	case crashed:
		return unknown(call, "the client crashed after it")
	case fault.Kind == LoseReply && err == nil:
		return unknown(call, "the reply was lost")
	}
	return err
}

// roll draws a fault by the rates, with the lock held.
func (f *Store) roll(call *Call) Fault {
	r := f.rates[call.Kind]
	x := f.rand.Float64()
	fault := Fault{Kind: NoFault, Applied: f.rand.IntN(2) == 0, Row: f.rand.IntN(1 << 20), Rows: f.rand.IntN(8)}
	longest := r.MaxDelay
	if longest <= 0 {
		longest = time.Millisecond
	}
	fault.Delay = time.Duration(f.rand.Int64N(int64(longest) + 1))
	for i, p := range r.list() {
		if x < p {
			fault.Kind = Fail + FaultKind(i)
			break
		}
		x -= p
	}
	if fault.Kind == CrashStore && f.abilities.Crasher == nil {
		fault.Kind = NoFault
	}
	return fault
}

// spoilKind is what differs between applies and groups.
type spoilKind[Q, A any] struct {
	send   func(context.Context, []Q) ([]A, error)
	note   func(*Call, []A)
	keep   func([]Q, *arena.Arena, []Q) []Q
	failed func(error) A
}

// putOff has a call arrive later: before a later call, or some time.
func (f *Store) putOff(call *Call, fault Fault, deliver func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case fault.Rows >= 0:
		f.late = append(f.late, lateCall{call.Seq + uint64(fault.Rows) + 1, deliver})
	case !f.crashed && !f.closed:
		f.sent.Go(deliver)
	}
}

// spoil makes an apply or a group with the fault that is chosen for it.
func spoil[Q, A any](ctx context.Context, f *Store, call *Call, asks []Q, kind spoilKind[Q, A]) ([]A, error) {
	fault, err := f.begin(ctx, call)
	if err != nil {
		return nil, err
	}
	if fault.Kind == Late {
		// The caller may change its slices, and its context may end, before the call
		// arrives.
		kept := kind.keep(nil, &arena.Arena{}, asks)
		detached := context.WithoutCancel(ctx)
		f.putOff(call, fault, func() { _, _ = kind.send(detached, kept) })
		return nil, unknown(call, "the request is late")
	}
	sending, done, err := f.leave(ctx, fault)
	if err != nil {
		return nil, err
	}
	done = sync.OnceFunc(done)
	defer done()
	send := func(asks []Q) ([]A, error) {
		answers, err := kind.send(sending, asks)
		done() // Settle waits for the store alone, not for a reply that is held
		kind.note(call, answers)
		return answers, f.end(ctx, call, fault, err)
	}
	i := 0
	if len(asks) > 0 {
		i = fault.row(len(asks))
	}
	switch {
	case fault.Kind == Twice:
		if _, err := kind.send(sending, asks); err != nil {
			return nil, f.end(ctx, call, fault, err)
		}
	case fault.Kind == FailRow || fault.Kind == LoseRow && !fault.Applied:
		others := append(append(make([]Q, 0, len(asks)), asks[:i]...), asks[i+1:]...)
		answers, err := send(others)
		if err != nil {
			return nil, err
		}
		lost := failure(call, fault, "one row failed")
		if fault.Kind == LoseRow {
			lost = unknown(call, "the request for one row was lost")
		}
		all := append(append(make([]A, 0, len(asks)), answers[:i]...), kind.failed(lost))
		return append(all, answers[i:]...), nil
	case fault.Kind == LoseOthers:
		answers, err := send(asks[i : i+1])
		if err != nil {
			return nil, err
		}
		all := make([]A, len(asks))
		for j := range all {
			all[j] = kind.failed(unknown(call, "the request for this row was lost"))
		}
		all[i] = answers[0]
		return all, nil
	}
	answers, err := send(asks)
	if err != nil {
		return nil, err
	}
	if fault.Kind == LoseRow {
		answers[i] = kind.failed(unknown(call, "the reply for one row was lost"))
	}
	return answers, nil
}

func spoilSeq[T any](ctx context.Context, f *Store, template *Call, start func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		again := *template // the sequence may be used more than once
		call := &again
		var zero T
		fault, err := f.begin(ctx, call)
		if err != nil {
			yield(zero, err)
			return
		}
		steps := 0
		for t, err := range start() {
			if err == nil && fault.Kind == Fail && steps >= fault.Rows {
				break
			}
			if err == nil && fault.Kind != LoseReply && fault.Kind != CrashStore && fault.Kind != CrashClient {
				err = f.verdict(call, Fault{}, nil) // the client may have crashed meanwhile
			}
			if err != nil {
				yield(zero, err)
				return
			}
			if !yield(t, nil) {
				return
			}
			steps++
		}
		switch {
		case fault.Kind == Fail:
			err = failure(call, fault, fmt.Sprintf("failed after %d steps", steps))
		default:
			err = f.end(ctx, call, fault, nil)
		}
		if err != nil {
			yield(zero, err)
		}
	}
}
