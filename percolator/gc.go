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
// at least one catalog lease, which it waits between publishing the safe point and
// the first removal. Snapshots below the safe point fail with ErrSnapshotTooOld
// from then on.
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
	// Readers go by a safe point that they asked for less than a lease ago.
	if err := db.clock.Sleep(ctx, lease); err != nil {
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
			err = db.removeVersions(ctx, t, safe, &report)
		}
		if err != nil {
			return report, fmt.Errorf("removing from table %q: %w", t, err)
		}
	}
	return report, nil
}

// publishSafePoint stores the safe point, unless a greater one is there, and
// returns what is in force.
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

const gcBatch = 64

// removeVersions removes what is garbage in a table, a mutation for each row.
func (db *DB) removeVersions(ctx context.Context, table string, safe Timestamp, report *GCReport) error {
	if safe == 0 {
		return nil
	}
	all := func(f rowstore.Family, to Timestamp) rowstore.Pick {
		return rowstore.Pick{Family: f, Column: rowstore.AllColumns, To: to}
	}
	picks := []rowstore.Pick{
		all(rowstore.Lock, oracle.Max), all(rowstore.Write, oracle.Max), all(rowstore.Data, safe-1),
		all(rowstore.Rollback, safe-1), all(rowstore.Notify, oracle.Max),
	}
	var muts []rowstore.Mutation
	var counts []int
	flush := func() error {
		if len(muts) == 0 {
			return nil
		}
		outs, err := db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return err
		}
		for i := range outs {
			// A row that changed meanwhile waits for the next collection.
			if outs[i].Err != nil && !errors.Is(outs[i].Err, rowstore.ErrAmbiguous) {
				return outs[i].Err
			}
			if outs[i].Applied {
				report.Rows++
				report.Versions += counts[i]
			}
		}
		muts, counts = muts[:0], counts[:0]
		return nil
	}
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
		if err != nil {
			return err
		}
		m, n, err := garbage(&row, safe)
		if err != nil {
			return fmt.Errorf("row %q: %w", row.Row, err)
		}
		if n == 0 {
			continue
		}
		muts, counts = append(muts, m), append(counts, n)
		if len(muts) == gcBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// garbage builds the mutation that removes what may go from a row, and counts it.
func garbage(row *rowstore.Row, safe Timestamp) (rowstore.Mutation, int, error) {
	g := &gcRow{row: row, safe: safe, m: rowstore.Mutation{Table: row.Table, Row: row.Row}}
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
	for _, c := range columns {
		if err := g.column(c); err != nil {
			return rowstore.Mutation{}, 0, fmt.Errorf("column %q: %w", c, err)
		}
	}
	return g.m, g.n, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

type gcRow struct {
	row  *rowstore.Row
	safe Timestamp
	m    rowstore.Mutation
	n    int
	gone map[string]bool // acknowledgments that go as a whole
}

// column removes from one column: the versions below the newest one at or below
// the safe point, with their data; that newest one too if it is a delete that no
// observer has yet to see; marks below the safe point; and data that belongs to no
// version.
func (g *gcRow) column(column string) error {
	row, safe := g.row, g.safe
	writes := row.All(rowstore.Write, column)
	if g.gone[column] {
		writes = nil
	}
	n := 0
	for n < len(writes) && writes[n].TS > safe {
		n++
	}
	keep, drop := writes[:n], writes[n:]
	kept := make(map[Timestamp]bool, len(keep)+1)
	for i := range keep {
		w, err := decodeWrite(keep[i].Value)
		if err != nil {
			return err
		}
		kept[w.start] = true
	}
	if len(drop) > 0 {
		newest, err := decodeWrite(drop[0].Value)
		if err != nil {
			return err
		}
		if newest.kind == kindDelete && g.seen(column) {
			g.forget(column)
		} else {
			kept[newest.start] = true
			drop = drop[1:]
		}
	}
	if len(drop) > 0 {
		// One range, since nothing can be written at or below the safe point.
		g.m.Edits = append(g.m.Edits, rowstore.DeleteRange(rowstore.Write, column, 0, drop[0].TS))
		g.n += len(drop)
	}
	for _, d := range row.All(rowstore.Data, column) {
		if kept[d.TS] || row.At(rowstore.Lock, column, d.TS) != nil {
			continue
		}
		// A late prewrite may put its lock back; then the data is not garbage.
		g.m.Conditions = append(g.m.Conditions, rowstore.AbsentAt(column, d.TS))
		g.m.Edits = append(g.m.Edits, rowstore.Delete(rowstore.Data, column, d.TS))
		g.n++
	}
	if marks := row.All(rowstore.Rollback, column); len(marks) > 0 {
		g.m.Edits = append(g.m.Edits, rowstore.DeleteRange(rowstore.Rollback, column, 0, safe-1))
		g.n += len(marks)
	}
	return nil
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
	g.m.Conditions = append(g.m.Conditions, conds...)
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
		g.m.Conditions = append(g.m.Conditions, rowstore.Absent(rowstore.Write, column, g.safe+1), rowstore.Absent(rowstore.Lock, column, 0))
		g.m.Conditions = append(g.m.Conditions, g.unchanged(ack)...)
		g.m.Edits = append(g.m.Edits, rowstore.DeleteRange(rowstore.Write, ack, 0, w.TS))
		g.n += len(g.row.All(rowstore.Write, ack))
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
		m := rowstore.Mutation{Table: table, Row: row.Row}
		for i := range row.Versions {
			v := &row.Versions[i]
			m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, v.Column, v.TS))
		}
		if _, err := db.applyOne(ctx, m); err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return err
		}
		report.Rows++
		report.Versions += len(row.Versions)
	}
	return nil
}

// collect collects garbage from time to time, once for all workers together.
func (w *Worker) collect(ctx context.Context) error {
	for {
		interval := w.config.GCInterval
		settings := w.db.Settings()
		if interval == 0 {
			interval = min(settings.Retention/10, time.Hour)
		}
		if err := w.db.clock.Sleep(ctx, interval); err != nil {
			return err
		}
		err := w.retry(ctx, "collecting garbage", func() error {
			v, err := w.db.loadCatalog(ctx)
			if err != nil {
				return err
			}
			if v.f.Sub(v.safePoint) < v.at(v.f).Retention+interval/2 {
				return nil // another worker has done it
			}
			_, err = w.db.CollectGarbage(ctx, 0)
			return err
		})
		if err != nil {
			return err
		}
	}
}
