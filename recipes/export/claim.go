package export

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// The transactions of an exporter: it claims a key, notes what was sent, and leaves the key. Each of them writes the claim cell, so two exporters
// of a key conflict, and the one whose claim is not there any more notes nothing.

// ownLevel is their isolation, whatever the DB's default is. Nothing but the claim cell decides which of them commits, and each of them writes it. Serializable
// would have every item that is put meanwhile end a transaction which has read the items, so that a busy key is never sent.
var ownLevel = percolator.WithIsolation(percolator.SnapshotIsolation)

func parseKey(row string) (string, error) {
	r := keys.Read(row)
	key := r.Text()
	if err := r.End(); err != nil {
		return "", fmt.Errorf("%w: %q: %w", errDamaged, row, err)
	}
	return key, nil
}

// lease is how long a claim lasts.
func (e *exporter) lease() time.Duration { return leaseTimeouts * e.opt.Timeout }

// take claims a key, and reads the first items. If somebody else has the key, it returns how long to wait. If there are no items it
// claims nothing, removes what is left of a claim that has ended, and returns nil: what was committed when it looked has been sent and noted, whoever did that.
//
// The items are those of the snapshot below the claim. Nobody has noted any of them since, because a note writes the claim
// cell too, and so conflicts with this transaction.
func (e *exporter) take(ctx context.Context, key string) (t *turn, wait time.Duration, err error) {
	begun := time.Now()
	err = e.db.Update(ctx, func(tx *percolator.Txn) error {
		t, wait = nil, 0
		c, now, err := e.readClaim(ctx, tx, key)
		if err != nil {
			return err
		}
		if c.until > now {
			wait = c.until.Sub(now)
			if !c.paused(now) {
				wait = min(wait, claimedPause) // the exporter may be done sooner
			}
			wait = max(wait, time.Millisecond)
			return nil
		}
		items, cut, err := e.read(ctx, tx, key, "", e.page)
		if err != nil || len(items) == 0 && c == (claim{}) {
			return err
		}
		if len(items) == 0 {
			// Of a turn that sent all and could not end it so, or was to be followed by a pause.
			return tx.Delete(e.cell(rowOf(key), claimColumn))
		}
		// Who claims the key later begins after this has committed, so its epoch is greater.
		c.epoch, c.until = now, now.Add(e.lease())
		t = &turn{key: key, claim: c, most: e.opt.Batch, at: now, first: items, cut: cut, ended: begun.Add(e.lease())}
		t.spent, t.old = e.times(begun)
		return tx.Set(e.cell(rowOf(key), claimColumn), c.encode())
	}, ownLevel)
	if err != nil {
		return nil, 0, err
	}
	return t, wait, nil
}

// change edits the key's claim, if it is still that of the turn, within a transaction that may do more. A claim that says nothing is
// removed: so keys that have nothing to send leave nothing behind. The next epoch is greater all the same, as it is the time of a later snapshot.
func (e *exporter) change(ctx context.Context, t *turn, f func(tx *percolator.Txn, c *claim, now percolator.Timestamp) error) error {
	begun := time.Now()
	var changed claim
	err := e.db.Update(ctx, func(tx *percolator.Txn) error {
		c, now, err := e.readClaim(ctx, tx, t.key)
		if err != nil {
			return err
		}
		if c.epoch != t.claim.epoch {
			return errLost
		}
		c.until = now.Add(e.lease())
		if err := f(tx, &c, now); err != nil {
			return err
		}
		changed = c
		cell := e.cell(rowOf(t.key), claimColumn)
		return putClaim(tx, cell, &c)
	}, ownLevel)
	if err == nil {
		t.claim, t.ended = changed, begun.Add(e.lease())
	}
	return err
}

// putClaim stores a claim, or removes one that says nothing.
func putClaim(tx *percolator.Txn, cell percolator.Cell, c *claim) error {
	if *c == (claim{}) {
		return tx.Delete(cell)
	}
	return tx.Set(cell, c.encode())
}

func (e *exporter) remove(tx *percolator.Txn, items []stored) error {
	for i := range items {
		if err := tx.Delete(percolator.Cell{Table: e.table, Row: items[i].row, Column: itemColumn}); err != nil {
			return err
		}
	}
	return nil
}

// noteSize counts what the note of a batch writes at most.
type noteSize struct {
	e             *exporter
	limits        percolator.Limits
	cells, bytes  int
	largestLetter int // bytes of the largest dead letter that one of the items makes; 0 without Options.Skip
	longest       int // bytes of a row's key
}

