package rowstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// RouterConfig says which table lives where.
type RouterConfig struct {
	// Stores are the stores by names of the caller's choice, which are not empty
	// and hold no zero byte. There is at least one. The names are part of what
	// GroupKey returns and of messages; nothing stores them.
	Stores map[string]Store
	// Tables gives the store of a table by its name as users write it, or of all
	// tables that begin alike by the beginning and a "*" at the end. A whole name
	// goes before a beginning, a longer beginning before a shorter one. A table
	// must stay where it is for as long as it holds data.
	Tables map[string]string
	// Default is the store of every other table. Default: the authoritative one.
	Default string
	// Authoritative is the store of the oracle and of what the library keeps for
	// itself: sessions, catalog, safe point. Choose the one that loses nothing in a
	// crash. It may be left empty when there is one store.
	Authoritative string
}

// Router is a Store that sends each table to a store of its own, so that one
// transaction may span them. Tables whose stored names begin with one zero byte,
// which package percolator reserves, are in the authoritative store.
//
// A batch is cut into one call for each store, all of which run at once. When a
// store fails, the error is that of its rows; those of other stores are not
// touched by it. A call that concerns one store only goes there as it is, errors
// included. All of a batch is checked before any of it is sent.
//
// A batch takes as long as the slowest of its stores. So Coalesce belongs under a
// Router, one around each store, where a slow store's callers wait for each other
// alone.
//
// The abilities of a Router, see [Decorator]:
//   - [Sharder], always: each store is a shard, or as many as it has itself.
//   - [Placer], always. The layer above puts a transaction's primary into the
//     authoritative store when the transaction writes there.
//   - [OracleProvider], when the authoritative store has one.
//   - [DrawReader], when the authoritative store has one: for asks whose rows are all
//     there; for others a timestamp is drawn first.
//   - [Grouper], when any store has one. Rows of two stores never share a group.
//     Only groups in the authoritative store, whose oracle is everybody's, Draw.
//   - [Deferrer], when any store has one. Deferred holds for rows in the
//     authoritative store; everywhere else an Apply stays durable when it returns.
//     It remains to the caller to defer only where every row of a transaction is
//     authoritative. An incarnation, in an outcome or a condition, is that of the
//     row's own store, so those of two stores differ.
//   - [Waker] and [Splitter], when every store has them: a fallback that did not
//     reach the tables of the others would be none.
//   - [Limiter], when any store has one: the tightest of each limit. What is over
//     the limits of its own store is refused here, before anything is sent.
//   - [Reporter], when any store has one.
//   - [Crasher], when any store has one: all of those crash.
type Router struct {
	routes        []*route // by name
	exact         map[string]*route
	beginnings    []beginning // longest first
	fallback      *route
	authoritative *route
	closed        atomic.Bool
}

type route struct {
	name    string
	store   Store
	grouper Grouper // nil: none
	sharder Sharder // nil: none
	limits  Limits
	shards  sync.Map // from a shard of the store to its name among all
}

type beginning struct {
	prefix string
	to     *route
}

