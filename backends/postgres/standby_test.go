package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// becomeStandby makes a server one. The data of a server in a container cannot be reached, so the server writes the file.
func becomeStandby(t *testing.T, server *testserver.Server) {
	t.Helper()
	sqlDo(t, server.URL, "DO $$ BEGIN EXECUTE format('COPY (SELECT 1 WHERE false) TO PROGRAM %L', 'cat > '||current_setting('data_directory')||'/standby.signal'); END $$")
	require.NoError(t, server.Stop())
	require.NoError(t, server.Start())
}

func hostOf(t *testing.T, server *testserver.Server) string {
	t.Helper()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	return u.Host
}

// An address that leads to a standby for a moment, as a name or a balancer may during a failover, makes calls fail for that moment alone: no
// connection to the standby stays in the pool. A connection that listens goes on to the next host.
func TestAddressThatLedToAStandby(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	primary, standby := testserver.NewPostgres(t, nil), testserver.NewPostgres(t, nil)
	openTest(t, with(primary.URL, "schema", "vip"))
	openTest(t, with(standby.URL, "schema", "vip"))
	becomeStandby(t, standby)

	// A pool whose address leads to where target says.
	var target atomic.Pointer[string]
	lead := func(to *testserver.Server) {
		host := hostOf(t, to)
		target.Store(&host)
	}
	pool := func(change func(*pgxpool.Config)) *pgxpool.Pool {
		return ownPool(t, primary.URL, func(cfg *pgxpool.Config) {
			change(cfg)
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, *target.Load())
			}
		})
	}
	own := func(cfg *pgxpool.Config) {
		a, _, err := splitURL(primary.URL)
		require.NoError(t, err)
		made, err := poolConfig(a)
		require.NoError(t, err)
		cfg.ConnConfig.ValidateConnect = made.ConnConfig.ValidateConnect
	}
	write := func(s *Store) error {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
		return err
	}
	for name, change := range map[string]func(*pgxpool.Config){"own": own, "program's": func(*pgxpool.Config) {}} {
		lead(primary)
		s, err := open(ctx, pool(change), Options{Schema: "vip", NoCoalesce: true}, false, false)
		require.NoError(t, err)
		require.NoError(t, write(s))
		lead(standby)
		s.plain.pool.Reset() // the connections to the primary have ended
		err = write(s)
		require.ErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.ErrorContains(t, err, errStandby.Error())
		_, err = New(ctx, s.plain.pool, Options{Schema: "vip"})
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		require.ErrorContains(t, err, errStandby.Error())
		lead(primary)
		require.NoError(t, write(s), name)
		require.NoError(t, s.Close())
	}
	listensBehind(ctx, t, standby, primary)
}

// listensBehind requires that a store hears what others notify, on a connection whose address names a standby first.
func listensBehind(ctx context.Context, t *testing.T, standby, primary *testserver.Server) {
	t.Helper()
	listen := strings.Replace(primary.URL, hostOf(t, primary), hostOf(t, standby)+","+hostOf(t, primary), 1)
	e := earOf(ctx, t, openTest(t, with(primary.URL, "schema", "vip", "listen", listen)))
	e.hearOf(map[uint16]bool{notifies(ctx, t, openTest(t, with(primary.URL, "schema", "vip")), "r"): true})
}

// Sessions that were opened while the default forbade writes are not used on when it allows them again.
func TestSessionsOfAReadOnlyTime(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	openTest(t, with(direct, "schema", schema))
	for _, owned := range []bool{true, false} {
		role := fmt.Sprintf("reader%d", schemas.Add(1))
		defer sqlDo(t, direct, "DROP ROLE "+role)
		sqlDo(t, direct, "CREATE ROLE "+role+" SUPERUSER LOGIN PASSWORD "+literal(testserver.PostgresPassword))
		sqlDo(t, direct, "ALTER ROLE "+role+" SET default_transaction_read_only = on")
		dsn := strings.Replace(direct, "postgres:"+testserver.PostgresPassword, role+":"+testserver.PostgresPassword, 1)
		var s *Store
		var err error
		if owned {
			s, err = OpenURL(ctx, with(dsn, "schema", schema))
		} else {
			s, err = New(ctx, ownPool(t, dsn, nil), Options{Schema: schema})
		}
		require.NoError(t, err)
		sessions := 1
		if owned {
			sessions = 3 // all of them are made anew at once
		}
		var held []*pgxpool.Conn
		for range sessions {
			c, err := s.plain.pool.Acquire(ctx)
			require.NoError(t, err)
			held = append(held, c)
		}
		for _, c := range held {
			c.Release()
		}
		write := func() error {
			_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
			return err
		}
		sqlDo(t, direct, "ALTER ROLE "+role+" RESET default_transaction_read_only")
		err = write()
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		require.ErrorIs(t, err, errReadOnly)
		require.NoError(t, write(), "in a pool of the store's own: %v", owned)
		require.NoError(t, s.Close())
		s.plain.pool.Close() // before the role goes
	}
}
