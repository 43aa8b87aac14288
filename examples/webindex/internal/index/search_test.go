package index_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
)

// list is a source with the pages that a test writes down.
type list struct {
	id       string
	complete bool
	pages    []source.Page
}

func (l list) ID() string     { return l.id }
func (l list) Complete() bool { return l.complete }
func (l list) Prepare(context.Context) (source.Summary, error) {
	return source.Summary{Pages: len(l.pages)}, nil
}

func (l list) Items(context.Context) iter.Seq2[source.Item, error] {
	return func(yield func(source.Item, error) bool) {
		for _, p := range l.pages {
			if !yield(source.Item{URL: p.URL, Read: func(context.Context) (source.Page, error) { return p, nil }}, nil) {
				return
			}
		}
	}
}

func html(u, body string) source.Page {
	return source.Page{URL: "http://x.example/" + u, Body: []byte(body)}
}

func search(t testing.TB, x *index.Index, query string) []string {
	t.Helper()
	res, err := x.Search(t.Context(), query, 10)
	require.NoError(t, err)
	var got []string
	for _, r := range res.Top {
		got = append(got, strings.TrimPrefix(r.URL, "http://x.example/"))
	}
	return got
}

func TestSearch(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	e := start(t, db, 8)
	long := strings.Repeat("filler words that say nothing ", 100)
	e.load(t, list{"l", true, []source.Page{
		html("title", "<title>Zebra</title><p>some text"),
		html("body", "<title>Animals</title><p>a zebra among others"),
		html("long", "<title>Animals too</title><p>a zebra among others "+long),
		html("anchor", "<title>Striped</title><p>no such word"),
		html("linker", "<p>see <a href=anchor>zebra</a>"),
		html("both", "<p>zebra giraffe "+long),
		html("giraffe", "<title>Giraffe</title><p>giraffe"),
		html("markup", "<title>&lt;b&gt; tags</title><p>marked &amp; up"),
	}}, 4)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, 8)

	require.Equal(t, []string{"title", "anchor", "linker", "body", "both", "long"}, search(t, e.Index, "ZEBRA"))
	require.Equal(t, "both", search(t, e.Index, "zebra giraffe the")[0], "a page with both words is first")
	require.Empty(t, search(t, e.Index, "unknownword"))
	require.Empty(t, search(t, e.Index, "the of !"))
	res, err := e.Search(t.Context(), "marked", 1)
	require.NoError(t, err)
	require.Equal(t, "<b> tags", res.Top[0].Title)
	require.Equal(t, "marked & up", res.Top[0].Snippet)
	res, err = e.Search(t.Context(), "nothing", 10)
	require.NoError(t, err)
	require.Equal(t, 2, res.Total)
	require.Less(t, len(res.Top[0].Snippet), 250)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.Search(ctx, "zebra", 10)
	require.ErrorIs(t, err, context.Canceled)
}

// TestCanonicalMoves checks that anchor text follows the canonical page of a
// cluster of duplicates when it becomes another one.
func TestCanonicalMoves(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	e := start(t, db, 8)
	pages := []source.Page{
		html("a", "<p>same"), html("b", "<p>same"), html("c", "<p>same"),
		html("l1", "<p>1 <a href=b>lion</a>"),
	}
	load := func() {
		t.Helper()
		e.load(t, list{"l", true, pages}, 4)
		require.NoError(t, e.w.WaitIdle(t.Context()))
		requireIndex(t, db, len(pages))
	}
	found := func(want string) {
		t.Helper()
		got := search(t, e.Index, "same")
		require.Equal(t, []string{want}, got)
	}
	load()
	found("b")
	require.Contains(t, search(t, e.Index, "lion"), "b")

	pages = append(pages, html("l2", "<p>2 <a href=a>tiger</a>"))
	load()
	found("a") // as many in-links as b, and the lower URL
	require.Contains(t, search(t, e.Index, "lion"), "a", "the text of a link to b reaches a")

	pages = append(pages, html("l3", "<p>3 <a href=c>puma</a>"), html("l4", "<p>4 <a href=c>puma</a>"))
	load()
	found("c")
	for _, q := range []string{"lion", "tiger", "puma"} {
		require.Contains(t, search(t, e.Index, q), "c")
	}

	info, err := e.Page(t.Context(), "http://x.example/a", 0)
	require.NoError(t, err)
	require.Equal(t, "http://x.example/c", info.Canonical)
	require.Equal(t, []string{"http://x.example/b", "http://x.example/c"}, info.Duplicates)
	require.Equal(t, []index.InLink{{Source: "http://x.example/l2", Anchors: []string{"tiger"}}}, info.InLinks)

	pages = pages[1:2] // only b is left
	load()
	found("b")
	require.Empty(t, search(t, e.Index, "lion"))
}

