package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How timers that are due are found. Those of a table that were set long ahead are in an index, in the order of time,
// in a few shards. Each shard has an owner among the workers that observe the table, by the shares of its slot. The
// owner reads what is due until the next round, a page at a time. When a timer is due, it puts a notification on the target and then
// removes the row of the index. From then on everything is as for any notification, and whether there is such a
// timer is for the run to see. So two owners cost a needless look, and none costs a wait.

// firePage is how many rows of an index are read at once, and how many timers are told of in one call.
const firePage = 256

// firstRound is the time between two rounds while timers are new to the data.
const firstRound = time.Second

// timerShard is a shard of the index of a stored table.
type timerShard struct {
	table string
	n     byte
}

// dueTimer is a row of the index.
type dueTimer struct {
	row  string
	at   Timestamp // of the version
	due  Timestamp
	cell Cell // stored
}

// noteTimers is told what the catalog says.
func (w *Worker) noteTimers(v *catalogView) {
	if v.TimersFrom == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.timed:
	default:
		close(w.timed)
	}
}

// kickTimers makes the worker look whose the shards are.
func (w *Worker) kickTimers() {
	for _, ch := range w.shards {
		leaveToken(ch)
	}
}

// ownsTimers tells whether a shard is this worker's own. It is if its slot is, for one of the observers of the table:
// so members that run different ones may share it.
func (w *Worker) ownsTimers(s timerShard) bool {
	c, now := Cell{Table: format.TimersTable(s.table), Row: format.TimersBegin(s.n), Column: format.ColumnTimer}, w.now()
	return slices.ContainsFunc(w.list, func(q *queue) bool { return q.table == s.table && w.owns(q, c, now) })
}

// fire tells of the timers of a shard when they are due, while it is this worker's own.
func (w *Worker) fire(ctx context.Context, s timerShard) error {
	select {
	case <-w.timed:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		began, rest := w.db.clock.Now(), timerRound
		if w.ownsTimers(s) {
			err := w.retry(ctx, "looking for timers that are due", func() (err error) {
				rest, err = w.fireRound(ctx, s)
				return err
			})
			if err != nil {
				return err
			}
		}
		if _, err := w.sleepOr(ctx, rest-w.db.clock.Now().Sub(began), w.shards[s]); err != nil {
			return err
		}
	}
}

// fireRound tells of what is due until the next round, and returns how long it is from its beginning until then. Before
// everybody knows of timers nothing is told, and those that are due soon are in the index too, so the rounds are short.
func (w *Worker) fireRound(ctx context.Context, s timerShard) (next time.Duration, err error) {
	now, err := w.db.draw(ctx)
	if err != nil {
		return 0, err
	}
	from := w.db.known().TimersFrom
	if now < from {
		return max(time.Millisecond, min(from.Sub(now), firstRound)), nil
	}
	next = timerRound
	if now < from.Add(nearTimer) {
		next = firstRound
	}
	var failed error // of single rows, which must not hold the others up
	until := now.Add(next)
	for row := format.TimersBegin(s.n); row != ""; {
		var page []dueTimer
		if page, row, err = w.db.timersIn(ctx, s, row, until); err != nil {
			return 0, err
		}
		for len(page) > 0 {
			n, err := w.untilDue(ctx, s, page)
			if err != nil || n == 0 {
				return next, err
			}
			rows, err := w.tell(ctx, s.table, page[:n])
			if err != nil {
				return 0, err
			}
			failed, page = errors.Join(failed, rows), page[n:]
		}
	}
	return next, failed
}

// untilDue waits until the first timers of a page are due, and counts them. It returns 0 if the shard has come to
// be another worker's.
func (w *Worker) untilDue(ctx context.Context, s timerShard, page []dueTimer) (int, error) {
	for vain := 0; ; vain++ {
		now, err := w.db.draw(ctx)
		if err != nil {
			return 0, err
		}
		if !w.ownsTimers(s) {
			return 0, nil
		}
		if n, _ := slices.BinarySearchFunc(page, now, func(t dueTimer, now Timestamp) int { return cmp.Or(cmp.Compare(t.due, now), -1) }); n > 0 {
			return n, nil
		}
		// The oracle's time may stand still.
		if _, err := w.sleepOr(ctx, max(page[0].due.Sub(now), time.Millisecond<<min(vain, 9)), w.shards[s]); err != nil {
			return 0, err
		}
	}
}

