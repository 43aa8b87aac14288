package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// GCReport says what a garbage collection did.
type GCReport struct {
	SafePoint     Timestamp // history below it is gone
	LocksResolved int       // left by transactions older than the safe point
	Rows          int       // that had something to remove
	Versions      int       // removed: committed versions, marks, long values
}

// CollectGarbage removes the history that nobody can read any more: versions that
// were superseded before the safe point, deleted cells, marks and what dead
// transactions left. The safe point is the retention behind now, or keep behind
// now when keep is not 0; never less than MaxTxnAge and a catalog lease. It takes
// at least one catalog lease, which it waits, by the oracle's time, between publishing
// the safe point and the first removal. From then on what is read at a snapshot below
// the safe point is right, or the read fails with ErrSnapshotTooOld. Rows and histories
// of any size are removed in pieces.
//
// It may be called at any time and by any number of processes at once; an
// interrupted collection leaves nothing wrong. A negative keep gives ErrInvalid.
func (db *DB) CollectGarbage(ctx context.Context, keep time.Duration) (GCReport, error) {
	if keep < 0 {
		return GCReport{}, fmt.Errorf("%w: garbage collection that keeps %v", ErrInvalid, keep)
	}
	if err := db.enter(); err != nil {
		return GCReport{}, err
	}
	defer db.leave()
	report, err := db.collectGarbage(ctx, keep)
	if err != nil {
		return report, fmt.Errorf("percolator: collecting garbage: %w", err)
	}
	db.count.gcRuns.Add(1)
	db.count.gcVersions.Add(uint64(report.Versions)) //nolint:gosec // a count
	return report, nil
}

func (db *DB) collectGarbage(ctx context.Context, keep time.Duration) (GCReport, error) {
	var report GCReport
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return report, err
	}
	age, lease := v.widest()
	if keep == 0 {
		keep = v.at(v.f).Retention
	}
	keep = max(keep, age+lease)
	safe, err := db.publishSafePoint(ctx, v.f.Add(-keep))
	if err != nil {
		return report, err
	}
	report.SafePoint = safe
	if err := db.outlast(ctx); err != nil {
		return report, err
	}
	var tables []string
	for t, err := range db.store.Tables(ctx) {
		if err != nil {
			return report, fmt.Errorf("listing the tables: %w", err)
		}
		tables = append(tables, t)
	}
	// A Write must not go while a lock still depends on it: the lock would be
	// rolled back, and its transaction torn.
	for _, t := range tables {
		n, err := db.resolveBelow(ctx, t, safe)
		report.LocksResolved += n
		if err != nil {
			return report, fmt.Errorf("resolving old locks in table %q: %w", t, err)
		}
	}
	if d, ok := rowstore.Unwrap[rowstore.Deferrer](db.store); ok {
		// Else a roll forward could be lost after the record that it came from.
		if err := d.Flush(ctx); err != nil {
			return report, fmt.Errorf("flushing: %w", err)
		}
	}
	for _, t := range tables {
		switch t {
		case tableCatalog:
		case tableSessions, tableScanLeases:
			err = db.removeLeases(ctx, t, safe, &report)
		default:
			if err = db.clearUnobserved(ctx, v, t, safe); err == nil {
				err = db.removeVersions(ctx, t, safe, &report)
			}
		}
		if err != nil {
			return report, fmt.Errorf("removing from table %q: %w", t, err)
		}
	}
	return report, nil
}

// outlast waits, by the oracle's time, until nobody goes by a view of the catalog that
// was begun before the call.
func (db *DB) outlast(ctx context.Context) error {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	_, lease := v.widest()
	for now := v.f; now.Sub(v.f) < lease; {
		if err := db.clock.Sleep(ctx, lease-now.Sub(v.f)); err != nil {
			return err
		}
		if now, err = db.draw(ctx); err != nil {
			return err
		}
	}
	return nil
}

// publishSafePoint stores the safe point, unless a greater one is there, and returns
// what is in force.
func (db *DB) publishSafePoint(ctx context.Context, safe Timestamp) (Timestamp, error) {
	if safe > 0 {
		_, err := db.applyOne(ctx, rowstore.Mutation{
			Table: tableCatalog, Row: rowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, columnSafePoint, safe)},
			Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, columnSafePoint, safe, []byte{formatVersion}),
				rowstore.DeleteRange(rowstore.Write, columnSafePoint, 0, safe-1),
			},
		})
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return 0, fmt.Errorf("publishing the safe point: %w", err)
		}
	}
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return 0, err
	}
	return v.safePoint, nil
}

