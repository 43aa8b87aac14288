// Package source holds where pages come from: a directory of HTML files, web
// archives, and the documentation of Go's standard library.
package source

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
)

// Source is where pages come from.
type Source interface {
	// ID names the source in the store: pages remember which source loaded them.
	ID() string
	// Complete tells whether the source lists everything that it has. Pages that an
	// earlier load of a complete source brought and that it does not list any more
	// are removed from the store.
	Complete() bool
	// Prepare reads and checks all of the input without keeping the pages, so that
	// bad input is found before anything is written. It is called once, before
	// Items.
	Prepare(ctx context.Context) (Summary, error)
	// Items gives every page, each URL once. It stops at the first error, which it
	// yields with a zero Item, and at the end of ctx.
	Items(ctx context.Context) iter.Seq2[Item, error]
}

// Summary says what Prepare found.
type Summary struct {
	// Pages is how many Items there will be.
	Pages int
	// Ignored counts input that is no page, by the reason.
	Ignored map[string]int
	// Bad describes, one each, what was skipped because it was malformed. It is
	// empty unless the source was made to skip bad input.
	Bad []string
}

// Item is a page that can be read.
type Item struct {
	URL string
	// Read returns the page. It may be called from any goroutine, once.
	Read func(ctx context.Context) (Page, error)
}

// Page is one page, or the news that there is none any more.
type Page struct {
	// URL is normalized; see page.Normalize.
	URL string
	// Body is UTF-8; see page.Decode.
	Body []byte
	// Gone says that the page was found to be gone. Body is empty then.
	Gone bool
	// Fetched is when the page was fetched, in an archive, and otherwise zero. A
	// page never replaces one that was fetched later.
	Fetched time.Time
}

// check refuses a page that the index could not take.
func check(p Page) error {
	if len(p.Body) > page.MaxBody {
		return fmt.Errorf("%w: %d bytes, the limit is %d", page.ErrTooLarge, len(p.Body), page.MaxBody)
	}
	if p.Gone {
		return nil
	}
	_, err := page.Parse(p.URL, p.Body)
	return err
}
