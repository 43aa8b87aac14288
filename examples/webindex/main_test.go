package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
)

// asProgram makes TestMain be the program, with the arguments that follow.
const asProgram = "WEBINDEX_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childVariable) != "":
		main()
	case os.Getenv(asProgram) != "":
		program()
	}
	testserver.Main(m, tikvtest.Leaks()...)
}

// program is main, but says often what its processes do.
func program() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s, err := parseFlags(os.Args[1:], os.Stderr)
	if err != nil {
		panic(err)
	}
	s.every = oftenSaid
	code := s.run(ctx, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs webindex as from a shell.
func command(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// runJSON runs webindex with -json and -check, and requires that all is well.
func runJSON(t testing.TB, args ...string) map[string]any {
	t.Helper()
	code, stdout, stderr := command(t, append([]string{"-json", "-check"}, args...)...)
	require.Zero(t, code, "%s%s", stdout, stderr)
	var r map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	for _, field := range []string{"pages", "transactions", "conflicts", "observer_runs", "seconds", "latency_p50_ms", "latency_p99_ms", "check"} {
		require.Contains(t, r, field)
	}
	require.Equal(t, "ok", r["check"])
	return r
}

func writeFiles(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		p := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(body), 0o600))
	}
}

// TestStandardLibrary is the main job: no flags but -check. Under the race detector
// it has a part of the library only. It is not parallel, because it sets the
// environment.
func TestStandardLibrary(t *testing.T) {
	least := 150
	if raceEnabled {
		least = 15
		root := t.TempDir()
		for _, pkg := range []string{"bufio", "cmp", "context", "embed", "errors", "fmt", "io", "iter", "maps", "net/http", "path", "slices", "sort", "strings", "sync"} {
			from := filepath.Join(build.Default.GOROOT, "src", pkg)
			files, err := filepath.Glob(filepath.Join(from, "*.go"))
			require.NoError(t, err)
			for _, f := range files {
				body, err := os.ReadFile(f)
				require.NoError(t, err)
				writeFiles(t, root, map[string]string{"src/" + pkg + "/" + filepath.Base(f): string(body)})
			}
		}
		t.Setenv("GOROOT", root)
		t.Log("a part of the library only, because of the race detector")
	}
	code, stdout, stderr := command(t, "-check")
	require.Zero(t, code, "%s%s", stdout, stderr)
	t.Log(stdout)
	m := regexp.MustCompile(`(?m)^index +(\d+) pages, (\d+) of them canonical`).FindStringSubmatch(stdout)
	require.NotNil(t, m, stdout)
	pages, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, pages, least)
	require.Regexp(t, `(?m)^check +ok: \d{4,} stored values`, stdout)
	require.Contains(t, stdout, "http package - net/http")
	require.Contains(t, stdout, "Try next:")
}

func TestQuery(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"a.html": "<title>One</title>gnu", "b.html": "<title>Two</title>gnu", "c.html": "<title>Three</title>gnu"})
	code, stdout, _ := command(t, "-dir", dir, "-query", "gnu", "-limit", "2")
	require.Zero(t, code)
	require.Regexp(t, `^"gnu": 3 pages\n  1\. `, stdout)
	require.Contains(t, stdout, "\n  2. ")
	require.NotContains(t, stdout, "\n  3. ")
}

