package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// ErrClaimLost is matched by the errors of a Claim that is not the key's any more: it ended, and then somebody else claimed the key or made
// the answer, or it ended Options.Keep ago and was removed.
var ErrClaimLost = errors.New("once: the claim was lost")

// errOlder is the error of a transaction that is used for a claim that it cannot see.
var errOlder = fmt.Errorf("%w: the transaction must begin after Claim has returned. This one is older, as that of an observer's run is, and does not see the claim; "+
	"nothing is lost: finish it in another transaction, with Update", percolator.ErrInvalid)

// Claim is the right to act for a key until its lease ends. Its methods may be called concurrently.
type Claim[T any] struct {
	keys      *Keys[T]
	key       string
	epoch     percolator.Timestamp
	committed percolator.Timestamp // snapshots from then on have the claim
}

// Key is the key that was claimed.
func (c *Claim[T]) Key() string { return c.key }

// Epoch is greater than that of every earlier Claim of the key.
func (c *Claim[T]) Epoch() uint64 { return uint64(c.epoch) }

// Claim claims a key for the time of lease, by the oracle's time. Exactly one of these is what it returns:
//
//   - a Claim, if there is no answer and nobody has claimed the key, or the claim has ended;
//   - the answer, and a nil Claim;
//   - an error: one that matches ErrClaimed and is a ClaimedError, if somebody has claimed the key; those of Update and of the
//     codec. A lease below a millisecond is percolator.ErrInvalid, and so is the empty key.
//
// After percolator.ErrUndetermined the key may be claimed, by nobody who knows, until the lease ends.
//
// Claim may take a quarter of the lease, a second at most, to remove what has ended of other keys.
//
// Claim is a transaction of its own. One that has begun before, in which it is called, does not see the claim, and cannot finish it.
func (k *Keys[T]) Claim(ctx context.Context, key string, lease time.Duration) (claim *Claim[T], answer T, err error) {
	var none T
	if lease < time.Millisecond {
		return nil, none, fmt.Errorf("once: Claim: %w: the lease is %v; it must be at least 1 ms", percolator.ErrInvalid, lease)
	}
	if key == "" {
		return nil, none, errNoKey
	}
	committed, err := k.db.UpdateAt(ctx, func(tx *percolator.Txn) error {
		claim, answer = nil, none
		now, r, err := k.read(ctx, tx, key)
		switch {
		case err != nil:
			return k.failed("claiming", key, err)
		case r.until > now && r.state == stateDone:
			answer, err = k.decode(ctx, key, &r)
			return err
		case r.until > now:
			return &ClaimedError{Key: key, Until: r.until.Time()}
		}
		// Whoever claims the key later begins after this has committed, so its timestamp is greater.
		if err := k.write(tx, key, record{state: stateClaimed, epoch: now, until: now.Add(lease)}); err != nil {
			return k.failed("claiming", key, err)
		}
		claim = &Claim[T]{keys: k, key: key, epoch: now}
		k.lookSometimes(ctx, tx, now, key, min(looksFor, lease/4)) // the lease has begun
		return nil
	}, ownLevel)
	if err != nil {
		return nil, none, err
	}
	if claim != nil {
		claim.committed = committed
	}
	return claim, answer, nil
}

// Finish stores the answer, as a part of tx. If tx commits, the claim was still the key's, whatever its lease says, and the key is done. Errors:
// ErrClaimLost; those of tx and of the codec. If somebody claims the key before tx commits, tx conflicts; run again, it learns
// that the claim was lost. Finish may be called again after that, and after percolator.ErrUndetermined: if it was done, the
// error matches ErrClaimLost, and Keys.Claim returns the answer.
//
// tx must have begun after Claim has returned: a transaction of its own is best. The snapshot of an older one, such as that of the run of an
// observer which claims, has no claim; that is percolator.ErrInvalid. It says nothing of the claim, which can be finished still.
func (c *Claim[T]) Finish(ctx context.Context, tx *percolator.Txn, answer T) error {
	if _, err := c.own(ctx, tx); err != nil {
		return c.keys.failed("finishing", c.key, err)
	}
	return c.keys.store(ctx, tx, c.key, answer, c.epoch)
}

// Renew makes the claim last for the time of lease from now on. A claim that has ended is renewed too, if it was not lost. Errors: ErrClaimLost; those of Update; percolator.ErrInvalid for a lease below a millisecond.
func (c *Claim[T]) Renew(ctx context.Context, lease time.Duration) error {
	if lease < time.Millisecond {
		return fmt.Errorf("once: Renew: %w: the lease is %v; it must be at least 1 ms", percolator.ErrInvalid, lease)
	}
	err := c.keys.db.Update(ctx, func(tx *percolator.Txn) error {
		now, err := c.own(ctx, tx)
		if err != nil {
			return err
		}
		return c.keys.write(tx, c.key, record{state: stateClaimed, epoch: c.epoch, until: now.Add(lease)})
	}, ownLevel)
	if err != nil {
		return c.keys.failed("renewing the claim of", c.key, err)
	}
	return nil
}

// Release ends the claim without an answer, so that somebody else may claim the key at once. Errors: ErrClaimLost; those of
// Update.
func (c *Claim[T]) Release(ctx context.Context) error {
	err := c.keys.db.Update(ctx, func(tx *percolator.Txn) error {
		if _, err := c.own(ctx, tx); err != nil {
			return err
		}
		return tx.Delete(c.keys.cell(c.key))
	}, ownLevel)
	if err != nil {
		return c.keys.failed("releasing", c.key, err)
	}
	return nil
}

// own returns an error unless the claim is the key's at the snapshot of tx.
func (c *Claim[T]) own(ctx context.Context, tx *percolator.Txn) (now percolator.Timestamp, err error) {
	now, r, err := c.keys.read(ctx, tx, c.key)
	switch {
	case err != nil:
	case now < c.committed:
		// Its snapshot is from before the claim, so it cannot tell whether that was lost.
		err = errOlder
	case r.state != stateClaimed || r.epoch != c.epoch:
		err = ErrClaimLost
	}
	return now, err
}
