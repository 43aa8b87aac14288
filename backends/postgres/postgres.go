package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func init() {
	rowstore.Register(Open, "postgres", "postgresql")
}

// DefaultSchema is the schema of a store that names none.
const DefaultSchema = "percolator"

// defaultConns is the size of the pool of a URL that does not say. Merged calls
// need few connections; scans and other programs' share of the server need some.
const defaultConns = 16

// defaultInFlight is how many merged calls of a kind are under way at once. What a
// batch costs beyond its rows is much, here and on the server: two small ones cost a
// fifth more than one of their size, and reads, prewrites, commits and draws run
// beside each other anyway.
const defaultInFlight = 1

// defaultConnectTimeout bounds the making of a connection where the URL does not.
const defaultConnectTimeout = 10 * time.Second

// The longest names. A table's, a row's and a column's together have to fit into an
// entry of an index, which is a third of a page.
const (
	maxTable  = 512
	maxRow    = 1536
	maxColumn = 512
	maxValue  = 64 << 20
)

// errDamaged says that the schema holds what this package did not put there.
var errDamaged = errors.New("the schema is damaged")

// Options say how a store uses a pool that the application already has. The zero
// value works.
type Options struct {
	// Schema is the Postgres schema that holds everything. Default ("") is
	// DefaultSchema. It is made when it is missing.
	Schema string
	// Listen is a DSN of the same database that reaches the server directly, for
	// LISTEN. It is needed behind a pooler such as PgBouncer in transaction mode,
	// where notifications do not arrive. Default ("") is a connection made as those of
	// the pool are, where that is a direct one; else the store is no
	// rowstore.Waker. BeforeConnect of the pool is called with it in both cases, and
	// may change the password.
	Listen string
	// Coalesce changes how concurrent calls are merged; nil, and MaxInFlight 0, is one
	// call of a kind at once, else the defaults of rowstore.Coalesce.
	Coalesce *rowstore.CoalesceOptions
	// NoCoalesce gives a store without merging.
	NoCoalesce bool
}

// Open opens the store of a URL, postgres://user:password@host:port/database or
// postgresql://..., with the parameters of libpq and pgxpool (sslmode,
// pool_max_conns, default_query_exec_mode, ...) and these:
//
//	schema=NAME      the schema that holds everything; default "percolator"
//	listen=DSN       a direct connection for LISTEN; see Options.Listen
//	coalesce=off     no merging of concurrent calls
//	max_batch=N      see rowstore.CoalesceOptions; default there
//	max_in_flight=N  likewise; default 1
//
// It connects, makes or migrates the schema where that is needed, and fails with
// what is wrong: server or password, a server that is too old or a standby, a
// missing permission, a schema of a newer version. What may pass by itself matches
// rowstore.ErrUnavailable. No error shows more of the URL than host and port, but for the
// words of the server to a user whom it let in. The context bounds the opening only.
func Open(ctx context.Context, dsn string) (rowstore.Store, error) {
	rest, opts, err := splitURL(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: the URL: %w", err)
	}
	cfg, err := pgxpool.ParseConfig(rest.dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: the URL: %w", errUnreadable)
	}
	if !rest.has["pool_max_conns"] {
		cfg.MaxConns = defaultConns
	}
	if !rest.has["connect_timeout"] {
		cfg.ConnConfig.ConnectTimeout = defaultConnectTimeout
	}
	if len(cfg.ConnConfig.Fallbacks) > 0 && cfg.ConnConfig.ValidateConnect == nil {
		cfg.ConnConfig.ValidateConnect = validatePrimary
	}
	cfg.ConnConfig.OnNotice = OnNotice
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("postgres: the URL: %w", errUnreadable)
	}
	s, err := open(ctx, pool, opts, rest.has["default_query_exec_mode"])
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: opening: %w", scrub(err, rest.secrets))
	}
	s.owned = true
	return s.wrapped(opts), nil
}

// New opens a store over a pool that the application has and goes on to own: Close
// leaves it open. The pool's connections are used by many callers for a short time
// each; a scan holds none while its consumer works. Errors are those of Open.
// Set [OnNotice] in the pool's configuration where synchronous standbys are used.
func New(ctx context.Context, pool *pgxpool.Pool, opts Options) (rowstore.Store, error) {
	if pool == nil {
		return nil, fmt.Errorf("postgres: %w: the pool is nil", rowstore.ErrInvalid)
	}
	s, err := open(ctx, pool, opts, false)
	if err != nil {
		return nil, fmt.Errorf("postgres: opening: %w", err)
	}
	return s.wrapped(opts), nil
}

