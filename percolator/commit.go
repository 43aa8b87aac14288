package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Commit makes the transaction's writes and notifications take effect, all or
// none, and ends it (sections 2.2 and 2.4 of the paper). It returns
//
//   - nil: they have. CommitTimestamp says when.
//   - an error that matches ErrConflict: another transaction was first. For certain
//     nothing took effect; run it again, from the beginning, in a new transaction.
//   - one that matches ErrTxnTooOld: it took longer than MaxTxnAge. As above, but
//     running it again needs a quicker function.
//   - one that matches ErrUndetermined: the context ended, or far too much time
//     passed, before it could be found out whether it took effect. DB.OutcomeOf may
//     find out later.
//   - any other error: nothing took effect, for certain, but perhaps weak
//     notifications (Notify), which cost one run of an observer for nothing.
//
// A transaction without writes and notifications commits by doing nothing. One that
// only notifies takes part in conflicts if it has called GetForUpdate, or read under
// Serializable, and else in none. When
// Commit has returned nil, every transaction that begins afterwards, in any
// process, sees the writes. Work that is left then (secondaries) goes on in the
// background, and is waited for by DB.Close.
func (tx *Txn) Commit(ctx context.Context) error {
	if tx.done {
		return ErrTxnDone
	}
	defer tx.finish()
	db := tx.db
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("percolator: committing: %w", err)
	}
	err := tx.commitAnyWay(ctx)
	if err == nil && tx.opt.committedAt != nil {
		*tx.opt.committedAt = tx.commit
	}
	return err
}

