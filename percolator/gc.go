package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Garbage collection, in the order of its steps: publish the safe point and wait for
// the lease of older views, resolve the locks below the safe point, remove versions
// (gc_remove.go). See "Garbage collection" in docs/architecture.md.

// GCReport says what a garbage collection did.
type GCReport struct {
	// SafePoint is that of the tables that have none of their own: history below it is gone.
	SafePoint     Timestamp
	LocksResolved int  // left by transactions older than the safe point
	LocksSearched bool // all rows were read for such locks, because a session may have left some
	Full          bool // all rows were read for garbage, and not only those that hints name
	Hints         int  // removed, since what they named was looked at
	Read          int  // rows that were looked at
	Rows          int  // that had something to remove
	Versions      int  // removed: committed versions, marks, long values
	Damaged       int  // rows, and records of hints, that could not be read: they keep their garbage until they can

	missed int // rows that had changed meanwhile, and those of requests whose replies were lost: they wait for another collection
}

// GCOptions changes one garbage collection. The zero value works.
type GCOptions struct {
	// Keep is how long before now the safe point lies. Default 0: the retention of the
	// settings, of each table its own. At least MaxTxnAge plus a catalog lease is always kept.
	Keep time.Duration
	// Within collects in some tables only: those whose Retention was set by ConfigureTable
	// and is at most this. It looks at no other table. So it may come as often as these tables need
	// it. Default 0: all tables.
	Within time.Duration
	// Full looks at every row. Otherwise a collection looks at those rows in which processes noted
	// that they left garbage, and at every row once in ten retentions, because such a note is lost if a
	// process is killed before it has stored it. Default false.
	Full bool
}

// CollectGarbage removes the history that nobody can read any more: versions that were
// superseded before the safe point, deleted cells, marks, and the remains of dead
// transactions. Between publishing the safe point and the first removal CollectGarbage
// waits one catalog lease, by the oracle's time; so it takes at least that long. From then on a read at a
// snapshot below the safe point is right, or it fails with ErrSnapshotTooOld. Rows and
// histories of any size are removed in pieces.
//
// It costs in proportion to the garbage: it reads the rows that were changed. It reads all rows for locks if a
// process was killed that may have left some, and all rows for garbage as GCOptions.Full says. What other processes
// changed a few seconds ago may wait for the next collection.
//
// It may be called at any time and by any number of processes at once; an interrupted
// collection leaves nothing wrong. If a table fails, because its store is away, the others are collected all the same, as far as no
// process may have left locks there. Errors: ErrInvalid for a negative Keep or Within, ErrClosed,
// those of the context and of the store. The report says what was done besides an error.
func (db *DB) CollectGarbage(ctx context.Context, opts GCOptions) (GCReport, error) {
	if opts.Keep < 0 || opts.Within < 0 {
		return GCReport{}, fmt.Errorf("percolator: CollectGarbage: %w: GCOptions.Keep is %v and Within is %v; they may not be negative", ErrInvalid, opts.Keep, opts.Within)
	}
	return db.collect(ctx, opts, false)
}

// collect is CollectGarbage. goesOn lets it go on with what an earlier collection has published, if that did not come to its end.
func (db *DB) collect(ctx context.Context, opts GCOptions, goesOn bool) (GCReport, error) {
	var report GCReport
	err := db.during(ctx, func(ctx context.Context) (err error) {
		report, err = db.collectGarbage(ctx, opts, goesOn)
		return err
	})
	db.count.gcVersions.Add(uint64(report.Versions)) //nolint:gosec // a count
	if err != nil {
		if opts.Within == 0 && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			db.count.gcFailures.Add(1)
		}
		return report, fmt.Errorf("percolator: collecting garbage: %w", err)
	}
	if opts.Within == 0 {
		db.count.gcRuns.Add(1)
	}
	return report, nil
}

