package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Tables with settings of their own: what they may be, and the rules that keep a table whose
// history is short from forgetting a commit that a table whose history is long still needs. See
// "Retention by table" in docs/architecture.md.

// TableSettings are settings of one table. A field of 0 means that of the database. Neither may be
// longer than that of the database. See DB.ConfigureTable.
type TableSettings struct {
	// MaxTxnAge is the longest time from the beginning of a transaction that writes or
	// locks in the table to its commit. Of all the tables of a transaction the least one
	// counts, as it is at the commit.
	MaxTxnAge time.Duration
	// Retention is the least time for which the table's history is kept: snapshots that old
	// can be read. It must be greater than the table's MaxTxnAge plus the catalog lease. A
	// transaction that is older gets ErrSnapshotTooOld from reads of the table.
	Retention time.Duration
}

// ConfigureTable changes the settings of one table for every process: a table in which much is
// written and deleted, as in a queue, stays small if its history is short. The zero TableSettings
// take the table's own settings back. The table need not exist yet, and its name may be any that
// a cell may have.
//
// The change takes effect two catalog leases after it was published, as one of Configure does.
// The first collection by a shorter retention comes another MaxTxnAge of the database later, when all
// transactions have ended that began before. From the first call on, programs of versions that do
// not know of it get ErrFormat, also those that have the data open.
//
// It returns an error that matches ErrInvalid if the settings do not fit together or do not fit
// those of the database, if more than 256 tables have settings of their own, and while another change
// has yet to take effect under which the table would have other settings; ErrTooLarge if the name is too long. Nothing was changed then. After
// any other error the change may or may not take effect; call ConfigureTable again.
func (db *DB) ConfigureTable(ctx context.Context, table string, s TableSettings) error {
	return db.configureTables(ctx, "ConfigureTable", map[string]TableSettings{table: s})
}

// ConfigureTables is ConfigureTable for several tables, by their names, in one change: a program that
// sets them one by one has to wait between two for as long as a change takes to come into effect. Settings of other tables stay. An empty map
// changes nothing. It returns the same errors, of the first table by name that has one; no table is changed then.
func (db *DB) ConfigureTables(ctx context.Context, tables map[string]TableSettings) error {
	return db.configureTables(ctx, "ConfigureTables", tables)
}

func (db *DB) configureTables(ctx context.Context, call string, tables map[string]TableSettings) error {
	own := make([]format.Table, 0, len(tables))
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		if err := db.checkTable(table); err != nil {
			return called(call, err)
		}
		s := tables[table]
		for _, d := range []time.Duration{s.MaxTxnAge, s.Retention} {
			if d < 0 || d > 0 && d < time.Millisecond {
				return fmt.Errorf("percolator: %s: %w: TableSettings of table %q: MaxTxnAge %v and Retention %v must each be 0 or at least 1 ms", call, ErrInvalid, table, s.MaxTxnAge, s.Retention)
			}
		}
		own = append(own, format.Table{Name: []byte(format.Escape(table)), MaxTxnAgeMs: s.MaxTxnAge.Milliseconds(), RetentionMs: s.Retention.Milliseconds()})
	}
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	if len(own) == 0 {
		return nil
	}
	err := db.changeSettings(ctx, func(now format.Settings) format.Settings {
		for _, t := range own {
			now = withTable(now, t)
		}
		return now
	})
	if err != nil {
		return fmt.Errorf("percolator: %s: %w", call, err)
	}
	return nil
}

func (db *DB) checkTable(table string) error {
	if table == "" {
		return fmt.Errorf("%w: the table's name is empty", ErrInvalid)
	}
	if len(table) > db.limits.Table {
		return db.nameTooLarge(&Cell{Table: table})
	}
	return nil
}

