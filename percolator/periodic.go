package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
)

// Periodics: functions that run at the times of a schedule, with one commit for each tick. A periodic is an observer of a
// column of its own, in a row of a table that is there for periodics. Beside the observed cell, which nobody writes, is
// one that says which tick comes next; the timer of the observed cell is set to it. So a run is that of an observer for a
// timer, and moves both on in its transaction. See "Periodics" in docs/architecture.md.

// PeriodicTable is the table in which periodics keep how far they have come: a row for each, by its name. It is an
// ordinary table, for Parked, Release, ConfigureTable, backups and routers. Do not write to it.
const PeriodicTable = "percolator.periodic"

// Columns of PeriodicTable. That of the observed cell goes on with the name.
const (
	columnOfPeriodic = "state"
	periodicPrefix   = "run:"
)

// Periodic is a function that runs at the times of a schedule: see Worker.Every.
type Periodic struct {
	// Name identifies the periodic in all processes, and is the name of its observer: PauseObserver, ResumeObserver and RemoveObserver
	// take it, and ParkedRun, RunError and the log have it. 1 to 128 bytes. No observer may have the same name.
	Name string
	// Version says which schedule counts if programs that run at the same time have different ones for the name: the one of the
	// highest version. Raise it with each change of the Schedule. Default 0; negative is ErrInvalid.
	//
	// A worker that comes with another schedule and a higher version replaces the one that is stored; a tick that is due already is
	// still run. A worker with a lower version leaves the periodic to the others. Both are logged, with both schedules. Where no worker has
	// the stored schedule any more, nothing runs until somebody raises the Version above the stored one. With
	// the same version, Worker.Run refuses another schedule with ErrInvalid. As long as the schedules are the same, the versions do not matter.
	// Schedules are compared by their method String. Without it the versions alone are compared.
	Version int
	// Schedule says when it ticks. The first tick is the first one after the periodic was registered first.
	Schedule Schedule
	// Missed says what becomes of ticks that nobody has begun in time: Skip (the default), Once or Each.
	Missed Missed
	// Func is called in a transaction, for a tick: in UTC and whole milliseconds, as the schedule has it, even
	// if the call is later. Its writes commit together with the note that the tick is done: so for each tick at most one
	// run takes effect, over any number of processes. It may be called again for a tick, as the function of any
	// observer (see Observer.Func), also in two workers at once if one of them was taken for dead; so it must have no effect but through tx. It must not end tx.
	//
	// It is repeated and parked by the rules of observers. A repeated call may be for a newer tick, by Missed. A parked run does not
	// stop the periodic: the next tick comes in its time. Until a later tick has run, or is left out by Missed, DB.Release has the parked one run again; then it
	// is dropped, which is logged.
	Func func(ctx context.Context, tx *Txn, tick time.Time) error
	// MaxAttempts, Backoff, Timeout and Isolation are those of an Observer.
	MaxAttempts int
	Backoff     Backoff
	Timeout     time.Duration
	Isolation   Isolation
}

