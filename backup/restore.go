package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// RestoreOptions of Restore. The zero value works.
type RestoreOptions struct {
	// Progress is told how far the restore is, as in Options. First the whole file is checked; that is the first tenth.
	Progress func(Progress)
	// Verified is what Verify has found of the same file just before. Then Restore does not read the whole file before it writes. So a
	// program can check a file before it makes the store to restore into.
	Verified Info
	// Oracle and OracleName are those of percolator.WithOracle, for a store without an oracle of its own. Programs that open the
	// database afterwards need the same.
	Oracle     oracle.Oracle
	OracleName string
	// MostWait bounds the wait for an oracle that is behind the backup, because the server's clock is behind that of the
	// server where the backup was made. 0 means a minute.
	MostWait time.Duration
}

// Restore restores a backup, with its timestamps, into a store that holds nothing. No process may use the store meanwhile, also none whose Restore was thought dead (see ErrNotEmpty), and none
// that uses the database which the backup is of may use this one afterwards: a process has one or the other. The caller opens the store by
// rowstore.Open and closes it.
//
// The file is checked as a whole before anything is written, unless opts.Verified says that it was. Then timestamps are drawn from the store's oracle until they are
// above the backup's. The catalog comes last: until then, who opens the store as a database gets an error that matches
// percolator.ErrFormat. If Restore is cut off, or fails, call it again with the same backup: it goes on where it was.
//
// Errors: ErrNotEmpty if the store holds anything but a part of this backup, so also if a restore that was cut off had come to its end, and if another call ends it meanwhile, or a program makes a database there while the file is checked; if
// rows without a catalog appear in that time, the mark that a restore was begun stays beside them, and nothing else. ErrIncomplete, ErrDamaged and those of Verify, with nothing written;
// ErrOracleBehind; percolator.ErrTooLarge if a name or value is over a limit of the store; percolator.ErrInvalid for a store without an oracle, and
// bad options; those of the store, the file and ctx.
func Restore(ctx context.Context, store rowstore.Store, path string, opts RestoreOptions) (Result, error) {
	if store == nil || path == "" {
		return Result{}, invalid("Restore needs a store and a path")
	}
	if opts.MostWait == 0 {
		opts.MostWait = time.Minute
	}
	r := &restorer{store: store, opts: opts, tell: teller{to: opts.Progress}}
	switch p, ok := rowstore.Unwrap[rowstore.OracleProvider](store); {
	case (opts.Oracle == nil) != (opts.OracleName == ""), opts.MostWait < 0:
		return Result{}, invalid("an oracle and its name go together, and MostWait is not negative")
	case opts.Oracle != nil:
		r.oracle = opts.Oracle
	case ok:
		r.oracle = p.Oracle()
	default:
		return Result{}, invalid("the store has no oracle of its own; give one with RestoreOptions")
	}
	if err := r.findMarker(ctx); err != nil {
		return Result{}, err
	}
	if err := r.check(ctx, path); err != nil {
		return Result{}, err
	}
	now, err := r.prepare(ctx)
	if err != nil {
		return r.result(), err
	}
	if err := r.restore(ctx, path, now); err != nil {
		// Another try meets these again.
		if !errors.Is(err, percolator.ErrTooLarge) && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrNotEmpty) {
			err = fmt.Errorf("%w; restore the same backup again to go on", err)
		}
		return r.result(), err
	}
	r.tell.end(r.checked.end.Rows, r.checked.end.Cells, r.checked.bytes)
	return r.result(), nil
}

// check finds out what the file has, and that all of it is as it was written.
func (r *restorer) check(ctx context.Context, path string) (err error) {
	if v := r.opts.Verified; v.checked.head.ID != "" {
		r.checked = v.checked
		return nil
	}
	r.checked, err = check(ctx, path, r.part(0, 0.1))
	return err
}

// restorer is a Restore under way.
type restorer struct {
	store   rowstore.Store
	oracle  oracle.Oracle
	opts    RestoreOptions
	tell    teller
	checked checked
	limits  rowstore.Limits
	marker  format.Restoring
	stood   lastLook // when the marker was there
	resumed bool
}

func (r *restorer) result() Result {
	c := &r.checked
	return Result{ID: c.head.ID, Snapshot: c.head.Snapshot, Rows: c.end.Rows, Cells: c.end.Cells, Bytes: c.bytes, Resumed: r.resumed}
}

// part is the progress of a part of the work.
func (r *restorer) part(from, to float64) func(Progress) {
	return func(p Progress) {
		if r.opts.Progress != nil {
			p.Done = from + p.Done*(to-from)
			p.Ended = false
			r.opts.Progress(p)
		}
	}
}

