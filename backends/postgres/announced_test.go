package postgres

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// warnings are those of a store's report, one to a line.
func warnings(ctx context.Context, t testing.TB, s rowstore.Store) string {
	t.Helper()
	r, ok := rowstore.Unwrap[rowstore.Reporter](s)
	require.True(t, ok)
	report, err := r.Report(ctx)
	require.NoError(t, err)
	return strings.Join(report.Warnings, "\n")
}

// hears listens, as another program would, on the channel of a store that is to be opened in a schema. The
// function that it returns waits until a notification of a table has arrived there, and
// fails if an announcement of the store has failed.
func hears(ctx context.Context, t testing.TB, dsn, schema string) func(s rowstore.Store, table string) {
	t.Helper()
	conn := connect(ctx, t, dsn)
	require.NoError(t, exec(ctx, conn, "LISTEN "+pgx.Identifier{newNames(schema).channel}.Sanitize()))
	return func(s rowstore.Store, table string) {
		t.Helper()
		for {
			waiting, cancel := context.WithTimeout(ctx, 10*testTick)
			n, err := conn.WaitForNotification(waiting)
			late := waiting.Err() != nil
			cancel()
			require.NotContains(t, warnings(ctx, t, s), "NOTIFY", "an announcement failed")
			require.NoError(t, ctx.Err(), "nothing was announced")
			if late {
				continue
			}
			require.NoError(t, err)
			if told, _ := (&pusher{}).parse(n.Payload); told.Table == table {
				return
			}
		}
	}
}

// elsewhere is a connection that ends on another machine, by its own account.
type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5432} }

// withTLS takes connections that ask for TLS, as a server that has a certificate does, and hands on what
// they say to a server that has none. It returns its address.
func withTLS(t testing.TB, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, MinVersion: tls.VersionTLS12}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serveTLS(c, config, server) })
		}
	})
	atend.Do(t, func() { // when the clients have closed their connections
		require.NoError(t, l.Close())
		serving.Wait()
	})
	return l.Addr().String()
}

func serveTLS(c net.Conn, config *tls.Config, server string) {
	defer func() { _ = c.Close() }()
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil { // the request for TLS
		return
	}
	if _, err := c.Write([]byte("S")); err != nil {
		return
	}
	behind, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = behind.Close() }()
	inner := tls.Server(c, config)
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(behind, inner)
		_ = behind.Close()
	})
	_, _ = io.Copy(inner, behind)
	_ = c.Close()
	up.Wait()
}

// What goes to another machine in plain text is reported: sslmode=prefer, which is the default of
// the server's own clients, falls back to that.
func TestPlainTextToAnotherMachine(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, tc := range map[string]struct {
		sslmode    string
		tls, there bool
		warned     bool
	}{
		"plain":              {"disable", false, true, true},
		"fallen back":        {"prefer", false, true, true},
		"plain, to itself":   {"disable", false, false, false},
		"encrypted":          {"require", true, true, false},
		"encrypted, at will": {"prefer", true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			u, err := url.Parse(direct)
			require.NoError(t, err)
			if tc.tls {
				u.Host = withTLS(t, u.Host)
			}
			q := u.Query()
			q.Set("sslmode", tc.sslmode)
			u.RawQuery = q.Encode()
			cfg, err := pgxpool.ParseConfig(u.String())
			require.NoError(t, err)
			cfg.ConnConfig.OnNotice = OnNotice
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if err == nil && tc.there {
					c = elsewhere{c}
				}
				return c, err
			}
			pool, err := pgxpool.NewWithConfig(ctx, cfg)
			require.NoError(t, err)
			defer pool.Close()
			s, err := New(ctx, pool, Options{Schema: fresh(t, direct)})
			require.NoError(t, err)
			all := warnings(ctx, t, s)
			require.Equal(t, tc.warned, strings.Contains(all, "plain text"), all)
			require.NoError(t, s.Close())

			// The same of the connection that listens, beside a pool that goes to this machine, to a pooler say.
			s = openTest(t, with(direct, "schema", fresh(t, direct), "listen", u.String()))
			s.plain.listen.DialFunc = cfg.ConnConfig.DialFunc
			require.NotContains(t, warnings(ctx, t, s), "plain text", "nobody has listened")
			listening, stop := context.WithCancel(ctx)
			defer stop()
			w, _ := rowstore.Unwrap[rowstore.Waker](s)
			require.ErrorIs(t, w.Listen(listening, func(rowstore.Wake) { stop() }), context.Canceled)
			all = warnings(ctx, t, s)
			require.Equal(t, tc.warned, strings.Contains(all, "listens to notifications was plain text"), all)
		})
	}
}

