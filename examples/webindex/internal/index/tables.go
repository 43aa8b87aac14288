// Package index keeps a web index up to date: it holds the tables, the loader
// that writes pages, the observers that do everything else, and the queries.
// README.md of examples/webindex describes the design.
package index

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/percolator"
)

// The tables. Keys made of two names have a zero byte between them, which neither
// URLs nor hashes nor terms can hold, so that all rows of the first name are one
// range.
const (
	// tablePage holds what was loaded; row: URL.
	tablePage = "page"
	// tableSource lists the pages of each source; row: source, URL.
	tableSource = "source"
	// tableHistory lists the changes of each page; row: URL, start timestamp.
	tableHistory = "history"
	// tableDoc holds what was found in a page, and what is indexed of it; row: URL.
	tableDoc = "doc"
	// tableLink holds the links, inverted; row: target URL, source URL.
	tableLink = "link"
	// tableDup holds the members of each cluster of pages with equal content; row:
	// hash, URL.
	tableDup = "dup"
	// tableCluster holds the canonical page of each cluster; row: hash.
	tableCluster = "cluster"
	// tableTerm holds the inverted index; row: term, URL.
	tableTerm = "term"
	// tableStat counts the indexed pages, spread over many rows so that none is
	// hot; row: shard of the URL.
	tableStat = "stat"
	// tableMeta says how the store was made; its one row is "webindex".
	tableMeta = "meta"
)

// format is the version of what is stored, together with that of the parser.
const format = "1." + page.Version

func pageBody(u string) percolator.Cell {
	return percolator.Cell{Table: tablePage, Row: u, Column: "body"}
}

func pageHash(u string) percolator.Cell {
	return percolator.Cell{Table: tablePage, Row: u, Column: "hash"}
}

func pageSource(u string) percolator.Cell {
	return percolator.Cell{Table: tablePage, Row: u, Column: "source"}
}

func pageFetched(u string) percolator.Cell {
	return percolator.Cell{Table: tablePage, Row: u, Column: "fetched"}
}

func sourceMember(id, u string) percolator.Cell {
	return percolator.Cell{Table: tableSource, Row: id + "\x00" + u, Column: "in"}
}

func historyEvent(u string, ts percolator.Timestamp) percolator.Cell {
	return percolator.Cell{Table: tableHistory, Row: fmt.Sprintf("%s\x00%016x", u, uint64(ts)), Column: "event"}
}

func docCell(u, column string) percolator.Cell {
	return percolator.Cell{Table: tableDoc, Row: u, Column: column}
}

func linkAnchor(target, source string) percolator.Cell {
	return percolator.Cell{Table: tableLink, Row: target + "\x00" + source, Column: "anchor"}
}

func dupCell(hash, u, column string) percolator.Cell {
	return percolator.Cell{Table: tableDup, Row: hash + "\x00" + u, Column: column}
}

func clusterCell(hash, column string) percolator.Cell {
	return percolator.Cell{Table: tableCluster, Row: hash, Column: column}
}

func termWeight(term, u string) percolator.Cell {
	return percolator.Cell{Table: tableTerm, Row: term + "\x00" + u, Column: "w"}
}

func statDocs(shard string) percolator.Cell {
	return percolator.Cell{Table: tableStat, Row: shard, Column: "docs"}
}

var metaFormat = percolator.Cell{Table: tableMeta, Row: "webindex", Column: "format"}

// under is the range of all rows whose first name is the given one.
func under(table, name string, columns ...string) percolator.Range {
	return percolator.Range{Table: table, From: name + "\x00", To: name + "\x01", Columns: columns}
}

// second is the second name of a row's key.
func second(key string) string {
	_, s, _ := strings.Cut(key, "\x00")
	return s
}

// The stored values are text, one entry in a line and tabs between its fields, so
// that they can be read with any tool. Neither terms, URLs nor anchor texts hold
// a tab or a line end.

func encodeTerms(p *page.Page) []byte {
	terms := make([]string, 0, len(p.Terms))
	for t := range p.Terms {
		terms = append(terms, t)
	}
	slices.Sort(terms)
	b := strconv.AppendInt(nil, int64(p.Words), 10)
	b = append(b, '\n')
	for _, t := range terms {
		n := p.Terms[t]
		b = append(b, t...)
		b = append(b, '\t')
		b = strconv.AppendInt(b, int64(n.Title), 10)
		b = append(b, '\t')
		b = strconv.AppendInt(b, int64(n.Body), 10)
		b = append(b, '\n')
	}
	return b
}

var errStored = errors.New("stored value cannot be read")

// maxCount is above every count of words of a page, and small enough to reckon with.
const maxCount = 1 << 31

// parseCount reads a count of words.
func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > maxCount {
		return 0, fmt.Errorf("%d is not a count of words", n)
	}
	return n, nil
}

func decodeTerms(b []byte) (words int, terms map[string]page.Count, err error) {
	head, rest, _ := bytes.Cut(b, []byte("\n"))
	if words, err = parseCount(string(head)); err != nil {
		return 0, nil, fmt.Errorf("%w: terms: %w", errStored, err)
	}
	terms = make(map[string]page.Count, bytes.Count(rest, []byte("\n")))
	for line := range strings.Lines(string(rest)) {
		term, counts, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		title, body, _ := strings.Cut(counts, "\t")
		t, err1 := parseCount(title)
		n, err2 := parseCount(body)
		if err := errors.Join(err1, err2); err != nil {
			return 0, nil, fmt.Errorf("%w: terms: %w", errStored, err)
		}
		terms[term] = page.Count{Title: t, Body: n}
	}
	return words, terms, nil
}

func encodeLinks(links []page.Link) []byte {
	var b []byte
	for _, l := range links {
		b = append(b, l.Target...)
		for _, a := range l.Anchors {
			b = append(b, '\t')
			b = append(b, a...)
		}
		b = append(b, '\n')
	}
	return b
}

// decodeLinks gives the value of each link's row by its target.
func decodeLinks(b []byte) map[string]string {
	links := make(map[string]string, bytes.Count(b, []byte("\n")))
	for line := range strings.Lines(string(b)) {
		target, anchors, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		links[target] = anchors
	}
	return links
}

func encodeWeights(terms []string, weights map[string]int) []byte {
	var b []byte
	for _, t := range terms {
		b = append(b, t...)
		b = append(b, '\t')
		b = strconv.AppendInt(b, int64(weights[t]), 10)
		b = append(b, '\n')
	}
	return b
}

func decodeWeights(b []byte) (map[string]int, error) {
	weights := make(map[string]int, bytes.Count(b, []byte("\n")))
	for line := range strings.Lines(string(b)) {
		term, w, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		n, err := strconv.Atoi(w)
		if err != nil {
			return nil, fmt.Errorf("%w: weights: %w", errStored, err)
		}
		weights[term] = n
	}
	return weights, nil
}

// weight is how much a term says about a page, from 1 to 2199, in whole numbers
// so that every machine agrees. It is the document's half of BM25F, with a fixed
// typical length of a page in place of the average one, which would change every
// weight with every page: occurrences in the text count less in a long page, the
// title counts 4 times, anchor texts by the logarithm of how many links have the
// term, and the sum saturates.
func weight(n page.Count, anchors, words int) int {
	const typical = 400
	tf := 2000*typical*n.Body/(typical+words) + 4000*n.Title + 2000*bits.Len(uint(anchors)) //nolint:gosec // a count
	return max(1, 2200*tf/(tf+1200))
}
