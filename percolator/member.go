package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How workers know of each other. Each running worker is a member: it has a row of its
// own with a record of what it runs (format.Member) and a lease. All members look at one
// small row, the generation, at every beat, and read the list of members only if that has
// changed. Each watches the lease of one other member, its successor in the order of the
// ids: whoever finds a lease that has ended, by the oracle's time, removes that member.
//
// Changes are dated ahead. A member that joins has its shares from a time on by which the
// others have looked at the generation, so that all of them hand over at once. One that
// stops while functions run says until when it keeps its shares.

// membership is a worker's part in this.
type membership struct {
	shares  atomic.Pointer[shares]     // nil before the worker has joined
	time    atomic.Pointer[oracleTime] // nil before the first beat
	company atomic.Pointer[company]    // for WaitIdle; nil before the first beat

	// Of the goroutine that beats.
	id         string        // of its row; "" while it is no member
	joined     Timestamp     // of its record
	until      Timestamp     // the end of its own lease, as stored last
	record     format.Member // as stored last
	generation Timestamp     // as read before list; 0 if that must be read
	list       []member      // by id
	successor  string        // whose lease it watches; "" without any
	ends       Timestamp     // of that lease, as read last; 0 if it was not
	renewed    time.Time     // local, when that end was asked for first
	watched    time.Duration // how long the lease lasts
	judges     Timestamp     // until then no lease counts as ended; 0 if it was never cut off
	doubt      Timestamp     // from which on the list is to be read again; 0 if it is not
	announce   bool          // the generation is to be changed yet
	outdated   bool          // the shares are older than the list or the record
	looked     Timestamp     // of the last beat that had the worker look for what its shares took in
	barrier    Timestamp     // of a WaitIdle, as read last; 0 without one
	answered   Timestamp     // the last one that was answered
	asked      time.Time     // local, when a barrier was answered last
	leaving    bool          // the worker begins nothing any more, although functions of it still run

	owned map[string]*slotSet // of each table: what was its own when noteGained looked last

	unreadable map[string]bool // the ids of records that this program cannot read, and has told of
}

// member is a member as a worker knows it.
type member struct {
	id     string
	joined Timestamp
	ends   Timestamp // of its lease, when it was read
	record format.Member
}

// takesPart tells whether a member has shares at a time.
func (m *member) takesPart(at Timestamp) bool {
	return m.record.From <= at && (m.record.Until == 0 || at < m.record.Until)
}

// weightOf returns the weight of a member for an observer. ok is false if the member does
// not run it.
func (m *member) weightOf(q *queue) (weight int, ok bool) {
	for i := range m.record.Works {
		if w := &m.record.Works[i]; w.Observer == q.o.id && w.Table == q.table && w.Column == q.column {
			return w.Weight, true
		}
	}
	return 0, false
}

// shortestLease is the shortest lease of another worker that makes this one look more
// often.
const shortestLease = 500 * time.Millisecond

// beatInterval is the time between two beats. A lease outlasts a beat that failed. One that
// is shorter than this worker's own must not be missed later because of that.
func (w *Worker) beatInterval() time.Duration {
	lease := w.config.MemberLease
	for i := range w.member.list {
		lease = min(lease, max(w.member.list[i].record.Lease, shortestLease))
	}
	return lease / 2
}

// handOver is how far ahead a change of the shares is dated.
func handOver(lease time.Duration) time.Duration { return lease / 3 * 2 }

// dated returns a time at which shares may change: d behind t at least, and an eighth of d more at most, or a millisecond. The members that come or
// go within that time change the shares at the same moment. Otherwise each of a thousand that come together would work its shares
// out a thousand times, and look at the others as often. Programs from before this rule have no such step. Where such a one reads a record that dateJoins
// corrects, a slot has two owners or none for that eighth, until the joiner has corrected the record itself.
func dated(t Timestamp, d time.Duration) Timestamp {
	step := uint64(1)
	for most := d.Milliseconds() / 8; int64(step)*2 <= most; { //nolint:gosec // at most the milliseconds of a duration
		step *= 2
	}
	unit := Timestamp(step) << oracle.LogicalBits
	at := t.Add(d)
	if over := at % unit; over > 0 && at <= oracle.Max-(unit-over) {
		at += unit - over
	}
	return at
}

