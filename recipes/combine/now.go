package combine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

const (
	// Batches under way at once in a process. While one commits, the next one grows: so the busier the store, the more calls share
	// a transaction.
	mostBatches = 1
	// Calls of AddNow that share a transaction at most.
	batchMost = 1024
	// The next batch waits a gatherPart of the time that the last one took, and gatherMost at most, for those who were in the last one.
	gatherPart = 8
	gatherMost = time.Millisecond
)

// batches are the calls of AddNow of one process.
type batches[T any] struct {
	mu      sync.Mutex
	waiting []*addition[T]
	running int // goroutines that take from waiting; each ends when nothing waits
	// The last batch: how many calls there were then, how long it took, and when it ended.
	calls int
	took  time.Duration
	ended time.Time
	// A goroutine that gathers the next one waits for so many calls, 0 for none, or for full to be closed.
	wanted int
	full   chan struct{}
}

// addition is one call of AddNow. It holds the delta encoded: a caller that has left may change its value.
type addition[T any] struct {
	key   string
	delta []byte
	batch *batch        // nil while the call waits; guarded by batches.mu
	left  bool          // its caller waits no longer; guarded by batches.mu
	done  chan struct{} // closed when err is set
	err   error
}

// batch is a transaction for several calls. Its context ends when none of their callers waits any more.
type batch struct {
	callers int // that wait; guarded by batches.mu
	cancel  context.CancelFunc
}

// gone takes a caller off who waits no longer. batches.mu must be held.
func (b *batch) gone() {
	if b.callers--; b.callers == 0 {
		b.cancel()
	}
}

// AddNow merges delta into the value of key, in a transaction that it shares with other calls of this process. Where several calls share them, the next
// transaction waits a millisecond at most for those who were in the last one. When it returns nil,
// every transaction that begins afterwards reads the value with delta. Errors are those of Add and of Update. After one that matches
// percolator.ErrUndetermined it is not known whether delta was added; it is one where ctx ends while the transaction
// commits. After any other error it was not added. A value that cannot be added does not harm the other calls. delta is not used any more when AddNow
// has returned. The codec gets the caller's ctx only when it encodes delta, for the cell of the value's base; in the shared transaction it gets one without values.
func (c *Combiner[T]) AddNow(ctx context.Context, key string, delta T) error {
	a, err := c.addition(ctx, key, delta)
	if err == nil {
		err = c.addNow(ctx, a)
	}
	if err != nil {
		return fmt.Errorf("combine: adding to %q of table %q: %w", key, c.table, err)
	}
	return nil
}

// addition makes the addition of a call.
func (c *Combiner[T]) addition(ctx context.Context, key string, delta T) (*addition[T], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := c.encode(ctx, c.baseCell(key), 0, delta)
	if err != nil {
		return nil, err
	}
	return &addition[T]{key: key, delta: b, done: make(chan struct{})}, nil
}

// addNow waits until an addition is committed.
func (c *Combiner[T]) addNow(ctx context.Context, a *addition[T]) error {
	b := &c.batches
	b.mu.Lock()
	b.waiting = append(b.waiting, a)
	if b.wanted > 0 && len(b.waiting) >= b.wanted {
		b.wanted = 0
		close(b.full)
	}
	start := b.running < mostBatches
	if start {
		b.running++
	}
	b.mu.Unlock()
	if start {
		// It serves other callers too, perhaps for hours: so it keeps nothing of this one's context, such as its trace.
		go c.addWaiting()
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return b.leave(a, ctx.Err())
	}
}

// leave is for a caller that waits no longer. It returns what the caller knows then.
func (b *batches[T]) leave(a *addition[T], cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.batch == nil {
		b.waiting = slices.DeleteFunc(b.waiting, func(other *addition[T]) bool { return other == a })
		return cause
	}
	select {
	case <-a.done:
		return a.err
	default:
	}
	a.left = true
	a.batch.gone()
	return fmt.Errorf("%w: %w", percolator.ErrUndetermined, cause)
}