// errUnreadable is all that is said of an address that the driver does not understand: what it says itself
// quotes the address, in which a password may stand anywhere when it was not escaped.
var errUnreadable = fmt.Errorf("%w: it is malformed, or one of its parameters has a value that will not do", rowstore.ErrInvalid)

// validatePrimary refuses a standby where there are several hosts to choose from.
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

// checkAddress refuses addresses in which a part of a password, one that was not escaped, would be taken
// for something else: a fragment, a host, a parameter. Its errors quote nothing.
func checkAddress(base, query string) error {
	if strings.ContainsAny(base+query, "# \t\r\n") {
		return fmt.Errorf("%w: it has a # or a space: such characters are to be percent-encoded", rowstore.ErrInvalid)
	}
	_, rest, ok := strings.Cut(base, "://")
	if !ok {
		return nil // a list of keywords and values
	}
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Count(authority, "@") > 1 || strings.ContainsAny(authority, `\"<>`) {
		return fmt.Errorf("%w: such characters in the password are to be percent-encoded", rowstore.ErrInvalid)
	}
	if strings.Contains(path, "@") {
		return fmt.Errorf("%w: it has an @ after the host: a slash in the password is to be percent-encoded", rowstore.ErrInvalid)
	}
	if !strings.ContainsAny(rest, "/@") && strings.Contains(query, "@") {
		return fmt.Errorf("%w: it has no path and an @ after the ?: a ? in the password is to be percent-encoded", rowstore.ErrInvalid)
	}
	for part := range strings.SplitSeq(query, "&") {
		name, _, ok := strings.Cut(part, "=")
		if part != "" && (!ok || strings.ContainsAny(name, "@:/")) {
			return fmt.Errorf("%w: one of its parameters is not name=value: a ? in the password is to be percent-encoded", rowstore.ErrInvalid)
		}
	}
	return nil
}

// address is what is left of a URL without this package's own parameters.
type address struct {
	dsn     string
	has     map[string]bool // its parameters
	secrets []string        // what must not be in an error
}

func splitURL(dsn string) (address, Options, error) {
	var opts Options
	base, query, _ := strings.Cut(dsn, "?")
	values, order, err := parameters(query)
	a := address{has: map[string]bool{}, secrets: secrets(base, values)}
	if err != nil {
		return a, opts, err
	}
	if strings.Contains(dsn, "://") {
		if err := checkAddress(base, query); err != nil {
			return a, opts, err
		}
	}
	take := func(name string) string {
		v := values[name]
		delete(values, name)
		return v
	}
	opts.Schema = take("schema")
	opts.Listen = take("listen")
	if opts.Listen != "" {
		b, q, _ := strings.Cut(opts.Listen, "?")
		lv, _, _ := parameters(q)
		a.secrets = append(a.secrets, secrets(b, lv)...)
	}
	switch v := take("coalesce"); v {
	case "", "on", "true":
	case "off", "false":
		opts.NoCoalesce = true
	default:
		return a, opts, fmt.Errorf("%w: coalesce is neither on nor off", rowstore.ErrInvalid)
	}
	co := rowstore.CoalesceOptions{}
	for name, to := range map[string]*int{"max_batch": &co.MaxBatch, "max_in_flight": &co.MaxInFlight} {
		v := take(name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return a, opts, fmt.Errorf("%w: %s is not a number above 0", rowstore.ErrInvalid, name)
		}
		*to = n
		opts.Coalesce = &co
	}
	var kept []string
	for _, name := range order {
		if v, ok := values[name]; ok {
			a.has[name] = true
			kept = append(kept, url.PathEscape(name)+"="+strings.ReplaceAll(url.QueryEscape(v), "+", "%20"))
		}
	}
	a.dsn = base
	if len(kept) > 0 {
		a.dsn += "?" + strings.Join(kept, "&")
	}
	return a, opts, nil
}

