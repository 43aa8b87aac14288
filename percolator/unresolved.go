package percolator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a session says of its locks. A collection must not remove the record of a commit while a lock
// still depends on it. It need not look for such locks if every session says that it has resolved
// them (gcPass.resolve). The rules:
//
//   - A transaction counts as unresolved from before its first prewrite until every lock of it is
//     certainly gone: replaced by a write, or rolled back. One of which that is not known counts until a collection
//     has looked at all locks from its time.
//   - Before the first prewrite the session's row says no more than is so with this transaction.
//   - What one renewal says, no older one that arrives later takes back.
//   - Nothing is said of locks whose removal a crash of the store has undone, or could undo.
//   - A session that may have left a lock is not removed before a collection has looked at all locks
//     from before its lease's end; and no transaction prewrites that began above that end.
//
// Observers of old values rely on it, too: see "Old values" in docs/architecture.md.
//
// A transaction that a collection does not find noted, because it is noted later, sends its first prewrite
// after that. So its commit timestamp comes after the catalog lease that the collection has waited, and
// the commit is refused: it began below the safe point. The same is so if the collection does not find the session
// because another one, with a later safe point, has removed it: that one has looked at all locks.
//
// See "Garbage collection" in docs/architecture.md.

// unresolved is what a session knows of its own transactions. session.mu guards it.
type unresolved struct {
	open map[Timestamp]int // by start: who works at their locks
	// left spans the transactions whose locks were left for others to resolve, in order, without an overlap, and mostLeftSpans at most.
	left []leftSpan
	// volatile are transactions whose locks were removed by calls that a crash of the store may undo.
	volatile volatile

	sent  Timestamp // the lease's end of the newest renewal that was sent
	ends  Timestamp // the same of the newest one that was acknowledged
	says  Timestamp // what that one says
	doubt Timestamp // the most that one which was sent since may say
}

// mostLeftSpans bounds the spans of transactions that have left locks.
const mostLeftSpans = 64

// leftSpan spans transactions that have left locks, by start, both ends included.
type leftSpan struct{ from, to Timestamp }

// volatile spans transactions, by start. Their locks are gone for good once a call that is not deferred was
// applied after their removal, in the incarnation of the store in which they were put: then no crash lay between.
type volatile struct {
	from, to    Timestamp
	incarnation string
	count       int // 0 for none
}

// conditions are those of a call that relies on the locks being gone, and makes that durable.
func (v *volatile) conditions() []rowstore.Condition {
	if v.count == 0 {
		return nil
	}
	return []rowstore.Condition{rowstore.SameIncarnation(v.incarnation)}
}

// saying is a renewal.
type saying struct {
	id       string
	ends     Timestamp
	resolved Timestamp
	volatile volatile // what resolved relies on
}

// begin notes a transaction that is about to prewrite.
func (s *session) begin(start Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unresolved.open == nil {
		s.unresolved.open = map[Timestamp]int{}
	}
	s.unresolved.open[start]++
}

// finish is for each begin: this part of the work on a transaction's locks has ended. clean tells
// that this part has left no lock. incarnation is that of the store when the locks were put, if a crash of the store
// may bring some back, and otherwise empty.
func (s *session) finish(start Timestamp, clean bool, incarnation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.unresolved
	if u.open[start]--; u.open[start] == 0 {
		delete(u.open, start)
	}
	switch {
	case !clean:
		u.leave(start, start)
	case incarnation != "":
		if u.volatile.incarnation != incarnation {
			u.lost(u.volatile)
			u.volatile = volatile{from: start, incarnation: incarnation}
		}
		u.volatile.from, u.volatile.to = min(u.volatile.from, start), max(u.volatile.to, start)
		u.volatile.count++
	}
}

// leave notes that transactions have left locks. Where there would be too many spans, those become one that lie closest to each other. Spans of
// their own matter, because each is forgotten once it is resolved: one for all would begin at the first of them for as long as others come.
func (u *unresolved) leave(from, to Timestamp) {
	i, _ := slices.BinarySearchFunc(u.left, from, func(s leftSpan, from Timestamp) int { return cmp.Compare(s.to, from) })
	j := i // it overlaps left[i:j]
	for ; j < len(u.left) && u.left[j].from <= to; j++ {
		from, to = min(from, u.left[j].from), max(to, u.left[j].to)
	}
	u.left = slices.Replace(u.left, i, j, leftSpan{from, to})
	if len(u.left) <= mostLeftSpans {
		return
	}
	closest := 1
	for k := 2; k < len(u.left); k++ {
		if u.left[k].from-u.left[k-1].to < u.left[closest].from-u.left[closest-1].to {
			closest = k
		}
	}
	u.left[closest-1].to = u.left[closest].to
	u.left = slices.Delete(u.left, closest, closest+1)
}