// timersIn reads a page of a shard, from a row on, of what is due at or before until. next is where the next page begins, "" if
// there is none. Rows that cannot be read are left alone.
func (db *DB) timersIn(ctx context.Context, s timerShard, from string, until Timestamp) (page []dueTimer, next string, err error) {
	return db.timersPage(ctx, s, from, until, firePage, nil)
}

// timersPage is timersIn with the length of the page. left, if not nil, is told of rows that cannot be read, by the store or
// by this program, and may return an error.
func (db *DB) timersPage(ctx context.Context, s timerShard, from string, until Timestamp, most int, left func(u unreadable) error) (page []dueTimer, next string, err error) {
	leave := func(u unreadable) error {
		if left != nil {
			return left(u)
		}
		db.leaveTimer(s.table, u)
		return nil
	}
	n := 0
	r := rowstore.ScanRange{
		Table: format.TimersTable(s.table), From: from, To: format.TimersUntil(s.n, until), Limit: most,
		Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnTimer)},
	}
	for row, err := range db.scanPast(ctx, r, leave) {
		if err != nil {
			return nil, "", fmt.Errorf("reading the timers of table %q: %w", Cell{Table: s.table}.public().Table, err)
		}
		n++
		next = row.Row + "\x00"
		version := row.Newest(rowstore.Write, format.ColumnTimer)
		due, derr := format.TimerDue(row.Row)
		h, herr := format.DecodeTimerHint(version.Value)
		if failed := errors.Join(derr, herr); failed != nil {
			if err := leave(unreadable{from: row.Row, to: next, err: failed}); err != nil {
				return nil, "", fmt.Errorf("reading the timers of table %q: %w", Cell{Table: s.table}.public().Table, err)
			}
			continue
		}
		page = append(page, dueTimer{row: row.Row, at: version.TS, due: due, cell: Cell{s.table, h.Row, h.Column}})
	}
	if n < most {
		next = ""
	}
	return page, next, nil
}

// leaveTimer says which row of the index is left alone. It is met in each round.
func (db *DB) leaveTimer(table string, u unreadable) {
	first, last := db.leftTimers.first(rowName{table, u.from})
	if first {
		db.log.Error("a timer cannot be read and is left alone", "table", Cell{Table: table}.public().Table, "row", u.from, "err", u.err)
	}
	if last {
		db.log.Error("further timers that cannot be read are left alone, and are not named")
	}
}

// tell puts notifications on the targets of timers that are due, and then removes the rows of the index. failed says which
// timers it could not tell of.
func (w *Worker) tell(ctx context.Context, table string, timers []dueTimer) (failed, err error) {
	timers, failed, err = w.db.dropUnobserved(ctx, timers)
	if err != nil || len(timers) == 0 {
		return failed, err
	}
	// It lies above the commits that the rows of the index tell of: so a look that finds the notification sees
	// the timers, and that they are due.
	ts, err := w.db.draw(ctx)
	if err != nil {
		return nil, err
	}
	var muts rowMutations
	told := map[Cell]int{} // the index of the mutation
	for i := range timers {
		c := timers[i].cell
		if _, twice := told[c]; twice {
			continue
		}
		m := muts.of(c.Table, c.Row)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, c.Column, ts, format.StrongNotification))
		told[c] = slices.IndexFunc(muts.list, func(o rowstore.Mutation) bool { return o.Row == c.Row })
	}
	outs, err := w.db.applyEach(ctx, muts.list, rowstore.ApplyOptions{Bulk: len(timers) == firePage})
	if err != nil {
		return nil, fmt.Errorf("telling of %d timers: %w", len(timers), err)
	}
	var done []rowstore.Mutation
	for i := range timers {
		t := &timers[i]
		if oerr := outs[told[t.cell]].Err; oerr != nil {
			failed = fmt.Errorf("telling of the timer of %v: %w", t.cell.public(), oerr)
			continue
		}
		done = append(done, t.removed())
	}
	w.db.count.timersFired.Add(uint64(len(done)))
	if !w.listens() {
		w.kickTable(table)
	}
	err = w.db.removeTimers(ctx, done, func(_ string, rerr error) error {
		failed = fmt.Errorf("removing a timer from the index: %w", rerr)
		return nil
	})
	return failed, err
}

