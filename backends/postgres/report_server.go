package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// serverSays is what a server says of itself, by the columns of aboutSQL.
type serverSays map[string]string

// aboutSQL asks for all in one line. Every user may read these; what the server shows to members of pg_monitor alone
// is null to others, and then nothing is said of it. An empty limit is none. Timeouts are in ms, whatever unit they were
// set in; pg_settings has them so too, but makes a line of every setting for each that it is asked for.
const aboutSQL = `SELECT current_setting('server_version') AS server_version, current_setting('fsync') AS fsync,
	current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
	current_setting('synchronous_standby_names') AS standby_names, standby.s AS standbys, standby.lag AS standby_lag,
	(extract(epoch FROM current_setting('statement_timeout', true)::interval) * 1000)::bigint AS statement_timeout,
	(extract(epoch FROM current_setting('lock_timeout', true)::interval) * 1000)::bigint AS lock_timeout,
	(extract(epoch FROM current_setting('transaction_timeout', true)::interval) * 1000)::bigint AS transaction_timeout,
	(extract(epoch FROM current_setting('idle_in_transaction_session_timeout', true)::interval) * 1000)::bigint AS idle_in_transaction_session_timeout,
	(extract(epoch FROM current_setting('idle_session_timeout', true)::interval) * 1000)::bigint AS idle_session_timeout,
	current_setting('default_transaction_read_only') AS read_only,
	current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS max_connections,
	(SELECT sum(numbackends) FROM pg_stat_database) AS connections,
	(SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user AND NOT rolsuper) AS role_limit,
	(SELECT nullif(datconnlimit, -1) FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user AND NOT rolsuper) AS database_limit,
	(SELECT extract(epoch FROM now() - min(xact_start)) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend') AS oldest_transaction,
	(SELECT count(*) FROM pg_replication_slots WHERE NOT active) AS idle_slots,
	(SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c WHERE c.relnamespace = E'{{schema_literal}}'::regnamespace
		AND (c.relkind = 'r' AND NOT (has_table_privilege(c.oid, 'SELECT') AND (c.relname = 'meta'
				OR has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')))
			OR c.relkind = 'S' AND NOT (has_sequence_privilege(c.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT') AND has_sequence_privilege(c.oid, 'UPDATE')))) AS denied_tables,
	(SELECT count(*) FROM pg_proc p WHERE p.pronamespace = E'{{schema_literal}}'::regnamespace AND NOT has_function_privilege(p.oid, 'EXECUTE')) AS denied_functions
FROM (SELECT count(*), extract(epoch FROM max(replay_lag)) FROM pg_stat_replication) standby (s, lag)`

// askServer asks a server about itself, in one round trip. The search path has it find the server's own names, whatever the session says.
func askServer(ctx context.Context, c *pgconn.PgConn, n names) (serverSays, error) {
	results, err := c.Exec(ctx, n.expand("BEGIN READ ONLY; SET LOCAL search_path = pg_catalog, pg_temp; "+aboutSQL+"; COMMIT")).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		if len(r.FieldDescriptions) == 0 {
			continue
		}
		says := serverSays{}
		if len(r.Rows) == 1 {
			for i, f := range r.FieldDescriptions {
				says[f.Name] = string(r.Rows[0][i])
			}
		}
		if says["server_version"] != "" {
			return says, nil
		}
	}
	return nil, errors.New("the server did not answer with its settings")
}

// number reads a column, with -1 for one that the server does not show.
func (s serverSays) number(column string) float64 {
	n, err := strconv.ParseFloat(s[column], 64)
	if err != nil {
		return -1
	}
	return n
}

// Bounds of what is worth a warning.
const (
	shortStatement = 10 * time.Second // below, the pages of a scan of a busy server are ended
	shortLock      = time.Second
	shortIdle      = time.Minute
	longLag        = 10 * time.Second
	longOpen       = time.Hour
)