// Every has the worker run a function at the times of a schedule, before Run. All workers that give the same name share one
// periodic: each tick is committed by one of them. One tick runs at a time: the next one begins when the run of that before was committed or parked.
//
// Ticks go by the oracle's time, as timers do (Txn.NotifyAt): where that stands still, they wait. A worker that was killed in a
// run is missed after some seconds, and another one goes on with the tick. The first tick of all may be late by a catalog lease.
//
// A periodic stays registered when no program runs it any more. Nothing runs then: at most one tick waits, as a notification
// that Backlog counts, and no further one comes. When a program runs it again, Missed says what becomes of
// the ticks in between. DB.RemoveObserver removes it for good; if it is registered again, it begins anew.
//
// Errors:
//
//   - ErrInvalid: the name is empty or too long, or the worker has an observer or periodic of that name; the Schedule is nil, or
//     has no time after now; the Func is nil; the Version is negative; Each has a number out of range; the Isolation is no level.
//   - ErrTooLarge: the store has no room for names that long.
//   - ErrWorkerRunning: Run was called already.
func (w *Worker) Every(p Periodic) error {
	bad := func(what string) error {
		return fmt.Errorf("percolator: Every: %w: the periodic %.128q %s", ErrInvalid, p.Name, what)
	}
	switch {
	case p.Name == "":
		return fmt.Errorf("percolator: Every: %w: a periodic has no name", ErrInvalid)
	case p.Schedule == nil:
		return bad("has no Schedule")
	case p.Func == nil:
		return bad("has no Func")
	case p.Version < 0:
		return bad(fmt.Sprintf("has the Version %d; it must be 0 or more", p.Version))
	case p.Missed < Once || p.Missed > mostEach:
		return bad(fmt.Sprintf("has a bad Missed: it must be Skip, Once, or Each of 1 to %d", mostEach))
	}
	if _, err := nextTick(p.Schedule, w.db.clock.Now()); err != nil {
		return fmt.Errorf("percolator: Every: the periodic %.128q: %w", p.Name, err)
	}
	r := &periodic{Periodic: p, text: scheduleText(p.Schedule)}
	c := r.cell()
	return w.Observe(Observer{
		Name: p.Name, Table: c.Table, Column: c.Column,
		Func:        func(ctx context.Context, tx *Txn, _ Cell) error { return r.run(ctx, tx) },
		MaxAttempts: p.MaxAttempts, Backoff: p.Backoff, Timeout: p.Timeout, Isolation: p.Isolation,
		periodic: r,
	})
}

// periodic is a Periodic of a worker.
type periodic struct {
	Periodic
	text string // of the schedule, "" if it has none
}

// mostScheduleText bounds what is stored of a schedule's text.
const mostScheduleText = 512

// scheduleText is what a schedule says of itself.
func scheduleText(s Schedule) string {
	if s, ok := s.(fmt.Stringer); ok {
		text := s.String()
		return text[:min(len(text), mostScheduleText)]
	}
	return ""
}

// cell is the one that is observed, and whose timer is set.
func (p *periodic) cell() Cell {
	return Cell{Table: PeriodicTable, Row: p.Name, Column: periodicPrefix + p.Name}
}

func (p *periodic) stateCell() Cell { return stateOfPeriodic(p.Name) }

func stateOfPeriodic(name string) Cell {
	return Cell{Table: PeriodicTable, Row: name, Column: columnOfPeriodic}
}

// load reads how far the periodic has come. found is false if nothing is known for the registration.
func (p *periodic) load(ctx context.Context, tx *Txn, since Timestamp) (s format.Periodic, found bool, err error) {
	b, err := tx.Get(ctx, p.stateCell())
	if errors.Is(err, ErrNotFound) {
		return s, false, nil
	}
	if err == nil {
		s, err = format.DecodePeriodic(b)
	}
	if err != nil {
		return s, false, fmt.Errorf("reading how far the periodic %q has come: %w", p.Name, err)
	}
	return s, s.Since == since, nil
}

// store stores how far it has come. The timer goes with the next tick if it has moved.
func (p *periodic) store(tx *Txn, s *format.Periodic, moved bool) error {
	b, err := s.Encode()
	if err == nil {
		err = tx.Set(p.stateCell(), b)
	}
	if err == nil && moved {
		err = tx.NotifyAt(p.cell(), time.UnixMilli(s.Next))
	}
	if err != nil {
		return fmt.Errorf("storing how far the periodic %q has come: %w", p.Name, err)
	}
	return nil
}

// same tells whether the stored schedule is the periodic's own.
func (p *periodic) same(s *format.Periodic) bool {
	if p.text == "" || len(s.Schedule) == 0 {
		return p.text == string(s.Schedule) && p.Version == s.Version
	}
	return p.text == string(s.Schedule)
}

// next is the first tick after a time, in milliseconds.
func (p *periodic) next(after time.Time) (int64, error) {
	tick, err := nextTick(p.Schedule, after)
	if err != nil {
		return 0, fmt.Errorf("periodic %q: %w", p.Name, err)
	}
	return tick.UnixMilli(), nil
}

// begin sets the first tick of a registration.
func (p *periodic) begin(tx *Txn, since Timestamp, now time.Time) error {
	next, err := p.next(now)
	if err != nil {
		return err
	}
	return p.store(tx, &format.Periodic{Since: since, Version: p.Version, Schedule: []byte(p.text), Next: next}, true)
}

