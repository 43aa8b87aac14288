package browser

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience bounds each step of a test, on a loaded machine.
const patience = 2 * time.Minute

// find finds a Chromium.
func find(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("PERCOLATOR_TEST_BROWSER"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium is there: install Debian's package chromium (scripts/test-browser does so as root), or name one with PERCOLATOR_TEST_BROWSER")
	return ""
}

// chromium is a browser with one page, and what it complained of.
type chromium struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp's handle of the page

	mu   sync.Mutex
	said []string
}

func start(t *testing.T) *chromium {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(find(t)), chromedp.WindowSize(1200, 780), chromedp.Flag("disable-dev-shm-usage", true),
		// A name that somebody else owns, and that resolves to this machine.
		chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1"),
	)
	if os.Geteuid() == 0 { // its sandbox does not work for root
		opts = append(opts, chromedp.NoSandbox)
	}
	ctx, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	c := &chromium{t: t, ctx: ctx}
	// It starts the browser, which lives as long as its context.
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			c.say("an exception: " + e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			// That a page is refused is said here, too, and is what the test wants.
			if e.Entry.Source != log.EntrySourceNetwork {
				c.say(e.Entry.Text)
			}
		}
	}))
	return c
}

func (c *chromium) say(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, what)
}

// complaints are what the browser has said, such as a script that the policy forbids.
func (c *chromium) complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// get runs an action, which waits for what it needs, and returns its value.
func get[T any](c *chromium, action chromedp.Action[T]) T {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	c.check(err)
	return v
}

// check says where the page is, if an action has failed.
func (c *chromium) check(err error) {
	c.t.Helper()
	if err == nil {
		return
	}
	at, _ := chromedp.Run(c.ctx, chromedp.Location())
	body, _ := chromedp.Run(c.ctx, chromedp.Evaluate[string](`document.body.innerText`))
	require.NoError(c.t, err, "at %s: %s", at, body)
}

// open goes to an address, and returns the status and the text of what is there.
func (c *chromium) open(address string) (int64, string) {
	c.t.Helper()
	return c.follow(chromedp.Navigate(address))
}

// follow does what leads to another page.
func (c *chromium) follow(steps ...chromedp.Action[chromedp.Void]) (int64, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	r, err := chromedp.RunResponse(ctx, steps...)
	c.check(err)
	require.NotNil(c.t, r)
	return r.Status, get(c, chromedp.Text(chromedp.CSS("body")))
}

// click clicks the first link or button in the row of a table that has a text, or anywhere for "".
func (c *chromium) click(row, label string) string {
	c.t.Helper()
	path := `//main`
	if row != "" {
		path += `//tr[contains(., "` + row + `")]`
	}
	path += `//*[self::a or self::button][normalize-space(.)="` + label + `"]`
	status, body := c.follow(chromedp.Click(path))
	require.Equal(c.t, int64(200), status, body)
	return body
}

// until waits until the page shows a text, without loading it again.
func (c *chromium) until(says string) {
	c.t.Helper()
	get(c, chromedp.Poll[bool](`document.body.innerText.includes(`+quote(says)+`)`, chromedp.WithPollingTimeout(patience)))
}

func quote(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }
