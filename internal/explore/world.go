package explore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// errDead is what a dead client's calls give, to nobody.
var errDead = errors.New("explore: this client is dead")

// errInjected is a certain failure.
var errInjected = errors.New("explore: injected failure")

// world is one run under way.
type world struct {
	t       *testing.T
	program *Program
	stores  []namedStore   // the authoritative one first
	raw     rowstore.Store // all of them, past the explorer
	clients []*Client
	history history
	marks   map[string]percolator.Timestamp // see Client.Remember
	told    map[string]string               // what runs of observers of old values saw, by their records' ids; under history.mu
	owned   time.Time                       // until then nobody owns anything

	mu       sync.Mutex
	through  bool // calls are carried out at once: before and after the run
	now      time.Time
	requests []*request // waiting
	drawn    []*drawn   // that hold locks
	counts   map[string]int

	left   Budget
	script []string
	trace  trace
	steps  int
	fired  map[string]int
}

type namedStore struct {
	name string
	*memstore.Store
}

// Client is one process: a DB of its own over the common store.
type Client struct {
	w    *world
	id   int
	Name string
	DB   *percolator.DB
	opts []percolator.Option

	ctx    context.Context
	cancel context.CancelFunc
	dead   bool
	ended  bool
	takes  time.Duration // how long each part of a call is under way
	stands time.Time     // where its clock stands, if it does
	ids    atomic.Int64  // of its sessions and the like: random ones would make two runs of a script differ

	observers []string             // of its workers
	waits     bool                 // for WaitIdle; under world.mu
	bereft    map[string]time.Time // until when it owns nothing of an observer
}

// image is what Setup leaves, from which every run begins.
type image struct {
	now     time.Time
	rows    map[string][]rowstore.Mutation // of each store
	records []*record
	runs    []observation
	written map[percolator.Cell][]writtenVersion
	marks   map[string]percolator.Timestamp
	told    map[string]string
	fates   map[percolator.Timestamp]percolator.Timestamp
	landed  map[percolator.Timestamp]int
	events  int
}

func newWorld(t *testing.T, p *Program, now time.Time) (*world, error) {
	w := &world{t: t, program: p, through: true, counts: map[string]int{}, fired: map[string]int{}, now: now, marks: map[string]percolator.Timestamp{}, told: map[string]string{}}
	return w, w.openStores()
}

// prepare carries out p's Setup.
func prepare(t *testing.T, p *Program) (*image, error) {
	w, err := newWorld(t, p, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		return nil, err
	}
	defer synctest.Wait()
	defer func() { _ = w.raw.Close() }()
	setup := w.client("setup", 0, nil)
	w.clients = []*Client{setup}
	w.through = false
	setup.start(func(ctx context.Context, c *Client) {
		if p.Setup != nil {
			err = p.Setup(ctx, c)
		}
	})
	serr := w.schedule(func([]choice) (int, error) { return 0, nil })
	setup.die()
	synctest.Wait()
	if err = errors.Join(serr, err); err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	// The oracle of a run begins at its clock, above what was handed out here.
	img := &image{now: w.now.Add(time.Second), rows: map[string][]rowstore.Mutation{}, records: w.history.records, runs: w.history.runs, written: w.history.written, marks: w.marks, told: w.told, fates: w.history.fates, landed: w.history.landed, events: w.history.events}
	for i := range w.stores {
		img.rows[w.stores[i].name], err = contents(w.stores[i].Store)
		if err != nil {
			return nil, fmt.Errorf("setting up: %w", err)
		}
	}
	return img, nil
}

// contents copies everything that a store holds.
func contents(m *memstore.Store) (rows []rowstore.Mutation, err error) {
	var picks []rowstore.Selector
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max})
	}
	for table, err := range m.Tables(context.Background()) {
		if err != nil {
			return nil, err
		}
		for row, err := range m.Scan(context.Background(), rowstore.ScanRange{Table: table, Selectors: picks}) {
			if err != nil {
				return nil, err
			}
			mut := rowstore.Mutation{Table: table, Row: row.Row}
			for _, v := range row.Versions {
				mut.Edits = append(mut.Edits, rowstore.Put(v.Family, v.Column, v.TS, v.Value))
			}
			rows = append(rows, mut)
		}
	}
	return rows, nil
}

