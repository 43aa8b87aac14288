package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/testserver"
)

// servers are those of one run: started on first use, unless -store names one, for
// every workload of their kind. Both sides of a workload use the same server.
type servers struct {
	redis, postgres *testserver.Server
	// pools are those of the sides that use plain pgx, by URL and size, so that many
	// sides do not exhaust the server's connections.
	pools map[string]*pgxpool.Pool
}

// pool is the plain pool of that size on the server that a store's URL names.
func (s *servers) pool(ctx context.Context, raw string, most int) (*pgxpool.Pool, error) {
	u, _, _ := strings.Cut(raw, "?")
	key := fmt.Sprint(most, " ", u)
	if s.pools[key] == nil {
		p, err := openPool(ctx, raw, most)
		if err != nil {
			return nil, err
		}
		if s.pools == nil {
			s.pools = map[string]*pgxpool.Pool{}
		}
		s.pools[key] = p
	}
	return s.pools[key], nil
}

// flushed says whether the servers flush to the disk what they acknowledge, as those of
// users do. The tests, which judge no figure, turn it off: the disk is not theirs alone.
var flushed = true

// errNoServer says that a workload cannot run here.
var errNoServer = errors.New("no server")

func (s *servers) redisURL(cfg Config) (string, error) {
	return serverURL(cfg, "redis", &s.redis, func() (*testserver.Server, error) {
		fsync := "no"
		if flushed {
			fsync = "everysec" // what most servers run with
		}
		return testserver.StartRedis(map[string]string{
			"appendonly": "yes", "appendfsync": fsync,
			// A rewrite of the file would fall on one side of a comparison.
			"auto-aof-rewrite-percentage": "0",
			// As the README of the backend recommends; no peer keeps hashes.
			"hash-max-listpack-value": "1024",
		})
	})
}

func (s *servers) postgresURL(cfg Config) (string, error) {
	return serverURL(cfg, "postgres", &s.postgres, func() (*testserver.Server, error) {
		fsync := "off"
		if flushed {
			fsync = "on"
		}
		return testserver.StartPostgres(map[string]string{
			"fsync": fsync, "synchronous_commit": "on", "max_connections": "300",
			"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min",
		})
	})
}

// redisSpace is the server under a prefix that keeps workloads apart on it.
func (s *servers) redisSpace(cfg Config, name string) (string, error) {
	u, err := s.redisURL(cfg)
	return with(u, "prefix", "bench-"+name), err
}

// postgresSpace is the server in a schema that keeps workloads apart on it.
func (s *servers) postgresSpace(cfg Config, name string, more ...string) (string, error) {
	u, err := s.postgresURL(cfg)
	return with(u, append([]string{"schema", "bench_" + name}, more...)...), err
}

func serverURL(cfg Config, kind string, s **testserver.Server, start func() (*testserver.Server, error)) (string, error) {
	if scheme(cfg.Store) == kind {
		return cfg.Store, nil
	}
	if *s == nil {
		var err error
		if *s, err = start(); err != nil {
			return "", fmt.Errorf("%w: %w", errNoServer, err)
		}
	}
	return (*s).URL, nil
}