// resolveBelow resolves every lock of a table whose start is below the safe point,
// whether its owner lives or not: it is older than MaxTxnAge and cannot commit.
func (db *DB) resolveBelow(ctx context.Context, table string, safe Timestamp) (resolved int, err error) {
	if safe == 0 {
		return 0, nil
	}
	picks := []rowstore.Pick{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: safe - 1, Limit: 1}}
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
		if err != nil {
			return resolved, err
		}
		// After a lost reply the lock may stand still, so each is looked at until it
		// is gone.
		for attempt := 0; len(row.Versions) > 0; attempt++ {
			for i := range row.Versions {
				v := &row.Versions[i]
				l, err := decodeLock(v.Value)
				if err != nil {
					return resolved, fmt.Errorf("row %q, column %q: %w", row.Row, v.Column, err)
				}
				if _, err := db.resolveLock(ctx, Cell{table, row.Row, v.Column}, v.TS, &l, overrideLiving); err != nil {
					return resolved, err
				}
				resolved++
			}
			rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: table, Row: row.Row, Picks: picks}})
			if err != nil {
				return resolved, err
			}
			if row = rows[0]; len(row.Versions) > 0 {
				if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
					return resolved, err
				}
			}
		}
	}
	return resolved, nil
}

// What a collection takes at once, at most, however much there is.
const (
	gcRows = 64 // rows that a call changes
	// gcShallow is how many versions of a column, above the safe point and below, are
	// read while a table is scanned. A column that has more is deep.
	gcShallow = 8
	gcPage    = 256 // versions of a deep column that a mutation removes, or of a row
	gcDeep    = 16  // deep columns that are read together
)

// collection removes what is garbage in one table.
//
// Versions of a column always go from the oldest on, each mutation all of them up to
// some timestamp: see checkFound for what depends on it.
type collection struct {
	db     *DB
	table  string
	safe   Timestamp
	page   int // gcPage, or less where the store takes less
	report *GCReport

	muts   []rowstore.Mutation
	counts []int
	edits  int

	rows []rowstore.Row // that wait for their deep columns
	deep []deepColumn
}

// deepColumn has more versions than a scan shows.
type deepColumn struct {
	row, column string
	to          Timestamp // the newest of those that the scan did not show
}

// removeVersions removes what is garbage in a table.
func (db *DB) removeVersions(ctx context.Context, table string, safe Timestamp, report *GCReport) error {
	if safe == 0 {
		return nil
	}
	all := func(f rowstore.Family, from, to Timestamp, limit int) rowstore.Pick {
		return rowstore.Pick{Family: f, Column: rowstore.AllColumns, From: from, To: to, Limit: limit}
	}
	picks := []rowstore.Pick{
		all(rowstore.Lock, 0, oracle.Max, 1),
		all(rowstore.Write, safe+1, oracle.Max, gcShallow), all(rowstore.Write, 0, safe, gcShallow),
		all(rowstore.Data, 0, safe-1, 2), // few: they are long
		all(rowstore.Rollback, 0, safe-1, 1), all(rowstore.Notify, 0, oracle.Max, 1),
	}
	c := &collection{db: db, table: table, safe: safe, page: gcPage, report: report}
	if l, ok := rowstore.Unwrap[rowstore.Limiter](db.store); ok {
		// A version may take two edits, and its column a few more.
		if n := l.Limits().Operations; n > 0 {
			c.page = max(1, min(c.page, n/2-8))
		}
	}
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
		if err != nil {
			return err
		}
		if c.findDeep(&row) {
			if c.rows = append(c.rows, row); len(c.deep) >= gcDeep {
				err = c.removeDeep(ctx)
			}
		} else {
			err = c.row(ctx, &row)
		}
		if err != nil {
			return err
		}
	}
	if err := c.removeDeep(ctx); err != nil {
		return err
	}
	return c.flush(ctx)
}

// findDeep notes the deep columns of a row.
func (c *collection) findDeep(row *rowstore.Row) bool {
	found, n := false, 0
	for i := range row.Versions {
		v := &row.Versions[i]
		if i == 0 || v.Family != row.Versions[i-1].Family || v.Column != row.Versions[i-1].Column {
			n = 0
		}
		if v.Family != rowstore.Write || v.TS > c.safe {
			continue
		}
		if n++; n == gcShallow && v.TS > 1 {
			c.deep = append(c.deep, deepColumn{row.Row, v.Column, v.TS - 1})
			found = true
		}
	}
	return found
}

