package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// Items that processes put into an outbox and send from it, while one of them is killed or suspended all the time.

const (
	exportProcesses = 4 // or as many as there are callers, but 2 at least
	// The leases of the processes; claims last for three times as long. A process stands still for longer than both.
	exportLease      = time.Second
	exportSuspension = 4 * exportLease
)

func exportFaultsWorkload(kind string) Workload {
	return Workload{
		Name: "export-" + kind + "-faults", Group: "recipes",
		About:      fmt.Sprintf("items put and sent by %d processes on %s, of which one is killed or suspended all the time, to a sink that checks epochs", exportProcesses, kind),
		Goroutines: 64, Rows: 2,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "exportfaults")
			if kind == "postgres" {
				u = with(u, "pool_max_conns", "12", "connect_timeout", "60")
			}
			return []Side{&faultyExports{url: u}}, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atLeast("items put and sent per second, with processes killed and suspended all the time", s[0].Rate, 5000, "/s")}
		},
	}
}

// openOutbox opens the outbox, with a worker that sends its items to a URL.
func openOutbox(ctx context.Context, url, to string) (*percolator.DB, *export.Outbox, *percolator.Worker, error) {
	db, err := percolator.Open(ctx, url, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}),
		percolator.WithSessionLease(exportLease), percolator.WithLockExpiry(exportLease))
	if err != nil {
		return nil, nil, nil, err
	}
	outbox, err := export.New(db, exportTable)
	if err != nil {
		return db, nil, nil, err
	}
	o, err := outbox.Observer("send", export.HTTP{URL: to}, export.Options{Timeout: exportLease, MaxAttempts: 1 << 20})
	if err != nil {
		return db, nil, nil, err
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{
		GCInterval: 5 * time.Second, MemberLease: 2 * exportLease, Backoff: percolator.Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond},
	})
	return db, outbox, w, w.Observe(o)
}

// faultyExports is the side: it starts the processes, does them harm, and is the sink.
type faultyExports struct {
	url    string
	db     *percolator.DB
	number int64 // of the next process
	sink   numberedSink
	server *httptest.Server
}

func (s *faultyExports) Name() string                      { return "export" }
func (s *faultyExports) Peer() string                      { return "" }
func (s *faultyExports) ServerURL() string                 { return s.url }
func (s *faultyExports) Op(context.Context, *Caller) error { panic("it is a Runner") }

// Prepare registers the observer: nothing can be put before.
func (s *faultyExports) Prepare(ctx context.Context, _ Config) error {
	s.server = httptest.NewServer(&s.sink)
	db, _, w, err := openOutbox(ctx, s.url, s.server.URL)
	s.db = db
	if err != nil {
		return err
	}
	if err := db.ConfigureTable(ctx, exportTable, percolator.TableSettings{MaxTxnAge: 10 * time.Second, Retention: 20 * time.Second}); err != nil {
		return err
	}
	within, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(within) }()
	err = w.WaitIdle(ctx)
	stop()
	return errors.Join(err, <-ended)
}

func (s *faultyExports) Close() error {
	if s.server != nil {
		s.server.Close()
	}
	return (&onDB{db: s.db}).Close()
}

// Run implements Runner. The time until everything is sent counts.
func (s *faultyExports) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	random := rand.New(rand.NewPCG(cfg.Seed, uint64(repeat)))
	children := make([]*helper, max(2, min(exportProcesses, cfg.Goroutines)))
	start := func() (*helper, error) {
		task := childTask{Kind: "exporter", How: s.server.URL, URL: s.url, Config: cfg, Repeat: repeat, From: s.number}
		task.Config.Goroutines = max(1, cfg.Goroutines/len(children))
		s.number++
		h, err := startHelper(ctx, task)
		if err == nil {
			err = h.tell()
		}
		return h, err
	}
	defer func() {
		for _, h := range children {
			if h != nil {
				h.kill()
			}
		}
	}()
	for i := range children {
		var err error
		if children[i], err = start(); err != nil {
			return Sample{}, err
		}
	}
	before, begun := s.sink.count(), time.Now()
	for harm := 0; time.Since(begun) < d; harm++ {
		i := random.IntN(len(children))
		if harm%2 == 0 {
			if err := children[i].stand(ctx, min(exportSuspension, d)); err != nil {
				return Sample{}, err
			}
			continue
		}
		children[i].kill()
		var err error
		if children[i], err = start(); err != nil {
			return Sample{}, err
		}
	}
	for _, h := range children {
		if err := errors.Join(h.tell(), h.said()); err != nil { // that it puts no more
			return Sample{}, err
		}
	}
	if err := s.awaitEmpty(ctx); err != nil {
		return Sample{}, err
	}
	sample := Sample{Ops: s.sink.count() - before}
	sample.Rate = float64(sample.Ops) / time.Since(begun).Seconds()
	for _, h := range children {
		if err := errors.Join(h.in.Close(), h.wait()); err != nil {
			return Sample{}, err
		}
	}
	return sample, s.sink.failure()
}

