// Package router makes one store of several, by table.
package router

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

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/parts"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Config says which table lives where.
type Config struct {
	// Stores are the stores by names that you choose. There is at least one. A name is not
	// empty and holds no zero byte. The names appear in messages and in group keys;
	// nothing stores them.
	Stores map[string]rowstore.Store
	// Tables says in which store a table is. A key is the name of a table as users write
	// it, or the beginning of names with a "*" at the end. A whole name wins over a
	// beginning, and a longer beginning over a shorter one. A table must stay in its store
	// as long as it holds data.
	Tables map[string]string
	// Default is the store of every other table. Default: the authoritative one.
	Default string
	// Authoritative is the store of the oracle and of what the library keeps for
	// itself: sessions, catalog, safe point. Choose the one that loses nothing in a
	// crash. It may be left empty when there is one store. It must stay the same one as long as
	// there is data: timestamps of two stores are in no order.
	Authoritative string
}

// Store is a [rowstore.Store] that sends each table to one of several stores, so that one
// transaction may span them. Tables whose stored names begin with one zero byte,
// which package percolator reserves, are in the authoritative store.
//
// A batch is cut into one call for each store, and these run at once. If a store fails, its
// rows get the error, and the rows of other stores do not. A call for one store only goes
// there as it is, and so does its error. The whole batch is checked before any of it is
// sent.
//
// A batch takes as long as the slowest of its stores. So put package coalesce under this
// one, around each store. Then the callers of a slow store wait only for each other.
//
// Its abilities, see [rowstore.Decorator]:
//   - [rowstore.Sharder], always: each store is a shard, or as many as it has itself.
//   - [rowstore.Placer], always. The layer above puts a transaction's primary into the
//     authoritative store when the transaction writes there. It is a
//     [rowstore.StrayFinder] too: where the database is in another of the stores, because
//     that one was authoritative before, nobody makes a second one.
//   - [rowstore.OracleProvider], when the authoritative store has one.
//   - [rowstore.SnapshotReader], when the authoritative store has one: for asks whose rows are all
//     there; for others a timestamp is drawn first.
//   - [rowstore.Grouper], when any store has one. Rows of two stores never share a group.
//     Only groups in the authoritative store, whose oracle is everybody's, have AssignTimestamp.
//   - [rowstore.Deferrer], when any store has one. Deferred holds for rows in the
//     authoritative store; everywhere else an Apply stays durable when it returns.
//     The caller must defer only if every row of a transaction is authoritative. An
//     incarnation, in an outcome or a condition, is that of the row's own store, so
//     those of two stores differ.
//   - [rowstore.Waker] and [rowstore.Splitter], when every store has them: otherwise
//     the tables of the other stores would never be looked at. The Waker is a
//     [rowstore.Wakers] with one for each store, so that a store whose push fails takes
//     away no other's.
//   - [rowstore.SlotScanner], when every store has it. If one lacks it, workers read the
//     notifications of every table in the order of rows, also in stores that have no such
//     order, where that costs more: see there.
//   - [rowstore.SnapshotScanner], when the authoritative store has it. Scans of other stores
//     draw a timestamp first.
//   - [rowstore.Limiter], when any store has one: the tightest of each limit. A mutation
//     over the limits of its own store is refused here, before anything is sent.
//   - [rowstore.Reporter], when any store has one. The report has a line for each store, with its
//     version and its layout, and no Layout of its own. It fails if one of the stores fails.
//   - [rowstore.Crasher], when any store has one: all of those crash.
type Store struct {
	routes        []*route // by name
	exact         map[string]*route
	prefixes      []prefixRoute // longest first
	fallback      *route
	authoritative *route
	abilities     rowstore.Abilities
	closed        atomic.Bool
	over          chan struct{} // closed when the first Close has ended
}

type route struct {
	name      string
	store     rowstore.Store
	abilities rowstore.Abilities
	limits    rowstore.Limits
	shards    sync.Map // from a shard of the store to its name among all
}