// run carries out p once, from an image.
func run(t *testing.T, p *Program, img *image, choose chooser) (w *world, err error) {
	w, err = newWorld(t, p, img.now)
	if err != nil {
		return w, err
	}
	w.left, w.owned = p.Budget, w.now.Add(p.Unowned)
	w.history.records, w.history.runs = slices.Clone(img.records), slices.Clone(img.runs)
	w.history.written, w.marks, w.history.events = map[percolator.Cell][]writtenVersion{}, img.marks, img.events
	w.told = maps.Clone(img.told)
	w.history.fates, w.history.landed = maps.Clone(img.fates), maps.Clone(img.landed)
	for cell, vs := range img.written {
		w.history.written[cell] = slices.Clone(vs)
	}
	for i := range w.stores {
		if rows := img.rows[w.stores[i].name]; len(rows) > 0 {
			if _, err := w.stores[i].Apply(context.Background(), rows, rowstore.ApplyOptions{}); err != nil {
				return w, fmt.Errorf("setting up: %w", err)
			}
		}
	}
	for i := range p.Clients {
		opts := p.Options
		if i < len(p.Each) {
			opts = slices.Concat(opts, p.Each[i])
		}
		w.clients = append(w.clients, w.client(fmt.Sprintf("c%d", i+1), i+1, opts))
	}
	w.through = false
	for i, body := range p.Clients {
		w.clients[i].start(body)
	}
	err = w.schedule(choose)
	for _, c := range w.clients {
		if !c.hasEnded() {
			c.die()
		}
	}
	synctest.Wait()
	if err == nil {
		err = w.judge()
	}
	_ = w.raw.Close()
	synctest.Wait()
	return w, err
}

