package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// txnState is what one view of the primary's row says about a transaction. For a cell
// that may not be the primary see decide.
type txnState struct {
	committed Timestamp    // the commit timestamp, if not 0
	aborted   bool         // not committed, for good
	lock      *format.Lock // the primary's lock, while undecided and there
	// lost says, of aborted, that it is certain only if the cell is the primary. If the
	// transaction only locked the cell, the mark of a younger transaction may stand
	// where its own mark stood.
	lost bool
	// complete means that nothing at or above the transaction's start had been collected
	// when the view was taken: a version below the start is left, and a collection
	// removes the oldest first.
	complete bool
}

func (s *txnState) undecided() bool { return s.committed == 0 && !s.aborted }

// statusPage bounds how many committed versions one step of a status reads.
const statusPage = 32

func statusRead(start Timestamp, primary Cell) rowstore.RowRead {
	return rowstore.RowRead{Table: primary.Table, Row: primary.Row, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: primary.Column, From: start, To: start, Limit: 1},
		// Not only the newest: that may be another transaction's, above the one that
		// counts.
		{Family: rowstore.Write, Column: primary.Column, From: start, To: oracle.Max, Limit: statusPage},
		{Family: rowstore.Write, Column: primary.Column, To: start - 1, Limit: 1},
		{Family: rowstore.Mark, Column: primary.Column, From: start, To: oracle.Max, Limit: 1},
	}}
}

// parseStatus applies the rules of a transaction's status, in their order, to the answer to
// statusRead.
func (db *DB) parseStatus(ctx context.Context, row *rowstore.Row, start Timestamp, primary Cell) (txnState, error) {
	writes, complete := fromStart(row.All(rowstore.Write, primary.Column), start)
	if commit, err := ownWrite(writes, start); err != nil || commit != 0 {
		return txnState{committed: commit}, err
	}
	if v := row.At(rowstore.Lock, primary.Column, start); v != nil {
		l, err := format.DecodeLock(v.Value)
		if err != nil {
			return txnState{}, err
		}
		return txnState{lock: &l, complete: complete}, nil
	}
	if len(writes) == statusPage {
		// There are newer versions and the lock is gone, so the transaction is decided.
		// Its own version cannot appear between two steps of the search.
		commit, still, err := db.ownOldWrite(ctx, start, primary, writes[len(writes)-1].TS-1)
		if err != nil || commit != 0 {
			return txnState{committed: commit}, err
		}
		// Any time may pass between the steps, so what the first one showed may be
		// collected.
		complete = complete && still
	}
	mark := row.Newest(rowstore.Mark, primary.Column)
	if mark == nil {
		return txnState{aborted: len(writes) > 0, complete: complete}, nil
	}
	by, err := format.DecodeMark(mark.Value)
	switch {
	case err != nil:
		return txnState{}, err
	case by == start:
		return txnState{committed: mark.TS}, nil
	}
	// A later mark may have replaced the mark of our commit, with two exceptions. A mark
	// at start itself is the greatest one, so there was no mark of a commit. A mark of
	// an older transaction cannot have replaced ours: its prewrite would have been
	// refused because of ours.
	return txnState{aborted: true, lost: mark.TS != start && (by == 0 || by > start), complete: complete}, nil
}

// ownWrite returns the timestamp of the version that the transaction committed, or 0.
func ownWrite(writes []rowstore.Version, start Timestamp) (Timestamp, error) {
	for i := range writes {
		w, err := format.DecodeWrite(writes[i].Value)
		if err != nil {
			return 0, err
		}
		if w.Start == start {
			return writes[i].TS, nil
		}
	}
	return 0, nil
}

