package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// txnState is what one view of the primary's row says about a transaction.
type txnState struct {
	committed Timestamp  // the commit timestamp, if not 0
	aborted   bool       // not committed, for good
	lock      *lockValue // the primary's lock, while undecided and there
}

func (s *txnState) undecided() bool { return s.committed == 0 && !s.aborted }

func statusRead(start Timestamp, primary Cell) rowstore.RowRead {
	return rowstore.RowRead{Table: primary.Table, Row: primary.Row, Picks: []rowstore.Pick{
		{Family: rowstore.Lock, Column: primary.Column, From: start, To: start, Limit: 1},
		// All of them: the newest may be another's, above the one that counts.
		{Family: rowstore.Write, Column: primary.Column, From: start, To: oracle.Max},
		{Family: rowstore.Rollback, Column: primary.Column, From: start, To: oracle.Max, Limit: 1},
	}}
}

// judge applies the rules of a transaction's status, in their order.
func judge(row *rowstore.Row, start Timestamp, primary Cell) (txnState, error) {
	writes := row.All(rowstore.Write, primary.Column)
	for i := range writes {
		w, err := decodeWrite(writes[i].Value)
		if err != nil {
			return txnState{}, err
		}
		if w.start == start {
			return txnState{committed: writes[i].TS}, nil
		}
	}
	if v := row.At(rowstore.Lock, primary.Column, start); v != nil {
		l, err := decodeLock(v.Value)
		if err != nil {
			return txnState{}, err
		}
		return txnState{lock: &l}, nil
	}
	if len(writes) > 0 || row.Newest(rowstore.Rollback, primary.Column) != nil {
		return txnState{aborted: true}, nil
	}
	return txnState{}, nil
}

// status reads the status of a transaction.
func (db *DB) status(ctx context.Context, start Timestamp, primary Cell) (txnState, error) {
	rows, err := db.readRows(ctx, []rowstore.RowRead{statusRead(start, primary)})
	if err != nil {
		return txnState{}, fmt.Errorf("reading the status of transaction %d: %w", uint64(start), err)
	}
	return judge(&rows[0], start, primary)
}

// living says what resolveLock does about a transaction whose owner lives.
type living bool

const (
	respectLiving  living = true
	overrideLiving living = false // below the safe point nobody may commit any more
)

// resolveLock deals with another transaction's lock on cell: it rolls the cell
// forward or back when the transaction is decided, and decides it when its owner
// is dead. settled is false when the owner lives, and nothing was done.
func (db *DB) resolveLock(ctx context.Context, cell Cell, start Timestamp, l *lockValue, mode living) (settled bool, err error) {
	db.count.locksMet.Add(1)
	for attempt := 0; ; attempt++ {
		state, alive, err := db.inspect(ctx, start, l, mode)
		switch {
		case err != nil:
			return false, fmt.Errorf("resolving a lock on %v: %w", cell.public(), err)
		case state.committed != 0:
			return true, db.rollForward(ctx, cell, start, state.committed, l)
		case state.aborted:
			return true, db.rollBack(ctx, cell, start, l)
		case alive:
			return false, nil
		}
		// Undecided and dead. The primary goes first, whichever cell was met: once
		// a secondary is gone, a commit of the primary would be torn.
		decided, err := db.rollBackPrimary(ctx, start, l.primary, state.lock)
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return false, fmt.Errorf("rolling back transaction %d: %w", uint64(start), err)
		}
		if decided {
			if cell == l.primary {
				return true, nil
			}
			return true, db.rollBack(ctx, cell, start, l)
		}
		if err == nil {
			continue // somebody was faster: what they did can be seen now
		}
		if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
			return false, fmt.Errorf("resolving a lock on %v: %w", cell.public(), err)
		}
	}
}

// inspect reads the status of the transaction that a lock belongs to, and whether
// its owner lives: its session is valid and the expiry on the primary's lock (on
// the met lock while the primary has none) has not passed.
func (db *DB) inspect(ctx context.Context, start Timestamp, met *lockValue, mode living) (state txnState, alive bool, err error) {
	reads := []rowstore.RowRead{statusRead(start, met.primary), sessionRead(met.session)}
	if mode == overrideLiving {
		reads = reads[:1]
	}
	rows, err := db.readRows(ctx, reads)
	if err != nil {
		return txnState{}, false, err
	}
	state, err = judge(&rows[0], start, met.primary)
	if err != nil || !state.undecided() || mode == overrideLiving {
		return state, false, err
	}
	now, err := db.draw(ctx)
	if err != nil {
		return txnState{}, false, err
	}
	l := met
	if state.lock != nil {
		l = state.lock
	}
	switch {
	case !sessionValid(&rows[1], now):
		db.count.sessionGone.Add(1)
	case l.expiry < now:
		db.count.expired.Add(1)
	default:
		return state, true, nil
	}
	return state, false, nil
}