// gcPass is one collection.
type gcPass struct {
	db     *DB
	within time.Duration // of GCOptions
	all    bool          // GCOptions.Full
	goesOn bool          // with what an earlier collection has published
	// resumed tells that it does, and tries how many have done so.
	resumed bool
	tries   int
	// view was read after the safe points were published. The settings that it shows decide:
	// whoever commits by an older view is bound by those, or began below the clean points.
	view   *catalogView
	own    map[string]Timestamp // below what is removed from tables whose retention is their own
	rest   Timestamp            // the same for all other tables, 0 to leave them alone
	cleans Timestamp            // all locks from before are resolved, in every table
	// Of DB.Erase: only these rows are collected, up to erased.
	erases []span
	erased Timestamp
	listed []string // all tables, once they were asked for
	report *GCReport
	unread *damage // see damage
}

// damage is what the collection could not read. An erasure must have read all.
func (p *gcPass) damage() *damage {
	if p.unread == nil {
		p.unread = &damage{db: p.db, report: p.report, all: p.erases != nil}
	}
	return p.unread
}

// safe is the timestamp below which a table is collected.
func (p *gcPass) safe(table string) Timestamp {
	if own, ok := p.own[table]; ok {
		return own
	}
	return p.rest
}

func (db *DB) collectGarbage(ctx context.Context, opts GCOptions, goesOn bool) (GCReport, error) {
	var report GCReport
	p := &gcPass{db: db, within: opts.Within, all: opts.Full, goesOn: goesOn, report: &report}
	if err := db.storeHints(ctx); err != nil {
		return report, err
	}
	if err := p.publish(ctx, opts.Keep); err != nil {
		return report, err
	}
	report.SafePoint = p.view.safePoint
	if p.within > 0 && len(p.own) == 0 {
		return report, nil
	}
	var dead []condemned
	var err error
	if p.within == 0 && !p.resumed { // else it may not wait for the lease that the condemned have
		if dead, err = db.condemnUses(ctx); err != nil {
			return report, err
		}
	}
	if err := p.outlast(ctx); err != nil {
		return report, err
	}
	if err := db.buryUses(ctx, dead); err != nil {
		return report, err
	}
	if err := db.raiseToHints(ctx, p.view); err != nil {
		return report, err
	}
	if err := p.resolve(ctx); err != nil {
		return report, err
	}
	if err := p.removeAll(ctx); err != nil {
		return report, err
	}
	return report, p.collected(ctx)
}

// removeAll removes what is garbage in all tables that the collection looks at. Once the locks are resolved the tables do not depend on each
// other: one whose store is away holds up no other. If the list of the tables cannot be had, or is not whole, those are collected that
// hints name, and what there is of it.
func (p *gcPass) removeAll(ctx context.Context) error {
	tables, err := p.tables(ctx)
	// What cannot be read in the store is no table, and hides none.
	p.report.Full = (err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormat)) && p.full()
	if err != nil && (ctx.Err() != nil || fatal(err)) {
		return err
	}
	if err != nil {
		known, kerr := p.db.hintedTables(ctx)
		tables, err = slices.Concat(tables, []string{format.TableSessions, format.TableSweeps}, known), errors.Join(err, kerr)
		slices.Sort(tables)
		tables = slices.Compact(tables)
	}
	errs := []error{err}
	var done []string
	for _, t := range tables {
		if err := p.remove(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("removing from table %q: %w", t, err))
			if ctx.Err() != nil || fatal(err) {
				return errors.Join(errs...)
			}
			continue
		}
		done = append(done, t)
	}
	err = errors.Join(errs...)
	switch {
	case !p.report.Full || p.within > 0:
		return err
	case err != nil:
		return errors.Join(err, p.sweptTables(ctx, done))
	}
	return p.swept(ctx)
}

