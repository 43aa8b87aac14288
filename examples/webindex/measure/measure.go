// Package measure lets a benchmark work with the web index: it makes pages, keeps
// the index of them up to date by observers, and makes the same index by a batch
// job.
package measure

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
)

// batchPrefix begins the names of the tables that Batch writes.
const batchPrefix = "batch:"

// Web makes pages, each from its number alone: about 300 words of a vocabulary in
// which few are common and many rare, and eight links, half of them to pages that
// many link to. It holds nothing and may be used concurrently.
type Web struct{ Seed uint64 }

func (w Web) url(i int) string { return fmt.Sprintf("http://site%03d.example/p%d.html", i%997, i) }

// page makes page i of a web in which pages below i exist.
func (w Web) page(i int) source.Page {
	r := rand.New(rand.NewPCG(w.Seed, uint64(i))) //nolint:gosec // a page's number; test data
	words := rand.NewZipf(r, 1.1, 10, 50_000)
	hubs := rand.NewZipf(r, 1.2, 20, uint64(max(1, i))) //nolint:gosec // a page's number
	text := func(n int) string {
		parts := make([]string, n)
		for k := range parts {
			parts[k] = fmt.Sprintf("word%d", words.Uint64())
		}
		return strings.Join(parts, " ")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html><title>%s</title><h1>%s</h1>\n", text(4), text(4))
	for k := range 8 {
		to := r.IntN(i + 1)
		if k%2 == 0 {
			to = int(hubs.Uint64()) //nolint:gosec // below i
		}
		fmt.Fprintf(&b, "<p>%s <a href=\"%s\">%s</a>\n", text(30), w.url(to), text(2))
	}
	return source.Page{URL: w.url(i), Body: []byte(b.String())}
}

// pages is a source of the pages from one number to another.
type pages struct {
	web      Web
	from, to int
}

func (p pages) ID() string     { return "measure" }
func (p pages) Complete() bool { return false }

func (p pages) Prepare(context.Context) (source.Summary, error) {
	return source.Summary{Pages: p.to - p.from}, nil
}

func (p pages) Items(context.Context) iter.Seq2[source.Item, error] {
	return func(yield func(source.Item, error) bool) {
		for i := p.from; i < p.to; i++ {
			read := func(context.Context) (source.Page, error) { return p.web.page(i), nil }
			if !yield(source.Item{URL: p.web.url(i), Read: read}, nil) {
				return
			}
		}
	}
}

// Index is a web index whose observers run.
type Index struct {
	db     *percolator.DB
	x      *index.Index
	worker *percolator.Worker
	web    Web
	n      int
	stop   context.CancelFunc
	ended  chan error
}

// Open opens an index in a store and starts its observers. Close ends it.
func Open(ctx context.Context, url string, web Web) (_ *Index, err error) {
	// The lease is how long the publication of an observer takes.
	db, err := percolator.Open(ctx, url, percolator.WithSettings(percolator.Settings{CatalogLease: 2 * time.Second}))
	if err != nil {
		return nil, err
	}
	m := &Index{db: db, web: web}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.x, err = index.New(ctx, db); err != nil {
		return nil, err
	}
	m.worker = percolator.NewWorker(db, percolator.WorkerConfig{})
	if err := m.x.Observe(m.worker); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop, m.ended = stop, make(chan error, 1)
	go func() { m.ended <- m.worker.Run(running) }()
	return m, m.worker.WaitIdle(ctx)
}

// Add loads the next n pages and waits until they are indexed. It must not be
// called by two goroutines at a time.
func (m *Index) Add(ctx context.Context, n int) error {
	var stats index.LoadStats
	p := pages{web: m.web, from: m.n, to: m.n + n}
	m.n = p.to
	if err := m.x.Load(ctx, p, 8, &stats); err != nil {
		return err
	}
	if err := m.worker.WaitIdle(ctx); err != nil {
		return err
	}
	parked, err := m.db.Parked(ctx)
	if err == nil && len(parked) > 0 {
		err = fmt.Errorf("%d observer runs failed for good; the first: %s", len(parked), parked[0].Error)
	}
	return err
}

// Batch reads all pages and makes the index of them anew, in tables of its own, by
// the best batch job in this process. It returns how many cells it wrote.
func (m *Index) Batch(ctx context.Context) (int, error) {
	return index.Batch(ctx, m.db, batchPrefix)
}

// Close ends the observers and closes the store.
func (m *Index) Close() error {
	var errs []error
	if m.stop != nil {
		m.stop()
		errs = append(errs, <-m.ended)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(append(errs, m.db.Close(ctx))...)
}