// commitAnyWay commits in the quickest way that will do.
func (tx *Txn) commitAnyWay(ctx context.Context) error {
	db := tx.db
	c, err := tx.newCommitter(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("percolator: committing: %w", err)
	case c.primary < 0 && len(tx.weak) == 0:
		// Reads of one snapshot are consistent; locks without a write change nothing.
		db.count.readOnly.Add(1)
		return nil
	case c.primary < 0:
		err = c.notifyOnly(ctx)
	case c.onePhaseKey() != "":
		err = c.onePhase(ctx)
	default:
		err = c.twoPhase(ctx)
	}
	switch {
	case err == nil:
		tx.commit = c.commit
		return nil
	case errors.Is(err, ErrConflict):
		db.count.conflicts.Add(1)
	case errors.Is(err, ErrUndetermined):
		db.count.undetermined.Add(1)
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
	writes  []write // sorted by row, then as they were set
	rows    []commitRow
	primary int    // index into writes, -1 where every write is lock only
	notify  []bool // of each write: its column is observed
	commit  Timestamp

	primaryRow    int  // index into rows: the one with the primary, whose commit decides
	split         bool // a row is in several parts
	operationsAll int  // of all writes, in one step
	bytesAll      int
	// Of the primary's lock: when it was asked for, and how long it lasts from then on.
	lockAsked time.Time
	lockLasts time.Duration
	stopBeat  func() // ends the heartbeat; nil before it began
}

// commitRow is the part of writes that belongs to one row, or to a part of a wide one.
type commitRow struct {
	from, to int // writes[from:to]
	bytes    int // about what a mutation of it takes
	// What the prewrite came to.
	sent        bool
	locked      bool
	incarnation string
}

func (tx *Txn) newCommitter(ctx context.Context) (*committer, error) {
	db := tx.db
	// What goes on in the background after Commit has returned must not touch tx.
	c := &committer{tx: tx, db: db, extra: tx.extra, writes: tx.writes.list, primary: -1}
	primary := Cell{}
	for i := range c.writes {
		w := &c.writes[i]
		// A lock-only cell is never the primary: it would leave no record of the
		// commit. The primary is where the oracle is, if anything is written there.
		if w.kind == kindLock {
			continue
		}
		if c.primary < 0 || (db.placer != nil && !db.placer.Authoritative(c.writes[c.primary].cell.Table) && db.placer.Authoritative(w.cell.Table)) {
			c.primary, primary = i, w.cell
		}
	}
	if c.primary < 0 && len(tx.weak) == 0 {
		return c, nil
	}
	if err := tx.begin(ctx); err != nil {
		return nil, err
	}
	c.start, c.began = tx.start, tx.began
	view, err := db.catalogFor(ctx, db.estimate(tx.start, tx.began))
	if err != nil {
		return nil, err
	}
	if c.primary < 0 {
		if !tx.guarded() {
			return c, c.beginBy(ctx, view)
		}
		// What guards the notifications is locked and validated as for any write: it
		// takes a primary, which nobody else has.
		primary = noticeCell(c.start)
		c.writes = append(slices.Clip(c.writes), write{cell: primary, kind: kindDelete})
		c.primary = len(c.writes) - 1
	}
	if len(c.writes) > 1 {
		slices.SortStableFunc(c.writes, func(a, b write) int {
			return cmp.Or(cmp.Compare(a.cell.Table, b.cell.Table), cmp.Compare(a.cell.Row, b.cell.Row))
		})
		c.primary = slices.IndexFunc(c.writes, func(w write) bool { return w.cell == primary })
	}
	c.notify = make([]bool, len(c.writes))
	return c, c.beginBy(ctx, view)
}

// checkWeak refuses weak notifications that nobody would ever see.
func (c *committer) checkWeak() error {
	for _, cell := range c.tx.weak {
		if len(c.view.observers(cell.Table, cell.Column)) == 0 {
			return fmt.Errorf("%w: %v", ErrNotObserved, cell.public())
		}
	}
	return nil
}

func (c *committer) primaryCell() Cell { return c.writes[c.primary].cell }

func (c *committer) conflict(cell Cell, with Timestamp, reason string) error {
	if cell.Table == tableNotices {
		cell = c.tx.weak[0] // which the caller knows
	}
	return &ConflictError{Cell: cell.public(), With: with, Reason: reason}
}

// bound is the greatest commit timestamp that this commit may have without another
// look at the catalog.
func (c *committer) bound() Timestamp {
	return min(c.view.until(), c.view.lastCommit(c.start))
}

// checkAge returns the error of a transaction that is too old to commit at ts: older
// than MaxTxnAge, or below the safe point, where what would conflict with it may have
// been collected.
func (c *committer) checkAge(ts Timestamp) error {
	if ts <= c.view.lastCommit(c.start) && c.start >= c.view.safePoint {
		return nil
	}
	return &TxnTooOldError{Start: c.start, Now: ts, MaxTxnAge: min(c.view.lastCommit(c.start).Sub(c.start), c.view.at(ts).MaxTxnAge)}
}

// checkBound returns the error of a commit at ts, which was drawn after everything that
// goes by the catalog was acknowledged (prewrites, conditions that held). Where the
// catalog that it went by does not hold at ts any more, it is read again: a commit
// whose steps take longer than the lease succeeds all the same, unless an observer was
// registered meanwhile. One that is registered later than this reading begins sweeps a
// snapshot above ts; and a safe point that is published later has removed nothing yet.
func (c *committer) checkBound(ctx context.Context, ts Timestamp) error {
	if !c.view.holds(ts) {
		view, err := c.db.loadCatalog(ctx)
		if err != nil {
			return err
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
	}
	return c.checkAge(ts)
}

// beginBy is goBy for the view that is at hand, which may be too old to know an
// observer that a weak notification is for.
func (c *committer) beginBy(ctx context.Context, view *catalogView) error {
	err := c.goBy(view)
	if errors.Is(err, ErrNotObserved) {
		if view, err = c.db.loadCatalog(ctx); err == nil {
			err = c.goBy(view)
		}
	}
	return err
}

// goBy makes the commit go by a view of the catalog, before anything of it was sent.
func (c *committer) goBy(view *catalogView) error {
	c.view = view
	if err := c.checkAge(max(c.start, view.f)); err != nil {
		return err
	}
	for i := range c.notify {
		c.notify[i] = c.observed(i)
	}
	c.splitRows()
	return c.checkWeak()
}

// observed tells whether an observer must be told of a write.
func (c *committer) observed(i int) bool {
	w := &c.writes[i]
	return w.kind != kindLock && len(c.view.observers(w.cell.Table, w.cell.Column)) > 0
}

func (c *committer) primaryOrWeak() Cell {
	if c.primary >= 0 {
		return c.primaryCell()
	}
	return c.tx.weak[0]
}

// undetermined is the error for a commit whose fate is not known.
func (c *committer) undetermined(cause error) error {
	e := &UndeterminedError{Start: c.start, Cause: cause}
	if c.primary >= 0 {
		e.Primary = c.primaryCell().public()
	}
	return e
}

// notifyOnly puts the weak notifications of a transaction without writes, and without
// anything that guards them.
func (c *committer) notifyOnly(ctx context.Context) error {
	ts, err := c.db.draw(ctx)
	if err != nil {
		return err
	}
	if err := c.checkBound(ctx, ts); err != nil {
		return err
	}
	if err := c.putWeak(ctx, ts, rowName{}); err != nil {
		if errors.Is(err, rowstore.ErrAmbiguous) {
			return c.undetermined(err)
		}
		return err
	}
	c.commit = ts
	return nil
}

// putWeak puts the weak notifications at the commit timestamp, but for those of a
// row that is left to somebody else. A put is repeated after a lost reply: putting
// it twice costs one run at most.
func (c *committer) putWeak(ctx context.Context, ts Timestamp, except rowName) error {
	var cells []int
	for i := range c.tx.weak {
		if c.tx.weak[i].rowName() != except {
			cells = append(cells, i)
		}
	}
	row := func(i int) rowName { return c.tx.weak[i].rowName() }
	slices.SortStableFunc(cells, func(a, b int) int {
		return cmp.Or(cmp.Compare(row(a).table, row(b).table), cmp.Compare(row(a).row, row(b).row))
	})
	most := min(64, c.db.rowOperations()) // of one row, in one mutation
	var muts []rowstore.Mutation
	for _, i := range cells {
		cell := &c.tx.weak[i]
		n := len(muts)
		if n == 0 || muts[n-1].Table != cell.Table || muts[n-1].Row != cell.Row || len(muts[n-1].Edits) == most {
			muts = append(muts, rowstore.Mutation{Table: cell.Table, Row: cell.Row})
			n++
		}
		muts[n-1].Edits = append(muts[n-1].Edits, rowstore.Put(rowstore.Notify, cell.Column, ts, weakValue))
	}
	return c.putAll(ctx, muts)
}

// putAll applies mutations that may be applied twice, in pieces, until each has been.
func (c *committer) putAll(ctx context.Context, muts []rowstore.Mutation) error {
	row := func(i int) rowName { return rowName{muts[i].Table, muts[i].Row} }
	bytes := func(i int) int { return len(muts[i].Row) + len(muts[i].Edits)*c.db.limits.Column }
	items := make([]int, len(muts))
	for i := range items {
		items[i] = i
	}
	for attempt := 0; len(items) > 0; attempt++ {
		var again []int
		var lost error
		err := c.db.send(ctx, cut(items, row, bytes), func(i int) rowstore.Mutation { return muts[i] }, rowstore.ApplyOptions{}, func(p *piece) error {
			for i, item := range p.items {
				err := p.err
				if err == nil {
					err = p.outs[i].Err
				}
				switch {
				case errors.Is(err, rowstore.ErrAmbiguous):
					again, lost = append(again, item), err
				case err != nil:
					return fmt.Errorf("putting notifications: %w", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		slices.Sort(again)
		if items = again; len(items) > 0 {
			if err := c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("putting notifications: %w, after %w", err, lost)
			}
		}
	}
	return nil
}

// onePhaseKey returns the group key when the whole transaction fits into one
// all-or-none step of the store that also draws the commit timestamp.
func (c *committer) onePhaseKey() string {
	db := c.db
	if db.grouper == nil || !db.opt.onePhase || db.opt.oracle != nil || len(c.tx.ranges) > 0 {
		return ""
	}
	if !c.fitsGroup(c.beside() + 2*len(c.tx.reads)) {
		return ""
	}
	key := db.grouper.GroupKey(c.primaryCell().Table, c.primaryCell().Row)
	if key == "" || !db.grouper.Draws(key) {
		return ""
	}
	for i := range c.rows {
		cell := &c.writes[c.rows[i].from].cell
		if db.grouper.GroupKey(cell.Table, cell.Row) != key {
			return ""
		}
	}
	for i := range c.tx.weak {
		if db.grouper.GroupKey(c.tx.weak[i].Table, c.tx.weak[i].Row) != key {
			return ""
		}
	}
	for cell := range c.tx.reads {
		if db.grouper.GroupKey(cell.Table, cell.Row) != key {
			return ""
		}
	}
	return key
}

// prewriteConditions are what no other transaction may have left on a column.
func prewriteConditions(conds []rowstore.Condition, column string, start Timestamp) []rowstore.Condition {
	return append(conds,
		rowstore.Absent(rowstore.Write, column, start),
		rowstore.Absent(rowstore.Lock, column, 0),
		rowstore.Absent(rowstore.Rollback, column, start),
	)
}

// onePhaseGroup builds the whole transaction as one group.
func (c *committer) onePhaseGroup() rowstore.Group {
	muts := rowMutations{list: make([]rowstore.Mutation, 0, len(c.rows))}
	// The rows take theirs from these; what a row adds beyond moves.
	conds, edits := make([]rowstore.Condition, 3*len(c.writes)), make([]rowstore.Edit, len(c.writes))
	for from := 0; from < len(c.rows); {
		r := c.rows[from]
		first := &c.writes[r.from].cell
		for from++; from < len(c.rows) && c.writes[c.rows[from].from].cell.rowName() == first.rowName(); from++ {
			r.to = c.rows[from].to // a group names a row once
		}
		m := rowstore.Mutation{
			Table: first.Table, Row: first.Row,
			Conditions: conds[3*r.from : 3*r.from : 3*r.to],
			Edits:      edits[r.from:r.from:r.to],
		}
		for i := r.from; i < r.to; i++ {
			w := &c.writes[i]
			col := w.cell.Column
			m.Conditions = prewriteConditions(m.Conditions, col, c.start)
			if w.kind == kindLock {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Rollback, col, rowstore.Drawn, encodeMark(c.start)))
				continue
			}
			wv := writeValue{kind: w.kind, start: c.start, long: w.long()}
			if wv.long {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, col, c.start, w.value))
			} else {
				wv.value = w.value
			}
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, col, rowstore.Drawn, wv.encode()))
			if c.notify[i] {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, col, rowstore.Drawn, strongValue))
			}
		}
		m.Edits = append(m.Edits, c.extra[first.rowName()]...)
		muts.list = append(muts.list, m)
	}
	for _, cell := range c.tx.weak {
		if i := c.find(cell); i >= 0 && c.notify[i] {
			continue // the strong one at the same timestamp says all
		}
		m := muts.of(cell.Table, cell.Row)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, cell.Column, rowstore.Drawn, weakValue))
	}
	for cell := range c.tx.reads {
		if c.find(cell) >= 0 {
			continue // covered by the conditions of its write
		}
		m := muts.of(cell.Table, cell.Row)
		m.Conditions = append(m.Conditions,
			rowstore.Absent(rowstore.Write, cell.Column, c.start),
			rowstore.Absent(rowstore.Lock, cell.Column, 0))
	}
	return rowstore.Group{Mutations: muts.list, Draw: true, NotAfter: c.bound()}
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
	for ; i < len(c.writes) && c.writes[i].cell.rowName() == cell.rowName(); i++ {
		if c.writes[i].cell == cell {
			return i
		}
	}
	return -1
}

