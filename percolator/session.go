package percolator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A session is this process as the holder of locks: a row with a lease, renewed
// while the process lives and removed on a clean exit (the token in Chubby of
// section 2.2 of the paper). The lease's end is the timestamp of the version.
// Sessions only make resolution quick or patient: taking a live process for dead
// is safe.
type session struct {
	db *DB

	mu      sync.Mutex
	id      string
	valid   time.Time // local time until which the lease certainly lasts
	opening *opening  // not nil while somebody stores the row
	running bool      // the renewing goroutine was started
	ending  bool      // it begins no renewal any more
	// renewing is closed when the last renewal of that goroutine has ended.
	renewing chan struct{}
	// The last renewal: when it was begun, and the lease that it asked for. The next
	// renewal is due by that lease, even if calls have become slow enough for a longer
	// one.
	asked time.Time
	lease time.Duration
	// The slowest recent calls: in a span of time, and in the one before it.
	slow, slowBefore time.Duration
	slowSince        time.Time
	most             time.Duration // from maxSlowLeases, except in tests that move the time in jumps

	unresolved unresolved
}

// opening is a renewal that others wait for.
type opening struct {
	done chan struct{}
	err  error // set before done is closed
}

const (
	// slowFactor is how many times the slowest recent call a lease lasts. The lease is
	// renewed after a third of it, and a call must fit into that third more than once.
	slowFactor = 8
	// slowSpan is how long a slow call is remembered: at least this, at most twice.
	slowSpan = time.Minute
	// maxSlowLeases bounds the leases that slow calls make longer, and so the time that
	// others wait for a process that died. Its unit is the configured session lease.
	maxSlowLeases = 24
)

func (s *session) init(db *DB) { s.db, s.most = db, maxSlowLeases*db.opt.sessionLease }

// took records how long a call took on which a lease depends: a renewal, a prewrite.
func (s *session) took(d time.Duration) {
	now := s.db.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := now.Sub(s.slowSince); age >= slowSpan {
		if s.slowBefore = s.slow; age >= 2*slowSpan {
			s.slowBefore = 0
		}
		s.slow, s.slowSince = 0, now
	}
	s.slow = max(s.slow, d)
}

// lasts returns how long a lease lasts that is configured to d. It is longer if calls
// are so slow that the lease would end before it is renewed.
func (s *session) lasts(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(d, min(slowFactor*max(s.slow, s.slowBefore), s.most))
}

// get returns the session's id, for a transaction that begin has noted. Its lease lasts for a while
// yet, or was renewed just now, however long that took. The first call starts the session, so that
// processes which only read, or commit in one phase, have none.
func (s *session) get(ctx context.Context, start Timestamp) (string, error) {
	for {
		s.mu.Lock()
		if s.id != "" && s.db.clock.Now().Before(s.valid) && s.unresolved.covers(start) {
			id := s.id
			s.mu.Unlock()
			return id, nil
		}
		if wait := s.opening; wait != nil {
			id := s.id
			s.mu.Unlock()
			select {
			case <-wait.done:
				s.mu.Lock()
				covers := s.unresolved.covers(start)
				s.mu.Unlock()
				if wait.err == nil && covers {
					return id, nil
				}
				continue
			case <-ctx.Done():
				return "", fmt.Errorf("opening a session: %w", ctx.Err())
			}
		}
		return s.open(ctx)
	}
}

// open renews the session for others too. It unlocks s.mu, which is held.
func (s *session) open(ctx context.Context) (id string, err error) {
	o := &opening{done: make(chan struct{})}
	s.opening = o
	if s.id == "" {
		s.id = s.db.uniqueID()
	}
	id = s.id
	s.mu.Unlock()
	err = s.renew(ctx)
	s.mu.Lock()
	s.opening, o.err = nil, err
	close(o.done)
	if err == nil && !s.running && !s.ending { // else Close may wait for owned by now
		s.running = true
		s.db.owned.Add(1)
		go s.keep()
	}
	s.mu.Unlock()
	return id, err
}

