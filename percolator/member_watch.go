package percolator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a member sees of the others, and whom it takes for dead.

// sight is what a look at the members has shown.
type sight struct {
	asked      time.Time // local, before now was drawn
	now        Timestamp
	generation Timestamp
	barrier    Timestamp // of a WaitIdle (barrier.go); 0 without one
	member     bool      // the worker's own record stands
	successor  bool      // the lease of the successor lasts, or there is no successor
	ends       Timestamp // of that lease
}

// lookAtMembers reads the generation, this worker's own row, and its successor's.
func (w *Worker) lookAtMembers(ctx context.Context) (sight, error) {
	m := &w.member
	s := sight{asked: w.db.clock.Now(), successor: true}
	reads := []rowstore.RowRead{memberRead(format.RowGeneration, format.ColumnChange)}
	reads[0].Selectors = append(reads[0].Selectors, rowstore.Selector{Family: rowstore.Notify, Column: format.ColumnBarrier, To: oracle.Max, Limit: 1})
	if m.id != "" {
		reads = append(reads, rowstore.RowRead{Table: format.TableMembers, Row: m.id, Selectors: []rowstore.Selector{
			{Family: rowstore.Lock, Column: format.ColumnMember, To: oracle.Max},
		}})
	}
	if m.id != "" && m.successor != "" {
		reads = append(reads, memberRead(m.successor, format.ColumnLease))
	}
	at := snapshot{}
	var err error
	if w.db.snapshotReader == nil {
		at.set = true
		if at.start, err = w.db.draw(ctx); err != nil {
			return s, err
		}
	}
	rows, _, err := w.db.readAt(ctx, reads, &at)
	if err != nil {
		return s, err
	}
	s.now = at.start
	w.noteCutOff(s.now, s.asked)
	if v := rows[0].Newest(rowstore.Write, format.ColumnChange); v != nil {
		s.generation = v.TS
	}
	if v := rows[0].Newest(rowstore.Notify, format.ColumnBarrier); v != nil {
		s.barrier = v.TS
	}
	if m.id != "" {
		s.member = rows[1].At(rowstore.Lock, format.ColumnMember, m.joined) != nil
	}
	if len(rows) == 3 {
		v := rows[2].Newest(rowstore.Write, format.ColumnLease)
		s.successor = v != nil && !m.leaseEnded(v.TS, s.now)
		if s.successor {
			s.ends, s.successor = v.TS, !w.isSilent(v.TS, s.asked)
		}
	}
	return s, nil
}

// noteCutOff notices that this worker's own lease has ended, because it could not reach the
// store in time. The others could not either, perhaps: then all leases have ended, and what
// this worker knows of its own looks tells of the store. So everybody gets time to renew, and
// what is stuck counts from now on. This must not go on for ever where a store is slow:
// after each such time this worker judges for as long, whatever happens.
func (w *Worker) noteCutOff(now Timestamp, asked time.Time) {
	m := &w.member
	grace := 2 * w.beatTimeout()
	for i := range m.list {
		grace = max(grace, 2*m.list[i].record.Lease)
	}
	if m.id == "" || now <= m.until || m.judges > 0 && now.Sub(m.judges) < grace {
		return
	}
	m.judges, m.renewed = now.Add(grace), asked
	w.mu.Lock()
	defer w.mu.Unlock()
	for table := range w.looking {
		w.looking[table] = asked
	}
	for _, q := range w.list {
		q.moved = asked
	}
}

// leaseEnded tells whether a lease that ends at ends counts as ended.
func (m *membership) leaseEnded(ends, now Timestamp) bool { return ends < now && now >= m.judges }

// isSilent tells whether the successor has not renewed its lease for so long, by this
// process's own clock, that the lease must have ended. The oracle does not say so while its
// time stands still.
func (w *Worker) isSilent(ends Timestamp, asked time.Time) bool {
	m := &w.member
	return ends == m.ends && m.ends > 0 && !m.renewed.IsZero() && asked.Sub(m.renewed) > 2*m.watched
}

func memberRead(row, column string) rowstore.RowRead {
	return rowstore.RowRead{Table: format.TableMembers, Row: row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: column, To: oracle.Max, Limit: 1},
	}}
}