// rollBackPrimary decides that an undecided transaction is not committed: it rolls
// back the primary's lock, or fences the primary where there is none. decided is
// false when that did not hold any more.
func (db *DB) rollBackPrimary(ctx context.Context, start Timestamp, primary Cell, lock *lockValue) (decided bool, err error) {
	m := fence(start, primary)
	if lock != nil {
		m = rowstore.Mutation{
			Table: primary.Table, Row: primary.Row,
			Conditions: []rowstore.Condition{rowstore.Present(primary.Column, start)},
			Edits: append(rollBackEdits(nil, primary.Column, start, lock.long, lock.notify),
				rowstore.Put(rowstore.Rollback, primary.Column, start, nil)),
		}
	}
	out, err := db.applyOne(ctx, m)
	if err != nil {
		return false, err
	}
	if out.Applied && lock != nil {
		db.count.rolledBack.Add(1)
	}
	return out.Applied, nil
}

// fence puts a mark on a primary that has no lock, so that a prewrite under way
// can never take effect.
func fence(start Timestamp, primary Cell) rowstore.Mutation {
	return rowstore.Mutation{
		Table: primary.Table, Row: primary.Row,
		Conditions: []rowstore.Condition{
			rowstore.AbsentAt(primary.Column, start),
			rowstore.Absent(rowstore.Write, primary.Column, start),
		},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Rollback, primary.Column, start, nil)},
	}
}

func rollBackEdits(edits []rowstore.Edit, column string, start Timestamp, long, notify bool) []rowstore.Edit {
	edits = append(edits, rowstore.Delete(rowstore.Lock, column, start))
	if long {
		edits = append(edits, rowstore.Delete(rowstore.Data, column, start))
	}
	if notify {
		edits = append(edits, rowstore.Delete(rowstore.Notify, column, start))
	}
	return edits
}

// commitEdits turns a lock into what it stands for.
func commitEdits(edits []rowstore.Edit, column string, start, commit Timestamp, k kind, value []byte, long, notify bool) []rowstore.Edit {
	edits = append(edits, rowstore.Delete(rowstore.Lock, column, start))
	if k == kindLock {
		// The mark is what makes older writers of the cell fail.
		return append(edits, rowstore.Put(rowstore.Rollback, column, commit, nil))
	}
	w := writeValue{kind: k, long: long, start: start, value: value}
	edits = append(edits, rowstore.Put(rowstore.Write, column, commit, w.encode()))
	if notify {
		edits = append(edits,
			rowstore.Delete(rowstore.Notify, column, start),
			rowstore.Put(rowstore.Notify, column, commit, strongValue))
	}
	return edits
}

// rollForward finishes a cell of a committed transaction. That the lock is gone
// already is fine: somebody else did it.
func (db *DB) rollForward(ctx context.Context, cell Cell, start, commit Timestamp, l *lockValue) error {
	out, err := db.applyOne(ctx, rowstore.Mutation{
		Table: cell.Table, Row: cell.Row,
		Conditions: []rowstore.Condition{rowstore.Present(cell.Column, start)},
		Edits:      commitEdits(nil, cell.Column, start, commit, l.kind, l.value, l.long, l.notify),
	})
	return db.afterResolution(err, out.Applied, &db.count.rolledForward, "forward", cell)
}

// rollBack removes a cell's lock of a transaction that is not committed, for good.
func (db *DB) rollBack(ctx context.Context, cell Cell, start Timestamp, l *lockValue) error {
	edits := rollBackEdits(nil, cell.Column, start, l.long, l.notify)
	if cell == l.primary {
		edits = append(edits, rowstore.Put(rowstore.Rollback, cell.Column, start, nil))
	}
	out, err := db.applyOne(ctx, rowstore.Mutation{
		Table: cell.Table, Row: cell.Row,
		Conditions: []rowstore.Condition{rowstore.Present(cell.Column, start)},
		Edits:      edits,
	})
	return db.afterResolution(err, out.Applied, &db.count.rolledBack, "back", cell)
}

