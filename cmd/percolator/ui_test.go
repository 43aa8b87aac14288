package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
)

// serving is percolator ui while it runs.
type serving struct {
	served
	client *http.Client
	stop   context.CancelFunc
	status chan int
	err    *strings.Builder // read it after the end
}

func startUI(t *testing.T, store string, args ...string) *serving {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	in, out := io.Pipe()
	s := &serving{stop: stop, status: make(chan int, 1), err: &strings.Builder{}}
	go func() {
		s.status <- run(ctx, append([]string{"--store", store, "--json", "ui"}, args...), strings.NewReader(""), out, s.err, nil)
		_ = out.Close()
	}()
	atend.Do(t, stop)
	if err := json.NewDecoder(bufio.NewReader(in)).Decode(&s.served); err != nil {
		require.NoError(t, err, "it has ended with %d: %s", <-s.status, s.err)
	}
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	s.client = &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	return s
}

// ask gets a view, or posts a form, and returns what the page says at last.
func (s *serving) ask(t *testing.T, view string, form url.Values) (int, string) {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+view, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	r.Header.Set("Origin", strings.TrimSuffix(s.URL, "/"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := s.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

func (s *serving) end(t *testing.T) {
	t.Helper()
	s.stop()
	require.Equal(t, exitOK, <-s.status, s.err)
}

func TestUI(t *testing.T) {
	t.Parallel()
	store := "pebble:" + filepath.Join(t.TempDir(), "data")
	makeSick(t, store)
	s := startUI(t, store)
	require.False(t, s.Actions)
	_, body := s.ask(t, "", nil)
	require.Contains(t, body, "Login")
	require.NotContains(t, body, s.Token)
	status, body := s.ask(t, "login", url.Values{"token": {s.Token}})
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "Overview")
	require.Contains(t, body, "looks only")
	_, body = s.ask(t, "cell?table=order&row=17&column=state", nil)
	require.Contains(t, body, "the cell is locked (put) by transaction")
	status, _ = s.ask(t, "confirm?do=pause&observer=mail", nil)
	require.Equal(t, http.StatusForbidden, status)
	s.end(t)
}

// TestUIActs has a token from a file, which is not printed, and lets the page act.
func TestUIActs(t *testing.T) {
	t.Parallel()
	store := "pebble:" + filepath.Join(t.TempDir(), "data")
	makeSick(t, store)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("a token from a file, long enough\n"), 0o600))
	s := startUI(t, store, "--actions", "--token-file", file)
	require.True(t, s.Actions)
	require.Empty(t, s.Token)
	status, _ := s.ask(t, "login", url.Values{"token": {"a token from a file, long enough"}})
	require.Equal(t, http.StatusOK, status)
	_, body := s.ask(t, "confirm?do=resume&observer=mail", nil)
	_, rest, found := strings.Cut(body, `name="secret" value="`)
	require.True(t, found, body)
	// The first form on the page is the logout, with the same secret.
	secret, _, _ := strings.Cut(rest, `"`)
	status, body = s.ask(t, "act", url.Values{"do": {"resume"}, "observer": {"mail"}, "secret": {secret}})
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "It is resumed.")
	s.end(t)
	require.Contains(t, s.err.String(), "action=resume")
	require.Contains(t, ask(t, store, "observers").out, "mail")
	require.NotContains(t, ask(t, store, "observers").out, "paused")
}

