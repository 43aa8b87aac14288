package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func init() { rowstore.Register(OpenURL, "postgres", "postgresql") }

// defaultConns is the size of the pool of a URL that does not say. Merged calls
// need few connections; scans and other programs' share of the server need some.
const defaultConns = 16

// defaultInFlight is how many merged calls of a kind are in flight at once. A batch
// costs much beyond its rows, here and on the server: two small batches cost a fifth
// more than one of their size. Reads, prewrites, commits and draws run beside each
// other anyway.
const defaultInFlight = 1

// defaultConnectTimeout bounds the making of a connection where the URL does not.
const defaultConnectTimeout = 10 * time.Second

// answerPatience is how long a statement whose context has ended waits for its answer, rather than break its connection. The suite
// lets a call outlast its context by two seconds.
const answerPatience = time.Second

// AwaitAnswers has a pool's connections survive statements whose contexts end. Such a statement waits for its answer for a second more, and
// so does the call. Without it, the driver closes the connection at once, and the next call needs a new one,
// which costs the server many times what a statement costs. So a server whose answers are later than its callers'
// deadlines, if only for a while, goes on being so busy with connections that it answers nobody in time any more. [Open] sets it. Set
// [pgconn.Config.BuildContextWatcherHandler] of a pool for [New] to it. It may be called concurrently.
func AwaitAnswers(c *pgconn.PgConn) ctxwatch.Handler { return awaiting(answerPatience)(c) }

func awaiting(patience time.Duration) func(*pgconn.PgConn) ctxwatch.Handler {
	return func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn(), DeadlineDelay: patience}
	}
}

// trustIdle is how long a connection of the store's own pool may be idle before its next use asks whether it is alive.
// A worker with nothing to do uses one for each beat, every second or two, and would ask as often as it does anything else. What reads is
// sent again if the connection turns out to be dead. A write is not, and then nobody knows its outcome: so it trusts a connection for
// trustIdleToWrite. The write of a beat follows a read, and the pool gives it the connection that was used last.
const (
	trustIdle        = 5 * time.Second
	trustIdleToWrite = time.Second
)

// writing marks the context in which a connection is acquired for a write.
type writing struct{}

func isStale(ctx context.Context, c pgxpool.ShouldPingParams) bool {
	if ctx.Value(writing{}) != nil {
		return c.IdleDuration > trustIdleToWrite
	}
	return c.IdleDuration > trustIdle
}

// OpenURL opens the store that a URL names; [ParseURL] has the grammar. Errors are
// those of ParseURL and of [Open].
func OpenURL(ctx context.Context, url string) (*Store, error) {
	opts, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, opts)
}

// Open opens the store of the options, over a pool of connections of its own, which
// Close closes. It connects, and makes or migrates the schema if that is needed.
//
// It fails with what is wrong: the server or the password, a server that is too old
// or a standby, a missing permission. What may pass by itself matches
// rowstore.ErrUnavailable, and a wrong password, a missing permission and a certificate that
// one side does not accept match rowstore.ErrDenied. Options that will not do, and a
// database or a setting that the server does not have, match rowstore.ErrInvalid. A schema of a version that this program does not know matches
// rowstore.ErrFormat, one with tables of another application that have the names of a
// store's rowstore.ErrForeign, and a damaged one rowstore.ErrCorrupt. With Options.AsIs
// a missing schema matches rowstore.ErrNoStore. No error shows
// more of the URL than host and port, but for the words of the server to a user whom
// it let in. ctx bounds the opening only.
func Open(ctx context.Context, opts Options) (*Store, error) {
	a, own, err := splitURL(opts.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("postgres: Options.URL: %w", err)
	case own != (Options{}):
		return nil, fmt.Errorf("postgres: Options.URL: %w: it has a parameter of this package, for which Options has a field; ParseURL reads them", rowstore.ErrInvalid)
	}
	cfg, err := poolConfig(a)
	if err != nil {
		return nil, fmt.Errorf("postgres: Options.URL: %w", err)
	}
	cfg.AfterConnect, cfg.ShouldPing = makeReady, isStale
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("postgres: Options.URL: %w", errUnreadable)
	}
	s, err := open(ctx, pool, opts, a.has["default_query_exec_mode"], true)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: opening: %w", scrub(opening(err), append(a.secrets, secretsOf(opts.Listen)...)))
	}
	return s, nil
}

