package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// The workload of the paper's section 3.1: a repository of documents, each with
// three clustering keys. Documents with an equal key form a cluster, and the least
// document of a cluster is its canonical one. Documents are crawled again all the
// time, and each time one of the keys is another.

const (
	clusterKeys  = 3
	clusterSize  = 4    // documents of a key, on average
	documentSize = 1000 // bytes
)

// document is the text of a document: its keys, and what else is in it.
func document(doc, version, docs int) []byte {
	var b bytes.Buffer
	for k := range clusterKeys {
		h := fnv.New32a()
		age := 0 // of the version that changed this key last
		for v := version; v > 0; v-- {
			if v%clusterKeys == k {
				age = v
				break
			}
		}
		fmt.Fprintf(h, "%d %d %d", doc, k, age)
		fmt.Fprintf(&b, "%d-%08d ", k, int(h.Sum32())%max(1, docs/clusterSize))
	}
	b.WriteString(strings.Repeat("text ", documentSize/5))
	return b.Bytes()[:documentSize]
}

// keysOf finds the clustering keys in a document.
func keysOf(text []byte) ([]string, error) {
	f := bytes.Fields(text)
	if len(f) < clusterKeys {
		return nil, fmt.Errorf("a document has %d words", len(f))
	}
	keys := make([]string, clusterKeys)
	for k := range keys {
		keys[k] = string(f[k])
	}
	return keys, nil
}

const (
	tableDocuments = "documents" // row: document; body, keys (which are clustered)
	tableMembers   = "members"   // row: key, document
	tableClusters  = "clusters"  // row: key; canonical document
)

func documentRow(doc int) string { return fmt.Sprintf("%09d", doc) }

func documentCell(row, column string) percolator.Cell {
	return percolator.Cell{Table: tableDocuments, Row: row, Column: column}
}

func memberCell(key, doc string) percolator.Cell {
	return percolator.Cell{Table: tableMembers, Row: key + " " + doc, Column: "in"}
}

func canonicalCell(key string) percolator.Cell {
	return percolator.Cell{Table: tableClusters, Row: key, Column: "canonical"}
}

// recluster is the observer of a document's body.
func recluster(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	body, old := documentCell(c.Row, "body"), documentCell(c.Row, "keys")
	have, err := tx.GetMany(ctx, body, old)
	if err != nil {
		return err
	}
	now, err := keysOf(have[body])
	if err != nil {
		return err
	}
	was := strings.Fields(string(have[old]))
	var cells []percolator.Cell
	for _, key := range slices.Concat(was, now) {
		cells = append(cells, canonicalCell(key))
	}
	canonical, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return err
	}
	for _, key := range was {
		if slices.Contains(now, key) {
			continue
		}
		if err := tx.Delete(memberCell(key, c.Row)); err != nil {
			return err
		}
		if string(canonical[canonicalCell(key)]) != c.Row {
			continue
		}
		// The next one becomes canonical.
		next := ""
		members := percolator.Range{Table: tableMembers, From: key + " ", To: key + "!", Limit: 1}
		for row, err := range tx.Scan(ctx, members) {
			if err != nil {
				return err
			}
			_, next, _ = strings.Cut(row.Key, " ")
		}
		if next == "" {
			err = tx.Delete(canonicalCell(key))
		} else {
			err = tx.Set(canonicalCell(key), []byte(next))
		}
		if err != nil {
			return err
		}
	}
	for _, key := range now {
		if slices.Contains(was, key) {
			continue
		}
		if err := tx.Set(memberCell(key, c.Row), nil); err != nil {
			return err
		}
		if is, ok := canonical[canonicalCell(key)]; !ok || c.Row < string(is) {
			if err := tx.Set(canonicalCell(key), []byte(c.Row)); err != nil {
				return err
			}
		}
	}
	return tx.Set(old, []byte(strings.Join(now, " ")))
}

// crawl is a reactor: its changes are documents that are crawled again, in the
// order of a fixed shuffle.
type crawl struct {
	observerChain
	docs  int
	order []int
}

func (s *crawl) start(ctx context.Context, _, _ int, done func(int64)) error {
	s.order = rand.New(rand.NewPCG(1, 1)).Perm(s.docs)
	place := make([]int64, s.docs)
	for i, doc := range s.order {
		place[doc] = int64(i)
	}
	return s.run(ctx, tableDocuments, "keys", func(row string) {
		if doc, err := strconv.Atoi(row); err == nil && doc < len(place) {
			done(place[doc])
		}
	}, func() error {
		return fillCells(ctx, s.db, s.docs, func(i int) (percolator.Cell, []byte) {
			return documentCell(documentRow(i), "body"), document(i, 0, s.docs)
		})
	}, percolator.Observer{Name: "cluster", Table: tableDocuments, Column: "body", Func: recluster})
}

