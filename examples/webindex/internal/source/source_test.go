package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/examples/webindex/internal/warc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		p := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(body), 0o600))
	}
}

// load reads all pages of a prepared source.
func load(t testing.TB, s Source) map[string]Page {
	t.Helper()
	got := make(map[string]Page)
	for it, err := range s.Items(t.Context()) {
		require.NoError(t, err)
		p, err := it.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, it.URL, p.URL)
		require.NotContains(t, got, p.URL)
		got[p.URL] = p
	}
	return got
}

func TestDir(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, map[string]string{
		"index.html":     `<a href="sub/">sub</a> <a href="a%20b.html">a b</a>`,
		"a b.html":       "caf\xe9 <a href='index.html#top'>home</a>",
		"sub/index.html": `<a href="../a b.html">a b</a> <a href="..">up</a>`,
		"sub/C.HTM":      `x`,
		"style.css":      `p {}`,
	})
	d, err := NewDir(root, false)
	require.NoError(t, err)
	require.True(t, d.Complete())
	sum, err := d.Prepare(t.Context())
	require.NoError(t, err)
	require.Equal(t, Summary{Pages: 4, Ignored: map[string]int{"not an HTML file": 1}}, sum)

	base := fileURL(root) + "/"
	require.Equal(t, "dir:"+base, d.ID())
	pages := load(t, d)
	require.ElementsMatch(t, []string{base, base + "a%20b.html", base + "sub/", base + "sub/C.HTM"}, slices.Collect(maps.Keys(pages)))
	require.Contains(t, string(pages[base+"a%20b.html"].Body), "caf\u00e9")

	// Links between the files lead from page to page.
	links := 0
	for u, p := range pages {
		parsed, err := page.Parse(u, p.Body)
		require.NoError(t, err)
		for _, l := range parsed.Links {
			require.Contains(t, pages, l.Target)
			links++
		}
	}
	require.Equal(t, 5, links)

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(root, link))
	linked, err := NewDir(link, false)
	require.NoError(t, err)
	_, err = linked.Prepare(t.Context())
	require.NoError(t, err)
	require.Contains(t, load(t, linked), fileURL(link)+"/sub/C.HTM")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range d.Items(ctx) {
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = d.Prepare(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDirBadInput(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	missing := filepath.Join(root, "missing")
	_, err := NewDir(missing, false)
	require.ErrorContains(t, err, missing)
	require.ErrorIs(t, err, os.ErrNotExist)

	write(t, root, map[string]string{"file": "x", "binary/x.html": "\x89PNG\x00\x00", "deep/x.html": strings.Repeat("<div>", 5000), "none/x.txt": "x"})
	_, err = NewDir(filepath.Join(root, "file"), false)
	require.ErrorContains(t, err, "not a directory")
	for _, sub := range []string{"binary", "deep"} {
		d, err := NewDir(filepath.Join(root, sub), false)
		require.NoError(t, err)
		_, err = d.Prepare(t.Context())
		require.ErrorIs(t, err, page.ErrMalformed)
		require.ErrorContains(t, err, filepath.Join(root, sub, "x.html"))
	}
	d, err := NewDir(filepath.Join(root, "none"), false)
	require.NoError(t, err)
	_, err = d.Prepare(t.Context())
	require.ErrorContains(t, err, "no HTML file")

	write(t, root, map[string]string{"binary/ok.html": "fine", "big/x.html": strings.Repeat("x", page.MaxBody+1)})
	d, err = NewDir(filepath.Join(root, "binary"), true)
	require.NoError(t, err)
	sum, err := d.Prepare(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, sum.Pages)
	require.Len(t, sum.Bad, 1)
	require.Len(t, load(t, d), 1)
	d, err = NewDir(filepath.Join(root, "big"), false)
	require.NoError(t, err)
	_, err = d.Prepare(t.Context())
	require.ErrorIs(t, err, page.ErrTooLarge)
}

func record(typ, contentType, uri, date, extra, block string) string {
	return fmt.Sprintf("WARC/1.1\r\nWARC-Type: %s\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: %s\r\nWARC-Target-URI: %s\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s\r\n\r\n",
		typ, date, uri, contentType, extra, len(block), block)
}

func response(uri, date, head, body string) string {
	return record("response", "application/http; msgtype=response", uri, date, "", "HTTP/1.1 "+head+"\r\n\r\n"+body)
}

func gz(parts ...string) string {
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(p))
		_ = w.Close()
	}
	return b.String()
}

const day1, day2 = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"