// TestDuplicatesAndLinksAtOnce gives pages that are alone in their clusters new links
// while duplicates of them come, which get links too: whichever run is first, the page
// with the most links must be canonical in the end.
func TestDuplicatesAndLinksAtOnce(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(seed(t), 0))
	db := open(t, "memory:")
	e := start(t, db, 8)
	const contents = 15
	var pages []source.Page
	for i := range contents {
		pages = append(pages, html(fmt.Sprintf("m%d", i), fmt.Sprintf("<p>content %d", i)))
	}
	e.load(t, list{"l", true, pages}, 4)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	for round := range 3 {
		var more []source.Page
		for i := range contents {
			names := []string{fmt.Sprintf("m%d", i), fmt.Sprintf("d%d-%d", i, round)}
			more = append(more, html(names[1], fmt.Sprintf("<p>content %d", i)))
			for _, name := range names {
				for k := range r.IntN(3) {
					more = append(more, html(fmt.Sprintf("to-%s-%d-%d", name, round, k), fmt.Sprintf("<p>%s %d %d <a href=%s>lion</a>", name, round, k, name)))
				}
			}
		}
		r.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
		pages = append(pages, more...)
		e.load(t, list{"l", true, pages}, 8)
		require.NoError(t, e.w.WaitIdle(t.Context()))
		requireIndex(t, db, len(pages))
	}
}

// TestManyTerms loads a page with more terms than one transaction changes.
func TestManyTerms(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	e := start(t, db, 4)
	var b strings.Builder
	for i := range 2300 {
		fmt.Fprintf(&b, "many%d ", i)
	}
	for _, body := range []string{b.String(), strings.ReplaceAll(b.String(), "many", "more"), "few"} {
		e.load(t, list{"l", true, []source.Page{html("a", body)}}, 1)
		require.NoError(t, e.w.WaitIdle(t.Context()))
		requireIndex(t, db, 1)
	}
	require.Equal(t, []string{"a"}, search(t, e.Index, "few"))
	require.Empty(t, search(t, e.Index, "many1"))
}

func TestSources(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	e := start(t, db, 4)
	load := func(l list) *index.LoadStats {
		t.Helper()
		stats := e.load(t, l, 4)
		require.NoError(t, e.w.WaitIdle(t.Context()))
		return stats
	}
	pages := func(want int) {
		t.Helper()
		c, err := e.Count(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, c.Pages)
		requireIndex(t, db, want)
	}
	load(list{"one", true, []source.Page{html("a", "a"), html("b", "b"), html("c", "c")}})
	load(list{"two", true, []source.Page{html("c", "c"), html("d", "d")}})
	pages(4)
	stats := load(list{"one", true, []source.Page{html("a", "a")}})
	require.EqualValues(t, 1, stats.Removed.Load(), "b is gone; c belongs to the other source now")
	pages(3)
	stats = load(list{"two", false, nil})
	require.Zero(t, stats.Removed.Load(), "a source that is not complete removes nothing")
	pages(3)

	// Captures count by when they were fetched, in whatever order they are loaded.
	at := func(day int, p source.Page) source.Page {
		p.Fetched = time.Date(2024, 1, day, 0, 0, 0, 0, time.UTC)
		return p
	}
	gone := source.Page{URL: "http://x.example/w", Gone: true}
	load(list{"warc", false, []source.Page{at(2, html("w", "second"))}})
	stats = load(list{"warc", false, []source.Page{at(1, html("w", "first"))}})
	require.EqualValues(t, 1, stats.Older.Load())
	require.Equal(t, []string{"w"}, search(t, e.Index, "second"))
	stats = load(list{"warc", false, []source.Page{at(4, gone)}})
	require.EqualValues(t, 1, stats.Removed.Load())
	stats = load(list{"warc", false, []source.Page{at(3, html("w", "third"))}})
	require.EqualValues(t, 1, stats.Older.Load(), "it was gone on the fourth")
	require.Empty(t, search(t, e.Index, "third"))
	load(list{"warc", false, []source.Page{at(5, html("w", "fifth"))}})
	require.Equal(t, []string{"w"}, search(t, e.Index, "fifth"))
	pages(4)

	info, err := e.Page(t.Context(), "http://x.example/w", 0)
	require.NoError(t, err)
	require.Equal(t, 5, info.Fetched.Day())
	require.Equal(t, "warc", info.Source)
	require.Len(t, info.History, 3)
	require.Equal(t, index.Hash([]byte("fifth")), info.History[0].Hash)
	require.Empty(t, info.History[1].Hash, "removed")
	require.Equal(t, index.Hash([]byte("second")), info.History[2].Hash)
	then, err := e.Page(t.Context(), "http://x.example/w", info.History[2].Until)
	require.NoError(t, err)
	require.True(t, then.Exists)
	require.Equal(t, "second", then.Text)
	then, err = e.Page(t.Context(), "http://x.example/w", info.History[1].Until)
	require.NoError(t, err)
	require.False(t, then.Exists)
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	e := start(t, db, 4)
	for i := range 25 {
		e.load(t, list{"l", true, []source.Page{html("a", fmt.Sprint("version ", i))}}, 1)
	}
	info, err := e.Page(t.Context(), "http://x.example/a", 0)
	require.NoError(t, err)
	require.Len(t, info.History, 20)
	require.Equal(t, index.Hash([]byte("version 24")), info.History[0].Hash)
}

func TestOtherFormat(t *testing.T) {
	t.Parallel()
	db := open(t, "memory:")
	_, err := index.New(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "meta", Row: "webindex", Column: "format"}, []byte("0."+page.Version))
	}))
	_, err = index.New(t.Context(), db)
	require.ErrorIs(t, err, index.ErrFormat)
	require.ErrorContains(t, err, "0."+page.Version)
}