// onePhase commits everything in one call. It holds no locks, so it may wait for
// those of others.
func (c *committer) onePhase(ctx context.Context) error {
	group, late := c.onePhaseGroup(), false
	for attempt := 0; ; attempt++ {
		outs, err := c.db.grouper.Group(ctx, []rowstore.Group{group})
		var out rowstore.GroupOutcome
		if err == nil {
			out, err = outs[0], outs[0].Err
		}
		if err == nil && out.Applied {
			c.commit = out.Commit
			c.db.count.onePhase.Add(1)
			return nil
		}
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return err
		}
		// Nothing is concluded from a refusal alone: it may be the second arrival
		// of a request that succeeded.
		if err != nil {
			c.db.count.ambiguous.Add(1)
			return c.concludeOnePhase(ctx, err)
		}
		state, serr := c.insist(ctx, func() (txnState, error) {
			state, err := c.db.status(ctx, c.start, c.primaryCell())
			if err == nil && state.committed == 0 && !state.complete {
				err = c.db.checkSnapshot(ctx, c.start)
			}
			return state, err
		})
		switch {
		case serr != nil:
			return c.undetermined(serr)
		case state.committed != 0:
			c.commit = state.committed
			c.db.count.onePhase.Add(1)
			return nil
		case out.TooLate:
			// A new view is of a later moment than the timestamp that was refused.
			view, err := c.db.loadCatalog(ctx)
			if err == nil {
				err = c.goBy(view)
			}
			if err != nil {
				return err
			}
			if late || c.onePhaseKey() == "" {
				// The calls take longer than the lease. Between two phases the catalog is
				// read when the commit timestamp is there, so that needs no luck. Or new
				// observers make it too large for one step.
				return c.twoPhase(ctx)
			}
			late, group = true, c.onePhaseGroup()
			continue
		}
		m := &group.Mutations[out.Failed]
		wait, err := c.blocked(ctx, Cell{m.Table, m.Row, m.Conditions[out.Outcome.Failed].Column}, &out.Outcome.Broke)
		if err != nil {
			return err
		}
		if wait {
			if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("waiting for a lock: %w", err)
			}
		}
	}
}