// renew moves the end of the lease, and says what the session has resolved.
func (s *session) renew(ctx context.Context) error {
	lease := s.lasts(s.db.opt.sessionLease)
	asked := s.db.clock.Now()
	s.mu.Lock()
	s.asked, s.lease = asked, lease
	s.mu.Unlock()
	defer func() { s.took(s.db.clock.Now().Sub(asked)) }()
	now, err := s.db.draw(ctx)
	if err != nil {
		return fmt.Errorf("renewing the session: %w", err)
	}
	says := s.say(now, lease)
	for attempt := 0; ; attempt++ {
		var out rowstore.Outcome
		out, err = s.db.applyUrgent(ctx, says.mutation())
		if err == nil && out.Applied {
			break
		}
		if err == nil {
			s.lost(says.volatile)
			says = s.say(now, lease)
			continue
		}
		// A renewal that is done twice does no harm, so it is simply repeated after a
		// lost reply.
		if !mayAskAgain(err) || s.db.clock.Sleep(ctx, s.db.opt.retryWait.wait(attempt, s.db.rand)) != nil {
			return fmt.Errorf("renewing the session: %w", err)
		}
	}
	s.mu.Lock()
	s.unresolved.said(says)
	// The other half of the lease is left for the commit that relies on it.
	s.valid = asked.Add(lease / 2)
	s.mu.Unlock()
	return nil
}

// renewIn returns the time until something should be renewed that was asked for at
// asked and lasts for lasts from then on.
func renewIn(clock Clock, asked time.Time, lasts time.Duration) time.Duration {
	return max(0, lasts/3-clock.Now().Sub(asked))
}

// keep renews until the DB closes.
func (s *session) keep() {
	defer s.db.owned.Done()
	for {
		s.mu.Lock()
		asked, lease := s.asked, s.lease
		s.mu.Unlock()
		if err := s.db.clock.Sleep(s.db.ctx, renewIn(s.db.clock, asked, lease)); err != nil {
			return
		}
		renewed := make(chan struct{})
		s.mu.Lock()
		if s.ending {
			s.mu.Unlock()
			return
		}
		s.renewing = renewed
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.db.ctx, s.lasts(s.db.opt.sessionLease))
		err := s.renew(ctx)
		cancel()
		close(renewed)
		if err != nil && s.db.ctx.Err() == nil {
			s.db.log.Warn("the session could not be renewed", "err", err)
		}
	}
}

// settle lets no renewal begin any more, and waits for one that is under way: cancelled, it could
// still arrive after the session was removed.
func (s *session) settle(ctx context.Context) {
	s.mu.Lock()
	s.ending = true
	renewing := s.renewing
	s.mu.Unlock()
	if renewing == nil {
		return
	}
	select {
	case <-renewing:
	case <-ctx.Done():
	}
}

// end removes the session, so that locks left behind, if any, wait for nothing. If some are left that
// may depend on a record, the session stays, to tell collections of them.
func (s *session) end(ctx context.Context) {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if !running {
		return
	}
	for {
		m, relies, err := s.last(ctx)
		var out rowstore.Outcome
		if err == nil {
			out, err = s.db.applyOne(ctx, m)
		}
		if err != nil {
			s.db.log.Warn("the session could not be removed; its lease ends by itself", "err", err)
		}
		if err != nil || out.Applied {
			return
		}
		s.lost(relies)
	}
}

// last makes the mutation that ends the session, and tells what it relies on.
func (s *session) last(ctx context.Context) (m rowstore.Mutation, relies volatile, err error) {
	s.mu.Lock()
	id, relies := s.id, s.unresolved.volatile
	left := s.unresolved.any(s.db.known().resolved)
	s.mu.Unlock()
	if left {
		now, err := s.db.draw(ctx)
		says := s.say(now, 0)
		return says.mutation(), says.volatile, err
	}
	return rowstore.Mutation{
		Table: format.TableSessions, Row: id,
		Conditions: relies.conditions(),
		Edits:      []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, oracle.Max)},
	}, relies, nil
}

// applyUrgent is applyOne for a mutation that keeps a lease.
func (db *DB) applyUrgent(ctx context.Context, m rowstore.Mutation) (rowstore.Outcome, error) {
	out, err := db.store.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Urgent: true})
	if err == nil {
		err = out[0].Err
	}
	if err != nil {
		return rowstore.Outcome{}, err
	}
	return out[0], nil
}

// sessionRead asks for a session's lease.
func sessionRead(id string) rowstore.RowRead {
	return rowstore.RowRead{Table: format.TableSessions, Row: id, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnLease, To: oracle.Max, Limit: 1},
	}}
}

// sessionValid judges the answer to sessionRead.
func sessionValid(row *rowstore.Row, now Timestamp) bool {
	v := row.Newest(rowstore.Write, format.ColumnLease)
	return v != nil && v.TS >= now
}

// uniqueID names a session or a worker. A seed that two processes share must not
// make it the same for both.
func (db *DB) uniqueID() string {
	if db.opt.ids != nil {
		return db.opt.ids()
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}