// TableSettings returns the settings in force of the tables that have some of their own, by the
// tables' names, as this process last read them. Those that a table takes from the database are filled in.
func (db *DB) TableSettings() map[string]TableSettings {
	v := db.known()
	s := v.stored(v.asOf.Add(db.clock.Now().Sub(v.sentAt)))
	all := make(map[string]TableSettings, len(s.Tables))
	for i := range s.Tables {
		t := s.Of(string(s.Tables[i].Name))
		all[Cell{Table: string(s.Tables[i].Name)}.public().Table] = TableSettings{MaxTxnAge: milliseconds(t.MaxTxnAgeMs), Retention: milliseconds(t.RetentionMs)}
	}
	return all
}

// TableSafePoint is SafePoint for one table: that of a table whose Retention is shorter than the
// database's may lie later. The table need not hold anything. Errors: ErrInvalid and ErrTooLarge for a bad name, and those of SafePoint.
func (db *DB) TableSafePoint(ctx context.Context, table string) (Timestamp, error) {
	if err := db.checkTable(table); err != nil {
		return 0, called("TableSafePoint", err)
	}
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return 0, fmt.Errorf("percolator: asking for the safe point: %w", err)
	}
	return v.safePointOf(format.Escape(table)), nil
}

// withTable returns settings in which a table has those given. It does not change now.
func withTable(now format.Settings, own format.Table) format.Settings {
	i, found := slices.BinarySearchFunc(now.Tables, string(own.Name), func(t format.Table, name string) int { return strings.Compare(string(t.Name), name) })
	now.Tables = slices.Clone(now.Tables)
	switch {
	case own.MaxTxnAgeMs != 0 || own.RetentionMs != 0:
		if found {
			own.Since = now.Tables[i].Since
			now.Tables[i] = own
		} else {
			now.Tables = slices.Insert(now.Tables, i, own)
		}
	case found:
		now.Tables = slices.Delete(now.Tables, i, i+1)
	}
	return now
}

// checkTables finds settings of tables that do not fit.
func checkTables(s *format.Settings) error {
	if len(s.Tables) > format.MaxTables {
		return fmt.Errorf("%w: at most %d tables may have settings of their own: take back those of another table first, by the zero TableSettings", ErrInvalid, format.MaxTables)
	}
	for i := range s.Tables {
		name := string(s.Tables[i].Name)
		t := s.Of(name)
		age, retention, lease := milliseconds(t.MaxTxnAgeMs), milliseconds(t.RetentionMs), milliseconds(s.CatalogLeaseMs)
		name = Cell{Table: name}.public().Table
		switch {
		case t.MaxTxnAgeMs > s.MaxTxnAgeMs || t.RetentionMs > s.RetentionMs:
			return fmt.Errorf("%w: table %q: MaxTxnAge %v and Retention %v may not be longer than those of the database, %v and %v",
				ErrInvalid, name, age, retention, milliseconds(s.MaxTxnAgeMs), milliseconds(s.RetentionMs))
		case t.MaxTxnAgeMs+s.CatalogLeaseMs >= t.RetentionMs:
			return fmt.Errorf("%w: table %q: MaxTxnAge %v + CatalogLease %v must be less than Retention %v; what a table does not set is the database's",
				ErrInvalid, name, age, lease, retention)
		}
	}
	return nil
}

// shortened tells whether a table's retention becomes shorter in proportion to that of any
// other table. Then commits from before may have left locks in tables that a collection of this
// table alone does not look at.
func shortened(from, to *format.Settings, table string) bool {
	kept := to.Of(table).RetentionMs
	if kept == to.RetentionMs {
		return false
	}
	if kept < from.Of(table).RetentionMs || to.RetentionMs > from.RetentionMs {
		return true
	}
	for _, s := range []*format.Settings{from, to} {
		for i := range s.Tables {
			if other := string(s.Tables[i].Name); other != table && to.Of(other).RetentionMs > from.Of(other).RetentionMs {
				return true
			}
		}
	}
	return false
}

// dateTables notes in to, which takes effect at when, which tables it shortens. It returns a copy.
func dateTables(from, to *format.Settings, when Timestamp) *format.Settings {
	dated := *to
	dated.Tables = slices.Clone(to.Tables)
	for i := range dated.Tables {
		if shortened(from, to, string(dated.Tables[i].Name)) {
			dated.Tables[i].Since = when
		}
	}
	return &dated
}

