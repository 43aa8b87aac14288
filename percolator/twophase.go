package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The two-phase commit (section 2.2 of the paper), in the order of its steps: prewrite,
// with the heartbeat of the primary's lock; the commit timestamp and its checks; the
// commit point; the secondaries. Where the store commits groups, the commit point of a
// small transaction is all of its rows.

// twoPhase is the general commit.
func (c *committer) twoPhase(ctx context.Context) error {
	if err := c.lastingPrimary(); err != nil {
		return err
	}
	clean := false // after a panic
	c.db.session.begin(c.start)
	defer func() { c.db.session.finish(c.start, clean, "") }()
	err := c.twoPhases(ctx)
	clean = true // what goes on in the background is noted by itself
	return err
}

// twoPhases is twoPhase for a transaction that the session has noted.
func (c *committer) twoPhases(ctx context.Context) error {
	session, err := c.db.session.get(ctx, c.start)
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

// prewrite locks every row, in pieces. It sends rows again whose reply was lost, or
// that had to wait. The piece with the primary goes first: its lock starts the
// heartbeat, which keeps the transaction alive however long the other pieces take.
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
		pieces := newCutter(which, c.nameOf, c.bytesOf)
		// If one call sends all that is left and locks every row, nothing else is under
		// way and nothing is sent again. So a timestamp that is drawn after it may be the
		// commit timestamp.
		last := pieces.one()
		if !last && !c.rows[c.primaryRow].locked {
			pieces.items = pieces.next(fewestRows)
		}
		wait, err := c.prewritePieces(ctx, pieces, session, rowstore.ApplyOptions{Deferred: deferred, AssignTimestamp: last && c.db.opt.oracle == nil})
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
func (c *committer) prewritePieces(ctx context.Context, pieces *cutter, session string, opts rowstore.ApplyOptions) (wait bool, err error) {
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
		if p.err != nil && !mayAskAgain(p.err) {
			failed = true
			return fmt.Errorf("prewriting: %w", p.err)
		}
		wait = wait || p.err != nil
		if len(p.outs) > 0 && !slices.ContainsFunc(p.outs, func(o rowstore.Outcome) bool { return o.Timestamp == 0 }) {
			c.commit = p.outs[0].Timestamp
		}
		if failed {
			return nil // the transaction rolls back whatever was sent
		}
		var met blockers
		for i := range p.outs {
			again, err := c.prewritten(&met, &c.rows[p.items[i]], &p.muts[i], &p.outs[i])
			if err != nil {
				failed = true
				return err
			}
			if c.stopBeat == nil && c.rows[c.primaryRow].locked {
				c.stopBeat = c.heartbeat(session)
			}
			wait = wait || again
		}
		again, err := c.clearRows(ctx, &met)
		failed = err != nil
		wait = wait || again
		return err
	})
	return wait, err
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
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Lock, w.cell.Column, c.start, l.Encode()))
		if l.Long {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, w.cell.Column, c.start, w.value))
		}
		if l.Notify {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, w.cell.Column, c.start, c.origin.notification(format.NotifyStrong)))
		}
	}
	m.Conditions = c.guardRow(m.Conditions, r.from, r.to)
	return m
}

func (c *committer) lockOf(i int, session string, expiry Timestamp) format.Lock {
	w := &c.writes[i]
	l := format.Lock{
		Kind: w.kind, Notify: c.notify[i], Long: w.long(),
		Expiry: expiry, Session: session, Primary: format.Cell(c.primaryCell()),
	}
	if l.Notify {
		l.Cascade = c.origin.encoded()
	}
	if !l.Long {
		l.Value = w.value
	}
	return l
}

// expiry is when the owner of a lock put now, which lasts for d, may be taken for dead.
func (c *committer) expiry(d time.Duration) Timestamp {
	return c.db.estimate(c.start, c.began).Add(d)
}

// prewritten judges the outcome of one row's prewrite. wait tells that it should
// be sent again a little later. A lock in the way is added to met.
func (c *committer) prewritten(met *blockers, r *commitRow, m *rowstore.Mutation, out *rowstore.Outcome) (wait bool, err error) {
	switch {
	case out.Applied:
		r.locked, r.incarnation = true, out.Incarnation
		return false, nil
	case mayAskAgain(out.Err):
		return true, nil
	case out.Err != nil:
		return false, fmt.Errorf("prewriting: %w", out.Err)
	case out.Broke.Family == rowstore.Lock && out.Broke.TS == c.start:
		// An earlier arrival of the same request succeeded.
		r.locked, r.incarnation = true, out.Incarnation
		return false, nil
	}
	return false, c.block(met, m, out.Failed, &out.Broke)
}

// heartbeat extends the expiry on the primary's lock until stop is called. stop waits
// for the last extension to end, because nothing of this transaction may be under way
// once the transaction is over. Nothing else changes a lock's value.
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
				Edits:      []rowstore.Edit{rowstore.Put(rowstore.Lock, p.Column, c.start, l.Encode())},
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

