package percolator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// publish puts the worker's observers into the catalog. From then on, every process
// that reads the catalog notifies their columns.
func (w *Worker) publish(ctx context.Context) error {
	return w.retry(ctx, "publishing the observers", func() error {
		if w.tracks {
			if _, err := w.db.raiseTo(ctx, cascades); err != nil {
				return err
			}
		}
		v, err := w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			changed := false
			for _, q := range w.list {
				old := q.o.OnChange != nil
				switch r, err := w.registration(v, q); {
				case err != nil:
					return false, err
				case r == nil:
					// The timestamp of the view was drawn before the catalog was read, perhaps long before. This one is later than
					// every removal that the read has seen.
					since, err := w.db.draw(ctx)
					if err != nil {
						return false, err
					}
					v.Observers = append(v.Observers, format.Observer{Name: []byte(q.o.Name), Table: []byte(q.table), Column: []byte(q.column), Since: since, OldValues: old})
					v.Changes = v.Changes || old
					changed = true
				case r.OldValues != old:
					return false, otherKind(q)
				}
			}
			return changed, nil
		})
		if err == nil {
			w.published = v.asOf
			w.noteIDs(v)
			w.notePaused(v) // before it looks for changes
		}
		return err
	})
}

// otherKind is the error of an observer that is registered with Func and has OnChange here, or the
// other way round. What it acknowledged as the one means nothing to the other.
func otherKind(q *queue) error {
	here, there := "OnChange", "Func"
	if q.o.Func != nil {
		here, there = there, here
	}
	c := Cell{Table: q.table, Column: q.column}.public()
	return fmt.Errorf("%w: the observer %q of table %q, column %q has %s here and is registered with %s: remove it first (DB.RemoveObserver), or use another name",
		ErrInvalid, q.o.Name, c.Table, c.Column, here, there)
}

// record finds the registration of a queue's observer, nil without one. It does not go by the name alone, which another
// observer may have taken meanwhile.
func (w *Worker) record(v *catalogView, q *queue) *format.Observer {
	for i := range v.Observers {
		if r := &v.Observers[i]; r.Is(q.o.id, q.table, q.column) && r.Has(q.o.Name) {
			return r
		}
	}
	return nil
}

