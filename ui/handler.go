package ui

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ErrForbidden is for an Authorize function: the request may not see anything. Any other error has the same effect.
var ErrForbidden = errors.New("ui: not allowed")

// ErrLogin is for an Authorize function: the request may see something after a login. With Options.Login the answer is the page for that.
var ErrLogin = errors.New("ui: a login is needed")

// Access is what a request may do: to look, and what else it says.
type Access struct {
	Who string // for the log of actions
	// Values lets it ask for the values of cells.
	Values bool
	// Actions lets it pause, resume and replay observers, and retry and drop parked runs. A Handler without a DB has no actions.
	Actions bool
	// Session tells logins of one person apart, or is "". The secret in a form holds for one Who and Session.
	Session string
}

// Authorize says what a request may do. It is asked for each request but those of the login, the style and the script. An error denies it,
// and is logged. It may be called concurrently.
type Authorize func(r *http.Request) (Access, error)

// Options are for New and Of. The zero value suits a page that is reached as localhost.
type Options struct {
	// Hosts are the names by which the page is reached, without ports: "shop.example.org", "10.0.0.7", "::1". A request with another
	// Host header is refused. Default: localhost, 127.0.0.1 and ::1.
	Hosts []string
	// Login, if not nil, serves the page for a login. Its Authorize should be the one that New gets.
	Login *Login
	// Secret makes the secrets in forms. Processes that serve one page together must share it; it has 16 bytes or more. Default: random.
	Secret []byte
	// Timeout bounds the making of a page, before that the wait for its turn, and the reading of a form and the writing of an answer, each by
	// itself. Default 5 s.
	Timeout time.Duration
	// Concurrent is how many requests look at the database at once, or change it. Others wait for their turn, for Timeout at most, and get the
	// status 503 with a Retry-After then. Default 8.
	Concurrent int
	// Logger gets each action with who did it, and each denied request. Default slog.Default().
	Logger *slog.Logger
}

// Handler is the page. It may be mounted at any path that ends in a slash, and uses the last part of a request's path alone. It may
// be called concurrently.
type Handler struct {
	db        *percolator.DB // nil: there are no actions
	r         *admin.Reader
	authorize Authorize
	o         Options
	hosts     map[string]bool
	rates     rates
	replays   *replays
	gate      *gate
	views     map[string]view
}

// view makes what a template shows.
type view struct {
	title, template string
	// live views are asked for again each second.
	live bool
	data func(ctx context.Context, q *query) (any, error)
}

// New makes the page of a database, with the actions that authorize allows. A nil db or authorize, a short Secret, a negative Timeout
// or Concurrent is percolator.ErrInvalid. Close it before the DB.
func New(db *percolator.DB, authorize Authorize, o Options) (*Handler, error) {
	r, err := admin.Of(db)
	if err != nil {
		return nil, fmt.Errorf("ui: New: %w", err)
	}
	return newHandler("New", db, r, authorize, o)
}

// Of makes the page over a Reader: it looks, and has no actions. Errors are those of New. Close it before the store.
func Of(r *admin.Reader, authorize Authorize, o Options) (*Handler, error) {
	if r == nil {
		return nil, fmt.Errorf("ui: Of: %w: the Reader is nil", percolator.ErrInvalid)
	}
	return newHandler("Of", nil, r, authorize, o)
}

func newHandler(what string, db *percolator.DB, r *admin.Reader, authorize Authorize, o Options) (*Handler, error) {
	switch {
	case authorize == nil:
		return nil, fmt.Errorf("ui: %s: %w: the Authorize function is nil: it says who may see the data", what, percolator.ErrInvalid)
	case o.Secret != nil && len(o.Secret) < 16:
		return nil, fmt.Errorf("ui: %s: %w: the Secret has %d bytes; it must have 16 at least", what, percolator.ErrInvalid, len(o.Secret))
	case o.Timeout < 0:
		return nil, fmt.Errorf("ui: %s: %w: the Timeout is %v; it may not be negative", what, percolator.ErrInvalid, o.Timeout)
	}
	if o.Concurrent < 0 {
		return nil, fmt.Errorf("ui: %s: %w: Concurrent is %d", what, percolator.ErrInvalid, o.Concurrent)
	}
	if o.Concurrent == 0 {
		o.Concurrent = 8
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Secret == nil {
		o.Secret = []byte(rand.Text())
	}
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	h := &Handler{db: db, r: r, authorize: authorize, o: o, hosts: map[string]bool{}, replays: newReplays(db, o.Logger), gate: newGate(o.Concurrent, o.Timeout)}
	for _, name := range o.Hosts {
		h.hosts[strings.ToLower(name)] = true
	}
	h.views = h.allViews()
	return h, nil
}

// Close ends the page: every further request gets the status 503. It ends the replays that this page has begun. A replay of the same
// rows that begins later goes on where such a replay stopped. Then it waits until these have ended and the requests under way are
// answered, or ctx is done: then its error is that of the context, and what is under way goes on to its end. A request waits for its turn
// for Options.Timeout at most. Then a view takes as long again at most, and an action 20 s, and its answer is written for Options.Timeout at
// most, if the ResponseWriter takes deadlines, as those of net/http do. A form that was not sent to its end is not waited for. After a Close
// without an error nothing of the page uses the database any more. It may be called more than once.
func (h *Handler) Close(ctx context.Context) error {
	h.gate.shut()
	return errors.Join(h.replays.close(ctx), h.gate.drained(ctx))
}

// ServeHTTP serves the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	// A closed page reads no forms, and refuses who sent one slowly while it was closed.
	if h.gate.isShut() {
		refuseClosed(w)
		return
	}
	if !h.takes(w, r, name) {
		return
	}
	post := r.Method == http.MethodPost
	if !post {
		if r.ContentLength != 0 {
			// A server reads what is left of a body before it answers at length, without a deadline, unless the connection ends then.
			w.Header().Set("Connection", "close")
		}
		r.Body = http.NoBody // a look has none that anybody should wait for
	} else if !h.takeForm(w, r) {
		return
	}
	if !h.gate.enter() {
		refuseClosed(w)
		return
	}
	defer h.gate.under.Done()
	w = &answer{ResponseWriter: w, limit: h.o.Timeout}
	switch {
	case !post && (name == "style.css" || name == "live.js"):
		serveStatic(w, r, name)
	case name == "login" && h.o.Login != nil:
		h.login(w, r)
	default:
		h.authorized(w, r, name)
	}
}

