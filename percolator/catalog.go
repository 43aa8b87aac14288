package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The catalog is one row. It holds what every process must agree on, and the safe
// point. A new version of the column config is written at a freshly drawn timestamp,
// under the condition that no version is newer than the one that was read
// (compare-and-set). The version of the column safepoint has the safe point as its
// timestamp.
// catalog is the stored content, with the rules for its settings (settings.go).
type catalog format.Catalog

func (c *catalog) encode() ([]byte, error) { return (*format.Catalog)(c).Encode() }

func decodeCatalog(b []byte) (catalog, error) {
	c, err := format.DecodeCatalog(b)
	return catalog(c), err
}

type columnName struct{ table, column string }

// catalogView is what this process knows of the catalog, and since when.
//
// A view may be used for one lease from asOf on, measured by the oracle's time alone. A
// process that publishes something which others must know (a new observer, the safe
// point) draws a timestamp once the publication can be read, and acts on it no sooner
// than the longest lease above that timestamp. So anything missing from this view was
// published above asOf, and no process acts on it before this view expires. A new
// observer is acted on sooner if it is known that nobody goes by an older view (use.go).
type catalogView struct {
	catalog
	// asOf was drawn before the catalog was read.
	asOf Timestamp
	// revision is the timestamp of the config version that was read.
	revision  Timestamp
	safePoint Timestamp // of tables that have none of their own, and the least of any
	// resolved and swept are ColumnResolved and ColumnSwept; see there.
	resolved, swept Timestamp
	progress
	// points are those of tables that have one of their own, by stored names; pointsAt is their
	// version.
	points   map[string]format.TableSafePoint
	pointsAt Timestamp
	allHolds []format.Hold // also those that have ended; holdsAt is their version
	holdsAt  Timestamp
	// erased are the ranges with a safe point of their own; erasedAt is their version.
	erased   []format.ErasedRange
	erasedAt Timestamp
	sentAt   time.Time     // local, of asOf
	lease    time.Duration // leaseAt(asOf)
	awaited  bool          // a new observer, or an index, may be waiting until everybody knows it
	observed map[columnName]registrations
}

// registrations are those of the observers of a column, one at each index.
type registrations struct {
	names []string
	// since are the times of the registrations. What an observer acknowledged before does not
	// count: RemoveObserver ends acknowledgments.
	since []Timestamp
	old   []bool // the observer wants old values
	// timers tells that cells may have timers.
	timers bool
}

func (r *registrations) same(o *registrations) bool {
	return slices.Equal(r.names, o.names) && slices.Equal(r.since, o.since) && r.timers == o.timers
}

// observers lists the observers of a stored column.
func (v *catalogView) observers(table, column string) []string {
	return v.registrations(table, column).names
}

// observesTable tells whether any column of a stored table is observed.
func (v *catalogView) observesTable(table string) bool {
	for c := range v.observed {
		if c.table == table {
			return true
		}
	}
	return false
}

// registrations lists the registrations of the observers of a stored column.
func (v *catalogView) registrations(table, column string) registrations {
	if len(v.observed) == 0 {
		return registrations{}
	}
	return v.observed[columnName{table, column}]
}

// sinceOf is since when an observer is registered, 0 if it is not.
func (r *registrations) sinceOf(observer string) Timestamp {
	if i := slices.Index(r.names, observer); i >= 0 {
		return r.since[i]
	}
	return 0
}

// holds reports whether the view could still be used when ts was drawn: no process had
// then acted on anything that the view does not know.
func (v *catalogView) holds(ts Timestamp) bool { return ts.Sub(v.asOf) < v.lease }

// until is the last timestamp at which the view holds.
func (v *catalogView) until() Timestamp {
	return (v.asOf.Add(v.lease)>>oracle.LogicalBits)<<oracle.LogicalBits - 1
}

// widest is outlasting at v.asOf, for a caller that has read this view after publishing
// something: every view without that publication was begun before v.asOf.
func (v *catalogView) widest() (maxTxnAge, lease time.Duration) { return v.outlasting(v.asOf) }

// known returns the last view of the catalog, however old.
func (db *DB) known() *catalogView { return db.view.Load() }