// answerEvery is the least time between two beats that barriers ask for. The first comes
// at once.
const answerEvery = 10 * time.Millisecond

// Where no push tells of a barrier, a member looks for the next one sooner once it has answered one, until all others must have answered
// that too: WaitIdle asks twice, one question behind the other.
const (
	leastAskedBeat = 100 * time.Millisecond
	askedBeatEach  = 2 * time.Millisecond // for each member, so that all together do not ask the store too much
)

// belong keeps the worker a member until ctx ends.
func (w *Worker) belong(ctx context.Context) error {
	if w.db.opt.owns != nil {
		return nil // somebody else says what is its own
	}
	var last time.Time
	for attempt := 0; ; {
		if err := w.waitForBeat(ctx, attempt, last); err != nil {
			return err
		}
		last = w.db.clock.Now()
		if err := w.beat(ctx); err == nil {
			attempt = 0
		} else {
			if ctx.Err() != nil || fatal(err) {
				return err
			}
			w.db.log.Warn("the worker could not tell the others that it runs, and will try again", "err", err)
			attempt++
		}
	}
}

// waitForBeat waits for the time of the next beat, or until there is a barrier to answer.
func (w *Worker) waitForBeat(ctx context.Context, attempt int, last time.Time) error {
	wait := w.untilBeat()
	if attempt > 0 {
		// What that beat was early for has not been seen yet, and would hurry each attempt.
		return w.db.clock.Sleep(ctx, min(w.beatInterval(), troubleWait.wait(attempt-1, w.db.rand)))
	}
	asked, err := w.sleepOr(ctx, wait, w.beatSoon)
	if soon := answerEvery - w.db.clock.Now().Sub(last); err == nil && asked && soon > 0 {
		err = w.db.clock.Sleep(ctx, soon)
	}
	return err
}

// untilBeat returns how long it is until the next beat. Those after the joining come
// sooner, because others may have joined at the same time. A beat is early if a share changes
// before, if the lease of the successor ends, or if the worker may by then have made no
// progress for a lease. A successor that lives has renewed its lease long before that. And it is early for the next barrier.
func (w *Worker) untilBeat() time.Duration {
	m := &w.member
	wait := w.beatInterval()
	early := func(d time.Duration) { wait = min(wait, max(d, time.Millisecond)) }
	if w.now().Sub(m.joined) < w.config.MemberLease {
		early(w.config.MemberLease / 16)
	}
	if next := m.shares.Load().next(w.now()); next > 0 {
		early(next.Sub(w.now()))
	}
	if every := max(leastAskedBeat, time.Duration(len(m.list)+1)*askedBeatEach); !w.pushed() && w.db.clock.Now().Sub(m.asked) < w.beatInterval()+2*every {
		early(every)
	}
	if m.successor != "" && m.ends > 0 {
		early(max(m.ends, m.judges).Sub(w.now()) + time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.list {
		if from, ok := w.stuckFrom(q); ok && !q.stuck {
			early(from.Sub(w.db.clock.Now()))
		}
	}
	return wait
}

// beatTimeout bounds a beat.
func (w *Worker) beatTimeout() time.Duration { return max(w.config.MemberLease, time.Second) }

// beat looks at what the other members do, and tells them of this one. It joins if the
// worker is no member.
func (w *Worker) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.beatTimeout())
	defer cancel()
	m := &w.member
	seen, err := w.lookAtMembers(ctx)
	if err != nil {
		return fmt.Errorf("looking at the members: %w", err)
	}
	m.time.Store(&oracleTime{seen.now, seen.asked})
	if m.ends != seen.ends {
		m.ends, m.renewed = seen.ends, seen.asked
	}
	if m.id != "" && !seen.member {
		w.db.log.Warn("the other workers took this one for dead; it joins again")
		m.id = ""
	}
	doubt := m.doubt > 0 && m.doubt < seen.now
	m.barrier = seen.barrier
	if m.id == "" || seen.generation == 0 || seen.generation != m.generation || !seen.successor || doubt {
		if err := w.readMembers(ctx, seen.now, !seen.successor); err != nil {
			return fmt.Errorf("reading the members: %w", err)
		}
		if !seen.successor && seen.generation == m.generation {
			// Whoever removed the successor may have died before it could tell the others.
			m.announce = true
		}
		m.generation, m.outdated = seen.generation, true
	}
	works := w.works()
	if m.id == "" {
		if err = w.join(ctx, seen.now, works); err == nil {
			err = w.yieldToEarlier(ctx, seen.now)
		}
	} else {
		again := !slices.Equal(works, m.record.Works) || m.leaving && m.record.Until == 0
		m.outdated = m.outdated || again
		err = w.renewMember(ctx, seen.now, works, again)
	}
	if err != nil {
		return err
	}
	if m.announce {
		if err := w.announce(ctx, seen.now); err != nil {
			return err
		}
	}
	// A beat that failed before this point has left the rest of it to this one.
	changed := m.outdated
	if changed {
		w.shareOut(seen.now)
		m.outdated = false
		leaveToken(w.claimSoon)
	}
	// What was to change since is asked for by the oracle's time: the guess at the present (now)
	// may have reached it before the oracle has.
	if next := m.shares.Load().next(m.looked); changed || next > 0 && next <= seen.now {
		w.noteGained() // something may be this worker's own that was not before
		w.kickAll()
		w.kickTimers()
	}
	m.looked = seen.now
	w.keepCompany()
	return nil
}

