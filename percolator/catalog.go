package percolator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The catalog is one row: what every process must agree on, and the safe point.
// Its column config is replaced by compare-and-set: a new version goes at a
// timestamp just drawn, under the condition that none is newer than the one that
// was read. The column safepoint has the safe point itself as timestamp.
const (
	rowCatalog      = "catalog"
	columnConfig    = "config"
	columnSafePoint = "safepoint"
)

// catalog is the stored content, JSON behind the format version byte.
type catalog struct {
	Oracle    string           `json:"oracle"` // "" is the store's own
	Current   storedSettings   `json:"current"`
	Next      *storedSettings  `json:"next,omitempty"`
	NextFrom  Timestamp        `json:"next_from,omitempty"` // when Next takes effect; 0: not known yet
	Past      []pastAge        `json:"past,omitempty"`      // the oldest first, each less than the next and Current's
	Observers []observerRecord `json:"observers,omitempty"`
}

// observerRecord is one observer that somebody registered. Table and Column are
// stored names; as bytes, since JSON strings hold no arbitrary ones.
type observerRecord struct {
	Name   []byte `json:"name"`
	Table  []byte `json:"table"`
	Column []byte `json:"column"`
	// Since names the registration: drawn when it was made, so that an observer which
	// was removed and registered again is told from what it was before.
	Since Timestamp `json:"since,omitempty"`
	// Swept is the snapshot of the sweep, 0 while it is not done.
	Swept Timestamp `json:"swept,omitempty"`
}

func (r observerRecord) is(name, table, column string) bool {
	return string(r.Name) == name && string(r.Table) == table && string(r.Column) == column
}

func (c *catalog) encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the catalog: %w", err)
	}
	return append([]byte{formatVersion}, b...), nil
}

func decodeCatalog(b []byte) (catalog, error) {
	var c catalog
	if len(b) < 1 {
		return c, fmt.Errorf("%w: catalog: empty", ErrCorrupt)
	}
	if b[0] != formatVersion {
		return c, fmt.Errorf("%w: catalog: format version %d, this library knows %d", ErrCorrupt, b[0], formatVersion)
	}
	if err := json.Unmarshal(b[1:], &c); err != nil {
		return c, fmt.Errorf("%w: catalog: %w", ErrCorrupt, err)
	}
	for _, s := range []*storedSettings{&c.Current, c.Next} {
		if s == nil {
			continue
		}
		if err := s.check(); err != nil {
			return c, err
		}
	}
	for _, p := range c.Past {
		if p.MaxTxnAgeMs < 1 || p.MaxTxnAgeMs > c.Current.MaxTxnAgeMs {
			return c, fmt.Errorf("%w: catalog: bad past settings", ErrCorrupt)
		}
	}
	for _, o := range c.Observers {
		if len(o.Name) == 0 || len(o.Name) > maxObserverName || len(o.Table) == 0 || len(o.Column) == 0 {
			return c, fmt.Errorf("%w: catalog: bad observer", ErrCorrupt)
		}
	}
	return c, nil
}

type columnName struct{ table, column string }

// catalogView is what this process knows of the catalog, and since when.
//
// It holds for a lease from f on, by the oracle's time alone: who changes something
// that others must know (a new observer, the safe point) draws a timestamp once that can
// be read, and acts on it no sooner than the longest lease above that. So what is
// missing here was published above f, and nobody acts on it before the end of this view.
type catalogView struct {
	catalog
	// f was drawn before the catalog was read.
	f Timestamp
	// revision is the timestamp of the config version that was read.
	revision  Timestamp
	safePoint Timestamp
	sentAt    time.Time     // local, of f
	lease     time.Duration // leaseAt(f)
	observed  map[columnName][]string
}

// observers lists the observers of a stored column.
func (v *catalogView) observers(table, column string) []string {
	if len(v.observed) == 0 {
		return nil
	}
	return v.observed[columnName{table, column}]
}