// removed removes the row of the index.
func (t *dueTimer) removed() rowstore.Mutation {
	return rowstore.Mutation{
		Table: format.TimersTable(t.cell.Table), Row: t.row,
		Edits: []rowstore.Edit{rowstore.Delete(rowstore.Write, format.ColumnTimer, t.at)},
	}
}

// removeTimers removes rows of an index. What is not removed leads to a needless look. left is told of each row that stays, and may return an error.
func (db *DB) removeTimers(ctx context.Context, muts []rowstore.Mutation, left func(row string, failed error) error) error {
	for part := range slices.Chunk(muts, firePage) {
		outs, err := db.applyEach(ctx, part, rowstore.ApplyOptions{Bulk: len(part) == firePage})
		if err != nil {
			return fmt.Errorf("removing timers from the index: %w", err)
		}
		for i := range outs {
			if outs[i].Err == nil {
				continue
			}
			if err := left(part[i].Row, outs[i].Err); err != nil {
				return fmt.Errorf("removing timers from the index: %w", err)
			}
		}
	}
	return nil
}

// dropUnobserved removes those timers, of some that rows of an index name, whose columns nobody observes. Their rows stay. failed says which timers it
// could not remove; the others are the rest.
func (db *DB) dropUnobserved(ctx context.Context, timers []dueTimer) (rest []dueTimer, failed, err error) {
	known := db.known()
	var cells []Cell
	for i := range timers {
		if c := timers[i].cell; len(known.observers(c.Table, c.Column)) == 0 {
			cells = append(cells, c)
		}
	}
	_, left, err := db.dropTimers(ctx, cells)
	if err != nil || len(left) == 0 {
		return timers, nil, err
	}
	for i := range timers {
		switch lerr := left[timers[i].cell]; {
		case lerr == nil:
			rest = append(rest, timers[i])
		case failed == nil:
			failed = fmt.Errorf("dropping the timer of %v: %w", timers[i].cell.public(), lerr)
		}
	}
	return rest, failed, nil
}

// dropTimers removes the timers of cells that nobody observes, and counts them. A timer that was set by somebody who knew an
// observer stays: the catalog is read after the snapshot was drawn, so it names that observer. left are those of rows that cannot be read, which do not hold up the others.
func (db *DB) dropTimers(ctx context.Context, cells []Cell) (dropped int, left map[Cell]error, err error) {
	all := min(firePage, db.limits.Cells)
	for most := all; len(cells) > 0; {
		part := cells[:min(most, len(cells))]
		n, err := db.dropSomeTimers(ctx, part)
		ofARow := err != nil && db.isOfARow(ctx, err)
		switch {
		case len(part) > 1 && (ofARow || errors.Is(err, ErrTooLarge)):
			most = len(part) / 2 // to find the row, or because their names are long, for the limits of this process
			continue
		case ofARow:
			if left == nil {
				left = map[Cell]error{}
			}
			left[part[0]], most = err, all
		case err != nil:
			return dropped, left, fmt.Errorf("dropping timers that nobody observes: %w", err)
		}
		if n > 0 {
			db.count.timersDropped.Add(uint64(n)) //nolint:gosec // a count
		}
		dropped += n
		cells = cells[len(part):]
	}
	return dropped, left, nil
}