// removeDeep removes what the scan did not show of the deep columns, and then what it
// did show of their rows.
func (c *collection) removeDeep(ctx context.Context) error {
	for deep := range slices.Chunk(c.deep, gcDeep) {
		reads := make([]rowstore.RowRead, len(deep))
		for i, d := range deep {
			reads[i] = c.readDeep(d, d.to)
		}
		rows, err := c.db.readRows(ctx, reads)
		if err != nil {
			return err
		}
		for i := range rows {
			if len(rows[i].Versions) < c.page {
				err = c.add(ctx, rows[i].Row, c.pageOf(deep[i], rows[i].Versions))
			} else {
				err = c.removePages(ctx, deep[i], rows[i].Versions)
			}
			if err != nil {
				return err
			}
		}
	}
	// Before what is newer.
	if err := c.flush(ctx); err != nil {
		return err
	}
	for i := range c.rows {
		if err := c.row(ctx, &c.rows[i]); err != nil {
			return err
		}
	}
	clear(c.rows)
	c.rows, c.deep = c.rows[:0], c.deep[:0]
	return nil
}

func (c *collection) readDeep(d deepColumn, to Timestamp) rowstore.RowRead {
	return rowstore.RowRead{Table: c.table, Row: d.row, Picks: []rowstore.Pick{
		{Family: rowstore.Write, Column: d.column, To: to, Limit: c.page},
	}}
}

// removal is what a mutation removes, in a few words.
type removal struct {
	conditions []rowstore.Condition
	edits      []rowstore.Edit
	versions   int
}

// pageOf makes the removal of the versions of a deep column up to the first of those
// given, which are all that are left of them or those that were read last.
func (c *collection) pageOf(d deepColumn, versions []rowstore.Version) removal {
	if len(versions) == 0 {
		return removal{}
	}
	r := removal{versions: len(versions)}
	r.edits = append(r.edits, rowstore.DeleteRange(rowstore.Write, d.column, 0, versions[0].TS))
	for i := range versions {
		r.dataOf(d.column, &versions[i])
	}
	return r
}

// dataOf adds the long value of a version that is removed.
func (r *removal) dataOf(column string, v *rowstore.Version) {
	if w, err := decodeWrite(v.Value); err == nil && w.long {
		r.edits = append(r.edits, rowstore.Delete(rowstore.Data, column, w.start))
		r.versions++
	}
}

// removePages removes a column's versions page by page: the first one is that of the
// newest, and it goes last.
func (c *collection) removePages(ctx context.Context, d deepColumn, newest []rowstore.Version) error {
	pages := []removal{c.pageOf(d, newest)}
	for to := newest[len(newest)-1].TS; to > 1; {
		rows, err := c.db.readRows(ctx, []rowstore.RowRead{c.readDeep(d, to-1)})
		if err != nil {
			return err
		}
		versions := rows[0].Versions
		if len(versions) == 0 {
			break
		}
		pages = append(pages, c.pageOf(d, versions))
		to = versions[len(versions)-1].TS
	}
	for _, p := range slices.Backward(pages) {
		// One in each call: the order counts.
		if err := c.flush(ctx); err != nil {
			return err
		}
		if err := c.add(ctx, d.row, p); err != nil {
			return err
		}
	}
	return nil
}

// add puts a removal into the next call.
func (c *collection) add(ctx context.Context, row string, r removal) error {
	if len(r.edits) == 0 {
		return nil
	}
	if slices.ContainsFunc(c.muts, func(m rowstore.Mutation) bool { return m.Row == row }) {
		if err := c.flush(ctx); err != nil { // a batch names a row once
			return err
		}
	}
	c.muts = append(c.muts, rowstore.Mutation{Table: c.table, Row: row, Conditions: r.conditions, Edits: r.edits})
	c.counts = append(c.counts, r.versions)
	if c.edits += len(r.edits); len(c.muts) == gcRows || c.edits >= 4*c.page {
		return c.flush(ctx)
	}
	return nil
}

// flush sends the next call.
func (c *collection) flush(ctx context.Context) error {
	if len(c.muts) == 0 {
		return nil
	}
	outs, err := c.db.store.Apply(ctx, c.muts, rowstore.ApplyOptions{})
	if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
		return err
	}
	for i := range outs {
		// A row that changed meanwhile waits for the next collection.
		if outs[i].Err != nil && !errors.Is(outs[i].Err, rowstore.ErrAmbiguous) {
			return outs[i].Err
		}
		if outs[i].Applied {
			c.report.Rows++
			c.report.Versions += c.counts[i]
		}
	}
	c.muts, c.counts, c.edits = nil, c.counts[:0], 0
	return nil
}