// New opens a store over a pool that the program has and goes on to own: Close
// leaves it open. Close the store first and then the pool. Errors are those of [Open];
// they match rowstore.ErrClosed if the pool is closed.
//
// The program uses the pool as before, for SQL of its own too. The store takes a
// connection for one round trip at a time and holds none while its callers work,
// so any size of the pool will do, down to one connection. But a
// program that calls the store while it holds connections itself, in a transaction
// of its own, needs one more than it holds: else it waits for itself, until the
// context ends. LISTEN has a connection of its own, beside the pool; it is made by the
// pool's ConnConfig and BeforeConnect, and AfterConnect is not called for it. One more is made for a moment and at most once a second, with AfterConnect as
// well, to ask whether new sessions take writes, while the pool's refuse them.
//
// What the program sets for its sessions does not matter: not the search path, the
// isolation, synchronous_commit, how literals are read, the mode of queries, nor a DISCARD ALL
// between two uses. A default that forbids writes and a statement_timeout are respected. A
// lock_timeout does not end the waits of the store's clients for each other. Where it ends the wait
// for a table that is locked as a whole, the error matches rowstore.ErrUnavailable.
// New refuses two kinds of pools, with an error that matches rowstore.ErrInvalid and says what to change:
//
//   - one with several hosts that takes whichever answers, a standby too: set
//     target_session_attrs=primary;
//   - one that drops the server's warnings, if the server waits for synchronous
//     standbys: set [pgx.ConnConfig.OnNotice] to [OnNotice], or call that from yours.
//
// Give the pool [AwaitAnswers], so that calls whose contexts end keep their connections.
func New(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Store, error) {
	switch {
	case pool == nil:
		return nil, fmt.Errorf("postgres: %w: the pool is nil", rowstore.ErrInvalid)
	case opts.URL != "":
		return nil, fmt.Errorf("postgres: %w: Options.URL is set, and the pool says where the server is: leave it empty, or call Open", rowstore.ErrInvalid)
	}
	if err := checkHosts(pool.Config().ConnConfig); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s, err := open(ctx, pool, opts, false, false)
	if err != nil {
		return nil, fmt.Errorf("postgres: opening: %w", scrub(err, secretsOf(opts.Listen)))
	}
	return s, nil
}

// checkHosts refuses connections that may go to a standby as well as to the primary.
func checkHosts(cfg *pgx.ConnConfig) error {
	if cfg.ValidateConnect != nil {
		return nil
	}
	for _, f := range cfg.Fallbacks {
		// The fallback from TLS to plain text has the same host.
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return fmt.Errorf("%w: the pool has several hosts and takes whichever answers, a standby too: set target_session_attrs=primary in its address",
				rowstore.ErrInvalid)
		}
	}
	return nil
}

// validatePrimary refuses a standby, so that the next of several hosts is tried, or where an address leads to
// a standby for a moment (a name in DNS, a balancer), no connection to it is kept.
func validatePrimary(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, "SELECT pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "f" {
		return errStandby
	}
	return nil
}

