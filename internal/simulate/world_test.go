package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// world is a store, the processes that use it, and what became of each change.
type world struct {
	*testing.T
	mem       *memstore.Store
	function  time.Duration // how long a function takes
	observers []string      // that a change must run for
	relays    bool          // each worker has the observers of relays, too
	quiet     bool          // what is started has no push
	scanTakes time.Duration // a scan of the changed table takes so much longer
	scanned   atomic.Int64  // such calls
	source    *process      // which only commits

	mu        sync.Mutex
	processes []*process // which run observers, also those that have ended; appended to by the test's own goroutine alone
	made      int
	changes   map[string]*change // by row
}

// change is a change of a row of its own.
type change struct {
	committed time.Time
	runs      map[string]*runs // by observer
}

// runs are the calls of an observer's function for a change.
type runs struct {
	began []time.Time // of each call
	ended bool        // one of them
	ran   *time.Time  // when the one began that took effect, as far as it was read
}

// process is a client of its own, behind a network of its own.
type process struct {
	*world
	client  *faultstore.Store
	db      *percolator.DB
	worker  *percolator.Worker            // once it runs
	calls   atomic.Int64                  // to the store
	hung    atomic.Pointer[chan struct{}] // until when its functions hang
	silent  atomic.Pointer[chan struct{}] // until when its calls hang
	hanging atomic.Int64                  // functions
	dead    atomic.Bool
	ended   atomic.Bool  // its worker has returned
	stop    func() error // again and again
}

func newWorld(t *testing.T, function time.Duration, observers ...string) *world {
	t.Helper()
	if len(observers) == 0 {
		observers = []string{"copy"}
	}
	w := &world{T: t, mem: memstore.New(), function: function, observers: observers, changes: map[string]*change{}}
	w.source = w.newProcess()
	return w
}

// newProcess opens a database over the store, whose calls take time (takesLatency).
func (w *world) newProcess(options ...percolator.Option) *process {
	w.Helper()
	p := &process{world: w}
	p.client = faultstore.New(w.mem, faultstore.Options{KeepOpen: true, Seed: 1})
	p.client.SetRules(takesLatency(uint64(len(w.processes)), func() { p.calls.Add(1) }, func(ctx context.Context, c *faultstore.Call) faultstore.Fault {
		if c.Kind == faultstore.CallScan && c.Range.Table == "t" {
			w.scanned.Add(1)
			time.Sleep(w.scanTakes)
		}
		if silent := p.silent.Load(); silent != nil {
			select {
			case <-*silent:
			case <-ctx.Done():
				return faultstore.Fault{Kind: faultstore.LoseReply}
			}
		}
		return faultstore.Fault{}
	}))
	options = append([]percolator.Option{percolator.WithLogger(slog.New(slog.DiscardHandler))}, options...)
	var store rowstore.Store = p.client
	if w.quiet {
		store = hidePush(store)
	}
	db, err := percolator.New(w.Context(), store, options...)
	require.NoError(w, err)
	p.db = db
	return p
}

// start starts a process with a worker of some observers, of all without any.
func (w *world) start(observers ...string) *process {
	w.Helper()
	return w.newProcess().run(observers...)
}

func (p *process) run(observers ...string) *process {
	p.Helper()
	if len(observers) == 0 {
		observers = p.observers
	}
	worker := percolator.NewWorker(p.db, percolator.WorkerConfig{
		Concurrency: *concurrency, GCInterval: -1, StopTimeout: max(10*time.Second, 2*p.function),
	})
	for _, name := range observers {
		require.NoError(p, worker.Observe(percolator.Observer{Name: name, Table: "t", Column: "in", Func: p.copier(name)}))
	}
	if p.relays {
		for _, table := range relayTables {
			require.NoError(p, worker.Observe(percolator.Observer{Name: "relay " + table, Table: table, Column: "v", Func: relay}))
		}
	}
	ctx, cancel := context.WithCancel(p.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	p.worker = worker
	p.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		p.ended.Store(true)
		if p.dead.Load() {
			err = nil
		}
		return errors.Join(err, p.db.Close(context.WithoutCancel(ctx)))
	})
	p.mu.Lock()
	p.processes = append(p.processes, p)
	p.mu.Unlock()
	return p
}