// ownOldWrite is ownWrite for the versions from start on, up to to. The transaction's
// own version is the oldest of them, since its prewrite found none and its lock kept
// all others away. So the search narrows down on the oldest one, in few steps however
// many there are. complete is as in txnState; it is that of the last step, and so holds
// for those before it.
func (db *DB) ownOldWrite(ctx context.Context, start Timestamp, primary Cell, to Timestamp) (commit Timestamp, complete bool, err error) {
	for from := start; from <= to; {
		mid := from + (to-from)/2
		rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: primary.Table, Row: primary.Row, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: primary.Column, From: start, To: mid, Limit: statusPage},
			{Family: rowstore.Write, Column: primary.Column, To: start - 1, Limit: 1},
		}}})
		if err != nil {
			return 0, false, err
		}
		var writes []rowstore.Version
		writes, complete = fromStart(rows[0].Versions, start)
		commit, err := ownWrite(writes, start)
		switch {
		case err != nil || commit != 0:
			return commit, complete, err
		case len(writes) == 0:
			from = mid + 1
		case len(writes) < statusPage:
			return 0, complete, nil
		default:
			to = writes[len(writes)-1].TS - 1
		}
	}
	return 0, complete, nil
}

// fromStart returns those of a column's versions that are at or above start, and
// whether there is one below it.
func fromStart(writes []rowstore.Version, start Timestamp) (from []rowstore.Version, before bool) {
	if n := len(writes) - 1; n >= 0 && writes[n].TS < start {
		return writes[:n], true
	}
	return writes, false
}

// status reads the status of a transaction.
func (db *DB) status(ctx context.Context, start Timestamp, primary Cell) (txnState, error) {
	rows, err := db.readRows(ctx, []rowstore.RowRead{statusRead(start, primary)})
	if err != nil {
		return txnState{}, fmt.Errorf("reading the status of transaction %d: %w", uint64(start), err)
	}
	return db.parseStatus(ctx, &rows[0], start, primary)
}

// ownerRule says what resolveLock does about a transaction whose owner lives.
type ownerRule bool

const (
	respectLiveOwner  ownerRule = true
	overrideLiveOwner ownerRule = false // below the safe point nobody may commit any more
)

// resolveLock handles another transaction's lock on cell. It rolls the cell forward or
// back when the transaction is decided, and decides it when its owner is dead. settled
// is false when the owner lives, and nothing was done, or when a reply was lost. Whoever calls it reads the row again.
func (db *DB) resolveLock(ctx context.Context, cell Cell, start Timestamp, l *format.Lock, mode ownerRule) (settled bool, err error) {
	row := rowstore.Row{Table: cell.Table, Row: cell.Row}
	wait, err := db.resolveLocks(ctx, []rowstore.Row{row}, []metLock{{column: cell.Column, start: start, lock: *l}}, mode, oracle.Max)
	return !wait, err
}

// fate is what becomes of a transaction whose lock was met.
type fate struct {
	alive     bool      // it is undecided, and its owner lives
	committed Timestamp // if not 0; if it is 0 and alive is false it is rolled back, for good
	// primaryGone says that the primary's lock was removed when the transaction was decided.
	primaryGone bool
}

// settleTxn finds out what becomes of the transaction that a lock belongs to. If its owner
// is dead it is rolled back.
func (db *DB) settleTxn(ctx context.Context, start Timestamp, l *format.Lock, mode ownerRule) (fate, error) {
	for attempt := 0; ; attempt++ {
		state, alive, err := db.inspect(ctx, start, l, mode)
		switch {
		case err != nil:
			return fate{}, err
		case state.committed != 0:
			return fate{committed: state.committed}, nil
		case state.aborted:
			return fate{}, nil
		case alive:
			return fate{alive: true}, nil
		}
		// Undecided and dead. The primary goes first, whichever cell was met: once
		// a secondary is gone, a commit of the primary would be torn.
		decided, err := db.rollBackPrimary(ctx, start, Cell(l.Primary), state.lock)
		if err != nil && !mayAskAgain(err) {
			return fate{}, fmt.Errorf("rolling back transaction %d: %w", uint64(start), err)
		}
		if decided {
			return fate{primaryGone: true}, nil
		}
		if err == nil {
			continue // somebody was faster: what they did can be seen now
		}
		if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
			return fate{}, err
		}
	}
}