// gather waits until as many calls wait as there were lately, but not for long. Whoever was in the last batch often calls again as soon as it is
// committed. If the next one began before they can, two halves of the callers would take turns, in twice as many transactions. It does not wait if
// no call does.
func (b *batches[T]) gather() {
	b.mu.Lock()
	wait := min(b.took/gatherPart, gatherMost) - time.Since(b.ended)
	if b.calls < 2 || len(b.waiting) == 0 || len(b.waiting) >= b.calls || wait <= 0 {
		b.mu.Unlock()
		return
	}
	full := make(chan struct{})
	b.wanted, b.full = b.calls, full
	b.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
		b.mu.Lock()
		b.wanted = 0
		b.mu.Unlock()
	}
}

// note remembers a batch that has ended: what it took, and how many calls there were with those that wait.
func (b *batches[T]) note(calls int, begun time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls, b.ended = min(calls+len(b.waiting), batchMost), time.Now()
	b.took = b.ended.Sub(begun)
}

// addWaiting adds what waits, until nothing does. Each batch ends when its callers have gone.
func (c *Combiner[T]) addWaiting() {
	b := &c.batches
	for {
		b.gather()
		within, cancel := context.WithCancel(context.Background())
		b.mu.Lock()
		taken := slices.Clone(b.waiting[:min(len(b.waiting), batchMost)])
		b.waiting = slices.Delete(b.waiting, 0, len(taken))
		if len(taken) == 0 {
			b.running--
		}
		for _, a := range taken {
			a.batch = &batch{callers: len(taken), cancel: cancel}
			if a != taken[0] {
				a.batch = taken[0].batch
			}
		}
		b.mu.Unlock()
		if len(taken) > 0 {
			c.addTogether(within, taken)
		}
		cancel()
		if len(taken) == 0 {
			return
		}
	}
}

// addTogether adds in one transaction. If one of the values cannot be added, or all of them are too much for one transaction, each half is
// added by itself.
func (c *Combiner[T]) addTogether(ctx context.Context, all []*addition[T]) {
	var order []string
	byKey := make(map[string][]*addition[T])
	for _, a := range all {
		if byKey[a.key] == nil {
			order = append(order, a.key)
		}
		byKey[a.key] = append(byKey[a.key], a)
	}
	begun := time.Now()
	refused := false // a value, and so no fault of the store's
	err := c.db.Update(ctx, func(tx *percolator.Txn) error {
		refused = false
		for _, key := range order {
			deltas, err := c.deltas(ctx, byKey[key])
			if err == nil {
				err = c.add(ctx, tx, key, deltas...)
			}
			if err != nil {
				var v *valueError
				refused = errors.As(err, &v) || errors.Is(err, percolator.ErrInvalid) || errors.Is(err, percolator.ErrTooLarge)
				return err
			}
		}
		return nil
	})
	if refused && len(all) > 1 {
		c.addTogether(ctx, all[:len(all)/2])
		c.addTogether(ctx, all[len(all)/2:])
		return
	}
	c.batches.note(len(all), begun) // before its callers can call again
	c.batches.finish(all, err)
}

// finish tells the callers of a batch, or of a part of one, what became of it.
func (b *batches[T]) finish(all []*addition[T], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range all {
		a.err = err
		close(a.done)
		if !a.left {
			a.batch.gone()
		}
	}
}

// deltas decodes what is to be added to one value. Each attempt has values of its own, so merging may change them, and bytes of its own, since
// they belong to the codec that gets them.
func (c *Combiner[T]) deltas(ctx context.Context, all []*addition[T]) ([]T, error) {
	deltas := make([]T, len(all))
	for i, a := range all {
		var err error
		if deltas[i], err = c.decode(ctx, c.baseCell(a.key), slices.Clone(a.delta)); err != nil {
			return nil, err
		}
	}
	return deltas, nil
}