// TestSecondRun loads a directory into a store that stays, changes it, and loads
// it again.
func TestSecondRun(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), "pebble:"+filepath.Join(t.TempDir(), "idx")
	writeFiles(t, dir, map[string]string{
		"index.html": `<title>Home</title><a href="a.html">alpha</a> <a href="sub/">sub</a>`,
		"a.html":     `<title>A</title><p>about lemurs`, "b.html": `<title>B</title>`, "sub/index.html": `<a href="../b.html">b</a>`,
	})
	r := runJSON(t, "-dir", dir, "-store", store)
	require.EqualValues(t, 4, r["added"])
	r = runJSON(t, "-dir", dir, "-store", store)
	require.EqualValues(t, 4, r["unchanged"])
	require.EqualValues(t, 0, r["transactions"])
	writeFiles(t, dir, map[string]string{"a.html": `<title>A</title><p>about tapirs`, "c.html": `<title>B</title>`})
	require.NoError(t, os.Remove(filepath.Join(dir, "sub", "index.html")))
	r = runJSON(t, "-dir", dir, "-store", store, "-query", "tapirs")
	require.EqualValues(t, 1, r["changed"])
	require.EqualValues(t, 1, r["added"])
	require.EqualValues(t, 1, r["removed"])
	require.EqualValues(t, 4, r["pages"])
	require.EqualValues(t, 1, r["duplicate_clusters"])
	require.Len(t, r["results"], 1)

	code, stdout, _ := command(t, "-store", store, "-no-load", "-query", "lemurs")
	require.Zero(t, code)
	require.Contains(t, stdout, `"lemurs": 0 pages`)

	// What should not be there is found, and named.
	corrupt(t, store, percolator.Cell{Table: "term", Row: "zebra\x00http://none.example/", Column: "w"}, []byte("1"))
	code, stdout, stderr := command(t, "-store", store, "-no-load", "-check")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, `table term, row "zebra http://none.example/", column w: "1" is stored, but nothing should be`)
	require.Contains(t, stderr, "the check found 1 differences")
	code, stdout, _ = command(t, "-store", store, "-no-load", "-check", "-json")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "nothing should be")
	corrupt(t, store, percolator.Cell{Table: "term", Row: "zebra\x00http://none.example/", Column: "w"}, nil)

	// Loading without observers leaves the work to others.
	writeFiles(t, dir, map[string]string{"d.html": `<title>Capybara</title>`})
	code, stdout, _ = command(t, "-store", store, "-dir", dir, "-workers", "0", "-query", "capybara")
	require.Zero(t, code)
	require.Contains(t, stdout, `"capybara": 0 pages`)
	r = runJSON(t, "-store", store, "-no-load", "-query", "capybara")
	require.Len(t, r["results"], 1)
}

// corrupt changes a cell behind the observers' backs; nil deletes it.
func corrupt(t testing.TB, store string, c percolator.Cell, value []byte) {
	t.Helper()
	db, err := percolator.Open(t.Context(), store)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		if value == nil {
			return tx.Delete(c)
		}
		return tx.Set(c, value)
	}))
	require.NoError(t, db.Close(t.Context()))
}

// TestIndexOverTiKV keeps the index in a mock cluster.
func TestIndexOverTiKV(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	c.Churn(t, 100, 10*time.Millisecond)
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"a.html": `<title>One</title>gnu <a href="b.html">two</a>`, "b.html": `<title>Two</title>gnu <a href="a.html">one</a>`,
		"c.html": "<title>Three</title>antelope",
	})
	r := runJSON(t, "-store", c.URL()+"?prefix=web", "-dir", dir)
	require.EqualValues(t, 3, r["pages"])
	writeFiles(t, dir, map[string]string{"c.html": "<title>Three</title>a gnu as well"})
	r = runJSON(t, "-store", c.URL()+"?prefix=web", "-dir", dir)
	require.EqualValues(t, 3, r["pages"])
}

func TestWarcFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	record := func(u, body string) string {
		block := "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + body
		return fmt.Sprintf("WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2024-05-06T07:08:09Z\r\n"+
			"WARC-Target-URI: %s\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n", u, len(block), block)
	}
	a, b, c := filepath.Join(dir, "a.warc"), filepath.Join(dir, "b.warc"), filepath.Join(dir, "c.warc")
	writeFiles(t, dir, map[string]string{
		"a.warc": record("http://x.example/1", "one"), "b.warc": record("http://x.example/2", "<a href=1>two</a>"),
		"c.warc": record("http://x.example/3", "three"), "cut.warc": record("http://x.example/4", "four")[:100],
	})
	r := runJSON(t, "-warc", a, "-warc", b, c)
	require.EqualValues(t, 3, r["pages"])
	require.EqualValues(t, 1, r["links"])

	// A malformed archive leaves nothing behind of the good one beside it.
	store := "pebble:" + filepath.Join(dir, "idx")
	code, _, stderr := command(t, "-store", store, "-warc", a, filepath.Join(dir, "cut.warc"))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, filepath.Join(dir, "cut.warc")+": record 1 at offset 0: the file ends inside the header")
	require.NoDirExists(t, filepath.Join(dir, "idx"))
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"bad/x.html": "a\x00b", "bad/y.html": "fine", "file": "x",
		"url.yaml":    "stores:\n  main: {url: 'redis://127.0.0.1:1'}\n  side: {url: 'memory:'}\nauthoritative: main\n",
		"scheme.yaml": "stores:\n  main: {scheme: pebble, path: " + filepath.Join(dir, "idx") + "}\n",
	})
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no such directory":   {[]string{"-dir", filepath.Join(dir, "none")}, 1, []string{filepath.Join(dir, "none"), "no such file"}},
		"no directory":        {[]string{"-dir", filepath.Join(dir, "file")}, 1, []string{"not a directory"}},
		"no such archive":     {[]string{"-warc", filepath.Join(dir, "none.warc")}, 1, []string{"none.warc"}},
		"malformed HTML":      {[]string{"-dir", filepath.Join(dir, "bad")}, 1, []string{filepath.Join(dir, "bad", "x.html"), "malformed HTML"}},
		"unknown scheme":      {[]string{"-dir", filepath.Join(dir, "bad"), "-skip-bad", "-store", "nosuch://x"}, 1, []string{"nosuch", "pebble"}},
		"locked path":         {[]string{"-dir", filepath.Join(dir, "bad"), "-skip-bad", "-store", "pebble:" + filepath.Join(dir, "file")}, 1, []string{"file"}},
		"unknown flag":        {[]string{"-nosuch"}, 2, []string{"nosuch"}},
		"stray argument":      {[]string{"stray"}, 2, []string{`"stray"`}},
		"flag after file":     {[]string{"-warc", "a", "b", "-check"}, 2, []string{"-check", "put flags first"}},
		"negative workers":    {[]string{"-workers", "-1"}, 2, []string{"-workers -1"}},
		"no loaders":          {[]string{"-loaders", "0"}, 2, []string{"-loaders 0"}},
		"no processes":        {[]string{"-processes", "0"}, 2, []string{"-processes 0", "1 or more"}},
		"negative processes":  {[]string{"-processes", "-1"}, 2, []string{"-processes -1", "1 or more"}},
		"too many processes":  {[]string{"-processes", "1000", "-store", "redis://127.0.0.1:1"}, 2, []string{"-processes 1000", "64 or less"}},
		"not a number":        {[]string{"-processes", "many"}, 2, []string{"-processes"}},
		"processes, memory":   {[]string{"-processes", "2"}, 2, []string{"memory: or pebble: belongs to one process", "redis://"}},
		"processes, pebble":   {[]string{"-processes", "8", "-store", "pebble:" + filepath.Join(dir, "idx")}, 2, []string{"memory: or pebble: belongs to one process"}},
		"processes, file":     {[]string{"-processes", "2", "-config", filepath.Join(dir, "url.yaml")}, 2, []string{"memory: or pebble: belongs to one process"}},
		"processes, scheme":   {[]string{"-processes", "2", "-config", filepath.Join(dir, "scheme.yaml")}, 2, []string{"memory: or pebble: belongs to one process"}},
		"processes, no file":  {[]string{"-processes", "2", "-config", filepath.Join(dir, "none.yaml")}, 2, []string{"none.yaml"}},
		"idle processes":      {[]string{"-processes", "2", "-workers", "0", "-store", "redis://127.0.0.1:1"}, 2, []string{"-processes 2", "-workers 1 or more"}},
		"no limit":            {[]string{"-limit", "0"}, 2, []string{"-limit 0"}},
		"check, no workers":   {[]string{"-check", "-workers", "0"}, 2, []string{"-check"}},
		"no-load with source": {[]string{"-no-load", "-dir", dir}, 2, []string{"-no-load"}},
		"config and store":    {[]string{"-config", "x", "-store", "memory:"}, 2, []string{"-config and -store"}},
		"no such config":      {[]string{"-dir", filepath.Join(dir, "bad"), "-skip-bad", "-config", filepath.Join(dir, "none.yaml")}, 1, []string{"none.yaml"}},
		"bad address":         {[]string{"-dir", filepath.Join(dir, "bad"), "-skip-bad", "-listen", "localhost:notaport"}, 1, []string{"-listen localhost:notaport"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := command(t, c.args...)
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			for _, want := range c.want {
				require.Contains(t, stderr, want)
			}
		})
	}
	require.NoDirExists(t, filepath.Join(dir, "idx"))
	code, _, stderr := command(t, "-dir", filepath.Join(dir, "bad"), "-skip-bad")
	require.Zero(t, code)
	require.Contains(t, stderr, "skipped: file "+filepath.Join(dir, "bad", "x.html"))
	code, _, stderr = command(t, "-h")
	require.Zero(t, code)
	require.Contains(t, stderr, "Usage:")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	require.Equal(t, 130, run(ctx, nil, io.Discard, &errs))
	require.Contains(t, errs.String(), "interrupted")
}

// waitFor is a writer that tells when a line has come.
type waitFor struct {
	io.Writer
	line *regexp.Regexp
	all  bytes.Buffer
	got  chan string
}