// publish stores the safe points, and decides by what can be read then which tables are
// collected.
func (p *gcPass) publish(ctx context.Context, keep time.Duration) error {
	v, err := p.db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	if p.resumes(v) {
		p.resume(v)
		return nil
	}
	points := map[string]Timestamp{}
	for t, retention := range v.shortTables(p.within) {
		if p.mayCollect(v, t) {
			age, lease := v.widestIn(t)
			if keep != 0 {
				retention = keep
			}
			points[t] = v.asOf.Add(-max(retention, age+lease)) // 0 raises none
		}
	}
	if len(points) > 0 {
		if err := p.db.publishPoints(ctx, points); err != nil {
			return err
		}
	}
	safe := Timestamp(0)
	if p.within == 0 {
		age, lease := v.widest()
		if keep == 0 {
			keep = v.at(v.asOf).Retention
		}
		keep = max(keep, age+lease)
		safe = max(v.asOf.Add(-keep), 1) // 0 is no timestamp of a version
	}
	if p.view, err = p.db.publishSafePoint(ctx, v, safe); err != nil {
		return err
	}
	if p.within == 0 {
		p.rest = p.view.safePoint
	}
	if err := p.db.dropErased(ctx, p.view); err != nil {
		return err
	}
	p.own = map[string]Timestamp{}
	for t := range p.view.shortTables(p.within) {
		if p.mayCollect(p.view, t) {
			p.own[t] = p.view.safePointOf(t)
			if !p.view.clean(t) {
				p.cleans = max(p.cleans, p.view.sinceOf(t))
			}
		}
	}
	return nil
}

// mayCollect tells whether a table may be collected by its own retention: all locks from before that
// was shortened are resolved, or this collection resolves them.
func (p *gcPass) mayCollect(v *catalogView, table string) bool {
	return v.clean(table) || p.within == 0 && v.cleanIn(table) <= 0
}

// tables lists the tables that the collection looks at. With an error it returns those that were listed all the same. A lock whose primary lies in a table
// that is collected alone lies in one whose retention is no longer.
func (p *gcPass) tables(ctx context.Context) ([]string, error) {
	if p.within > 0 && p.erases == nil {
		return slices.Sorted(maps.Keys(p.view.shortTables(p.within))), nil
	}
	if p.listed != nil {
		return p.listed, nil
	}
	var tables []string
	for t, err := range p.db.store.Tables(ctx) {
		if err != nil {
			return tables, fmt.Errorf("listing the tables: %w", err)
		}
		tables = append(tables, t)
	}
	p.listed = tables
	return tables, nil
}

// resolve makes sure that no lock is left that the records depend on which are about to be removed. A Write
// must not go while a lock still depends on it: the lock would be rolled back, and its transaction
// torn. Where the sessions do not say so, all locks are looked for and resolved, which takes the stores of all tables.
func (p *gcPass) resolve(ctx context.Context) error {
	resolved, err := p.sessionsResolved(ctx)
	if err != nil {
		return err
	}
	if !resolved {
		if err := p.search(ctx); err != nil {
			return err
		}
	}
	if p.within == 0 {
		if err := p.db.raisePoint(ctx, format.ColumnResolved, max(p.rest, p.cleans)); err != nil {
			return err
		}
	}
	if p.cleans == 0 {
		return nil
	}
	return p.db.changePoints(ctx, func(_ *catalogView, points map[string]format.TableSafePoint) (changed bool) {
		for t := range p.own {
			if point := points[t]; point.Clean < p.cleans {
				point.Name, point.Clean = []byte(t), p.cleans
				points[t], changed = point, true
			}
		}
		return changed
	})
}

// search looks for the locks that must go, in the tables that the collection looks at, and resolves them. It needs the whole list: what was
// not listed, or cannot be read, may be a lock.
func (p *gcPass) search(ctx context.Context) error {
	tables, err := p.tables(ctx)
	if err != nil {
		return err
	}
	p.report.LocksSearched = true
	p.db.count.gcSearches.Add(1)
	for {
		before, err := p.db.incarnation(ctx)
		if err != nil {
			return err
		}
		for _, t := range tables {
			if t == format.TableMembers || t == format.TableHints {
				continue // what stands there as a Lock is no transaction's
			}
			n, err := p.resolveBelow(ctx, t)
			p.report.LocksResolved += n
			if err != nil {
				return fmt.Errorf("resolving old locks in table %q: %w", t, err)
			}
		}
		// Otherwise a crash could undo a roll forward after the record that it came from
		// is gone.
		if err := p.db.flush(ctx); err != nil {
			return fmt.Errorf("flushing: %w", err)
		}
		after, err := p.db.incarnation(ctx)
		if err != nil || after == before {
			return err
		}
		// The store has crashed, and locks may be back where none was met.
	}
}