// row removes what may go of what the scan showed of a row: a mutation for each column,
// or for several.
func (c *collection) row(ctx context.Context, row *rowstore.Row) error {
	g := &gcRow{row: row, safe: c.safe}
	var columns []string
	for i := range row.Versions {
		if c := row.Versions[i].Column; !slices.Contains(columns[max(0, len(columns)-1):], c) {
			columns = append(columns, c)
		}
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	// What observers keep comes last, since it may go with the column it is for.
	slices.SortStableFunc(columns, func(a, b string) int { return cmp.Compare(btoi(reserved(a)), btoi(reserved(b))) })
	for _, column := range columns {
		if err := g.column(column); err != nil {
			return fmt.Errorf("row %q, column %q: %w", row.Row, column, err)
		}
		if len(g.m.edits)+len(g.m.conditions) >= c.page {
			if err := c.add(ctx, row.Row, g.m); err != nil {
				return err
			}
			g.m = removal{}
		}
	}
	return c.add(ctx, row.Row, g.m)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// gcRow is what a scan shows of a row.
type gcRow struct {
	row  *rowstore.Row
	safe Timestamp
	m    removal
	gone map[string]bool // acknowledgments that go as a whole
}

// column removes from one column: the versions below the newest one at or below
// the safe point, with their data; that newest one too if it is a delete that no
// observer has yet to see; marks below the safe point; and data that belongs to no
// version.
func (g *gcRow) column(column string) error {
	writes := g.row.All(rowstore.Write, column)
	if g.gone[column] {
		writes = nil
	}
	n := 0
	for n < len(writes) && writes[n].TS > g.safe {
		n++
	}
	keep, drop := writes[:n], writes[n:]
	known := make(map[Timestamp]bool, len(writes)) // the starts of the versions, kept or not
	for i := range writes {
		w, err := decodeWrite(writes[i].Value)
		if err == nil {
			known[w.start] = true
		} else if i <= len(keep) {
			return err
		}
	}
	g.orphans(column, len(keep), drop, known)
	if len(drop) > 0 {
		newest, err := decodeWrite(drop[0].Value)
		if err != nil {
			return err
		}
		if newest.kind == kindDelete && g.seen(column) {
			g.forget(column)
		} else {
			drop = drop[1:]
		}
	}
	if len(drop) > 0 {
		// One range, since nothing can be written at or below the safe point.
		g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Write, column, 0, drop[0].TS))
		g.m.versions += len(drop)
		for i := range drop {
			g.m.dataOf(column, &drop[i])
		}
	}
	if marks := g.row.All(rowstore.Rollback, column); len(marks) > 0 {
		g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Rollback, column, 0, g.safe-1))
		g.m.versions += len(marks)
	}
	return nil
}

// orphans removes data that belongs to no version: that a rolled back prewrite left.
// Only the version just above the safe point may have begun below it, and where the
// column has more above than the scan showed, that one is not known: such a column waits.
// What lies below the versions that were shown is of deep ones, and gone with them.
func (g *gcRow) orphans(column string, above int, below []rowstore.Version, known map[Timestamp]bool) {
	if above == gcShallow {
		return
	}
	oldest := Timestamp(0)
	if len(below) == gcShallow {
		oldest = below[len(below)-1].TS
	}
	for _, d := range g.row.All(rowstore.Data, column) {
		if d.TS < oldest || known[d.TS] || g.row.At(rowstore.Lock, column, d.TS) != nil {
			continue
		}
		// A late prewrite may put its lock back; then the data is not garbage.
		g.m.conditions = append(g.m.conditions, rowstore.AbsentAt(column, d.TS))
		g.m.edits = append(g.m.edits, rowstore.Delete(rowstore.Data, column, d.TS))
		g.m.versions++
	}
}

// seen tells whether a delete of column has nothing left to tell any observer, and
// makes it a condition.
func (g *gcRow) seen(column string) bool {
	if len(g.row.All(rowstore.Notify, column)) > 0 {
		return false
	}
	conds := []rowstore.Condition{rowstore.Absent(rowstore.Notify, column, 0)}
	for _, own := range g.kept(column, prefixParked) {
		if !g.deleted(own) {
			return false
		}
		conds = append(conds, g.unchanged(own)...)
	}
	g.m.conditions = append(g.m.conditions, conds...)
	return true
}

