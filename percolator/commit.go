package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How a transaction commits: the choice between the ways to commit, and what they
// share. The ways are in onephase.go, twophase.go (also for groups) and notify.go
// (notifications alone). serializable.go and rollback.go hold two steps of twophase.go.
// See "A transaction" in docs/architecture.md.

// Commit makes the transaction's writes and notifications take effect, all or none, and
// ends the transaction (sections 2.2 and 2.4 of the paper). It returns
//
//   - nil: they took effect. CommitTimestamp says when.
//   - an error that matches ErrConflict: another transaction was first. Certainly
//     nothing was written. Run the transaction again, from the beginning, as a new one.
//   - an error that matches ErrTxnTooOld: the transaction took longer than MaxTxnAge.
//     Certainly nothing was written. Running it again needs a quicker function.
//   - an error that matches ErrUndetermined: the context ended, or far too much time
//     passed, before Commit found out whether the transaction took effect. DB.OutcomeOf
//     may find out later.
//   - an error that matches ErrIndexed: a column has an index that this process does not keep; or an error of
//     an index's upkeep. Certainly nothing was written.
//   - an error that matches ErrInvalid: it was called by the function of Update or of an observer, whose transaction is
//     committed when the function has returned. It goes on.
//   - any other error: certainly nothing was written.
//
// After any error some notifications of Txn.Notify may stand nevertheless. They cost one
// run of an observer for nothing.
//
// A transaction without writes and notifications commits by doing nothing. A
// transaction that only notifies takes part in conflicts if it has called GetForUpdate,
// or read under Serializable; otherwise it takes part in none. When Commit has returned
// nil, every transaction that begins afterwards, in any process, sees the writes. Work
// that is left then (secondaries) continues in the background; DB.Close waits for it.
func (tx *Txn) Commit(ctx context.Context) (err error) {
	if tx.done {
		return ErrTxnDone
	}
	if tx.keeping {
		tx.endedBy = true
		return fmt.Errorf("percolator: committing: %w: an upkeep may not end its transaction", ErrInvalid)
	}
	if tx.lent {
		return fmt.Errorf("percolator: committing: %w: the function may not end its transaction, which is committed when it has returned", ErrInvalid)
	}
	tx.committing = true
	defer func() { tx.finish(err) }()
	db := tx.db
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("percolator: committing: %w", err)
	}
	err = tx.commitAnyWay(ctx)
	switch {
	case errors.Is(err, ErrConflict):
		db.count.conflicts.Add(1)
	case errors.Is(err, ErrUndetermined):
		db.count.undetermined.Add(1)
	case err == nil && tx.opt.committedAt != nil:
		*tx.opt.committedAt = tx.commit
	}
	return err
}

// commitAnyWay commits in the quickest way that is possible for the transaction.
func (tx *Txn) commitAnyWay(ctx context.Context) error {
	db := tx.db
	if err := tx.keepIndexes(ctx); err != nil {
		return fmt.Errorf("percolator: committing: %w", err)
	}
	c, err := tx.newCommitter(ctx)
	unknown := true // after a panic too
	defer func() { c.endUse(unknown) }()
	switch {
	case err != nil:
		unknown = false
		return fmt.Errorf("percolator: committing: %w", err)
	case c.primary < 0 && len(tx.weak) == 0:
		// Reads of one snapshot are consistent; locks without a write change nothing.
		if !tx.counted {
			db.count.readOnly.Add(1)
		}
		unknown = false
		return nil
	case c.primary < 0:
		if err = c.notifyOnly(ctx); err == nil {
			tx.trace.goes("notifications")
		}
	case c.onePhaseKey() != "":
		err = c.onePhase(ctx)
	default:
		err = c.twoPhase(ctx)
	}
	unknown = errors.Is(err, ErrUndetermined)
	switch {
	case err == nil:
		tx.commit = c.commit
		c.hintWrites(c.commit)
		return nil
	case unknown && c.primary >= 0:
		// It commits no later, if it does. What may still be under way sets c.commit.
		c.hintWrites(c.bound())
	}
	return fmt.Errorf("percolator: committing: %w", err)
}

