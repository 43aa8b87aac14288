package percolator

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Timers: a transaction asks for a run of the observers of a cell at a time. A timer is a cell of the library's own
// beside its target, which transactions write like any other. What is here belongs to transactions and runs; fire.go
// finds timers that are due. See "Timers" in docs/architecture.md.

const (
	// nearTimer is how long ahead a timer may be due that is told of by a notification of its target. One that is due
	// later is in an index, so that it costs nothing until then.
	nearTimer = 30 * time.Second
	// timerRound is how often each shard of the index is read. It is less than nearTimer by more than what a commit
	// takes: so what is due before the next round is in the index when a round begins.
	timerRound = 20 * time.Second
)

// Now returns the time of the transaction's snapshot, by the oracle, in UTC and whole milliseconds. Inside Update
// and View it may draw the start timestamp, as StartTimestamp does, and its errors are the same. The oracle's time
// may stand still or run ahead of the machine's clock, but it never goes back.
func (tx *Txn) Now(ctx context.Context) (time.Time, error) {
	ts, err := tx.StartTimestamp(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return ts.Time(), nil
}

// NotifyAt sets the timer of c: the observers of c's column run for c at due or later, as after [Txn.Notify], without a
// write of c. If due is past, they run after the commit.
//
// Each cell has one timer, so NotifyAt replaces the one that is there. It conflicts with other transactions that
// set or cancel the timer of c, as Set does with writers, but with no writer of c itself. A run that sees
// the timer conflicts with them too: so a timer that was cancelled or replaced takes no effect any more, unless a run for it was
// committed before. A function that sets the timer of its own cell sets the next one. The run sees Change.Due. With
// several observers of the column each one runs, one after the other. An observer that is registered when a timer is set, and
// one that is registered before the last of them has run, sees it.
//
// due counts in whole milliseconds, rounded up, by the oracle's time: if that jumps ahead, timers are due early.
// Due times before 1970 are taken for 1970. A due time that is zero, or after the year 3084, is ErrInvalid. If no
// observer watches the column, the error matches ErrNotObserved, here or from Commit, as for Notify. Other errors are those of Set.
//
// From the first timer on, programs of versions that do not know of timers get ErrFormat, also those that have
// the data open. Then the first timers wait until every process knows of it, one catalog lease.
func (tx *Txn) NotifyAt(c Cell, due time.Time) error {
	if err := tx.writable(&c, "NotifyAt"); err != nil {
		return err
	}
	at, err := timerDue(due)
	if err != nil {
		return fmt.Errorf("percolator: NotifyAt: %w (%v)", err, c)
	}
	sc := c.stored()
	if v := tx.db.known(); len(v.observers(sc.Table, sc.Column)) == 0 && tx.set && v.holds(tx.start) {
		return fmt.Errorf("%w: %v", ErrNotObserved, c)
	}
	if most := tx.db.step.Table; most > 0 && len(format.TimersTable(sc.Table)) > most {
		return fmt.Errorf("percolator: NotifyAt: %w: the name of table %q leaves no room for that of the index of its timers: %d bytes are left of %d",
			ErrTooLarge, c.Table, most-len(format.TimersTable("")), most)
	}
	return tx.put(timerOf(sc), format.KindPut, format.Timer{Due: at}.Encode())
}

// NotifyAfter is NotifyAt for a time d after Now. A negative d is as 0: the observers run after the commit. Other
// errors are those of Now and NotifyAt.
func (tx *Txn) NotifyAfter(ctx context.Context, c Cell, d time.Duration) error {
	if err := tx.writable(&c, "NotifyAfter"); err != nil {
		return err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return called("NotifyAfter", err)
	}
	return tx.NotifyAt(c, now.Add(max(d, 0)))
}

// CancelNotify takes the timer of c back. It is no error if c has none. It conflicts as NotifyAt does: if the
// transaction commits, no run takes effect for the timer afterwards, unless there are several observers and
// some have run for it before. Notifications of Txn.Notify stay. Errors are those of Delete.
func (tx *Txn) CancelNotify(c Cell) error {
	if err := tx.writable(&c, "CancelNotify"); err != nil {
		return err
	}
	return tx.put(timerOf(c.stored()), format.KindDelete, nil)
}

// timerOf is the cell of the timer of a stored cell.
func timerOf(sc Cell) Cell {
	sc.Column = format.TimerColumn(sc.Column)
	return sc
}

// timerDue is the first timestamp at which a timer is due.
func timerDue(due time.Time) (Timestamp, error) {
	ms := due.UnixMilli()
	if due.Nanosecond()%int(time.Millisecond) != 0 && ms < math.MaxInt64 {
		ms++
	}
	switch {
	case due.IsZero():
		return 0, fmt.Errorf("%w: the time is zero", ErrInvalid)
	case due.Year() > 9999, ms > int64(oracle.Max>>oracle.LogicalBits):
		return 0, fmt.Errorf("%w: the time is after the year 3084, when the last timestamp is used up", ErrInvalid)
	}
	return Timestamp(max(ms, 0)) << oracle.LogicalBits, nil
}

// timed visits the cells, by stored names, whose timers the transaction sets.
func (c *committer) timed() iter.Seq2[Cell, *write] {
	return func(yield func(Cell, *write) bool) {
		for i := range c.writes {
			w := &c.writes[i]
			if w.kind != format.KindPut {
				continue
			}
			if column, ok := format.SplitTimerColumn(w.cell.Column); ok && !yield(Cell{w.cell.Table, w.cell.Row, column}, w) {
				return
			}
		}
	}
}

// setsTimers tells whether the transaction sets any.
func (c *committer) setsTimers() bool {
	for range c.timed() {
		return true
	}
	return false
}

// placeNotices decides what tells of the transaction's timers: a notification of the target, or a row of the
// index. Both are there before the commit point, and after every prewrite: so whoever finds one of them
// finds the timer, or its lock, or knows that there is none. No write of the commit may be in the store yet.
func (c *committer) placeNotices() error {
	c.notices, c.hints = nil, nil
	for _, cell := range c.tx.weak {
		c.notices = append(c.notices, notice{cell, c.origin.notification(format.NotifyWeak)})
	}
	for _, cell := range c.tx.told {
		c.notices = append(c.notices, notice{cell, format.StrongNotification})
	}
	var near Timestamp
	n := 0
	for cell, w := range c.timed() {
		t, err := format.DecodeTimer(w.value)
		if err != nil {
			return fmt.Errorf("%v: %w", cell.public(), err)
		}
		if n == 0 {
			near = c.db.estimate(c.start, c.began).Add(nearTimer)
		}
		n++
		// Who goes by a catalog without timers would clear a notification in which it sees no change.
		t.Indexed = t.Due > near || c.view.TimersFrom == 0 || c.start < c.view.TimersFrom
		w.value = t.Encode()
		switch _, twice := c.tx.weakSet[cell]; {
		case t.Indexed:
			c.hints = append(c.hints, hintOfTimer(cell, t.Due, c.start, n))
		case !twice:
			// By itself it is no change: a run begins when the timer is due. If that is at once, the change has the
			// timestamp of the notification, and so counts as one of this transaction.
			c.notices = append(c.notices, notice{cell, c.origin.notification(format.NotifyStrong)})
		}
	}
	return nil
}

// hintOfTimer puts the n-th timer of a transaction into the index.
func hintOfTimer(cell Cell, due, start Timestamp, n int) rowstore.Mutation {
	shard := byte(rowstore.Slot(cell.Table, cell.Row) % format.TimerShards)
	return rowstore.Mutation{
		Table: format.TimersTable(cell.Table), Row: format.TimerRow(shard, due, start, n),
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnTimer, start, format.TimerHint{Row: cell.Row, Column: cell.Column}.Encode())},
	}
}