// works lists what this worker runs, with the weights of the moment.
func (w *Worker) works() []format.MemberWork {
	now := w.db.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	works := make([]format.MemberWork, len(w.list))
	for i, q := range w.list {
		works[i] = format.MemberWork{Observer: q.o.id, Table: q.table, Column: q.column, Weight: min(w.limit(q), format.MaxWeight)}
		if q.stuck = w.isStuck(q, now); q.stuck || q.aside {
			works[i].Weight = 0
		}
	}
	return works
}

// begin is when the shares of a member that joins at now begin: at once if nobody that
// was there before has any of them, else when the others know of it.
func (w *Worker) begin(now Timestamp) Timestamp {
	from, lease := now, w.config.MemberLease
	for i := range w.member.list {
		other := &w.member.list[i]
		if other.joined < now && slices.ContainsFunc(w.list, func(q *queue) bool { _, ok := other.weightOf(q); return ok }) {
			lease = max(lease, other.record.Lease)
			from = dated(now, handOver(lease))
		}
	}
	return from
}

// yieldToEarlier looks again whether others have joined at the same time. If so, the
// first one alone begins at once.
func (w *Worker) yieldToEarlier(ctx context.Context, now Timestamp) error {
	m := &w.member
	if m.record.From > now {
		return nil
	}
	if err := w.readMembers(ctx, now, false); err != nil {
		return err
	}
	if from := w.begin(now); from > now {
		m.record.From = from
		return w.renewMember(ctx, now, m.record.Works, true)
	}
	return nil
}

// join stores a new record.
func (w *Worker) join(ctx context.Context, now Timestamp, works []format.MemberWork) error {
	m := &w.member
	record := format.Member{From: w.begin(now), Lease: w.config.MemberLease.Round(time.Microsecond), Works: works}
	if m.leaving {
		record.From, record.Until = now, now // it has no share
	}
	id := w.db.uniqueID()
	out, err := w.db.applyOne(ctx, rowstore.Mutation{
		Table: format.TableMembers, Row: id,
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, format.ColumnMember, 0)},
		Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Lock, format.ColumnMember, now, record.Encode()),
			rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(w.config.MemberLease), format.TimestampOnly),
		},
	})
	// After a lost reply another row is tried; the lease of the first one ends by itself.
	if err == nil && !out.Applied {
		err = errors.New("the id is taken")
	}
	if err != nil {
		return fmt.Errorf("joining the members: %w", err)
	}
	m.id, m.joined, m.until = id, now, now.Add(w.config.MemberLease)
	m.record, m.announce, m.answered = record, true, 0
	return nil
}

