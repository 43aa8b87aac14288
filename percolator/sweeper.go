package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sweepBatch is how many rows a sweep gathers, to judge and to notify them together.
const sweepBatch = 256

// sweeper sweeps for one registration of an observer. It puts a notification on every cell of the observer's column whose newest
// write at a snapshot is newer than the acknowledgment, or that has a timer: what told of
// it may be gone, if nobody observed the column for a while.
//
// The first snapshot lies above all commits that did not know the observer. Every commit above it has notified, so for each row any later
// snapshot does as well. A sweep that takes longer than history is kept draws another one. It reads the rows again that it has gathered, notifies them,
// and goes on behind them. So it moves past all that it has found, however few rows it finds in the time of a snapshot.
//
// It keeps its place over all that fails. If it began anew it would put one more notification on every cell that its observer has yet to see.
//
// A row that cannot be read holds up no other: the sweep goes on behind it, and fails once it has come to its end. The next attempt begins with such
// rows, so that the sweep is done only when each of them was read.
type sweeper struct {
	w     *Worker
	r     format.Observer
	lease *sweepLease
	stop  func() // ends what keeps the lease, if something does
	// waits tells that nothing is left but rows that no other worker could read or notify either. Each of these would begin with the first row, one after another, so this one
	// keeps the lease until the next attempt, which may be a minute later.
	waits  bool
	vain   int       // rows that the store refused in this attempt, while it took none
	first  Timestamp // the first snapshot
	at     Timestamp // the snapshot
	table  string
	column string
	ack    string       // the column of the acknowledgments
	todo   []unreadable // what is left to scan. The first begins behind the rows that were gathered
	left   []unreadable // where rows could not be read, in order
	// leftBytes is the sum of the lengths of names in left.
	leftBytes int
	rows      []rowstore.Row // gathered, as the snapshot shows them; locks may be in the way
	// Notifications of rows before those, which may have failed. They are repeated as they are, so that none is put twice.
	untold  []rowstore.Mutation
	flushed time.Time // when it has last notified, or begun to scan
}

func (w *Worker) newSweeper(r format.Observer, at Timestamp) *sweeper {
	table, column := string(r.Table), string(r.Column)
	return &sweeper{
		w: w, r: r, lease: &sweepLease{w: w, row: format.SweepLeaseRow(&r)}, first: at, at: at,
		table: table, column: column, ack: format.AckColumn(string(r.Name), column), todo: make([]unreadable, 1),
	}
}

// run sweeps until nobody needs that any more. What may pass is tried again. A sweep that another worker is doing is left to
// that one until its lease has ended. Each attempt takes a place in room.
func (s *sweeper) run(ctx context.Context, room chan struct{}) error {
	defer func() {
		if s.stop != nil {
			s.unkeep()
			s.lease.release(ctx)
		}
	}()
	return s.w.retryAfter(ctx, walkWait, "sweeping for a new observer", func() error {
		for {
			over, held, err := s.inTurn(ctx, room)
			if err != nil || over {
				return err
			}
			if err := s.w.db.clock.Sleep(ctx, max(min(held, s.w.db.known().lease), leastPause)); err != nil {
				return err
			}
		}
	})
}

// inTurn is attempt once there is room.
func (s *sweeper) inTurn(ctx context.Context, room chan struct{}) (over bool, held time.Duration, err error) {
	select {
	case room <- struct{}{}:
		defer func() { <-room }()
		return s.attempt(ctx)
	case <-ctx.Done():
		return false, 0, ctx.Err()
	}
}

// attempt sweeps, unless another worker does: then held tells how long that one has its lease. over tells that nobody needs the
// sweep any more: it is done, or the registration is gone.
func (s *sweeper) attempt(ctx context.Context) (over bool, held time.Duration, err error) {
	if s.stop == nil {
		if held, err = s.lease.take(ctx); err != nil || held > 0 {
			return false, held, err
		}
		s.stop = s.lease.keep(ctx)
	}
	s.vain = 0
	over, err = s.underLease(ctx)
	switch {
	case err == nil || ctx.Err() != nil || fatal(err):
		s.unkeep()
		s.lease.release(ctx)
	case !s.waits:
		// This worker goes on soon. Another one would begin with the first row, so that one waits for the end of the lease.
		s.unkeep()
	}
	return over, 0, err
}

// unkeep no longer keeps the lease.
func (s *sweeper) unkeep() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

func (s *sweeper) underLease(ctx context.Context) (over bool, err error) {
	// Another worker may have swept before this one had the lease.
	if over, err = s.needless(ctx); err != nil || over {
		return over, err
	}
	if over, err = s.sweep(ctx); err != nil || over {
		return over, err
	}
	_, err = s.w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		o := v.unswept(&s.r)
		if o != nil {
			o.Swept = s.first
		}
		return o != nil, nil
	})
	return err == nil, err
}

