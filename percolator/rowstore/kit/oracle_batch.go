package kit

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// maxBatch limits what one draw of a BatchOracle asks for, so that a crowd does not
// jump far ahead of the clock, and an oracle that limits n is not asked for more
// than its callers would.
const maxBatch = 1 << oracle.LogicalBits

// BatchOracle is an oracle over a distant one: requests that wait at the same moment share
// one draw from it. A draw is sent as soon as none is under way, with every request
// that is waiting then. So a lone request is never delayed, there is no timer, and each
// timestamp is drawn after it was asked for.
//
// All methods may be called concurrently.
type BatchOracle struct {
	inner  oracle.Oracle
	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // of the goroutine that sends

	mu      sync.Mutex
	closed  bool
	sending bool
	waiting []*request
	gone    int // of waiting: those whose callers went away
}

// request is one caller's, from Draw until it was answered or went away.
type request struct {
	n     int
	first oracle.Timestamp
	err   error
	done  chan struct{}
	draw  *draw // once it was sent; guarded by BatchOracle.mu
	gone  bool  // its caller's context ended; guarded by BatchOracle.mu
}

// draw is one call of the inner oracle.
type draw struct {
	members int // those not gone; guarded by BatchOracle.mu
	cancel  context.CancelFunc
}

// NewBatchOracle returns an oracle that merges requests to inner. Close the BatchOracle before you
// close inner.
func NewBatchOracle(inner oracle.Oracle) *BatchOracle {
	b := &BatchOracle{inner: inner}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Draw implements oracle.Oracle. A caller whose context ends returns at once, and the
// others that share its draw do not notice; the draw's own context ends when all
// of them are gone. An error of the inner oracle goes to all that shared the draw.
// It returns oracle.ErrClosed after Close.
func (b *BatchOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("kit: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r := &request{n: n, done: make(chan struct{})}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, oracle.ErrClosed
	}
	b.waiting = append(b.waiting, r)
	if !b.sending {
		b.sending = true
		b.wg.Add(1)
		go b.send()
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.first, r.err
	case <-ctx.Done():
		b.leave(r)
		return 0, ctx.Err()
	}
}

// leave takes the request of a caller that went away out of the queue, or out of
// the draw that it is in.
func (b *BatchOracle) leave(r *request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.gone = true
	if r.draw != nil {
		if r.draw.members--; r.draw.members == 0 {
			r.draw.cancel()
		}
		return
	}
	// A draw may hang for long. Requests whose callers went away are never more than
	// half of the queue.
	if b.gone++; 2*b.gone > len(b.waiting) {
		b.waiting, b.gone = slices.DeleteFunc(b.waiting, func(r *request) bool { return r.gone }), 0
	}
}

// send draws for the requests that wait until there are none. At most one such
// goroutine runs, and none while no request waits.
func (b *BatchOracle) send() {
	defer b.wg.Done()
	for {
		ctx, cancel := context.WithCancel(b.ctx)
		d := &draw{cancel: cancel}
		batch, sum := b.take(d)
		if len(batch) == 0 {
			cancel()
			return
		}
		first, err := b.inner.Draw(ctx, sum)
		// Only Close ends the context while somebody waits, and a timestamp that
		// arrives after it is not handed out.
		if b.ctx.Err() != nil {
			err = oracle.ErrClosed
		}
		cancel()
		for _, r := range batch {
			if err != nil {
				r.err = err
			} else {
				r.first = first
				first += oracle.Timestamp(r.n)
			}
			close(r.done)
		}
	}
}

// take removes the requests of the next draw from the queue. With none left it
// ends the sending.
func (b *BatchOracle) take(d *draw) (batch []*request, sum int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := b.waiting
	for len(rest) > 0 {
		r := rest[0]
		if !r.gone {
			if len(batch) > 0 && r.n > maxBatch-sum {
				break
			}
			r.draw = d
			d.members++
			sum += r.n
			batch = append(batch, r)
		}
		if r.gone {
			b.gone--
		}
		rest[0] = nil
		rest = rest[1:]
	}
	if len(rest) == 0 {
		rest = nil
	}
	b.waiting = rest
	if len(batch) == 0 {
		b.sending = false
	}
	return batch, sum
}

// Close makes every Draw, those under way too, return oracle.ErrClosed, and returns when
// no call of the inner oracle is left. It does not close the inner oracle. A
// second Close does nothing and returns nil.
func (b *BatchOracle) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.wg.Wait()
	return nil
}