// TestUISaysWhereItIs has the page listen in all ways. The address that it prints must be one that the page answers to, and where the
// program cannot know it, it says what is missing.
func TestUISaysWhereItIs(t *testing.T) {
	t.Parallel()
	store := "pebble:" + filepath.Join(t.TempDir(), "data")
	makeSick(t, store)
	dir := t.TempDir()
	token, cert, key := filepath.Join(dir, "token"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(token, []byte("a token from a file, long enough"), 0o600))
	selfSigned(t, cert, key)
	for _, c := range []struct {
		args []string
		url  string // with PORT for that of the address it listens at
	}{
		{nil, "http://127.0.0.1:PORT/"},
		{[]string{"--listen", "localhost:0"}, "http://localhost:PORT/"},
		{[]string{"--listen", "127.0.0.1:0", "--host", "ops.example.org"}, "http://ops.example.org:PORT/"},
		{[]string{"--listen", "0.0.0.0:0", "--token-file", token, "--cert", cert, "--key", key}, "https://localhost:PORT/"},
		{[]string{"--listen", ":0", "--token-file", token, "--cert", cert, "--key", key}, "https://localhost:PORT/"},
		{[]string{"--listen", ":0", "--token-file", token, "--cert", cert, "--key", key, "--host", "ops.example.org"}, "https://ops.example.org:PORT/"},
		{[]string{"--listen", ":0", "--token-file", token, "--behind-tls"}, "https://localhost/"},
		{[]string{"--listen", ":0", "--token-file", token, "--behind-tls", "--host", "ops.example.org"}, "https://ops.example.org/"},
		{[]string{"--behind-tls", "--host", "2001:db8::1"}, "https://[2001:db8::1]/"},
	} {
		s := startUI(t, store, c.args...)
		_, port, err := net.SplitHostPort(s.Listens)
		require.NoError(t, err)
		require.Equal(t, strings.Replace(c.url, "PORT", port, 1), s.URL, "%v", c.args)
		// A request by that name, wherever it leads here, is not refused; one by another name is.
		at, err := url.Parse(s.URL)
		require.NoError(t, err)
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its own certificate
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				to := s.Listens
				if ip, _, _ := net.SplitHostPort(to); net.ParseIP(ip).IsUnspecified() {
					to = net.JoinHostPort("127.0.0.1", port)
				}
				return (&net.Dialer{}).DialContext(ctx, network, to)
			},
		}}
		scheme := "http"
		if slices.Contains(c.args, "--cert") {
			scheme = "https"
		}
		for host, want := range map[string]int{at.Host: http.StatusOK, "evil.example.org": http.StatusMisdirectedRequest} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+host+"/login", nil)
			require.NoError(t, err)
			res, err := client.Do(r)
			require.NoError(t, err, "%v", c.args)
			require.NoError(t, res.Body.Close())
			require.Equal(t, want, res.StatusCode, "%v as %s", c.args, host)
		}
		s.end(t)
	}
	// A machine need not have the other family of addresses.
	six := &net.TCPAddr{IP: net.IPv6loopback, Port: 80}
	require.Equal(t, "http://[::1]:80/", (&uiFlags{listen: "[::1]:80"}).served(six).URL)
	require.Equal(t, "http://localhost:80/", (&uiFlags{listen: "[::]:80"}).served(six).URL)
	var out strings.Builder
	w := &page{w: tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)}
	(&uiFlags{listen: ":8443", cert: cert}).served(&net.TCPAddr{Port: 8443}).text(w)
	require.NoError(t, w.w.Flush())
	require.Contains(t, out.String(), "open https://localhost:8443/\nthis address holds on this machine alone; --host says by which name others reach it\n")
}

// selfSigned writes a certificate of its own, and the key.
func selfSigned(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
}

// TestUIRefuses to be reached by others without a token that they were given, or in clear.
func TestUIRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("short"), 0o600))
	for _, args := range [][]string{
		{"--listen", "0.0.0.0:0"},
		{"--listen", ":0"},
		{"--listen", "example.org:80"},
		{"--listen", "0.0.0.0:0", "--token-file", file},
		{"--listen", "nonsense"},
		{"--cert", "c.pem"},
		{"--host", "ops.example.org:8443"},
		{"--host", "https://ops.example.org"},
		{"--host", ""},
		{"--token-file", "nowhere"},
		{"--token-file", file},
	} {
		a := ask(t, "pebble:"+filepath.Join(t.TempDir(), "data"), append([]string{"ui"}, args...)...)
		require.Equal(t, exitUsage, a.status, "%v: %s", args, a.err)
		require.NotContains(t, a.err, "short")
	}
	require.Equal(t, exitNoStore, ask(t, "pebble:"+filepath.Join(t.TempDir(), "data"), "ui").status)
}

// TestUIPages goes through the waiting cells and the timers of each backend, page by page, in the browser and by the command. Each must come
// once.
func TestUIPages(t *testing.T) {
	t.Parallel()
	everystore.URLs(t, func(t *testing.T, store string) {
		const cells = 120
		ctx := t.Context()
		db, err := percolator.Open(ctx, store, percolator.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
		require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}))
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.Run(running) }()
		require.NoError(t, w.WaitIdle(ctx))
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for i := range cells {
				c := cell("t", fmt.Sprintf("row%03d", i), "c")
				if err := errors.Join(tx.Set(c, nil), tx.NotifyAfter(ctx, c, time.Hour+time.Duration(i%7)*time.Minute)); err != nil {
					return err
				}
			}
			return nil
		}))
		require.NoError(t, db.Close(ctx))

		s := startUI(t, store)
		status, _ := s.ask(t, "login", url.Values{"token": {s.Token}})
		require.Equal(t, http.StatusOK, status)
		more := regexp.MustCompile(`href="([^"]*)">more<`)
		for _, view := range []string{"backlog?table=t", "timers?table=t"} {
			seen := map[string]int{}
			for next := view; next != ""; {
				status, body := s.ask(t, next, nil)
				require.Equal(t, http.StatusOK, status, body)
				for _, row := range regexp.MustCompile(`<code>(row\d+)</code>`).FindAllStringSubmatch(body, -1) {
					seen[row[1]]++
					require.Equal(t, 1, seen[row[1]], "%s of %s", row[1], next)
				}
				next = ""
				if m := more.FindStringSubmatch(body); m != nil {
					next = html.UnescapeString(m[1])
				}
			}
			require.Len(t, seen, cells, view)
		}
		s.end(t)
		for _, args := range [][]string{{"backlog", "t"}, {"timers", "t"}} {
			require.Len(t, allPages(t, store, append(args, "--limit", "50")...), cells, args)
		}
	})
}