// needless tells that another worker has swept, or that the registration is gone.
func (s *sweeper) needless(ctx context.Context) (bool, error) {
	v, err := s.w.db.loadCatalog(ctx)
	return err == nil && v.unswept(&s.r) == nil, err
}

// sweep does what is left of the sweep. over tells that it was found to be needless.
func (s *sweeper) sweep(ctx context.Context) (over bool, err error) {
	if err := s.tell(ctx); err != nil {
		return false, err
	}
	for len(s.todo) > 0 {
		at := s.at
		if over, err = s.scan(ctx); err != nil || over {
			return over, err
		}
		if s.at == at {
			s.todo = s.todo[1:]
		}
	}
	if len(s.left) == 0 {
		return false, nil
	}
	s.todo, s.left, s.leftBytes = s.left, nil, 0
	s.waits = !slices.ContainsFunc(s.todo, func(u unreadable) bool { return errors.Is(u.err, ErrFormat) })
	return false, fmt.Errorf("%d rows of table %q cannot be read, and wait to be swept, the first at or behind %q: %w", len(s.todo), s.table, s.todo[0].from, s.todo[0].err)
}

// leave leaves out what cannot be read, for the next attempt. It never fails.
func (s *sweeper) leave(u unreadable) error {
	i, known := slices.BinarySearchFunc(s.left, u.from, func(l unreadable, from string) int { return strings.Compare(l.from, from) })
	if !known && len(s.left) < mostUnswept && s.leftBytes+len(u.from) <= mostUnsweptBytes {
		s.left = slices.Insert(s.left, i, u)
		s.leftBytes += len(u.from)
		return nil
	}
	if !known && i > 0 { // very many: what lies between these two is swept once more
		i--
	}
	if i == len(s.left) { // the name is that long
		s.left = append(s.left, u)
		return nil
	}
	l := &s.left[i]
	l.from = min(l.from, u.from)
	if l.to != "" && (u.to == "" || u.to > l.to) {
		l.to = u.to
	}
	return nil
}

// leaveRow is leave for a gathered row.
func (s *sweeper) leaveRow(row string, err error) error {
	return s.leave(unreadable{from: row, to: row + "\x00", err: err})
}

// scan sweeps the rows of what is first to do, until another snapshot was drawn.
func (s *sweeper) scan(ctx context.Context) (over bool, err error) {
	db, at, now := s.w.db, s.at, &s.todo[0]
	v := db.known()
	// What was found early does not wait for enough other rows, which may take hours.
	most := milliseconds(v.stored(v.asOf).Of(s.table).RetentionMs) / 8
	s.flushed = db.clock.Now()
	for row, err := range db.scanPast(ctx, rowstore.ScanRange{Table: s.table, From: now.from, To: now.to, Selectors: s.picks(at)}, s.leave) {
		if err != nil {
			return false, err
		}
		s.rows, now.from = append(s.rows, row), row.Row+"\x00"
		if len(s.rows) < sweepBatch && db.clock.Now().Sub(s.flushed) <= most {
			continue
		}
		if over, err := s.flush(ctx); err != nil || over || s.at != at {
			return over, err
		}
	}
	return s.flush(ctx)
}

func (s *sweeper) picks(at Timestamp) []rowstore.Selector {
	picks := snapshotPicks(snapshotPicks(nil, s.column, at), s.ack, at)
	if s.w.db.known().Timers {
		picks = snapshotPicks(picks, format.TimerColumn(s.column), at)
	}
	return picks
}

// flush notifies those of the gathered rows that need it. If something of them may have been collected or erased since the snapshot, it
// reads them at another one. over is that of readAnew.
func (s *sweeper) flush(ctx context.Context) (over bool, err error) {
	db := s.w.db
	for len(s.rows) > 0 {
		ts, err := s.settle(ctx)
		if errors.Is(err, ErrSnapshotTooOld) {
			if over, err := s.readAnew(ctx); err != nil || over {
				return over, err
			}
			continue
		}
		if db.isOfARow(ctx, err) {
			err = s.settleEach(ctx, err)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return false, err
		}
		muts, err := s.notifications(ctx, ts)
		if err != nil {
			return false, err
		}
		s.untold, s.rows = muts, nil
		if err := s.tell(ctx); err != nil {
			return false, err
		}
	}
	s.flushed = db.clock.Now()
	return false, nil
}

// settle makes sure that the gathered rows show no locks in the way, and nothing that may be incomplete: else the error matches ErrSnapshotTooOld.
// The timestamp was drawn after they were read.
func (s *sweeper) settle(ctx context.Context) (ts Timestamp, err error) {
	db, picks := s.w.db, s.picks(s.at)
	if _, err := db.settleRows(ctx, s.rows, func(int) []rowstore.Selector { return picks }, s.at); err != nil {
		return 0, err
	}
	if ts, err = db.draw(ctx); err != nil {
		return 0, err
	}
	return ts, db.checkSnapshotAt(ctx, s.at, ts, span{table: s.table, from: s.rows[0].Row, to: s.todo[0].from})
}

