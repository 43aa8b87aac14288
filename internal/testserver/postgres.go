package testserver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PostgresPassword is the password of the superuser "postgres" of the servers
// that this package starts. They ask for it (scram-sha-256), so that tests of
// wrong passwords mean something.
const PostgresPassword = "percolator-test"

// postgresSecret is what the servers keep of PostgresPassword, for scram-sha-256. It tells
// clients to hash the password once. The usual 4096 times cost a client under the race detector
// more than all else that it does to connect, and tests connect thousands of times.
var postgresSecret = secretHashedOnce(PostgresPassword)

// secretHashedOnce returns what Postgres and PgBouncer store of a password. The salt is always
// the same: these passwords protect nothing.
func secretHashedOnce(password string) string {
	sign := func(key []byte, message string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(message))
		return m.Sum(nil)
	}
	const salt = "percolator tests"
	salted := sign([]byte(password), salt+"\x00\x00\x00\x01") // PBKDF2 of one round and one block
	stored := sha256.Sum256(sign(salted, "Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$1:%s$%s:%s", encode([]byte(salt)), encode(stored[:]), encode(sign(salted, "Server Key")))
}

var sharedPostgres shared

// Postgres returns the URL of a Postgres for this test package,
// postgres://postgres:...@127.0.0.1:PORT/postgres?sslmode=disable, started on
// first use. Tests keep apart by schema. Commits are not flushed to the disk
// (fsync=off), which only a crash of the operating system could tell. It fails
// the test if no server can be had.
func Postgres(t testing.TB) string {
	t.Helper()
	return sharedPostgres.get(t, "postgres", "PERCOLATOR_TEST_POSTGRES", StartPostgres).URL
}

// NewPostgres starts a Postgres for one test and closes it at the test's end.
// settings are lines of postgresql.conf by name; they override
//
//	fsync off, max_connections 300, shared_buffers 64MB
//
// It fails the test if no server can be had.
func NewPostgres(t testing.TB, settings map[string]string) *Server {
	t.Helper()
	s, err := StartPostgres(settings)
	if err != nil {
		t.Fatal(err)
	}
	return s.closeWith(t)
}

// StartPostgres is NewPostgres for programs without a testing.TB. The caller
// closes the server.
func StartPostgres(settings map[string]string) (*Server, error) {
	return firstThatWorks("postgres", containerPostgres(settings), localPostgres(settings))
}

// debianPostgres is where Debian and its descendants keep the server's programs,
// by version; they are not on the PATH.
const debianPostgres = "/usr/lib/postgresql/*/bin"

// postgresScript makes the database on the first start of a container and then
// becomes the server. It suits the official image and ours: in both the account
// postgres exists and the programs are where Debian has them, or on the PATH. Ours has
// a database (scripts/images) that only needs its password.
const postgresScript = `
set -e
for dir in /usr/lib/postgresql/*/bin; do PATH=$dir:$PATH; done
if [ -s /var/tmp/data/PG_VERSION ]; then
	:
elif [ -f /var/lib/percolate-test/data.tar ]; then
	rm -rf /var/tmp/new && mkdir /var/tmp/new
	tar -C /var/tmp/new -xf /var/lib/percolate-test/data.tar
	said=$(echo "ALTER ROLE postgres PASSWORD '$PERCOLATOR_PASSWORD'" | postgres --single -D /var/tmp/new/data -c fsync=off postgres 2>&1)
	case $said in *ERROR* | *FATAL* | *PANIC*)
		echo "$said" >&2
		exit 1
		;;
	esac
	mv /var/tmp/new/data /var/tmp/data
else
	printf '%s\n' "$PERCOLATOR_PASSWORD" >/var/tmp/password
	initdb -D /var/tmp/data -U postgres --no-sync --no-locale --encoding=UTF8 --auth=scram-sha-256 --pwfile=/var/tmp/password
fi
exec postgres "$@"
`

