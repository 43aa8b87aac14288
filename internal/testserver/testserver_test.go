package testserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// redis sends inline commands on one connection and returns the first line of each
// answer.
func redis(t *testing.T, s *testserver.Server, commands ...string) []string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), 5*time.Second)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	in := bufio.NewReader(conn)
	var answers []string
	for _, c := range commands {
		_, err := fmt.Fprintf(conn, "%s\r\n", c)
		require.NoError(t, err)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "$") && line != "$-1" {
			line, err = in.ReadString('\n')
			require.NoError(t, err)
			line = strings.TrimSpace(line)
		}
		answers = append(answers, line)
	}
	return answers
}

func TestSharedServerIsOne(t *testing.T) {
	t.Parallel()
	require.Equal(t, testserver.Redis(t), testserver.Redis(t))
	require.Equal(t, testserver.Postgres(t), testserver.Postgres(t))
}

func TestRedisOverStopAndKill(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t, map[string]string{"appendfsync": "always"})
	require.Equal(t, []string{"+OK", "1"}, redis(t, s, "SET a 1", "GET a"))

	require.NoError(t, s.Kill())
	_, err := net.DialTimeout("tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), time.Second)
	require.Error(t, err, "a killed server still listens")
	require.NoError(t, s.Start())
	require.Equal(t, []string{"1", "+OK"}, redis(t, s, "GET a", "SET a 2"))

	require.NoError(t, s.Stop())
	require.NoError(t, s.Start())
	require.Equal(t, []string{"2"}, redis(t, s, "GET a"))
	require.Error(t, s.Start(), "start of a server that runs")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Error(t, s.Start(), "start of a closed server")
}

// TestServerSeesTheTestsFiles lets a Redis listen at a path that the test chose, as
// certificates are read from one.
func TestServerSeesTheTestsFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redis.sock")
	testserver.NewRedis(t, map[string]string{"unixsocket": path, "unixsocketperm": "777"})
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestPauseFreezes(t *testing.T) {
	t.Parallel()
	s := testserver.NewRedis(t, nil)
	require.NoError(t, s.Pause())
	conn, err := net.Dial("tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	require.NoError(t, err, "a paused server's kernel still accepts")
	defer conn.Close()
	_, err = fmt.Fprint(conn, "PING\r\n")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	answer := make([]byte, 16)
	_, err = conn.Read(answer)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, s.Resume())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	n, err := conn.Read(answer)
	require.NoError(t, err)
	require.Equal(t, "+PONG\r\n", string(answer[:n]))
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := testserver.NewRedisCluster(t, nil)
	moved := 0
	for _, s := range c.Nodes {
		answer := redis(t, s, "SET a 1")[0]
		if strings.HasPrefix(answer, "-MOVED") {
			moved++
		} else {
			require.Equal(t, "+OK", answer)
		}
	}
	require.Equal(t, 2, moved, "one of the three nodes owns the slot")
}

// sql runs statements one after another, without preparing them, and returns the
// first column of the last one's first row, "" where there is none.
func sql(ctx context.Context, url string, statements ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, statement := range statements {
		rows, err := conn.Query(ctx, statement, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return "", err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[any])
		if err != nil {
			return "", err
		}
		out = ""
		if len(all) > 0 {
			out = fmt.Sprint(all[0])
		}
	}
	return out, nil
}

func TestPostgresOverStopKillAndCrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := testserver.NewPostgres(t, map[string]string{"max_connections": "20"})
	query := func(statement string) string {
		out, err := sql(ctx, s.URL, statement)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, "20", query("show max_connections"))
	query("create table a (n int)")
	query("insert into a values (1)")

	require.NoError(t, s.Kill())
	_, err := sql(ctx, s.URL, "select 1")
	require.Error(t, err, "a killed server still answers")
	require.NoError(t, s.Start())
	require.Equal(t, "1", query("select n from a"))

	require.NoError(t, s.Stop())
	require.NoError(t, s.Start())
	started := query("select pg_postmaster_start_time()")
	query("create unlogged table u as select 1 n")
	require.NoError(t, s.CrashBackend())
	require.Eventually(t, func() bool {
		out, err := sql(ctx, s.URL, "select count(*) from u")
		return err == nil && out == "0"
	}, 60*time.Second, 20*time.Millisecond, "crash recovery empties an unlogged table")
	require.Equal(t, started, query("select pg_postmaster_start_time()"), "the server itself went on")

	wrong := strings.Replace(s.URL, testserver.PostgresPassword, "wrong", 1)
	_, err = sql(ctx, wrong, "select 1")
	require.ErrorContains(t, err, "password authentication failed")
}

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	testserver.Postgres(t)
	b := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{})
	out, err := sql(t.Context(), b.URL, "select 41+1")
	require.NoError(t, err)
	require.Equal(t, "42", out)
	console := strings.Replace(b.URL, "/postgres?", "/pgbouncer?", 1)
	_, err = sql(t.Context(), console, "show pools")
	require.Error(t, err, "no console without admin_users")
	require.NoError(t, b.Pause())
	soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = sql(soon, b.URL, "select 1")
	// The dialer has the same deadline, and may be the first to say so.
	require.True(t, pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded), "a paused server answers: %v", err)
	require.NoError(t, b.Close(), "close of a paused server")
}

// TestServerDiesWithTheTest runs this test binary again, lets it start a server and
// kills it: the watchdog must end the server and remove its directory.
func TestServerDiesWithTheTest(t *testing.T) {
	if os.Getenv("TESTSERVER_CHILD") != "" {
		s := testserver.NewPostgres(t, nil)
		fmt.Printf("SERVER %d %q\n", s.Port, s.Dir)
		select {} // until the parent kills this process
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheTest$", "-test.v")
	cmd.Env = append(os.Environ(), "TESTSERVER_CHILD=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var port int
	var dir string
	lines := bufio.NewScanner(out)
	for port == 0 && lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "SERVER %d %q", &port, &dir)
	}
	require.NotZero(t, port, "the child started no server")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		left, _ := filepath.Glob(dir)
		return err != nil && len(left) == 0
	}, 60*time.Second, 20*time.Millisecond)
}

func TestUnknownSettingIsExplained(t *testing.T) {
	t.Parallel()
	_, err := testserver.StartRedis(map[string]string{"no-such-setting": "1"})
	require.ErrorContains(t, err, "no-such-setting", "the server's own words")
	require.ErrorContains(t, err, "apt-get install redis-server")
}