type prefixRoute struct {
	prefix string
	to     *route
}

// New returns a Store that owns the stores of config: its Close closes them. It returns an
// error that matches rowstore.ErrInvalid if the configuration names a store that is not
// there, or does not say which one is authoritative. Then you still own the stores.
func New(config Config) (*Store, error) {
	invalid := func(format string, args ...any) (*Store, error) {
		return nil, fmt.Errorf("router: %w: "+format, append([]any{rowstore.ErrInvalid}, args...)...)
	}
	r := &Store{exact: map[string]*route{}, over: make(chan struct{})}
	byName := map[string]*route{}
	for _, name := range slices.Sorted(maps.Keys(config.Stores)) {
		s := config.Stores[name]
		if name == "" || strings.Contains(name, "\x00") {
			return invalid("store name %q", name)
		}
		if s == nil {
			return invalid("store %q is nil", name)
		}
		to := &route{name: name, store: s, abilities: rowstore.AbilitiesOf(s)}
		if l := to.abilities.Limiter; l != nil {
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
			r.prefixes = append(r.prefixes, prefixRoute{prefix, to})
		} else {
			r.exact[pattern] = to
		}
	}
	slices.SortStableFunc(r.prefixes, func(a, b prefixRoute) int { return len(b.prefix) - len(a.prefix) })
	r.abilities = r.compose()
	return r, nil
}

var (
	_ rowstore.Decorator   = (*Store)(nil)
	_ rowstore.StrayFinder = (*Store)(nil)
	_ rowstore.Sharder     = (*Store)(nil)
)

// route finds the store of a table by its stored name. What the library keeps for one table, an index of
// its timers, is in the store of that table.
func (r *Store) route(table string) *route {
	if timed, ok := format.TimedTable(table); ok {
		table = timed
	}
	if table != "" && table[0] == 0 {
		if len(table) == 1 || table[1] != 0 {
			return r.authoritative
		}
		table = table[1:] // a user's name that begins with a zero byte is stored with one more
	}
	if to, ok := r.exact[table]; ok {
		return to
	}
	for i := range r.prefixes {
		if strings.HasPrefix(table, r.prefixes[i].prefix) {
			return r.prefixes[i].to
		}
	}
	return r.fallback
}

// Authoritative implements Placer.
func (r *Store) Authoritative(table string) bool { return r.route(table) == r.authoritative }

// Shard implements Sharder: the store's name, and its own shard where it has several.
func (r *Store) Shard(table, row string) string {
	to := r.route(table)
	if to.abilities.Sharder == nil {
		return to.name
	}
	shard := to.abilities.Sharder.Shard(table, row)
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
func (r *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return send(ctx, r, reads, callShape[rowstore.RowRead, rowstore.Row]{
		table: func(q *rowstore.RowRead) string { return q.Table },
		check: rowstore.CheckReads,
		send: func(ctx context.Context, to *route, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			return to.store.Read(ctx, reads)
		},
		failed: func(q *rowstore.RowRead, err error) rowstore.Row {
			return rowstore.Row{Table: q.Table, Row: q.Row, Err: err}
		},
	})
}

// Apply implements Store.
func (r *Store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	whole := len(muts)
	return send(ctx, r, muts, callShape[rowstore.Mutation, rowstore.Outcome]{
		table: func(q *rowstore.Mutation) string { return q.Table },
		check: func(muts []rowstore.Mutation) error {
			if err := rowstore.CheckBatch(muts); err != nil {
				return err
			}
			return r.checkLimits(muts)
		},
		send: func(ctx context.Context, to *route, muts []rowstore.Mutation) ([]rowstore.Outcome, error) {
			// A timestamp must be drawn after every store has applied its part, and from the
			// oracle of the authoritative store.
			return to.store.Apply(ctx, muts, rowstore.ApplyOptions{
				Deferred:        opts.Deferred && to == r.authoritative,
				AssignTimestamp: opts.AssignTimestamp && to == r.authoritative && len(muts) == whole,
				Urgent:          opts.Urgent,
				Bulk:            opts.Bulk,
			})
		},
		failed: func(_ *rowstore.Mutation, err error) rowstore.Outcome { return rowstore.Outcome{Err: err} },
	})
}

func (r *Store) checkLimits(muts []rowstore.Mutation) error {
	for i := range muts {
		to := r.route(muts[i].Table)
		if err := rowstore.CheckLimits(to.limits, muts[i:i+1]); err != nil {
			return to.wrap(err)
		}
	}
	return nil
}

// callShape is what differs between reads, applies and groups.
type callShape[Q, A any] struct {
	table  func(*Q) string
	check  func([]Q) error
	send   func(context.Context, *route, []Q) ([]A, error)
	failed func(*Q, error) A
}

// errClosed is the error of a call after Close; a context that ended wins.
func errClosed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	return fmt.Errorf("router: %w", rowstore.ErrClosed)
}

