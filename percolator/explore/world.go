package explore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// touch is something that a call reads or changes. A row of "" is a whole table, a
// table of "" is every one.
type touch struct {
	table, row string
	write      bool
}

func (a *touch) conflicts(b *touch) bool {
	return (a.write || b.write) && (a.table == b.table || a.table == "" || b.table == "") &&
		(a.row == b.row || a.row == "" || b.row == "")
}

// What stands among touches for what is no row.
const (
	oracleTable  = "\x00oracle"
	durableTable = "\x00durable" // which deferred batches a crash would lose
)

// choice is one thing that can happen next.
type choice struct {
	label   string
	client  int    // -1 for what belongs to nobody
	request string // parts of one request may come in any order
	fault   bool
	all     bool // touches everything
	touches []touch
	do      func()
}

// independent tells that two choices lead to the same state in either order.
func (c *choice) independent(o *choice) bool {
	if c.all || o.all || c.fault && o.fault {
		return false
	}
	if c.client >= 0 && c.client == o.client && c.request != o.request {
		return false
	}
	for i := range c.touches {
		for j := range o.touches {
			if c.touches[i].conflicts(&o.touches[j]) {
				return false
			}
		}
	}
	return true
}

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

	mu       sync.Mutex
	pass     bool // calls are carried out at once: before and after the run
	now      time.Time
	requests []*request // waiting
	counts   map[string]int

	left   Budget
	script []string
	trace  trace
	steps  int
	fired  map[string]int
}

type namedStore struct {
	name string
	*rowstore.Memory
}

// request is a call of a client, in one or more parts that are carried out one by
// one.
type request struct {
	client *Client // nil once its sender has given up
	label  string
	parts  []part
	done   chan error // nil: every part is done; else what the caller is told
	due    time.Time  // of a sleep
	sleep  bool
	write  bool
	ctx    context.Context
}

type part struct {
	label   string
	touches []touch
	do      func()
	done    bool
}

// Client is one process: a DB of its own over the common store.
type Client struct {
	w    *world
	id   int
	Name string
	DB   *percolator.DB

	ctx    context.Context
	cancel context.CancelFunc
	dead   bool
	ended  bool
}

// image is what Setup leaves, from which every run begins.
type image struct {
	now     time.Time
	rows    map[string][]rowstore.Mutation // of each store
	records []*record
	runs    []observation
	written map[percolator.Cell][]writtenVersion
	marks   map[string]percolator.Timestamp
	events  int
}

func newWorld(t *testing.T, p *Program, now time.Time) (*world, error) {
	w := &world{t: t, program: p, pass: true, counts: map[string]int{}, fired: map[string]int{}, now: now, marks: map[string]percolator.Timestamp{}}
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
	w.pass = false
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
	img := &image{now: w.now.Add(time.Second), rows: map[string][]rowstore.Mutation{}, records: w.history.records, runs: w.history.runs, written: w.history.written, marks: w.marks, events: w.history.events}
	for i := range w.stores {
		img.rows[w.stores[i].name], err = contents(w.stores[i].Memory)
		if err != nil {
			return nil, fmt.Errorf("setting up: %w", err)
		}
	}
	return img, nil
}