// parameters reads those of a URL as libpq does, to which a plus is a plus. Its
// error quotes nothing, since that might be a password.
func parameters(query string) (values map[string]string, order []string, err error) {
	values = map[string]string{}
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, err1 := url.PathUnescape(name)
		value, err2 := url.PathUnescape(value)
		if err1 != nil || err2 != nil {
			err = fmt.Errorf("%w: its parameters cannot be read", rowstore.ErrInvalid)
			continue
		}
		if _, again := values[name]; !again {
			order = append(order, name)
		}
		values[name] = value
	}
	return values, order, err
}

// secrets finds the passwords in a URL, as they are written and as they are meant.
func secrets(base string, values map[string]string) []string {
	var all []string
	add := func(s string) {
		if s != "" {
			all = append(all, s)
			if plain, err := url.PathUnescape(s); err == nil && plain != s {
				all = append(all, plain)
			}
		}
	}
	if i := strings.LastIndex(base, "@"); i >= 0 {
		user := base[:i]
		if j := strings.Index(user, "://"); j >= 0 {
			user = user[j+3:]
		}
		if _, password, ok := strings.Cut(user, ":"); ok {
			add(password)
		}
	}
	for _, name := range []string{"password", "sslpassword"} {
		add(values[name])
		add(url.QueryEscape(values[name]))
	}
	return all
}

// scrub returns err, or where its message holds a secret, an error with the same
// message without it.
func scrub(err error, secrets []string) error {
	text := err.Error()
	clean := text
	for _, s := range secrets {
		clean = strings.ReplaceAll(clean, s, "xxxxx")
	}
	if clean == text {
		return err
	}
	return errors.New(clean)
}

// Store is the row-transactional store. It is returned wrapped, by Open and New.
type store struct {
	pool   *pgxpool.Pool
	owned  bool // the pool is ours to close
	schema string
	names  names
	q      queries
	oracle *oracle.Batch
	server string // the version, for people
	number int    // the version, as server_version_num has it

	// unprepared: prepared statements do not work here. explicit: transactions have to
	// be begun with what they need, because the defaults are something else. Both are
	// found out from the server's answers, and never taken back.
	unprepared, explicit atomic.Bool
	pooler               bool // there is something between us and the server
	listen               *pgx.ConnConfig
	pusher               *pusher
	deaf                 bool          // the server's warnings do not arrive: see OnNotice
	unconfirmed          atomic.Uint64 // commits that the server did not wait for to the end

	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	mu     sync.Mutex // guards closed, and wg against Close
	closed bool
	wg     sync.WaitGroup // calls under way
}

func open(ctx context.Context, pool *pgxpool.Pool, opts Options, modeGiven bool) (*store, error) {
	schema := opts.Schema
	if schema == "" {
		schema = DefaultSchema
	}
	if strings.ContainsRune(schema, 0) || len(schema) > 63 {
		return nil, fmt.Errorf("%w: the schema's name is longer than 63 bytes or has a zero byte", rowstore.ErrInvalid)
	}
	s := &store{pool: pool, schema: schema, names: newNames(schema)}
	s.q = newQueries(s.names)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if opts.Listen != "" {
		base, query, _ := strings.Cut(opts.Listen, "?")
		if strings.Contains(base, "://") {
			if err := checkAddress(base, query); err != nil {
				return nil, fmt.Errorf("the DSN to listen on: %w", err)
			}
		}
		cfg, err := pgx.ParseConfig(opts.Listen)
		if err != nil {
			return nil, fmt.Errorf("the DSN to listen on: %w", errUnreadable)
		}
		s.listen = cfg
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, connecting(ctx, err)
	}
	defer c.Release()
	if err := s.inspect(ctx, c.Conn()); err != nil {
		return nil, err
	}
	switch mode := pool.Config().ConnConfig.DefaultQueryExecMode; {
	case mode != pgx.QueryExecModeCacheStatement:
		s.unprepared.Store(true)
	case s.pooler && !modeGiven:
		s.unprepared.Store(true)
	}
	if s.listen == nil && !s.pooler {
		s.listen = pool.Config().ConnConfig.Copy()
	}
	if err := migrate(ctx, c.Conn(), schema, s.names); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			err = refused(err, pg)
		}
		return nil, err
	}
	if err := s.listenToWarnings(ctx, c.Conn()); err != nil {
		return nil, err
	}
	s.oracle = oracle.NewBatch(drawer{s})
	s.pusher = newPusher(s, rand.Text())
	return s, nil
}