// stand suspends the process for a while.
func (h *helper) stand(ctx context.Context, d time.Duration) error {
	if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return h.cmd.Process.Signal(syscall.SIGCONT)
}

// said waits for a line.
func (h *helper) said() error {
	_, err := h.out.ReadString('\n')
	return err
}

// awaitEmpty waits until no item is left.
func (s *faultyExports) awaitEmpty(ctx context.Context) error {
	for left := true; left; {
		err := s.db.View(ctx, func(tx *percolator.Txn) error {
			left = false
			for _, err := range tx.Scan(ctx, percolator.Range{Table: exportTable, Limit: 1}) {
				if err != nil {
					return err
				}
				left = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond): // until the next look
		}
	}
	return nil
}

// doExporter is the part of a child: it puts items until it is told not to, and sends those of everybody until it is told to end.
func (t *childTask) doExporter(ctx context.Context, wait func() error, line func() error) error {
	db, outbox, w, err := openOutbox(ctx, t.URL, t.How)
	if err != nil {
		return err
	}
	works, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(works) }()
	err = wait()
	puts, enough := context.WithCancel(ctx)
	var putters sync.WaitGroup
	for g := range t.Config.Goroutines {
		putters.Go(func() { putNumbered(puts, db, outbox, fmt.Sprint(t.From, "/", g), strconv.Itoa(g)) })
	}
	err = errors.Join(err, line())
	enough()
	putters.Wait()
	fmt.Println("enough")
	_ = line() // the end of the input
	stop()
	return errors.Join(err, <-ended, db.Close(ctx))
}

// putNumbered puts items of one key, numbered from 0 on without gaps, until ctx ends.
func putNumbered(ctx context.Context, db *percolator.DB, outbox *export.Outbox, who, key string) {
	within := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; {
		err := db.Update(within, func(tx *percolator.Txn) error {
			for i := range exportPerTxn {
				if err := outbox.Put(within, tx, key, fmt.Appendf(nil, "%s %d an item of some bytes that says what happened", who, n+i)); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil:
			n += exportPerTxn
		case errors.Is(err, percolator.ErrUndetermined):
			return // the next number is not known
		default: // nothing was put: the process was suspended, say
			fmt.Fprintln(os.Stderr, "putting again:", err)
		}
	}
}

// numberedSink takes items as an exact sink does, by epochs, and looks that those of a key come in the order of their commits, and those of each putter without a gap.
type numberedSink struct {
	mu    sync.Mutex
	last  map[string]export.Item // by key
	next  map[string]int         // by putter
	taken int64
	err   error
}

// ServeHTTP takes what export.HTTP posts.
func (s *numberedSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Key   string
		Epoch uint64 `json:",string"`
		Items []struct {
			Commit  percolator.Timestamp `json:",string"`
			Index   int
			Payload []byte
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		w.WriteHeader(http.StatusBadRequest) // of a process that was killed
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last, s.next = map[string]export.Item{}, map[string]int{}
	}
	if b.Epoch < s.last[b.Key].Epoch {
		w.WriteHeader(http.StatusConflict)
		return
	}
	for _, item := range b.Items {
		last := s.last[b.Key]
		if item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index {
			if b.Epoch == last.Epoch && s.err == nil {
				s.err = fmt.Errorf("key %q: item %d.%d came after %d.%d under one epoch", b.Key, uint64(item.Commit), item.Index, uint64(last.Commit), last.Index)
			}
			continue // it comes again
		}
		s.last[b.Key] = export.Item{Epoch: b.Epoch, Commit: item.Commit, Index: item.Index}
		who, rest, _ := strings.Cut(string(item.Payload), " ")
		number, _, _ := strings.Cut(rest, " ")
		if n, err := strconv.Atoi(number); (err != nil || n != s.next[who]) && s.err == nil {
			s.err = fmt.Errorf("key %q: item %q of %s came, and not number %d", b.Key, number, who, s.next[who])
		}
		s.next[who]++
		s.taken++
	}
	_, _ = fmt.Fprintf(w, `{"sent": %d}`, len(b.Items))
}

func (s *numberedSink) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func (s *numberedSink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