// findMarker finds out that the store is empty, or holds a part of a restore.
func (r *restorer) findMarker(ctx context.Context) error {
	catalog := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
	}}
	rows, err := r.store.Read(ctx, []rowstore.RowRead{catalog})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return fmt.Errorf("backup: reading the catalog: %w", err)
	}
	if config := rows[0].Newest(rowstore.Write, format.ColumnConfig); config != nil {
		if !format.IsRestoring(config.Value) {
			return fmt.Errorf("%w: there is a database in it; if it is of this backup, the restore has come to its end", ErrNotEmpty)
		}
		if r.marker, err = format.DecodeRestoring(config.Value); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		r.resumed = true
		return nil
	}
	// Of several stores, another one may have been authoritative before.
	stores, err := rowstore.Strays(ctx, r.store, catalog)
	if err != nil {
		return fmt.Errorf("backup: looking for a database in the other stores: %w", err)
	}
	if len(stores) > 0 {
		return fmt.Errorf("%w: the store %q holds a database", ErrNotEmpty, stores[0])
	}
	return r.empty(ctx, false)
}

// empty finds out that no table holds anything, but perhaps the marker.
func (r *restorer) empty(ctx context.Context, marked bool) error {
	for t, err := range r.store.Tables(ctx) {
		if err != nil {
			return fmt.Errorf("backup: looking whether the store is empty: %w", err)
		}
		if err := r.emptyTable(ctx, t, marked); err != nil {
			return err
		}
	}
	return nil
}

// emptyTable finds out whether a table that is listed holds anything, but perhaps the marker.
func (r *restorer) emptyTable(ctx context.Context, table string, marked bool) error {
	scan := rowstore.ScanRange{Table: table, Limit: 2}
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		scan.Selectors = append(scan.Selectors, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max, Limit: 1})
	}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return fmt.Errorf("backup: looking whether the store is empty: %w", err)
		}
		if marked && table == format.TableCatalog && row.Row == format.RowCatalog {
			continue
		}
		return fmt.Errorf("%w: it holds rows of table %q", ErrNotEmpty, table)
	}
	return nil
}

// prepare finds out that this backup may be restored into the store, and returns a timestamp above all of the backup.
func (r *restorer) prepare(ctx context.Context) (percolator.Timestamp, error) {
	head := &r.checked.head
	switch {
	case r.resumed && r.marker.Backup != head.ID:
		return 0, fmt.Errorf("%w: the restore of another backup, %s, was cut off in it; this one is %s", ErrNotEmpty, r.marker.Backup, head.ID)
	case r.resumed && r.marker.Oracle != r.opts.OracleName:
		return 0, invalid("the restore was begun with the oracle %q, not %q", r.marker.Oracle, r.opts.OracleName)
	}
	return r.raise(ctx)
}

// restore writes what is left.
func (r *restorer) restore(ctx context.Context, path string, now percolator.Timestamp) error {
	if l, ok := rowstore.Unwrap[rowstore.Limiter](r.store); ok {
		r.limits = l.Limits()
	}
	if err := r.claim(ctx, now); err != nil {
		return err
	}
	if err := r.rows(ctx, path); err != nil {
		return err
	}
	return r.finish(ctx)
}

// raise draws timestamps until they are above all of the backup.
func (r *restorer) raise(ctx context.Context) (percolator.Timestamp, error) {
	want := max(r.checked.head.Snapshot, r.marker.Began)
	began := time.Now()
	for {
		now, err := r.oracle.Draw(ctx, 1)
		if err != nil {
			return 0, fmt.Errorf("backup: drawing a timestamp: %w", err)
		}
		if now > want {
			return now, nil
		}
		behind := want.Sub(now)
		if time.Since(began)+behind > r.opts.MostWait {
			// An oracle that counts in its own process takes a step of any size.
			if _, err := r.oracle.Draw(ctx, int(want-now)); err == nil { //nolint:gosec // both are at most oracle.Max
				continue
			} else if ctx.Err() != nil {
				return 0, fmt.Errorf("backup: raising the oracle: %w", err)
			}
			return 0, fmt.Errorf("%w: it is at %v, and the backup of %v: set the clock of its server right, or wait for %v", ErrOracleBehind, now, want, behind)
		}
		select {
		case <-time.After(max(min(behind, 100*time.Millisecond), time.Millisecond)):
		case <-ctx.Done():
			return 0, fmt.Errorf("backup: waiting for the oracle: %w", ctx.Err())
		}
	}
}

// claim makes sure that the store is this restore's before anything but the marker is written. The store was empty when the restore began, but to check the
// file may take minutes, in which a program may have made a database in the store, or another restore may have begun. So the first marker asks that
// nothing at all stands in its place. Once it stands nobody makes a database there, and the tables are looked at again: what was written before without a
// catalog is found then. Until that is done the marker says so, for a call that goes on.
func (r *restorer) claim(ctx context.Context, now percolator.Timestamp) error {
	if !r.resumed {
		r.marker = format.Restoring{Backup: r.checked.head.ID, Began: now, Oracle: r.opts.OracleName, Unlooked: true}
		err := r.mark(ctx, rowstore.Absent(rowstore.Write, format.ColumnConfig, 0))
		if err = r.unless(ctx, err, now); err != nil {
			return err
		}
	}
	if !r.marker.Unlooked {
		return nil
	}
	if err := r.empty(ctx, true); err != nil {
		return err
	}
	r.marker.Unlooked = false
	return r.mark(ctx, r.unended())
}