// stored returns the settings in force at ts, with those of tables.
func (c *catalog) stored(ts Timestamp) *format.Settings {
	if c.inForce(ts) {
		return c.Next
	}
	return &c.Current
}

// byTable tells whether any table differs from the others, or will soon.
func (v *catalogView) byTable() bool {
	return len(v.points) > 0 || len(v.Current.Tables) > 0 || v.Next != nil && len(v.Next.Tables) > 0
}

// safePointOf returns the safe point of a table.
func (v *catalogView) safePointOf(table string) Timestamp {
	if len(v.points) == 0 {
		return v.safePoint
	}
	return max(v.safePoint, v.points[table].SafePoint)
}

// widestIn is widest for transactions that write in a table.
func (v *catalogView) widestIn(table string) (maxTxnAge, lease time.Duration) {
	_, lease = v.widest()
	age := v.stored(v.asOf).Of(table).MaxTxnAgeMs
	if v.Next != nil {
		age = max(age, v.Next.Of(table).MaxTxnAgeMs)
	}
	return milliseconds(age), lease
}

// shortTables returns the tables whose retention is shorter than the database's, and at most within
// unless that is 0.
func (v *catalogView) shortTables(within time.Duration) map[string]time.Duration {
	s := v.stored(v.asOf)
	if len(s.Tables) == 0 {
		return nil
	}
	all := map[string]time.Duration{}
	for i := range s.Tables {
		name := string(s.Tables[i].Name)
		if t := s.Of(name); t.RetentionMs < s.RetentionMs && (within == 0 || milliseconds(t.RetentionMs) <= within) {
			all[name] = milliseconds(t.RetentionMs)
		}
	}
	return all
}

// clean tells whether the locks are resolved of all transactions from before the table's retention
// was last shortened.
func (v *catalogView) clean(table string) bool {
	return v.points[table].Clean >= v.stored(v.asOf).Of(table).Since
}

// cleanIn is when a collection may resolve these locks, in how long: every transaction that began
// before is then older than it may be. 0 or less is now.
func (v *catalogView) cleanIn(table string) time.Duration {
	age, lease := v.widest()
	return v.stored(v.asOf).Of(table).Since.Add(age + lease).Sub(v.asOf)
}

// lastCommitIn is lastCommit for a transaction that writes in a table. A change of the table's age
// binds transactions under way too.
func (v *catalogView) lastCommitIn(start Timestamp, table string) Timestamp {
	next := start
	if v.Next != nil {
		next = start.Add(milliseconds(v.Next.Of(table).MaxTxnAgeMs))
	}
	if v.inForce(start) {
		return next
	}
	last := start.Add(milliseconds(v.Current.Of(table).MaxTxnAgeMs))
	if v.Next != nil && v.NextFrom != 0 {
		last = min(last, max(v.NextFrom-1, next))
	}
	return last
}

// outlives tells whether the history of a table is kept for at least as long as that of another
// one, by every settings that may be in force at a commit which goes by this view.
func (v *catalogView) outlives(table, other string) bool {
	if !v.inForce(v.asOf) && v.Current.Of(table).RetentionMs < v.Current.Of(other).RetentionMs {
		return false
	}
	return v.Next == nil || v.Next.Of(table).RetentionMs >= v.Next.Of(other).RetentionMs
}

// writtenTables are the tables in which the transaction writes or locks. A table may come more
// than once.
func (c *committer) writtenTables() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range c.writes {
			if t := c.writes[i].cell.Table; (i == 0 || t != c.writes[i-1].cell.Table) && !yield(t) {
				return
			}
		}
	}
}

// lastCommit is the greatest commit timestamp that the ages of the tables allow.
func (c *committer) lastCommit() Timestamp {
	last := c.view.lastCommit(c.start)
	if c.view.byTable() {
		for t := range c.writtenTables() {
			last = min(last, c.view.lastCommitIn(c.start, t))
		}
	}
	return last
}

