package percolator

import (
	"context"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How WaitIdle learns what other workers do. It puts a barrier into the row of the
// generation. A push of the store tells the members of it, or they see it at their next
// beat. Each answers in its own row, with the renewal of its lease: how many functions it
// has begun to call, and what runs. Of each observer that it runs, so that a worker with
// other observers does nothing but answer.
//
// If nothing runs in a member at two answers, and it has begun nothing from the one to
// the other, then no run of it was under way at any moment between them. So what looks in
// between have found, or not found, did not move.

// muster is what the store has of the members that share an observer with this worker.
type muster struct {
	now        Timestamp // drawn before the rest was read
	generation Timestamp // as read before the list
	members    []mustered
}

// mustered is such a member.
type mustered struct {
	id     string
	joined Timestamp
	at     Timestamp // of the barrier that it has answered last; 0 without one
	busy   bool      // by its answer something runs; or that cannot be read
	begun  uint64    // the sum over the common observers; no count ever goes down
}

// company is what the last beat has shown of the other members.
type company struct {
	id         string    // of this worker
	generation Timestamp // of the list; 0 if that is to be read again
	alone      bool      // no other member shares an observer
}

// keepCompany notes it, after a beat.
func (w *Worker) keepCompany() {
	m := &w.member
	alone := len(m.unreadable) == 0
	for i := range m.list {
		alone = alone && !slices.ContainsFunc(w.list, func(q *queue) bool { _, ok := m.list[i].weightOf(q); return ok })
	}
	m.company.Store(&company{m.id, m.generation, alone})
}

// muster reads the members. The generation comes first: a member that is not in the list
// tells of itself by another generation before it begins anything.
func (w *Worker) muster(ctx context.Context) (*muster, error) {
	// mustered judges the ends of leases by a time from before the scan, which may not be long ago then.
	ctx, cancel := context.WithTimeout(ctx, w.beatTimeout())
	defer cancel()
	now, generation, err := w.readGeneration(ctx)
	if err != nil {
		return nil, err
	}
	all := &muster{now: now, generation: generation}
	own := ""
	if c := w.member.company.Load(); c != nil {
		own = c.id
	}
	for row, err := range w.db.store.Scan(ctx, rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: format.ColumnMember, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnLease, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnAnswer, To: oracle.Max},
	}}) {
		if err != nil {
			return nil, err
		}
		if m, shares := w.mustered(&row, now); shares && row.Row != own {
			all.members = append(all.members, m)
		}
	}
	return all, nil
}

// mustered reads a member's row. shares is false for one that shares no observer with this
// worker. A lease that has ended does not make a member idle before the others have removed
// it: after an outage of the store it may renew its lease yet. A record of a newer program may
// name any observer; nobody watches its lease.
func (w *Worker) mustered(row *rowstore.Row, now Timestamp) (m mustered, shares bool) {
	record, lease := row.Newest(rowstore.Lock, format.ColumnMember), row.Newest(rowstore.Write, format.ColumnLease)
	if record == nil || lease == nil {
		return m, false
	}
	m = mustered{id: row.Row, joined: record.TS, busy: true}
	r, err := format.DecodeMember(record.Value)
	if err != nil {
		r.Lease = mostMemberLease
	}
	if lease.TS > now.Add(min(r.Lease, mostMemberLease)).Add(2*w.beatTimeout()) {
		return m, false // no worker has taken it
	}
	if err != nil {
		return m, lease.TS >= now
	}
	common := func(work *format.MemberWork) bool {
		return slices.ContainsFunc(w.list, func(q *queue) bool {
			return q.o.id == work.Observer && q.table == work.Table && q.column == work.Column
		})
	}
	var answer format.Answer
	for _, v := range row.All(rowstore.Write, format.ColumnAnswer) {
		if v.TS > now {
			continue // to a barrier that came after now, or to none that was ever drawn
		}
		m.at = v.TS
		if answer, err = format.DecodeAnswer(v.Value); err == nil {
			m.busy = len(answer.Works) != len(r.Works)
		}
		break
	}
	for i := range r.Works {
		if !common(&r.Works[i]) {
			continue
		}
		shares = true
		if !m.busy {
			m.begun += answer.Works[i].Begun
			m.busy = answer.Works[i].Running > 0
		}
	}
	return m, shares
}

