package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

// TestServerWarnings gives each answer that is worth a warning. Right says nothing.
func TestServerWarnings(t *testing.T) {
	t.Parallel()
	right := serverSays{
		"server_version": "17", "fsync": "on", "full_page_writes": "on", "autovacuum": "on", "standby_names": "s", "standbys": "1", "standby_lag": "0.1",
		"statement_timeout": "0", "lock_timeout": "0", "transaction_timeout": "", "idle_in_transaction_session_timeout": "60000", "idle_session_timeout": "0",
		"read_only": "off", "max_connections": "97", "connections": "10", "role_limit": "", "database_limit": "", "oldest_transaction": "", "idle_slots": "0",
		"denied_tables": "", "denied_functions": "0",
	}
	require.Empty(t, right.warnings())
	require.Empty(t, right.connections(16))
	for column, c := range map[string]struct{ value, words, change string }{
		"fsync":                               {"off", "fsync is off", "Turn it on"},
		"full_page_writes":                    {"off", "full_page_writes", "Turn it on"},
		"autovacuum":                          {"off", "grow without end", "Turn it on"},
		"standby_names":                       {"", "waits for none of them", "Set synchronous_standby_names"},
		"standbys":                            {"0", "none is connected: commits hang", "Start a standby"},
		"standby_lag":                         {"70.4", "70 s behind", "Find out"},
		"statement_timeout":                   {"200", "statement_timeout is 200 ms", "ALTER ROLE"},
		"transaction_timeout":                 {"200", "transaction_timeout is 200 ms", "Set it to 0"},
		"lock_timeout":                        {"10", "lock_timeout is 10 ms", "Set it to 0"},
		"idle_in_transaction_session_timeout": {"10", "loses its session", "Set it to a minute"},
		"idle_session_timeout":                {"1000", "woken late", "Set it to 0"},
		"read_only":                           {"on", "writes fail", "Turn it off"},
		"oldest_transaction":                  {"7200.5", "open for 120 minutes", "end it"},
		"idle_slots":                          {"2", "2 replication slots", "Drop them"},
		"denied_tables":                       {"cell", "(cell)", "Grant SELECT"},
		"denied_functions":                    {"3", "execute 3 functions", "GRANT EXECUTE"},
		"max_connections":                     {"15", "may open 16 connections, and the server", "Raise the limit"},
		"role_limit":                          {"5", "the role", "Raise the limit"},
		"database_limit":                      {"5", "the database", "Raise the limit"},
		"connections":                         {"96", "96 of 97 connections", "Raise max_connections"},
	} {
		wrong := serverSays{}
		for k, v := range right {
			wrong[k] = v
		}
		wrong[column] = c.value
		all := append(wrong.warnings(), wrong.connections(16)...)
		require.Len(t, all, 1, column)
		require.Contains(t, all[0], c.words)
		require.Contains(t, all[0], c.change)
	}
}

// asked returns a connection to a server, and what asks the server about itself over it.
func asked(t *testing.T) (*pgxpool.Conn, func() serverSays) {
	t.Helper()
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct)))
	c, err := s.plain.pool.Acquire(t.Context())
	require.NoError(t, err)
	return c, func() serverSays {
		says, err := askServer(t.Context(), c.Conn().PgConn(), s.plain.names)
		require.NoError(t, err)
		return says
	}
}

// TestServerIsAskedForAll shows that a server knows every column.
func TestServerIsAskedForAll(t *testing.T) {
	t.Parallel()
	c, ask := asked(t)
	defer c.Release()
	says := ask()
	require.Len(t, says, strings.Count(aboutSQL, " AS "))
	for _, column := range []string{"server_version", "fsync", "max_connections", "connections", "statement_timeout", "idle_session_timeout"} {
		require.NotEmpty(t, says[column], column)
	}
	require.Equal(t, "0", says["denied_functions"])
}

// TestTimeoutsAreInMilliseconds sets timeouts in every unit that the server has.
func TestTimeoutsAreInMilliseconds(t *testing.T) {
	t.Parallel()
	c, ask := asked(t)
	defer c.Release()
	for set, want := range map[string]string{"0": "0", "1": "1", "1500us": "2", "90s": "90000", "100min": "6000000", "36h": "129600000", "24d": "2073600000", "1d": "86400000"} {
		for _, style := range []string{"postgres", "sql_standard", "iso_8601"} {
			_, err := c.Exec(t.Context(), "SET intervalstyle = "+style)
			require.NoError(t, err)
			timeouts := []string{"lock_timeout"}
			if len(want) > 1 || want == "0" { // one of a few milliseconds would end the session
				timeouts = append(timeouts, "statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
			}
			for _, timeout := range timeouts {
				_, err := c.Exec(t.Context(), "SELECT pg_catalog.set_config($1, $2, false)", timeout, set)
				require.NoError(t, err)
			}
			says := ask()
			for _, timeout := range timeouts {
				require.Equal(t, want, says[timeout], "%s = %s, %s", timeout, set, style)
			}
		}
	}
	_, err := c.Exec(t.Context(), "DISCARD ALL") // the connection goes back to the pool
	require.NoError(t, err)
}