// lost notes that the store has crashed since the locks of some transactions were put, so that their removal
// may be undone.
func (u *unresolved) lost(v volatile) {
	if v.count == 0 {
		return
	}
	u.leave(v.from, v.to)
	if u.volatile.incarnation == v.incarnation {
		u.leave(u.volatile.from, u.volatile.to)
		u.volatile = volatile{}
	}
}

// covers tells whether a transaction with this start may prewrite: nothing that the session's row says, or may come to
// say by a renewal that was sent, is wrong of it, and the lease did not end before it began.
func (u *unresolved) covers(start Timestamp) bool {
	return u.ends >= start && start >= max(u.says, u.doubt)
}

// any tells whether locks may be left. All from below resolved are resolved.
func (u *unresolved) any(resolved Timestamp) bool {
	u.left = slices.DeleteFunc(u.left, func(s leftSpan) bool { return s.to < resolved })
	return len(u.open) > 0 || len(u.left) > 0
}

// below is the timestamp below which all transactions are resolved, at now. Transactions that begin their
// prewrites next began a little before now; they need not renew the session if less is said.
func (u *unresolved) below(now, resolved Timestamp) Timestamp {
	if u.any(resolved) && len(u.left) > 0 {
		now = min(now, u.left[0].from)
	}
	for start := range u.open {
		now = min(now, start)
	}
	return now
}

// lag is how far what a renewal says lies below the present. A transaction that prewrites later than this after it began
// costs a renewal. On the other hand, a collection whose safe point is above what is said reads all rows for locks:
// so with the time between two renewals the lag must stay below what every collection keeps.
func (s *session) lag() time.Duration {
	age, lease := s.db.known().widest()
	return min(s.db.opt.sessionLease, (age+lease)/8)
}

// saysAtLeast renews the session if it says less than a collection of this process needs to know.
func (s *session) saysAtLeast(ctx context.Context, below Timestamp) error {
	s.mu.Lock()
	needed := s.running && s.unresolved.says < below
	s.mu.Unlock()
	if !needed {
		return nil
	}
	return s.renew(ctx)
}

// say makes the next renewal.
func (s *session) say(now Timestamp, lease time.Duration) saying {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.unresolved
	v := saying{id: s.id, ends: max(now.Add(lease), u.sent+1), volatile: u.volatile}
	v.resolved = u.below(now.Add(-s.lag()), s.db.known().resolved)
	u.sent, u.doubt = v.ends, max(u.doubt, v.resolved)
	return v
}

// lost notes that a call was refused that relied on locks being gone.
func (s *session) lost(v volatile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unresolved.lost(v)
}

// said notes that a renewal was acknowledged.
func (u *unresolved) said(v saying) {
	if v.ends > u.ends {
		u.ends, u.says = v.ends, v.resolved
	}
	if v.ends == u.sent {
		u.doubt = 0 // all others are older, and lie below it when they arrive
	}
	if v.volatile == u.volatile {
		u.volatile = volatile{} // it is durable now
	}
}

// mutation stores the renewal. One that ends later stays above it.
func (v saying) mutation() rowstore.Mutation {
	return rowstore.Mutation{
		Table: format.TableSessions, Row: v.id,
		Conditions: v.volatile.conditions(),
		Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, format.ColumnLease, v.ends, format.Session{Resolved: v.resolved}.Encode()),
			rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, v.ends-1),
		},
	}
}

// flush makes everything durable that was deferred.
func (db *DB) flush(ctx context.Context) error {
	if d, ok := rowstore.Unwrap[rowstore.Deferrer](db.store); ok {
		return d.Flush(ctx)
	}
	return nil
}

// incarnation asks for the store's incarnation, which is "" where nothing is ever deferred.
func (db *DB) incarnation(ctx context.Context) (string, error) {
	if _, ok := rowstore.Unwrap[rowstore.Deferrer](db.store); !ok {
		return "", nil
	}
	for attempt := 0; ; attempt++ {
		// It is refused, because there is a catalog, and so changes nothing.
		out, err := db.applyOne(ctx, rowstore.Mutation{
			Table: format.TableCatalog, Row: format.RowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnConfig, 0)},
			Edits:      []rowstore.Edit{rowstore.Delete(rowstore.Write, format.ColumnConfig, 1)},
		})
		if err == nil {
			return out.Incarnation, nil
		}
		if !mayAskAgain(err) || db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand)) != nil {
			return "", fmt.Errorf("asking for the store's incarnation: %w", err)
		}
	}
}