// copier is the function of an observer: it takes its time, and writes which call it was.
func (p *process) copier(observer string) func(context.Context, *percolator.Txn, percolator.Cell) error {
	return func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		call := p.called(c.Row, observer)
		if _, err := tx.Get(ctx, c); err != nil {
			return err
		}
		if p.function > 0 {
			time.Sleep(p.function)
		}
		if hung := p.hung.Load(); hung != nil {
			p.hanging.Add(1)
			<-*hung
			p.hanging.Add(-1)
		}
		if !p.dead.Load() {
			p.mu.Lock()
			p.changes[c.Row].runs[observer].ended = true
			p.mu.Unlock()
		}
		return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: "out-" + observer}, []byte(strconv.Itoa(call)))
	}
}

// called notes that a function was called, and returns how often it was before.
func (p *process) called(row, observer string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.changes[row].runs[observer]
	r.began = append(r.began, time.Now())
	return len(r.began) - 1
}

// A relay is work that moves: a number, which each run hands on to a cell in the other table, one less, until it is 0. A look at the one table
// and then at the other may find it in neither.
var relayTables = []string{"a", "z"}

func relayCell(n int) percolator.Cell {
	return percolator.Cell{Table: relayTables[n%len(relayTables)], Row: fmt.Sprintf("%08x", uint32(n)*2654435761), Column: "v"} //nolint:gosec // a small number
}

// relay is the function of the observers.
func relay(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	v, err := tx.Get(ctx, c)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n == 0 {
		return err
	}
	return tx.Set(relayCell(n-1), []byte(strconv.Itoa(n-1)))
}

// beginRelay sets the number.
func (w *world) beginRelay(n int) {
	w.Helper()
	require.NoError(w, w.source.db.Update(w.Context(), func(tx *percolator.Txn) error { return tx.Set(relayCell(n), []byte(strconv.Itoa(n))) }))
}

// relayEnded tells whether the number has become 0.
func (w *world) relayEnded() (ended bool) {
	w.Helper()
	require.NoError(w, w.source.db.View(w.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(w.Context(), relayCell(0))
		if ended = err == nil; errors.Is(err, percolator.ErrNotFound) {
			err = nil
		}
		return err
	}))
	return ended
}

// newChange notes a change that is to come, and returns its row.
func (w *world) newChange() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	row := fmt.Sprintf("%08x", uint32(w.made)*2654435761) // an order that has nothing to do with time
	w.made++
	c := &change{runs: map[string]*runs{}}
	for _, o := range w.observers {
		c.runs[o] = &runs{}
	}
	w.changes[row] = c
	return row
}

// change changes a row of its own.
func (w *world) change() error {
	row := w.newChange()
	err := w.source.db.Update(w.Context(), func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "t", Row: row, Column: "in"}, []byte("1"))
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes[row].committed = time.Now()
	return err
}

// load lets changes come at a steady rate until stop is called, which returns once they
// are committed.
func (w *world) load(rate float64) (stop func()) {
	end := make(chan struct{})
	var making sync.WaitGroup
	making.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				making.Go(func() {
					if err := w.change(); err != nil {
						w.Errorf("a change was not committed: %v", err)
					}
				})
			}
		}
	})
	return func() { close(end); making.Wait() }
}

// unhandled tells how many runs have not ended.
func (w *world) unhandled() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		for _, r := range c.runs {
			if !r.ended {
				n++
			}
		}
	}
	return n
}

