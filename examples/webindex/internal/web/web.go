// Package web serves the search page of an index, and a page about each page.
package web

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/percolator"
)

const (
	resultsShown = 20
	textShown    = 5000 // bytes
)

//go:embed *.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"pageLink": func(u string) string { return "/page?url=" + url.QueryEscape(u) },
	"pageLinkAt": func(u string, at percolator.Timestamp) string {
		return "/page?url=" + url.QueryEscape(u) + "&at=" + strconv.FormatUint(uint64(at), 10)
	},
	"isHTTP": func(u string) bool { return strings.HasPrefix(u, "http://") || strings.HasPrefix(u, "https://") },
	"when":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"score":  func(s float64) string { return strconv.FormatFloat(s, 'f', 2, 64) },
	"join":   func(s []string) string { return strings.Join(s, " / ") },
	"cut": func(s string) string {
		if len(s) <= textShown {
			return s
		}
		return strings.ToValidUTF8(s[:textShown], "") + " ..."
	},
}).ParseFS(files, "*.tmpl"))

// New returns the handler: / searches (parameter q), and /page shows one page
// (parameter url), also as it was in an earlier snapshot (parameter at).
func New(x *index.Index, log *slog.Logger) http.Handler {
	h := handler{x: x, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.search)
	mux.HandleFunc("GET /page", h.page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		mux.ServeHTTP(w, r)
	})
}

type handler struct {
	x   *index.Index
	log *slog.Logger
}

func (h *handler) search(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query().Get("q")
	res, err := h.x.Search(r.Context(), q, resultsShown)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.render(w, r, http.StatusOK, "search.tmpl", struct {
		Query string
		index.Results
	}{q, res})
}

func (h *handler) page(w http.ResponseWriter, r *http.Request) {
	u := r.URL.Query().Get("url")
	if u == "" {
		h.message(w, r, http.StatusBadRequest, "The parameter url is missing.")
		return
	}
	var at uint64
	if s := r.URL.Query().Get("at"); s != "" {
		var err error
		if at, err = strconv.ParseUint(s, 10, 63); err != nil {
			h.message(w, r, http.StatusBadRequest, fmt.Sprintf("The parameter at is no timestamp: %q.", s))
			return
		}
	}
	info, err := h.x.Page(r.Context(), u, percolator.Timestamp(at))
	switch {
	case errors.Is(err, percolator.ErrSnapshotTooOld):
		h.message(w, r, http.StatusGone, "That version is older than the history that is kept.")
		return
	case errors.Is(err, percolator.ErrSnapshotInFuture), errors.Is(err, percolator.ErrInvalid), errors.Is(err, percolator.ErrTooLarge):
		h.message(w, r, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		h.fail(w, r, err)
		return
	}
	status := http.StatusOK
	if !info.Exists && len(info.History) == 0 && info.InLinkCount == 0 {
		status = http.StatusNotFound
	}
	h.render(w, r, status, "page.tmpl", struct {
		index.Info
		At   percolator.Timestamp
		Then time.Time
	}{info, percolator.Timestamp(at), percolator.Timestamp(at).Time()})
}

func (h *handler) message(w http.ResponseWriter, r *http.Request, status int, text string) {
	h.render(w, r, status, "message.tmpl", struct{ Text string }{text})
}

// fail answers a request that the store could not serve. The cause goes to the
// log, because it may name servers.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody waits for the answer
	}
	h.log.Error("request failed", "path", r.URL.Path, "err", err)
	h.message(w, r, http.StatusInternalServerError, "The index could not be read; see the log.")
}

func (h *handler) render(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		h.log.Error("page not rendered", "path", r.URL.Path, "err", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
