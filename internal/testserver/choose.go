package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// hint ends every failure to get a server.
const hint = `To run the tests that need a server, do one of these:
  - make test: as root on Debian it installs what is missing
  - apt-get install redis-server postgresql pgbouncer (or your system's packages; the servers need not run)
  - name servers of your own: PERCOLATOR_TEST_REDIS=redis://HOST:PORT/0, PERCOLATOR_TEST_POSTGRES=postgres://USER:PASSWORD@HOST:PORT/DB`

// firstThatWorks runs a server in a container, or as a process where that fails,
// and returns an error that names both reasons if neither works.
func firstThatWorks(kind string, inContainer, asProcess func() (*Server, error)) (*Server, error) {
	if os.Getenv("PERCOLATOR_TEST_SERVERS") == "containers" {
		asProcess = func() (*Server, error) {
			return nil, errors.New("processes: not asked for (PERCOLATOR_TEST_SERVERS=containers)")
		}
	}
	var errs []error
	for _, way := range []func() (*Server, error){inContainer, asProcess} {
		s, err := way()
		if err == nil {
			Ran(kind, s.From)
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("testserver: no way to run %s:\n%w\n%s", kind, errors.Join(errs...), hint)
}

// onFreePorts runs start with n free ports, and again with others when that
// fails: another process may have taken a port in between.
func onFreePorts(n int, start func(ports []int) (*Server, error)) (*Server, error) {
	var errs []error
	for range 3 {
		ports, err := freePorts(n)
		if err != nil {
			return nil, err
		}
		s, err := start(ports)
		if err == nil {
			return s, nil
		}
		if errs = append(errs, err); !strings.Contains(err.Error(), "ddress already in use") {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// startOrClose starts a new server and removes what it left if that fails.
func startOrClose(d driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := d.start(ctx)
	if err != nil {
		err = errors.Join(err, d.close())
	}
	return err
}

// target is what a PgBouncer needs to know of the server behind it.
type target struct {
	url                        *url.URL
	host, port, user, database string
	secret                     string // what PgBouncer keeps to check and to send the password
}

func parsePostgres(s *Server) (target, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return target{}, errors.New("the URL of the server behind is not a URL") // err would show its password
	}
	password, _ := u.User.Password()
	t := target{url: u, host: u.Hostname(), port: u.Port(), user: u.User.Username(), secret: password, database: strings.TrimPrefix(u.Path, "/")}
	if s.driver != nil && password == PostgresPassword {
		t.secret = postgresSecret // PgBouncer can send on only what both keep the same
	}
	if t.port == "" {
		t.port = "5432"
	}
	return t, nil
}

// through is the URL that reaches the same database at another port here.
func (t target) through(port int) string {
	u := *t.url
	u.Host = address(port)
	return u.String()
}