// concludeOnePhase finds out what became of a request whose reply was lost.
func (c *committer) concludeOnePhase(ctx context.Context, cause error) error {
	state, err := c.settleOutcome(ctx)
	switch {
	case err != nil:
		return c.undetermined(errors.Join(cause, err))
	case state.committed != 0:
		c.commit = state.committed
		c.db.count.onePhase.Add(1)
		return nil
	}
	return c.lost(cause)
}

// lost is the error of a commit whose request never arrived, and never will: it
// was fenced. The transaction may be run again.
func (c *committer) lost(cause error) error {
	return fmt.Errorf("%w; %w", c.conflict(c.primaryCell(), c.start, "rolled back after a request was lost"), cause)
}

// settleOutcome decides this transaction's own fate.
func (c *committer) settleOutcome(ctx context.Context) (txnState, error) {
	return c.insist(ctx, func() (txnState, error) {
		return c.db.decide(ctx, c.start, c.primaryCell(), overrideLiving, primaryCell)
	})
}

// insist asks for this transaction's own state, whatever the store answers, until
// the context ends: its caller is told that it is undetermined only then.
func (c *committer) insist(ctx context.Context, ask func() (txnState, error)) (txnState, error) {
	for attempt := 0; ; attempt++ {
		state, err := ask()
		if err == nil || errors.Is(err, ErrSnapshotTooOld) || ctx.Err() != nil || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrClosed) {
			return state, err
		}
		if serr := c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)); serr != nil {
			return state, errors.Join(serr, err)
		}
	}
}

// blocked deals with the version that broke a condition: a lock is resolved or
// waited for, anything else is a conflict. wait tells that the lock's owner lives
// and is older: the younger start waits for the older, never the other way round,
// so that waits form no cycle.
func (c *committer) blocked(ctx context.Context, cell Cell, broke *rowstore.Version) (wait bool, err error) {
	switch broke.Family {
	case rowstore.Lock:
	case rowstore.Rollback:
		return false, c.conflict(cell, broke.TS, "a newer transaction locked the cell, or this one was rolled back")
	default:
		return false, c.conflict(cell, broke.TS, "another transaction wrote the cell")
	}
	l, err := decodeLock(broke.Value)
	if err != nil {
		return false, fmt.Errorf("%v: %w", cell.public(), err)
	}
	settled, err := c.db.resolveLock(ctx, cell, broke.TS, &l, respectLiving)
	if err != nil || settled {
		return false, err
	}
	if broke.TS > c.start {
		return false, c.conflict(cell, broke.TS, "a newer transaction has the cell locked")
	}
	return true, nil
}

// deferrable tells whether prewrites and secondaries may become durable later:
// only where every row and the oracle are in one store that defers.
func (c *committer) deferrable() bool {
	if !c.db.defers || c.db.opt.oracle != nil {
		return false
	}
	if c.db.placer == nil {
		return true
	}
	for i := range c.rows {
		if !c.db.placer.Authoritative(c.writes[c.rows[i].from].cell.Table) {
			return false
		}
	}
	return true
}

// twoPhase is the general commit.
func (c *committer) twoPhase(ctx context.Context) error {
	session, err := c.db.session.get(ctx)
	if err != nil {
		return err
	}
	deferred := c.deferrable()
	stop := func() {
		if c.stopBeat != nil {
			c.stopBeat()
		}
	}
	defer stop()
	if err := c.prewrite(ctx, session, deferred); err != nil {
		stop()
		c.abort(ctx)
		return err
	}
	incarnation, err := c.prepare(ctx, deferred)
	if err != nil {
		stop()
		c.abort(ctx)
		return err
	}
	primaryRow := c.weakWithPrimary()
	if err := c.putWeak(ctx, c.commit, primaryRow); err != nil {
		stop()
		c.abort(ctx)
		return err
	}
	return c.commitPoint(ctx, incarnation, deferred)
}

// prepare is what stands between the prewrites and the commit point: the commit
// timestamp, drawn after every prewrite was acknowledged, and what it must pass.
func (c *committer) prepare(ctx context.Context, deferred bool) (incarnation string, err error) {
	if deferred {
		// Undeferred prewrites cannot be lost; and those of several stores, which
		// have incarnations of their own, are never deferred.
		incarnation = c.rows[0].incarnation
		for i := range c.rows {
			if c.rows[i].incarnation != incarnation {
				return "", c.conflict(c.primaryCell(), 0, "the store restarted between two prewrites")
			}
		}
	}
	if c.commit == 0 {
		if c.commit, err = c.db.draw(ctx); err != nil {
			return "", err
		}
	}
	if err := c.checkBound(ctx, c.commit); err != nil {
		return "", err
	}
	if c.tx.opt.isolation == Serializable {
		if err := c.validate(ctx); err != nil {
			return "", err
		}
	}
	return incarnation, nil
}