// run is the function of the periodic's observer.
func (p *periodic) run(ctx context.Context, tx *Txn) error {
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	s, found, err := p.load(ctx, tx, tx.run.since)
	switch {
	case err != nil:
		return err
	case !found:
		return p.begin(tx, tx.run.since, now)
	case !p.same(&s) && p.Version <= s.Version:
		return p.aside(&s)
	case s.Next > now.UnixMilli():
		if s.Parked == 0 {
			return nil
		}
		// Its run was released.
		if err := p.Func(ctx, tx, time.UnixMilli(s.Parked).UTC()); err != nil {
			return err
		}
		s.Parked = 0
		return p.store(tx, &s, false)
	}
	tick, next, run, err := p.Missed.plan(p.Schedule, time.UnixMilli(s.Next).UTC(), now, tx.run.begun)
	if err != nil {
		return fmt.Errorf("periodic %q: %w", p.Name, err)
	}
	if run {
		if err := p.Func(ctx, tx, tick); err != nil {
			return err
		}
	}
	p.tellMissed(tx.db, &s, tick, run)
	version := p.Version
	if p.same(&s) {
		version = max(version, s.Version) // whoever has replaced a schedule must not be replaced by that one
	}
	s.Version, s.Schedule, s.Next, s.Parked = version, []byte(p.text), next.UnixMilli(), 0
	return p.store(tx, &s, true)
}

// tellMissed logs which ticks are left out. s is what was stored before.
func (p *periodic) tellMissed(db *DB, s *format.Periodic, tick time.Time, run bool) {
	if s.Parked != 0 {
		db.log.Warn("a tick of a periodic whose run was parked is dropped, because a later one has come", "periodic", p.Name, "tick", time.UnixMilli(s.Parked).UTC())
	}
	if first := time.UnixMilli(s.Next).UTC(); !run || first.Before(tick) {
		db.log.Warn("ticks of a periodic were missed and are left out", "periodic", p.Name, "from", first, "to", tick, "this one too", !run)
	}
}

// giveUp has the next tick come after the run for one was parked. tx is the transaction that parks it, and begun the start of the run: it was for
// what was due then, however long it took. The error is an asideError if another schedule counts by now.
func (p *periodic) giveUp(ctx context.Context, tx *Txn, since, begun Timestamp) error {
	s, found, err := p.load(ctx, tx, since)
	switch {
	case err != nil || !found:
		return err
	case !p.same(&s) && p.Version <= s.Version:
		return p.aside(&s)
	case s.Next > begun.Time().UnixMilli():
		return nil // a tick that was released has failed again
	}
	tick, next, _, err := p.Missed.plan(p.Schedule, time.UnixMilli(s.Next).UTC(), begun.Time(), true)
	if err != nil {
		// It is what the run failed for. Without a next tick the parked one keeps its timer.
		return nil //nolint:nilerr // the run's own error is recorded
	}
	s.Next, s.Parked = next.UnixMilli(), tick.UnixMilli()
	return p.store(tx, &s, true)
}

// startWait is how long a worker waits for its periodics to be started before it does all else.
const startWait = time.Second

// startPeriodics makes sure that each periodic of the worker has a next tick, and that its schedule is the one that counts. One
// that fails does not hold the others up.
func (w *Worker) startPeriodics(ctx context.Context) error {
	left := slices.DeleteFunc(slices.Clone(w.list), func(q *queue) bool { return q.o.periodic == nil })
	if len(left) == 0 {
		return nil
	}
	return w.retry(ctx, "starting a periodic", func() error {
		var errs []error
		left = slices.DeleteFunc(left, func(q *queue) bool {
			err := w.startPeriodic(ctx, q)
			if err != nil {
				errs = append(errs, fmt.Errorf("percolator: starting the periodic %q: %w", q.o.Name, err))
			}
			return err == nil
		})
		return errors.Join(errs...)
	})
}