// inspect reads the status of the transaction that a lock belongs to, and whether
// its owner lives: its session is valid and the expiry on the primary's lock (on
// the met lock while the primary has none) has not passed.
func (db *DB) inspect(ctx context.Context, start Timestamp, met *format.Lock, mode ownerRule) (state txnState, alive bool, err error) {
	reads := []rowstore.RowRead{statusRead(start, Cell(met.Primary)), sessionRead(met.Session)}
	if mode == overrideLiveOwner {
		reads = reads[:1]
	}
	rows, err := db.readRows(ctx, reads)
	if err != nil {
		return txnState{}, false, err
	}
	state, err = db.parseStatus(ctx, &rows[0], start, Cell(met.Primary))
	if err != nil || !state.undecided() || mode == overrideLiveOwner {
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
	case l.Expiry < now:
		db.count.expired.Add(1)
	default:
		return state, true, nil
	}
	return state, false, nil
}

// rollBackPrimary decides that an undecided transaction is not committed: it rolls back
// the primary's lock, or fences the primary if there is none. decided is false if the
// primary has changed meanwhile.
func (db *DB) rollBackPrimary(ctx context.Context, start Timestamp, primary Cell, lock *format.Lock) (decided bool, err error) {
	m := fence(start, primary)
	if lock != nil {
		m = rowstore.Mutation{
			Table: primary.Table, Row: primary.Row,
			Conditions: []rowstore.Condition{rowstore.Present(primary.Column, start)},
			Edits: append(rollBackEdits(nil, primary.Column, start, lock.Long, lock.Notify),
				rowstore.Put(rowstore.Mark, primary.Column, start, nil)),
		}
	}
	out, err := db.applyOne(ctx, m)
	if err != nil {
		return false, err
	}
	db.hint(primary, start) // the mark
	if out.Applied && lock != nil {
		db.count.rolledBack.Add(1)
	}
	return out.Applied, nil
}

// fence puts a mark on a primary that has no lock, so that a prewrite under way can
// never take effect. It does the same on any other cell of the transaction, and proves
// as much there: a commit would have left a version or a mark.
func fence(start Timestamp, primary Cell) rowstore.Mutation {
	return rowstore.Mutation{
		Table: primary.Table, Row: primary.Row,
		Conditions: []rowstore.Condition{
			rowstore.AbsentAt(primary.Column, start),
			rowstore.Absent(rowstore.Write, primary.Column, start),
			rowstore.Absent(rowstore.Mark, primary.Column, start),
		},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, primary.Column, start, nil)},
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

// commitEdits turns a lock into the committed version or mark that it stands for. notification goes with it, nil for none.
func commitEdits(edits []rowstore.Edit, column string, start, commit Timestamp, k format.Kind, value []byte, long bool, notification []byte) []rowstore.Edit {
	edits = append(edits, rowstore.Delete(rowstore.Lock, column, start))
	if k == format.KindLock {
		// The mark makes older writers of the cell fail.
		return append(edits, rowstore.Put(rowstore.Mark, column, commit, format.EncodeMark(start)))
	}
	w := format.Write{Kind: k, Long: long, Start: start, Value: value}
	edits = append(edits, rowstore.Put(rowstore.Write, column, commit, w.Encode()))
	if notification != nil {
		edits = append(edits,
			rowstore.Delete(rowstore.Notify, column, start),
			rowstore.Put(rowstore.Notify, column, commit, notification))
	}
	return edits
}

// operationsOfLock is how many conditions and edits resolving a lock takes at most.
const operationsOfLock = 5

// resolved counts the locks that a mutation resolves.
type resolved struct{ forward, back uint64 }

// resolve appends to a mutation of the cell's row what finishes the cell of a decided transaction: the
// roll forward of a committed one; for any other the removal of the lock. The mutation does nothing if a
// lock is gone already: somebody else did it.
func (f fate) resolve(m *rowstore.Mutation, n *resolved, cell Cell, start Timestamp, l *format.Lock) {
	m.Conditions = append(m.Conditions, rowstore.Present(cell.Column, start))
	if f.committed != 0 {
		var notification []byte
		if l.Notify {
			notification = format.EncodeNotification(format.NotifyStrong, l.Cascade)
		}
		m.Edits = commitEdits(m.Edits, cell.Column, start, f.committed, l.Kind, l.Value, l.Long, notification)
		n.forward++
		return
	}
	m.Edits = rollBackEdits(m.Edits, cell.Column, start, l.Long, l.Notify)
	if cell == Cell(l.Primary) {
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, cell.Column, start, nil))
	}
	n.back++
}

