package browser

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color/palette"
	"image/draw"
	"image/png"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/ui"
)

var screenshots = flag.String("screenshots", "", "write the pictures of the documents into this folder")

const (
	token = "a token of twenty bytes and more"
	// hostile would tell of itself if the page took it for HTML.
	hostile = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>` + "\xff"
)

// world is a small shop with a page over it.
type world struct {
	t      *testing.T
	db     *percolator.DB
	server *httptest.Server
	bad    string        // part of names and values: hostile, but in the pictures of the documents
	locked time.Duration // for how long the lock of a process holds
	*chromium
}

func cell(table, row, column string) percolator.Cell {
	return percolator.Cell{Table: table, Row: row, Column: column}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	db, err := percolator.New(ctx, memstore.New(), percolator.WithLogger(slog.New(slog.DiscardHandler)), percolator.WithSettings(percolator.Settings{CatalogLease: 10 * time.Millisecond}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	w := &world{t: t, db: db, bad: hostile, locked: time.Hour}
	if *screenshots != "" {
		w.bad, w.locked = "", 10*time.Second
	}
	worker := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	fine := func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }
	park := func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
		return percolator.Park(errors.New("the page has no end tag: " + c.Row))
	}
	for _, o := range []percolator.Observer{
		{Name: "links", Table: "page", Column: "body", Func: park},
		{Name: "ship", Table: "order", Column: "state", Func: fine},
		{Name: "mail", Table: "account", Column: "balance", Func: fine},
		{Name: "price" + w.bad, Table: "item" + w.bad, Column: "c", Func: park},
	} {
		require.NoError(t, worker.Observe(o))
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	for _, c := range []percolator.Cell{
		cell("page", "about.html", "body"), cell("page", "home.html", "body"), cell("order", "16", "state"), cell("order", "17", "state"), cell("account", "ann", "balance"), cell("item"+w.bad, "4711"+w.bad, "c"),
	} {
		w.set(c, "new")
	}
	require.NoError(t, worker.WaitIdle(ctx))
	w.set(cell("order", "17", "state"), "paid"+w.bad)
	require.NoError(t, worker.WaitIdle(ctx))
	w.lock(cell("order", "16", "state"))

	login, err := ui.NewLogin(token, ui.LoginOptions{Access: ui.Access{Who: "token", Values: true, Actions: true}})
	require.NoError(t, err)
	h, err := ui.New(db, login.Authorize, ui.Options{Login: login, Timeout: patience, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.server = httptest.NewServer(h)
	t.Cleanup(func() {
		w.server.Close()
		require.NoError(t, h.Close(context.Background()))
	})
	w.chromium = start(t)
	return w
}

func (w *world) set(c percolator.Cell, value string) {
	w.t.Helper()
	require.NoError(w.t, w.db.Update(w.t.Context(), func(tx *percolator.Txn) error { return tx.Set(c, []byte(value)) }))
}

// lock puts the lock of a process that lives on a cell.
func (w *world) lock(c percolator.Cell) {
	w.t.Helper()
	now, err := w.db.Now(w.t.Context())
	require.NoError(w.t, err)
	stored := format.Cell{Table: format.Escape(c.Table), Row: c.Row, Column: format.Escape(c.Column)}
	l, session := format.Lock{Kind: format.KindPut, Expiry: now.Add(w.locked), Session: "shop-7f3a", Primary: stored}, format.Session{}
	_, err = w.db.Store().Apply(w.t.Context(), []rowstore.Mutation{
		{Table: format.TableSessions, Row: "shop-7f3a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), session.Encode())}},
		{Table: stored.Table, Row: stored.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, stored.Column, now, l.Encode())}},
	}, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
}

func (w *world) paused(name string) bool {
	w.t.Helper()
	infos, err := w.db.Observers(w.t.Context())
	require.NoError(w.t, err)
	for _, o := range infos {
		if o.Name == name {
			return o.Paused
		}
	}
	w.t.Fatalf("there is no observer %q", name)
	return false
}

func (w *world) parked(name string) (n int) {
	w.t.Helper()
	runs, err := w.db.Parked(w.t.Context())
	require.NoError(w.t, err)
	for _, p := range runs {
		if p.Observer == name {
			n++
		}
	}
	return n
}

// picture writes a picture of the page, if they were asked for, in few colours, so that it is small.
func (w *world) picture(name string) {
	w.t.Helper()
	if *screenshots == "" {
		return
	}
	shot, err := png.Decode(bytes.NewReader(get(w.chromium, chromedp.CaptureScreenshot())))
	require.NoError(w.t, err)
	small := image.NewPaletted(shot.Bounds(), palette.Plan9)
	draw.Draw(small, small.Bounds(), shot, image.Point{}, draw.Src)
	var b bytes.Buffer
	require.NoError(w.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small))
	require.NoError(w.t, os.WriteFile(filepath.Join(*screenshots, name+".png"), b.Bytes(), 0o644)) //nolint:gosec // for everybody
}

// clean checks that nothing that looks like HTML was taken for it.
func (w *world) clean() {
	w.t.Helper()
	require.False(w.t, get(w.chromium, chromedp.Evaluate[bool](`window.hacked !== undefined || document.querySelector("img, main script") !== null`)))
	require.Empty(w.t, w.complaints())
}

// TestPage goes through the page as a person does: one browser, from the login to the forgeries.
func TestPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{{"login", login}, {"views", views}, {"live", live}, {"actions", actions}, {"without scripts", withoutScripts}, {"forgeries", forgeries}, {"logout", logout}} {
		t.Log(part.name) // no test of its own: what follows needs it
		part.run(t, w)
	}
}

func login(t *testing.T, w *world) {
	_, body := w.open(w.server.URL + "/observers")
	require.Contains(t, body, "token")
	require.NotContains(t, body, "links")
	enter := func(word string) string {
		_, body := w.follow(chromedp.SendKeys(chromedp.CSS(`input[name=token]`), word+"\r"))
		return body
	}
	require.Contains(t, enter("a wrong one"), "That is not the token.")
	require.Contains(t, enter(token), "Overview")
	require.Equal(t, w.server.URL+"/", get(w.chromium, chromedp.Location()))
	require.Empty(t, get(w.chromium, chromedp.Evaluate[string](`document.cookie`)), "a script can read the cookie")
}

// views visits each view, by its link at the top.
func views(t *testing.T, w *world) {
	for _, v := range []struct{ link, says, picture string }{
		{"overview", "Garbage collection", "overview"},
		{"observers", "links", ""},
		{"parked", "no end tag: home.html", "parked"},
		{"tables", "order", ""},
		{"processes", "shop-7f3a", ""},
		{"replays", "Begun on this page", ""},
		{"locks", "Choose it", ""},
	} {
		status, body := w.follow(chromedp.Click(`//nav/a[.="` + v.link + `"]`))
		require.Equal(t, int64(200), status)
		require.Contains(t, body, v.says)
		w.clean()
		if v.picture != "" {
			w.picture(v.picture)
		}
	}
	require.Contains(t, w.click("order", "locks"), "of process shop-7f3a, alive")
	for _, address := range []string{"backlog?table=order", "timers?table=order"} {
		status, _ := w.open(w.server.URL + "/" + address)
		require.Equal(t, int64(200), status)
	}
	// A cell, by the form.
	w.open(w.server.URL + "/cell")
	_, body := w.follow(chromedp.SendKeys(chromedp.CSS(`input[name=table]`), "order"), chromedp.SendKeys(chromedp.CSS(`input[name=row]`), "16"), chromedp.SendKeys(chromedp.CSS(`input[name=column]`), "state\r"))
	require.Contains(t, body, "the cell is locked (put) by transaction")
	require.Contains(t, body, "its lock ends in")
	w.picture("cell")
	w.open(w.server.URL + "/cell?table=order&row=17&column=state")
	require.Contains(t, w.click("", "show them"), "paid"+strings.TrimSuffix(w.bad, "\xff"))
	w.clean()
	// Names that look like HTML, by the links.
	w.open(w.server.URL + "/parked")
	_, body = w.follow(chromedp.Click(`//main//a[starts-with(@href, "cell?") and contains(., "item")]`))
	require.Contains(t, body, "is parked for the change")
	w.clean()
}