// close stops what was started.
func (s *servers) close() error {
	for _, p := range s.pools {
		p.Close()
	}
	var errs []error
	for _, server := range []*testserver.Server{s.redis, s.postgres} {
		if server != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(append(errs, testserver.Shutdown())...)
}

// with adds parameters to a URL.
func with(raw string, pairs ...string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw // whoever opens it says what is wrong
	}
	q := u.Query()
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// serverWorkloads are those over Redis and Postgres. It is long because it is a list.
func serverWorkloads() []Workload {
	redisSpace := func(cfg Config, name string) (string, error) { return cfg.servers.redisSpace(cfg, name) }
	postgresSpace := func(cfg Config, name string, more ...string) (string, error) {
		return cfg.servers.postgresSpace(cfg, name, more...)
	}
	ratio := func(what string, bar float64) func([]Summary) []Bar {
		return func(s []Summary) []Bar { return []Bar{atLeast(what, s[0].Rate/s[1].Rate, bar, "")} }
	}
	latency := func(what string, bar float64) func([]Summary) []Bar {
		return func(s []Summary) []Bar { return []Bar{atMost(what, s[0].P50/s[1].P50, bar, "")} }
	}
	redisTransfer := func(name string) func(Config) ([]Side, error) {
		return func(cfg Config) ([]Side, error) {
			u, err := redisSpace(cfg, name)
			return []Side{
				&transfer{name: "percolator on redis", url: u},
				&watchTransfer{redisPeer: redisPeer{url: u}},
				&luaTransfer{redisPeer: redisPeer{url: u}},
			}, err
		}
	}
	postgresTransfer := func(name string) func(Config) ([]Side, error) {
		return func(cfg Config) ([]Side, error) {
			u, err := postgresSpace(cfg, name, "pool_max_conns", fmt.Sprint(min(cfg.Goroutines, 16)))
			native := pgPeer{url: u, pool: min(cfg.Goroutines, 64)}
			return []Side{
				&transfer{name: "percolator on postgres", url: u},
				&nativeTransfer{pgPeer: native, isolation: pgx.RepeatableRead},
				&nativeTransfer{pgPeer: native, isolation: pgx.ReadCommitted},
				&nativeTransfer{pgPeer: native, isolation: pgx.Serializable},
			}, err
		}
	}
	return []Workload{
		{
			Name: "redis-transfer", Group: "redis", About: "transfers between two rows on Redis", Goroutines: 64, Rows: 100_000,
			Sides: redisTransfer("transfer"),
			Bars:  ratio("percolator / WATCH, MGET, MULTI, EXEC", 2),
		},
		{
			Name: "redis-read", Group: "redis", About: "one cell read in a transaction on Redis", Goroutines: 64, Rows: 100_000,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := redisSpace(cfg, "read")
				return []Side{
					&oneCell{name: "percolator on redis", url: u, read: true},
					&getSet{redisPeer: redisPeer{url: u}},
					&oneCell{name: "percolator, coalesce=off", url: with(u, "coalesce", "off", "prefix", "bench-read-bare"), read: true},
					&getSet{redisPeer: redisPeer{url: u}, pipeline: 16},
					&getSet{redisPeer: redisPeer{url: u}, auto: true},
				}, err
			},
			Bars: ratio("percolator / GET", 1.5),
		},
		{
			Name: "redis-write", Group: "redis", About: "one cell written in a transaction on Redis", Goroutines: 64, Rows: 100_000,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := redisSpace(cfg, "write")
				return []Side{
					&oneCell{name: "percolator on redis", url: u, write: true},
					&getSet{redisPeer: redisPeer{url: u}, set: true},
					&oneCell{name: "percolator, coalesce=off", url: with(u, "coalesce", "off", "prefix", "bench-write-bare"), write: true},
					&getSet{redisPeer: redisPeer{url: u}, set: true, pipeline: 16},
					&getSet{redisPeer: redisPeer{url: u}, set: true, auto: true},
				}, err
			},
			Bars: ratio("percolator / SET", 0.9),
		},
		{
			Name: "redis-lone", Group: "redis", About: "one transfer at a time on Redis", Goroutines: 1, Rows: 100_000,
			Sides: redisTransfer("lone"),
			Bars:  latency("median time of a transfer / of WATCH, MGET, MULTI, EXEC", 1.5),
		},
		{
			Name: "redis-observe", Group: "redis", About: "from the return of a commit to the start of the observer on Redis, idle system", Goroutines: 1, Rows: 1000,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := redisSpace(cfg, "observe")
				return []Side{&observed{name: "percolator on redis", url: u}}, err
			},
			Bars: func(s []Summary) []Bar { return []Bar{atMost("median", s[0].P50/1e3, 5, "ms")} },
		},
		{
			Name: "postgres-transfer", Group: "postgres", About: "transfers between two rows on Postgres", Goroutines: 64, Rows: 100_000,
			Sides: postgresTransfer("transfer"),
			Bars: func(s []Summary) []Bar {
				return []Bar{
					atLeast("percolator / REPEATABLE READ, transfers per second", s[0].Rate/s[1].Rate, 1.5, ""),
					atMost("CPU of client and server for a transfer / REPEATABLE READ", s[0].AllCPU()/s[1].AllCPU(), 1.5, ""),
				}
			},
		},
		{
			Name: "postgres-transfer-256", Group: "postgres", About: "transfers between two rows on Postgres, more callers", Goroutines: 256, Rows: 100_000,
			Sides: postgresTransfer("transfer256"),
			Bars:  ratio("percolator / REPEATABLE READ", 2),
		},
		{
			Name: "postgres-read", Group: "postgres", About: "one cell read in a transaction on Postgres", Goroutines: 64, Rows: 100_000,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := postgresSpace(cfg, "read", "pool_max_conns", "16")
				return []Side{
					&oneCell{name: "percolator on postgres", url: u, read: true},
					&nativeSelect{pgPeer: pgPeer{url: u, pool: min(cfg.Goroutines, 64)}},
				}, err
			},
			Bars: ratio("percolator / SELECT by primary key", 1.5),
		},
		{
			Name: "postgres-lone", Group: "postgres", About: "one transfer at a time on Postgres", Goroutines: 1, Rows: 100_000,
			Sides: postgresTransfer("lone"),
			Bars:  latency("median time of a transfer / of a REPEATABLE READ transaction", 1.5),
		},
		{
			Name: "postgres-observe", Group: "postgres", About: "from the return of a commit to the start of the observer on Postgres, idle system", Goroutines: 1, Rows: 1000,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := postgresSpace(cfg, "observe")
				return []Side{&observed{name: "percolator on postgres", url: u}}, err
			},
			Bars: func(s []Summary) []Bar { return []Bar{atMost("median", s[0].P50/1e3, 5, "ms")} },
		},
		postgresScan(),
		redisScan(),
	}
}

