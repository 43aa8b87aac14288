package index

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/percolator"
)

// Result is one page that a query found.
type Result struct {
	URL     string
	Title   string
	Snippet string // the text around the first term of the query
	Matched int    // terms of the query that the page has
	Score   float64
}

// Results is the answer to a query.
type Results struct {
	Terms []string // the different terms of the query, in byte order
	Total int      // pages that have any of them
	Top   []Result
}

// maxQueryTerms bounds the work for one query.
const maxQueryTerms = 32

// Search ranks the pages that have terms of the query and returns the first limit
// ones. Pages with more of the terms come first; among those with equally many
// the sum over the terms counts, of the term's weight in the page times how rare
// the term is, and then the URL's byte order. All of it is read from one snapshot.
func (x *Index) Search(ctx context.Context, query string, limit int) (Results, error) {
	terms := slices.Sorted(page.Terms(query))
	terms = slices.Compact(terms)
	terms = terms[:min(len(terms), maxQueryTerms)]
	res := Results{Terms: terms}
	if len(terms) == 0 {
		return res, nil
	}
	err := x.db.View(ctx, func(tx *percolator.Txn) error {
		docs, err := indexedPages(ctx, tx)
		if err != nil {
			return err
		}
		postings := make([]map[string]int, len(terms))
		for i, t := range terms {
			postings[i] = make(map[string]int)
			for row, err := range tx.Scan(ctx, under(tableTerm, t, "w")) {
				if err != nil {
					return err
				}
				w, err := strconv.Atoi(string(row.Columns["w"]))
				if err != nil {
					return fmt.Errorf("%w: weight of %q: %w", errStored, t, err)
				}
				postings[i][second(row.Key)] = w
			}
		}
		all := rank(docs, postings)
		res.Total, res.Top = len(all), all[:min(len(all), max(0, limit))]
		return describe(ctx, tx, terms, res.Top)
	})
	if err != nil {
		return Results{}, fmt.Errorf("search for %q: %w", query, err)
	}
	return res, nil
}

func indexedPages(ctx context.Context, tx *percolator.Txn) (int, error) {
	docs := 0
	for row, err := range tx.Scan(ctx, percolator.Range{Table: tableStat, Columns: []string{"docs"}}) {
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(string(row.Columns["docs"]))
		if err != nil {
			return 0, fmt.Errorf("%w: count of pages: %w", errStored, err)
		}
		docs += n
	}
	return docs, nil
}

// rank orders pages by what the postings, URL to weight for each term, say of
// them. docs is the number of pages that there are.
func rank(docs int, postings []map[string]int) []Result {
	found := make(map[string]*Result)
	for _, p := range postings {
		rarity := math.Log(1 + (math.Max(0, float64(docs-len(p)))+0.5)/(float64(len(p))+0.5))
		for u, w := range p {
			r := found[u]
			if r == nil {
				r = &Result{URL: u}
				found[u] = r
			}
			r.Matched++
			r.Score += float64(float64(w) / 1000 * rarity) // the conversion keeps the sum the same on every machine
		}
	}
	all := make([]Result, 0, len(found))
	for _, r := range found {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b Result) int {
		return cmp.Or(cmp.Compare(b.Matched, a.Matched), cmp.Compare(b.Score, a.Score), strings.Compare(a.URL, b.URL))
	})
	return all
}

// describe adds titles and snippets.
func describe(ctx context.Context, tx *percolator.Txn, terms []string, top []Result) error {
	var cells []percolator.Cell
	for _, r := range top {
		cells = append(cells, docCell(r.URL, "title"), docCell(r.URL, "text"))
	}
	have, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return err
	}
	for i := range top {
		r := &top[i]
		r.Title = string(have[docCell(r.URL, "title")])
		r.Snippet = snippet(string(have[docCell(r.URL, "text")]), terms)
	}
	return nil
}

// snippet is a piece of text around the first place of a term.
func snippet(text string, terms []string) string {
	const before, length = 60, 200
	at := 0
search:
	for start := 0; start < len(text); {
		// Words are cut at white space: a piece of text, not each term, is looked at.
		end := start + strings.IndexFunc(text[start:], unicode.IsSpace)
		if end < start {
			end = len(text)
		}
		for t := range page.Terms(text[start:end]) {
			if slices.Contains(terms, t) {
				at = start
				break search
			}
		}
		start = end + 1
	}
	from := max(0, at-before)
	if from > 0 {
		from += strings.IndexByte(text[from:], ' ') + 1 // there is one: squeezed text, and at begins a word
	}
	to := min(len(text), from+length)
	for to > from && to < len(text) && !utf8.RuneStart(text[to]) {
		to--
	}
	s := text[from:to]
	if to < len(text) {
		if i := strings.LastIndexByte(s, ' '); i > 0 {
			s = s[:i]
		}
		s += " ..."
	}
	if from > 0 {
		s = "... " + s
	}
	return s
}

func splitAnchors(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(string(b), "\t")
}

func sortedLinks(b []byte) []string {
	var targets []string
	for line := range strings.Lines(string(b)) {
		target, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		targets = append(targets, target)
	}
	return targets
}