// NewRouter returns a Router, to which the stores then belong: its Close closes
// them. It returns an error that matches ErrInvalid when the configuration names
// a store that is not there, or leaves open which is authoritative; then the
// stores are still the caller's.
func NewRouter(config RouterConfig) (*Router, error) {
	invalid := func(format string, args ...any) (*Router, error) {
		return nil, fmt.Errorf("router: %w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	r := &Router{exact: map[string]*route{}}
	byName := map[string]*route{}
	for _, name := range slices.Sorted(maps.Keys(config.Stores)) {
		s := config.Stores[name]
		if name == "" || strings.Contains(name, "\x00") {
			return invalid("store name %q", name)
		}
		if s == nil {
			return invalid("store %q is nil", name)
		}
		to := &route{name: name, store: s}
		to.grouper, _ = Unwrap[Grouper](s)
		to.sharder, _ = Unwrap[Sharder](s)
		if l, ok := Unwrap[Limiter](s); ok {
			to.limits = l.Limits()
		}
		byName[name] = to
		r.routes = append(r.routes, to)
	}
	if config.Authoritative == "" && len(r.routes) == 1 {
		config.Authoritative = r.routes[0].name
	}
	if r.authoritative = byName[config.Authoritative]; r.authoritative == nil {
		return invalid("the authoritative store is %q, which is none of the stores", config.Authoritative)
	}
	if config.Default == "" {
		config.Default = config.Authoritative
	}
	if r.fallback = byName[config.Default]; r.fallback == nil {
		return invalid("the default store is %q, which is none of the stores", config.Default)
	}
	for _, pattern := range slices.Sorted(maps.Keys(config.Tables)) {
		to := byName[config.Tables[pattern]]
		if to == nil {
			return invalid("table %q is to live in store %q, which is none of the stores", pattern, config.Tables[pattern])
		}
		if pattern == "" {
			return invalid("a table's name is empty")
		}
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			r.beginnings = append(r.beginnings, beginning{prefix, to})
		} else {
			r.exact[pattern] = to
		}
	}
	slices.SortStableFunc(r.beginnings, func(a, b beginning) int { return len(b.prefix) - len(a.prefix) })
	return r, nil
}

var (
	_ Decorator = (*Router)(nil)
	_ Placer    = (*Router)(nil)
	_ Sharder   = (*Router)(nil)
)

// route finds the store of a table by its stored name.
func (r *Router) route(table string) *route {
	if table != "" && table[0] == 0 {
		if len(table) == 1 || table[1] != 0 {
			return r.authoritative
		}
		table = table[1:] // a user's name that begins with a zero byte is stored with one more
	}
	if to, ok := r.exact[table]; ok {
		return to
	}
	for i := range r.beginnings {
		if strings.HasPrefix(table, r.beginnings[i].prefix) {
			return r.beginnings[i].to
		}
	}
	return r.fallback
}

// Authoritative implements Placer.
func (r *Router) Authoritative(table string) bool { return r.route(table) == r.authoritative }

// Shard implements Sharder: the store's name, and its own shard where it has several.
func (r *Router) Shard(table, row string) string {
	to := r.route(table)
	if to.sharder == nil {
		return to.name
	}
	shard := to.sharder.Shard(table, row)
	if name, ok := to.shards.Load(shard); ok {
		return name.(string)
	}
	name := to.name + "\x00" + shard
	to.shards.Store(shard, name)
	return name
}

func (to *route) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store %q: %w", to.name, err)
}

// Read implements Store.
func (r *Router) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	return split(ctx, r, reads, splitKind[RowRead, Row]{
		table: func(q *RowRead) string { return q.Table },
		check: CheckReads,
		send: func(ctx context.Context, to *route, reads []RowRead) ([]Row, error) {
			return to.store.Read(ctx, reads)
		},
		failed: func(q *RowRead, err error) Row { return Row{Table: q.Table, Row: q.Row, Err: err} },
	})
}

// Apply implements Store.
func (r *Router) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	whole := len(muts)
	return split(ctx, r, muts, splitKind[Mutation, Outcome]{
		table: func(q *Mutation) string { return q.Table },
		check: func(muts []Mutation) error {
			if err := CheckBatch(muts); err != nil {
				return err
			}
			return r.checkLimits(muts)
		},
		send: func(ctx context.Context, to *route, muts []Mutation) ([]Outcome, error) {
			// Only what is drawn in the end, after every store has applied its part, would
			// do, and only by the store that has everybody's oracle.
			return to.store.Apply(ctx, muts, ApplyOptions{
				Deferred: opts.Deferred && to == r.authoritative,
				Draw:     opts.Draw && to == r.authoritative && len(muts) == whole,
				Urgent:   opts.Urgent,
			})
		},
		failed: func(_ *Mutation, err error) Outcome { return Outcome{Err: err} },
	})
}

func (r *Router) checkLimits(muts []Mutation) error {
	for i := range muts {
		to := r.route(muts[i].Table)
		if err := CheckLimits(to.limits, muts[i:i+1]); err != nil {
			return to.wrap(err)
		}
	}
	return nil
}

// splitKind is what differs between reads, applies and groups.
type splitKind[Q, A any] struct {
	table  func(*Q) string
	check  func([]Q) error
	send   func(context.Context, *route, []Q) ([]A, error)
	failed func(*Q, error) A
}

func split[Q, A any](ctx context.Context, r *Router, asks []Q, kind splitKind[Q, A]) ([]A, error) {
	if r.closed.Load() {
		return nil, fmt.Errorf("router: %w", ErrClosed)
	}
	one := r.authoritative
	for i := range asks {
		to := r.route(kind.table(&asks[i]))
		if i > 0 && to != one {
			return splitParts(ctx, r, asks, kind)
		}
		one = to
	}
	answers, err := kind.send(ctx, one, asks)
	return answers, one.wrap(err)
}