// readGeneration draws a timestamp and reads the generation after it.
func (w *Worker) readGeneration(ctx context.Context) (now, generation Timestamp, err error) {
	at := snapshot{}
	if w.db.snapshotReader == nil {
		at.set = true
		if at.start, err = w.db.draw(ctx); err != nil {
			return 0, 0, err
		}
	}
	rows, _, err := w.db.readAt(ctx, []rowstore.RowRead{memberRead(format.RowGeneration, format.ColumnChange)}, &at)
	if err != nil {
		return 0, 0, err
	}
	if v := rows[0].Newest(rowstore.Write, format.ColumnChange); v != nil {
		generation = v.TS
	}
	return at.start, generation, nil
}

// restedUntil tells whether no run of a common observer was under way in any member, from
// the time of the one muster to the barrier of the other, which every member has answered.
func (m *muster) restedUntil(later *muster, barrier Timestamp) bool {
	return m.generation == later.generation && slices.EqualFunc(m.members, later.members, func(a, b mustered) bool {
		return a.id == b.id && a.joined == b.joined && a.at > 0 && !a.busy && b.at >= barrier && !b.busy && a.begun == b.begun
	})
}

// How often WaitIdle looks for answers. A busy member answers to the next barrier.
const (
	leastAnswerWait = time.Millisecond
	mostAnswerWait  = 50 * time.Millisecond
)

// ask puts a barrier and waits until every member has answered it, or one that was drawn later.
// A member that does not is waited for until its lease has ended and it is removed. The result is nil if this
// worker has ended.
func (w *Worker) ask(ctx context.Context) (all *muster, barrier Timestamp, err error) {
	if barrier, err = w.putBarrier(ctx); err != nil {
		return nil, 0, err
	}
	wait := Backoff{Min: leastAnswerWait, Max: mostAnswerWait}
	for attempt := 0; ; attempt++ {
		if err := w.db.clock.Sleep(ctx, wait.wait(attempt, w.db.rand)); err != nil || w.hasEnded() {
			return nil, barrier, err
		}
		if all, err = w.muster(ctx); err != nil {
			return nil, barrier, err
		}
		if !slices.ContainsFunc(all.members, func(m mustered) bool { return m.at < barrier }) {
			return all, barrier, nil
		}
	}
}

// putBarrier puts a new barrier in the place of an older one. If a later one is there
// already, which another worker has put meanwhile, that one serves both.
func (w *Worker) putBarrier(ctx context.Context) (Timestamp, error) {
	barrier, err := w.db.draw(ctx)
	if err != nil {
		return 0, err
	}
	m := rowstore.Mutation{
		Table: format.TableMembers, Row: format.RowGeneration,
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Notify, format.ColumnBarrier, barrier)},
		Edits:      barrierEdits(barrier),
	}
	out, err := w.db.applyOne(ctx, m)
	if err != nil || out.Applied {
		return barrier, err
	}
	now, err := w.db.draw(ctx)
	if err != nil || out.Broke.TS <= now {
		return barrier, err
	}
	// Nobody has drawn that one. It would stand there for ever.
	m.Conditions = nil
	m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Notify, format.ColumnBarrier, barrier+1, oracle.Max))
	_, err = w.db.applyOne(ctx, m)
	return barrier, err
}

// barrierEdits put a barrier into the row of the generation.
func barrierEdits(at Timestamp) []rowstore.Edit {
	return []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Notify, format.ColumnBarrier, 0, at-1),
		rowstore.Put(rowstore.Notify, format.ColumnBarrier, at, format.TimestampOnly),
	}
}

// answer returns the edits that answer the barrier, if there is one to answer. What the
// worker does is counted here, after the barrier was read.
func (w *Worker) answer() []rowstore.Edit {
	m := &w.member
	if m.barrier == m.answered {
		return nil
	}
	answer := format.Answer{Works: w.counts()}
	return []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnAnswer, m.barrier, answer.Encode()),
		rowstore.DeleteRange(rowstore.Write, format.ColumnAnswer, 0, m.barrier-1),
	}
}

// counts tells how far the worker is with each of its observers.
func (w *Worker) counts() []format.WorkCount {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]format.WorkCount, len(w.list))
	for i, q := range w.list {
		all[i] = format.WorkCount{Begun: q.begun, Running: uint32(q.running + len(w.open))} //nolint:gosec // not many
	}
	return all
}