// below is the timestamp below which all locks must be resolved in the tables that are collected.
func (p *gcPass) below() Timestamp {
	return max(p.rest, p.cleans, p.erased, slices.Max(append(slices.Collect(maps.Values(p.own)), 0)))
}

// sessionsResolved tells whether every session says that it has left no lock that must be resolved
// (unresolved.go). It must be called when the catalog lease is over that the collection waits for.
func (p *gcPass) sessionsResolved(ctx context.Context) (bool, error) {
	// Programs that said nothing have left no session, if they ended well.
	if v := p.view; v.HintsFrom == 0 || v.resolved < v.HintsFrom {
		return false, nil
	}
	below := p.below()
	if err := p.db.session.saysAtLeast(ctx, below); err != nil {
		return false, err
	}
	resolved := true
	picks := []rowstore.Selector{{Family: rowstore.Write, Column: format.ColumnLease, To: oracle.Max, Limit: 1}}
	for row, err := range p.db.store.Scan(ctx, rowstore.ScanRange{Table: format.TableSessions, Selectors: picks}) {
		if err != nil {
			return false, fmt.Errorf("reading the sessions: %w", err)
		}
		s, err := format.DecodeSession(row.Newest(rowstore.Write, format.ColumnLease).Value)
		if err != nil {
			return false, fmt.Errorf("the session %q: %w", row.Row, err)
		}
		if s.Resolved < below {
			resolved = false
		}
	}
	return resolved, nil
}

// remove removes what is garbage in a table.
func (p *gcPass) remove(ctx context.Context, table string) error {
	safe := p.safe(table)
	if of, timers := format.TimedTable(table); timers {
		if safe = min(safe, p.safe(of)); safe == 0 || p.view.observesTable(of) {
			return nil // a worker removes the rows when they are due
		}
		return p.db.dropDueTimers(ctx, of, safe, p.damage())
	}
	switch table {
	case format.TableCatalog, format.TableMembers, format.TableHints:
		return nil
	case format.TableSessions, format.TableSweeps:
		return p.db.removeLeases(ctx, table, safe, p.report)
	}
	// Where very many notified rows cannot be read, they must not keep the history of the others.
	unread := p.db.clearUnobserved(ctx, p.view, table, safe, p.damage())
	switch {
	case safe == 0 || unread != nil && !errors.Is(unread, ErrCorrupt) && !errors.Is(unread, ErrFormat):
		return unread
	case p.report.Full:
		return errors.Join(unread, p.removeVersions(ctx, table, safe))
	default:
		return errors.Join(unread, p.removeHinted(ctx, table, safe))
	}
}

// publishPoints raises the safe points of tables.
func (db *DB) publishPoints(ctx context.Context, raised map[string]Timestamp) error {
	return db.changePoints(ctx, func(v *catalogView, points map[string]format.TableSafePoint) (changed bool) {
		for t, safe := range raised {
			safe = v.held(safe)
			if point := points[t]; safe > v.safePointOf(t) {
				point.Name, point.SafePoint = []byte(t), safe
				points[t], changed = point, true
			}
		}
		return changed
	})
}

// publishSafePoint stores the safe point, or as much of it as the holds allow, unless a greater one
// is there. It returns a view that was read afterwards.
func (db *DB) publishSafePoint(ctx context.Context, v *catalogView, wanted Timestamp) (*catalogView, error) {
	for attempt := 0; ; attempt++ {
		safe := v.held(wanted)
		if safe <= v.safePoint {
			return db.loadCatalog(ctx)
		}
		out, err := db.applyOne(ctx, rowstore.Mutation{
			Table: format.TableCatalog, Row: format.RowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnSafePoint, safe), v.sameHolds()},
			Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, format.ColumnSafePoint, safe, format.TimestampOnly),
				rowstore.DeleteRange(rowstore.Write, format.ColumnSafePoint, 0, safe-1),
			},
		})
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return nil, fmt.Errorf("publishing the safe point: %w", err)
		}
		next, lerr := db.loadCatalog(ctx)
		if lerr != nil || err != nil || out.Applied || next.holdsAt == v.holdsAt {
			return next, lerr
		}
		v = next // the holds were changed meanwhile
		if err := db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand)); err != nil {
			return nil, fmt.Errorf("publishing the safe point: %w", err)
		}
	}
}