// committer carries one commit through its steps.
type committer struct {
	tx      *Txn
	db      *DB
	start   Timestamp
	began   time.Time
	extra   map[rowName][]rowstore.Edit
	view    *catalogView
	used    *catalogView // whose use has yet to end, nil for none
	writes  []write      // sorted by row, then as they were set
	rows    []commitRow
	places  map[Cell]int // of writes, once findIn was asked
	primary int          // index into writes, -1 where every write is lock only
	notify  []bool       // for each write: whether its column is observed
	notices []notice
	hints   []rowstore.Mutation // of timers
	origin  *origin             // what locks and notifications say of the commit, nil for nothing
	commit  Timestamp

	primaryRow    int  // index into rows: the one with the primary, whose commit decides
	split         bool // a row is in several parts
	operationsAll int  // of all writes, in one step
	bytesAll      int
	// When the primary's lock was asked for, and how long it lasts from then on.
	lockAsked time.Time
	lockLasts time.Duration
	stopBeat  func() // ends the heartbeat; nil before it began
	// resolved are the rows of which locks in the way of a prewrite were resolved lately, and groupResolved says so of a commit in one phase.
	resolved      map[rowName]struct{}
	groupResolved bool
}

// commitRow is the range of writes that belongs to one row, or to a part of a wide row.
type commitRow struct {
	from, to int // writes[from:to]
	bytes    int // approximate size of its mutation
	// The result of the prewrite.
	sent        bool
	locked      bool
	incarnation string
}

func (tx *Txn) newCommitter(ctx context.Context) (*committer, error) {
	db := tx.db
	// Work that continues in the background after Commit has returned must not touch tx.
	c := &committer{tx: tx, db: db, extra: tx.extra, writes: tx.writes.list, primary: -1}
	tx.writes.index = nil // nothing asks for the writes of a transaction that commits
	for i := range c.writes {
		w := &c.writes[i]
		// A lock-only cell is never the primary: it would leave no record of the commit.
		// If the transaction writes in the store that holds the oracle, the primary is
		// there.
		if w.kind == format.KindLock {
			continue
		}
		if c.primary < 0 || (db.placer != nil && !db.placer.Authoritative(c.writes[c.primary].cell.Table) && db.placer.Authoritative(w.cell.Table)) {
			c.primary = i
		}
	}
	if c.primary < 0 && len(tx.weak) == 0 {
		return c, nil
	}
	if err := tx.begin(ctx); err != nil {
		return c, err
	}
	c.start, c.began = tx.start, tx.began
	var err error
	if c.used, err = db.useFor(ctx, &tx.snapshot); err != nil {
		return c, err
	}
	switch {
	case c.primary >= 0:
		c.choosePrimary()
		c.sortWrites(c.primaryCell())
	case tx.guarded():
		// Locks and reads that guard the notifications are prewritten and validated as
		// for any write. That takes a primary.
		c.ownPrimary()
	}
	return c, c.beginByNewest(ctx)
}

// ownPrimary adds a primary that is no cell of the user's.
func (c *committer) ownPrimary() {
	primary := Cell(format.NoticeCell(c.start))
	c.writes = append(slices.Clip(c.writes), write{cell: primary, kind: format.KindDelete})
	c.sortWrites(primary)
}

// sortWrites puts the writes of a row together.
func (c *committer) sortWrites(primary Cell) {
	c.places = nil
	if len(c.writes) > 1 {
		slices.SortStableFunc(c.writes, func(a, b write) int {
			return cmp.Or(cmp.Compare(a.cell.Table, b.cell.Table), cmp.Compare(a.cell.Row, b.cell.Row))
		})
	}
	c.primary = slices.IndexFunc(c.writes, func(w write) bool { return w.cell == primary })
	c.notify = make([]bool, len(c.writes))
}

// beginByNewest is goBy with the view at hand. That view may be too old to know the
// observer of a weak notification; then a new one is read.
func (c *committer) beginByNewest(ctx context.Context) error {
	if c.setsTimers() && c.used.TimersFrom == 0 {
		if _, err := c.db.raiseTo(ctx, timers); err != nil {
			return err
		}
		return c.goByNew(ctx)
	}
	err := c.goBy(c.used)
	if errors.Is(err, ErrNotObserved) {
		err = c.goByNew(ctx)
	}
	return err
}

// goByNew is goBy with a view that is read now.
func (c *committer) goByNew(ctx context.Context) error {
	if _, err := c.db.loadCatalog(ctx); err != nil {
		return err
	}
	c.endUse(false)
	c.used = c.db.beginUse()
	return c.goBy(c.used)
}

// endUse ends the use of the view that the commit goes by, if it has not ended yet: the
// commit timestamp is drawn, or the commit takes no effect. unknown tells that a request
// which goes by the view may still take effect.
func (c *committer) endUse(unknown bool) {
	if c.used != nil {
		c.db.endUse(c.used, unknown)
		c.used = nil
	}
}