func splitParts[Q, A any](ctx context.Context, r *Router, asks []Q, kind splitKind[Q, A]) ([]A, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	if err := kind.check(asks); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	parts := cut(asks, func(q *Q) *route { return r.route(kind.table(q)) })
	return sendParts(len(asks), parts, func(p *part[*route, Q]) ([]A, error) {
		got, err := kind.send(ctx, p.to, p.asks)
		return got, p.to.wrap(err)
	}, kind.failed), nil
}

// Scan implements Store.
func (r *Router) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	to := r.route(s.Table)
	return func(yield func(Row, error) bool) {
		for row, err := range to.store.Scan(ctx, s) {
			if !yield(row, to.wrap(err)) {
				return
			}
		}
	}
}

// Tables implements Store. A table that a store holds, but that is routed to
// another one, is not listed.
func (r *Router) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var names []string
		for _, to := range r.routes {
			for name, err := range to.store.Tables(ctx) {
				if err != nil {
					yield("", to.wrap(err))
					return
				}
				if r.route(name) == to {
					names = append(names, name)
				}
			}
		}
		slices.Sort(names)
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Close implements Store: it closes all stores, whether or not some fail, and
// joins their errors.
func (r *Router) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, to := range r.routes {
		errs = append(errs, to.wrap(to.store.Close()))
	}
	return errors.Join(errs...)
}

// Offer implements Decorator.
func (r *Router) Offer(target any) bool {
	switch t := target.(type) {
	case *Placer:
		*t = r
		return true
	case *Sharder:
		*t = r
		return true
	case *DrawReader:
		if d, ok := Unwrap[DrawReader](r.authoritative.store); ok {
			*t = routedDrawReader{r, d}
			return true
		}
	case *OracleProvider:
		return offer(r.authoritative.store, t)
	case *Grouper:
		if slices.ContainsFunc(r.routes, func(to *route) bool { return to.grouper != nil }) {
			*t = routedGrouper{r}
			return true
		}
	case *Deferrer:
		if found := routed[Deferrer](r); len(found) > 0 {
			*t = routedDeferrer{found}
			return true
		}
	case *Waker:
		if found := routed[Waker](r); len(found) == len(r.routes) {
			*t = routedWaker{found}
			return true
		}
	case *Splitter:
		if len(routed[Splitter](r)) == len(r.routes) {
			*t = routedSplitter{r}
			return true
		}
	case *Limiter:
		if found := routed[Limiter](r); len(found) > 0 {
			*t = routedLimiter{found}
			return true
		}
	case *Reporter:
		if len(routed[Reporter](r)) > 0 {
			*t = routedReporter{r}
			return true
		}
	case *Crasher:
		if found := routed[Crasher](r); len(found) > 0 {
			*t = routedCrasher{found}
			return true
		}
	}
	return false
}

// ability is what one of the stores can do.
type ability[T any] struct {
	to *route
	is T
}

func routed[T any](r *Router) []ability[T] {
	var found []ability[T]
	for _, to := range r.routes {
		if t, ok := Unwrap[T](to.store); ok {
			found = append(found, ability[T]{to, t})
		}
	}
	return found
}

type routedDrawReader struct {
	r     *Router
	inner DrawReader
}

// DrawRead sends what concerns the authoritative store alone there as it is, and
// draws first where other stores are concerned.
func (d routedDrawReader) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	r := d.r
	elsewhere := func(q RowRead) bool { return r.route(q.Table) != r.authoritative }
	if !slices.ContainsFunc(asks, func(d DrawRead) bool { return slices.ContainsFunc(d.Reads, elsewhere) }) {
		if r.closed.Load() {
			return nil, fmt.Errorf("router: %w", ErrClosed)
		}
		answers, err := d.inner.DrawRead(ctx, asks)
		return answers, r.authoritative.wrap(err)
	}
	o, ok := Unwrap[OracleProvider](r)
	if !ok {
		return nil, fmt.Errorf("router: draw and read: %w: the authoritative store has no oracle", ErrInvalid)
	}
	return DrawThenRead(ctx, o.Oracle(), r, asks)
}

type routedGrouper struct{ r *Router }

// GroupKey puts the store's name before its own key, which is never empty. Names
// hold no zero byte, so no two keys of different stores are equal.
func (g routedGrouper) GroupKey(table, row string) string {
	to := g.r.route(table)
	if to.grouper == nil {
		return ""
	}
	key := to.grouper.GroupKey(table, row)
	if key == "" {
		return ""
	}
	return to.name + "\x00" + key
}

func (g routedGrouper) Draws(key string) bool {
	name, key, ok := strings.Cut(key, "\x00")
	to := g.r.authoritative
	return ok && name == to.name && to.grouper != nil && to.grouper.Draws(key) && g.sameOracle()
}