func containerPostgres(settings map[string]string) func() (*Server, error) {
	return func() (*Server, error) {
		image, err := findImage(postgresImages())
		if err != nil {
			return nil, err
		}
		return onFreePorts(1, func(ports []int) (*Server, error) {
			args := postgresArgs(ports[0], "127.0.0.1", boxDir+"/data", boxDir, settings)
			d := &box{
				image: image, user: "postgres", tree: true, ending: "SIGINT",
				env:     map[string]string{"PERCOLATOR_PASSWORD": postgresSecret},
				command: append([]string{"/bin/sh", "-c", postgresScript, "sh"}, args...),
				ready:   func(ctx context.Context) error { return pingPostgres(ctx, ports[0]) },
			}
			s := &Server{
				URL:  postgresURL(ports[0]),
				Host: "127.0.0.1", Port: ports[0], From: "container of " + image, SmallDisk: smallDisk, driver: d,
			}
			return s, startOrClose(d)
		})
	}
}

func localPostgres(settings map[string]string) func() (*Server, error) {
	return func() (*Server, error) {
		program, err := lookProgram("postgres", debianPostgres)
		if err != nil {
			return nil, err
		}
		initdb, err := lookProgram("initdb", debianPostgres)
		if err != nil {
			return nil, err
		}
		account, err := unprivileged()
		if err != nil {
			return nil, err
		}
		dir, err := tempDir("postgres", account)
		if err != nil {
			return nil, err
		}
		if err := initPostgres(initdb, dir, account); err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		s, err := onFreePorts(1, func(ports []int) (*Server, error) {
			d := &local{
				program: program, dir: dir, account: account, ending: syscall.SIGINT, tree: true,
				args:  postgresArgs(ports[0], "127.0.0.1", filepath.Join(dir, "data"), dir, settings),
				ready: func(ctx context.Context) error { return pingPostgres(ctx, ports[0]) },
			}
			s := &Server{
				URL:  postgresURL(ports[0]),
				Host: "127.0.0.1", Port: ports[0], Dir: dir, From: "process " + program, driver: d,
			}
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			defer cancel()
			return s, d.start(ctx)
		})
		if err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		return s, nil
	}
}

func postgresURL(port int) string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", PostgresPassword, port)
}

func initPostgres(initdb, dir string, account *syscall.Credential) error {
	secret := filepath.Join(dir, "password")
	if err := writeFor(account, secret, postgresSecret+"\n"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, initdb, "-D", filepath.Join(dir, "data"), "-U", "postgres", "--no-sync",
		"--no-locale", "--encoding=UTF8", "--auth=scram-sha-256", "--pwfile="+secret)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", initdb, err, out)
	}
	return nil
}

// postgresArgs is the command line of a Postgres: defaults, then the caller's
// settings.
func postgresArgs(port int, listen, data, socketDir string, settings map[string]string) []string {
	all := map[string]string{
		"fsync": "off", "max_connections": "300", "shared_buffers": "64MB",
	}
	maps.Copy(all, settings)
	maps.Copy(all, map[string]string{
		"port": strconv.Itoa(port), "listen_addresses": listen, "unix_socket_directories": socketDir,
	})
	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// pingPostgres returns nil when the server takes connections. It speaks the first
// message of the protocol: while the server starts or recovers it answers that
// with an error (E), afterwards with a demand for a password (R).
func pingPostgres(ctx context.Context, port int) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	const body = "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
	if _, err := conn.Write(append([]byte{0, 0, 0, byte(len(body) + 4)}, body...)); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if answer[0] != 'R' {
		return fmt.Errorf("the server answers %q", answer[:n])
	}
	return nil
}

// PgBouncerOptions says how a PgBouncer differs from the default.
type PgBouncerOptions struct {
	// PoolMode is "transaction" (the default, also for ""), "session" or "statement".
	PoolMode string
	// Settings are further lines of the section [pgbouncer] of its configuration.
	Settings map[string]string
}

// NewPgBouncer starts a PgBouncer in front of a Postgres that this package started
// and closes it at the test's end. Its URL has the same user, password and
// database. It fails the test if no PgBouncer can be had.
func NewPgBouncer(t testing.TB, behind *Server, o PgBouncerOptions) *Server {
	t.Helper()
	s, err := firstThatWorks("pgbouncer", containerPgBouncer(behind, o), localPgBouncer(behind, o))
	if err != nil {
		t.Fatal(err)
	}
	return s.closeWith(t)
}

// SharedPostgres is the server whose URL Postgres returns, for NewPgBouncer. Tests
// must not stop it.
func SharedPostgres(t testing.TB) *Server {
	t.Helper()
	Postgres(t)
	return sharedPostgres.server
}

