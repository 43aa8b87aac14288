package web

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type pages map[string]string

func (p pages) ID() string                                      { return "test" }
func (p pages) Complete() bool                                  { return true }
func (p pages) Prepare(context.Context) (source.Summary, error) { return source.Summary{}, nil }
func (p pages) Items(context.Context) iter.Seq2[source.Item, error] {
	return func(yield func(source.Item, error) bool) {
		for u, body := range p {
			if !yield(source.Item{URL: u, Read: func(context.Context) (source.Page, error) {
				return source.Page{URL: u, Body: []byte(body)}, nil
			}}, nil) {
				return
			}
		}
	}
}

func get(t testing.TB, h http.Handler, target string) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	res := w.Result()
	defer func() { require.NoError(t, res.Body.Close()) }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if res.StatusCode != http.StatusNotFound {
		require.Contains(t, res.Header.Get("Content-Security-Policy"), "default-src 'none'")
	}
	return res.StatusCode, string(b)
}

func TestPages(t *testing.T) {
	t.Parallel()
	x, w := startIndex(t)
	load := func(p pages) {
		t.Helper()
		var stats index.LoadStats
		require.NoError(t, x.Load(t.Context(), p, 2, &stats))
		require.NoError(t, w.WaitIdle(t.Context()))
	}
	evil := "http://x.example/a?q=%22%3E&lt=<"
	u, err := url.Parse(evil)
	require.NoError(t, err)
	evil = u.String()
	load(pages{
		"http://x.example/a": `<title>&lt;script&gt;alert(1)&lt;/script&gt; zebra</title><p>first text "quoted" <a href="` + evil + `">link</a>`,
		evil:                 "<p>same",
		"http://x.example/b": "<p>same",
		"file:///c":          `<p>to <a href="http://x.example/a">zebra anchor</a>`,
	})
	h := New(x, slog.New(slog.DiscardHandler))

	status, body := get(t, h, "/")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `name="q"`)

	status, body = get(t, h, "/?q="+url.QueryEscape(`zebra "><script>`))
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, body, "<script")
	require.Contains(t, body, "&lt;script&gt;alert(1)")
	require.Contains(t, body, "/page?url="+url.QueryEscape("http://x.example/a"))

	page := func(u string) string {
		t.Helper()
		status, body := get(t, h, "/page?url="+url.QueryEscape(u))
		require.Equal(t, http.StatusOK, status)
		require.NotContains(t, body, "<script")
		require.NotContains(t, body, "ZgotmplZ")
		return body
	}
	body = page("http://x.example/a")
	require.Contains(t, body, "1 pages link to this one")
	require.Contains(t, body, "zebra anchor")
	body = page("http://x.example/b")
	require.Contains(t, body, "The canonical page is <a")
	body = page(evil)
	require.Contains(t, body, "This page is the canonical one of:")
	require.Contains(t, page("file:///c"), "file:///c")

	load(pages{"http://x.example/a": "<p>second text"})
	body = page("http://x.example/a")
	require.Contains(t, body, "second text")
	old := regexp.MustCompile(`/page\?url=[^"]*&amp;at=(\d+)`).FindStringSubmatch(body)
	require.NotNil(t, old, body)
	status, body = get(t, h, "/page?url="+url.QueryEscape("http://x.example/a")+"&at="+old[1])
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "first text")
	require.Contains(t, body, "As it was at")
	require.Contains(t, page("file:///c"), "removed")

	requireStatus(t, h)

	ctx, stop := context.WithCancel(t.Context())
	stop()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "/?q=zebra", nil))
	require.Empty(t, rec.Body.String(), "nobody waits for it")
}

// requireStatus asks for pages that there are not.
func requireStatus(t *testing.T, h http.Handler) {
	t.Helper()
	for target, want := range map[string]int{
		"/page": http.StatusBadRequest, "/page?url=x&at=y": http.StatusBadRequest, "/page?url=x&at=9223372036854775807": http.StatusBadRequest,
		"/page?url=http://none.example/": http.StatusNotFound, "/other": http.StatusNotFound,
	} {
		status, _ := get(t, h, target)
		require.Equal(t, want, status, target)
	}
}

// startIndex starts a worker of a new index.
func startIndex(t *testing.T) (*index.Index, *percolator.Worker) {
	t.Helper()
	db, err := percolator.Open(t.Context(), "memory:", percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	x, err := index.New(t.Context(), db)
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, x.Observe(w))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return x, w
}