// redisPeer is plain go-redis on the server that a store's URL names. Its keys are
// the names of rows, under a prefix of their own.
type redisPeer struct {
	url    string
	client *redis.Client
	atMost int // rows, where it is not 0
	sized  int // bytes of a value, where it is not 0
	rows   int
	size   int
}

func (s *redisPeer) Peer() string      { return "redis" }
func (s *redisPeer) ServerURL() string { return s.url }

func (s *redisPeer) key(i int) string {
	return fmt.Sprintf("bench-plain:%d:%s", s.sized, rowName(i))
}

// rowsAndSize are those of the flags, or a side's own.
func rowsAndSize(cfg Config, atMost, sized int) (rows, size int) {
	rows, size = cfg.Rows, cfg.ValueSize
	if atMost > 0 {
		rows = min(rows, atMost)
	}
	if sized > 0 {
		size = sized
	}
	return rows, size
}

// connect makes the client.
func (s *redisPeer) connect(cfg Config) error {
	s.rows, s.size = rowsAndSize(cfg, s.atMost, s.sized)
	u, err := url.Parse(s.url)
	if err != nil {
		return errors.New("the URL of the Redis is not one that go-redis takes")
	}
	u.RawQuery = "" // parameters of the store
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return err
	}
	o.PoolSize = max(cfg.Goroutines, 10)
	s.client = redis.NewClient(o)
	return nil
}

