package postgres

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Functions get the settings that they need by clauses, which set them and set them back at each
// call. That takes longer than a short call itself. So each function of most calls is there a second time,
// without the clauses, for sessions that have the settings. These are the sessions of a
// pool that the store has made, where they go to a process of the server directly: nobody else
// sends anything there. Nothing else is trusted. A pooler hands a session on to others, and a program may
// do anything to those of its own pool; they call the functions with the clauses.
//
// Safety does not stand on that trust: such a function looks at the search path of its session before it looks up any
// name, and refuses all but one (errcode sessionChanged). Then the session is trusted no more,
// and the other function is called. The other settings are about plans only.

// readySuffix ends the names of the functions without clauses.
const readySuffix = "_ready"

// sessionIsReady stands at the beginning of such a function. It is written with the schema of every name.
const sessionIsReady = `IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;`

// readySQL gives a session what functionSettings says, where it belongs to the process of
// the server that follows: behind a pooler it changes nothing.
const readySQL = `SELECT pg_catalog.set_config('enable_hashjoin', 'off', false), pg_catalog.set_config('enable_mergejoin', 'off', false),
	pg_catalog.set_config('enable_seqscan', 'off', false), pg_catalog.set_config('jit', 'off', false),
	pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)
	WHERE pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) `

// readyKey is where a connection's custom data says that its session has the settings.
const readyKey = "percolator ready"

// makeReady sets a new session up, where it is the pool's alone. A session that it cannot set up works too.
func makeReady(ctx context.Context, c *pgx.Conn) error {
	pid := c.PgConn().PID()
	results, err := c.PgConn().Exec(ctx, readySQL+strconv.FormatUint(uint64(pid), 10)).ReadAll()
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		c.PgConn().CustomData()[readyKey] = true
	}
	return nil
}

// on returns the query for a connection: the one without clauses where there is one and the
// session has the settings.
func (q query) on(c *pgconn.PgConn) query {
	if q.ready != nil && c.CustomData()[readyKey] != nil {
		return *q.ready
	}
	return q
}

// distrust has a connection's session treated as one without the settings.
func distrust(c *pgconn.PgConn) { delete(c.CustomData(), readyKey) }