// prepare does what lies between the prewrites and the commit point: it gets the commit
// timestamp, drawn after every prewrite was acknowledged, and checks it.
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
	c.endUse(false)
	if err := c.checkBound(ctx, c.commit); err != nil {
		return "", err
	}
	if err := c.validateGone(ctx); err != nil {
		return "", err
	}
	if c.tx.opt.isolation == Serializable {
		if err := c.validate(ctx); err != nil {
			return "", err
		}
		if err := c.checkReads(ctx); err != nil {
			return "", err
		}
	}
	return incarnation, nil
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
		first.Conditions = append(first.Conditions, rowstore.SameIncarnation(incarnation))
	}
	if with := c.weakWithPrimary(); with != (rowName{}) {
		for _, n := range c.notices {
			if i := c.find(n.cell); n.cell.rowName() == with && (i < 0 || !c.notify[i]) {
				first.Edits = append(first.Edits, rowstore.Put(rowstore.Notify, n.cell.Column, c.commit, n.value))
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
			// Sending it again is safe: it is applied under its own lock, or refused.
			if attempt < commitAttempts && c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)) == nil {
				continue
			}
		case err != nil && lost == nil:
			c.abort(ctx)
			return fmt.Errorf("committing the primary: %w", err)
		}
		// A refusal may come from the second arrival of a request that succeeded. If the
		// lock is still there, the store has lost deferred prewrites.
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

// commitAttempts is how often a commit whose reply was lost is sent again before its
// outcome is asked for.
const commitAttempts = 2

// commitGroup puts all rows into one all-or-none step, if the store has one. It never
// uses a plain batch: the rows of a batch are independent, so a secondary could be
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
	return commitEdits(edits, w.cell.Column, c.start, c.commit, w.kind, value, w.long(), c.notificationOf(i))
}

// finishLater decides the transaction in the background when the caller could not
// wait, so that its locks hold up nobody longer than need be.
func (c *committer) finishLater(rest []commitRow, deferred bool) {
	c.resolveLater(c.db.cleanUpTimeout(), deferred, func(ctx context.Context) bool {
		state, err := c.settleOutcome(ctx)
		switch {
		case err != nil:
			c.db.log.Debug("the locks of an undetermined transaction were left for others to resolve", "start", uint64(c.start), "err", err)
			return false
		case state.committed != 0:
			c.commit = state.committed
			return c.commitSecondaries(ctx, rest, deferred)
		default:
			return c.retryCleanUp(ctx, c.rollBackAll(ctx), c.rollBackAll)
		}
	})
}

// resolveLater works in the background at the locks that the transaction has left, for as long as such work for a
// small transaction may take. deferred tells that a crash of the store may undo the work, clean that no lock is left any
// more. It returns false if the DB is closing.
func (c *committer) resolveLater(takes time.Duration, deferred bool, work func(ctx context.Context) (clean bool)) bool {
	timeout := c.enough(takes)
	incarnation := ""
	if deferred {
		incarnation = c.rows[c.primaryRow].incarnation // as all have it
	}
	c.db.session.begin(c.start)
	begun := c.db.background(func(ctx context.Context) {
		clean := false
		defer func() { c.db.session.finish(c.start, clean, incarnation) }()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		clean = work(ctx)
	})
	if !begun {
		c.db.session.finish(c.start, false, "")
	}
	return begun
}

// committed does what follows the commit point.
func (c *committer) committed(rest []commitRow, grouped, deferred bool) error {
	if grouped {
		c.db.count.group.Add(1)
		c.tx.trace.goes("group")
		return nil
	}
	c.db.count.twoPhase.Add(1)
	c.tx.trace.goes("two phases")
	if len(rest) > 0 {
		c.resolveLater(c.db.backgroundTimeout(), deferred, func(ctx context.Context) bool {
			return c.commitSecondaries(ctx, rest, deferred)
		})
	}
	return nil
}

// commitSecondaries commits the rows other than the primary's. What fails for good is
// left to the transactions that meet the locks; then it returns false.
func (c *committer) commitSecondaries(ctx context.Context, rest []commitRow, deferred bool) bool {
	commit := func(ctx context.Context) error { return c.applyRows(ctx, rest, deferred, c.commitMutation) }
	return c.retryCleanUp(ctx, commit(ctx), commit)
}

// applyRows applies a mutation for each row, in pieces. If a row's mutation does not
// hold as a whole, it applies one for each half of the row: a resolver may have handled
// one cell while the others are still locked. applyRows may be repeated.
func (c *committer) applyRows(ctx context.Context, rows []commitRow, deferred bool, build func(commitRow) rowstore.Mutation) error {
	var failed []error
	for len(rows) > 0 {
		items := make([]int, len(rows))
		for i := range items {
			items[i] = i
		}
		pieces := newCutter(items, func(i int) rowName { return c.writes[rows[i].from].cell.rowName() }, func(i int) int { return rows[i].bytes })
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