// live waits for a change to show by itself, while the page stays where it is.
func live(t *testing.T, w *world) {
	w.open(w.server.URL + "/cell?table=account&row=ann&column=balance")
	get(w.chromium, chromedp.Evaluate[chromedp.Void](`window.same = true`))
	before := get(w.chromium, chromedp.Evaluate[int](`document.querySelectorAll("main table tr").length`))
	w.set(cell("account", "ann", "balance"), "90")
	get(w.chromium, chromedp.Poll[bool](fmt.Sprintf(`document.querySelectorAll("main table tr").length === %d`, before+1), chromedp.WithPollingTimeout(patience)))
	require.True(t, get(w.chromium, chromedp.Evaluate[bool](`window.same === true`)), "the page was loaded anew")
	get(w.chromium, chromedp.Click(chromedp.CSS(`#live`)))
	w.until("go on")
	w.clean()
}

// actions does each of them by clicks.
func actions(t *testing.T, w *world) {
	w.open(w.server.URL + "/observers")
	require.Contains(t, w.click("mail", "pause"), "No worker begins a run of it")
	require.Contains(t, w.click("", "Pause an observer"), "It is paused.")
	require.True(t, w.paused("mail"))
	require.Contains(t, w.click("", "back"), "resume")
	w.click("mail", "resume")
	require.Contains(t, w.click("", "Resume an observer"), "It is resumed.")
	require.False(t, w.paused("mail"))

	require.Equal(t, 2, w.parked("links"))
	w.open(w.server.URL + "/parked?observer=links")
	require.Contains(t, w.click("home.html", "drop"), "There is no way back")
	require.Contains(t, w.click("", "Drop a parked run"), "It is dropped.")
	require.Equal(t, 1, w.parked("links"))
	w.open(w.server.URL + "/parked?observer=links")
	w.click("about.html", "retry")
	require.Contains(t, w.click("", "Retry a parked run"), "It is released.")
	require.Eventually(t, func() bool { return w.parked("links") == 1 }, patience, 10*time.Millisecond, "it fails again")
	w.open(w.server.URL + "/parked?observer=links")
	w.click("", "retry them all")
	require.Contains(t, w.click("", "Retry the parked runs of an observer"), "1 parked runs are released.")

	w.open(w.server.URL + "/observers")
	w.click("ship", "replay")
	get(w.chromium, chromedp.SendKeys(chromedp.CSS(`input[name=from]`), "17"))
	require.Contains(t, w.click("", "Replay an observer"), "It is under way.")
	w.click("", "back")
	w.until("done: 1 cells")
	// The one that waits for the lock is cancelled.
	w.open(w.server.URL + "/confirm?do=replay&observer=ship&table=order")
	require.Contains(t, w.click("", "Replay an observer"), "It is under way.")
	w.open(w.server.URL + "/confirm?do=cancel-replay&observer=ship&table=order")
	require.Contains(t, w.click("", "Cancel a replay"), "It is cancelled.")
	w.clean()
}