// holds tells whether nobody had acted on anything that the view does not know when ts
// was drawn.
func (v *catalogView) holds(ts Timestamp) bool { return ts.Sub(v.f) < v.lease }

// until is the last timestamp at which the view holds.
func (v *catalogView) until() Timestamp {
	return (v.f.Add(v.lease)>>oracle.LogicalBits)<<oracle.LogicalBits - 1
}

// widest is outlasting for whoever has read the view after publishing something: views
// that do not know of that were begun before v.f.
func (v *catalogView) widest() (maxTxnAge, lease time.Duration) { return v.outlasting(v.f) }

// known returns the last view of the catalog, however old.
func (db *DB) known() *catalogView { return db.view.Load() }

// catalogReads lets those who ask for the catalog at about the same time share a read:
// there is one at a time, and who asks while one is under way takes the next, since
// that one is begun after it asked.
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
	gaveUp bool // the context of who read ended, which is nothing to the others
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
			read.gaveUp = ctx.Err() != nil
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

// join returns the read that is under way, or one that the caller is to make.
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

// readCatalog is what loadCatalog does, for one caller at a time.
func (db *DB) readCatalog(ctx context.Context) (*catalogView, error) {
	v := &catalogView{sentAt: db.clock.Now()}
	var err error
	if v.f, err = db.draw(ctx); err != nil {
		return nil, err
	}
	if before := db.known(); before != nil && v.f <= before.f {
		return nil, fmt.Errorf("%w: it answered %v after %v", ErrOracleWentBack, v.f, before.f)
	}
	rows, err := db.store.Read(ctx, []rowstore.RowRead{{Table: tableCatalog, Row: rowCatalog, Picks: []rowstore.Pick{
		{Family: rowstore.Write, Column: columnConfig, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, Column: columnSafePoint, To: oracle.Max, Limit: 1},
	}}})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return nil, fmt.Errorf("reading the catalog: %w", err)
	}
	config := rows[0].Newest(rowstore.Write, columnConfig)
	if config == nil {
		return v, nil
	}
	v.revision = config.TS
	if v.catalog, err = decodeCatalog(config.Value); err != nil {
		return nil, fmt.Errorf("reading the catalog: %w", err)
	}
	if sp := rows[0].Newest(rowstore.Write, columnSafePoint); sp != nil {
		v.safePoint = sp.TS
	}
	if err := db.checkOracle(ctx, v); err != nil {
		return nil, err
	}
	v.lease = v.leaseAt(v.f)
	if len(v.Observers) > 0 {
		v.observed = make(map[columnName][]string, len(v.Observers))
		for _, o := range v.Observers {
			k := columnName{string(o.Table), string(o.Column)}
			v.observed[k] = append(v.observed[k], string(o.Name))
		}
	}
	db.view.Store(v)
	return v, nil
}

// checkOracle refuses to go on with an oracle that hands out timestamps below those
// that the catalog has: one that lost its state, or belongs to other data.
func (db *DB) checkOracle(ctx context.Context, v *catalogView) error {
	stored := max(v.revision, v.safePoint)
	if v.f > stored {
		return nil
	}
	// The catalog may have been changed between the draw and the read.
	now, err := db.draw(ctx)
	if err == nil && now <= stored {
		err = fmt.Errorf("%w: it answered %v, and the catalog is of %v", ErrOracleWentBack, now, stored)
	}
	return err
}

