package percolator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	NextFrom  Timestamp        `json:"next_from,omitempty"` // when Next takes effect
	Observers []observerRecord `json:"observers,omitempty"`
}

type storedSettings struct {
	MaxTxnAgeMs    int64 `json:"max_txn_age_ms"`
	RetentionMs    int64 `json:"retention_ms"`
	CatalogLeaseMs int64 `json:"catalog_lease_ms"`
}

// observerRecord is one observer that somebody registered. Table and Column are
// stored names; as bytes, since JSON strings hold no arbitrary ones.
type observerRecord struct {
	Name   []byte `json:"name"`
	Table  []byte `json:"table"`
	Column []byte `json:"column"`
	// Swept is the snapshot of the sweep, 0 while it is not done.
	Swept Timestamp `json:"swept,omitempty"`
}

func (r observerRecord) is(name, table, column string) bool {
	return string(r.Name) == name && string(r.Table) == table && string(r.Column) == column
}

func storeSettings(s Settings) storedSettings {
	return storedSettings{s.MaxTxnAge.Milliseconds(), s.Retention.Milliseconds(), s.CatalogLease.Milliseconds()}
}

func (s storedSettings) settings() Settings {
	return Settings{
		MaxTxnAge:    time.Duration(s.MaxTxnAgeMs) * time.Millisecond,
		Retention:    time.Duration(s.RetentionMs) * time.Millisecond,
		CatalogLease: time.Duration(s.CatalogLeaseMs) * time.Millisecond,
	}
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
		const most = int64(1) << 43 // keeps milliseconds within a Duration
		if s.MaxTxnAgeMs > most || s.RetentionMs > most || s.CatalogLeaseMs > most {
			return c, fmt.Errorf("%w: catalog: settings out of range", ErrCorrupt)
		}
		if err := s.settings().check(); err != nil {
			return c, fmt.Errorf("%w: catalog: %w", ErrCorrupt, err)
		}
	}
	for _, o := range c.Observers {
		if len(o.Name) == 0 || len(o.Name) > maxObserverName || len(o.Table) == 0 || len(o.Column) == 0 {
			return c, fmt.Errorf("%w: catalog: bad observer", ErrCorrupt)
		}
	}
	return c, nil
}

// at returns the settings in force at ts.
func (c *catalog) at(ts Timestamp) Settings {
	if c.Next != nil && ts >= c.NextFrom {
		return c.Next.settings()
	}
	return c.Current.settings()
}

// widest returns the longest MaxTxnAge and lease, and shortest the shortest
// lease, of the settings in force and those announced: what is safe whichever a
// process goes by.
func (c *catalog) widest() (maxTxnAge, lease time.Duration) {
	s := c.Current.settings()
	if c.Next != nil {
		n := c.Next.settings()
		return max(s.MaxTxnAge, n.MaxTxnAge), max(s.CatalogLease, n.CatalogLease)
	}
	return s.MaxTxnAge, s.CatalogLease
}

func (c *catalog) shortestLease() time.Duration {
	l := c.Current.settings().CatalogLease
	if c.Next != nil {
		l = min(l, c.Next.settings().CatalogLease)
	}
	return l
}

type columnName struct{ table, column string }

// catalogView is what this process knows of the catalog, and since when.
type catalogView struct {
	catalog
	// f was drawn before the catalog was read: whatever is missing here was
	// published after f (protocol: a commit above f + lease aborts).
	f Timestamp
	// revision is the timestamp of the config version that was read.
	revision Timestamp
	// safePoint was the safe point at some moment after sentAt.
	safePoint Timestamp
	sentAt    time.Time
	lease     time.Duration // the shortest
	observed  map[columnName][]string
}

// observers lists the observers of a stored column.
func (v *catalogView) observers(table, column string) []string {
	if len(v.observed) == 0 {
		return nil
	}
	return v.observed[columnName{table, column}]
}

// commitBound is the greatest commit timestamp that prewrites made by this view
// allow.
func (v *catalogView) commitBound() Timestamp { return v.f.Add(v.at(v.f).CatalogLease) }

// known returns the last view of the catalog, however old.
func (db *DB) known() *catalogView { return db.view.Load() }

// loadCatalog reads the catalog anew. Calls are made one after the other.
func (db *DB) loadCatalog(ctx context.Context) (*catalogView, error) {
	select {
	case db.loading <- struct{}{}:
		defer func() { <-db.loading }()
	case <-ctx.Done():
		return nil, fmt.Errorf("reading the catalog: %w", ctx.Err())
	}
	return db.readCatalog(ctx)
}

// readCatalog is loadCatalog for a caller that holds db.loading.
func (db *DB) readCatalog(ctx context.Context) (*catalogView, error) {
	f, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	v := &catalogView{f: f, sentAt: db.clock.Now()}
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
	v.lease = v.shortestLease()
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

// Settings returns the settings in force, as this process last read them.
func (db *DB) Settings() Settings {
	v := db.known()
	return v.at(v.f.Add(db.clock.Now().Sub(v.sentAt)))
}

// Configure changes the stored settings for every process. A field of 0 keeps its
// value. The change takes effect two of the present catalog leases after it was
// published, so that no process can still go by the old settings then. It returns
// an error that matches ErrInvalid when the settings do not fit together.
func (db *DB) Configure(ctx context.Context, s Settings) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		now := v.f
		current := v.at(now)
		if v.Next != nil && now < v.NextFrom {
			if *v.Next == storeSettings(fill(s, current)) {
				return false, nil
			}
			return false, fmt.Errorf("%w: another change of the settings takes effect at %v; wait until then", ErrInvalid, v.NextFrom)
		}
		next := fill(s, current)
		if err := next.check(); err != nil {
			return false, err
		}
		if next == current {
			return false, nil
		}
		v.Current, v.Next = storeSettings(current), new(storedSettings)
		*v.Next = storeSettings(next)
		// A process with the old catalog commits at most one old lease after it
		// was published; the publication may itself take a lease to arrive.
		v.NextFrom = now.Add(2*current.CatalogLease) + 1
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("configuring: %w", err)
	}
	return nil
}

func fill(s, from Settings) Settings {
	if s.MaxTxnAge == 0 {
		s.MaxTxnAge = from.MaxTxnAge
	}
	if s.Retention == 0 {
		s.Retention = from.Retention
	}
	if s.CatalogLease == 0 {
		s.CatalogLease = from.CatalogLease
	}
	return s
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

// checkSnapshot returns an error that matches ErrSnapshotTooOld when history at s
// may be incomplete. It must be called after the reply that it judges: what it
// knows of the safe point counts only while less than a lease has passed since it
// was asked for, because that long a new safe point waits before it takes effect.
func (db *DB) checkSnapshot(ctx context.Context, s Timestamp) error {
	v := db.known()
	if db.clock.Now().Sub(v.sentAt) >= v.lease {
		var err error
		if v, err = db.loadCatalog(ctx); err != nil {
			return err
		}
	} else {
		db.refreshSoon(v)
	}
	if s < v.safePoint {
		return &SnapshotTooOldError{Snapshot: s, SafePoint: v.safePoint}
	}
	return nil
}