func (w *waitFor) Write(p []byte) (int, error) {
	w.all.Write(p)
	if m := w.line.FindStringSubmatch(w.all.String()); m != nil && w.got != nil {
		w.got <- m[1]
		w.got = nil
	}
	return len(p), nil
}

func TestListen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"a.html": "<title>Okapi</title>"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan string, 1)
	w := &waitFor{line: regexp.MustCompile(`serving (http://\S+) `), got: got}
	code := make(chan int, 1)
	go func() { code <- run(ctx, []string{"-dir", dir, "-listen", "localhost:0"}, io.Discard, w) }()
	var base string
	select {
	case base = <-got:
	case c := <-code:
		t.Fatalf("it ended with status %d before it served: %s", c, &w.all)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"?q=okapi", nil)
	require.NoError(t, err)
	res, err := client.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, string(body), "Okapi")
	cancel()
	require.Zero(t, <-code, "an interrupt is how serving ends")
}

// manualEnv names a directory with the HTML of a large manual.
const manualEnv = "WEBINDEX_MANUAL"

// TestLargeManual indexes a large real manual, changes a third of its pages,
// removes some and makes some duplicates of others, with 16 workers.
func TestLargeManual(t *testing.T) {
	manual := os.Getenv(manualEnv)
	if manual == "" {
		manual = "/usr/share/doc/postgresql-doc-15/html" // where Debian's package of that name puts it
	}
	if _, err := os.Stat(manual); err != nil {
		t.Skipf("the manual is not there (%v): install postgresql-doc-15, or name another in %s", err, manualEnv)
	}
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // test data
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, htmlFS{os.DirFS(manual)}))
	files, err := filepath.Glob(filepath.Join(dir, "*.html"))
	require.NoError(t, err)
	slices.Sort(files)
	if raceEnabled {
		t.Log("every twentieth page only, because of the race detector")
		var kept []string
		for i, f := range files {
			if i%20 == 0 {
				kept = append(kept, f)
			} else {
				require.NoError(t, os.Remove(f))
			}
		}
		files = kept
	}
	store := "pebble:" + filepath.Join(t.TempDir(), "idx")

	r := runJSON(t, "-dir", dir, "-store", store, "-workers", "16")
	t.Logf("%v pages in %v s", r["pages"], r["seconds"])
	require.EqualValues(t, r["pages"], r["added"])

	rnd.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	third, tenth := len(files)/3, len(files)/10
	changed, removed, copied, kept := files[:third], files[third:third+tenth], files[third+tenth:third+2*tenth], files[third+2*tenth:]
	for i, f := range changed {
		body, err := os.ReadFile(f)
		require.NoError(t, err)
		more := fmt.Sprintf("<p>changed%d <a href=%q>see%d</a></body>", i, filepath.Base(kept[rnd.IntN(len(kept))]), i%7)
		require.NoError(t, os.WriteFile(f, bytes.Replace(body, []byte("</body>"), []byte(more), 1), 0o600))
	}
	for _, f := range removed {
		require.NoError(t, os.Remove(f))
	}
	for _, f := range copied {
		body, err := os.ReadFile(kept[rnd.IntN(len(kept)/3)])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(f, body, 0o600))
	}
	r = runJSON(t, "-dir", dir, "-store", store, "-workers", "16")
	t.Logf("%v changed, %v removed in %v s, %v contents with duplicates", r["changed"], r["removed"], r["seconds"], r["duplicate_clusters"])
	require.EqualValues(t, len(removed), r["removed"])
	require.GreaterOrEqual(t, r["changed"], float64(len(changed)))
	require.NotZero(t, r["duplicate_clusters"])

	fresh := runJSON(t, "-dir", dir, "-workers", "16")
	for _, field := range []string{"pages", "indexed", "duplicate_clusters", "links", "postings"} {
		require.Equal(t, fresh[field], r[field], field)
	}
}

// htmlFS shows the HTML files of a directory, and no symbolic links.
type htmlFS struct{ fs.FS }

func (f htmlFS) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool {
		return !e.IsDir() && (!e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".html"))
	}), err
}

func TestConfigFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"site/a.html": "<title>Quokka</title>", "percolator.yaml": "stores:\n  main: {url: 'memory:'}\nsettings: {catalog_lease: 1s}\n"})
	r := runJSON(t, "-config", filepath.Join(dir, "percolator.yaml"), "-dir", filepath.Join(dir, "site"), "-query", "quokka")
	require.Len(t, r["results"], 1)
}
