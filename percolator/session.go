package percolator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

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
	valid   time.Time     // local time until which the lease certainly lasts
	opening chan struct{} // not nil while somebody stores the row
	running bool          // the renewing goroutine was started
}

const columnLease = "lease"

func (s *session) init(db *DB) { s.db = db }

// get returns the session's id, with a lease that lasts for a while yet. The
// first call starts the session, so that processes which only read, or commit in
// one phase, have none.
func (s *session) get(ctx context.Context) (string, error) {
	for {
		s.mu.Lock()
		if s.id != "" && s.db.clock.Now().Before(s.valid) {
			id := s.id
			s.mu.Unlock()
			return id, nil
		}
		if wait := s.opening; wait != nil {
			s.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return "", fmt.Errorf("opening a session: %w", ctx.Err())
			}
		}
		done := make(chan struct{})
		s.opening = done
		if s.id == "" {
			s.id = uniqueID()
		}
		s.mu.Unlock()
		err := s.renew(ctx)
		s.mu.Lock()
		s.opening = nil
		close(done)
		if err == nil && !s.running {
			s.running = true
			s.db.owned.Add(1)
			go s.keep()
		}
		s.mu.Unlock()
		if err != nil {
			return "", err
		}
	}
}

// renew moves the end of the lease.
func (s *session) renew(ctx context.Context) error {
	lease := s.db.opt.sessionLease
	asked := s.db.clock.Now()
	now, err := s.db.draw(ctx)
	if err != nil {
		return fmt.Errorf("renewing the session: %w", err)
	}
	until := now.Add(lease)
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	for attempt := 0; ; attempt++ {
		_, err = s.db.applyOne(ctx, rowstore.Mutation{
			Table: tableSessions, Row: id,
			Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, columnLease, until, []byte{formatVersion}),
				rowstore.DeleteRange(rowstore.Write, columnLease, 0, until-1),
			},
		})
		if err == nil {
			break
		}
		// Done twice it comes to the same, so a lost reply is simply repeated.
		if !errors.Is(err, rowstore.ErrAmbiguous) || s.db.clock.Sleep(ctx, s.db.opt.retryWait.wait(attempt, s.db.rand)) != nil {
			return fmt.Errorf("renewing the session: %w", err)
		}
	}
	s.mu.Lock()
	// Half of the lease stays for the commit that is told that it is valid.
	s.valid = asked.Add(lease / 2)
	s.mu.Unlock()
	return nil
}

// keep renews until the DB closes.
func (s *session) keep() {
	defer s.db.owned.Done()
	for {
		if err := s.db.clock.Sleep(s.db.ctx, s.db.opt.sessionLease/3); err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.db.ctx, s.db.opt.sessionLease)
		err := s.renew(ctx)
		cancel()
		if err != nil && s.db.ctx.Err() == nil {
			s.db.log.Warn("the session could not be renewed", "err", err)
		}
	}
}

// end removes the session, so that locks left behind, if any, wait for nothing.
func (s *session) end(ctx context.Context) {
	s.mu.Lock()
	id, running := s.id, s.running
	s.mu.Unlock()
	if !running {
		return
	}
	_, err := s.db.applyOne(ctx, rowstore.Mutation{
		Table: tableSessions, Row: id,
		Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, columnLease, 0, oracle.Max)},
	})
	if err != nil {
		s.db.log.Warn("the session could not be removed; its lease ends by itself", "err", err)
	}
}

// sessionRead asks for a session's lease.
func sessionRead(id string) rowstore.RowRead {
	return rowstore.RowRead{Table: tableSessions, Row: id, Picks: []rowstore.Pick{
		{Family: rowstore.Write, Column: columnLease, To: oracle.Max, Limit: 1},
	}}
}

// sessionValid judges the answer to sessionRead.
func sessionValid(row *rowstore.Row, now Timestamp) bool {
	v := row.Newest(rowstore.Write, columnLease)
	return v != nil && v.TS >= now
}

// uniqueID names a session or a worker. A seed that two processes share must not
// make it the same for both.
func uniqueID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}