func (c *committer) lockOf(i int, session string, expiry Timestamp) lockValue {
	w := &c.writes[i]
	l := lockValue{
		kind: w.kind, notify: c.notify[i], long: w.long(),
		expiry: expiry, session: session, primary: c.primaryCell(),
	}
	if !l.long {
		l.value = w.value
	}
	return l
}

func (c *committer) prewriteMutation(r commitRow, session string, expiry Timestamp) rowstore.Mutation {
	n := r.to - r.from
	first := &c.writes[r.from].cell
	m := rowstore.Mutation{
		Table: first.Table, Row: first.Row,
		Conditions: make([]rowstore.Condition, 0, 3*n),
		Edits:      make([]rowstore.Edit, 0, 2*n),
	}
	for i := r.from; i < r.to; i++ {
		w := &c.writes[i]
		l := c.lockOf(i, session, expiry)
		m.Conditions = prewriteConditions(m.Conditions, w.cell.Column, c.start)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Lock, w.cell.Column, c.start, l.encode()))
		if l.long {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, w.cell.Column, c.start, w.value))
		}
		if l.notify {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, w.cell.Column, c.start, strongValue))
		}
	}
	return m
}

// prewrite locks every row, in pieces, and repeats what was lost or waited. The piece
// with the primary goes first: with its lock the heartbeat begins, which keeps the
// transaction alive however long the others take.
func (c *committer) prewrite(ctx context.Context, session string, deferred bool) error {
	for attempt := 0; ; attempt++ {
		var which []int
		if !c.rows[c.primaryRow].locked {
			which = append(which, c.primaryRow)
		}
		for i := range c.rows {
			if !c.rows[i].locked && i != c.primaryRow {
				which = append(which, i)
			}
		}
		if len(which) == 0 {
			return nil
		}
		pieces := cut(which, c.nameOf, c.bytesOf)
		if len(pieces) > 1 && !c.rows[c.primaryRow].locked {
			pieces = pieces[:1]
		}
		// Nothing else is under way and nothing is to be sent again if all of these are
		// locked; so a timestamp that is drawn after them is a commit timestamp.
		last := len(pieces) == 1 && len(pieces[0]) == len(which)
		wait, err := c.prewritePieces(ctx, pieces, session, rowstore.ApplyOptions{Deferred: deferred, Draw: last && c.db.opt.oracle == nil})
		if err != nil {
			return err
		}
		if wait {
			if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("prewriting: %w", err)
			}
		}
	}
}

func (c *committer) nameOf(row int) rowName { return c.writes[c.rows[row].from].cell.rowName() }

func (c *committer) bytesOf(row int) int { return c.rows[row].bytes }

// prewritePieces sends prewrites. wait tells that some should be sent again a little
// later.
func (c *committer) prewritePieces(ctx context.Context, pieces [][]int, session string, opts rowstore.ApplyOptions) (wait bool, err error) {
	build := func(row int) rowstore.Mutation {
		c.rows[row].sent = true
		lasts := c.db.session.lasts(c.db.opt.lockExpiry)
		if row == c.primaryRow {
			c.lockAsked, c.lockLasts = c.db.clock.Now(), lasts
		}
		return c.prewriteMutation(c.rows[row], session, c.expiry(lasts))
	}
	failed := false
	err = c.db.send(ctx, pieces, build, opts, func(p *piece) error {
		c.db.session.took(p.took)
		if p.err != nil && !errors.Is(p.err, rowstore.ErrAmbiguous) {
			failed = true
			return fmt.Errorf("prewriting: %w", p.err)
		}
		wait = wait || p.err != nil
		if len(p.outs) > 0 && !slices.ContainsFunc(p.outs, func(o rowstore.Outcome) bool { return o.Drawn == 0 }) {
			c.commit = p.outs[0].Drawn
		}
		if failed {
			c.noteRest(p.items, p.outs)
			return nil
		}
		for i := range p.outs {
			again, err := c.prewritten(ctx, &c.rows[p.items[i]], &p.muts[i], &p.outs[i])
			if err != nil {
				c.noteRest(p.items[i+1:], p.outs[i+1:])
				failed = true
				return err
			}
			if c.stopBeat == nil && c.rows[c.primaryRow].locked {
				c.stopBeat = c.heartbeat(session)
			}
			wait = wait || again
		}
		return nil
	})
	return wait, err
}

// noteRest keeps what is known of the rows behind one that failed, so that the
// abort knows which may be locked.
func (c *committer) noteRest(which []int, outs []rowstore.Outcome) {
	for i := range outs {
		if outs[i].Applied {
			c.rows[which[i]].locked = true
		}
	}
}

// prewritten judges the outcome of one row's prewrite. wait tells that it should
// be sent again a little later.
func (c *committer) prewritten(ctx context.Context, r *commitRow, m *rowstore.Mutation, out *rowstore.Outcome) (wait bool, err error) {
	switch {
	case out.Applied:
		r.locked, r.incarnation = true, out.Incarnation
		return false, nil
	case errors.Is(out.Err, rowstore.ErrAmbiguous):
		return true, nil
	case out.Err != nil:
		return false, fmt.Errorf("prewriting: %w", out.Err)
	case out.Broke.Family == rowstore.Lock && out.Broke.TS == c.start:
		// An earlier arrival of the same request succeeded.
		r.locked, r.incarnation = true, out.Incarnation
		return false, nil
	}
	return c.blocked(ctx, Cell{m.Table, m.Row, m.Conditions[out.Failed].Column}, &out.Broke)
}