// letterCells are those of a dead letter, beside the cell of its item.
const letterCells = 2

// emptyNote is a note that writes the claim alone.
func (e *exporter) emptyNote(key string) *noteSize {
	n := &noteSize{e: e, limits: e.db.Limits()}
	n.addCell(string(rowOf(key)), claimColumn)
	n.bytes += claimBytes
	return n
}

// cellBytes bounds the bytes that a cell's stored names have.
func (n *noteSize) cellBytes(row, column string) int {
	return len(n.e.table) + 1 + len(row) + len(column)
}

func (n *noteSize) addCell(row, column string) {
	n.cells++
	n.bytes += n.cellBytes(row, column)
	n.longest = max(n.longest, len(row))
}

// add adds an item, and tells whether the note, without a dead letter, is within the limits.
func (n *noteSize) add(item *stored) bool {
	n.addCell(item.row, itemColumn)
	if n.e.opt.Skip {
		n.largestLetter = max(n.largestLetter, n.cellBytes(item.row, deadColumn)+len(item.Payload)+n.cellBytes(item.row, errorColumn)+mostError)
	}
	return n.cells <= n.limits.Cells && n.bytes <= n.limits.Bytes && n.longest <= n.limits.Row
}

// fitsWithLetter tells whether the note is within the limits, whichever of its items is set aside.
func (n *noteSize) fitsWithLetter() bool {
	return n.largestLetter == 0 || n.cells+letterCells <= n.limits.Cells && n.bytes+n.largestLetter <= n.limits.Bytes
}

// note removes what was sent. It renews the claim or, if the turn is over, removes it.
func (e *exporter) note(ctx context.Context, t *turn, sent []stored, over bool) error {
	err := e.change(ctx, t, func(tx *percolator.Txn, c *claim, _ percolator.Timestamp) error {
		if over {
			*c = claim{}
		}
		return e.remove(tx, sent)
	})
	t.left = over && err == nil
	return err
}

// notePause removes what was sent, and has nobody claim the key for a while.
func (e *exporter) notePause(ctx context.Context, t *turn, sent []stored, pause time.Duration) error {
	err := e.change(ctx, t, func(tx *percolator.Txn, c *claim, now percolator.Timestamp) error {
		c.pause(now, pause)
		return e.remove(tx, sent)
	})
	t.left = err == nil
	return err
}

// noteDoubt removes what was sent, and notes that a batch failed at an item that was not alone in it. So whoever sends the key next, after a failure or a
// death too, sends that item alone. It counts no attempt.
func (e *exporter) noteDoubt(ctx context.Context, t *turn, sent []stored, item *stored) error {
	return e.change(ctx, t, func(tx *percolator.Txn, c *claim, _ percolator.Timestamp) error {
		c.doubt(item)
		return e.remove(tx, sent)
	})
}

// noteFailure counts an attempt of an item that was sent alone. dead tells that the item was set aside, because these were
// its attempts. With Options.Skip, an item that has attempts left has nobody claim the key before the next one is due: else each further item of
// a busy key would use up an attempt.
func (e *exporter) noteFailure(ctx context.Context, t *turn, item *stored, cause error) (dead bool, err error) {
	err = e.change(ctx, t, func(tx *percolator.Txn, c *claim, now percolator.Timestamp) error {
		dead = false
		if !c.doubts(item) {
			c.doubt(item)
		}
		c.attempts++
		if !e.opt.Skip {
			return nil
		}
		if int(c.attempts) < e.opt.MaxAttempts {
			c.pause(now, backoff(c.attempts))
			return nil
		}
		c.start, c.index, c.attempts = 0, 0, 0
		dead = true
		if err := e.remove(tx, []stored{*item}); err != nil {
			return err
		}
		return e.bury(tx, item, cause)
	})
	t.left = err == nil && t.claim.epoch == 0
	return dead, err
}

// leavePatience bounds the end of a turn whose context may have ended.
const leavePatience = 5 * time.Second

// leave ends the claim, so that nobody waits for its end, and removes it if nothing is left to be sent. It removes what was taken and is not noted
// yet. It need not succeed.
func (e *exporter) leave(ctx context.Context, t *turn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	_ = e.change(ctx, t, func(tx *percolator.Txn, c *claim, now percolator.Timestamp) error {
		c.until = now
		if t.done {
			*c = claim{}
		}
		return e.remove(tx, t.taken)
	})
}