// contents copies everything that a store holds.
func contents(m *rowstore.Memory) (rows []rowstore.Mutation, err error) {
	var picks []rowstore.Pick
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Rollback, rowstore.Notify} {
		picks = append(picks, rowstore.Pick{Family: f, Column: rowstore.AllColumns, To: oracle.Max})
	}
	for table, err := range m.Tables(context.Background()) {
		if err != nil {
			return nil, err
		}
		for row, err := range m.Scan(context.Background(), rowstore.ScanRange{Table: table, Picks: picks}) {
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
	w.left = p.Budget
	w.history.records, w.history.runs = slices.Clone(img.records), slices.Clone(img.runs)
	w.history.written, w.marks, w.history.events = map[percolator.Cell][]writtenVersion{}, img.marks, img.events
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
	w.pass = false
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
		m := rowstore.NewMemory(rowstore.WithClock(w.time))
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
	r, err := rowstore.NewRouter(rowstore.RouterConfig{Stores: stores, Tables: p.Tables, Authoritative: authoritative})
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
	c := &Client{w: w, id: id, Name: name}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	settings := w.program.Settings
	if settings == (percolator.Settings{}) {
		settings = patient
	}
	opts = append([]percolator.Option{
		percolator.WithSettings(settings), percolator.WithSessionLease(sessionLease), percolator.WithLockExpiry(lockExpiry),
		// A few looks at a lock for each lease are enough: those between change nothing.
		percolator.WithLockWait(percolator.Backoff{Min: sessionLease / 4, Max: sessionLease / 4}),
		percolator.WithClock(clock{c}), percolator.WithSeed(uint64(c.id) + 1), //nolint:gosec // a small number
		percolator.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
	gates := map[string]rowstore.Store{}
	for i := range w.stores {
		gates[w.stores[i].name] = &gate{c: c, inner: w.stores[i].Memory}
	}
	store, err := w.program.route(gates)
	if err != nil {
		panic(err)
	}
	db, err := percolator.New(c.ctx, store, opts...)
	if err != nil {
		panic(fmt.Sprintf("explore: opening over an empty store: %v", err))
	}
	c.DB = db
	return c
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
	if w.pass {
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
	if err := ctx.Err(); err != nil {
		w.mu.Unlock()
		return err
	}
	// Two calls of one client at the same moment come in no order, so a call is
	// named by what it is, and counted.
	key := c.Name + " " + r.label
	w.counts[key]++
	r.label = fmt.Sprintf("%s #%d", key, w.counts[key])
	r.client, r.ctx = c, ctx
	r.done = make(chan error, 1)
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

// schedule lets things happen until every client has ended.
func (w *world) schedule(choose chooser) error {
	for {
		synctest.Wait()
		enabled, ended := w.enabled()
		if ended {
			return nil
		}
		if len(enabled) == 0 {
			return fmt.Errorf("%w: nothing can happen", errStuck)
		}
		if w.steps++; w.steps > maxSteps {
			return fmt.Errorf("%w within %d calls", errStuck, maxSteps)
		}
		i := 0
		if len(enabled) > 1 || !enabled[0].forced() {
			var err error
			if i, err = choose(enabled); err != nil {
				return err
			}
		}
		w.script = append(w.script, enabled[i].label)
		w.trace.add(&enabled[i])
		enabled[i].do()
	}
}

// forced tells that a choice is none: the passing of time when all wait for it.
func (c *choice) forced() bool { return c.client < 0 && c.all && !c.fault }

// enabled lists what can happen, plain calls first.
func (w *world) enabled() (all []choice, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended = true
	for _, c := range w.clients {
		ended = ended && (c.ended || c.dead)
	}
	if ended {
		return nil, true
	}
	calls := slices.DeleteFunc(slices.Clone(w.requests), func(r *request) bool { return r.sleep })
	slices.SortFunc(calls, func(a, b *request) int { return strings.Compare(a.label, b.label) })
	if w.program.Serial {
		first := map[*Client]bool{}
		calls = slices.DeleteFunc(calls, func(r *request) bool {
			waits := r.client != nil && first[r.client]
			first[r.client] = true
			return waits
		})
	}
	var faults []choice
	for _, r := range calls {
		client := -1
		if r.client != nil {
			client = r.client.id
		}
		base := choice{client: client, request: r.label}
		for i := range r.parts {
			if p := &r.parts[i]; !p.done {
				c := base
				c.label, c.touches, c.do = r.labelOf(p), p.touches, func() { w.finish(r, p) }
				all = append(all, c)
			}
		}
		if r.client != nil { // what nobody waits for may never arrive
			base.fault = true
			faults = w.faults(faults, r, base)
		}
	}
	working := slices.ContainsFunc(calls, func(r *request) bool { return r.client != nil })
	if w.left.Die > 0 {
		// When its calls under way never arrive; if they do, that comes before.
		for _, c := range w.clients {
			if slices.ContainsFunc(calls, func(r *request) bool { return r.client == c }) {
				faults = append(faults, choice{label: c.Name + " dies", client: c.id, fault: true, do: func() {
					w.left.Die--
					w.fired["die"]++
					c.die()
				}})
			}
		}
	}
	if w.left.Expire > 0 && len(all) > 0 {
		faults = append(faults, choice{label: "every lease expires", client: -1, fault: true, all: true, do: func() {
			w.left.Expire--
			w.fired["expire"]++
			w.advance(max(w.program.Stall, sessionLease+lockExpiry+time.Second))
		}})
	}
	if w.left.Crash > 0 && len(all) > 0 {
		for i := range w.stores {
			label := "the store crashes"
			if len(w.stores) > 1 {
				label = "the store " + w.stores[i].name + " crashes"
			}
			faults = append(faults, choice{label: label, client: -1, fault: true, all: true, do: func() {
				w.left.Crash--
				w.fired["crash"]++
				w.stores[i].Crash()
			}})
		}
	}
	if w.left.Slow > 0 && working {
		// Whoever has something to do is slow, and somebody else's time is over.
		for _, r := range w.requests {
			if r.sleep {
				faults = append(faults, choice{label: "meanwhile, time passes for " + r.label, client: -1, fault: true, all: true, do: func() {
					w.left.Slow--
					w.fired["slow"]++
					w.wake(r)
				}})
			}
		}
		slices.SortFunc(faults, func(a, b choice) int { return strings.Compare(a.label, b.label) })
	}
	all = append(all, faults...)
	if working {
		return all, false
	}
	// Time passes when everybody waits for it.
	var first *request
	for _, r := range w.requests {
		if r.sleep && (first == nil || r.due.Before(first.due) || r.due.Equal(first.due) && r.label < first.label) {
			first = r
		}
	}
	if first != nil {
		all = append(all, choice{label: "time passes for " + first.label, client: -1, all: true, do: func() { w.wake(first) }})
	}
	return all, false
}

// wake ends a sleep.
func (w *world) wake(r *request) {
	w.mu.Lock()
	if r.due.After(w.now) {
		w.now = r.due
	}
	w.drop(r)
	w.mu.Unlock()
	r.done <- nil
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) drop(r *request) {
	w.requests = slices.DeleteFunc(w.requests, func(o *request) bool { return o == r })
}

// finish carries out a part, and answers when it was the last.
func (w *world) finish(r *request, p *part) {
	p.do()
	p.done = true
	if slices.ContainsFunc(r.parts, func(p part) bool { return !p.done }) {
		return
	}
	w.mu.Lock()
	w.drop(r)
	w.mu.Unlock()
	if r.client != nil {
		r.done <- nil
	}
}

// giveUp tells a request's sender that it failed. What was not carried out is lost,
// or left under way.
func (w *world) giveUp(r *request, err error, underWay bool) {
	w.mu.Lock()
	w.drop(r)
	if underWay {
		late := &request{label: "late: " + r.label, write: r.write}
		for _, p := range r.parts {
			if !p.done {
				late.parts = append(late.parts, p)
			}
		}
		w.requests = append(w.requests, late)
	}
	w.mu.Unlock()
	r.done <- err
}

// labelOf names the arrival of a part.
func (r *request) labelOf(p *part) string {
	if len(r.parts) > 1 {
		return r.label + " " + p.label
	}
	return r.label
}

// faults adds what can go wrong with a request; base is what such choices have in
// common.
func (w *world) faults(list []choice, r *request, base choice) []choice {
	add := func(label, kind string, left *int, touches []touch, do func()) {
		if *left > 0 {
			c := base
			c.label, c.touches = label, touches
			c.do = func() {
				*left--
				w.fired[kind]++
				do()
			}
			list = append(list, c)
		}
	}
	add(r.label+" fails", "fail", &w.left.Fail, nil, func() { w.giveUp(r, errInjected, false) })
	if !r.write {
		return list // the loss of a read's reply is no more than its failure
	}
	lost := fmt.Errorf("%w: injected", rowstore.ErrAmbiguous)
	undone := 0
	for i := range r.parts {
		if !r.parts[i].done {
			undone++
		}
	}
	add(r.label+" is lost", "lose", &w.left.Lose, nil, func() { w.giveUp(r, lost, false) })
	add(r.label+" is given up under way", "late", &w.left.Late, nil, func() { w.giveUp(r, lost, true) })
	add(r.client.Name+" dies with "+r.label+" under way", "leave", &w.left.Leave, nil, func() {
		w.giveUp(r, errDead, true)
		r.client.die()
	})
	for i := range r.parts {
		p := &r.parts[i]
		if p.done {
			continue
		}
		if undone == 1 {
			add(r.labelOf(p)+" and its reply is lost", "lose", &w.left.Lose, p.touches, func() {
				p.do()
				p.done = true
				w.giveUp(r, lost, false)
			})
		}
		add(r.labelOf(p)+" and arrives again later", "twice", &w.left.Twice, p.touches, func() {
			w.mu.Lock()
			w.requests = append(w.requests, &request{label: "again: " + r.labelOf(p), write: true, parts: []part{*p}})
			w.mu.Unlock()
			w.finish(r, p)
		})
	}
	return list
}

// clock is a client's local time.
type clock struct{ c *Client }

func (k clock) Now() time.Time { return k.c.w.time() }

func (k clock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	return k.c.call(ctx, &request{label: "sleep", sleep: true, due: k.Now().Add(d)})
}

// gate is a client's way to one store.
type gate struct {
	c     *Client
	inner *rowstore.Memory
}

func rowLabel(table, row string) string {
	return strings.ReplaceAll(table, "\x00", "^") + "/" + row
}

// Read implements rowstore.Store: each row is read by itself.
func (g *gate) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows := make([]rowstore.Row, len(reads))
	r := &request{}
	var names []string
	for i, rd := range reads {
		name := rowLabel(rd.Table, rd.Row)
		if rd.Table == sessionsTable {
			name = rowLabel(rd.Table, "*") // a session's name is random
		}
		names = append(names, name)
		r.parts = append(r.parts, part{label: name, touches: []touch{{rd.Table, rd.Row, false}}, do: func() {
			got, err := g.inner.Read(context.Background(), []rowstore.RowRead{rd})
			if err != nil {
				rows[i].Err = err
				return
			}
			rows[i] = got[0]
		}})
	}
	slices.Sort(names)
	r.label = "read " + strings.Join(names, " ")
	return rows, g.c.call(ctx, r)
}

const sessionsTable = "\x00sessions"

// Apply implements rowstore.Store: each row is changed by itself.
func (g *gate) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs := make([]rowstore.Outcome, len(muts))
	r := &request{write: true}
	var names []string
	for i := range muts {
		m := clone(muts[i])
		name := what(&m) + rowLabel(m.Table, m.Row)
		if m.Table == sessionsTable {
			name = "renew " + rowLabel(m.Table, "*")
		}
		names = append(names, name)
		r.parts = append(r.parts, part{label: name, touches: g.durable([]touch{{m.Table, m.Row, true}}, !opts.Deferred), do: func() {
			got, err := g.inner.Apply(context.Background(), []rowstore.Mutation{m}, opts)
			if err != nil {
				outs[i].Err = err
				return
			}
			outs[i] = got[0]
			if got[0].Applied {
				g.c.w.history.noteWrites(&m, 0)
			}
		}})
	}
	slices.Sort(names)
	r.label = strings.Join(names, " ")
	if err := g.c.call(ctx, r); err != nil {
		return outs, err
	}
	refused := slices.ContainsFunc(outs, func(o rowstore.Outcome) bool { return !o.Applied })
	if opts.Draw && g.c.id%2 == 1 && !refused {
		// Every other client gets its commit timestamp with its prewrites, as from a
		// store that saves a round trip by it.
		ts, err := g.Oracle().Draw(ctx, len(muts))
		for i := range outs {
			if err == nil {
				outs[i].Drawn = ts + oracle.Timestamp(i) //nolint:gosec // a small number
			}
		}
	}
	return outs, nil
}

// durable adds what a call has to do with batches that a crash may lose: an
// undeferred one makes those before it durable.
func (g *gate) durable(touches []touch, flushes bool) []touch {
	if g.c.w.program.Budget.Crash > 0 {
		touches = append(touches, touch{durableTable, fmt.Sprintf("%p", g.inner), flushes})
	}
	return touches
}

// clone keeps a mutation for later than its caller does.
func clone(m rowstore.Mutation) rowstore.Mutation {
	m.Conditions = slices.Clone(m.Conditions)
	m.Edits = slices.Clone(m.Edits)
	return m
}

// what names a mutation for people.
func what(m *rowstore.Mutation) string {
	puts := map[rowstore.Family]bool{}
	for _, e := range m.Edits {
		if e.Kind == rowstore.DoPut {
			puts[e.Family] = true
		}
	}
	present := slices.ContainsFunc(m.Conditions, func(c rowstore.Condition) bool { return c.Kind == rowstore.IfPresent })
	switch {
	case puts[rowstore.Lock] && present:
		return "heartbeat "
	case puts[rowstore.Lock]:
		return "prewrite "
	case puts[rowstore.Write] && present:
		return "commit "
	case present:
		return "unlock "
	case puts[rowstore.Rollback]:
		return "fence "
	case puts[rowstore.Notify]:
		return "notify "
	}
	return "change "
}

// Group implements rowstore.Grouper.
func (g *gate) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	outs := make([]rowstore.GroupOutcome, len(groups))
	r := &request{write: true}
	var names []string
	for i := range groups {
		gr := groups[i]
		gr.Mutations = slices.Clone(gr.Mutations)
		var touches []touch
		var rows []string
		for j := range gr.Mutations {
			gr.Mutations[j] = clone(gr.Mutations[j])
			m := &gr.Mutations[j]
			touches = append(touches, touch{m.Table, m.Row, true})
			rows = append(rows, rowLabel(m.Table, m.Row))
		}
		if gr.Draw {
			touches = append(touches, touch{oracleTable, "", true})
		}
		slices.Sort(rows)
		name := "group " + strings.Join(rows, " ")
		names = append(names, name)
		r.parts = append(r.parts, part{label: name, touches: g.durable(touches, true), do: func() {
			got, err := g.inner.Group(context.Background(), []rowstore.Group{gr})
			if err != nil {
				outs[i].Err = err
				return
			}
			outs[i] = got[0]
			for j := range gr.Mutations {
				if got[0].Applied {
					g.c.w.history.noteWrites(&gr.Mutations[j], got[0].Commit)
				}
			}
		}})
	}
	slices.Sort(names)
	r.label = strings.Join(names, " ")
	return outs, g.c.call(ctx, r)
}

// GroupKey implements rowstore.Grouper.
func (g *gate) GroupKey(table, row string) string { return g.inner.GroupKey(table, row) }

// Draws implements rowstore.Grouper.
func (g *gate) Draws(key string) bool { return g.inner.Draws(key) }

// Scan implements rowstore.Store: each row is visited by itself.
func (g *gate) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		limit := s.Limit
		for n := 0; limit == 0 || n < limit; n++ {
			var row rowstore.Row
			var err error
			found := false
			s.Limit = 1
			r := &request{label: "scan " + rowLabel(s.Table, s.From)}
			r.parts = []part{{touches: []touch{{table: s.Table}}, do: func() {
				row, err, found = rowstore.Row{}, nil, false
				for row, err = range g.inner.Scan(context.Background(), s) {
					found = true
					break
				}
			}}}
			if cerr := g.c.call(ctx, r); cerr != nil {
				err = cerr
			}
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if !found || !yield(row, nil) {
				return
			}
			if s.Reverse {
				s.To = row.Row
			} else {
				s.From = row.Row + "\x00"
			}
		}
	}
}

