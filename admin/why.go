package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Wait says what a cell waits for.
type Wait struct {
	Cell
	// Free tells that nothing is in the way of a reader or a writer of the cell, and no observer has anything to do.
	Free  bool  `json:"free"`
	Found bool  `json:"found"` // the cell has a value
	Last  Stamp `json:"last,omitzero"`
	// Locks are those on the cell, and on what observers keep beside it.
	Locks []Lock `json:"locks,omitempty"`
	// Observers are those of the column, with what each has to do.
	Observers []WaitOf `json:"observers,omitempty"`
	// Due is when the cell's timer is due, if it has one.
	Due Stamp `json:"due,omitzero"`
	// Notified is how many notifications the cell has.
	Notified int `json:"notified,omitzero"`
	// Lines say all of that in words.
	Lines []string `json:"lines"`
}

// WaitOf is what one observer of a cell has to do.
type WaitOf struct {
	Observer Bytes `json:"observer"`
	// What is one of the constants below.
	What string `json:"what"`
	// Attempts are the failures so far, and Next is when the next attempt is due. ParkedRun has the error of a parked run.
	Attempts int   `json:"attempts,omitzero"`
	Next     Stamp `json:"next,omitzero"`
	// Seen is the start of its last run for the cell that took effect, 0 if there was none.
	Seen Stamp `json:"seen,omitzero"`
	// Worker has claimed the run.
	Worker string `json:"worker,omitempty"`
}

// What an observer of a cell has to do.
const (
	WaitsForNothing = "nothing"     // it has seen the newest change, or there is none
	WaitsToRun      = "to run"      // a worker should run it now
	WaitsToRetry    = "to retry"    // its run failed, or asked for a later time
	WaitsParked     = "parked"      // its run failed for good
	WaitsPaused     = "paused"      // the observer is paused
	WaitsForLock    = "for a lock"  // a transaction that is not decided is in its way
	WaitsForWorker  = "for workers" // no worker runs it
	WaitsRunning    = "running"     // a worker has claimed the run, so it has been under way for a while
)

// Why says what a cell waits for: a lock and whose, and when it ends; a timer; and what each observer of the column has to do, and why it
// has not. It reads one row, what its locks name, and the members.
func (r *Reader) Why(ctx context.Context, c percolator.Cell) (Wait, error) {
	w, err := r.why(ctx, c)
	if err != nil {
		return Wait{}, called("Why", fmt.Errorf("looking at %v: %w", c, err))
	}
	return w, nil
}

func (r *Reader) why(ctx context.Context, user percolator.Cell) (Wait, error) {
	w := Wait{Cell: CellOf(user)}
	c, err := stored(user)
	if err != nil {
		return w, err
	}
	cat, err := r.load(ctx)
	if err != nil {
		return w, err
	}
	observers := cat.observed[[2]string{c.Table, c.Column}]
	rows, err := r.rows(ctx, []rowstore.RowRead{whyRead(format.Cell(c), observers)})
	if err != nil {
		return w, err
	}
	row := &rows[0]
	var members []Member
	if len(observers) > 0 {
		if members, _, err = r.members(ctx, cat, "", 1000); err != nil {
			return w, err
		}
	}
	if err := r.whyLocks(ctx, &w, row, format.Cell(c), cat); err != nil {
		return w, err
	}
	change, err := r.change(ctx, &w, row, format.Cell(c), cat)
	if err != nil {
		return w, err
	}
	for i := range observers {
		of, line, err := w.observer(row, format.Cell(c), &observers[i], change, cat, members)
		if err != nil {
			return w, err
		}
		w.Observers, w.Lines = append(w.Observers, of), append(w.Lines, line)
	}
	w.conclude(cat.now)
	return w, nil
}

