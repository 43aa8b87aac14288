package index

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/percolator"
)

// batchCells is how many cells one transaction of Batch writes.
const batchCells = 2000

// Batch makes the index of all pages of db at once, as one would without
// observers: it reads every page, works everything out in memory, on all
// processors, and writes the tables of the index, each under a name that begins
// with prefix. It writes what the observers write, but for the records that only
// they need. It returns how many cells those are.
func Batch(ctx context.Context, db *percolator.DB, prefix string) (int, error) {
	b := batch{docs: map[string]*batchDoc{}, links: map[string]map[string]string{}}
	if err := b.read(ctx, db); err != nil {
		return 0, fmt.Errorf("batch: reading the pages: %w", err)
	}
	b.invert()
	n, err := b.write(ctx, db, prefix)
	if err != nil {
		return n, fmt.Errorf("batch: writing the index: %w", err)
	}
	return n, nil
}

type batchDoc struct {
	url, hash string
	page      *page.Page
}

type batch struct {
	docs  map[string]*batchDoc
	links map[string]map[string]string // target -> source -> anchors
}

type setting struct {
	cell  percolator.Cell
	value []byte
}

func (b *batch) read(ctx context.Context, db *percolator.DB) error {
	type raw struct {
		url  string
		body []byte
	}
	pages := make(chan raw, 256)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pages)
		return db.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: tablePage, Columns: []string{"body"}}) {
				if err != nil {
					return err
				}
				select {
				case pages <- raw{row.Key, row.Columns["body"]}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	parsed := make(chan *batchDoc, 256)
	var parsers errgroup.Group
	for range runtime.GOMAXPROCS(0) {
		parsers.Go(func() error {
			for r := range pages {
				p, err := page.Parse(r.url, r.body)
				if err != nil {
					return fmt.Errorf("parsing %s: %w", r.url, err)
				}
				select {
				case parsed <- &batchDoc{url: r.url, hash: Hash(r.body), page: p}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(parsed)
		return parsers.Wait()
	})
	for d := range parsed {
		b.docs[d.url] = d
	}
	return g.Wait()
}

func (b *batch) invert() {
	for _, d := range b.docs {
		for _, l := range d.page.Links {
			of := b.links[l.Target]
			if of == nil {
				of = map[string]string{}
				b.links[l.Target] = of
			}
			of[d.url] = strings.Join(l.Anchors, "\t")
		}
	}
}

// write works out the tables, a part at a time, and writes each part while the next
// is worked out.
func (b *batch) write(ctx context.Context, db *percolator.DB, prefix string) (int, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	n := 0
	var part []setting
	flush := func() {
		now := part
		n, part = n+len(now), nil
		g.Go(func() error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				for _, s := range now {
					if err := tx.Set(s.cell, s.value); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	set := func(c percolator.Cell, value []byte) {
		c.Table = prefix + c.Table
		if part = append(part, setting{c, value}); len(part) >= batchCells {
			flush()
		}
	}
	for target, sources := range b.links {
		for source, anchors := range sources {
			set(linkAnchor(target, source), []byte(anchors))
		}
	}
	clusters := map[string][]*batchDoc{}
	for _, d := range b.docs {
		clusters[d.hash] = append(clusters[d.hash], d)
		set(docCell(d.url, "hash"), []byte(d.hash))
		set(docCell(d.url, "title"), []byte(d.page.Title))
		set(docCell(d.url, "text"), []byte(d.page.Text))
		set(docCell(d.url, "terms"), encodeTerms(d.page))
		set(docCell(d.url, "links"), encodeLinks(d.page.Links))
		set(dupCell(d.hash, d.url, "n"), strconv.AppendInt(nil, int64(len(b.links[d.url])), 10))
	}
	indexed := map[string]int{}
	for hash, members := range clusters {
		canonical := slices.MinFunc(members, func(x, y *batchDoc) int {
			if d := len(b.links[y.url]) - len(b.links[x.url]); d != 0 {
				return d
			}
			return strings.Compare(x.url, y.url)
		})
		set(clusterCell(hash, "canonical"), []byte(canonical.url))
		weights := b.weights(canonical, members)
		for term, w := range weights {
			set(termWeight(term, canonical.url), strconv.AppendInt(nil, int64(w), 10))
		}
		set(docCell(canonical.url, "indexed"), encodeWeights(slices.Sorted(maps.Keys(weights)), weights))
		indexed[shard(canonical.url)]++
	}
	for s, docs := range indexed {
		set(statDocs(s), strconv.AppendInt(nil, int64(docs), 10))
	}
	if len(part) > 0 {
		flush()
	}
	return n, g.Wait()
}

// weights are the postings of a canonical page.
func (b *batch) weights(canonical *batchDoc, members []*batchDoc) map[string]int {
	anchors, texts := map[string]int{}, map[string]int{}
	for _, m := range members {
		for _, text := range b.links[m.url] {
			texts[text]++
		}
	}
	for text, links := range texts {
		seen := map[string]bool{}
		for t := range page.Terms(text) {
			if !seen[t] {
				seen[t] = true
				anchors[t] += links
			}
		}
	}
	weights := make(map[string]int, len(canonical.page.Terms)+len(anchors))
	for t, n := range canonical.page.Terms {
		weights[t] = weight(n, anchors[t], canonical.page.Words)
	}
	for t, n := range anchors {
		if _, ok := weights[t]; !ok {
			weights[t] = weight(page.Count{}, n, canonical.page.Words)
		}
	}
	return weights
}