// OutcomeStatus is what became of a transaction.
type OutcomeStatus int

const (
	// OutcomeCommitted: the transaction took effect at Outcome.Commit.
	OutcomeCommitted OutcomeStatus = iota + 1
	// OutcomeRolledBack: the transaction did not and will never take effect.
	OutcomeRolledBack
	// OutcomePending: the transaction is being committed, by a process that lives.
	OutcomePending
)

func (s OutcomeStatus) String() string {
	switch s {
	case OutcomeCommitted:
		return "committed"
	case OutcomeRolledBack:
		return "rolled back"
	case OutcomePending:
		return "pending"
	}
	return fmt.Sprintf("OutcomeStatus(%d)", int(s))
}

// Outcome is the answer of DB.Outcome.
type Outcome struct {
	Status OutcomeStatus
	Commit Timestamp // the commit timestamp of a committed transaction
}

// Outcome finds out what became of the transaction with that start timestamp. c is its
// primary, as an UndeterminedError names it, or any other cell that it wrote or locked.
// If there is no trace of the transaction, Outcome makes sure that it can never commit
// any more and answers OutcomeRolledBack. So the question may roll back a transaction that
// another goroutine is committing at this moment. Errors:
//
//   - one that matches ErrSnapshotTooOld: start is below the safe point, where the trace
//     of a commit may have been collected, and the transaction was not found committed.
//   - one that matches ErrTraceLost: c may have been locked only (GetForUpdate), and
//     younger transactions have overwritten its trace there. OutcomeOf never returns
//     it, because it knows that it asks about the primary.
//   - ErrInvalid: the start timestamp is 0 or was not drawn yet, or c has an empty name.
//   - ErrTooLarge: a name of c is over the limits.
//   - ErrCorrupt or ErrFormat: a record that was met cannot be read.
//   - ErrOracleWentBack, ErrClosed, and those of the context and of the store.
func (db *DB) Outcome(ctx context.Context, start Timestamp, c Cell) (Outcome, error) {
	return db.outcome(ctx, start, c, anyCell)
}

// OutcomeOf finds out what became of the transaction that an error of Commit names, as
// Outcome does. err is an UndeterminedError, or wraps one. It may also be one that you
// made from the Start and Primary of another, perhaps in another process. For any other
// error OutcomeOf returns an error that matches ErrInvalid, and also for a transaction
// of weak notifications alone, which has no primary.
func (db *DB) OutcomeOf(ctx context.Context, err error) (Outcome, error) {
	var u *UndeterminedError
	if !errors.As(err, &u) || u == nil {
		return Outcome{}, fmt.Errorf("percolator: OutcomeOf: %w: the error is no UndeterminedError", ErrInvalid)
	}
	if u.Primary == (Cell{}) {
		return Outcome{}, fmt.Errorf("percolator: OutcomeOf: %w: transaction %d only notified and left no record; it may be run again", ErrInvalid, uint64(u.Start))
	}
	return db.outcome(ctx, u.Start, u.Primary, primaryCell)
}

func (db *DB) outcome(ctx context.Context, start Timestamp, c Cell, role role) (Outcome, error) {
	cells, err := db.meanings(&c)
	if err != nil {
		return Outcome{}, called("Outcome", err)
	}
	if start == 0 || start > oracle.Max {
		return Outcome{}, fmt.Errorf("percolator: Outcome: %w: no transaction can have the start timestamp %d", ErrInvalid, uint64(start))
	}
	if err := db.enter(); err != nil {
		return Outcome{}, err
	}
	defer db.leave()
	// A timestamp that was not drawn yet may become a transaction's start tomorrow, and
	// a mark there would abort every older writer of the cell.
	now, err := db.draw(ctx)
	if err != nil {
		return Outcome{}, fmt.Errorf("percolator: asking for the outcome of transaction %d: %w", uint64(start), err)
	}
	if start > now {
		return Outcome{}, fmt.Errorf("percolator: Outcome: %w: no transaction has the start timestamp %d yet", ErrInvalid, uint64(start))
	}
	out := Outcome{Status: OutcomeRolledBack}
	for _, c := range cells {
		state, err := db.decide(ctx, start, c, respectLiveOwner, role)
		switch {
		case err != nil:
			return Outcome{}, fmt.Errorf("percolator: asking for the outcome of transaction %d: %w", uint64(start), err)
		case state.committed != 0:
			return Outcome{Status: OutcomeCommitted, Commit: state.committed}, nil
		case !state.aborted:
			out.Status = OutcomePending
		}
	}
	return out, nil
}