// attend makes sure, as long as the worker runs, that its observers are registered, and has them
// swept for. It looks again when a catalog lease has passed, or when a run has
// met a catalog without its observer, whatever a sweep does meanwhile. It returns an error that matches
// ErrObserverRemoved when one has been removed, and one that matches ErrFormat once a newer program
// has raised the catalog: this one commits nothing more, and must not keep its share from others.
func (w *Worker) attend(ctx context.Context, started <-chan struct{}) error {
	for {
		var v *catalogView
		err := w.retry(ctx, "reading the catalog", func() (err error) {
			v, err = w.db.loadCatalog(ctx)
			return err
		})
		if err != nil {
			return err
		}
		if err := w.checkRegistered(v); err != nil {
			w.db.log.Error("the worker stops, because an observer of its was removed; run the worker anew to register it again", "err", err)
			return err
		}
		w.notePaused(v)
		w.noteTimers(v)
		if len(w.unswept(v)) > 0 {
			leaveToken(w.sweepSoon)
		} else if isClosed(started) && !isClosed(w.ready) {
			close(w.ready) // the first tick of each periodic is in the store, too
		}
		if _, err := w.sleepOr(ctx, v.lease, w.recheck); err != nil {
			return err
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sweepFresh sweeps whenever attend has seen that it is due. It is apart from attend: a sweep may take hours, or wait
// for a store that is away.
func (w *Worker) sweepFresh(ctx context.Context) error {
	for {
		select {
		case <-w.sweepSoon:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := w.retryAfter(ctx, walkWait, "sweeping for new observers", func() error { return w.sweepNew(ctx) })
		if err != nil {
			return err
		}
		leaveToken(w.recheck) // attend sees whether any is left
	}
}

// checkRegistered returns an error that matches ErrObserverRemoved when an observer of
// this worker is not in the catalog any more, and ErrInvalid if it is there with a function of the
// other kind. An observer that another worker has
// registered again meanwhile goes on: the new registration has a sweep of its own.
func (w *Worker) checkRegistered(v *catalogView) error {
	if v.asOf < w.published {
		return nil
	}
	for _, q := range w.list {
		r := w.record(v, q)
		if r != nil && r.OldValues != (q.o.OnChange != nil) {
			return otherKind(q)
		}
		if r == nil {
			c := Cell{Table: q.table, Column: q.column}.public()
			return fmt.Errorf("%w: %q of table %q, column %q", ErrObserverRemoved, q.o.Name, c.Table, c.Column)
		}
	}
	return nil
}

// unswept lists the registrations of this worker's observers whose sweep is not done.
func (w *Worker) unswept(v *catalogView) []format.Observer {
	var fresh []format.Observer
	for _, q := range w.list {
		if r := w.record(v, q); r != nil && r.Swept == 0 {
			fresh = append(fresh, *r)
		}
	}
	return fresh
}

// sweepNew lets observers that are new, or registered again, see the existing data. A
// sweep that another worker is doing is left to that worker, until its lease has ended. One that fails, because its
// table is in a store that is away, does not hold up the others.
func (w *Worker) sweepNew(ctx context.Context) error {
	v, err := w.db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	fresh := w.unswept(v)
	if len(fresh) == 0 {
		return nil
	}
	// The snapshot of the sweep lies above every commit that used an older view, and every
	// commit that used a newer view knew the observers.
	at, err := w.db.outlastOlder(ctx, v.revision, func(v *catalogView) bool { return len(w.unswept(v)) == 0 })
	if err != nil || at == 0 {
		return err
	}
	var errs []error
	var wait time.Duration // until the first sweep of another worker may be taken over
	for _, r := range fresh {
		switch held, err := w.sweepOne(ctx, r, at); {
		case err != nil:
			errs = append(errs, fmt.Errorf("observer %q: %w", r.Name, err))
		case held > 0 && (wait == 0 || held < wait):
			wait = held
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(errs...); err != nil || wait == 0 {
		return err
	}
	_, err = w.sleepOr(ctx, min(wait, w.db.known().lease), w.sweepSoon)
	return err
}

// sweepOne sweeps for a registration, unless another worker does: then it tells how long that one has its lease.
func (w *Worker) sweepOne(ctx context.Context, r format.Observer, at Timestamp) (held time.Duration, err error) {
	lease := &sweepLease{w: w, row: format.SweepLeaseRow(&r)}
	if held, err := lease.take(ctx); err != nil || held > 0 {
		return held, err
	}
	defer lease.release(ctx)
	if err := w.sweep(ctx, r, at, lease); err != nil {
		return 0, err
	}
	_, err = w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		o := v.unswept(&r)
		if o != nil {
			o.Swept = at
		}
		return o != nil, nil
	})
	return 0, err
}

// unswept finds a registration of which nobody has said that its sweep is done. A later registration of the observer, which needs a sweep of its own,
// is not taken for it.
func (v *catalogView) unswept(r *format.Observer) *format.Observer {
	for i := range v.Observers {
		if o := &v.Observers[i]; o.Swept == 0 && o.Since == r.Since && o.Is(string(r.Name), string(r.Table), string(r.Column)) {
			return o
		}
	}
	return nil
}

// sweepLease keeps other workers from a sweep while this one makes progress with it.
// It saves work; nothing else depends on it.
type sweepLease struct {
	w     *Worker
	row   string
	taken time.Time
}

// take takes the lease, or tells how long another worker has it.
func (l *sweepLease) take(ctx context.Context) (held time.Duration, err error) {
	w, db := l.w, l.w.db
	l.taken = db.clock.Now()
	now, err := db.draw(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: format.TableSweeps, Row: l.row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: rowstore.AllColumns, From: now + 1, To: oracle.Max, Limit: 1},
	}}})
	if err != nil {
		return 0, fmt.Errorf("reading the lease of a sweep: %w", err)
	}
	for _, v := range rows[0].Versions {
		if v.Column != w.id {
			return v.TS.Sub(now), nil
		}
	}
	until := now.Add(w.config.MemberLease)
	_, err = db.applyOne(ctx, rowstore.Mutation{Table: format.TableSweeps, Row: l.row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, w.id, until, format.TimestampOnly),
		rowstore.DeleteRange(rowstore.Write, w.id, 0, until-1),
	}})
	if err != nil {
		return 0, fmt.Errorf("taking the lease of a sweep: %w", err)
	}
	return 0, nil
}

// release gives the lease up. What fails is left to the end of the lease.
func (l *sweepLease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.w.db.backgroundTimeout())
	defer cancel()
	_, err := l.w.db.applyOne(ctx, rowstore.Mutation{Table: format.TableSweeps, Row: l.row, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, l.w.id, 0, oracle.Max),
	}})
	if err != nil {
		l.w.db.log.Debug("the lease of a sweep was left to end by itself", "err", err)
	}
}

// renew takes the lease again when a part of it has passed. It does not matter if
// another worker has taken it meanwhile: both sweep.
func (l *sweepLease) renew(ctx context.Context) error {
	if l.w.db.clock.Now().Sub(l.taken) < l.w.config.MemberLease/3 {
		return nil
	}
	_, err := l.take(ctx)
	return err
}