// whyRead asks for all that Why goes by, in one view of the row.
func whyRead(c format.Cell, observers []format.Observer) rowstore.RowRead {
	both := func(picks []rowstore.Selector, col string) []rowstore.Selector {
		return append(picks, newest(rowstore.Lock, col, atMost), newest(rowstore.Write, col, atMost))
	}
	picks := both(nil, c.Column)
	picks = both(picks, format.TimerColumn(c.Column))
	picks = append(picks, rowstore.Selector{Family: rowstore.Notify, Column: c.Column, To: atMost, Limit: 64})
	for i := range observers {
		name := string(observers[i].Name)
		picks = both(picks, format.AckColumn(name, c.Column))
		picks = both(picks, format.FailureColumn(name, c.Column))
		picks = append(picks, newest(rowstore.Mark, format.ClaimColumn(name, c.Column), atMost))
	}
	return rowstore.RowRead{Table: c.Table, Row: c.Row, Selectors: picks}
}

// whyLocks describes the locks of the cell and beside it.
func (r *Reader) whyLocks(ctx context.Context, w *Wait, row *rowstore.Row, c format.Cell, cat *catalog) error {
	known := map[percolator.Timestamp]Txn{}
	for i := range row.Versions {
		v := &row.Versions[i]
		if v.Family != rowstore.Lock {
			continue
		}
		l, err := r.lock(ctx, row, v, known, cat)
		if err != nil {
			return err
		}
		w.Locks = append(w.Locks, l)
		what := "the cell"
		if l.Beside != "" {
			what = "its " + l.Beside
		}
		w.Lines = append(w.Lines, l.words(what, publicCell(c), cat.now)...)
	}
	return nil
}

// words says whose a lock is, and what will become of it.
func (l *Lock) words(what string, c Cell, now percolator.Timestamp) []string {
	t := &l.Txn
	switch t.State {
	case Committed:
		return []string{fmt.Sprintf("%s is locked by transaction %v, which is committed at %v: whoever reads the cell rolls it forward, and waits for nothing", what, t.Start, t.Commit)}
	case RolledBack:
		return []string{fmt.Sprintf("%s is locked by transaction %v, which is rolled back: whoever needs the cell removes the lock, and waits for nothing", what, t.Start)}
	}
	lines := []string{fmt.Sprintf("%s is locked (%s) by transaction %v %s, since %v", what, l.Kind, t.Start, t.holder(now), t.Age)}
	if t.Primary != nil && *t.Primary != c {
		lines = append(lines, fmt.Sprintf("what becomes of it is decided at its primary, %v", *t.Primary))
	}
	if t.State == Committing {
		lines[0] += fmt.Sprintf("; its lock ends in %v, unless the process renews it", t.Left)
	}
	return append(lines, t.ends())
}

// change finds the newest change that observers have to see.
func (r *Reader) change(ctx context.Context, w *Wait, row *rowstore.Row, c format.Cell, cat *catalog) (change percolator.Timestamp, err error) {
	v, _, err := r.value(ctx, row, c.Column, cat.now, cat.now)
	if err != nil {
		return 0, err
	}
	w.Found, w.Last = v.Found, v.Commit
	change = percolator.Timestamp(v.Commit)
	for _, n := range row.All(rowstore.Notify, c.Column) {
		kind, err := format.DecodeNotification(n.Value)
		if err != nil {
			return 0, err
		}
		if w.Notified++; kind == format.NotifyWeak {
			change = max(change, n.TS)
		}
	}
	set, due, err := r.timerOf(ctx, row, c, cat.now)
	if err != nil || !set {
		return change, err
	}
	w.Due = Stamp(due)
	if due <= cat.now {
		at := max(due, row.Newest(rowstore.Write, format.TimerColumn(c.Column)).TS)
		w.Lines = append(w.Lines, fmt.Sprintf("its timer was due %v ago, and an observer has yet to see it", since(cat.now, due)))
		return max(change, at), nil
	}
	w.Lines = append(w.Lines, fmt.Sprintf("it has a timer that is due in %v (%s)", since(due, cat.now), clock(w.Due)))
	return change, nil
}

