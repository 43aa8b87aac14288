package percolator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Garbage collection, in the order of its steps: the safe point is published and the
// lease of older views is waited for, the locks below it are resolved, and versions are
// removed (gc_remove.go). See "Garbage collection" in docs/architecture.md.

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