// key is what done is called with for a change.
func (s *crawl) key(id int64) int64 { return id % int64(s.docs) }

func (s *crawl) change(ctx context.Context, id int64) error {
	doc, version := s.order[s.key(id)], int(id)/s.docs+1
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(documentCell(documentRow(doc), "body"), document(doc, version, s.docs))
	})
}

// figure7 is the latency of a crawled document against the rate of the crawl: by
// observers, and by batch jobs one after another that each recompute everything.
func figure7(kind string) Workload {
	rates := []float64{10, 100, 300, 1000, 3000, 10_000}
	batchFiles, batchStore := "batch job over files", "batch job over the same store"
	own := "observers on " + kind
	return Workload{
		Name: "figure7-" + kind, Group: "paper", About: "latency of a crawled document against the crawl rate, on " + kind, Goroutines: 64, Rows: 20_000,
		XAxis: "share of the repository crawled in an hour, %", Chart: latencyChart, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "figure7")
			if err != nil {
				return nil, err
			}
			share := func(rate float64) float64 { return 100 * 3600 * rate / float64(cfg.Rows) }
			var sides []Side
			c := &crawl{observerChain: observerChain{url: u}, docs: cfg.Rows}
			base, filled := &reactive{how: c, depth: 1, name: own, server: u}, &shared{}
			for _, rate := range rates {
				sides = append(sides, atRunner{&at{
					Side: &pacedSide{base, rate}, series: own, x: share(rate), label: fmt.Sprintf("%.0f documents/s", rate), shared: filled,
				}})
			}
			for _, rate := range []float64{rates[0], rates[len(rates)-1]} {
				label := fmt.Sprintf("at %.0f documents/s", rate)
				sides = append(sides, point(batchFiles, share(rate), label, &fileBatch{}))
			}
			for _, rate := range []float64{rates[0], rates[len(rates)-1]} {
				label := fmt.Sprintf("at %.0f documents/s", rate)
				sides = append(sides, point(batchStore, share(rate), label, &storeBatch{crawl: c}))
			}
			// Closing goes from the first to the last, and the batch jobs use the crawl.
			return sides, nil
		},
		Notes: func(cfg Config, s []Summary) []string {
			return []string{
				"A document that arrives while a batch job runs waits for half a job on average, and then for the next one: one and a half times its duration.",
				crossover(s, own, batchFiles, cfg.Rows), crossover(s, own, batchStore, cfg.Rows),
			}
		},
	}
}

// crossover finds the two points between which the latency of observers passes that
// of a batch job. Where they do not keep up with the crawl their latency has no
// bound but the length of the run.
func crossover(all []Summary, own, batch string, docs int) string {
	var mine []Summary
	level := 0.0
	for _, s := range all {
		switch s.Series {
		case own:
			mine = append(mine, s)
		case batch:
			level = s.P50
		}
	}
	at := func(x float64) string {
		return fmt.Sprintf("%.0f documents a second, %.0f%% of the repository in an hour", x/100/3600*float64(docs), x)
	}
	for i, s := range mine {
		switch {
		case s.P50 < level && s.Rate > 0.9*s.X/100/3600*float64(docs):
			continue
		case i == 0:
			return fmt.Sprintf("The %s (%s) is ahead at every rate measured.", batch, micros(level))
		}
		return fmt.Sprintf("The %s (%s) is ahead from somewhere between %s and %s.", batch, micros(level), at(mine[i-1].X), at(s.X))
	}
	return fmt.Sprintf("Observers are ahead of the %s (%s) at every rate measured, up to %s.", batch, micros(level), at(mine[len(mine)-1].X))
}

// pacedSide is a reactive side at a rate of its own.
type pacedSide struct {
	*reactive
	rate float64
}

func (s *pacedSide) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	s.Pace(s.rate)
	return s.reactive.Run(ctx, cfg, d, repeat)
}