const sweepBatch = 256

// sweeper sweeps for one registration of an observer. It puts a notification on every cell of the observer's column whose newest
// write at a snapshot is newer than the acknowledgment, or that has a timer: what told of
// it may be gone, if nobody observed the column for a while.
//
// The first snapshot lies above all commits that did not know the observer. Every commit above it has notified, so for each row any later
// snapshot does as well. A sweep that takes longer than history is kept draws another one, and goes on with the first row that it has yet to
// notify. If it began anew it would put one more notification on every cell that its observer has yet to see.
type sweeper struct {
	w      *Worker
	r      format.Observer
	lease  *sweepLease
	at     Timestamp // the snapshot
	table  string
	column string
	ack    string   // the column of the acknowledgments
	from   string   // the row at which the scan under way began
	rows   []string // to be notified together
	// When it has last notified, or had nothing to notify. That may not be long ago, or a new snapshot would be too old each time before the scan has come further.
	flushed time.Time
}

func (w *Worker) sweep(ctx context.Context, r format.Observer, at Timestamp, lease *sweepLease) error {
	table, column := string(r.Table), string(r.Column)
	s := &sweeper{w: w, r: r, lease: lease, at: at, table: table, column: column, ack: format.AckColumn(string(r.Name), column)}
	for {
		err := s.scan(ctx)
		if !errors.Is(err, ErrSnapshotTooOld) || len(s.rows) == 0 {
			return err
		}
		if over, err := s.drawAnew(ctx); err != nil || over {
			return err
		}
	}
}

// drawAnew takes another snapshot, for the rows from the first one on that has yet to be notified. over tells that nobody needs the
// sweep any more: another worker has swept, or the registration is gone.
func (s *sweeper) drawAnew(ctx context.Context) (over bool, err error) {
	v, err := s.w.db.loadCatalog(ctx)
	if err != nil || v.unswept(&s.r) == nil {
		return err == nil, err
	}
	s.from, s.rows = s.rows[0], s.rows[:0]
	s.w.db.log.Info("a sweep for a new observer takes longer than history is kept, and goes on at a later snapshot", "observer", string(s.r.Name), "row", s.from)
	s.at, err = s.w.db.draw(ctx)
	return false, err
}

// scan sweeps the rows from s.from on, by the snapshot.
func (s *sweeper) scan(ctx context.Context) error {
	db := s.w.db
	picks := snapshotPicks(snapshotPicks(nil, s.column, s.at), s.ack, s.at)
	if db.known().Timers {
		picks = snapshotPicks(picks, format.TimerColumn(s.column), s.at)
	}
	v := db.known()
	most := milliseconds(v.stored(v.asOf).Of(s.table).RetentionMs) / 8
	s.flushed = db.clock.Now()
	for row, err := range db.scanSettled(ctx, rowstore.ScanRange{Table: s.table, From: s.from, Selectors: picks}, s.at, nil, nil) {
		if err == nil {
			err = s.lease.renew(ctx)
		}
		if err != nil {
			return err
		}
		newest := row.Newest(rowstore.Write, s.column)
		acked, err := acknowledged(&row, s.ack, s.r.Since)
		if err != nil {
			return err
		}
		timer, err := timerIn(&row, Cell{s.table, row.Row, s.column})
		if err != nil {
			return err
		}
		if newest != nil && newest.TS > acked || timer.set {
			s.rows = append(s.rows, row.Row)
		}
		if len(s.rows) == sweepBatch || db.clock.Now().Sub(s.flushed) > most {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
	}
	return s.flush(ctx)
}

// flush notifies the rows, unless something of them may have been collected or erased since the snapshot: then the error
// matches ErrSnapshotTooOld, and they stay.
func (s *sweeper) flush(ctx context.Context) error {
	defer func() { s.flushed = s.w.db.clock.Now() }()
	if len(s.rows) == 0 {
		return nil
	}
	db := s.w.db
	ts, err := db.draw(ctx)
	if err == nil {
		err = db.checkSnapshotAt(ctx, s.at, ts, span{table: s.table, from: s.rows[0], to: s.rows[len(s.rows)-1] + "\x00"})
	}
	if err != nil {
		return err
	}
	muts := make([]rowstore.Mutation, len(s.rows))
	for i, row := range s.rows {
		muts[i] = rowstore.Mutation{Table: s.table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, s.column, ts, format.StrongNotification)}}
	}
	outs, err := db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
	for i := range outs {
		err = errors.Join(err, outs[i].Err)
	}
	s.rows = s.rows[:0]
	return err
}