// meanings returns the stored cells that a public name may stand for: the user's cell,
// and a cell of the library's own, because errors name the library's primaries as they
// are stored. At most one of them is a transaction's.
func (db *DB) meanings(c *Cell) ([]Cell, error) {
	var cells []Cell
	err := db.checkCell(c)
	if err == nil {
		cells = append(cells, c.stored())
	}
	if c.Row == "" {
		return cells, err
	}
	table, column := format.Escape(c.Table), format.Escape(c.Column)
	for _, own := range []Cell{{c.Table, c.Row, column}, {table, c.Row, c.Column}, {c.Table, c.Row, c.Column}} {
		if format.OwnCell(format.Cell(own)) {
			cells = append(cells, own)
		}
	}
	if len(cells) > 0 {
		return cells, nil
	}
	return nil, err
}

// role says what is known of the cell with which the caller asks for a transaction's
// outcome.
type role bool

const (
	primaryCell role = true
	anyCell     role = false // perhaps a secondary, or locked only
)

// decide finds out whether a transaction is committed. If nothing is decided, it fences
// or rolls back the primary. If mode says so it leaves a lock alone whose owner lives,
// and answers undecided. If a lock on cell names another primary, that one decides.
// "Not committed" is proved only while the safe point is not above start, or while a
// version of the primary from before start is left; otherwise the error matches
// ErrSnapshotTooOld.
func (db *DB) decide(ctx context.Context, start Timestamp, cell Cell, mode ownerRule, role role) (txnState, error) {
	var met *format.Lock // that led from another cell to the primary
	for attempt := 0; ; attempt++ {
		state, err := db.status(ctx, start, cell)
		if err != nil {
			return txnState{}, err
		}
		if state.committed != 0 {
			return state, nil
		}
		// Marks are collected even if older versions are left. So on a cell that may have
		// been only locked, a missing mark proves nothing.
		if !state.complete || role != primaryCell {
			if err := db.checkSnapshot(ctx, start, cell.span()); err != nil {
				return txnState{}, err
			}
		}
		if state.aborted {
			if state.lost && role != primaryCell {
				return txnState{}, fmt.Errorf("%w: transaction %d on %v", ErrTraceLost, uint64(start), cell.public())
			}
			return state, nil
		}
		lock := state.lock
		if lock != nil && Cell(lock.Primary) != cell {
			if met != nil {
				return txnState{}, fmt.Errorf("%w: the lock of transaction %d on its primary %v names another, %v", ErrCorrupt, uint64(start), cell.public(), Cell(lock.Primary).public())
			}
			met, cell, role = lock, Cell(lock.Primary), primaryCell
			continue
		}
		if lock == nil {
			lock = met
		}
		if lock != nil && mode == respectLiveOwner {
			inspected, alive, err := db.inspect(ctx, start, lock, mode)
			if err != nil {
				return txnState{}, err
			}
			if alive {
				return inspected, nil
			}
		}
		decided, err := db.rollBackPrimary(ctx, start, cell, state.lock)
		switch {
		case err == nil && decided:
			return txnState{aborted: true}, db.checkSnapshot(ctx, start, cell.span())
		case err == nil: // somebody was faster: the next round reads what holds
		case !mayAskAgain(err):
			return txnState{}, err
		default:
			if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
				return txnState{}, err
			}
		}
	}
}