// outlast waits, by the oracle's time, until no process uses a view of the catalog that
// was begun before the call.
func (db *DB) outlast(ctx context.Context) error {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	_, lease := v.widest()
	_, err = db.waitUntil(ctx, v.asOf, v.asOf.Add(lease))
	return err
}

// waitUntil waits until a time by the oracle, and returns what the time is then. Now is a time that was drawn.
func (db *DB) waitUntil(ctx context.Context, now, until Timestamp) (_ Timestamp, err error) {
	for now < until {
		if err := db.clock.Sleep(ctx, until.Sub(now)); err != nil {
			return 0, err
		}
		if now, err = db.draw(ctx); err != nil {
			return 0, err
		}
	}
	return now, nil
}

// resolveBelow resolves every lock of a table that may depend on a record which is about to be
// removed, or that began below the safe point of its own table, whether its owner lives or not: it is
// older than MaxTxnAge and cannot commit.
func (p *gcPass) resolveBelow(ctx context.Context, table string) (resolved int, err error) {
	db := p.db
	below := p.below()
	if below == 0 {
		return 0, nil
	}
	picks := []rowstore.Selector{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: below - 1, Limit: 1}}
	var rows []rowstore.Row
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Selectors: picks}) {
		if err != nil {
			return resolved, err
		}
		if rows = append(rows, row); len(rows) < settleMost {
			continue
		}
		n, err := p.resolveRows(ctx, rows, picks)
		if resolved += n; err != nil {
			return resolved, err
		}
		rows = rows[:0]
	}
	n, err := p.resolveRows(ctx, rows, picks)
	return resolved + n, err
}

// resolveRows resolves those locks of some rows that must go. After a lost reply a lock may still be there,
// so the rows are read again until none is left.
func (p *gcPass) resolveRows(ctx context.Context, rows []rowstore.Row, picks []rowstore.Selector) (resolved int, err error) {
	met, err := p.locksToResolve(rows)
	if err != nil {
		return 0, err
	}
	for attempt := 0; len(met) > 0; attempt++ {
		if attempt > 0 {
			if err := p.db.clock.Sleep(ctx, p.db.opt.lockWait.wait(attempt-1, p.db.rand)); err != nil {
				return resolved, err
			}
		}
		if _, err := p.db.resolveLocks(ctx, rows, met, overrideLiveOwner, oracle.Max); err != nil {
			return resolved, err
		}
		before := len(met)
		reads := make([]rowstore.RowRead, len(rows))
		for i := range rows {
			reads[i] = rowstore.RowRead{Table: rows[i].Table, Row: rows[i].Row, Selectors: picks}
		}
		if rows, err = p.db.readRows(ctx, reads); err != nil {
			return resolved, err
		}
		if met, err = p.locksToResolve(rows); err != nil {
			return resolved, err
		}
		resolved += max(0, before-len(met))
	}
	return resolved, nil
}

// locksToResolve lists those locks of some rows that must go.
func (p *gcPass) locksToResolve(rows []rowstore.Row) ([]metLock, error) {
	var met []metLock
	for i := range rows {
		row := &rows[i]
		for j := range row.Versions {
			v := &row.Versions[j]
			l, err := format.DecodeLock(v.Value)
			if err != nil {
				return nil, fmt.Errorf("row %q, column %q: %w", row.Row, v.Column, err)
			}
			if p.erases != nil && !p.dependsOn(row, l.Primary, v.TS) {
				continue
			}
			if v.TS < max(p.safe(row.Table), p.safe(l.Primary.Table), p.cleans, p.erased) {
				met = append(met, metLock{row: i, column: v.Column, start: v.TS, lock: l})
			}
		}
	}
	return met, nil
}
