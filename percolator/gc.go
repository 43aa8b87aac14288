package percolator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Garbage collection, in the order of its steps: publish the safe point and wait for
// the lease of older views, resolve the locks below the safe point, remove versions
// (gc_remove.go). See "Garbage collection" in docs/architecture.md.

// GCReport says what a garbage collection did.
type GCReport struct {
	SafePoint     Timestamp // history below it is gone
	LocksResolved int       // left by transactions older than the safe point
	Rows          int       // that had something to remove
	Versions      int       // removed: committed versions, marks, long values
}

// GCOptions changes one garbage collection. The zero value works.
type GCOptions struct {
	// Keep is how long before now the safe point lies. Default 0: the retention of the
	// settings. At least MaxTxnAge plus a catalog lease is always kept.
	Keep time.Duration
}

// CollectGarbage removes the history that nobody can read any more: versions that were
// superseded before the safe point, deleted cells, marks, and the remains of dead
// transactions. Between publishing the safe point and the first removal CollectGarbage
// waits one catalog lease, by the oracle's time; so it takes at least that long. From then on a read at a
// snapshot below the safe point is right, or it fails with ErrSnapshotTooOld. Rows and
// histories of any size are removed in pieces.
//
// It may be called at any time and by any number of processes at once; an interrupted
// collection leaves nothing wrong. Errors: ErrInvalid for a negative Keep, ErrClosed,
// those of the context and of the store. The report says what was done before an error.
func (db *DB) CollectGarbage(ctx context.Context, opts GCOptions) (GCReport, error) {
	if opts.Keep < 0 {
		return GCReport{}, fmt.Errorf("percolator: CollectGarbage: %w: GCOptions.Keep is %v; it may not be negative", ErrInvalid, opts.Keep)
	}
	if err := db.enter(); err != nil {
		return GCReport{}, err
	}
	defer db.leave()
	report, err := db.collectGarbage(ctx, opts.Keep)
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
		keep = v.at(v.asOf).Retention
	}
	keep = max(keep, age+lease)
	safe, err := db.publishSafePoint(ctx, v.asOf.Add(-keep))
	if err != nil {
		return report, err
	}
	report.SafePoint = safe
	condemned, err := db.condemnUses(ctx)
	if err != nil {
		return report, err
	}
	if err := db.outlast(ctx); err != nil {
		return report, err
	}
	if err := db.buryUses(ctx, condemned); err != nil {
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
		if t == format.TableMembers {
			continue // what stands there as a Lock is no transaction's
		}
		n, err := db.resolveBelow(ctx, t, safe)
		report.LocksResolved += n
		if err != nil {
			return report, fmt.Errorf("resolving old locks in table %q: %w", t, err)
		}
	}
	if d, ok := rowstore.Unwrap[rowstore.Deferrer](db.store); ok {
		// Otherwise a crash could undo a roll forward after the record that it came from
		// is gone.
		if err := d.Flush(ctx); err != nil {
			return report, fmt.Errorf("flushing: %w", err)
		}
	}
	for _, t := range tables {
		switch t {
		case format.TableCatalog, format.TableMembers:
		case format.TableSessions, format.TableSweeps:
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
// the one in force.
func (db *DB) publishSafePoint(ctx context.Context, safe Timestamp) (Timestamp, error) {
	if safe > 0 {
		_, err := db.applyOne(ctx, rowstore.Mutation{
			Table: format.TableCatalog, Row: format.RowCatalog,
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnSafePoint, safe)},
			Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, format.ColumnSafePoint, safe, format.TimestampOnly),
				rowstore.DeleteRange(rowstore.Write, format.ColumnSafePoint, 0, safe-1),
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

// outlast waits, by the oracle's time, until no process uses a view of the catalog that
// was begun before the call.
func (db *DB) outlast(ctx context.Context) error {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	_, lease := v.widest()
	for now := v.asOf; now.Sub(v.asOf) < lease; {
		if err := db.clock.Sleep(ctx, lease-now.Sub(v.asOf)); err != nil {
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
	picks := []rowstore.Selector{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: safe - 1, Limit: 1}}
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Selectors: picks}) {
		if err != nil {
			return resolved, err
		}
		// After a lost reply the lock may still be there, so the row is read again until
		// its locks are gone.
		for attempt := 0; len(row.Versions) > 0; attempt++ {
			for i := range row.Versions {
				v := &row.Versions[i]
				l, err := format.DecodeLock(v.Value)
				if err != nil {
					return resolved, fmt.Errorf("row %q, column %q: %w", row.Row, v.Column, err)
				}
				if _, err := db.resolveLock(ctx, Cell{table, row.Row, v.Column}, v.TS, &l, overrideLiveOwner); err != nil {
					return resolved, err
				}
				resolved++
			}
			rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: table, Row: row.Row, Selectors: picks}})
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
