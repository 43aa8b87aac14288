package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Abilities implements Decorator.
func (r *Store) Abilities() rowstore.Abilities { return r.abilities }

// compose makes the abilities of r from those of its stores.
func (r *Store) compose() rowstore.Abilities {
	main := r.authoritative.abilities
	a := rowstore.Abilities{Placer: r, Sharder: r, OracleProvider: main.OracleProvider, SnapshotScanner: main.SnapshotScanner}
	if main.SnapshotReader != nil {
		a.SnapshotReader = routedSnapshotReader{r, main.SnapshotReader}
	}
	if slices.ContainsFunc(r.routes, func(to *route) bool { return to.abilities.Grouper != nil }) {
		a.Grouper = routedGrouper{r}
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Deferrer { return a.Deferrer }); len(all) > 0 {
		a.Deferrer = routedDeferrer{all}
	}
	// If only some stores had these, their caller would never look at the other tables.
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Waker { return a.Waker }); len(all) == len(r.routes) {
		a.Waker = newRoutedWaker(all)
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Splitter { return a.Splitter }); len(all) == len(r.routes) {
		a.Splitter = routedSplitter{r}
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.SlotScanner { return a.SlotScanner }); len(all) == len(r.routes) {
		a.SlotScanner = all[0].ability
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Limiter { return a.Limiter }); len(all) > 0 {
		a.Limiter = routedLimiter{all}
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Reporter { return a.Reporter }); len(all) > 0 {
		a.Reporter = routedReporter{r, all}
	}
	if all := storesWith(r, func(a *rowstore.Abilities) rowstore.Crasher { return a.Crasher }); len(all) > 0 {
		a.Crasher = routedCrasher{all}
	}
	return a
}

// storeAbility is what one of the stores can do.
type storeAbility[T any] struct {
	to      *route
	ability T
}

// storesWith lists the stores that have an ability.
func storesWith[T any](r *Store, of func(*rowstore.Abilities) T) []storeAbility[T] {
	var found []storeAbility[T]
	for _, to := range r.routes {
		if t := of(&to.abilities); any(t) != nil {
			found = append(found, storeAbility[T]{to, t})
		}
	}
	return found
}

// Strays implements rowstore.StrayFinder. The name of a store of a store has both names, with a slash between.
func (r *Store) Strays(ctx context.Context, read rowstore.RowRead) ([]string, error) {
	if r.closed.Load() {
		return nil, errClosed(ctx)
	}
	found := make([][]string, len(r.routes))
	if err := onEach(len(r.routes), func(i int) (err error) {
		found[i], err = r.routes[i].strays(ctx, read, r.routes[i] == r.route(read.Table))
		return r.routes[i].wrap(err)
	}); err != nil {
		return nil, err
	}
	names := slices.Concat(found...)
	slices.Sort(names)
	return names, nil
}

// strays looks for a row in one store, which may be its own, and in those of which that one is made.
func (to *route) strays(ctx context.Context, read rowstore.RowRead, own bool) ([]string, error) {
	names, err := rowstore.Strays(ctx, to.store, read)
	if err != nil {
		return nil, err
	}
	for i := range names {
		names[i] = to.name + "/" + names[i]
	}
	if own {
		return names, nil
	}
	rows, err := to.store.Read(ctx, []rowstore.RowRead{read})
	if err == nil {
		err = rows[0].Err
	}
	if err == nil && len(rows[0].Versions) > 0 {
		names = append(names, to.name)
	}
	return names, err
}

type routedSnapshotReader struct {
	r     *Store
	inner rowstore.SnapshotReader
}

// ReadSnapshot passes a call for the authoritative store alone to that store. If other
// stores are concerned, it draws first and then reads.
func (d routedSnapshotReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	r := d.r
	elsewhere := func(q rowstore.RowRead) bool { return r.route(q.Table) != r.authoritative }
	if !slices.ContainsFunc(asks, func(d rowstore.SnapshotRead) bool { return slices.ContainsFunc(d.Reads, elsewhere) }) {
		if r.closed.Load() {
			return nil, errClosed(ctx)
		}
		answers, err := d.inner.ReadSnapshot(ctx, asks)
		return answers, r.authoritative.wrap(err)
	}
	o := r.abilities.OracleProvider
	if o == nil {
		return nil, fmt.Errorf("router: read snapshot: %w: the authoritative store has no oracle", rowstore.ErrInvalid)
	}
	return kit.TimestampThenRead(ctx, o.Oracle(), r, asks)
}

type routedGrouper struct{ r *Store }

// GroupKey puts the store's name before the store's own key. Names hold no zero byte, so
// keys of different stores are never equal.
func (g routedGrouper) GroupKey(table, row string) string {
	to := g.r.route(table)
	if to.abilities.Grouper == nil {
		return ""
	}
	key := to.abilities.Grouper.GroupKey(table, row)
	if key == "" {
		return ""
	}
	return to.name + "\x00" + key
}

func (g routedGrouper) AssignsTimestamps(key string) bool {
	name, key, ok := strings.Cut(key, "\x00")
	to := g.r.authoritative
	return ok && name == to.name && to.abilities.Grouper != nil && to.abilities.Grouper.AssignsTimestamps(key) && g.sameOracle()
}

// sameOracle tells whether the authoritative store hands out timestamps. If it does not, the
// database uses another oracle, so the store's groups must not assign timestamps.
func (g routedGrouper) sameOracle() bool { return g.r.abilities.OracleProvider != nil }

