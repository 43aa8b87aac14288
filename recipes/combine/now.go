package combine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

const (
	// A batch that has been under way for so long keeps no others from starting. A read of one of several keys that takes so long ends its batch: each key is
	// added by itself then. It is far longer than usual.
	overdue = time.Second
	// The commit of a batch of several keys ends after this, which is longer than the store's patience mostly is (percolator.WithStorePatience): so whoever is in it does not wait
	// for as long as a server of somebody else hangs.
	overdueCommit = 30 * time.Second
)

// addition is one call of AddNow. It holds the delta encoded: a caller that has left may change its value.
type addition[T any] struct {
	key   string
	delta []byte
	lane  *lane[T]      // where it waits, or has waited; guarded by batches.mu
	batch *batch        // nil while the call waits; guarded by batches.mu
	left  bool          // its caller waits no longer; guarded by batches.mu
	done  chan struct{} // closed when err is set
	err   error
}

// AddNow merges delta into the value of key, in a transaction that it shares with other calls of this process. Where several calls share them, the next
// transaction waits a millisecond at most for those who were in the last one. When it returns nil,
// every transaction that begins afterwards reads the value with delta. Errors are those of Add and of Update. After one that matches
// percolator.ErrUndetermined it is not known whether delta was added; it is one where ctx ends while the transaction
// commits. After any other error it was not added. A value that cannot be added does not harm the other calls, and neither does a server that is away or hangs those for rows of
// others, but for a second or two: each value is added by itself, and while one hangs, further calls for it wait apart. If the fault begins while a transaction of several values commits, or is one of writes alone,
// those in that transaction wait for the store's patience, or for 30 s, and may get percolator.ErrUndetermined. delta is not used any more when AddNow
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
	l := b.laneOf(a.key)
	l.put(a)
	c.start(l)
	b.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return b.leave(a, ctx.Err())
	}
}

// addTogether adds in one transaction. If one of the values cannot be added, or all of them are too much for one transaction, each half is
// added by itself. If something else is the matter with one of several keys, and certainly nothing was added, each key is put apart.
func (c *Combiner[T]) addTogether(ctx context.Context, l *lane[T], all []*addition[T]) {
	var order []string
	byKey := make(map[string][]*addition[T])
	for _, a := range all {
		if byKey[a.key] == nil {
			order = append(order, a.key)
		}
		byKey[a.key] = append(byKey[a.key], a)
	}
	within, end := context.WithCancel(ctx)
	defer end()
	look, commits := c.look, func() {}
	if len(order) > 1 {
		limit := time.AfterFunc(overdueCommit, end)
		defer limit.Stop()
		look, commits = c.lookSoon, func() { limit.Reset(overdueCommit) }
	}
	begun := time.Now()
	refused := false // a value, and so no fault of the store's
	err := c.db.Update(within, func(tx *percolator.Txn) error {
		commits() // each read has a limit of its own
		refused = false
		for _, key := range order {
			deltas, err := c.deltas(within, byKey[key])
			var found found
			if err == nil {
				found, err = look(within, tx, key)
			}
			if err == nil {
				err = c.addTo(within, tx, key, found, deltas)
			}
			commits()
			if err != nil {
				var v *valueError
				refused = errors.As(err, &v) || errors.Is(err, percolator.ErrInvalid) || errors.Is(err, percolator.ErrTooLarge)
				return err
			}
		}
		return nil
	})
	if errors.Is(err, percolator.ErrUndetermined) && within.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: the commit took longer than %v", percolator.ErrUndetermined, overdueCommit) // nobody has cancelled it
	}
	switch {
	case refused && len(all) > 1:
		c.addTogether(ctx, l, all[:len(all)/2])
		c.addTogether(ctx, l, all[len(all)/2:])
	case err != nil && len(order) > 1 && ctx.Err() == nil && !errors.Is(err, percolator.ErrUndetermined):
		c.putApart(order, byKey)
	default:
		c.batches.note(l, len(all), begun) // before its callers can call again
		c.batches.finish(all, err)
	}
}

// lookSoon is look for one of several keys: it does not wait for long.
func (c *Combiner[T]) lookSoon(ctx context.Context, tx *percolator.Txn, key string) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, overdue)
	defer cancel()
	return c.look(ctx, tx, key)
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