// settleEach leaves out those of the gathered rows whose locks cannot be read. If there are none, settle has failed for another reason.
func (s *sweeper) settleEach(ctx context.Context, failed error) error {
	db, picks := s.w.db, s.picks(s.at)
	var good []rowstore.Row
	for i := range s.rows {
		_, err := db.settleRows(ctx, s.rows[i:i+1], func(int) []rowstore.Selector { return picks }, s.at)
		switch {
		case err == nil:
			good = append(good, s.rows[i])
		case db.isOfARow(ctx, err):
			_ = s.leaveRow(s.rows[i].Row, err)
		default:
			return err
		}
	}
	if len(good) == len(s.rows) {
		return failed
	}
	s.rows = good
	return nil
}

// readAnew reads the gathered rows at another snapshot. over tells that nobody needs the sweep any more.
func (s *sweeper) readAnew(ctx context.Context) (over bool, err error) {
	if over, err = s.needless(ctx); err != nil || over {
		return over, err
	}
	db := s.w.db
	at, err := db.draw(ctx)
	if err != nil {
		return false, err
	}
	picks := s.picks(at)
	reads := make([]rowstore.RowRead, len(s.rows))
	for i := range s.rows {
		reads[i] = rowstore.RowRead{Table: s.table, Row: s.rows[i].Row, Selectors: picks}
	}
	rows, err := db.readEach(ctx, reads)
	if err != nil {
		return false, err
	}
	db.log.Info("a sweep for a new observer takes longer than history is kept, and goes on at a later snapshot", "observer", string(s.r.Name), "row", s.rows[0].Row)
	s.at, s.rows = at, slices.DeleteFunc(rows, func(row rowstore.Row) bool { return row.Err != nil && s.leaveRow(row.Row, row.Err) == nil })
	return false, nil
}

// notifications are those of the gathered rows that the observer has yet to see.
func (s *sweeper) notifications(ctx context.Context, ts Timestamp) ([]rowstore.Mutation, error) {
	var muts []rowstore.Mutation
	for i := range s.rows {
		row := &s.rows[i]
		newest := row.Newest(rowstore.Write, s.column)
		acked, err := acknowledged(row, s.ack, s.r.Since)
		timer, err2 := timerIn(row, Cell{s.table, row.Row, s.column})
		if err = errors.Join(err, err2); s.w.db.isOfARow(ctx, err) {
			_ = s.leaveRow(row.Row, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if newest != nil && newest.TS > acked || timer.set {
			muts = append(muts, rowstore.Mutation{Table: s.table, Row: row.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, s.column, ts, format.StrongNotification)}})
		}
	}
	return muts, nil
}

// tell puts the notifications of flush into the store. Those that failed are left for the next call.
func (s *sweeper) tell(ctx context.Context) error {
	db := s.w.db
	for attempt := 0; len(s.untold) > 0; attempt++ {
		err := s.tryToTell(ctx, attempt > 0)
		if err == nil {
			return nil
		}
		if !mayAskAgain(err) || s.vain >= mostDamaged {
			return err
		}
		if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
			return err
		}
	}
	return nil
}

// tryToTell makes one attempt of tell. What is broken off may have failed at a row: then it is so again, and each is told by itself.
func (s *sweeper) tryToTell(ctx context.Context, again bool) (err error) {
	db := s.w.db
	var outs []rowstore.Outcome
	var refused []bool
	if !again {
		outs, err = db.store.Apply(ctx, s.untold, rowstore.ApplyOptions{})
	}
	if again || db.isOfARow(ctx, err) {
		outs, refused, err = db.applyAndTell(ctx, s.untold, rowstore.ApplyOptions{})
	}
	// Where no row at all is told it may be the store that is in trouble, and that few are left out for.
	told := slices.ContainsFunc(outs, func(o rowstore.Outcome) bool { return o.Err == nil })
	if told {
		s.vain = 0
	}
	var left []rowstore.Mutation // of their own: a call that was given up may still read the others
	for i := range outs {
		failed := outs[i].Err
		switch {
		case failed == nil:
		case db.isOfARow(ctx, failed):
			_ = s.leaveRow(s.untold[i].Row, failed)
		case refused != nil && refused[i] && (told || s.vain < mostDamaged):
			if !told {
				s.vain++
			}
			_ = s.leaveRow(s.untold[i].Row, failed)
		default:
			left = append(left, s.untold[i])
			if err == nil || mayAskAgain(err) {
				err = failed
			}
		}
	}
	if len(outs) == len(s.untold) {
		s.untold = left
	}
	return err
}