// goBy bases the commit on a view of the catalog. No write of the commit may be in the
// store yet.
func (c *committer) goBy(view *catalogView) error {
	c.view = view
	if err := c.checkAge(max(c.start, view.asOf)); err != nil {
		return err
	}
	for i := range c.notify {
		c.notify[i] = c.observed(i)
	}
	if err := c.checkWeak(); err != nil {
		return err
	}
	c.origin = c.originOf()
	if err := c.placeNotices(); err != nil {
		return err
	}
	c.splitRows()
	return nil
}

// observed tells whether an observer must be told of a write.
func (c *committer) observed(i int) bool {
	w := &c.writes[i]
	return w.kind != format.KindLock && len(c.view.observers(w.cell.Table, w.cell.Column)) > 0
}

// checkRun returns a conflict for the run of an observer that was removed since it began, also if it
// was registered again: what the run goes by is no longer acknowledged.
func (c *committer) checkRun() error {
	r := c.tx.run
	if r == nil {
		return nil
	}
	if c.view.has(r) {
		return nil
	}
	return c.conflict(r.cell, 0, fmt.Sprintf("the observer %q was removed meanwhile", r.observer))
}

// has tells whether the registration that a run goes by is there.
func (v *catalogView) has(r *runOf) bool {
	known := v.registrations(r.cell.Table, r.cell.Column)
	return slices.Contains(known.names, r.observer) && known.sinceOf(r.observer) == r.since
}

// checkWeak returns an error for what the view of the catalog rules out: a weak notification or a timer that no
// observer would ever see, indexes that were not kept, and a run of an observer that was removed.
func (c *committer) checkWeak() error {
	for _, cell := range c.tx.weak {
		if len(c.view.observers(cell.Table, cell.Column)) == 0 {
			return fmt.Errorf("%w: %v", ErrNotObserved, cell.public())
		}
	}
	for cell := range c.timed() {
		if len(c.view.observers(cell.Table, cell.Column)) == 0 {
			return fmt.Errorf("%w: %v", ErrNotObserved, cell.public())
		}
	}
	if err := c.checkIndexes(); err != nil {
		return err
	}
	return c.checkRun()
}

// checkBound returns the error of a commit at ts. The caller drew ts after every step
// that relies on the catalog was acknowledged (prewrites, or conditions that held). If
// the view no longer holds at ts, the catalog is read again. So a commit whose steps
// take longer than the lease still succeeds, unless an observer was registered
// meanwhile. An observer that is registered after this reading sweeps a snapshot above
// ts. A safe point that is published after it has removed nothing yet.
func (c *committer) checkBound(ctx context.Context, ts Timestamp) error {
	if !c.view.holds(ts) {
		view, err := c.db.loadCatalog(ctx)
		if err != nil {
			return err
		}
		if i := c.guardsAny(); i >= 0 && view.RowDeletes && !c.view.RowDeletes {
			return c.conflict(c.writes[i].cell, 0, "its prewrites do not look for deletions of rows, which began meanwhile")
		}
		c.view = view
		for i := range c.notify {
			if !c.notify[i] && c.observed(i) {
				return c.conflict(c.writes[i].cell, 0, "an observer was registered meanwhile")
			}
		}
		if err := c.checkWeak(); err != nil {
			return err
		}
		if !c.primaryOutlives() {
			return c.conflict(c.primaryCell(), 0, "the settings of its tables were changed meanwhile")
		}
	}
	return c.checkAge(ts)
}

// checkAge returns the error of a transaction that is too old to commit at ts. Either
// it is older than MaxTxnAge, or it began below the safe point of one of its tables, where
// versions that conflict with it may have been collected.
func (c *committer) checkAge(ts Timestamp) error {
	if ts <= c.lastCommit() && c.aboveSafePoints() {
		return nil
	}
	var below error
	if ts <= c.lastCommit() {
		below = c.view.checkSnapshot(c.start, slices.Collect(c.spans())...)
	}
	return c.tooOld(ts, below)
}

// tooOld is the error of a transaction that is too old to commit at ts. below is the error of its
// snapshot, if that is why.
func (c *committer) tooOld(ts Timestamp, below error) error {
	e := &TxnTooOldError{Start: c.start, Now: ts, MaxTxnAge: min(c.lastCommit().Sub(c.start), c.view.at(ts).MaxTxnAge)}
	var snapshot *SnapshotTooOldError
	if errors.As(below, &snapshot) {
		e.SafePoint, e.Table = snapshot.SafePoint, snapshot.Table
	}
	return e
}

// bound is the greatest commit timestamp that this commit may have without reading the
// catalog again.
func (c *committer) bound() Timestamp {
	return min(c.view.until(), c.lastCommit())
}