// open opens a store over a pool. modeGiven says that somebody chose the pool's mode of
// queries; owned, that Close closes the pool.
func open(ctx context.Context, pool *pgxpool.Pool, opts Options, modeGiven, owned bool) (_ *Store, err error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	schema := opts.Schema
	if schema == "" {
		schema = DefaultSchema
	}
	s := &plainStore{pool: pool, schema: schema, names: newNames(schema), owned: owned, hearWithin: hearWithin, gate: kit.NewGate("postgres")}
	s.renewal.every, s.renewal.within = askEvery, askWithin
	s.q = newQueries(s.names)
	c, err := acquire(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer func() { s.release(ctx, c, err) }()
	standbys, err := s.inspect(ctx, c.Conn())
	if err != nil {
		return nil, err
	}
	switch mode := pool.Config().ConnConfig.DefaultQueryExecMode; {
	case mode != pgx.QueryExecModeCacheStatement:
		s.unprepared.Store(true)
	case s.pooler && !modeGiven:
		s.unprepared.Store(true)
	}
	s.listen, err = opts.listenConfig()
	if err != nil {
		return nil, err
	}
	s.listensApart = s.listen != nil
	if s.listen == nil && !s.pooler {
		s.listen = pool.Config().ConnConfig.Copy()
	}
	if s.listen != nil {
		s.listen.BuildContextWatcherHandler = awaiting(0) // what it waits for may never come
		if s.listen.ConnectTimeout <= 0 {
			s.listen.ConnectTimeout = defaultConnectTimeout
		}
	}
	if err := s.listenToWarnings(ctx, c.Conn()); err != nil {
		return nil, err
	}
	if s.deaf && standbys && !owned {
		return nil, fmt.Errorf("%w: the server waits for synchronous standbys (synchronous_standby_names), and the pool drops the warning "+
			"by which it says that it stopped waiting: set OnNotice of the pool's ConnConfig to postgres.OnNotice", rowstore.ErrInvalid)
	}
	if err := migrate(ctx, c.Conn(), schema, s.names, opts.AsIs); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			err = refused(err, pg)
		}
		return nil, err
	}
	s.pusher = newPusher(s, rand.Text())
	return newStore(s, opts), nil
}

// listenToWarnings finds out whether the server's warnings arrive, by one of the code that matters.
func (s *plainStore) listenToWarnings(ctx context.Context, conn *pgx.Conn) error {
	_ = warned(conn.PgConn())
	err := exec(ctx, conn, "DO $do$ BEGIN PERFORM pg_catalog.set_config('client_min_messages', 'notice', true); "+
		"RAISE NOTICE 'percolator listens' USING ERRCODE = '"+plainWarning+"'; END $do$")
	if err != nil {
		return fmt.Errorf("asking for a notice: %w", err)
	}
	s.deaf = !warned(conn.PgConn())
	return nil
}

// inspect asks what server this is, and whether it is one that will do. standbys tells
// whether the server waits for synchronous standbys.
func (s *plainStore) inspect(ctx context.Context, conn *pgx.Conn) (standbys bool, err error) {
	results, err := conn.PgConn().Exec(ctx, `SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('server_version'),
		pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_isolation'),
		pg_catalog.current_setting('synchronous_standby_names')`).ReadAll()
	if err != nil {
		return false, fmt.Errorf("asking for the server's version: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 6 {
		return false, errors.New("the server does not tell its version")
	}
	row := results[0].Rows[0]
	s.number, err = strconv.Atoi(string(row[0]))
	if err != nil {
		return false, fmt.Errorf("the server's version is %q", row[0])
	}
	s.server = string(row[1])
	if s.number < minServer {
		return false, fmt.Errorf("the server has version %s; %d or newer is needed", s.server, minServer/10000)
	}
	if string(row[3]) == "t" {
		return false, fmt.Errorf("%w: %w: the address leads to one, and reads and writes need the primary", rowstore.ErrUnavailable, errStandby)
	}
	// A pooler hands out a number of its own for the cancelling of queries, not the
	// process of the server that it will use for this or that transaction.
	s.pooler = string(row[2]) != strconv.FormatUint(uint64(conn.PgConn().PID()), 10)
	if string(row[4]) != "read committed" {
		s.explicit.Store(true)
	}
	return string(row[5]) != "", nil
}
