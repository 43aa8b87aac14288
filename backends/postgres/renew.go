package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A session may take no writes because it began while a default forbade them. It stays so when they are allowed again, and the pool would hand it out
// again and again. But while new sessions are refused just as well, new connections help nobody: they would be made for each
// refused write, in place of those that readers use. So a new session is asked first, by one caller at a time.

// askEvery is how often a new session is asked, while writes are refused; askWithin is how long its answer may take.
const (
	askEvery  = time.Second
	askWithin = 2 * time.Second
)

// renewal is what a store knows about the sessions of its pool that take no writes.
type renewal struct {
	mu     sync.Mutex
	every  time.Duration // as askEvery; only tests set another
	within time.Duration // as askWithin; likewise
	next   time.Time     // when a new session may be asked again
	old    int32         // of the pool's connections, how many may be closed until then, if they refuse a write
}

// release gives a connection back to the pool after a call that ended with err. One that leads to a standby is closed instead: reads
// fail on it too, and it would stay in the pool when its address leads to the primary again. In a store's own pool others may be the
// same, so it makes all of them anew.
func (s *plainStore) release(ctx context.Context, c *pgxpool.Conn, err error) {
	switch code := sqlState(err); {
	case code == onStandby || errors.Is(err, errStandby):
		_ = c.Conn().Close(ctx) // nothing is under way on it
		if s.owned {
			s.pool.Reset()
		}
	case code == readOnly:
		s.renew(ctx, c)
	}
	c.Release()
}

// renew closes a connection whose session refused a write, if a new one would not. In a store's own pool it makes all of them anew. A pool of the program's may
// close as many as it had.
func (s *plainStore) renew(ctx context.Context, c *pgxpool.Conn) {
	r := &s.renewal
	if !r.mu.TryLock() {
		return // somebody asks
	}
	defer r.mu.Unlock()
	if time.Now().Before(r.next) {
		if r.old > 0 {
			r.old--
			_ = c.Conn().Close(ctx)
		}
		return
	}
	r.old = 0
	writes, err := s.askNew(ctx)
	r.next = time.Now().Add(r.every)
	if err == nil && !writes {
		return
	}
	_ = c.Conn().Close(ctx) // also where nobody knows, so that the pool gets to new ones
	switch {
	case err != nil:
	case s.owned:
		s.pool.Reset()
	default:
		r.old = s.pool.Stat().TotalConns() - 1 // one is closed
	}
}

// beforeConnect does with the configuration of a connection beside the pool what the pool does before each of its own: passwords may change.
func (s *plainStore) beforeConnect(ctx context.Context, cfg *pgx.ConnConfig) error {
	before := s.pool.Config().BeforeConnect
	if before == nil {
		return nil
	}
	if err := before(ctx, cfg); err != nil {
		return fmt.Errorf("BeforeConnect of the pool: %w", err)
	}
	return nil
}

// askNew tells whether a new session of the pool takes writes.
func (s *plainStore) askNew(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.renewal.within)
	defer cancel()
	cfg := s.pool.Config().ConnConfig
	cfg.BuildContextWatcherHandler = awaiting(0) // the caller waits for it
	if err := s.beforeConnect(ctx, cfg); err != nil {
		return false, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if after := s.pool.Config().AfterConnect; after != nil {
		if err := after(ctx, conn); err != nil {
			return false, fmt.Errorf("AfterConnect of the pool: %w", err)
		}
	}
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_catalog.current_setting('transaction_read_only')").ReadAll()
	if err != nil {
		return false, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return false, errors.New("the server does not tell whether a session takes writes")
	}
	return string(results[0].Rows[0][0]) == "off", nil
}