// dropSomeTimers is dropTimers in one transaction.
func (db *DB) dropSomeTimers(ctx context.Context, cells []Cell) (dropped int, err error) {
	err = db.Update(ctx, func(tx *Txn) error {
		dropped = 0
		if err := tx.begin(ctx); err != nil {
			return err
		}
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return err
		}
		var timers []Cell
		for _, c := range cells {
			if len(v.observers(c.Table, c.Column)) == 0 {
				timers = append(timers, timerOf(c))
			}
		}
		values, err := db.getCells(ctx, timers, &tx.snapshot)
		if err != nil {
			return err
		}
		for i, value := range values {
			if value == nil {
				continue
			}
			if tx.writes.find(timers[i]) == nil {
				dropped++
			}
			if err := tx.put(timers[i], format.KindDelete, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return dropped, err
}

// dropDueTimers removes the timers of a table that were due before the safe point, with their rows of the index, where nobody observes the table: no
// worker looks at them. A transaction from before the safe point can set none any more, so a row of one without a timer is of nothing.
func (db *DB) dropDueTimers(ctx context.Context, table string, safe Timestamp, d *damage) error {
	for n := range byte(format.TimerShards) {
		for from := format.TimersBegin(n); from != ""; {
			var page []dueTimer
			var err error
			if page, from, err = db.timersIn(ctx, timerShard{table, n}, from, safe-1); err != nil {
				return err
			}
			page = slices.DeleteFunc(page, func(t dueTimer) bool { return t.at >= safe })
			var cells, timers []Cell
			for i := range page {
				cells = append(cells, page[i].cell)
			}
			_, left, err := db.dropTimers(ctx, cells)
			if err != nil {
				return err
			}
			for c, failed := range left {
				if err := d.pass(ctx, c.Table, c.Row, failed); err != nil {
					return err
				}
			}
			page = slices.DeleteFunc(page, func(t dueTimer) bool { return left[t.cell] != nil })
			for i := range page {
				timers = append(timers, timerOf(page[i].cell))
			}
			now, err := db.draw(ctx)
			if err != nil {
				return err
			}
			values, err := db.getCells(ctx, timers, &snapshot{set: true, start: now})
			if err != nil {
				return err
			}
			var gone []rowstore.Mutation
			for i := range page {
				if values[i] == nil { // somebody observes the column by now, if there is one
					gone = append(gone, page[i].removed())
				}
			}
			stays := func(row string, failed error) error { return d.pass(ctx, format.TimersTable(table), row, failed) }
			if err := db.removeTimers(ctx, gone, stays); err != nil {
				return err
			}
		}
	}
	return nil
}

// timersDue tells whether the index of a stored table has a timer that is due.
func (db *DB) timersDue(ctx context.Context, table string) (bool, error) {
	if !db.known().Timers {
		return false, nil
	}
	now, err := db.draw(ctx)
	if err != nil {
		return false, err
	}
	for n := range byte(format.TimerShards) {
		page, _, err := db.timersIn(ctx, timerShard{table, n}, format.TimersBegin(n), now)
		if err != nil || len(page) > 0 {
			return true, err
		}
	}
	return false, nil
}

// dropTimersOf removes the timers of a column that nobody observes, and counts them.
func (db *DB) dropTimersOf(ctx context.Context, table, column string) (dropped int, err error) {
	var failed error // of single rows
	for n := range byte(format.TimerShards) {
		s := timerShard{table, n}
		for from := format.TimersBegin(n); from != ""; {
			var page []dueTimer
			if page, from, err = db.timersIn(ctx, s, from, oracle.Max); err != nil {
				return dropped, err
			}
			var cells []Cell
			for i := range page {
				if page[i].cell.Column == column {
					cells = append(cells, page[i].cell)
				}
			}
			k, left, err := db.dropTimers(ctx, cells)
			if dropped += k; err != nil {
				return dropped, err
			}
			for c, err := range left {
				failed = fmt.Errorf("dropping the timer of %v: %w", c.public(), err)
			}
		}
	}
	return dropped, failed
}
