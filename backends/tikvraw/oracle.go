package tikvraw

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pd "github.com/tikv/pd/client"

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
		return 0, fmt.Errorf("tikvraw: draw of %d timestamps: %w: PD hands out %d in a row", n, rowstore.ErrTooLarge, maxDraw)
	}
	ctx, end, err := o.s.begin(ctx, "draw")
	if err != nil {
		return 0, err
	}
	defer end()
	// A timestamp that is lost harms nobody, so what fails is asked for again: while PD
	// elects a leader, when others drew in between, and when its clock went back and
	// may catch up.
	floor := oracle.Timestamp(o.last.Load())
	last := time.Now().Add(o.s.opts.Patience)
	for attempt := 0; ; attempt++ {
		first, run, err := o.draw(ctx, n)
		switch {
		case err != nil:
			err = pdFailed(ctx, err)
		case first <= floor:
			err = fmt.Errorf("PD handed out %d after %d: its clock went back", uint64(first), uint64(floor))
		case !run:
			err = errBroken
		default:
			o.note(first + oracle.Timestamp(n) - 1)
			return first, nil
		}
		wait := time.Millisecond << min(attempt, 6)
		if errors.Is(err, errBroken) {
			wait = 0 // the next row is as likely to be whole
		}
		if ctx.Err() != nil || time.Now().After(last) || sleep(ctx, wait) != nil {
			return 0, o.s.fail("draw", explain(ctx, err))
		}
	}
}

var errBroken = errors.New("others drew in between, again and again")

// draw asks for n timestamps, which PD's client hands out one by one. They follow each
// other unless another client of PD, or its clock, came between: run says that.
func (o *pdOracle) draw(ctx context.Context, n int) (first oracle.Timestamp, run bool, err error) {
	// Hardly anybody draws more than one.
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

// storeOracle keeps the last timestamp in a key of the store, which each draw moves
// on by a swap. It is shared by oracle.Batch, so that one process has one draw under
// way at most.
type storeOracle struct {
	s   *Store
	key []byte
	// known is the key's value as it was met last; only Draw uses it.
	known []byte
}

// Draw implements oracle.Oracle. It is not called concurrently.
func (o *storeOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	fresh := false
	for attempt := 0; ; attempt++ {
		if attempt > 2 {
			if err := sleep(ctx, time.Millisecond<<min(attempt, 5)); err != nil {
				return 0, err
			}
		}
		if o.known == nil && !fresh {
			raw, err := o.s.raw.get(ctx, o.key)
			if err != nil {
				return 0, err
			}
			o.known, fresh = raw, true
		}
		var last oracle.Timestamp
		if o.known != nil {
			if len(o.known) != 16 {
				return 0, fmt.Errorf("%w: the oracle's key %q", ErrCorrupt, o.key)
			}
			last = oracle.Timestamp(binary.BigEndian.Uint64(o.known))
		}
		first := max(last+1, oracle.FromTime(o.s.opts.clock()))
		top := first + oracle.Timestamp(n) - 1
		if top > oracle.Max || top < first {
			return 0, errors.New("the greatest timestamp is reached")
		}
		// The tag tells two processes apart that draw the same at once.
		next := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(top)), newID())
		met, swapped, err := o.s.raw.cas(ctx, o.key, o.known, next)
		switch {
		case errors.Is(err, rowstore.ErrAmbiguous) && ctx.Err() == nil:
			// Drawn or not: nobody else has these timestamps, nor does this caller.
			o.known, fresh = nil, false
		case err != nil:
			o.known = nil
			return 0, err
		case swapped || bytes.Equal(met, next):
			o.known = next
			return first, nil
		default:
			o.known, fresh = met, true
		}
	}
}

// guardedOracle is a batched oracle that says ErrClosed as the store does.
type guardedOracle struct {
	s     *Store
	batch *oracle.Batch
}

// Draw implements oracle.Oracle.
func (o *guardedOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("tikvraw: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	ctx, end, err := o.s.begin(ctx, "draw")
	if err != nil {
		return 0, err
	}
	defer end()
	ts, err := o.batch.Draw(ctx, n)
	return ts, o.s.fail("draw", err)
}
