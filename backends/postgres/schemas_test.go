package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
)

var schemas atomic.Int64

// fresh names a schema that nothing else uses, and drops it when the test ends.
// direct is a URL of the server itself.
func fresh(t testing.TB, direct string) string {
	t.Helper()
	name := fmt.Sprintf("Test \"%d\" o'clock", schemas.Add(1))
	atend.Do(t, func() { sqlDo(t, direct, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE") })
	return name
}

// recycler lends schemas to tests one after another, emptied in between. A connection
// plans the functions of a schema when it first calls them, which takes longer than most
// tests, and behind a pooler connections outlive the tests. The oracle goes on, as it
// does when a store is opened again. Borrowers that reach the server directly have the
// schema's name as their application_name.
type recycler struct {
	direct string
	mu     sync.Mutex
	free   []string
	pools  map[string]*pgxpool.Pool // by schema
	lost   map[string]int64         // connections that the pool had closed when the schema was lent
}

// recycled lends schemas of the server until the test ends.
func recycled(t testing.TB) (direct string, schemas *recycler) {
	t.Helper()
	schemas = &recycler{direct: testserver.Postgres(t), pools: map[string]*pgxpool.Pool{}, lost: map[string]int64{}}
	atend.Do(t, func() { schemas.drop(t) })
	return schemas.direct, schemas
}

// schema lends a schema until the test ends. What a failed test leaves is dropped, and so is a schema that somebody may still write to.
func (r *recycler) schema(t testing.TB) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var name string
	if last := len(r.free) - 1; last >= 0 {
		name, r.free = r.free[last], r.free[:last]
	} else {
		name = fmt.Sprintf("Recycled \"%d\" o'clock", schemas.Add(1))
	}
	atend.Do(t, func() {
		quoted := pgx.Identifier{name}.Sanitize()
		if t.Failed() || !r.rests(t, name) {
			r.mu.Lock()
			if pool := r.pools[name]; pool != nil {
				pool.Reset() // Its connections would stay to the end, and under load take all that the server allows.
			}
			r.mu.Unlock()
			sqlDo(t, r.direct, "DROP SCHEMA IF EXISTS "+quoted+" CASCADE")
			return
		}
		// What is deleted stays as pages, which a scan or a sample by the next borrower would walk.
		var empty strings.Builder
		for _, table := range []string{"cell", "past", "data", "notify"} {
			table = quoted + "." + table
			fmt.Fprintf(&empty, "IF pg_relation_size('%s') > 262144 THEN TRUNCATE %s; ELSE DELETE FROM %s; END IF;\n", strings.ReplaceAll(table, "'", "''"), table, table)
		}
		sqlDo(t, r.direct, "DO $do$ BEGIN\n"+empty.String()+"END $do$")
		r.mu.Lock()
		defer r.mu.Unlock()
		r.free = append(r.free, name)
	})
	return name
}

// rests tells whether nobody writes to a schema any more. A call that is given up takes its connection along, but the server goes on with
// what it was asked, and would write into the next test. Stores with pools of their own have closed them, so their sessions end. A pool
// that goes on must have lost no connection.
func (r *recycler) rests(t testing.TB, name string) bool {
	t.Helper()
	r.mu.Lock()
	pool, lost := r.pools[name], r.lost[name]
	r.mu.Unlock()
	quoted := strings.ReplaceAll(name, "'", "''")
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if pool == nil {
			if sqlDo(t, r.direct, "SELECT count(*) FROM pg_stat_activity WHERE application_name = '"+quoted+"'") == "0" {
				return true
			}
			continue
		}
		// A connection that is thrown away counts as acquired until it is gone.
		if stat := pool.Stat(); stat.AcquiredConns() == 0 && stat.ConstructingConns() == 0 {
			return lostConns(pool) == lost
		}
	}
	return false
}

// lostConns is the number of connections that a pool has closed.
func lostConns(pool *pgxpool.Pool) int64 {
	stat := pool.Stat()
	return stat.NewConnsCount() - int64(stat.TotalConns())
}

// pool lends a schema together with a pool that only borrowers of this schema use. config
// says how to make it.
func (r *recycler) pool(t testing.TB, config func() *pgxpool.Config) (*pgxpool.Pool, string) {
	t.Helper()
	schema := r.schema(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools[schema] == nil {
		cfg := config()
		cfg.ConnConfig.RuntimeParams["application_name"] = schema
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		require.NoError(t, err)
		r.pools[schema] = pool
	}
	r.lost[schema] = lostConns(r.pools[schema])
	return r.pools[schema], schema
}

// drop removes what was lent, when all tests that borrow are over.
func (r *recycler) drop(t testing.TB) {
	t.Helper()
	for _, pool := range r.pools {
		pool.Close()
	}
	for _, name := range r.free {
		sqlDo(t, r.direct, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
	}
}

// idle are connections to the shared server that no test uses now. To make a connection takes
// longer than most statements of tests.
var idle struct {
	sync.Mutex
	conns []*pgx.Conn
}

// borrowed returns a connection to a server, as a new one is, and what gives it back.
func borrowed(ctx context.Context, t testing.TB, dsn string) (*pgx.Conn, func()) {
	t.Helper()
	keep := testserver.IsSharedPostgres(dsn)
	var conn *pgx.Conn
	idle.Lock()
	if last := len(idle.conns) - 1; keep && last >= 0 {
		conn, idle.conns = idle.conns[last], idle.conns[:last]
	}
	idle.Unlock()
	if conn == nil {
		var err error
		conn, err = pgx.Connect(ctx, dsn)
		require.NoError(t, err)
	}
	return conn, func() {
		if keep && exec(ctx, conn, "DISCARD ALL") == nil {
			idle.Lock()
			defer idle.Unlock()
			idle.conns = append(idle.conns, conn)
			return
		}
		require.NoError(t, conn.Close(ctx))
	}
}

// sqlDo runs statements in a session that is as new and returns the first field of
// the last line.
func sqlDo(t testing.TB, dsn, sql string) string {
	t.Helper()
	ctx := context.Background()
	conn, giveBack := borrowed(ctx, t, dsn)
	defer giveBack()
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	require.NoError(t, err, sql)
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		return ""
	}
	return string(last.Rows[len(last.Rows)-1][0])
}