// afterResolution judges the answer to a roll forward or roll back. Whoever asked
// for it reads the row again, so a lost reply and a lock that is gone are fine.
func (db *DB) afterResolution(err error, applied bool, count *atomic.Uint64, way string, cell Cell) error {
	if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
		return fmt.Errorf("rolling %s %v: %w", way, cell.public(), err)
	}
	if applied {
		count.Add(1)
	}
	return nil
}

// OutcomeStatus is what became of a transaction.
type OutcomeStatus int

const (
	// Committed: the transaction took effect at Outcome.Commit.
	Committed OutcomeStatus = iota + 1
	// RolledBack: the transaction did not and will never take effect.
	RolledBack
	// Pending: the transaction is being committed, by a process that lives.
	Pending
)

func (s OutcomeStatus) String() string {
	switch s {
	case Committed:
		return "committed"
	case RolledBack:
		return "rolled back"
	case Pending:
		return "pending"
	}
	return fmt.Sprintf("OutcomeStatus(%d)", int(s))
}

// Outcome is the answer of DB.Outcome.
type Outcome struct {
	Status OutcomeStatus
	Commit Timestamp // the commit timestamp of a committed transaction
}

// Outcome finds out what became of the transaction with that start timestamp and
// primary, as an UndeterminedError names them. Where there is no trace of it, it
// makes sure that the transaction can never commit any more and answers
// RolledBack; so a transaction that another goroutine is committing at this moment
// may be rolled back by the question. Below the safe point, where the trace of a
// commit may have been collected, it returns an error that matches
// ErrSnapshotTooOld, unless the transaction is found committed.
func (db *DB) Outcome(ctx context.Context, start Timestamp, primary Cell) (Outcome, error) {
	if err := db.checkCell(&primary); err != nil {
		return Outcome{}, err
	}
	if start == 0 || start > oracle.Max {
		return Outcome{}, fmt.Errorf("%w: start timestamp %d", ErrInvalid, uint64(start))
	}
	if err := db.enter(); err != nil {
		return Outcome{}, err
	}
	defer db.leave()
	// A timestamp that was not drawn yet may become a transaction's tomorrow, and
	// a mark there would abort every older writer of the cell.
	now, err := db.draw(ctx)
	if err != nil {
		return Outcome{}, fmt.Errorf("percolator: asking for the outcome of transaction %d: %w", uint64(start), err)
	}
	if start > now {
		return Outcome{}, fmt.Errorf("%w: no transaction has the start timestamp %d yet", ErrInvalid, uint64(start))
	}
	state, err := db.decide(ctx, start, primary.stored(), respectLiving)
	if err != nil {
		return Outcome{}, fmt.Errorf("percolator: asking for the outcome of transaction %d: %w", uint64(start), err)
	}
	switch {
	case state.committed != 0:
		return Outcome{Status: Committed, Commit: state.committed}, nil
	case state.aborted:
		return Outcome{Status: RolledBack}, nil
	}
	return Outcome{Status: Pending}, nil
}

// decide finds out whether a transaction is committed, fencing or rolling back its
// primary where nothing is decided; it leaves a lock whose owner lives alone when
// mode says so, and then answers undecided. "Not committed" is proved only while
// the safe point is not above start: below it the error matches ErrSnapshotTooOld.
func (db *DB) decide(ctx context.Context, start Timestamp, primary Cell, mode living) (txnState, error) {
	for attempt := 0; ; attempt++ {
		state, err := db.status(ctx, start, primary)
		if err != nil {
			return txnState{}, err
		}
		if state.committed != 0 {
			return state, nil
		}
		if err := db.checkSnapshot(ctx, start); err != nil {
			return txnState{}, err
		}
		if state.aborted {
			return state, nil
		}
		if state.lock != nil && mode == respectLiving {
			inspected, alive, err := db.inspect(ctx, start, state.lock, mode)
			if err != nil {
				return txnState{}, err
			}
			if alive {
				return inspected, nil
			}
		}
		_, err = db.rollBackPrimary(ctx, start, primary, state.lock)
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return txnState{}, err
		}
		// Applied or not, the next look says what holds.
		if err != nil {
			if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
				return txnState{}, err
			}
		}
	}
}
