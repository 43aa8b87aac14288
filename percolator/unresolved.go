package percolator

import (
	"context"
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
//   - Nothing is said of locks whose removal a crash of the store could undo.
//   - A session that may have left a lock is not removed before a collection has looked at all locks
//     from before its lease's end; and no transaction commits above that end.
//
// Observers of old values rely on it, too: see "Old values" in docs/architecture.md.
//
// A transaction that a collection does not find noted, because it is noted later, sends its first prewrite
// after that. So its commit timestamp comes after the catalog lease that the collection has waited, and
// the commit is refused: it began below the safe point.
//
// See "Garbage collection" in docs/architecture.md.

// unresolved is what a session knows of its own transactions. session.mu guards it.
type unresolved struct {
	open map[Timestamp]int // by start: who works at their locks
	// left spans the transactions whose locks were left for others to resolve; 0 for none.
	leftFrom, leftTo Timestamp
	// deferred tells that locks were removed by calls that a crash of the store may undo.
	deferred bool

	sent  Timestamp // the lease's end of the newest renewal that was sent
	ends  Timestamp // the same of the newest one that was acknowledged
	says  Timestamp // what that one says
	doubt Timestamp // the most that one which was sent since may say
}

// saying is a renewal.
type saying struct {
	id       string
	ends     Timestamp
	resolved Timestamp
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
// that this part has left no lock, deferred that a crash of the store may bring some back.
func (s *session) finish(start Timestamp, clean, deferred bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.unresolved
	if u.open[start]--; u.open[start] == 0 {
		delete(u.open, start)
	}
	u.deferred = u.deferred || deferred
	if !clean {
		if u.leftFrom == 0 || start < u.leftFrom {
			u.leftFrom = start
		}
		u.leftTo = max(u.leftTo, start)
	}
}

// covers tells whether nothing that the session's row says, or may come to say by a renewal
// that was sent, is wrong of a transaction with this start.
func (u *unresolved) covers(start Timestamp) bool { return start >= max(u.says, u.doubt) }

// any tells whether locks may be left. All from below resolved are resolved.
func (u *unresolved) any(resolved Timestamp) bool {
	if u.leftTo < resolved {
		u.leftFrom, u.leftTo = 0, 0
	}
	return len(u.open) > 0 || u.leftFrom != 0
}

// below is the timestamp below which all transactions are resolved, at now. Transactions that begin their
// prewrites next began a little before now; they need not renew the session if less is said.
func (u *unresolved) below(now, resolved Timestamp) Timestamp {
	if u.any(resolved) && u.leftFrom != 0 {
		now = min(now, u.leftFrom)
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
func (s *session) say(ctx context.Context, now Timestamp, lease time.Duration) saying {
	s.mu.Lock()
	u := &s.unresolved
	v := saying{id: s.id, ends: max(now.Add(lease), u.sent+1)}
	v.resolved = u.below(now.Add(-s.lag()), s.db.known().resolved)
	u.sent, u.doubt = v.ends, max(u.doubt, v.resolved)
	deferred := u.deferred
	u.deferred = false
	s.mu.Unlock()
	if !deferred {
		return v
	}
	err := s.db.flush(ctx)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.deferred, v.resolved = true, u.says // which is still so
		s.db.log.Debug("a renewal of the session says no more than the one before", "err", err)
	}
	return v
}

// said notes that a renewal was acknowledged.
func (u *unresolved) said(v saying) {
	if v.ends > u.ends {
		u.ends, u.says = v.ends, v.resolved
	}
	if v.ends == u.sent {
		u.doubt = 0 // all others are older, and lie below it when they arrive
	}
}

// mutation stores the renewal. One that ends later stays above it.
func (v saying) mutation() rowstore.Mutation {
	return rowstore.Mutation{
		Table: format.TableSessions, Row: v.id,
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
