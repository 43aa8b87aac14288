package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Who goes by which revision of the catalog. A process that publishes an observer may
// always go on after a catalog lease, when every older view is over. It may go on sooner
// if it knows that nobody goes by an older view. So each process has a record in the
// catalog's row (format.Use) that names the oldest revision which it may go by:
//
//   - A view may be used only if the same read of the row showed the record, not
//     condemned, and of no later revision. So whoever publishes a later revision finds
//     the record, or a later one.
//   - The record names a later revision only when no commit under way goes by an older
//     one any more: its timestamp is drawn, or it certainly takes no effect.
//   - A one-phase commit whose fate is unknown counts as under way until its view ends.
//   - The record of a process that died is condemned first. It is removed if it still is
//     condemned a lease later, when every view is over that was read before.
//
// See "The catalog" in docs/architecture.md.

// uses is what this process knows of its own record.
type uses struct {
	mu       sync.Mutex
	id       string                  // the column of the record
	open     []use                   // of commits under way; one or two, so a list is quicker than a map
	doubtful map[Timestamp]Timestamp // the same for those of unknown fate: when their views end
	stored   Timestamp               // the revision that the record names, or an older one; 0 for none
	newest   Timestamp               // the greatest timestamp of a version of the record, sent or seen
	moving   bool                    // somebody is at moveUse
}

// use counts the commits under way that go by views of a revision. There is at least one.
type use struct {
	revision Timestamp
	commits  int
}

// used returns the index in open of a revision, -1 if no commit goes by it. u.mu is held.
func (u *uses) used(revision Timestamp) int {
	return slices.IndexFunc(u.open, func(o use) bool { return o.revision == revision })
}

func (u *uses) init(db *DB) {
	u.id = db.uniqueID() // as programs of before
	if !db.opt.noHints {
		u.id = format.UsePrefix + u.id
	}
	u.doubtful = map[Timestamp]Timestamp{}
}

// beginUse returns the newest view of the catalog, for a commit that ends its use.
func (db *DB) beginUse() *catalogView {
	u := &db.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	v := db.known()
	i := u.used(v.revision)
	if i < 0 {
		i, u.open = len(u.open), append(u.open, use{revision: v.revision})
	}
	u.open[i].commits++
	return v
}

// endUse ends a use of a view. doubtful tells that a request which goes by the view may
// still take effect.
func (db *DB) endUse(v *catalogView, doubtful bool) {
	u := &db.uses
	u.mu.Lock()
	i := u.used(v.revision)
	if u.open[i].commits--; u.open[i].commits == 0 {
		u.open = slices.Delete(u.open, i, i+1)
	}
	if doubtful {
		u.doubtful[v.revision] = max(u.doubtful[v.revision], v.until())
	}
	due := u.due(db.known())
	u.mu.Unlock()
	if due && !db.background(db.moveUse) {
		u.mu.Lock()
		u.moving = false
		u.mu.Unlock()
	}
}

// oldest returns the oldest revision that this process goes by, if v is its newest view.
// It never goes back.
func (u *uses) oldest(v *catalogView) Timestamp {
	least := v.revision
	for i := range u.open {
		least = min(least, u.open[i].revision)
	}
	for r := range u.doubtful {
		least = min(least, r)
	}
	return least
}

// due tells whether somebody may be waiting for the record, and it may name a later
// revision. The caller must then call moveUse. One is enough: each commit that ends while the
// store takes its time would send the same again. u.mu is held.
func (u *uses) due(v *catalogView) bool {
	if u.moving || !v.awaited || u.oldest(v) <= u.stored {
		return false
	}
	u.moving = true
	return true
}

// install makes v the view that new commits go by.
func (db *DB) install(v *catalogView) (due bool) {
	u := &db.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	db.view.Store(v)
	for r, until := range u.doubtful {
		if until < v.asOf {
			delete(u.doubtful, r)
		}
	}
	return u.due(v)
}

// stands tells whether a reading of the catalog's row shows this process's record, so
// that v may be used.
func (u *uses) stands(row *rowstore.Row, v *catalogView) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	version := row.Newest(rowstore.Mark, u.id)
	if version == nil {
		u.stored = 0
		return false
	}
	use, err := format.DecodeUse(version.Value)
	if version.TS >= u.newest {
		u.newest, u.stored = version.TS, use.Revision
	}
	return err == nil && !use.Condemned && use.Revision <= v.revision
}

// storeUse stores the record. v is the view that was read last.
func (db *DB) storeUse(ctx context.Context, v *catalogView) error {
	u := &db.uses
	u.mu.Lock()
	at := v.asOf
	for at <= u.newest { // each version has a timestamp that nothing else has
		u.mu.Unlock()
		var err error
		if at, err = db.draw(ctx); err != nil {
			return err
		}
		u.mu.Lock()
	}
	u.newest = at
	revision := u.oldest(v)
	if known := db.known(); known != nil {
		revision = min(revision, known.revision)
	}
	u.mu.Unlock()
	_, err := db.applyOne(ctx, rowstore.Mutation{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Mark, u.id, at, format.Use{Revision: revision}.Encode()),
	}})
	if err != nil {
		return fmt.Errorf("storing which catalog this process goes by: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stored = max(u.stored, revision)
	return nil
}

// moveUse stores the record so that others need not wait for this process, until it is not due
// any more. If that fails, they wait longer.
func (db *DB) moveUse(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, db.backgroundTimeout())
	defer cancel()
	u := &db.uses
	for more := true; more; {
		err := db.storeUse(ctx, db.known())
		if err != nil {
			db.log.Debug("others wait for this process until its view of the catalog ends", "err", err)
		}
		u.mu.Lock()
		u.moving = false
		more = err == nil && u.due(db.known())
		u.mu.Unlock()
	}
}