// catalogReads lets callers that ask for the catalog at about the same time share one
// read. At most one read is under way. A caller that asks during a read shares the next
// one, because only that one begins after it asked.
type catalogReads struct {
	mu    sync.Mutex
	begun uint64       // how many
	last  *catalogRead // the newest, nil before the first
}

type catalogRead struct {
	number uint64
	done   chan struct{} // closed at its end
	view   *catalogView
	err    error
	gaveUp bool // the reader's context ended; that does not concern the others
}

// loadCatalog reads the catalog anew, or shares in a read that begins after the call.
func (db *DB) loadCatalog(ctx context.Context) (*catalogView, error) {
	r := &db.catalogReads
	r.mu.Lock()
	asked := r.begun
	r.mu.Unlock()
	for {
		read, mine := r.join()
		if mine {
			read.view, read.err = db.readCatalog(ctx)
			// The driver may notice the context's deadline before the context does.
			read.gaveUp = ctx.Err() != nil || errors.Is(read.err, context.DeadlineExceeded) || errors.Is(read.err, context.Canceled)
			close(read.done)
			return read.view, read.err
		}
		select {
		case <-read.done:
			if read.number > asked && !read.gaveUp {
				return read.view, read.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("reading the catalog: %w", ctx.Err())
		}
	}
}

// join returns the read that is under way, or a new one that the caller must make
// (mine).
func (r *catalogReads) join() (read *catalogRead, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil {
		select {
		case <-r.last.done:
		default:
			return r.last, false
		}
	}
	r.begun++
	r.last = &catalogRead{number: r.begun, done: make(chan struct{})}
	return r.last, true
}

// readCatalog makes the read of loadCatalog; at most one runs at a time. Before the view
// is used, this process's record must stand (use.go).
func (db *DB) readCatalog(ctx context.Context) (*catalogView, error) {
	sentAt := db.clock.Now()
	asOf, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	if before := db.known(); before != nil && asOf <= before.asOf {
		return nil, fmt.Errorf("%w: it answered %v after %v", ErrOracleWentBack, asOf, before.asOf)
	}
	for attempt := 0; ; attempt++ {
		v := &catalogView{sentAt: sentAt, asOf: asOf}
		stands, err := db.readRevision(ctx, v)
		if err != nil || v.revision == 0 && db.known() == nil {
			return v, err
		}
		if v.revision == 0 {
			// Nothing may go by a catalog without settings: one that is changed could not be read
			// any more, and a collection would keep nothing.
			return nil, fmt.Errorf("reading the catalog: %w: it is gone, the store has lost what it held", ErrCorrupt)
		}
		if stands {
			if db.install(v) {
				db.moveUse(ctx)
			}
			db.hintSoon()
			return v, nil
		}
		if err := db.storeUse(ctx, v); mayAskAgain(err) {
			err = db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand))
			if err != nil {
				return nil, fmt.Errorf("reading the catalog: %w", err)
			}
		} else if err != nil {
			return nil, fmt.Errorf("reading the catalog: %w", err)
		}
	}
}

// readRevision reads the catalog's row. A revision of 0 means that there is no catalog
// yet. stands tells whether v may be used.
func (db *DB) readRevision(ctx context.Context, v *catalogView) (stands bool, err error) {
	rows, err := db.store.Read(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnSafePoint, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnOfTables, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnHolds, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnResolved, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnSwept, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnErased, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: format.ColumnCollected, To: oracle.Max, Limit: 1},
		{Family: rowstore.Mark, Column: db.uses.id, To: oracle.Max, Limit: 1},
	}}})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	config := rows[0].Newest(rowstore.Write, format.ColumnConfig)
	if config == nil {
		return false, nil
	}
	v.revision = config.TS
	value, older := format.RaiseCatalog(config.Value)
	if v.catalog, err = decodeCatalog(value); err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	for column, point := range map[string]*Timestamp{format.ColumnSafePoint: &v.safePoint, format.ColumnResolved: &v.resolved, format.ColumnSwept: &v.swept} {
		if stored := rows[0].Newest(rowstore.Write, column); stored != nil {
			*point = stored.TS
		}
	}
	if err := v.readPoints(rows[0].Newest(rowstore.Write, format.ColumnOfTables)); err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	if err := v.readHolds(rows[0].Newest(rowstore.Write, format.ColumnHolds)); err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	if err := v.readErased(rows[0].Newest(rowstore.Write, format.ColumnErased)); err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	if err := v.readCollected(rows[0].Newest(rowstore.Write, format.ColumnCollected)); err != nil {
		return false, fmt.Errorf("reading the catalog: %w", err)
	}
	if err := db.checkOracle(ctx, v); err != nil {
		return false, err
	}
	if older && db.opt.existing && db.known() == nil {
		return false, fmt.Errorf("reading the catalog: %w: it is of version 1, which is raised only if the database is opened without WithExisting", ErrFormat)
	}
	if older {
		return false, db.raiseCatalog(ctx, v.revision, value)
	}
	v.lease = v.leaseAt(v.asOf)
	v.awaited = v.awaitsIndexes()
	if len(v.Observers) > 0 {
		v.observed = make(map[columnName]registrations, len(v.Observers))
		for _, o := range v.Observers {
			k := columnName{string(o.Table), string(o.Column)}
			r := v.observed[k]
			r.names, r.since, r.old = append(r.names, string(o.Name)), append(r.since, o.Since), append(r.old, o.OldValues)
			r.timers = v.Timers
			v.observed[k] = r
			v.awaited = v.awaited || o.Swept == 0
		}
	}
	return db.uses.stands(&rows[0], v), nil
}

// raiseCatalog stores a catalog of version 1 as one of version 2. Programs of version 1
// refuse it when they read it next, and commit nothing once the view that they go by is over,
// a lease later. Until then they count as a process that has died: whoever publishes an
// observer waits for the lease, because they have no records (use.go).
func (db *DB) raiseCatalog(ctx context.Context, revision Timestamp, value []byte) error {
	ts, err := db.draw(ctx)
	if err != nil {
		return err
	}
	out, err := db.applyOne(ctx, rowstore.Mutation{
		Table: format.TableCatalog, Row: format.RowCatalog,
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnConfig, revision+1)},
		Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, format.ColumnConfig, ts, value),
			rowstore.DeleteRange(rowstore.Write, format.ColumnConfig, 0, revision),
			rowstore.Put(rowstore.Mark, format.UseOfVersion1, ts, format.Use{Revision: revision, Condemned: true}.Encode()),
		},
	})
	if mayAskAgain(err) {
		return nil // the caller reads what has become of it
	}
	if err != nil {
		return fmt.Errorf("raising the catalog to version %d: %w", format.PlainCatalogVersion, err)
	}
	if out.Applied {
		db.log.Info("the catalog was raised to a newer version; programs of the older one commit nothing more", "version", format.PlainCatalogVersion)
	}
	return nil
}

// checkOracle returns an error if the data was written with another oracle, or if the
// oracle hands out timestamps that are not above those in the catalog. Such an oracle has
// lost its state, or belongs to other data.
func (db *DB) checkOracle(ctx context.Context, v *catalogView) error {
	if v.Oracle != db.opt.oracleName {
		return fmt.Errorf("%w: the data was written with the oracle %q, not %q; open it with that one, because timestamps of two oracles are in no order", ErrInvalid, oracleTitle(v.Oracle), oracleTitle(db.opt.oracleName))
	}
	stored := max(v.revision, v.safePoint, v.pointsAt, v.holdsAt, v.erasedAt, v.collectedAt)
	if v.asOf > stored {
		return nil
	}
	// The catalog may have been changed between the draw and the read.
	now, err := db.draw(ctx)
	if err == nil && now <= stored {
		err = fmt.Errorf("%w: it answered %v, and the catalog is of %v", ErrOracleWentBack, now, stored)
	}
	return err
}

// changeCatalog lets change edit the newest catalog and stores the result. change
// returns false to leave the catalog as it is. When another process was first, change
// is called again with the newer catalog. The returned view was read after the change
// was stored.
func (db *DB) changeCatalog(ctx context.Context, change func(v *catalogView) (bool, error)) (*catalogView, error) {
	for attempt := 0; ; attempt++ {
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return nil, err
		}
		next := *v
		next.Observers = slices.Clone(v.Observers)
		next.Indexes = slices.Clone(v.Indexes)
		write, err := change(&next)
		if err != nil {
			return nil, err
		}
		if !write {
			return v, nil
		}
		value, err := next.encode()
		if err != nil {
			return nil, err
		}
		ts, err := db.draw(ctx)
		if err != nil {
			return nil, err
		}
		from := Timestamp(0)
		edits := []rowstore.Edit{
			rowstore.Put(rowstore.Write, format.ColumnConfig, ts, value),
			// Stores with a push tell the workers, which then read the catalog.
			rowstore.Put(rowstore.Notify, format.ColumnConfig, ts, format.StrongNotification),
		}
		if v.revision > 0 {
			from = v.revision + 1
			edits = append(edits,
				rowstore.DeleteRange(rowstore.Write, format.ColumnConfig, 0, v.revision),
				rowstore.DeleteRange(rowstore.Notify, format.ColumnConfig, 0, v.revision))
		} else {
			// Of what was there before there was any data, nothing is left.
			edits = append(edits, rowstore.Put(rowstore.Write, format.ColumnResolved, ts, format.TimestampOnly),
				rowstore.Put(rowstore.Write, format.ColumnSwept, ts, format.TimestampOnly))
		}
		out, err := db.applyOne(ctx, rowstore.Mutation{
			Table: format.TableCatalog, Row: format.RowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnConfig, from)},
			Edits:      edits,
		})
		// After a lost reply the change may have been stored. The next round finds out:
		// change is asked whether anything is left to do.
		if err != nil && !mayAskAgain(err) {
			return nil, fmt.Errorf("changing the catalog: %w", err)
		}
		if err == nil && out.Applied {
			return db.loadCatalog(ctx)
		}
		if err := db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand)); err != nil {
			return nil, fmt.Errorf("changing the catalog: %w", err)
		}
	}
}

// initCatalog stores the catalog of new data, or checks the one that is there.
func (db *DB) initCatalog(ctx context.Context) error {
	asked := db.opt.settings
	wanted := asked
	wanted.setDefaults()
	if err := wanted.check(); err != nil {
		return err
	}
	v, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		switch {
		case v.revision > 0:
			return false, nil
		case db.opt.existing:
			return false, fmt.Errorf("%w: the store is there, and no program has made a database in it", ErrNoStore)
		}
		if err := db.checkElsewhere(ctx); err != nil {
			return false, err
		}
		v.catalog = catalog{Oracle: db.opt.oracleName, Current: storeSettings(wanted, nil), Hinted: true, HintsFrom: v.asOf}
		return true, nil
	})
	if err != nil {
		return err
	}
	if stored := v.at(v.asOf); asked != (Settings{}) && stored != wanted {
		db.log.Warn("the stored settings hold; change them with Configure", "stored", stored, "asked", wanted)
	}
	return nil
}

func oracleTitle(name string) string {
	if name == "" {
		return "the store's own"
	}
	return name
}

// refreshSoon reads the catalog in the background once it is getting old, so that
// transactions seldom wait for it.
func (db *DB) refreshSoon(v *catalogView, now time.Time) {
	if now.Sub(v.sentAt) < v.lease/3 || !db.refreshing.CompareAndSwap(false, true) {
		return
	}
	if !db.background(func(ctx context.Context) {
		defer db.refreshing.Store(false)
		ctx, cancel := context.WithTimeout(ctx, v.lease)
		defer cancel()
		if _, err := db.loadCatalog(ctx); err != nil && ctx.Err() == nil {
			db.log.Warn("reading the catalog failed", "err", err)
		}
	}) {
		db.refreshing.Store(false)
	}
}

// useFor returns a view of the catalog that does not expire soon, for the prewrites of a
// transaction of this snapshot that is about to commit. The caller ends the use (endUse).
func (db *DB) useFor(ctx context.Context, s *snapshot) (*catalogView, error) {
	local := db.clock.Now()
	v := db.beginUse()
	db.refreshSoon(v, local)
	if now := s.start.Add(local.Sub(s.began)); now.Sub(v.asOf) < v.lease/3*2 {
		return v, nil
	}
	db.endUse(v, false)
	if _, err := db.loadCatalog(ctx); err != nil {
		return nil, err
	}
	return db.beginUse(), nil
}

// catalogFor returns a view of the catalog that this process goes by at some moment of
// the call, and that does not expire soon: what it does not know is acted upon above all
// timestamps that were drawn before the call.
func (db *DB) catalogFor(ctx context.Context, now Timestamp) (*catalogView, error) {
	v := db.known()
	db.refreshSoon(v, db.clock.Now())
	if now.Sub(v.asOf) < v.lease/3*2 {
		return v, nil
	}
	return db.loadCatalog(ctx)
}

