package kit

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// DefaultWindow is how far ahead of need a BoundedOracle oracle makes its bound durable, if
// its configuration does not say.
const DefaultWindow = 2 * time.Second

// BoundedConfig configures a BoundedOracle oracle.
type BoundedConfig struct {
	// Bound is the durable bound that an earlier oracle on the same data stored
	// last, 0 if there was none. Every timestamp handed out lies above it.
	Bound oracle.Timestamp

	// Persist makes a new bound durable, before it returns nil, in the place from which
	// a later oracle takes its Bound. It is called by one goroutine at a time, with
	// greater bounds each time; only Close may lower the bound, to the last timestamp
	// handed out. Its context ends when the oracle is closed. After an error the oracle
	// keeps the bound that it had, even if the new one was stored after all. A nil
	// Persist means that nobody will ever continue these timestamps, so nothing is
	// stored.
	Persist func(ctx context.Context, bound oracle.Timestamp) error

	// Clock tells the wall time. It may be called very often, by many goroutines.
	// Nil means time.Now.
	Clock func() time.Time

	// Window is how far each new bound lies above the timestamps in use, in wall
	// time. Half of it is the time that Persist may take before a busy system
	// waits for it. After a crash, timestamps start at the stored bound, which is
	// at most one Window ahead of the clock. 0 means DefaultWindow; values below a
	// millisecond count as one.
	Window time.Duration
}

// BoundedOracle is an oracle inside one process. Its timestamps continue where an earlier
// process ended: they never exceed a bound that is already durable, and the next oracle
// starts above that bound.
//
// A timestamp is the clock's millisecond with the counter at 0, or one more than the
// last timestamp if that is greater. So more than 2^18 timestamps in one millisecond
// run ahead into the next. After a clock was set back, only the counter advances until
// the clock has caught up. A clock that is years ahead, even for a moment, moves all
// later timestamps ahead in the same way: they continue from there, and their wall time
// stands still, because an order that was promised cannot be taken back. At 2^18 per
// millisecond it takes very long to use up even one year that way.
//
// The bound is extended while timestamps are drawn, in the background once half
// of the window is used. An oracle that nobody uses does nothing; the first Draw
// after a pause longer than the window waits for one Persist.
//
// All methods may be called concurrently.
type BoundedOracle struct {
	_     [64]byte
	last  atomic.Uint64 // the last timestamp handed out
	_     [56]byte
	bound atomic.Uint64 // the durable bound; last never exceeds it
	soon  atomic.Uint64 // a draw above it starts an extension
	_     [48]byte

	persist func(ctx context.Context, bound oracle.Timestamp) error
	clock   func() time.Time
	window  oracle.Timestamp

	ctx    context.Context // of Persist; ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // of the extension under way

	mu     sync.Mutex
	closed atomic.Bool // written under mu
	ext    *extension  // the extension under way, or nil
}

// extension is one call of Persist, and its result for those that wait for it.
type extension struct {
	done chan struct{}
	err  error
}