func send[Q, A any](ctx context.Context, r *Store, asks []Q, kind callShape[Q, A]) ([]A, error) {
	if r.closed.Load() {
		return nil, errClosed(ctx)
	}
	one := r.authoritative
	for i := range asks {
		to := r.route(kind.table(&asks[i]))
		if i > 0 && to != one {
			return sendParts(ctx, r, asks, kind)
		}
		one = to
	}
	answers, err := kind.send(ctx, one, asks)
	return answers, one.wrap(err)
}

func sendParts[Q, A any](ctx context.Context, r *Store, asks []Q, kind callShape[Q, A]) ([]A, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	if err := kind.check(asks); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	pieces := parts.Cut(asks, func(q *Q) *route { return r.route(kind.table(q)) })
	return parts.SendParts(len(asks), pieces, func(p *parts.Part[*route, Q]) ([]A, error) {
		got, err := kind.send(ctx, p.To, p.Asks)
		return got, p.To.wrap(err)
	}, kind.failed), nil
}

// Scan implements Store.
func (r *Store) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	to := r.route(s.Table)
	return func(yield func(rowstore.Row, error) bool) {
		at := s
		if s.Snapshot != nil && to != r.authoritative {
			var err error
			if at, err = r.snapshotElsewhere(ctx, s); err != nil {
				yield(rowstore.Row{}, err)
				return
			}
		}
		for row, err := range to.store.Scan(ctx, at) {
			if !yield(row, to.wrap(err)) {
				return
			}
		}
	}
}

// snapshotElsewhere returns what a scan at a snapshot asks a store for that is not the authoritative one, and so knows nothing of
// its timestamps.
func (r *Store) snapshotElsewhere(ctx context.Context, s rowstore.ScanRange) (rowstore.ScanRange, error) {
	if err := rowstore.CheckScan(s); err != nil {
		return s, fmt.Errorf("router: scan: %w", err)
	}
	o := r.abilities.OracleProvider
	if o == nil {
		return s, fmt.Errorf("router: scan: %w: the authoritative store has no oracle", rowstore.ErrInvalid)
	}
	s, err := kit.TimestampThenScan(ctx, o.Oracle(), s)
	return s, r.authoritative.wrap(err)
}

// Tables implements Store. A table that a store holds, but that is routed to
// another one, is not listed. A store that fails hides no table of another one: the errors come last, joined.
func (r *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var names []string
		var errs []error
		for _, to := range r.routes {
			for name, err := range to.store.Tables(ctx) {
				if err != nil {
					errs = append(errs, to.wrap(err))
					break
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
		if len(errs) > 0 {
			yield("", errors.Join(errs...))
		}
	}
}

// Close implements Store. It closes all stores at once, even if some fail or hang, and joins their errors. A
// second Close waits until the first one is over.
func (r *Store) Close() error {
	if r.closed.Swap(true) {
		<-r.over
		return nil
	}
	defer close(r.over)
	return onEach(len(r.routes), func(i int) error { return r.routes[i].wrap(r.routes[i].store.Close()) })
}
