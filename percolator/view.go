package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// cellView is what one atomic view shows of an observed cell.
type cellView struct {
	cell Cell // stored
	at   Timestamp
	registrations
	acks    []Timestamp // of each registration: what it has seen, 0 for nothing yet
	ackedAt []Timestamp // when that was committed
	// ackLocked tells that another acknowledgment may be under way, ackFree that there is no lock of any kind.
	ackLocked, ackFree []bool
	// failureLocked tells that a request for a replay may be under way.
	failureLocked []bool
	failures      []format.Failure   // what counts of the records, see failureIn
	recorded      []bool             // there is a record, whether it counts or not
	change        Timestamp          // the newest change at or below at
	writes        []rowstore.Version // the newest at or below at: one, or two for an observer of old values
	notified      []rowstore.Version // all notifications, newest first
	seen          []rowstore.Version // those at or below at
	timer         timerView
	later         bool          // there are notifications above at
	claimed       Timestamp     // until when another run of the job's observer is claimed
	claimedBy     string        // by which worker
	row           *rowstore.Row // for the function of an observer
	timely        bool          // as in readAt
}

// currentView is view for the observers that the catalog has at the snapshot. The
// catalog must have been read less than a lease before it. Then what is removed is at
// or below asOf + lease, and the sweep of an observer that is missing here sees every
// change up to there. A snapshot that is drawn with the view is not known before the
// view. Then the view counts if the catalog still names the same observers afterwards.
func (w *Worker) currentView(ctx context.Context, c Cell, o *Observer, s *snapshot) (v *cellView, blocked bool, err error) {
	known := w.db.known().registrations(c.Table, c.Column)
	for {
		fresh := s.set
		if fresh {
			catalog, err := w.db.catalogFor(ctx, s.start)
			if err != nil {
				return nil, false, err
			}
			known = catalog.registrations(c.Table, c.Column)
		}
		if v, blocked, err = w.view(ctx, c, o, known, s); err != nil || blocked || fresh {
			return v, blocked, err
		}
		catalog, err := w.db.catalogFor(ctx, s.start)
		if err != nil {
			return nil, false, err
		}
		if now := catalog.registrations(c.Table, c.Column); known.same(&now) {
			return v, false, nil
		}
	}
}

// view reads the cell, its notifications, acknowledgments and failure records in one
// atomic view. That view has no put or delete lock at or below the snapshot, neither on
// the cell nor on the columns that the observer o keeps beside it. A nil o stands for
// all observers of this worker. blocked means that the owner of such a lock lives.
func (w *Worker) view(ctx context.Context, c Cell, o *Observer, known registrations, s *snapshot) (v *cellView, blocked bool, err error) {
	read := []rowstore.RowRead{viewRead(c, known, s.at())}
	if o != nil {
		if o.OnChange != nil {
			read[0].Selectors[viewWrites].Limit = 2
		}
		read[0].Selectors = o.prefetchPicks(read[0].Selectors, s.at())
		read[0].Selectors = append(read[0].Selectors, rowstore.Selector{Family: rowstore.Mark, Column: format.ClaimColumn(o.id, c.Column), To: oracle.Max, Limit: 1})
	}
	for {
		w.db.count.observerViews.Add(1)
		rows, timely, err := w.db.readAt(ctx, read, s)
		if err != nil {
			return nil, false, fmt.Errorf("looking at %v: %w", c.public(), err)
		}
		row := &rows[0]
		switch resolved, blocked, err := w.resolveLocks(ctx, row, c, o); {
		case err != nil || blocked:
			return nil, blocked, err
		case resolved:
			continue
		}
		if v, err = parseView(row, c, known, s.start); err != nil {
			return nil, false, fmt.Errorf("%v: %w", c.public(), err)
		}
		if o != nil {
			v.row, v.timely = row, timely
			if claim := row.Newest(rowstore.Mark, format.ClaimColumn(o.id, c.Column)); claim != nil {
				v.claimed, v.claimedBy = claim.TS, string(claim.Value)
			}
		}
		err = w.db.checkAnswer(ctx, s.start, timely || row.Newest(rowstore.Write, c.Column) != nil, c.span())
		if err != nil {
			return nil, false, err
		}
		return v, false, nil
	}
}