// NewBoundedOracle returns an oracle. It calls neither Persist nor Clock yet.
func NewBoundedOracle(cfg BoundedConfig) *BoundedOracle {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	b := &BoundedOracle{
		persist: cfg.Persist,
		clock:   cfg.Clock,
		window:  oracle.Timestamp(max(cfg.Window.Milliseconds(), 1)) << oracle.LogicalBits,
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.last.Store(uint64(cfg.Bound))
	b.bound.Store(uint64(cfg.Bound))
	b.soon.Store(uint64(cfg.Bound))
	if cfg.Persist == nil {
		b.bound.Store(uint64(oracle.Max))
		b.soon.Store(uint64(oracle.Max))
	}
	return b
}

// Draw implements oracle.Oracle. Most calls take no lock and do not block. It returns
// oracle.ErrClosed after Close, oracle.ErrExhausted when the range would pass Max, the error of
// Persist when a bound that is needed cannot be made durable (a later call tries
// again), and the context's error when that ended first. n below 1 is rowstore.ErrInvalid.
func (b *BoundedOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("kit: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for {
		first, beyond, err := b.swap(n)
		if err != nil || beyond == 0 {
			return first, err
		}
		if err := b.await(ctx, beyond); err != nil {
			return 0, err
		}
	}
}

// TryDraw is Draw for a caller that must not wait, because it holds locks. drawn is false, and
// nothing was drawn, if the range would pass the durable bound: let go of the locks, call
// Ensure, and try again. Errors are those of Draw.
func (b *BoundedOracle) TryDraw(n int) (first oracle.Timestamp, drawn bool, err error) {
	if n < 1 {
		return 0, false, fmt.Errorf("kit: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	first, beyond, err := b.swap(n)
	return first, err == nil && beyond == 0, err
}

// Ensure waits until a draw of n timestamps would not have to wait for Persist. It draws none, so
// draws of others and the clock may use up the bound before the caller draws. Errors are those
// of Draw.
func (b *BoundedOracle) Ensure(ctx context.Context, n int) error {
	if n < 1 {
		return fmt.Errorf("kit: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		if b.closed.Load() {
			return oracle.ErrClosed
		}
		_, end, err := next(b.now(), b.last.Load(), n)
		if err != nil || end <= b.bound.Load() {
			return err
		}
		if err := b.await(ctx, oracle.Timestamp(end)); err != nil {
			return err
		}
	}
}

func (b *BoundedOracle) now() uint64 { return uint64(oracle.FromTime(b.clock())) }

// next returns the first and the last of the n timestamps that would follow last at the time now.
func next(now, last uint64, n int) (first, end uint64, err error) {
	first = max(last+1, now)
	if first > uint64(oracle.Max) || uint64(n-1) > uint64(oracle.Max)-first {
		return 0, 0, oracle.ErrExhausted
	}
	return first, first + uint64(n-1), nil
}

// swap draws n timestamps, unless they would pass the bound: then beyond is the last of them.
func (b *BoundedOracle) swap(n int) (first, beyond oracle.Timestamp, err error) {
	for {
		if b.closed.Load() {
			return 0, 0, oracle.ErrClosed
		}
		// The clock is read after the call began and before the swap, so a
		// timestamp is never older than the request by more than the clock's error. It is read before last, too:
		// it takes most of the time of a draw, in which others would draw, so that the swap fails.
		now := b.now()
		last := b.last.Load()
		first, end, err := next(now, last, n)
		if err != nil {
			return 0, 0, err
		}
		if end > b.bound.Load() {
			return 0, oracle.Timestamp(end), nil
		}
		// Close stores closed before it reads last, so a swap that Close does not
		// see must not be answered.
		if !b.last.CompareAndSwap(last, end) {
			continue
		}
		if end > b.soon.Load() {
			b.ahead()
		}
		if b.closed.Load() {
			return 0, 0, oracle.ErrClosed
		}
		return oracle.Timestamp(first), 0, nil
	}
}

// await waits until the bound has reached at least need, or an attempt to extend
// it has failed.
func (b *BoundedOracle) await(ctx context.Context, need oracle.Timestamp) error {
	b.mu.Lock()
	if oracle.Timestamp(b.bound.Load()) >= need {
		b.mu.Unlock()
		return nil
	}
	e, err := b.extend(need)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ahead starts an extension that nobody waits for. If it fails, a draw that needs the
// new bound tries again and gets the error.
func (b *BoundedOracle) ahead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.Load() > b.soon.Load() {
		_, _ = b.extend(oracle.Timestamp(b.last.Load()))
	}
}

// extend starts an extension to a window above need, or joins the one under way,
// which may reach less far. mu is held.
func (b *BoundedOracle) extend(need oracle.Timestamp) (*extension, error) {
	if b.closed.Load() {
		return nil, oracle.ErrClosed
	}
	if b.ext != nil {
		return b.ext, nil
	}
	bound := oracle.Max
	if need < oracle.Max-b.window {
		bound = need + b.window
	}
	if bound <= oracle.Timestamp(b.bound.Load()) {
		// Only at Max: there is nothing left to extend to.
		b.soon.Store(uint64(oracle.Max))
		return closedExtension, nil
	}
	e := &extension{done: make(chan struct{})}
	b.ext = e
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		err := b.persist(b.ctx, bound)
		b.mu.Lock()
		b.ext = nil
		switch {
		case b.closed.Load():
			e.err = oracle.ErrClosed
		case err != nil:
			e.err = fmt.Errorf("oracle: make the bound %v durable: %w", bound, err)
			// The next draw does not try again at once: that waits until half of what is
			// left is used.
			last, bound := b.last.Load(), b.bound.Load()
			b.soon.Store(last + (bound-last)/2)
		default:
			b.bound.Store(uint64(bound))
			b.soon.Store(uint64(bound - b.window/2))
		}
		b.mu.Unlock()
		close(e.done)
	}()
	return e, nil
}

var closedExtension = func() *extension {
	e := &extension{done: make(chan struct{})}
	close(e.done)
	return e
}()

// Last returns the last timestamp that was handed out, or the bound that the
// oracle began with. Draws under way may have passed it when it returns.
func (b *BoundedOracle) Last() oracle.Timestamp { return oracle.Timestamp(b.last.Load()) }

// Close ends the oracle: later draws, and those that wait for Persist, return
// oracle.ErrClosed. It waits for a Persist under way, whose context it ends. Then it lowers
// the stored bound to the last timestamp, so that the next oracle need not run ahead of
// the clock. ctx limits that last Persist alone. If it fails, the next oracle may run
// ahead, but no other harm is done. A second Close does nothing and returns nil.
func (b *BoundedOracle) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed.Load() {
		b.mu.Unlock()
		return nil
	}
	b.closed.Store(true)
	b.mu.Unlock()
	b.cancel()
	b.wg.Wait()
	// A draw whose swap comes after this load sees closed and hands nothing out.
	last := oracle.Timestamp(b.last.Load())
	if b.persist == nil || last >= oracle.Timestamp(b.bound.Load()) {
		return nil
	}
	if err := b.persist(ctx, last); err != nil {
		return fmt.Errorf("oracle: lower the bound to %v: %w", last, err)
	}
	return nil
}

// EncodeBound is the form in which a backend may store a bound: a number of 8 bytes, high byte
// first.
func EncodeBound(bound oracle.Timestamp) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(bound))
}

// DecodeBound reads what EncodeBound returned; nil is 0, as in a new store. The error matches
// rowstore.ErrCorrupt.
func DecodeBound(stored []byte) (oracle.Timestamp, error) {
	if stored == nil {
		return 0, nil
	}
	if len(stored) == 8 {
		if bound := oracle.Timestamp(binary.BigEndian.Uint64(stored)); bound <= oracle.Max {
			return bound, nil
		}
	}
	return 0, fmt.Errorf("%w: the bound of the timestamps is %q", rowstore.ErrCorrupt, stored)
}