// expiry is when a lock put now, which lasts for d, may be taken for dead.
func (c *committer) expiry(d time.Duration) Timestamp {
	return c.db.estimate(c.start, c.began).Add(d)
}

// heartbeat extends the expiry on the primary's lock until stop is called, which
// waits for the last one to end: nothing else changes a lock's value, and nothing
// of this transaction may be under way when it is over.
func (c *committer) heartbeat(session string) (stop func()) {
	ctx, cancel := context.WithCancel(c.db.ctx)
	done := make(chan struct{})
	asked, lasts := c.lockAsked, c.lockLasts
	if !c.db.background(func(context.Context) {
		defer close(done)
		for c.db.clock.Sleep(ctx, renewIn(c.db.clock, asked, lasts)) == nil {
			asked, lasts = c.db.clock.Now(), c.db.session.lasts(c.db.opt.lockExpiry)
			l := c.lockOf(c.primary, session, c.expiry(lasts))
			p := c.primaryCell()
			out, err := c.db.applyUrgent(ctx, rowstore.Mutation{
				Table: p.Table, Row: p.Row,
				Conditions: []rowstore.Condition{rowstore.Present(p.Column, c.start)},
				Edits:      []rowstore.Edit{rowstore.Put(rowstore.Lock, p.Column, c.start, l.encode())},
			})
			c.db.session.took(c.db.clock.Now().Sub(asked))
			if err == nil && !out.Applied {
				return // decided, by us or by somebody else
			}
		}
	}) {
		close(done)
	}
	return func() {
		cancel()
		<-done
	}
}

// validate checks that nothing that a Serializable transaction read has changed by
// its commit timestamp. Every prewrite was acknowledged before: of two
// transactions that each wrote what the other read, one at least sees the other's
// lock or write.
func (c *committer) validate(ctx context.Context) error {
	if err := c.validateCells(ctx); err != nil {
		return err
	}
	for i := range c.tx.ranges {
		if err := c.validateRange(ctx, &c.tx.ranges[i]); err != nil {
			return err
		}
	}
	return nil
}

func validationPicks(picks []rowstore.Pick, column string, start, commit Timestamp) []rowstore.Pick {
	return append(picks,
		rowstore.Pick{Family: rowstore.Lock, Column: column, To: commit, Limit: 1},
		rowstore.Pick{Family: rowstore.Write, Column: column, From: start + 1, To: commit, Limit: 1})
}

func (c *committer) validateCells(ctx context.Context) error {
	var reads []rowstore.RowRead
	index := map[rowName]int{}
	for cell := range c.tx.reads {
		if c.find(cell) >= 0 {
			continue // its prewrite has checked it
		}
		i, ok := index[cell.rowName()]
		if !ok {
			i = len(reads)
			index[cell.rowName()] = i
			reads = append(reads, rowstore.RowRead{Table: cell.Table, Row: cell.Row})
		}
		reads[i].Picks = validationPicks(reads[i].Picks, cell.Column, c.start, c.commit)
	}
	for attempt := 0; len(reads) > 0; attempt++ {
		var again []rowstore.RowRead
		for some := range slices.Chunk(reads, pieceRows) {
			rows, err := c.db.readRows(ctx, some)
			if err != nil {
				return fmt.Errorf("validating: %w", err)
			}
			for i := range rows {
				blocked, err := c.validateRow(ctx, &rows[i], func(string) bool { return true })
				if err != nil {
					return err
				}
				if blocked {
					again = append(again, some[i])
				}
			}
		}
		if reads = again; len(reads) > 0 {
			if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("validating: %w", err)
			}
		}
	}
	return nil
}

// validateRow judges one view of a row. blocked tells to look again.
func (c *committer) validateRow(ctx context.Context, row *rowstore.Row, counts func(column string) bool) (blocked bool, err error) {
	for i := range row.Versions {
		v := &row.Versions[i]
		if !counts(v.Column) {
			continue
		}
		cell := Cell{row.Table, row.Row, v.Column}
		if v.Family == rowstore.Write {
			return false, c.conflict(cell, v.TS, "another transaction wrote what this serializable one read")
		}
		if v.TS == c.start {
			continue // our own
		}
		l, err := decodeLock(v.Value)
		if err != nil {
			return false, fmt.Errorf("%v: %w", cell.public(), err)
		}
		if l.kind == kindLock {
			continue
		}
		if _, err := c.blocked(ctx, cell, v); err != nil {
			return false, err
		}
		blocked = true
	}
	return blocked, nil
}

func (c *committer) validateRange(ctx context.Context, r *readRange) error {
	var picks []rowstore.Pick
	for _, col := range r.columns {
		picks = validationPicks(picks, col, c.start, c.commit)
	}
	counts := func(string) bool { return true }
	if r.columns == nil {
		picks = validationPicks(nil, rowstore.AllColumns, c.start, c.commit)
		counts = func(column string) bool { return !reserved(column) }
	}
	for attempt := 0; ; attempt++ {
		blocked := false
		for row, err := range c.db.store.Scan(ctx, rowstore.ScanRange{Table: r.table, From: r.from, To: r.to, Picks: picks}) {
			if err != nil {
				return fmt.Errorf("validating: %w", err)
			}
			b, err := c.validateRow(ctx, &row, counts)
			if err != nil {
				return err
			}
			blocked = blocked || b
		}
		if !blocked {
			return nil
		}
		if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
			return fmt.Errorf("validating: %w", err)
		}
	}
}