// find returns the index of the write of a cell, or -1.
func (c *committer) find(cell Cell) int {
	if len(c.writes) <= indexFrom {
		return slices.IndexFunc(c.writes, func(w write) bool { return w.cell == cell })
	}
	i, ok := slices.BinarySearchFunc(c.writes, cell, func(w write, cell Cell) int {
		return cmp.Or(cmp.Compare(w.cell.Table, cell.Table), cmp.Compare(w.cell.Row, cell.Row))
	})
	if !ok {
		return -1
	}
	for end := i + indexFrom; i < len(c.writes) && c.writes[i].cell.rowName() == cell.rowName(); i++ {
		if i == end {
			return c.findIn(cell)
		}
		if c.writes[i].cell == cell {
			return i
		}
	}
	return -1
}

// findIn is find by an index of all writes, for a row with very many: it may be asked for each of them.
func (c *committer) findIn(cell Cell) int {
	if c.places == nil {
		c.places = make(map[Cell]int, len(c.writes))
		for i := range c.writes {
			c.places[c.writes[i].cell] = i
		}
	}
	if i, ok := c.places[cell]; ok {
		return i
	}
	return -1
}

func (c *committer) primaryCell() Cell { return c.writes[c.primary].cell }

// prewriteConditions appends the conditions of a prewrite: other transactions have left
// no lock on the column, and no write or mark at or above start.
func prewriteConditions(conds []rowstore.Condition, column string, start Timestamp) []rowstore.Condition {
	return append(conds,
		rowstore.Absent(rowstore.Write, column, start),
		rowstore.Absent(rowstore.Lock, column, 0),
		rowstore.Absent(rowstore.Mark, column, start),
	)
}

// settleOutcome finds out whether this transaction is committed, and rolls it back if
// that is still undecided.
func (c *committer) settleOutcome(ctx context.Context) (txnState, error) {
	return c.askUntilAnswered(ctx, func() (txnState, error) {
		return c.db.decide(ctx, c.start, c.primaryCell(), overrideLiveOwner, primaryCell)
	})
}

// askUntilAnswered asks for this transaction's own state until the store answers or the context
// ends. Only ErrSnapshotTooOld, ErrCorrupt, ErrFormat, ErrDenied and ErrClosed end it earlier: asking again would not help. Only then is
// the caller told that the outcome is undetermined.
func (c *committer) askUntilAnswered(ctx context.Context, ask func() (txnState, error)) (txnState, error) {
	for attempt := 0; ; attempt++ {
		state, err := ask()
		if err == nil || ctx.Err() != nil || slices.ContainsFunc([]error{ErrSnapshotTooOld, ErrCorrupt, ErrFormat, ErrDenied, ErrClosed}, func(lasts error) bool { return errors.Is(err, lasts) }) {
			return state, err
		}
		if serr := c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)); serr != nil {
			return state, errors.Join(serr, err)
		}
	}
}

func (c *committer) conflict(cell Cell, with Timestamp, reason string) error {
	if cell.Table == format.TableNotices {
		// A cell that the caller knows. Tables of the caller's may come before this one, and behind it.
		if i := slices.IndexFunc(c.writes, func(w write) bool { return !format.Reserved(w.cell.Table) }); i >= 0 {
			cell = c.writes[i].cell
		}
		if len(c.tx.weak) > 0 {
			cell = c.tx.weak[0]
		}
	}
	if cell.Column == format.ColumnWholeRow && !format.Reserved(cell.Table) {
		reason = "another transaction deletes or deleted the row"
		if i := slices.IndexFunc(c.writes, func(w write) bool { return w.cell.rowName() == cell.rowName() && ofUser(w.cell.Column) }); i >= 0 {
			cell = c.writes[i].cell
		}
	}
	if column, ok := format.SplitTimerColumn(cell.Column); ok {
		cell.Column = column
	}
	return &ConflictError{Cell: cell.public(), With: with, Reason: reason}
}

// undetermined is the error of a commit whose outcome is not known.
func (c *committer) undetermined(cause error) error {
	e := &UndeterminedError{Start: c.start, Cause: cause}
	if c.primary >= 0 {
		e.Primary = c.primaryCell().public()
	}
	return e
}

// lost is the error of a commit whose request never arrived. A fence makes sure that it
// never will take effect, so the transaction may be run again.
func (c *committer) lost(cause error) error {
	return fmt.Errorf("%w; %w", c.conflict(c.primaryCell(), c.start, "rolled back after a request was lost"), cause)
}