// forget removes the acknowledgments of a deleted column with it, where they are
// older than the safe point and the column has no newer version: with neither a
// change nor an acknowledgment there is nothing to run.
func (g *gcRow) forget(column string) {
	if w := g.row.Newest(rowstore.Write, column); w.TS > g.safe || g.row.Newest(rowstore.Lock, column) != nil {
		return
	}
	for _, ack := range g.kept(column, prefixAck) {
		w := g.row.Newest(rowstore.Write, ack)
		if w == nil || w.TS > g.safe || g.row.Newest(rowstore.Lock, ack) != nil {
			continue
		}
		g.m.conditions = append(g.m.conditions, rowstore.Absent(rowstore.Write, column, g.safe+1), rowstore.Absent(rowstore.Lock, column, 0))
		g.m.conditions = append(g.m.conditions, g.unchanged(ack)...)
		g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Write, ack, 0, w.TS))
		g.m.versions += len(g.row.All(rowstore.Write, ack))
		if g.gone == nil {
			g.gone = map[string]bool{}
		}
		g.gone[ack] = true
	}
}

// kept lists the columns that observers keep beside column.
func (g *gcRow) kept(column, prefix string) []string {
	var own []string
	for i := range g.row.Versions {
		v := &g.row.Versions[i]
		if v.Family != rowstore.Write {
			continue
		}
		if p, _, of, ok := splitOwnColumn(v.Column); ok && p == prefix && of == column && !slices.Contains(own, v.Column) {
			own = append(own, v.Column)
		}
	}
	return own
}

func (g *gcRow) deleted(column string) bool {
	w, err := decodeWrite(g.row.Newest(rowstore.Write, column).Value)
	return err == nil && w.kind == kindDelete
}

// unchanged requires that a column stays as the view showed it.
func (g *gcRow) unchanged(column string) []rowstore.Condition {
	return []rowstore.Condition{
		rowstore.Absent(rowstore.Write, column, g.row.Newest(rowstore.Write, column).TS+1),
		rowstore.Absent(rowstore.Lock, column, 0),
	}
}

// removeLeases removes sessions and scan leases that ended before the safe point.
func (db *DB) removeLeases(ctx context.Context, table string, safe Timestamp, report *GCReport) error {
	if safe == 0 {
		return nil
	}
	picks := []rowstore.Pick{{Family: rowstore.Write, Column: rowstore.AllColumns, To: safe - 1}}
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
		if err != nil {
			return err
		}
		for part := range slices.Chunk(row.Versions, db.rowOperations()) {
			m := rowstore.Mutation{Table: table, Row: row.Row}
			for i := range part {
				m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, part[i].Column, part[i].TS))
			}
			if _, err := db.applyOne(ctx, m); err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
				return err
			}
		}
		report.Rows++
		report.Versions += len(row.Versions)
	}
	return nil
}

// collect collects garbage from time to time, once for all workers together. The safe
// point tells when that was last, so a worker that comes later goes on from there.
func (w *Worker) collect(ctx context.Context) error {
	waited, pause := false, time.Duration(0)
	for {
		var due time.Duration
		err := w.retry(ctx, "collecting garbage", func() error {
			v, err := w.db.loadCatalog(ctx)
			if err != nil {
				return err
			}
			due = w.collectionDue(v)
			return nil
		})
		if err != nil {
			return err
		}
		if due > 0 || !waited {
			// Not all workers at the same moment: the first one spares the others.
			jitter := time.Duration(w.db.rand.int64N(int64(w.db.known().lease) + 1))
			if err := w.db.clock.Sleep(ctx, max(due, pause)+jitter); err != nil {
				return err
			}
			waited, pause = true, 0
			continue
		}
		err = w.retry(ctx, "collecting garbage", func() error {
			_, err := w.db.CollectGarbage(ctx, 0)
			return err
		})
		if err != nil {
			return err
		}
		waited, pause = false, w.gcInterval(w.db.Settings().Retention)/2
	}
}

// collectionDue returns how long it is until the next collection, 0 or less when it is
// time. A collection leaves a safe point that is the retention behind its time, if not
// more.
func (w *Worker) collectionDue(v *catalogView) time.Duration {
	retention := v.at(v.f).Retention
	return retention + w.gcInterval(retention) - v.f.Sub(v.safePoint)
}

func (w *Worker) gcInterval(retention time.Duration) time.Duration {
	if w.config.GCInterval != 0 {
		return w.config.GCInterval
	}
	return min(retention/10, time.Hour)
}