func (s *redisPeer) Prepare(ctx context.Context, cfg Config) error {
	if err := s.connect(cfg); err != nil {
		return err
	}
	for from := 0; from < s.rows; from += fillBatch {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < min(s.rows, from+fillBatch); i++ {
				p.Set(ctx, s.key(i), value(1000, s.size), 0)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *redisPeer) Close() error {
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// watchTransfer is the transfer by optimistic locking, as the documentation of
// Redis has it.
type watchTransfer struct{ redisPeer }

func (s *watchTransfer) Name() string { return "WATCH, MGET, MULTI, EXEC" }

func (s *watchTransfer) Op(ctx context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	from, to := s.key(a), s.key(b)
	for {
		err := s.client.Watch(ctx, func(tx *redis.Tx) error {
			values, err := tx.MGet(ctx, from, to).Result()
			if err != nil {
				return err
			}
			x, err := redisNumber(values[0])
			if err != nil {
				return err
			}
			y, err := redisNumber(values[1])
			if err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, from, value(x-1, s.size), 0)
				p.Set(ctx, to, value(y+1, s.size), 0)
				return nil
			})
			return err
		}, from, to)
		if !errors.Is(err, redis.TxFailedErr) {
			return err
		}
		w.Conflicts++
	}
}

// luaTransfer is the transfer as a script by hand, which needs both rows on one
// server and keeps no history.
type luaTransfer struct{ redisPeer }

var transferScript = redis.NewScript(`
local from, to = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
local x, y = string.match(from, '^-?%d+'), string.match(to, '^-?%d+')
local size = tonumber(ARGV[1])
local function pad(n)
	local text = string.format('%d', n)
	return text .. string.rep('\0', size - #text)
end
redis.call('SET', KEYS[1], pad(tonumber(x) - 1))
redis.call('SET', KEYS[2], pad(tonumber(y) + 1))
return 1
`)

func (s *luaTransfer) Name() string { return "a Lua script by hand" }

func (s *luaTransfer) Op(ctx context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	return transferScript.Run(ctx, s.client, []string{s.key(a), s.key(b)}, s.size).Err()
}

func redisNumber(v any) (int64, error) {
	text, ok := v.(string)
	if !ok {
		return 0, fmt.Errorf("a balance is %T", v)
	}
	return number([]byte(text))
}

// getSet is a plain GET or SET, or several in a pipeline.
type getSet struct {
	redisPeer
	set      bool
	pipeline int  // commands in a pipeline, 0 for none
	auto     bool // go-redis merges the commands of all callers into pipelines
	merged   *redis.AutoPipeliner
}

func (s *getSet) Prepare(ctx context.Context, cfg Config) (err error) {
	if err := s.redisPeer.Prepare(ctx, cfg); err != nil || !s.auto {
		return err
	}
	s.merged, err = s.client.AutoPipeline()
	return err
}

func (s *getSet) Name() string {
	name := "GET"
	if s.set {
		name = "SET"
	}
	if s.pipeline > 0 {
		name += fmt.Sprintf(", pipelines of %d", s.pipeline)
	}
	if s.auto {
		name += ", AutoPipeline"
	}
	return name
}

func (s *getSet) Op(ctx context.Context, w *Caller) error {
	one := func(c redis.Cmdable) error {
		key := s.key(w.row(s.rows))
		if s.set {
			return c.Set(ctx, key, value(w.Rand.Int64N(1000), s.size), 0).Err()
		}
		_, err := c.Get(ctx, key).Result()
		return err
	}
	switch {
	case s.auto:
		return one(s.merged)
	case s.pipeline == 0:
		return one(s.client)
	}
	w.Units = int64(s.pipeline)
	p := s.client.Pipeline()
	for range s.pipeline {
		_ = one(p) // queued; Exec has the errors
	}
	_, err := p.Exec(ctx)
	return err
}

// pgPeer is plain pgx on the server that a store's URL names, in a table of its own.
type pgPeer struct {
	url    string
	pool   int
	atMost int // rows, where it is not 0
	sized  int // bytes of a value, where it is not 0
	db     *pgxpool.Pool
	rows   int
	size   int
}

func (s *pgPeer) Peer() string      { return "postgres" }
func (s *pgPeer) ServerURL() string { return s.url }

// table is a plain table for the side's rows.
func (s *pgPeer) table() string {
	return fmt.Sprintf("public.percolator_bench_%d_%d", s.atMost, s.sized)
}