// timerView is the timer that a view shows.
type timerView struct {
	set     bool
	due     Timestamp
	indexed bool
	// at is the timestamp of the change that the timer makes: when it is due, or was set, whichever is later. It counts from
	// then on as a weak notification would. Whoever has acknowledged it has seen the timer when it was due: the
	// acknowledgment is the start of a run.
	at Timestamp
}

// timerIn finds the timer of a stored cell in a row that was read with snapshotPicks of its column, and is settled.
func timerIn(row *rowstore.Row, c Cell) (timerView, error) {
	column := format.TimerColumn(c.Column)
	w, found, err := committed(row, column)
	if err != nil || !found {
		return timerView{}, err
	}
	t, err := format.DecodeTimer(w.Value)
	if err != nil {
		return timerView{}, fmt.Errorf("%v: %w", c.public(), err)
	}
	return timerView{set: true, due: t.Due, indexed: t.Indexed, at: max(t.Due, row.Newest(rowstore.Write, column).TS)}, nil
}

// waits tells whether a timer is due after the snapshot, of which nothing but a notification tells.
func (v *cellView) waits() bool { return v.timer.set && !v.timer.indexed && v.timer.at > v.at }

// untilTimer is how long a timer that waits is not due yet.
func (v *cellView) untilTimer() time.Duration { return max(v.timer.at.Sub(v.at), leastPause) }