// renewMember moves the end of the lease, and with again stores the record anew. It
// answers a barrier that this worker has not answered yet. It does nothing if the record does
// not stand any more; the next beat will see that.
func (w *Worker) renewMember(ctx context.Context, now Timestamp, works []format.MemberWork, again bool) error {
	m := &w.member
	until := now.Add(w.config.MemberLease)
	record := m.record
	record.Works = works
	if m.leaving && record.Until == 0 {
		record.Until = dated(now, handOver(record.Lease)/2)
	}
	edits := []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnLease, until, format.TimestampOnly),
		rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, until-1),
	}
	if again {
		edits = append(edits, rowstore.Put(rowstore.Lock, format.ColumnMember, m.joined, record.Encode()))
	}
	barrier := m.barrier
	edits = append(edits, w.answer()...)
	_, err := w.db.applyUrgent(ctx, rowstore.Mutation{
		Table: format.TableMembers, Row: m.id,
		Conditions: []rowstore.Condition{rowstore.Present(format.ColumnMember, m.joined)},
		Edits:      edits,
	})
	if err != nil {
		return fmt.Errorf("renewing the member's lease: %w", err)
	}
	if barrier != m.answered {
		m.asked = w.db.clock.Now()
	}
	m.until, m.answered = until, barrier
	if again {
		m.record, m.announce = record, true
	}
	return nil
}

// announce changes the generation, after what it tells of has been stored. The new one is
// of this worker's own timestamp, and replaces a later one too: what counts is that it
// differs.
func (w *Worker) announce(ctx context.Context, now Timestamp, more ...rowstore.Edit) error {
	_, err := w.db.applyOne(ctx, rowstore.Mutation{Table: format.TableMembers, Row: format.RowGeneration, Edits: append(more,
		rowstore.DeleteRange(rowstore.Write, format.ColumnChange, 0, now-1),
		rowstore.DeleteRange(rowstore.Write, format.ColumnChange, now+1, oracle.Max),
		rowstore.Put(rowstore.Write, format.ColumnChange, now, format.TimestampOnly),
	)})
	if err != nil {
		return fmt.Errorf("announcing a change of the members: %w", err)
	}
	// Another change may have been announced since the list was read, so that is read
	// again.
	w.member.announce, w.member.generation = false, 0
	return nil
}

// dateJoins corrects the records of members that joined at the same time as others. One
// that has not seen an older one says that its shares begin at once; it takes that back when
// it looks again (yieldToEarlier), perhaps after its record was read here. Without this,
// the older one would leave shares to it that it does not take yet.
func dateJoins(all []member) {
	var first Timestamp
	var lease time.Duration
	for i := range all {
		if first == 0 || all[i].joined < first {
			first = all[i].joined
		}
		lease = max(lease, all[i].record.Lease)
	}
	for i := range all {
		if m := &all[i]; m.joined > first && m.record.From == m.joined {
			m.record.From = dated(m.joined, handOver(lease))
		}
	}
}

// shareOut works out the shares from the list, and whose lease to watch.
func (w *Worker) shareOut(now Timestamp) {
	m := &w.member
	all := append(slices.Clone(m.list), member{id: m.id, joined: m.joined, record: m.record})
	dateJoins(all)
	s := newShares(w.list, all, m.id, now)
	m.shares.Store(&s)
	if len(m.list) == 0 {
		m.successor, m.ends = "", 0
		return
	}
	next := &m.list[max(slices.IndexFunc(m.list, func(other member) bool { return other.id > m.id }), 0)]
	if next.id != m.successor || next.ends != m.ends {
		m.successor, m.ends, m.renewed = next.id, next.ends, w.db.clock.Now()
	}
	m.watched = max(next.record.Lease, shortestLease)
}

// leave ends the membership.
func (w *Worker) leave(ctx context.Context) error {
	m := &w.member
	now, err := w.db.draw(ctx)
	if err != nil {
		return err
	}
	if _, err := w.removeMembers(ctx, []member{{id: m.id, joined: m.joined, ends: oracle.Max - 1}}); err != nil {
		return err
	}
	// A barrier makes them look at once, and not at their next beats.
	return w.announce(ctx, now, barrierEdits(now)...)
}

// tellLeaving calls beat or leave, in a worker that leaves. What fails is left to the end of
// the lease.
func (w *Worker) tellLeaving(tell func(context.Context) error) {
	if w.member.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	if err := tell(ctx); err != nil {
		w.db.log.Debug("the other workers will notice the end of this one by its lease", "err", err)
	}
}