// resolveLocks resolves the locks that stand in the way of a view. resolved means that
// there were some, so the row must be read again. blocked means that an owner lives.
func (w *Worker) resolveLocks(ctx context.Context, row *rowstore.Row, c Cell, o *Observer) (resolved, blocked bool, err error) {
	for i := range row.Versions {
		l := &row.Versions[i]
		if l.Family != rowstore.Lock {
			break
		}
		if l.Column != c.Column && !w.keeps(l.Column, c, o) {
			continue
		}
		lv, err := format.DecodeLock(l.Value)
		if err != nil {
			return false, false, fmt.Errorf("%v: %w", c.public(), err)
		}
		if lv.Kind == format.KindLock {
			continue
		}
		settled, err := w.db.resolveLock(ctx, Cell{c.Table, c.Row, l.Column}, l.TS, &lv, respectLiveOwner)
		if err != nil || !settled {
			return false, err == nil, err
		}
		resolved = true
	}
	return resolved, false, nil
}

// keeps reports whether the observer o keeps a stored column for the cell, or it is the cell's timer. A nil o
// stands for any observer of this worker.
func (w *Worker) keeps(column string, c Cell, o *Observer) bool {
	if column == format.TimerColumn(c.Column) {
		return true
	}
	_, observer, of, ok := format.SplitOwnColumn(column)
	switch {
	case !ok || of != c.Column:
		return false
	case o != nil:
		return observer == o.id
	}
	return w.observes(observer, c)
}

// viewWrites is the index of the selector of the cell's writes among those of viewRead.
const viewWrites = 1

func viewRead(c Cell, known registrations, at Timestamp) rowstore.RowRead {
	picks := make([]rowstore.Selector, 0, 5+4*len(known.names))
	picks = snapshotPicks(picks, c.Column, at)
	picks = append(picks, everything(rowstore.Notify, c.Column))
	if known.timers {
		picks = snapshotPicks(picks, format.TimerColumn(c.Column), at)
	}
	for _, o := range known.names {
		picks = snapshotPicks(picks, format.AckColumn(o, c.Column), at)
		picks = snapshotPicks(picks, format.FailureColumn(o, c.Column), at)
	}
	return rowstore.RowRead{Table: c.Table, Row: c.Row, Selectors: picks}
}