func (w *Worker) startPeriodic(ctx context.Context, q *queue) error {
	p, r := q.o.periodic, w.record(w.db.known(), q)
	if r == nil {
		return nil // it was removed, as the worker will see
	}
	var was *format.Periodic // of which the schedule was replaced
	var aside error
	err := w.db.Update(ctx, func(tx *Txn) error {
		was, aside = nil, nil
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		s, found, err := p.load(ctx, tx, r.Since)
		switch {
		case err != nil:
			return err
		case !found && s.Since > r.Since:
			return nil // it was registered again since: whoever did that has begun
		case !found:
			return p.begin(tx, r.Since, now)
		}
		// Without a timer nothing would come any more: a run was parked for which there was no next tick, and dropped.
		_, timed, err := tx.db.getCell(ctx, timerOf(p.cell().stored()), &tx.snapshot)
		switch {
		case err != nil:
			return err
		case p.same(&s):
			if timed && p.Version <= s.Version {
				return nil
			}
			s.Version = max(s.Version, p.Version)
			return p.store(tx, &s, !timed)
		case p.Version == s.Version:
			return fmt.Errorf("%w: the periodic has the schedule %q here, and %q is stored, both of Version %d: raise the Version of the one that is to count",
				ErrInvalid, p.text, s.Schedule, p.Version)
		case p.Version < s.Version:
			aside = p.aside(&s)
			return nil
		}
		old := s
		was = &old
		return p.replace(tx, &s, now, timed)
	})
	switch {
	case errors.Is(err, ErrNotObserved):
		return nil // it was removed meanwhile
	case err != nil:
		return err
	case aside != nil:
		w.standAside(q.o, aside)
	case was != nil:
		w.db.log.Warn("the schedule of a periodic was replaced", "periodic", p.Name, "version", p.Version, "schedule", p.text,
			"version before", was.Version, "schedule before", string(was.Schedule))
	}
	return nil
}

// replace puts the periodic's schedule in the place of the stored one. A tick that is due is still run. timed tells that there is a timer.
func (p *periodic) replace(tx *Txn, s *format.Periodic, now time.Time, timed bool) error {
	moved := !timed // of a tick that is due it stays the same: a tick that has begun, and failed, is not missed
	due := s.Next <= now.UnixMilli()
	if !due {
		next, err := p.next(now)
		if err != nil {
			return err
		}
		s.Next, moved = next, true
	}
	s.Version, s.Schedule = p.Version, []byte(p.text)
	// Whoever has the other schedule sees at once that it does not count any more. A parked run would be taken for released: then
	// they see it at the next tick. If that is due, its run may be parked, for a schedule that had no next tick, say.
	if s.Parked == 0 || due {
		if err := tx.Notify(p.cell()); err != nil {
			return err
		}
	}
	return p.store(tx, s, moved)
}

// asideWait is how long a worker leaves a periodic alone whose stored schedule is of a higher version.
const asideWait = time.Minute

// asideError tells that the stored schedule of a periodic is another one, and counts.
type asideError struct {
	name                string
	own, stored         int
	ownText, storedText string
}

// aside says that the stored schedule counts, and not the periodic's own.
func (p *periodic) aside(s *format.Periodic) *asideError {
	return &asideError{name: p.Name, own: p.Version, ownText: p.text, stored: s.Version, storedText: string(s.Schedule)}
}

func (e *asideError) Error() string {
	return fmt.Sprintf("percolator: the periodic %q has the schedule %q of version %d here, and %q of version %d counts", e.name, e.ownText, e.own, e.storedText, e.stored)
}

// standAside leaves a periodic to workers that have the schedule that counts.
func (w *Worker) standAside(o *Observer, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.list {
		if q.o == o && !q.aside {
			q.aside = true
			leaveToken(w.beatSoon)
			w.db.log.Warn("the worker leaves a periodic to others, because a schedule of a higher version counts; raise the Version if its own is to count", "why", why)
		}
	}
}

// dropPeriodic removes what a periodic that was removed has kept.
func (db *DB) dropPeriodic(ctx context.Context, name string, since Timestamp) error {
	return db.Update(ctx, func(tx *Txn) error {
		b, err := tx.Get(ctx, stateOfPeriodic(name))
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if s, err := format.DecodePeriodic(b); err != nil || s.Since > since {
			return err
		}
		return tx.Delete(stateOfPeriodic(name))
	})
}