// openPool opens a plain pool on the server that a store's URL names.
func openPool(ctx context.Context, raw string, most int) (*pgxpool.Pool, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the URL of the Postgres is not a URL")
	}
	q := u.Query()
	for _, parameter := range []string{"schema", "coalesce", "max_batch", "max_in_flight", "listen"} {
		q.Del(parameter) // of the store
	}
	u.RawQuery = q.Encode()
	c, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	c.MaxConns = int32(most)
	return pgxpool.NewWithConfig(ctx, c)
}

func (s *pgPeer) Prepare(ctx context.Context, cfg Config) error {
	s.rows, s.size = rowsAndSize(cfg, s.atMost, s.sized)
	var err error
	if s.db, err = cfg.servers.pool(ctx, s.url, s.pool); err != nil {
		return err
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS " + s.table(),
		"CREATE TABLE " + s.table() + " (key text PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 70)",
	} {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return err
		}
	}
	_, err = s.db.CopyFrom(ctx, pgx.Identifier(strings.Split(s.table(), ".")), []string{"key", "value"},
		pgx.CopyFromSlice(s.rows, func(i int) ([]any, error) { return []any{rowName(i), value(1000, s.size)}, nil }))
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, "VACUUM ANALYZE "+s.table())
	return err
}

func (s *pgPeer) Close() error { return nil } // the pool is the run's

// nativeTransfer is the transfer as a transaction of Postgres: with the same
// isolation as percolator's, or another.
type nativeTransfer struct {
	pgPeer
	isolation pgx.TxIsoLevel
}

func (s *nativeTransfer) Name() string {
	return fmt.Sprintf("%s with pgx, %d connections", isolationName(s.isolation), s.pool)
}

// isolationName says how a side guards a read that a write follows.
func isolationName(i pgx.TxIsoLevel) string {
	if i == pgx.ReadCommitted {
		return "READ COMMITTED, FOR UPDATE"
	}
	return strings.ToUpper(string(i))
}

// forUpdate is what a SELECT needs at the end, so that nothing is lost between it
// and the UPDATE.
func forUpdate(i pgx.TxIsoLevel) string {
	if i == pgx.ReadCommitted {
		return " FOR UPDATE"
	}
	return ""
}

func (s *nativeTransfer) Op(ctx context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	a, b = min(a, b), max(a, b) // in the order of keys nobody deadlocks
	query := "SELECT value FROM " + s.table() + " WHERE key = ANY($1) ORDER BY key" + forUpdate(s.isolation)
	return s.retried(ctx, w, s.isolation, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query, []string{rowName(a), rowName(b)})
		if err != nil {
			return err
		}
		values, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		if len(values) != 2 {
			return fmt.Errorf("found %d rows of 2", len(values))
		}
		x, err := number(values[0])
		if err != nil {
			return err
		}
		y, err := number(values[1])
		if err != nil {
			return err
		}
		update := "UPDATE " + s.table() + " SET value = $2 WHERE key = $1"
		var batch pgx.Batch
		batch.Queue(update, rowName(a), value(x-1, s.size))
		batch.Queue(update, rowName(b), value(y+1, s.size))
		return tx.SendBatch(ctx, &batch).Close()
	})
}

// retried runs a transaction until it does not conflict.
func (s *pgPeer) retried(ctx context.Context, w *Caller, isolation pgx.TxIsoLevel, f func(pgx.Tx) error) error {
	for {
		err := pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: isolation}, f)
		pg := (*pgconn.PgError)(nil)
		if !errors.As(err, &pg) || pg.Code != "40001" && pg.Code != "40P01" {
			return err
		}
		w.Conflicts++
	}
}

// nativeSelect reads a row by its primary key.
type nativeSelect struct{ pgPeer }

func (s *nativeSelect) Name() string {
	return fmt.Sprintf("SELECT with pgx, %d connections", s.pool)
}

func (s *nativeSelect) Op(ctx context.Context, w *Caller) error {
	var b []byte
	return s.db.QueryRow(ctx, "SELECT value FROM "+s.table()+" WHERE key = $1", rowName(w.row(s.rows))).Scan(&b)
}