func refuseClosed(w http.ResponseWriter) {
	http.Error(w, "the program that serves this page ends", http.StatusServiceUnavailable)
}

// takes tells whether the page takes a request, as its header says. If it does not, it has answered.
func (h *Handler) takes(w http.ResponseWriter, r *http.Request, name string) bool {
	post := r.Method == http.MethodPost
	switch {
	case !h.hosts[hostOf(r.Host)]:
		http.Error(w, "this page is not reached by that name", http.StatusMisdirectedRequest)
	case !post && r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "there are GET and POST", http.StatusMethodNotAllowed)
	case post && !sameOrigin(r):
		h.o.Logger.Warn("ui: a form from elsewhere is refused", "path", name, "from", r.RemoteAddr)
		http.Error(w, "a form is taken from this page alone", http.StatusForbidden)
	default:
		return true
	}
	return false
}

// authorized serves what needs a permission.
func (h *Handler) authorized(w http.ResponseWriter, r *http.Request, name string) {
	access, err := h.authorize(r)
	if err != nil {
		h.denied(w, r, err)
		return
	}
	q := &query{h: h, access: access, values: r.URL.Query()}
	if r.Method == http.MethodPost {
		h.post(w, r, name, q)
		return
	}
	v, ok := h.views[name]
	if !ok {
		h.fail(w, q, http.StatusNotFound, "there is no such page")
		return
	}
	var data any
	err = h.gate.within(r.Context(), func() (err error) {
		ctx, cancel := context.WithTimeout(r.Context(), h.o.Timeout)
		defer cancel()
		data, err = v.data(ctx, q)
		return err
	})
	if err != nil {
		h.failed(w, q, err)
		return
	}
	h.render(w, http.StatusOK, v.template, &page{Title: v.title, View: name, Live: v.live && !q.shown, Data: data}, q)
}

// denied answers a request that may see nothing.
func (h *Handler) denied(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, ErrLogin) && h.o.Login != nil {
		w.Header().Set("Location", "login")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	h.o.Logger.Warn("ui: a request is denied", "from", r.RemoteAddr, "error", err)
	http.Error(w, "you may not see this page", http.StatusForbidden)
}

// page is what the frame of every page shows.
type page struct {
	Title, View string
	Live        bool
	Access      Access
	Actions     bool // the page has actions, and the request may do them
	Login       bool
	Secret      string // for forms
	Data        any
}

// render writes a page, all of it or an error.
func (h *Handler) render(w http.ResponseWriter, status int, template string, p *page, q *query) {
	p.Access, p.Actions, p.Login = q.access, q.actions(), h.o.Login != nil
	p.Secret = h.formSecret(q.access)
	var b bytes.Buffer
	if err := templates[template].ExecuteTemplate(&b, "frame", p); err != nil {
		h.o.Logger.Error("ui: a page cannot be made", "page", p.View, "error", err)
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // who asked is gone, then
}

// fail writes a page with an error.
func (h *Handler) fail(w http.ResponseWriter, q *query, status int, text string) {
	h.render(w, status, "error", &page{Title: "Error", Data: text}, q)
}

// failed writes a page with an error, under its status.
func (h *Handler) failed(w http.ResponseWriter, q *query, err error) {
	if errors.Is(err, errCrowded) {
		w.Header().Set("Retry-After", "1")
	}
	h.fail(w, q, statusOf(err), err.Error())
}

// statusOf is the status of an answer with an error.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoActions):
		return http.StatusForbidden
	case errors.Is(err, percolator.ErrNoStore), errors.Is(err, percolator.ErrNotObserved), errors.Is(err, percolator.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, percolator.ErrInvalid), errors.Is(err, percolator.ErrTooLarge), errors.Is(err, percolator.ErrSnapshotInFuture), errors.Is(err, percolator.ErrSnapshotTooOld):
		return http.StatusBadRequest
	case errors.Is(err, percolator.ErrObserverPaused), errors.Is(err, percolator.ErrConflict), errors.Is(err, errBusy):
		return http.StatusConflict
	case errors.Is(err, rowstore.ErrUnavailable), errors.Is(err, percolator.ErrClosed), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errCrowded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