// listenToWarnings finds out whether the server's warnings arrive, by one of the code that matters.
func (s *store) listenToWarnings(ctx context.Context, conn *pgx.Conn) error {
	_ = warned(conn.PgConn())
	err := exec(ctx, conn, "DO $do$ BEGIN PERFORM pg_catalog.set_config('client_min_messages', 'notice', true); "+
		"RAISE NOTICE 'percolator listens' USING ERRCODE = '"+plainWarning+"'; END $do$")
	if err != nil {
		return fmt.Errorf("asking for a notice: %w", err)
	}
	s.deaf = !warned(conn.PgConn())
	return nil
}

// inspect asks what server this is, and whether it is one that will do.
func (s *store) inspect(ctx context.Context, conn *pgx.Conn) error {
	results, err := conn.PgConn().Exec(ctx, `SELECT pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('server_version'),
		pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_isolation')`).ReadAll()
	if err != nil {
		return fmt.Errorf("asking for the server's version: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 5 {
		return errors.New("the server does not tell its version")
	}
	row := results[0].Rows[0]
	s.number, err = strconv.Atoi(string(row[0]))
	if err != nil {
		return fmt.Errorf("the server's version is %q", row[0])
	}
	s.server = string(row[1])
	if s.number < minServer {
		return fmt.Errorf("the server has version %s; %d or newer is needed", s.server, minServer/10000)
	}
	if string(row[3]) == "t" {
		return fmt.Errorf("%w: the address leads to one, and reads and writes need the primary", errStandby)
	}
	// A pooler hands out a number of its own for the cancelling of queries, not the
	// process of the server that it will use for this or that transaction.
	s.pooler = string(row[2]) != strconv.FormatUint(uint64(conn.PgConn().PID()), 10)
	if string(row[4]) != "read committed" {
		s.explicit.Store(true)
	}
	return nil
}

// wrapped gives the store those abilities that it has here, and merges calls.
func (s *store) wrapped(opts Options) rowstore.Store {
	var r rowstore.Store = s
	if s.listen != nil {
		r = &wakingStore{s}
	}
	if opts.NoCoalesce {
		return r
	}
	var co rowstore.CoalesceOptions
	if opts.Coalesce != nil {
		co = *opts.Coalesce
	}
	if co.MaxInFlight <= 0 {
		co.MaxInFlight = defaultInFlight
	}
	return rowstore.Coalesce(r, co)
}

// enter begins a call: it returns a context that Close ends too, and a function
// to call at the end.
func (s *store) enter(ctx context.Context, what string) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("postgres: %s: %w", what, err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("postgres: %s: %w", what, rowstore.ErrClosed)
	}
	s.wg.Add(1)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.wg.Done()
	}, nil
}

// fail wraps the error of a call, and says so when it comes from Close.
func (s *store) fail(what string, err error) error {
	if s.ctx.Err() != nil && !errors.Is(err, rowstore.ErrClosed) {
		return fmt.Errorf("postgres: %s: %w: %w", what, rowstore.ErrClosed, err)
	}
	return fmt.Errorf("postgres: %s: %w", what, err)
}

// Close implements rowstore.Store. Calls under way are ended.
func (s *store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	err := s.oracle.Close()
	s.wg.Wait()
	s.pusher.stop()
	if s.owned {
		s.pool.Close()
	}
	return err
}

// Limits implements rowstore.Limiter.
func (s *store) Limits() rowstore.Limits {
	return rowstore.Limits{Table: maxTable, Row: maxRow, Column: maxColumn, Value: maxValue}
}

// Oracle implements rowstore.OracleProvider.
func (s *store) Oracle() oracle.Oracle { return s.oracle }

var (
	_ rowstore.Store          = (*store)(nil)
	_ rowstore.Grouper        = (*store)(nil)
	_ rowstore.Deferrer       = (*store)(nil)
	_ rowstore.OracleProvider = (*store)(nil)
	_ rowstore.Splitter       = (*store)(nil)
	_ rowstore.Limiter        = (*store)(nil)
	_ rowstore.Reporter       = (*store)(nil)
	_ rowstore.Waker          = (*wakingStore)(nil)
)