// sameOracle tells whether the authoritative store hands out timestamps: those
// that its groups draw are else not the database's.
func (g routedGrouper) sameOracle() bool {
	_, ok := Unwrap[OracleProvider](g.r.authoritative.store)
	return ok
}

func (g routedGrouper) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	if err := CheckGroups(g, groups); err != nil {
		return nil, fmt.Errorf("router: group: %w", err)
	}
	return split(ctx, g.r, groups, splitKind[Group, GroupOutcome]{
		table: func(q *Group) string { return q.Mutations[0].Table },
		check: func(groups []Group) error {
			for i := range groups {
				to := g.r.route(groups[i].Mutations[0].Table)
				if err := CheckGroupLimits(to.limits, groups[i:i+1]); err != nil {
					return to.wrap(err)
				}
			}
			return nil
		},
		send: func(ctx context.Context, to *route, groups []Group) ([]GroupOutcome, error) {
			if to.grouper == nil { // the authoritative store gets a call about nothing
				return nil, ctx.Err()
			}
			return to.grouper.Group(ctx, groups)
		},
		failed: func(_ *Group, err error) GroupOutcome { return GroupOutcome{Err: err} },
	})
}

type routedDeferrer struct{ all []ability[Deferrer] }

// Flush flushes every store, so that also what others deferred is durable.
func (d routedDeferrer) Flush(ctx context.Context) error {
	return together(ctx, d.all, func(ctx context.Context, s ability[Deferrer]) error { return s.is.Flush(ctx) })
}

// together does something with each of the stores at once and joins the errors.
func together[T any](ctx context.Context, all []ability[T], do func(context.Context, ability[T]) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { errs[i] = all[i].to.wrap(do(ctx, all[i])) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

type routedWaker struct{ all []ability[Waker] }

// Listen listens to every store, until one of them fails.
func (w routedWaker) Listen(ctx context.Context, wake func(table string)) error {
	var mu sync.Mutex // wake is called from one goroutine at a time
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_ = together(inner, w.all, func(ctx context.Context, s ability[Waker]) error {
		err := s.is.Listen(ctx, func(table string) {
			mu.Lock()
			defer mu.Unlock()
			wake(table)
		})
		// The first to end ends the others, and its reason is the one that counts.
		cancel(s.to.wrap(err))
		return err
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(inner)
}

type routedSplitter struct{ r *Router }

func (s routedSplitter) Split(ctx context.Context, table string, n int) ([]string, error) {
	to := s.r.route(table)
	splitter, ok := Unwrap[Splitter](to.store)
	if !ok {
		return nil, nil
	}
	keys, err := splitter.Split(ctx, table, n)
	return keys, to.wrap(err)
}

type routedLimiter struct{ all []ability[Limiter] }

func (l routedLimiter) Limits() Limits {
	var all Limits
	tighten := func(have *int, limit int) {
		if limit > 0 && (*have == 0 || limit < *have) {
			*have = limit
		}
	}
	for _, s := range l.all {
		one := s.is.Limits()
		tighten(&all.Table, one.Table)
		tighten(&all.Row, one.Row)
		tighten(&all.Column, one.Column)
		tighten(&all.Value, one.Value)
		tighten(&all.Operations, one.Operations)
		tighten(&all.Bytes, one.Bytes)
	}
	return all
}

type routedReporter struct{ r *Router }

// Report puts the stores' reports together; each line says whose it is.
func (p routedReporter) Report(ctx context.Context) (Report, error) {
	all := Report{Backend: "router"}
	for _, to := range p.r.routes {
		reporter, ok := Unwrap[Reporter](to.store)
		if !ok {
			continue
		}
		one, err := reporter.Report(ctx)
		if err != nil {
			return Report{}, to.wrap(err)
		}
		role := Feature{Name: to.name, Supported: true, Reason: strings.TrimSpace(one.Backend + " " + one.Version)}
		if to == p.r.authoritative {
			role.Reason += ", authoritative"
		}
		all.Features = append(all.Features, role)
		for _, f := range one.Features {
			f.Name = to.name + ": " + f.Name
			all.Features = append(all.Features, f)
		}
		for _, w := range one.Warnings {
			all.Warnings = append(all.Warnings, to.name+": "+w)
		}
	}
	return all, nil
}

type routedCrasher struct{ all []ability[Crasher] }

func (c routedCrasher) Crash() {
	for _, s := range c.all {
		s.is.Crash()
	}
}