// readMembers reads the list of the other members, and removes those whose lease has
// ended. A record that this program cannot read, of a newer one perhaps, counts for
// nothing. With silent, the lease of the successor counts as ended if it was not renewed
// since the last look.
//
// A member that has not renewed its lease yet may have died before it announced itself.
// Then others may not have read the list since, nor whoever would watch it. So those who
// know it read the list again once that lease has ended.
func (w *Worker) readMembers(ctx context.Context, now Timestamp, silent bool) error {
	m := &w.member
	var list, dead []member
	var doubt Timestamp
	unreadable := map[string]bool{}
	for row, err := range w.db.store.Scan(ctx, rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: format.ColumnMember, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnLease, To: oracle.Max, Limit: 1},
	}}) {
		if err != nil {
			return err
		}
		record := row.Newest(rowstore.Lock, format.ColumnMember)
		if record == nil || row.Row == m.id {
			continue
		}
		other := member{id: row.Row, joined: record.TS}
		if lease := row.Newest(rowstore.Write, format.ColumnLease); lease != nil {
			other.ends = lease.TS
		}
		if other.record, err = format.DecodeMember(record.Value); err != nil {
			other.record.Lease = mostMemberLease // it may be any that a worker takes
		}
		other.record.Lease = min(other.record.Lease, mostMemberLease)
		if m.leaseEnded(other.ends, now) || silent && other.id == m.successor && other.ends == m.ends {
			dead = append(dead, other)
			continue
		}
		if latest := now.Add(other.record.Lease).Add(2 * w.beatTimeout()); other.ends > latest {
			// It was not taken by a worker. Nobody would miss it, nor the one that it should watch.
			dead = append(dead, other)
			continue
		}
		if err != nil {
			unreadable[other.id] = true
			w.tellUnreadable(other.id, err)
			continue
		}
		if other.ends.Sub(other.joined) <= other.record.Lease {
			doubt = max(doubt, other.ends)
		}
		list = append(list, other)
	}
	// Many may have died at once. Those that are left must not miss their own beats by that.
	for part := range slices.Chunk(dead, removePage) {
		alive, err := w.removeMembers(ctx, part)
		if err != nil {
			return fmt.Errorf("removing those whose leases have ended: %w", err)
		}
		list = append(list, alive...) // until the next beat reads the list again
		m.announce = true
	}
	slices.SortFunc(list, func(a, b member) int { return strings.Compare(a.id, b.id) })
	m.list, m.doubt, m.unreadable = list, doubt, unreadable
	return nil
}

// tellUnreadable logs that a member's record cannot be read, once until it is gone: in a rolling deployment each change of the
// members would tell of each newer one again. What follows in the beat may fail, so this is noted at once.
func (w *Worker) tellUnreadable(id string, err error) {
	m := &w.member
	if m.unreadable[id] {
		return
	}
	if m.unreadable == nil {
		m.unreadable = map[string]bool{}
	}
	m.unreadable[id] = true
	w.db.log.Warn("a worker's record cannot be read; that worker and this one may begin the same runs", "member", id, "err", err)
}

// removePage is how many members are removed in one call.
const removePage = 256

// removeMembers removes members, except those that have renewed their leases: alive.
func (w *Worker) removeMembers(ctx context.Context, dead []member) (alive []member, err error) {
	muts := make([]rowstore.Mutation, len(dead))
	for i := range dead {
		m := &dead[i]
		muts[i] = rowstore.Mutation{
			Table: format.TableMembers, Row: m.id,
			Edits: []rowstore.Edit{
				rowstore.Delete(rowstore.Lock, format.ColumnMember, m.joined),
				rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, m.ends),
				rowstore.DeleteRange(rowstore.Write, format.ColumnAnswer, 0, oracle.Max),
			},
		}
		if m.ends < oracle.Max {
			muts[i].Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnLease, m.ends+1)}
		}
	}
	outs, err := w.db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
	for i := range outs {
		if err == nil {
			err = outs[i].Err
		}
		if outs[i].Err == nil && !outs[i].Applied {
			alive = append(alive, dead[i])
		}
	}
	return alive, err
}