// Tables implements rowstore.Store.
func (g *gate) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := g.c.call(ctx, &request{label: "tables", parts: []part{{touches: []touch{{}}, do: func() {}}}}); err != nil {
			yield("", err)
			return
		}
		g.inner.Tables(context.WithoutCancel(ctx))(yield)
	}
}

// Close implements rowstore.Store; the store goes on.
func (g *gate) Close() error { return nil }

// Flush implements rowstore.Deferrer.
func (g *gate) Flush(ctx context.Context) error {
	var err error
	if cerr := g.c.call(ctx, &request{label: "flush", write: true, parts: []part{{touches: g.durable(nil, true), do: func() { err = g.inner.Flush(context.Background()) }}}}); cerr != nil {
		return cerr
	}
	return err
}

// Oracle implements rowstore.OracleProvider.
func (g *gate) Oracle() oracle.Oracle { return gateOracle{g} }

type gateOracle struct{ g *gate }

func (o gateOracle) Draw(ctx context.Context, n int) (ts oracle.Timestamp, err error) {
	r := &request{label: "draw", parts: []part{{touches: []touch{{oracleTable, "", true}}, do: func() {
		ts, err = o.g.inner.Oracle().Draw(context.Background(), n)
	}}}}
	if cerr := o.g.c.call(ctx, r); cerr != nil {
		return 0, cerr
	}
	return ts, err
}

// DrawRead implements rowstore.DrawReader: in steps, as it is allowed to be.
func (g *gate) DrawRead(ctx context.Context, asks []rowstore.DrawRead) ([]rowstore.DrawnRows, error) {
	answers := make([]rowstore.DrawnRows, len(asks))
	for i := range asks {
		ts, err := g.Oracle().Draw(ctx, 1)
		if err != nil {
			return nil, err
		}
		rows, err := g.Read(ctx, asks[i].At(ts))
		if err != nil {
			return nil, err
		}
		answers[i] = rowstore.DrawnRows{TS: ts, Rows: rows}
	}
	return answers, nil
}

// Offer implements rowstore.Decorator.
func (g *gate) Offer(target any) bool {
	switch t := target.(type) {
	case *rowstore.Grouper:
		*t = g
	case *rowstore.Deferrer:
		*t = g
	case *rowstore.OracleProvider:
		*t = g
	case *rowstore.DrawReader:
		*t = g
	default:
		return false
	}
	return true
}
