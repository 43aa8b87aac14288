package ui_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/ui"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const token = "a token of twenty bytes and more"

// hostile are bytes that a page must show as text, and some that are no text.
const hostile = `<script>alert("x")</script>'&` + "\xff\x00\u202e"

var (
	badCell  = percolator.Cell{Table: "t" + hostile, Row: "r" + hostile, Column: "c" + hostile}
	badName  = "o" + hostile
	badError = "no end tag in " + hostile
)

// world is a database with a page over it, and a browser of sorts.
type world struct {
	t      *testing.T
	db     *percolator.DB
	store  *watched
	page   *ui.Handler
	server *httptest.Server
	client *http.Client
	log    *logged
	busy   bool // others write while the page looks
}

// watched counts what is read, and refuses every change while the page looks.
type watched struct {
	*memstore.Store
	looking atomic.Bool
	written atomic.Bool
}

func (w *watched) Unwrap() rowstore.Store { return w.Store }

func (w *watched) Apply(ctx context.Context, m []rowstore.Mutation, o rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if w.looking.Load() {
		w.written.Store(true)
	}
	return w.Store.Apply(ctx, m, o)
}

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func open(t *testing.T) (*percolator.DB, *watched) {
	t.Helper()
	store := &watched{Store: memstore.New()}
	db, err := percolator.New(t.Context(), store, percolator.WithLogger(slog.New(slog.DiscardHandler)), percolator.WithSettings(percolator.Settings{CatalogLease: 10 * time.Millisecond}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.Background())) })
	return db, store
}

// newWorld has a database with names that are hostile: two cells, an observer whose run of one is parked, and a timer.
func newWorld(t *testing.T, access ui.Access) *world {
	t.Helper()
	db, store := open(t)
	w := &world{t: t, db: db, store: store, log: &logged{}}
	login, err := ui.NewLogin(token, ui.LoginOptions{Access: access})
	require.NoError(t, err)
	w.page, err = ui.New(db, login.Authorize, ui.Options{Login: login, Logger: slog.New(slog.NewTextHandler(w.log, nil)), Timeout: time.Minute})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/percolator/", w.page)
	w.server = httptest.NewServer(mux)
	atend.Do(t, func() {
		w.server.Close()
		require.NoError(t, w.page.Close(context.Background()))
	})
	w.client = w.browser()
	w.fill()
	return w
}

func (w *world) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (w *world) fill() {
	w.t.Helper()
	ctx := w.t.Context()
	parks := percolator.Observer{Name: badName, Table: badCell.Table, Column: badCell.Column, Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New(badError))
	}}
	require.NoError(w.t, w.db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(badCell, []byte("secret "+hostile)) }))
	w.runUntilIdle(parks)
	require.NoError(w.t, w.db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(
			tx.Set(percolator.Cell{Table: badCell.Table, Row: "later", Column: badCell.Column}, nil),
			tx.NotifyAfter(ctx, percolator.Cell{Table: badCell.Table, Row: "later", Column: badCell.Column}, 90*time.Minute))
	}))
	_, err := w.db.Hold(ctx, "hold"+hostile, 0, time.Hour)
	require.NoError(w.t, err)
}

// runUntilIdle has a worker run observers until nothing is left to do.
func (w *world) runUntilIdle(observers ...percolator.Observer) {
	w.t.Helper()
	w.runUntil(func(worker *percolator.Worker) { require.NoError(w.t, worker.WaitIdle(w.t.Context())) }, observers...)
}

// runUntil has a worker run observers until f returns.
func (w *world) runUntil(f func(*percolator.Worker), observers ...percolator.Observer) {
	w.t.Helper()
	worker := percolator.NewWorker(w.db, percolator.WorkerConfig{GCInterval: -1})
	for i := range observers {
		require.NoError(w.t, worker.Observe(observers[i]))
	}
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	f(worker)
	stop()
	require.NoError(w.t, <-ended)
}

// answer is what the page has said.
type answer struct {
	status int
	body   string
	header http.Header
}

func (w *world) do(client *http.Client, r *http.Request) answer {
	w.t.Helper()
	res, err := client.Do(r)
	require.NoError(w.t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(w.t, err)
	return answer{res.StatusCode, string(body), res.Header}
}

func (w *world) request(method, view string, form url.Values) *http.Request {
	w.t.Helper()
	base, err := url.Parse(w.server.URL + "/percolator/")
	require.NoError(w.t, err)
	to, err := base.Parse(view)
	require.NoError(w.t, err)
	r, err := http.NewRequestWithContext(w.t.Context(), method, to.String(), strings.NewReader(form.Encode()))
	require.NoError(w.t, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", w.server.URL)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r
}

// get looks at a view, which must not write.
func (w *world) get(view string) answer {
	w.t.Helper()
	w.store.looking.Store(!w.busy)
	defer w.store.looking.Store(false)
	a := w.do(w.client, w.request(http.MethodGet, view, nil))
	require.False(w.t, w.store.written.Load(), "the view %q has written", view)
	return a
}

func (w *world) post(view string, form url.Values) answer {
	w.t.Helper()
	return w.do(w.client, w.request(http.MethodPost, view, form))
}

// login gets the cookie.
func (w *world) login() {
	w.t.Helper()
	a := w.post("login", url.Values{"token": {token}})
	require.Equal(w.t, http.StatusSeeOther, a.status, a.body)
}

// elements are the elements of a page, in their order.
func elements(t *testing.T, body string) (all []*html.Node) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	for n := range root.Descendants() {
		if n.Type == html.ElementNode {
			all = append(all, n)
		}
	}
	return all
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// form is what a browser would send of the form for an action.
func form(t *testing.T, body, to string) url.Values {
	t.Helper()
	v, inside := url.Values{}, false
	for _, n := range elements(t, body) {
		if n.Data == "form" {
			inside = attr(n, "action") == to
		}
		if n.Data == "input" && inside {
			v.Set(attr(n, "name"), attr(n, "value"))
		}
	}
	require.NotEmpty(t, v.Get("secret"), body)
	return v
}