// What a read at a snapshot can miss when a garbage collection overtakes it.
//
// A collection removes the versions of a column oldest first; each mutation removes all
// of them up to some timestamp. So a version that a read finds at or below its snapshot
// is the right one, whatever was collected before: if a newer version at or below the
// snapshot had been removed, this one would have been removed too. But where a read
// finds nothing, a version may have been removed, unless the answer is known to be
// older than the removal. The collection waits until no process can use a view with an
// older safe point. So a view of the catalog proves that the answer is older, if it
// still holds at a timestamp that was drawn after the answer. No local clock can prove
// it: the clock may have stood still, with its machine, for a day.

// checkFound returns an error that matches ErrSnapshotTooOld when s is known to lie below
// the safe point of something that was read. It is enough for an answer in which nothing is
// missing.
func (db *DB) checkFound(s Timestamp, read ...span) error {
	v := db.known()
	db.refreshSoon(v, db.clock.Now())
	return v.checkSnapshot(s, read...)
}

// checkSnapshot returns an error that matches ErrSnapshotTooOld when something that a
// read at s did not find may have been collected. It must be called after the
// reply that it judges.
func (db *DB) checkSnapshot(ctx context.Context, s Timestamp, read ...span) error {
	return db.checkSnapshotOf(ctx, s, 0, read...)
}

// checkSnapshotOf is checkSnapshot for a reply that tells the last timestamp that had been drawn when it was read: 0 if it does not, so one
// is drawn.
func (db *DB) checkSnapshotOf(ctx context.Context, s, latest Timestamp, read ...span) (err error) {
	if err = db.checkFound(s, read...); err != nil {
		return err
	}
	if latest == 0 {
		if latest, err = db.draw(ctx); err != nil {
			return err
		}
	}
	return db.checkSnapshotAt(ctx, s, latest, read...)
}

// checkAnswer is checkFound for a complete answer: nothing is missing in it, or it is
// known to be older than any removal. For any other answer it is checkSnapshot.
func (db *DB) checkAnswer(ctx context.Context, s Timestamp, complete bool, read ...span) error {
	if complete {
		return db.checkFound(s, read...)
	}
	return db.checkSnapshot(ctx, s, read...)
}

// checkSnapshotAt is checkSnapshot with a timestamp that was drawn after the reply.
func (db *DB) checkSnapshotAt(ctx context.Context, s, now Timestamp, read ...span) error {
	v := db.known()
	if !v.holds(now) {
		var err error
		if v, err = db.loadCatalog(ctx); err != nil {
			return err
		}
	}
	return v.checkSnapshot(s, read...)
}

func (v *catalogView) checkSnapshot(s Timestamp, read ...span) error {
	if s < v.safePoint {
		return &SnapshotTooOldError{Snapshot: s, SafePoint: v.safePoint}
	}
	for _, r := range read {
		if safe := v.safePointIn(r); s < safe {
			return &SnapshotTooOldError{Snapshot: s, SafePoint: safe, Table: Cell{Table: r.table}.public().Table}
		}
	}
	return nil
}

// readPoints decodes the safe points of tables, where there are any.
func (v *catalogView) readPoints(stored *rowstore.Version) error {
	if stored == nil {
		return nil
	}
	points, err := format.DecodeTableSafePoints(stored.Value)
	if err != nil {
		return err
	}
	v.pointsAt, v.points = stored.TS, make(map[string]format.TableSafePoint, len(points.Tables))
	for _, p := range points.Tables {
		v.points[string(p.Name)] = p
	}
	return nil
}

// SafePoint returns the timestamp below which history is being removed. A read at an
// older snapshot (see WithAsOf) may fail with ErrSnapshotTooOld. Each garbage collection
// moves the safe point on; it is 0 before the first. That of a table with a shorter retention may lie
// later: see TableSafePoint. Errors: ErrClosed, those of the context and of the store.
func (db *DB) SafePoint(ctx context.Context) (Timestamp, error) {
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return 0, fmt.Errorf("percolator: asking for the safe point: %w", err)
	}
	return v.safePoint, nil
}