// fullByLimit fills a server's queue of notifications up to its limit, which has been a setting
// since version 17. Before, it was 8 GiB, and that takes minutes to write.
func fullByLimit(ctx context.Context, t *testing.T) (dsn string, room func()) {
	t.Helper()
	version, err := strconv.Atoi(sqlDo(t, testserver.Postgres(t), "SHOW server_version_num"))
	require.NoError(t, err)
	if version < 170000 {
		t.Skipf("a server before version 17 has a queue of 8 GiB, and this is %d", version)
	}
	server := testserver.NewPostgres(t, map[string]string{"max_notify_queue_pages": "64"})
	lagging := fillQueue(ctx, t, server.URL, "54000")
	return server.URL, func() { require.NoError(t, exec(ctx, lagging, "ROLLBACK")) }
}

// fullByDisk fills the disk that a server's queue of notifications lies on.
func fullByDisk(ctx context.Context, t *testing.T) (dsn string, room func()) {
	t.Helper()
	server := testserver.NewPostgres(t, nil)
	if server.SmallDisk == "" {
		t.Skip("only a server in a container has a small disk")
	}
	shell := func(command string) { sqlDo(t, server.URL, "COPY (SELECT) TO PROGRAM "+literal(command)) }
	there := server.SmallDisk + "/notify"
	shell("mkdir " + there + " && dd if=/dev/zero of=" + server.SmallDisk + "/filler bs=1M count=12 && rm -r pg_notify && ln -s " + there + " pg_notify")
	lagging := fillQueue(ctx, t, server.URL, diskFull)
	return server.URL, func() {
		shell("rm " + server.SmallDisk + "/filler")
		require.NoError(t, exec(ctx, lagging, "ROLLBACK"))
	}
}

// fillQueue notifies until the server refuses that with an error of a code, while somebody listens who is
// in the middle of a transaction, and returns that connection.
func fillQueue(ctx context.Context, t *testing.T, dsn, code string) (lagging *pgx.Conn) {
	t.Helper()
	lagging = connect(ctx, t, dsn)
	require.NoError(t, exec(ctx, lagging, "LISTEN lag"))
	require.NoError(t, exec(ctx, lagging, "BEGIN"))
	filling := connect(ctx, t, dsn)
	// The first payload takes more than half a page of the queue, so that there is one to a page. The second
	// takes less than what the store announces, and fills the last page.
	for i, payload := 0, 4200; ; i++ {
		require.Less(t, i, 10_000, "the queue does not fill")
		err := exec(ctx, filling, fmt.Sprintf("SELECT pg_notify('lag', '%d' || repeat('x', %d))", i, payload))
		if err == nil {
			continue
		}
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, code, pg.Code, "%v", err)
		if payload == 1 {
			return lagging
		}
		payload = 1
	}
}

// A server that has no room for notifications fails no transaction. What could not be announced is
// reported, and announced once there is room.
func TestNoRoomForNotifications(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]func(context.Context, *testing.T) (string, func()){"Limit": fullByLimit, "Disk": fullByDisk} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			direct, room := full(ctx, t)
			s := openTest(t, with(direct, "schema", "full", "coalesce", "off"))
			for i := range 5 {
				out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: fmt.Sprint(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}},
					rowstore.ApplyOptions{})
				require.NoError(t, err)
				require.True(t, out[0].Applied)
			}
			require.Eventually(t, func() bool { return strings.Contains(warnings(ctx, t, s), "NOTIFY") }, testWait, testTick)
			conn := connect(ctx, t, direct)
			room()
			require.NoError(t, exec(ctx, conn, "LISTEN "+pgx.Identifier{newNames("full").channel}.Sanitize()))
			// What failed may have been announced again before this one listened, but not this.
			out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, out[0].Applied)
			n, err := conn.WaitForNotification(ctx)
			require.NoError(t, err)
			told, _ := (&pusher{}).parse(n.Payload)
			require.Equal(t, "t", told.Table)
		})
	}
}