// withoutScripts does an action in a browser that runs none.
func withoutScripts(t *testing.T, w *world) {
	scripts := func(on bool) {
		_, err := chromedp.Call(w.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
		require.NoError(t, err)
	}
	scripts(false)
	w.open(w.server.URL + "/observers")
	w.click("mail", "pause")
	require.Contains(t, w.click("", "Pause an observer"), "It is paused.")
	require.True(t, w.paused("mail"))
	scripts(true)
	require.NoError(t, w.db.ResumeObserver(t.Context(), "mail"))
}

// forgeries are a form of another site, the page in its frame, and a name of another that resolves to this machine.
func forgeries(t *testing.T, w *world) {
	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/frame" {
			_, _ = fmt.Fprintf(rw, `<iframe src="%s/observers"></iframe>`, w.server.URL)
			return
		}
		_, _ = fmt.Fprintf(rw, `<form method="post" action="%s/act"><input name="do" value="pause"><input name="observer" value="mail"></form><script>document.forms[0].submit()</script>`, w.server.URL)
	}))
	t.Cleanup(evil.Close)
	// Another port is the same site, so the cookie is sent: the origin tells. Another name is another site.
	for _, from := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "evil.example", 1)} {
		get(w.chromium, chromedp.Navigate(from))
		w.until("a form is taken from this page alone")
		require.False(t, w.paused("mail"))
	}
	status, body := w.open(strings.Replace(w.server.URL, "127.0.0.1", "evil.example", 1) + "/observers")
	require.Equal(t, int64(http.StatusMisdirectedRequest), status)
	require.NotContains(t, body, "links")
	get(w.chromium, chromedp.Navigate(evil.URL+"/frame"))
	require.False(t, get(w.chromium, chromedp.Evaluate[bool](`(() => { try { return frames[0].document.body.innerText.includes("links") } catch { return false } })()`)))
}

func logout(t *testing.T, w *world) {
	w.open(w.server.URL + "/")
	_, body := w.follow(chromedp.Click(`//header//button`))
	require.Contains(t, body, "token")
	_, body = w.open(w.server.URL + "/observers")
	require.NotContains(t, body, "links")
}