// observer says what one observer has to do.
func (w *Wait) observer(row *rowstore.Row, c format.Cell, o *format.Observer, change percolator.Timestamp, cat *catalog, members []Member) (of WaitOf, line string, err error) {
	name := string(o.Name)
	of = WaitOf{Observer: Bytes(o.Title()), What: WaitsForNothing}
	var failure format.Failure
	var acked percolator.Timestamp
	if v := row.Newest(rowstore.Write, format.AckColumn(name, c.Column)); v != nil {
		if acked, err = acknowledged(v, o.Since); err != nil {
			return of, "", err
		}
	}
	if v := row.Newest(rowstore.Write, format.FailureColumn(name, c.Column)); v != nil {
		if failure, err = failed(v, o.Since); err != nil {
			return of, "", err
		}
	}
	of.Seen = Stamp(acked)
	say := func(format string, args ...any) (WaitOf, string, error) {
		return of, fmt.Sprintf("observer %v ", of.Observer) + fmt.Sprintf(format, args...), nil
	}
	age := since(cat.now, change)
	if failure.Change == change {
		of.Attempts, of.Next = failure.Attempts, Stamp(failure.NotBefore)
	}
	acking, err := acknowledging(row, name, c)
	if err != nil {
		return of, "", err
	}
	locked := acking || slices.ContainsFunc(w.Locks, func(l Lock) bool {
		return l.Beside == "" && l.Kind != format.KindLock.String() && (l.Txn.State == Committing || l.Txn.State == Abandoned)
	})
	claim := row.Newest(rowstore.Mark, format.ClaimColumn(name, c.Column))
	alive := slices.ContainsFunc(members, func(m Member) bool {
		return m.Alive && slices.ContainsFunc(m.Works, func(x Work) bool { return x.Observer == of.Observer && x.Table == w.Table && x.Column == w.Column })
	})
	switch {
	case failure.Parked && change <= max(acked, failure.Change):
		// What it is parked for may be a notification, which nothing shows any more: also of a cell that was never written.
		of.What, of.Attempts = WaitsParked, failure.Attempts
		return say("is parked for the change of %v ago, after %d failures: percolator parked show says why, and parked release has it run again", since(cat.now, failure.Change), failure.Attempts)
	case change == 0:
		return say("has nothing to do: the cell was never written")
	case change <= acked:
		return say("has seen the newest change, %v ago: it has nothing to do", since(cat.now, acked))
	case o.Paused:
		of.What = WaitsPaused
		return say("is paused, and has yet to see the change of %v ago: percolator observers resume ends that", age)
	case locked:
		of.What = WaitsForLock
		return say("has yet to see the change of %v ago, and waits for the lock", age)
	case of.Next != 0 && percolator.Timestamp(of.Next) > cat.now:
		of.What = WaitsToRetry
		return say("has failed %d times for the change of %v ago, or asked for a later time; it runs again in %v", of.Attempts, age, since(percolator.Timestamp(of.Next), cat.now))
	case claim != nil && claim.TS > cat.now:
		of.What, of.Worker = WaitsRunning, string(claim.Value)
		return say("runs for the change of %v ago: worker %s has claimed it for %v more", age, of.Worker, since(claim.TS, cat.now))
	case !alive:
		of.What = WaitsForWorker
		return say("has yet to see the change of %v ago, and no worker that lives runs it: start one", age)
	case w.Notified == 0 && o.Swept == 0:
		of.What = WaitsToRun
		return say("has yet to see the change of %v ago: it is new, and the sweep that shows it the existing data is under way", age)
	case w.Notified == 0:
		return say("has not seen the change of %v ago, and no notification tells of it: the change is from before anybody observed the column, or another observer's column was used", age)
	}
	of.What = WaitsToRun
	return say("has yet to see the change of %v ago: it is queued at a worker, or runs", age)
}