// clusters works out the clusters of documents, given by a function that yields
// them in parts to be read in parallel.
func clusters(parts int, part func(i int, each func(doc string, text []byte) error) error) (map[string][]string, error) {
	found := make([]map[string][]string, parts)
	var g errgroup.Group
	for i := range parts {
		g.Go(func() error {
			found[i] = map[string][]string{}
			return part(i, func(doc string, text []byte) error {
				keys, err := keysOf(text)
				for _, key := range keys {
					found[i][key] = append(found[i][key], doc)
				}
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	all := found[0]
	for _, more := range found[1:] {
		for key, docs := range more {
			all[key] = append(all[key], docs...)
		}
	}
	return all, nil
}

// fileBatch reads all documents from a file and writes the clusters into another,
// on all processors: no store is in its way.
type fileBatch struct {
	in, out string
	docs    int
}

func (s *fileBatch) Name() string                      { return "batch job over files" }
func (s *fileBatch) Peer() string                      { return "" }
func (s *fileBatch) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *fileBatch) Close() error                      { return nil }

func (s *fileBatch) Prepare(_ context.Context, cfg Config) error {
	s.in, s.out, s.docs = filepath.Join(cfg.Dir, "documents"), filepath.Join(cfg.Dir, "clusters"), cfg.Rows
	f, err := os.Create(s.in) // #nosec G304 -- in the directory of the run
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for i := range s.docs {
		if _, err := w.Write(document(i, 0, s.docs)); err != nil {
			return err
		}
	}
	return errors.Join(w.Flush(), f.Sync())
}

// Run implements Runner.
func (s *fileBatch) Run(context.Context, Config, time.Duration, int) (Sample, error) {
	return batchSample(func() error {
		f, err := os.Open(s.in)
		if err != nil {
			return err
		}
		defer f.Close()
		parts := runtime.GOMAXPROCS(0)
		all, err := clusters(parts, func(i int, each func(string, []byte) error) error {
			from, to := i*s.docs/parts, (i+1)*s.docs/parts
			r := bufio.NewReaderSize(io.NewSectionReader(f, int64(from*documentSize), int64((to-from)*documentSize)), 1<<20)
			text := make([]byte, documentSize)
			for doc := from; doc < to; doc++ {
				if _, err := io.ReadFull(r, text); err != nil {
					return err
				}
				if err := each(documentRow(doc), text); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		out, err := os.Create(s.out)
		if err != nil {
			return err
		}
		defer out.Close()
		w := bufio.NewWriter(out)
		for key, docs := range all {
			fmt.Fprintf(w, "%s %s %s\n", key, slices.Min(docs), strings.Join(docs, " "))
		}
		return errors.Join(w.Flush(), out.Sync())
	})
}

// storeBatch reads all documents from the store and writes the clusters into it,
// into tables of its own.
type storeBatch struct{ crawl *crawl }

func (s *storeBatch) Name() string                          { return "batch job over the same store" }
func (s *storeBatch) Peer() string                          { return "" }
func (s *storeBatch) ServerURL() string                     { return s.crawl.url }
func (s *storeBatch) Op(context.Context, *Caller) error     { panic("it is a Runner") }
func (s *storeBatch) Prepare(context.Context, Config) error { return nil } // the crawl is prepared
func (s *storeBatch) Close() error                          { return nil }

// Run implements Runner.
func (s *storeBatch) Run(ctx context.Context, _ Config, _ time.Duration, _ int) (Sample, error) {
	db := s.crawl.db
	return batchSample(func() error {
		parts := runtime.GOMAXPROCS(0)
		all, err := clusters(parts, func(i int, each func(string, []byte) error) error {
			r := percolator.Range{Table: tableDocuments, Columns: []string{"body"}}
			r.From, r.To = documentRow(i*s.crawl.docs/parts), documentRow((i+1)*s.crawl.docs/parts)
			return db.View(ctx, func(tx *percolator.Txn) error {
				for row, err := range tx.Scan(ctx, r) {
					if err != nil {
						return err
					}
					if err := each(row.Key, row.Columns["body"]); err != nil {
						return err
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		keys := slices.Collect(maps.Keys(all))
		return fillCells(ctx, db, len(keys), func(i int) (percolator.Cell, []byte) {
			docs := all[keys[i]]
			return percolator.Cell{Table: "batch", Row: keys[i], Column: "members"}, []byte(slices.Min(docs) + " " + strings.Join(docs, " "))
		})
	})
}

// batchSample is one batch job: the latency is that of a document that arrives at
// some moment while such jobs run one after another.
func batchSample(f func() error) (Sample, error) {
	s, err := once(f)
	s.P50, s.P99 = 1.5*s.P50, 2*s.P99
	return s, err
}
