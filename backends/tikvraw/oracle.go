package tikvraw

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pdOracle draws from PD's timestamp oracle, whose timestamps have the same layout.
// PD's client merges what waits into one request by itself.
type pdOracle struct {
	s  *Store
	pd tsoClient
	// last is the greatest timestamp that any Draw returned.
	last atomic.Uint64
	// many keeps a Draw of several timestamps apart from others of this process.
	many sync.RWMutex
}

// maxDraw is the greatest number of timestamps drawn at once: what PD's client puts
// into one request.
const maxDraw = 10_000

// tsoClient is the part of PD's client that an oracle needs.
type tsoClient interface {
	GetTSAsync(ctx context.Context) pd.TSFuture
}

// Draw implements oracle.Oracle.
func (o *pdOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("tikvraw: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	if n > maxDraw {
		return 0, fmt.Errorf("tikvraw: draw of %d timestamps: %w: PD hands out at most %d at once", n, rowstore.ErrTooLarge, maxDraw)
	}
	ctx, end, err := o.s.begin(ctx, "draw")
	if err != nil {
		return 0, orOracleClosed(err)
	}
	defer end()
	// A lost timestamp does no harm, so a failed draw is repeated: while PD elects a
	// leader, if others drew in between, and if PD's clock went back and may catch up.
	floor := oracle.Timestamp(o.last.Load())
	last := time.Now().Add(o.s.opts.Patience)
	for attempt := 0; ; attempt++ {
		first, run, err := o.draw(ctx, n)
		switch {
		case err != nil:
			err = pdFailed(ctx, err)
		case first <= floor:
			err = fmt.Errorf("PD handed out the timestamp %d after %d: its clock went back", uint64(first), uint64(floor))
		case !run:
			err = errBroken
		default:
			o.note(first + oracle.Timestamp(n) - 1)
			return first, nil
		}
		wait := time.Millisecond << min(attempt, 6)
		if errors.Is(err, errBroken) {
			wait = 0 // the next try may succeed at once
		}
		if ctx.Err() != nil || time.Now().After(last) || contexts.Sleep(ctx, wait) != nil {
			return 0, o.s.gate.Fail("draw", explain(ctx, err))
		}
	}
}

var errBroken = errors.New("other clients of PD drew timestamps in between, each time")

// draw asks for n timestamps, which PD's client hands out one by one. They follow each
// other unless another client of PD, or its clock, came between: run says that.
func (o *pdOracle) draw(ctx context.Context, n int) (first oracle.Timestamp, run bool, err error) {
	// Nearly all draws are of one timestamp.
	if n == 1 {
		o.many.RLock()
		defer o.many.RUnlock()
	} else {
		o.many.Lock()
		defer o.many.Unlock()
	}
	futures := make([]pd.TSFuture, n)
	for i := range futures {
		futures[i] = o.pd.GetTSAsync(ctx)
	}
	run = true
	var last oracle.Timestamp
	var errs []error
	for i, f := range futures {
		physical, logical, err := f.Wait()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ts := oracle.Timestamp(physical)<<oracle.LogicalBits + oracle.Timestamp(logical)
		if i == 0 {
			first = ts
		} else {
			run = run && ts == last+1
		}
		last = ts
	}
	return first, run, errors.Join(errs...)
}

func (o *pdOracle) note(ts oracle.Timestamp) {
	for {
		last := o.last.Load()
		if last >= uint64(ts) || o.last.CompareAndSwap(last, uint64(ts)) {
			return
		}
	}
}

// current is an oracle whose state lies in the store, and may have another form once the store has another format.
type current struct {
	s     *Store
	inner oracle.Oracle
}

// Draw implements oracle.Oracle.
func (c current) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if err := c.s.outdated.Load(); err != nil {
		return 0, *err
	}
	return c.inner.Draw(ctx, n)
}

// oracleKey is the key of the store that holds the last timestamp, where the store is its
// own oracle.
type oracleKey struct {
	raw raw
	key []byte
}

// Load implements kit.Register.
func (k oracleKey) Load(ctx context.Context) ([]byte, error) { return k.raw.get(ctx, k.key) }

// Swap implements kit.Register.
func (k oracleKey) Swap(ctx context.Context, old, next []byte) (met []byte, swapped bool, err error) {
	return k.raw.cas(ctx, k.key, old, next)
}

// orOracleClosed makes an error that says that the store is closed say so of its oracle too.
func orOracleClosed(err error) error {
	if errors.Is(err, rowstore.ErrClosed) && !errors.Is(err, oracle.ErrClosed) {
		return fmt.Errorf("%w: %w", oracle.ErrClosed, err)
	}
	return err
}