// removeUse removes the record when the process goes by no view any more. What fails is
// left to garbage collection.
func (db *DB) removeUse(ctx context.Context) {
	u := &db.uses
	u.mu.Lock()
	remove := u.newest > 0 && len(u.open) == 0 && len(u.doubtful) == 0
	u.mu.Unlock()
	if !remove {
		return
	}
	_, err := db.applyOne(ctx, rowstore.Mutation{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Mark, u.id, 0, oracle.Max),
	}})
	if err != nil {
		db.log.Debug("the record of the catalog that this process went by is left to garbage collection", "err", err)
	}
}

// readUses reads the records of all processes.
func (db *DB) readUses(ctx context.Context) ([]rowstore.Version, error) {
	rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Mark, Column: rowstore.AllColumns, To: oracle.Max, Limit: 1},
	}}})
	if err != nil {
		return nil, fmt.Errorf("reading who goes by which catalog: %w", err)
	}
	return rows[0].Versions, nil
}

// usedBefore tells whether some process may go by a revision older than the given one.
func (db *DB) usedBefore(ctx context.Context, revision Timestamp) (bool, error) {
	records, err := db.readUses(ctx)
	if err != nil {
		return false, err
	}
	for i := range records {
		// What cannot be read may be of any revision.
		if use, err := format.DecodeUse(records[i].Value); err != nil || use.Revision < revision {
			return true, nil
		}
	}
	return false, nil
}

// olderPrograms tells whether a process is at work whose program knows no catalog of version 5.
func (db *DB) olderPrograms(ctx context.Context) (bool, error) {
	records, err := db.readUses(ctx)
	return slices.ContainsFunc(records, func(r rowstore.Version) bool { return !strings.HasPrefix(r.Column, format.UsePrefix) }), err
}

// condemned is a record that is removed unless its process stores it anew.
type condemned struct {
	column string
	at     Timestamp
}

// condemnUses condemns the records of all other processes and returns those that are. A
// process that lives stores its record anew when it reads the catalog.
func (db *DB) condemnUses(ctx context.Context) ([]condemned, error) {
	records, err := db.readUses(ctx)
	if err != nil {
		return nil, err
	}
	at, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	var all []condemned
	var edits []rowstore.Edit
	for i := range records {
		r := &records[i]
		use, err := format.DecodeUse(r.Value)
		switch {
		case r.Column == db.uses.id || errors.Is(err, rowstore.ErrFormat):
			continue
		case use.Condemned:
			all = append(all, condemned{r.Column, r.TS})
			continue
		case err != nil:
			use.Revision = 1 // a record that nobody can read is as old as can be
		}
		use.Condemned = true
		// One that its process has stored since at stays: it is later. One from before is replaced by
		// an older revision, which makes others wait longer, and its process stores it anew.
		edits = append(edits, rowstore.Put(rowstore.Mark, r.Column, at, use.Encode()))
		all = append(all, condemned{r.Column, at})
	}
	if err := db.editUses(ctx, edits); err != nil {
		return nil, fmt.Errorf("condemning the records of processes: %w", err)
	}
	return all, nil
}

// buryUses removes records that are still condemned. The caller has waited until the
// views are over that were read before condemnUses returned. What a process has stored since is
// later than the range that is removed.
func (db *DB) buryUses(ctx context.Context, all []condemned) error {
	edits := make([]rowstore.Edit, len(all))
	for i, r := range all {
		edits[i] = rowstore.DeleteRange(rowstore.Mark, r.column, 0, r.at)
	}
	if err := db.editUses(ctx, edits); err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
		return fmt.Errorf("removing the records of processes that have ended: %w", err)
	}
	return nil
}

// editUses edits records of other processes, many in a call: thousands may have died.
func (db *DB) editUses(ctx context.Context, edits []rowstore.Edit) error {
	for part := range slices.Chunk(edits, db.rowOperations()) {
		if _, err := db.applyOne(ctx, rowstore.Mutation{Table: format.TableCatalog, Row: format.RowCatalog, Edits: part}); err != nil {
			return err
		}
	}
	return nil
}

// firstLook is how long a publisher waits before it looks again whether others still go
// by an older view, as a part of the lease; each further wait is twice as long.
const firstLook = 1000

// outlastOlder waits until no process goes by a view of the catalog that is older than
// revision: the records say so, or a lease has passed. It returns a timestamp that is
// greater than those of all commits that went by such a view. The caller has read the
// revision. Meanwhile the catalog is read again and again, and shown to needless, which
// may end the wait.
func (db *DB) outlastOlder(ctx context.Context, revision Timestamp, needless func(*catalogView) bool) (at Timestamp, err error) {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return 0, err
	}
	// This view was begun after the revision could be read. Older views end before it does.
	_, lease := v.widest()
	end := v.asOf.Add(lease) + 1
	for wait := max(lease/firstLook, time.Millisecond); !needless(v); wait *= 2 {
		older, err := db.usedBefore(ctx, revision)
		if err != nil {
			return 0, err
		}
		if at, err = db.draw(ctx); err != nil || !older || at >= end {
			return at, err
		}
		if err := db.clock.Sleep(ctx, max(min(wait, lease/4, end.Sub(at)), time.Millisecond)); err != nil {
			return 0, err
		}
		if v, err = db.loadCatalog(ctx); err != nil {
			return 0, err
		}
	}
	return 0, nil
}