// aboveSafePoints tells whether the transaction began above the safe points of all its tables:
// nothing is collected that conflicts with it.
func (c *committer) aboveSafePoints() bool {
	if c.start < c.view.safePoint {
		return false
	}
	if !c.view.byTable() && len(c.view.erased) == 0 {
		return true
	}
	for s := range c.spans() {
		if c.start < c.view.safePointIn(s) {
			return false
		}
	}
	return true
}

// choosePrimary chooses, of the cells that are written, one in a table whose history is kept
// for longest, because all locks of the transaction depend on the primary's record. Over several stores
// the authoritative one goes before the others. It changes nothing where all tables are alike.
func (c *committer) choosePrimary() {
	if !c.used.byTable() {
		return
	}
	authoritative := func(i int) bool { return c.db.placer == nil || c.db.placer.Authoritative(c.writes[i].cell.Table) }
	for i := range c.writes {
		if c.writes[i].kind == format.KindLock || authoritative(i) != authoritative(c.primary) {
			continue
		}
		if !c.used.outlives(c.writes[c.primary].cell.Table, c.writes[i].cell.Table) {
			c.primary = i
		}
	}
}

// primaryOutlives tells whether the primary's record is kept for as long as that of any other
// write or lock of the transaction.
func (c *committer) primaryOutlives() bool {
	if !c.view.byTable() || c.primary < 0 {
		return true
	}
	primary := c.primaryCell().Table
	for t := range c.writtenTables() {
		if !c.view.outlives(primary, t) {
			return false
		}
	}
	return true
}

// lastingPrimary gives the transaction a primary of its own, if none of its cells will do: the
// table that is kept for longest is only locked, or lies in another store than the authoritative one. No
// write of the commit may be in the store yet.
func (c *committer) lastingPrimary() error {
	if c.primaryOutlives() {
		return nil
	}
	c.ownPrimary()
	return c.goBy(c.view)
}

// checkReads finds out whether anything may have been collected that the validation of a
// Serializable transaction should have found. The transaction's locks keep a collection from
// it only in the primary's own table and in tables without a retention of their own. A table with
// one may be collected while the primary's is left alone, even if the primary's is kept for less: its
// retention may have been shortened a moment ago.
func (c *committer) checkReads(ctx context.Context) error {
	if !c.view.byTable() && !c.view.Erased {
		return nil
	}
	var judged []span
	for read := range c.readSpans() {
		if c.view.Erased || read.table != c.primaryCell().Table && !c.view.outlives(read.table, format.TableNotices) {
			judged = append(judged, read)
		}
	}
	if len(judged) == 0 {
		return nil
	}
	err := c.db.checkSnapshot(ctx, c.start, judged...)
	if errors.Is(err, ErrSnapshotTooOld) {
		return c.tooOld(c.commit, err)
	}
	return err
}

// changePoints lets change edit the safe points of tables and stores them. change returns false
// to leave them as they are. This process goes by them when it returns.
func (db *DB) changePoints(ctx context.Context, change func(v *catalogView, points map[string]format.TableSafePoint) bool) error {
	stored, err := db.replaceInCatalog(ctx, func(v *catalogView) (*replacement, error) {
		points := maps.Clone(v.points)
		if points == nil {
			points = map[string]format.TableSafePoint{}
		}
		if !change(v, points) {
			return nil, nil //nolint:nilnil // there is nothing to store
		}
		// What says no more than the common safe point, of a table without settings, goes.
		maps.DeleteFunc(points, func(name string, p format.TableSafePoint) bool {
			return p.SafePoint <= v.safePoint && v.Current.Own(name) == nil && (v.Next == nil || v.Next.Own(name) == nil)
		})
		var all format.TableSafePoints
		for _, name := range slices.Sorted(maps.Keys(points)) {
			all.Tables = append(all.Tables, points[name])
		}
		value, err := all.Encode()
		return &replacement{
			column: format.ColumnOfTables, at: v.pointsAt, value: value,
			conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnOfTables, v.pointsAt+1), v.sameHolds()},
		}, err
	})
	if err == nil && stored {
		_, err = db.loadCatalog(ctx)
	}
	if err != nil {
		return fmt.Errorf("publishing the safe points of tables: %w", err)
	}
	return nil
}