// waitsSince is the oldest change of some cells of an observer's column that the observer has yet to see. It is 0 if there is none, or its runs for them are
// parked.
func (r *Reader) waitsSince(ctx context.Context, cat *catalog, o *format.Observer, cells []waitingCell) (oldest percolator.Timestamp, err error) {
	c := format.Cell{Table: string(o.Table), Column: string(o.Column)}
	var reads []rowstore.RowRead
	for _, cell := range cells {
		c.Row = cell.row
		reads = append(reads, whyRead(c, []format.Observer{*o}))
	}
	rows, err := r.store.Read(ctx, reads)
	if err != nil {
		return 0, err
	}
	for i := range rows {
		c.Row = cells[i].row
		w := Wait{Cell: publicCell(c)}
		var change percolator.Timestamp
		var of WaitOf
		err := rows[i].Err
		if err == nil {
			change, err = r.change(ctx, &w, &rows[i], c, cat)
		}
		if err == nil {
			of, _, err = w.observer(&rows[i], c, o, change, cat, nil)
		}
		switch {
		case errors.Is(err, percolator.ErrCorrupt): // nobody can tell what waits there
			continue
		case err != nil:
			return 0, err
		case of.What == WaitsForNothing, of.What == WaitsParked:
			continue
		}
		for _, n := range rows[i].All(rowstore.Notify, c.Column) {
			if n.TS > percolator.Timestamp(of.Seen) {
				change = min(change, n.TS)
			}
		}
		if oldest == 0 || change < oldest {
			oldest = change
		}
	}
	return oldest, nil
}

func acknowledged(v *rowstore.Version, since percolator.Timestamp) (percolator.Timestamp, error) {
	w, err := format.DecodeWrite(v.Value)
	if err != nil || w.Kind != format.KindPut {
		return 0, err
	}
	acked, err := format.DecodeAck(w.Value)
	if err != nil || acked < since {
		return 0, err
	}
	return acked, nil
}

// acknowledging tells whether an acknowledgment of an observer is under way. The lock of a transaction that parks its run is none.
func acknowledging(row *rowstore.Row, observer string, c format.Cell) (bool, error) {
	l := row.Newest(rowstore.Lock, format.AckColumn(observer, c.Column))
	if l == nil {
		return false, nil
	}
	lv, err := format.DecodeLock(l.Value)
	return err == nil && lv.Kind != format.KindLock, err
}

// failed is what counts of a failure record for an observer that is registered since a moment.
func failed(v *rowstore.Version, since percolator.Timestamp) (format.Failure, error) {
	w, err := format.DecodeWrite(v.Value)
	if err != nil || w.Kind != format.KindPut {
		return format.Failure{}, err
	}
	f, err := format.DecodeFailure(w.Value)
	if err == nil && !f.Parked && v.TS < since {
		f = format.Failure{}
	}
	return f, err
}

// conclude says in the first line whether anything is in the way.
func (w *Wait) conclude(now percolator.Timestamp) {
	w.Free = len(w.Locks) == 0
	for _, o := range w.Observers {
		w.Free = w.Free && o.What == WaitsForNothing
	}
	first := "it was never written"
	switch {
	case w.Found:
		first = fmt.Sprintf("it has a value, written %v ago at %v", since(now, percolator.Timestamp(w.Last)), w.Last)
	case w.Last != 0:
		first = fmt.Sprintf("it has no value: it was deleted %v ago at %v", since(now, percolator.Timestamp(w.Last)), w.Last)
	}
	free := "nothing is in the way of its readers and writers"
	if len(w.Locks) > 0 {
		free = ""
	}
	lines := []string{first}
	if free != "" {
		lines = append(lines, free)
	}
	w.Lines = append(lines, w.Lines...)
	if len(w.Observers) == 0 {
		w.Lines = append(w.Lines, "nobody observes its column")
	}
}