// warnings are about the server's settings and state, and each says what to change.
func (s serverSays) warnings() []string {
	var all []string
	add := func(when bool, format string, args ...any) {
		if when {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	// The unit of these settings is a millisecond.
	short := func(setting string, bound time.Duration) bool {
		n := s.number(setting)
		return n > 0 && n < float64(bound.Milliseconds())
	}
	add(s["fsync"] == "off", "fsync is off: a crash of the operating system can destroy the database. Turn it on.")
	add(s["full_page_writes"] == "off", "full_page_writes is off: a crash of the operating system can destroy pages. Turn it on.")
	add(s["autovacuum"] == "off", "autovacuum is off: the tables grow without end unless something else vacuums them. Turn it on.")
	add(s["standbys"] != "0" && s["standby_names"] == "", "The server has standbys and waits for none of them (synchronous_standby_names is empty): "+
		"a failover can lose transactions that were committed. Set synchronous_standby_names.")
	add(s["standbys"] == "0" && s["standby_names"] != "", "The server waits for synchronous standbys (synchronous_standby_names), and none is connected: commits hang. "+
		"Start a standby, or empty the setting.")
	add(s.number("standby_lag") > longLag.Seconds(), "A standby is %.0f s behind: a failover takes that much longer, and loses that much where it is not synchronous. "+
		"Find out what slows it.", s.number("standby_lag"))
	add(short("statement_timeout", shortStatement), "statement_timeout is %s ms: reads of many rows, and migrations, are ended by it. "+
		"Set it to 0 for this role (ALTER ROLE ... SET statement_timeout = 0), or to 10 s or more.", s["statement_timeout"])
	add(short("transaction_timeout", shortStatement), "transaction_timeout is %s ms: it ends the session of a call that takes longer. Set it to 0 for this role, or to 10 s or more.", s["transaction_timeout"])
	add(short("lock_timeout", shortLock), "lock_timeout is %s ms: calls fail while a table is locked as a whole, as by VACUUM FULL or a migration. Set it to 0 for this role, or to 1 s or more.", s["lock_timeout"])
	add(short("idle_in_transaction_session_timeout", shortLock), "idle_in_transaction_session_timeout is %s ms: a process that stalls for a moment loses its session within a call, and does not know the outcome. "+
		"Set it to a minute or so.", s["idle_in_transaction_session_timeout"])
	add(short("idle_session_timeout", shortIdle), "idle_session_timeout is %s ms: the connection for LISTEN and those of the pool are closed again and again, and workers are woken late. "+
		"Set it to 0 for this role.", s["idle_session_timeout"])
	add(s["read_only"] == "on", "default_transaction_read_only is on: writes fail. Turn it off for this role, or use the primary's address.")
	add(s.number("oldest_transaction") > longOpen.Seconds(), "A transaction in this database has been open for %.0f minutes: vacuum removes nothing that is newer. "+
		"Find it in pg_stat_activity and end it; idle_in_transaction_session_timeout prevents it.", s.number("oldest_transaction")/60)
	add(s.number("idle_slots") > 0, "%s replication slots are not in use: they keep the server's log until its disk is full. Drop them (pg_drop_replication_slot), or start what reads them.", s["idle_slots"])
	add(s["denied_tables"] != "", "The role may not use all tables and sequences of the schema (%s): calls fail. Grant SELECT, INSERT, UPDATE and DELETE on the tables, "+
		"and SELECT, USAGE and UPDATE on the sequences.", s["denied_tables"])
	add(s.number("denied_functions") > 0, "The role may not execute %s functions of the schema: calls fail. GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ... to it.", s["denied_functions"])
	return all
}

// connections are warnings about a pool that may want more connections than it gets.
func (s serverSays) connections(pool int) []string {
	for _, l := range []struct{ column, what string }{
		{"max_connections", "the server (max_connections, without those reserved)"},
		{"role_limit", "the role (ALTER ROLE ... CONNECTION LIMIT)"},
		{"database_limit", "the database (ALTER DATABASE ... CONNECTION LIMIT)"},
	} {
		limit := s.number(l.column)
		if limit >= 0 && float64(pool) > limit {
			return []string{fmt.Sprintf("The pool of this process may open %d connections, and %s has %.0f: calls fail under load. "+
				"Raise the limit, or lower pool_max_conns: together, the pools of all processes and two connections for each must fit.", pool, l.what, limit)}
		}
	}
	if most, now := s.number("max_connections"), s.number("connections"); most > 0 && now > most*0.8 {
		return []string{fmt.Sprintf("%.0f of %.0f connections are in use: the server refuses more soon. Raise max_connections, lower the processes' pool_max_conns, or use a pooler.", now, most)}
	}
	return nil
}