// openStores makes the stores of the program, and a way to them past the explorer.
func (w *world) openStores() (err error) {
	names := []string{authoritative}
	for _, name := range slices.Sorted(maps.Values(w.program.Tables)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	stores := map[string]rowstore.Store{}
	for _, name := range names {
		m := memstore.New(memstore.WithClock(w.time))
		w.stores = append(w.stores, namedStore{name, m})
		stores[name] = m
	}
	w.raw, err = w.program.route(stores)
	return err
}

// authoritative names the store that every program has.
const authoritative = "main"

// route puts stores together, where there are several.
func (p *Program) route(stores map[string]rowstore.Store) (rowstore.Store, error) {
	if len(stores) == 1 {
		return stores[authoritative], nil
	}
	r, err := router.New(router.Config{Stores: stores, Tables: p.Tables, Authoritative: authoritative})
	if err != nil {
		return nil, fmt.Errorf("explore: program %q: %w", p.Name, err)
	}
	return r, nil
}

// start runs a client's program.
func (c *Client) start(body func(ctx context.Context, c *Client)) {
	go func() {
		defer func() {
			c.w.mu.Lock()
			c.ended = true
			c.w.mu.Unlock()
		}()
		defer c.close()
		body(c.ctx, c)
	}()
}

// client makes a client. Its DB's own beginning is not explored.
func (w *world) client(name string, id int, opts []percolator.Option) *Client {
	c := &Client{w: w, id: id, Name: name, bereft: map[string]time.Time{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if at := id - 1; at >= 0 && at < len(w.program.Takes) {
		c.takes = w.program.Takes[at]
	}
	if slices.Contains(w.program.Still, id-1) {
		c.stands = w.time()
	}
	settings := w.program.Settings
	if settings == (percolator.Settings{}) {
		settings = patient
	}
	if w.program.Owned && id > 0 && id <= len(w.program.Clients) {
		opts = append(opts, coretest.WithOwnership(c.owns))
	}
	if !w.program.Collects {
		opts = append(opts, coretest.WithoutHints()) // nobody reads them
	}
	c.opts = append([]percolator.Option{
		percolator.WithSettings(settings), percolator.WithSessionLease(sessionLease), percolator.WithLockExpiry(lockExpiry),
		// A few looks at a lock for each lease are enough: those between change nothing.
		percolator.WithLockWait(percolator.Backoff{Min: sessionLease / 4, Max: sessionLease / 4}),
		coretest.WithIDs(func() string { return fmt.Sprintf("%s.%d", c.Name, c.ids.Add(1)) }),
		percolator.WithClock(clock{c}), coretest.WithSeed(uint64(c.id) + 1), //nolint:gosec // a small number
		percolator.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
	var err error
	if c.DB, err = c.open(c.ctx); err != nil {
		panic(fmt.Sprintf("explore: opening over an empty store: %v", err))
	}
	return c
}

// open opens a DB over the client's own way to the stores.
func (c *Client) open(ctx context.Context) (*percolator.DB, error) {
	w := c.w
	gates := map[string]rowstore.Store{}
	for i := range w.stores {
		gates[w.stores[i].name] = &gate{c: c, inner: w.stores[i].Store}
	}
	store, err := w.program.route(gates)
	if err != nil {
		return nil, err
	}
	return percolator.New(ctx, store, c.opts...)
}

// Reopen ends the client's process and starts another one.
func (c *Client) Reopen(ctx context.Context) error {
	c.close()
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	c.DB = db
	return nil
}

const (
	sessionLease = time.Second
	lockExpiry   = 2 * time.Second
)

// patient are the settings of programs that name none: nothing ends by them within
// a run.
var patient = percolator.Settings{MaxTxnAge: 10 * time.Minute, Retention: time.Hour, CatalogLease: time.Minute}

func (c *Client) close() { _ = c.DB.Close(c.ctx) }

func (c *Client) hasEnded() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.ended
}

// die ends a client: its calls under way get no answer that it could use, and it
// makes no others.
func (c *Client) die() {
	w := c.w
	w.mu.Lock()
	c.dead = true
	var mine []*request
	w.requests = slices.DeleteFunc(w.requests, func(r *request) bool {
		if r.client == c {
			r.abandon()
			mine = append(mine, r)
			return true
		}
		return false
	})
	w.mu.Unlock()
	c.cancel()
	for _, r := range mine {
		r.done <- errDead
	}
}

func (w *world) time() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// call hands a request to the explorer and waits for its end.
func (c *Client) call(ctx context.Context, r *request) error {
	w := c.w
	w.mu.Lock()
	if c.dead {
		w.mu.Unlock()
		return errDead
	}
	if w.through {
		if r.sleep {
			if r.due.After(w.now) {
				w.now = r.due
			}
		}
		w.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := range r.parts {
			r.parts[i].do()
		}
		return nil
	}
	if err := ctx.Err(); err != nil || len(r.parts) == 0 && !r.sleep {
		w.mu.Unlock()
		return err // a batch of nothing is no call
	}
	// Two calls of one client at the same moment come in no order, so a call is
	// named by what it is, and counted.
	key := c.Name + " " + r.label
	w.counts[key]++
	r.label = fmt.Sprintf("%s #%d", key, w.counts[key])
	r.client, r.ctx = c, ctx
	r.done = make(chan error, 1)
	for i := range r.parts {
		r.parts[i].due = w.now.Add(time.Duration(i+1) * c.takes)
	}
	w.requests = append(w.requests, r)
	w.mu.Unlock()
	if !r.sleep {
		return <-r.done
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		w.requests = slices.DeleteFunc(w.requests, func(o *request) bool { return o == r })
		w.mu.Unlock()
		return ctx.Err()
	}
}

// clock is a client's local time.
type clock struct{ c *Client }

func (k clock) Now() time.Time {
	if !k.c.stands.IsZero() {
		return k.c.stands
	}
	return k.c.w.time()
}

func (k clock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	return k.c.call(ctx, &request{label: "sleep", sleep: true, due: k.c.w.time().Add(d)})
}