// changeCatalog lets change edit the newest catalog and stores the result; change
// returns false to leave it as it is. It is called again when another process was
// first. The view returned was read after the change was stored.
func (db *DB) changeCatalog(ctx context.Context, change func(v *catalogView) (bool, error)) (*catalogView, error) {
	for attempt := 0; ; attempt++ {
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return nil, err
		}
		next := *v
		next.Observers = slices.Clone(v.Observers)
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
		edits := []rowstore.Edit{rowstore.Put(rowstore.Write, columnConfig, ts, value)}
		if v.revision > 0 {
			from = v.revision + 1
			edits = append(edits, rowstore.DeleteRange(rowstore.Write, columnConfig, 0, v.revision))
		}
		out, err := db.applyOne(ctx, rowstore.Mutation{
			Table: tableCatalog, Row: rowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, columnConfig, from)},
			Edits:      edits,
		})
		// After a lost reply the change may stand: the next round sees whether it
		// still finds something to do.
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
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
		if v.revision > 0 {
			return false, nil
		}
		v.catalog = catalog{Oracle: db.opt.oracleName, Current: storeSettings(wanted)}
		return true, nil
	})
	if err != nil {
		return err
	}
	if v.Oracle != db.opt.oracleName {
		return fmt.Errorf("%w: the data was written with the oracle %q, not %q: timestamps of two oracles are in no order", ErrInvalid, oracleTitle(v.Oracle), oracleTitle(db.opt.oracleName))
	}
	if stored := v.at(v.f); asked != (Settings{}) && stored != wanted {
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
func (db *DB) refreshSoon(v *catalogView) {
	if db.clock.Now().Sub(v.sentAt) < v.lease/3 || !db.refreshing.CompareAndSwap(false, true) {
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

// catalogFor returns a view of the catalog for the prewrites of a transaction
// that expects to commit at about now: one whose bound is far enough away.
func (db *DB) catalogFor(ctx context.Context, now Timestamp) (*catalogView, error) {
	v := db.known()
	db.refreshSoon(v)
	if now.Sub(v.f) < v.lease*2/3 {
		return v, nil
	}
	return db.loadCatalog(ctx)
}

// What a read at a snapshot misses when a collection was faster.
//
// A collection removes the versions of a column from the oldest on, each mutation all
// of them up to some timestamp. So a version that a read finds at or below its snapshot
// is right, whatever was collected before: had a newer one at or below the snapshot been
// removed, this one would have been too. But where a read finds nothing, there may have
// been something, unless it is shown that the answer is older than the removal. The
// collection waits until nobody can go by an older safe point, so the view of the catalog
// shows that if it holds at a timestamp that was drawn after the answer. No local clock
// shows it: it may have stood still, with its machine, for a day.

// checkFound returns an error that matches ErrSnapshotTooOld when s is known to lie below
// the safe point. It is enough for an answer in which nothing is missing.
func (db *DB) checkFound(s Timestamp) error {
	v := db.known()
	db.refreshSoon(v)
	return v.checkSnapshot(s)
}

// checkSnapshot returns an error that matches ErrSnapshotTooOld when something that a
// read at s did not find may have been collected. It must be called after the reply
// that it judges.
func (db *DB) checkSnapshot(ctx context.Context, s Timestamp) error {
	if err := db.checkFound(s); err != nil {
		return err
	}
	now, err := db.draw(ctx)
	if err != nil {
		return err
	}
	return db.checkSnapshotAt(ctx, s, now)
}

// checkAnswer is checkFound for an answer in which nothing is missing, or that is known
// to be older than any removal, else checkSnapshot.
func (db *DB) checkAnswer(ctx context.Context, s Timestamp, complete bool) error {
	if complete {
		return db.checkFound(s)
	}
	return db.checkSnapshot(ctx, s)
}

// checkSnapshotAt is checkSnapshot with a timestamp that was drawn after the reply.
func (db *DB) checkSnapshotAt(ctx context.Context, s, now Timestamp) error {
	v := db.known()
	if !v.holds(now) {
		var err error
		if v, err = db.loadCatalog(ctx); err != nil {
			return err
		}
	}
	return v.checkSnapshot(s)
}

func (v *catalogView) checkSnapshot(s Timestamp) error {
	if s < v.safePoint {
		return &SnapshotTooOldError{Snapshot: s, SafePoint: v.safePoint}
	}
	return nil
}

// SafePoint returns the timestamp below which history is being removed: whatever is
// read at an older snapshot, as AsOf names one, may fail with ErrSnapshotTooOld. It moves
// on with each garbage collection, and is 0 before the first.
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