// commitMutation commits one row as a whole.
func (c *committer) commitMutation(r commitRow) rowstore.Mutation {
	n := r.to - r.from
	first := &c.writes[r.from].cell
	m := rowstore.Mutation{
		Table: first.Table, Row: first.Row,
		Conditions: make([]rowstore.Condition, 0, n+1),
		Edits:      make([]rowstore.Edit, 0, 4*n),
	}
	for i := r.from; i < r.to; i++ {
		m.Conditions = append(m.Conditions, rowstore.Present(c.writes[i].cell.Column, c.start))
		m.Edits = c.commitEditsOf(m.Edits, i)
	}
	m.Edits = append(m.Edits, c.extraOf(&m)...)
	return m
}

func (c *committer) commitEditsOf(edits []rowstore.Edit, i int) []rowstore.Edit {
	w := &c.writes[i]
	value := w.value
	if w.long() {
		value = nil
	}
	return commitEdits(edits, w.cell.Column, c.start, c.commit, w.kind, value, w.long(), c.notify[i])
}

// weakWithPrimary is the row whose weak notifications go with the commit point: the
// primary's, unless they are too many.
func (c *committer) weakWithPrimary() rowName {
	if c.split || !c.fitsGroup(c.beside()+1) {
		return rowName{}
	}
	return c.primaryCell().rowName()
}

// commitPoint makes the decision: the primary's row turns from lock to committed.
// From here on no prewrite is sent.
func (c *committer) commitPoint(ctx context.Context, incarnation string, deferred bool) error {
	first := c.commitMutation(c.rows[c.primaryRow])
	rest := slices.Delete(slices.Clone(c.rows), c.primaryRow, c.primaryRow+1)
	if incarnation != "" {
		first.Conditions = append(first.Conditions, rowstore.Incarnation(incarnation))
	}
	if with := c.weakWithPrimary(); with != (rowName{}) {
		for _, cell := range c.tx.weak {
			if i := c.find(cell); cell.rowName() == with && (i < 0 || !c.notify[i]) {
				first.Edits = append(first.Edits, rowstore.Put(rowstore.Notify, cell.Column, c.commit, weakValue))
			}
		}
	}
	group, grouped := c.commitGroup(first, rest)
	var lost error // the last error after which the request may have been applied
	for attempt := 0; ; attempt++ {
		applied, err := false, error(nil)
		if grouped {
			applied, err = c.sendGroup(ctx, group)
		} else {
			var out rowstore.Outcome
			out, err = c.db.applyOne(ctx, first)
			applied = out.Applied
		}
		switch {
		case err == nil && applied:
			return c.committed(rest, grouped, deferred)
		case errors.Is(err, rowstore.ErrAmbiguous):
			c.db.count.ambiguous.Add(1)
			lost = err
			// Sent again it is applied under its own lock, or refused.
			if attempt < commitAttempts && c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)) == nil {
				continue
			}
		case err != nil && lost == nil:
			c.abort(ctx)
			return fmt.Errorf("committing the primary: %w", err)
		}
		// A refusal may be the second arrival of a request that succeeded; and with
		// the lock still there, the store has lost deferred prewrites.
		state, serr := c.settleOutcome(ctx)
		switch {
		case serr != nil:
			c.finishLater(rest, deferred)
			return c.undetermined(errors.Join(serr, lost))
		case state.committed != 0:
			c.commit = state.committed
			return c.committed(rest, false, deferred)
		}
		c.abort(ctx)
		if lost != nil {
			return c.lost(lost)
		}
		return c.conflict(c.primaryCell(), c.start, "another process took this transaction for dead and rolled it back, or the store restarted")
	}
}

// finishLater decides the transaction in the background when the caller could not
// wait, so that its locks hold up nobody longer than need be.
func (c *committer) finishLater(rest []commitRow, deferred bool) {
	timeout := c.enough(c.db.cleanUpTimeout())
	c.db.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		state, err := c.settleOutcome(ctx)
		switch {
		case err != nil:
			c.db.log.Debug("the locks of an undetermined transaction were left for others to resolve", "start", uint64(c.start), "err", err)
		case state.committed != 0:
			c.commit = state.committed
			c.commitSecondaries(ctx, rest, deferred)
		default:
			c.goOn(ctx, c.rollBackAll(ctx), c.rollBackAll)
		}
	})
}

// commitAttempts is how often a commit whose reply was lost is sent again before
// its fate is asked for.
const commitAttempts = 2

// commitGroup puts all rows into one all-or-none step, where the store has one.
// Never into a plain batch: its rows are independent, and a secondary would be
// committed beside a primary that was rolled back.
func (c *committer) commitGroup(first rowstore.Mutation, rest []commitRow) (rowstore.Group, bool) {
	if c.db.grouper == nil || len(rest) == 0 || c.split || !c.fitsGroup(c.beside()+1) {
		return rowstore.Group{}, false
	}
	key := c.db.grouper.GroupKey(first.Table, first.Row)
	if key == "" {
		return rowstore.Group{}, false
	}
	muts := make([]rowstore.Mutation, 1, 1+len(rest))
	muts[0] = first
	for _, r := range rest {
		m := c.commitMutation(r)
		if c.db.grouper.GroupKey(m.Table, m.Row) != key {
			return rowstore.Group{}, false
		}
		muts = append(muts, m)
	}
	return rowstore.Group{Mutations: muts}, true
}

func (c *committer) sendGroup(ctx context.Context, g rowstore.Group) (applied bool, err error) {
	outs, err := c.db.grouper.Group(ctx, []rowstore.Group{g})
	if err == nil {
		applied, err = outs[0].Applied, outs[0].Err
	}
	return applied, err
}