// mark notes how far the restore is. It stands in place of the catalog.
func (r *restorer) mark(ctx context.Context, condition rowstore.Condition) error {
	value, err := r.marker.Encode()
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return r.apply(ctx, []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Conditions: []rowstore.Condition{condition}, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnConfig, r.marker.Began, value),
	}}})
}

// unended asks that nothing newer stands in place of this restore's marker: a call that slept for long must not go on where another one has
// ended, since programs may work there.
func (r *restorer) unended() rowstore.Condition {
	return rowstore.Absent(rowstore.Write, format.ColumnConfig, r.marker.Began+1)
}

// finish stores the catalog in place of the marker.
func (r *restorer) finish(ctx context.Context) error {
	c := r.checked.catalog
	c.Oracle = r.opts.OracleName
	c.Observers = slices.Clone(c.Observers)
	for i := range c.Observers {
		if slices.Contains(r.checked.end.Resweep, c.Observers[i].Since) {
			c.Observers[i].Swept = 0
		}
	}
	value, err := c.Encode()
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	now, err := r.oracle.Draw(ctx, 1)
	if err != nil {
		return fmt.Errorf("backup: drawing a timestamp: %w", err)
	}
	if now <= r.marker.Began {
		return fmt.Errorf("backup: %w: it answered %v after %v", percolator.ErrOracleWentBack, now, r.marker.Began)
	}
	at := r.checked.head.Snapshot
	err = r.apply(ctx, []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Conditions: []rowstore.Condition{r.unended()}, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnConfig, now, value),
		rowstore.DeleteRange(rowstore.Write, format.ColumnConfig, 0, now-1),
		rowstore.Put(rowstore.Write, format.ColumnSafePoint, at, format.TimestampOnly),
		rowstore.Put(rowstore.Write, format.ColumnResolved, at, format.TimestampOnly),
	}}})
	return r.unless(ctx, err, now)
}

// unless forgives that a call was overtaken if it was overtaken by an attempt of its own whose answer was lost: then what it wrote in place of the catalog is there, at a
// timestamp that was drawn for it alone.
func (r *restorer) unless(ctx context.Context, err error, at percolator.Timestamp) error {
	if !errors.Is(err, errOvertaken) {
		return err
	}
	stored := false
	rerr := r.retry(ctx, func() error {
		rows, err := r.store.Read(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: format.ColumnConfig, From: at, To: at, Limit: 1},
		}}})
		if err == nil {
			err = rows[0].Err
		}
		stored = err == nil && rows[0].Newest(rowstore.Write, format.ColumnConfig) != nil
		return err
	})
	switch {
	case rerr != nil:
		return fmt.Errorf("backup: looking whether what was written is there: %w", rerr)
	case stored:
		return nil
	}
	return err
}

// errOvertaken: another call has ended the restore, or has begun it later.
var errOvertaken = fmt.Errorf("%w: another call restores into it, or has come to its end", ErrNotEmpty)

// retryFor is for how long a call is repeated whose server is away, or whose answer was lost. All that a restore writes may be written
// twice.
const retryFor = 20 * time.Second

// apply applies mutations, each until it is done.
func (r *restorer) apply(ctx context.Context, muts []rowstore.Mutation) error {
	return r.applyIf(ctx, muts, func(int) error { return nil })
}

// applyIf applies mutations, each until it is done, as long as may, which is asked before each attempt, returns no error. The first attempt is 0.
func (r *restorer) applyIf(ctx context.Context, muts []rowstore.Mutation, may func(attempt int) error) error {
	attempt := -1
	err := r.retry(ctx, func() error {
		attempt++
		if err := may(attempt); err != nil {
			return err
		}
		outs, err := r.store.Apply(ctx, muts, rowstore.ApplyOptions{Bulk: true})
		if err != nil {
			return err
		}
		left := muts[:0:0]
		for i := range outs {
			switch {
			case outs[i].Err != nil:
				left, err = append(left, muts[i]), outs[i].Err
			case !outs[i].Applied:
				return errOvertaken
			}
		}
		muts = left
		return err
	})
	if err != nil && !errors.Is(err, errOvertaken) {
		err = fmt.Errorf("backup: writing to the store: %w", err)
	}
	return err
}

// retry repeats a call until it is done, or has failed for good.
func (r *restorer) retry(ctx context.Context, call func() error) error {
	began := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := call()
		again := errors.Is(err, rowstore.ErrUnavailable) || errors.Is(err, rowstore.ErrAmbiguous)
		if !again || ctx.Err() != nil || time.Since(began) > retryFor {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