func parseView(row *rowstore.Row, c Cell, known registrations, at Timestamp) (*cellView, error) {
	v := &cellView{
		cell: c, at: at, registrations: known,
		acks: make([]Timestamp, len(known.names)), ackedAt: make([]Timestamp, len(known.names)),
		ackLocked: make([]bool, len(known.names)), ackFree: make([]bool, len(known.names)), failureLocked: make([]bool, len(known.names)), failures: make([]format.Failure, len(known.names)),
		recorded: make([]bool, len(known.names)),
	}
	if v.writes = row.All(rowstore.Write, c.Column); len(v.writes) > 0 {
		v.change = v.writes[0].TS
	}
	v.notified = row.All(rowstore.Notify, c.Column)
	for _, n := range v.notified {
		if n.TS > at {
			v.later = true
			continue
		}
		k, err := format.DecodeNotification(n.Value)
		if err != nil {
			return nil, err
		}
		v.seen = append(v.seen, n)
		if k == format.NotifyWeak {
			v.change = max(v.change, n.TS)
		}
	}
	var err error
	if known.timers {
		if v.timer, err = timerIn(row, c); err != nil {
			return nil, err
		}
	}
	if v.timer.set && v.timer.at <= at {
		v.change = max(v.change, v.timer.at)
	}
	for i, o := range known.names {
		col := format.AckColumn(o, c.Column)
		if v.ackLocked[i], v.ackFree[i], err = lockOf(row, col); err != nil {
			return nil, err
		}
		if v.acks[i], err = acknowledged(row, col, known.since[i]); err != nil {
			return nil, err
		}
		if acked := row.Newest(rowstore.Write, col); acked != nil {
			v.ackedAt[i] = acked.TS
		}
		col = format.FailureColumn(o, c.Column)
		v.failureLocked[i] = row.Newest(rowstore.Lock, col) != nil
		if v.failures[i], v.recorded[i], err = failureIn(row, col, known.since[i]); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// lockOf tells whether a column is locked by a write, which may still be rolled back, and whether it is free of any lock. A lock that leaves
// its cell as it is, as that of a transaction that parks a run does on the acknowledgment, is neither: no look resolves it, and it may
// outlive its owner for long.
func lockOf(row *rowstore.Row, column string) (written, free bool, err error) {
	l := row.Newest(rowstore.Lock, column)
	if l == nil {
		return false, true, nil
	}
	lv, err := format.DecodeLock(l.Value)
	if err != nil {
		return false, false, err
	}
	return lv.Kind != format.KindLock, false, nil
}

// acknowledged returns the acknowledgment in a stored column, of a row that shows it, by an observer
// that is registered since a moment. It is 0 if there is none from since then.
func acknowledged(row *rowstore.Row, column string, since Timestamp) (Timestamp, error) {
	w, found, err := committed(row, column)
	if err != nil || !found {
		return 0, err
	}
	acked, err := format.DecodeAck(w.Value)
	if err != nil || acked < since {
		return 0, err
	}
	return acked, nil
}

// failureIn returns the failure record in a stored column, of a row that shows it, of an observer that is registered since a moment. What
// was committed before that counts no more than an acknowledgment does: found tells of it, and it is zero. But a parked run stays parked.
func failureIn(row *rowstore.Row, column string, since Timestamp) (f format.Failure, found bool, err error) {
	w, found, err := committed(row, column)
	if err != nil || !found {
		return f, false, err
	}
	f, err = format.DecodeFailure(w.Value)
	if err == nil && !f.Parked && row.Newest(rowstore.Write, column).TS < since {
		f = format.Failure{}
	}
	return f, true, err
}

// covered tells whether observer i has nothing to do for the newest change: it has
// acknowledged it, or its run for it is parked, and nobody has asked for one more run. A locked acknowledgment may still
// be rolled back, and does not count; nor does anything while such a request may be under way.
func (v *cellView) covered(i int) bool {
	if v.ackLocked[i] {
		return false
	}
	if v.failureLocked[i] || v.replayed(i) {
		return false
	}
	return v.change <= v.coveredTo(i)
}

// replayed tells whether observer i is to run once more, whatever it has acknowledged.
func (v *cellView) replayed(i int) bool {
	return v.failures[i].Replay && !v.failures[i].Parked
}

// coveredTo is the newest change that observer i has nothing to do for.
func (v *cellView) coveredTo(i int) Timestamp {
	if v.failures[i].Parked {
		return max(v.acks[i], v.failures[i].Change)
	}
	return v.acks[i]
}

// nextAttempt is when observer i may be called again for the newest change; 0 unless
// that has failed.
func (v *cellView) nextAttempt(i int) Timestamp {
	if f := &v.failures[i]; f.Change == v.change {
		return f.NotBefore
	}
	return 0
}

// outdated tells whether the failure record of an observer is for a change that is not there any more: a timer that was due, and
// was cancelled or replaced since. A record that the view does not show may be for a newer change.
func (v *cellView) outdated(observer string, change Timestamp) bool {
	i := slices.Index(v.names, observer)
	return i >= 0 && v.failures[i].Change == change && change > v.change
}

// due tells whether observer i is to be called now, if nobody has claimed the run.
func (v *cellView) due(i int) bool {
	return v.change != 0 && !v.covered(i) && v.nextAttempt(i) <= v.at
}

// othersCovered tells whether every observer but i is covered.
func (v *cellView) othersCovered(i int) bool {
	for j := range v.names {
		if j != i && !v.covered(j) {
			return false
		}
	}
	return true
}

// removal deletes exactly the notifications that the view showed at or below its
// snapshot. One that was put there later belongs to a change that the view did not
// show. If a timer waits of which nothing else tells, the newest one stays.
func (v *cellView) removal() []rowstore.Edit {
	seen := v.seen
	if v.waits() && len(seen) > 0 {
		seen = seen[1:]
	}
	edits := make([]rowstore.Edit, len(seen))
	for i, n := range seen {
		edits[i] = rowstore.Delete(rowstore.Notify, v.cell.Column, n.TS)
	}
	return edits
}