// fired tells whether the timer is due.
func (v *cellView) fired() bool { return v.timer.set && v.timer.at <= v.at }

// began tells whether a run of observer i for the change, or for the timer that is due, is on record: it has failed, or was put off.
func (v *cellView) began(i int) bool {
	f := &v.failures[i]
	return f.Change == v.change || v.fired() && f.Change >= v.timer.at
}

// firedFor returns when the timer was due that observer i has yet to see, the zero Time without one.
func (v *cellView) firedFor(i int) time.Time {
	if !v.fired() || v.acks[i] >= v.timer.at {
		return time.Time{}
	}
	return v.timer.due.Time()
}

// othersSaw tells whether every observer but i has acknowledged the timer, which is due. One whose run for it is
// parked has not.
func (v *cellView) othersSaw(i int) bool {
	for j := range v.names {
		if j != i && (v.ackLocked[j] || v.acks[j] < v.timer.at) {
			return false
		}
	}
	return true
}

// consumeTimer makes the run of observer i of a view conflict with whoever sets or cancels the timer that it is
// for. The last observer removes the timer. A function that has set or cancelled it itself has decided.
func (tx *Txn) consumeTimer(i int, view *cellView) error {
	if !view.fired() {
		return nil
	}
	timer := timerOf(view.cell)
	if own := tx.writes.find(timer); own != nil && own.kind != format.KindLock {
		return nil
	}
	switch {
	case view.othersSaw(i):
		return tx.put(timer, format.KindDelete, nil)
	case view.acks[i] < view.timer.at:
		return tx.lock(timer)
	}
	return nil
}

// dropSeenTimer removes a timer that every observer has seen, and that none of them has removed because one more
// was registered then.
func (w *Worker) dropSeenTimer(ctx context.Context, view *cellView) error {
	if !view.fired() || !view.othersSaw(-1) {
		return nil
	}
	err := w.db.Update(ctx, func(tx *Txn) error {
		timer := timerOf(view.cell)
		read := []rowstore.RowRead{{Table: timer.Table, Row: timer.Row, Selectors: snapshotPicks(nil, timer.Column, tx.snapshot.at())}}
		rows, _, err := w.db.readSettled(ctx, read, &tx.snapshot)
		if err != nil {
			return err
		}
		if now, err := timerIn(&rows[0], view.cell); err != nil || !now.set || now.at != view.timer.at {
			return err // it was set anew, perhaps for the same time
		}
		return tx.put(timer, format.KindDelete, nil)
	})
	if err != nil {
		return fmt.Errorf("removing the timer of %v: %w", view.cell.public(), err)
	}
	return nil
}