func (g routedGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if err := rowstore.CheckGroups(g, groups); err != nil {
		return nil, fmt.Errorf("router: group: %w", err)
	}
	return send(ctx, g.r, groups, callShape[rowstore.Group, rowstore.GroupOutcome]{
		table: func(q *rowstore.Group) string { return q.Mutations[0].Table },
		check: func(groups []rowstore.Group) error {
			for i := range groups {
				to := g.r.route(groups[i].Mutations[0].Table)
				if err := rowstore.CheckGroupLimits(to.limits, groups[i:i+1]); err != nil {
					return to.wrap(err)
				}
			}
			return nil
		},
		send: func(ctx context.Context, to *route, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			if to.abilities.Grouper == nil { // only an empty call gets here
				return nil, ctx.Err()
			}
			return to.abilities.Grouper.Group(ctx, groups)
		},
		failed: func(_ *rowstore.Group, err error) rowstore.GroupOutcome { return rowstore.GroupOutcome{Err: err} },
	})
}

type routedDeferrer struct {
	all []storeAbility[rowstore.Deferrer]
}

// Flush flushes every store, so that batches that other clients deferred there are durable
// too.
func (d routedDeferrer) Flush(ctx context.Context) error {
	return onEach(len(d.all), func(i int) error { return d.all[i].to.wrap(d.all[i].ability.Flush(ctx)) })
}

// onEach calls do for each of n stores, all at once, and joins the errors.
func onEach(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return join(errs)
}

// join joins the errors of several stores. If one does not pass by itself, the result does not match
// rowstore.ErrUnavailable: whoever repeats the call until no store is away would wait in vain.
func join(errs []error) error {
	away := errors.Join(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return !errors.Is(err, rowstore.ErrUnavailable) })...)
	lasting := errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, rowstore.ErrUnavailable) })...)
	if lasting == nil || away == nil {
		return cmp.Or(lasting, away)
	}
	return fmt.Errorf("%w\n%v", lasting, away) //nolint:errorlint // what is away is only told of
}

// routedWaker listens to the stores, of which one that is itself made of several counts as
// several.
type routedWaker struct {
	all []rowstore.Waker // of one store each
}

func newRoutedWaker(stores []storeAbility[rowstore.Waker]) routedWaker {
	var w routedWaker
	for _, s := range stores {
		for _, one := range rowstore.WakersOf(s.ability) {
			w.all = append(w.all, storeWaker{s.to, one})
		}
	}
	return w
}

// Wakers implements rowstore.Wakers.
func (w routedWaker) Wakers() []rowstore.Waker { return slices.Clone(w.all) }

// Listen listens to every store, until one of them fails.
func (w routedWaker) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	var mu sync.Mutex // wake is called from one goroutine at a time
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, one := range w.all {
		wg.Go(func() {
			// The first that ends makes the others end. Listen returns its error.
			cancel(one.Listen(inner, func(at rowstore.Wake) {
				mu.Lock()
				defer mu.Unlock()
				wake(at)
			}))
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(inner)
}

// storeWaker is the Waker of one of the stores.
type storeWaker struct {
	to    *route
	inner rowstore.Waker
}

func (w storeWaker) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	err := w.inner.Listen(ctx, wake)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.to.wrap(err)
}

type routedSplitter struct{ r *Store }

func (s routedSplitter) Split(ctx context.Context, table string, n int) ([]string, error) {
	to := s.r.route(table)
	keys, err := to.abilities.Splitter.Split(ctx, table, n)
	return keys, to.wrap(err)
}

type routedLimiter struct {
	all []storeAbility[rowstore.Limiter]
}

func (l routedLimiter) Limits() rowstore.Limits {
	var all rowstore.Limits
	tighten := func(have *int, limit int) {
		if limit > 0 && (*have == 0 || limit < *have) {
			*have = limit
		}
	}
	for _, s := range l.all {
		one := s.ability.Limits()
		tighten(&all.Table, one.Table)
		tighten(&all.Row, one.Row)
		tighten(&all.Column, one.Column)
		tighten(&all.Value, one.Value)
		tighten(&all.Operations, one.Operations)
		tighten(&all.Bytes, one.Bytes)
	}
	return all
}

type routedReporter struct {
	r   *Store
	all []storeAbility[rowstore.Reporter]
}

// Report puts the stores' reports together; each line says whose it is.
func (p routedReporter) Report(ctx context.Context) (rowstore.Report, error) {
	all := rowstore.Report{Backend: "router"}
	reports := make([]rowstore.Report, len(p.all))
	if err := onEach(len(p.all), func(i int) (err error) {
		reports[i], err = p.all[i].ability.Report(ctx)
		return p.all[i].to.wrap(err)
	}); err != nil {
		return rowstore.Report{}, err
	}
	for i, one := range reports {
		to := p.all[i].to
		role := rowstore.Feature{Name: to.name, Supported: true, Reason: strings.TrimSpace(one.Backend + " " + one.Version)}
		if one.Layout > 0 {
			role.Reason += fmt.Sprintf(", layout %d", one.Layout)
		}
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

type routedCrasher struct {
	all []storeAbility[rowstore.Crasher]
}

func (c routedCrasher) Crash() {
	for _, s := range c.all {
		s.ability.Crash()
	}
}