// wait waits until all but some runs have ended, and checks that what they wrote is there.
func (w *world) wait(but int) {
	w.Helper()
	began := time.Now()
	for left := w.unhandled(); left > but; left = w.unhandled() {
		require.Less(w, time.Since(began), 10*time.Minute, "%d runs are left", left)
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(10 * time.Second) // a run that has ended may be repeated yet
	w.read()
	require.LessOrEqual(w, w.unread(), but, "each change takes effect for each observer")
}

// read reads which calls have taken effect.
func (w *world) read() {
	w.Helper()
	require.NoError(w, w.source.db.View(w.Context(), func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(w.Context(), percolator.Range{Table: "t"}) {
			if err != nil {
				return err
			}
			for column, call := range row.Columns {
				if observer, ok := strings.CutPrefix(column, "out-"); ok {
					n, err := strconv.Atoi(string(call))
					if err != nil {
						return err
					}
					w.mu.Lock()
					if c := w.changes[row.Key]; c != nil { // else it is one of a flood
						r := c.runs[observer]
						r.ran = &r.began[n]
					}
					w.mu.Unlock()
				}
			}
		}
		return nil
	}))
}

// unread tells how many runs have not taken effect, as far as they were read.
func (w *world) unread() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		for _, r := range c.runs {
			if r.ran == nil {
				n++
			}
		}
	}
	return n
}

// close ends all processes.
func (w *world) close() {
	w.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.processes))
	for i, p := range w.processes {
		wg.Go(func() { errs[i] = p.stop() })
	}
	wg.Wait()
	require.NoError(w, errors.Join(errs...))
	require.NoError(w, w.source.db.Close(context.WithoutCancel(w.Context())))
}

// counts tells what the workers have done so far.
func (w *world) counts() (since counts) {
	for _, p := range w.processes {
		since.conflicts += p.db.Stats().ObserverConflicts
		since.calls += p.calls.Load()
	}
	return since
}

// counts are what the workers have done.
type counts struct {
	conflicts uint64
	calls     int64
}

// result is what became of the changes.
type result struct {
	changes   int
	functions int           // calls
	median    time.Duration // from the commit to the run
	p99       time.Duration
	slowest   time.Duration
	counts
}

func (r *result) each(n float64) float64 { return n / float64(r.changes) }

// result sums up the changes, and what the workers did from some counts to others.
func (w *world) result(since, until counts) result {
	r := result{changes: len(w.changes), counts: counts{until.conflicts - since.conflicts, until.calls - since.calls}}
	var waits []time.Duration
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		for _, run := range c.runs {
			r.functions += len(run.began)
			if run.ran != nil {
				waits = append(waits, max(run.ran.Sub(c.committed), 0))
			}
		}
	}
	if len(waits) > 0 {
		slices.Sort(waits)
		r.median, r.p99, r.slowest = waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1]
	}
	return r
}

// sheet is a table of results, with the bars that they miss.
type sheet struct {
	lines, missed []string
}

// add adds a line of cells that are separated by tabs.
func (s *sheet) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// atMost notes that the line that was added last misses a bar, if it does.
func (s *sheet) atMost(bar float64, what string, value float64) {
	s.bar(value <= bar, fmt.Sprintf("%s %.3f, the bar %g", what, value, bar))
}

// atLeast is atMost for a value that must not be less.
func (s *sheet) atLeast(bar float64, what string, value float64) {
	s.bar(value >= bar, fmt.Sprintf("%s %.3f, the bar %g", what, value, bar))
}

// within is atMost for a time.
func (s *sheet) within(bar time.Duration, what string, value time.Duration) {
	s.bar(value <= bar, fmt.Sprintf("%s %v, the bar %v", what, value, bar))
}

func (s *sheet) bar(holds bool, text string) {
	if !holds {
		s.missed = append(s.missed, text+", in the line: "+strings.ReplaceAll(s.lines[len(s.lines)-1], "\t", " "))
	}
}

// show logs the table, and fails if a bar was missed.
func (s *sheet) show(t *testing.T, title string) {
	t.Helper()
	var text strings.Builder
	show := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, line := range s.lines {
		_, _ = fmt.Fprintln(show, line+"\t")
	}
	require.NoError(t, show.Flush())
	t.Logf("%s\n%s", title, &text)
	for _, missed := range s.missed {
		t.Error("missed: " + missed)
	}
}

// ms shows a duration in milliseconds.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