// IsSharedPostgres tells whether a URL is that of the server which Postgres has started for this
// package: no test stops it, so connections to it may be kept.
func IsSharedPostgres(url string) bool {
	packageServers.Lock()
	defer packageServers.Unlock()
	for _, s := range packageServers.all {
		if s.URL == url {
			return true
		}
	}
	return false
}

// pgBouncerFiles are the configuration and the list of users of a PgBouncer whose
// files lie in dir.
func pgBouncerFiles(t target, o PgBouncerOptions, port int, dir string) (ini, users string) {
	all := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(port), "unix_socket_dir": dir,
		"auth_type": "scram-sha-256", "auth_file": filepath.Join(dir, "users.txt"),
		"pool_mode": "transaction", "max_client_conn": "500", "default_pool_size": "40",
		"ignore_startup_parameters": "extra_float_digits",
	}
	if o.PoolMode != "" {
		all["pool_mode"] = o.PoolMode
	}
	maps.Copy(all, o.Settings)
	var b strings.Builder
	fmt.Fprintf(&b, "[databases]\n%s = host=%s port=%s dbname=%[1]s\n\n[pgbouncer]\n", t.database, t.host, t.port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = %s\n", name, all[name])
	}
	return b.String(), fmt.Sprintf("%q %q\n", t.user, t.secret)
}

const pgBouncerScript = `
umask 077
printf '%s' "$PERCOLATOR_INI" >/var/tmp/pgbouncer.ini
printf '%s' "$PERCOLATOR_USERS" >/var/tmp/users.txt
PATH=$PATH:/usr/sbin
exec pgbouncer /var/tmp/pgbouncer.ini
`

func containerPgBouncer(behind *Server, o PgBouncerOptions) func() (*Server, error) {
	return func() (*Server, error) {
		image, err := findImage(pgBouncerImages())
		if err != nil {
			return nil, err
		}
		target, err := parsePostgres(behind)
		if err != nil {
			return nil, err
		}
		return onFreePorts(1, func(ports []int) (*Server, error) {
			ini, users := pgBouncerFiles(target, o, ports[0], boxDir)
			d := &box{
				image: image, user: "postgres", ending: "SIGINT",
				env:     map[string]string{"PERCOLATOR_INI": ini, "PERCOLATOR_USERS": users},
				command: []string{"/bin/sh", "-c", pgBouncerScript},
				ready:   func(ctx context.Context) error { return pingPostgres(ctx, ports[0]) },
			}
			s := &Server{
				URL:  target.through(ports[0]),
				Host: "127.0.0.1", Port: ports[0], From: "container of " + image, driver: d,
			}
			return s, startOrClose(d)
		})
	}
}

func localPgBouncer(behind *Server, o PgBouncerOptions) func() (*Server, error) {
	return func() (*Server, error) {
		program, err := lookProgram("pgbouncer", "/usr/sbin", "/usr/local/sbin")
		if err != nil {
			return nil, err
		}
		account, err := unprivileged()
		if err != nil {
			return nil, err
		}
		target, err := parsePostgres(behind)
		if err != nil {
			return nil, err
		}
		return onFreePorts(1, func(ports []int) (*Server, error) {
			dir, err := tempDir("pgbouncer", account)
			if err != nil {
				return nil, err
			}
			ini, users := pgBouncerFiles(target, o, ports[0], dir)
			for name, text := range map[string]string{"pgbouncer.ini": ini, "users.txt": users} {
				if err := writeFor(account, filepath.Join(dir, name), text); err != nil {
					return nil, err
				}
			}
			d := &local{
				program: program, args: []string{filepath.Join(dir, "pgbouncer.ini")}, dir: dir, account: account,
				ending: syscall.SIGINT,
				ready:  func(ctx context.Context) error { return pingPostgres(ctx, ports[0]) },
			}
			s := &Server{
				URL:  target.through(ports[0]),
				Host: "127.0.0.1", Port: ports[0], Dir: dir, From: "process " + program, driver: d,
			}
			return s, startOrClose(d)
		})
	}
}

// writeFor writes a file that only the account can read, nil for the caller's own.
func writeFor(account *syscall.Credential, path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil || account == nil {
		return err
	}
	return os.Chown(path, int(account.Uid), int(account.Gid))
}