func TestWarc(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	html := "200 OK\r\nContent-Type: text/html"
	write(t, dir, map[string]string{
		"1.warc": strings.Join([]string{
			record("warcinfo", "application/warc-fields", "", day1, "", "software: test"),
			response("http://a.example/", day2, html, "new a"),
			response("http://A.example:80/#x", day1, html, "old a"),
			response("http://b.example/", day1, html+"; charset=iso-8859-1", "caf\xe9"),
			response("http://c.example/", day1, "200 OK\r\nContent-Type: image/png", "\x89PNG"),
			response("http://d.example/", day1, html, "d was here"),
			response("http://e.example/", day1, "301 Moved\r\nLocation: /", ""),
			record("request", "application/http", "http://a.example/", day1, "", "GET / HTTP/1.1\r\n\r\n"),
			record("resource", "text/html", "<http://f.example/>", day1, "", "resource f"),
			record("response", "text/dns", "dns:a.example", day1, "", "1.2.3.4"),
		}, ""),
		"2.warc.gz": gz(
			response("http://d.example/", day2, "404 Not Found\r\nContent-Type: text/html", "gone"),
			response("http://g.example/", day1, html+"\r\nContent-Encoding: gzip", gz("compressed g")),
			response("http://h.example/", day1, html+"\r\nTransfer-Encoding: chunked", "5\r\nchunk\r\n2\r\ned\r\n0\r\n\r\n"),
			response("http://i.example/", day1, html+"\r\nContent-Encoding: br", "?"),
			record("response", "application/http", "http://j.example/", day1, "WARC-Truncated: length\r\n", "HTTP/1.1 "+html+"\r\nContent-Length: 100\r\n\r\ncut off"),
		),
	})
	files := []string{filepath.Join(dir, "1.warc"), filepath.Join(dir, "2.warc.gz")}
	w, err := NewWarc(files, false)
	require.NoError(t, err)
	sum, err := w.Prepare(t.Context())
	require.NoError(t, err)
	pages := load(t, w)
	require.Len(t, pages, sum.Pages)
	bodies := make(map[string]string)
	for u, p := range pages {
		bodies[u] = string(p.Body)
		require.False(t, p.Fetched.IsZero())
		require.Equal(t, u == "http://d.example/", p.Gone)
	}
	require.Equal(t, map[string]string{
		"http://a.example/": "new a", "http://b.example/": "caf\u00e9", "http://d.example/": "", "http://f.example/": "resource f",
		"http://g.example/": "compressed g", "http://h.example/": "chunked", "http://j.example/": "cut off",
	}, bodies)
	require.Equal(t, 1, sum.Ignored["content encoding br"])
	require.Equal(t, 1, sum.Ignored["not HTML"])

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Prepare(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestWarcBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.warc")
	_, err := NewWarc([]string{missing}, false)
	require.ErrorContains(t, err, missing)
	_, err = NewWarc([]string{dir}, false)
	require.ErrorContains(t, err, "directory")

	good := response("http://a.example/", day1, "200 OK\r\nContent-Type: text/html", "fine")
	html := "200 OK\r\nContent-Type: text/html"
	for name, c := range map[string]struct{ data, want string }{
		"format": {good + "no record", ": record 2 at offset " + fmt.Sprint(len(good))},
		"http":   {good + record("response", "application/http", "http://b.example/", day1, "", "not http\r\n\r\n"), "malformed HTTP response"},
		"short":  {good + response("http://b.example/", day1, html+"\r\nContent-Length: 10", "abc"), "malformed HTTP body"},
		"gzip":   {good + response("http://b.example/", day1, html+"\r\nContent-Encoding: gzip", "abc"), "malformed HTTP body"},
		"html":   {good + response("http://b.example/", day1, html, "x\x00"), "malformed HTML"},
		"deep":   {good + response("http://b.example/", day1, html, strings.Repeat("<div>", 5000)), "malformed HTML"},
		"url":    {good + response("http://b.example/%zz", day1, html, "x"), "bad URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(dir, name+".warc")
			require.NoError(t, os.WriteFile(file, []byte(c.data), 0o600))
			w, err := NewWarc([]string{file}, false)
			require.NoError(t, err)
			_, err = w.Prepare(t.Context())
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, file)
			require.ErrorContains(t, err, ": record 2 at offset "+fmt.Sprint(len(good)))

			w, err = NewWarc([]string{file}, true)
			require.NoError(t, err)
			sum, err := w.Prepare(t.Context())
			if name == "format" { // nothing can be skipped: where the next record begins is not known
				require.ErrorIs(t, err, warc.ErrMalformed)
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1, sum.Pages)
			require.Len(t, sum.Bad, 1)
			require.Len(t, load(t, w), 1)
		})
	}
}

func TestGoDoc(t *testing.T) {
	t.Parallel()
	g, err := NewGoDoc(t.Context(), "")
	require.NoError(t, err)
	sum, err := g.Prepare(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, sum.Pages, 150)
	pages := load(t, g)
	require.Len(t, pages, sum.Pages)
	require.Contains(t, pages, "https://pkg.go.dev/cmd/go")
	require.Contains(t, pages, "https://pkg.go.dev/builtin")

	p, err := page.Parse("https://pkg.go.dev/fmt", pages["https://pkg.go.dev/fmt"].Body)
	require.NoError(t, err)
	require.Equal(t, "fmt package - fmt", p.Title)
	require.NotZero(t, p.Terms["println"].Body)
	var targets []string
	for _, l := range p.Links {
		targets = append(targets, l.Target)
	}
	require.Contains(t, targets, "https://pkg.go.dev/io")      // an import
	require.Contains(t, targets, "https://pkg.go.dev/strconv") // a doc link or an import

	// The same source gives the same pages.
	root := t.TempDir()
	for _, file := range []string{"fmt/doc.go", "fmt/errors.go", "io/pipe.go", "errors/errors.go", "errors/wrap.go", "go/doc/comment/doc.go"} {
		body, err := os.ReadFile(filepath.Join(g.src, file))
		require.NoError(t, err)
		write(t, root, map[string]string{"src/" + file: string(body)})
	}
	again, err := NewGoDoc(t.Context(), root)
	require.NoError(t, err)
	_, err = again.Prepare(t.Context())
	require.NoError(t, err)
	first := load(t, again)
	require.Len(t, first, 5)
	_, err = again.Prepare(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, load(t, again), "two renderings differ")

	empty := t.TempDir()
	_, err = NewGoDoc(t.Context(), empty)
	require.ErrorContains(t, err, empty)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = again.Prepare(ctx)
	require.True(t, errors.Is(err, context.Canceled), "%v", err)
}