// committed is what follows the commit point.
func (c *committer) committed(rest []commitRow, grouped, deferred bool) error {
	if grouped {
		c.db.count.group.Add(1)
		return nil
	}
	c.db.count.twoPhase.Add(1)
	if len(rest) > 0 {
		timeout := c.enough(c.db.backgroundTimeout())
		c.db.background(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			c.commitSecondaries(ctx, rest, deferred)
		})
	}
	return nil
}

// commitSecondaries commits the rows behind the primary's. What fails for good is
// left to whoever meets the locks.
func (c *committer) commitSecondaries(ctx context.Context, rest []commitRow, deferred bool) {
	commit := func(ctx context.Context) error { return c.applyRows(ctx, rest, deferred, c.commitMutation) }
	c.goOn(ctx, commit(ctx), commit)
}

// applyRows applies a mutation for each row, in pieces, and where one does not hold as a
// whole, for each half of it: a resolver may have dealt with one cell of the row, and
// the others are still locked. It may be repeated.
func (c *committer) applyRows(ctx context.Context, rows []commitRow, deferred bool, build func(commitRow) rowstore.Mutation) error {
	var failed []error
	for len(rows) > 0 {
		items := make([]int, len(rows))
		for i := range items {
			items[i] = i
		}
		pieces := cut(items, func(i int) rowName { return c.writes[rows[i].from].cell.rowName() }, func(i int) int { return rows[i].bytes })
		var firsts, seconds []commitRow // halves; apart, so that a piece has many rows
		err := c.db.send(ctx, pieces, func(i int) rowstore.Mutation { return build(rows[i]) }, rowstore.ApplyOptions{Deferred: deferred}, func(p *piece) error {
			if p.err != nil {
				return p.err
			}
			for i, item := range p.items {
				r := rows[item]
				if p.outs[i].Err != nil {
					failed = append(failed, p.outs[i].Err)
				} else if !p.outs[i].Applied && r.to-r.from > 1 {
					mid := (r.from + r.to) / 2
					firsts = append(firsts, commitRow{from: r.from, to: mid, bytes: r.bytes})
					seconds = append(seconds, commitRow{from: mid, to: r.to, bytes: r.bytes})
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		rows = append(firsts, seconds...)
	}
	return errors.Join(failed...)
}

// enough is how long something that takes about d for a small transaction may take for
// this one.
func (c *committer) enough(d time.Duration) time.Duration {
	return c.db.session.lasts(d) * time.Duration(1+len(c.rows)/pieceRows)
}

// abort removes what the prewrites have left. It goes on when the caller's context
// has ended, and after a first try that failed; the caller waits for the first try
// only. Where a prewrite of the primary may still be under way, the fence keeps it
// from taking effect.
func (c *committer) abort(ctx context.Context) {
	tried := make(chan struct{})
	timeout := c.enough(c.db.cleanUpTimeout())
	if !c.db.background(func(bg context.Context) {
		bg, cancel := context.WithTimeout(bg, timeout)
		defer cancel()
		err := c.rollBackAll(bg)
		close(tried)
		c.goOn(bg, err, c.rollBackAll)
	}) {
		return
	}
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// goOn repeats a clean-up that failed with err until it succeeds or the context
// ends; then whoever meets the locks resolves them.
func (c *committer) goOn(ctx context.Context, err error, cleanUp func(context.Context) error) {
	for attempt := 0; err != nil && !errors.Is(err, ErrClosed); attempt++ {
		// Below the safe point the fate of this transaction is not to be had any more, but
		// whoever meets one of its locks may roll that back, as the collection does.
		if errors.Is(err, ErrSnapshotTooOld) || c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)) != nil {
			c.db.log.Debug("locks were left for others to resolve", "start", uint64(c.start), "err", err)
			return
		}
		err = cleanUp(ctx)
	}
}

// rollBackAll rolls back every row that was prewritten, or may have been. The
// primary goes first, as always.
func (c *committer) rollBackAll(ctx context.Context) error {
	var rows []commitRow
	if r := c.rows[c.primaryRow]; r.sent {
		done, err := c.rollBackOwnPrimary(ctx, r)
		if err != nil {
			return err // the rest waits for a decision, as everybody's does
		}
		if !done {
			rows = append(rows, r)
		}
	}
	for i, r := range c.rows {
		if r.sent && i != c.primaryRow {
			rows = append(rows, r)
		}
	}
	return c.applyRows(ctx, rows, false, c.rollBackMutation)
}

func (c *committer) rollBackMutation(r commitRow) rowstore.Mutation {
	m := rowstore.Mutation{Table: c.writes[r.from].cell.Table, Row: c.writes[r.from].cell.Row}
	for i := r.from; i < r.to; i++ {
		col := c.writes[i].cell.Column
		m.Conditions = append(m.Conditions, rowstore.Present(col, c.start))
		m.Edits = rollBackEdits(m.Edits, col, c.start, c.writes[i].long(), c.notify[i])
		if i == c.primary {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Rollback, col, c.start, nil))
		}
	}
	return m
}

// rollBackOwnPrimary removes the locks of the primary's row and leaves the mark,
// or fences a primary whose prewrite may be under way. done tells that the row is
// clean; without an error the transaction can not be committed any more.
func (c *committer) rollBackOwnPrimary(ctx context.Context, r commitRow) (done bool, err error) {
	out, err := c.db.applyOne(ctx, c.rollBackMutation(r))
	if err != nil {
		return false, err
	}
	if out.Applied {
		return true, nil
	}
	state, err := c.db.decide(ctx, c.start, c.primaryCell(), overrideLiving, primaryCell)
	if err == nil && state.committed != 0 {
		return false, fmt.Errorf("transaction %d is committed and is not rolled back", uint64(c.start))
	}
	return false, err
}
