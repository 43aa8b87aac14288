package percolator

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// CellVersion is a committed version of a cell. See DB.History.
type CellVersion struct {
	// Commit is the commit timestamp of the transaction that wrote it.
	Commit Timestamp
	// Value belongs to the caller. An empty value is an empty slice; it is nil if the cell was deleted.
	Value []byte
	// Deleted tells that the transaction deleted the cell.
	Deleted bool
}

// How much of a history is read at once.
const (
	historyPage  = 64 // versions, with values of up to 255 bytes
	historyLongs = 8  // longer values
)

// History visits the versions of c that were committed from from to to, both included, the
// newest first. A delete is a version too. The reads are made in pages, so a history may have any
// length, and the caller may stop at any time.
//
// to may be 0 for the present. A later one is ErrSnapshotInFuture, because later commits could
// change the answer. from may be 0 for all that is kept: then the last version is the one that the
// cell had at the safe point (see SafePoint, TableSafePoint and Hold), if it had one. If from is
// given and lies at or below the safe point, the versions that are missing cannot be told from
// those that never were: the error matches ErrSnapshotTooOld. It may come after some versions, because a
// collection may come in between; those are right. The same error says that to lies below the safe point
// and nothing from then is left.
//
// At most one error is yielded, as the last step. Like a read at the snapshot of to, History waits for
// the lock of a transaction that may be committing at or below to, and resolves one that a dead process
// left. Other errors: ErrInvalid for a bad name or a from above to, ErrTooLarge, ErrClosed, those of the context
// and of the store. It may be called concurrently.
func (db *DB) History(ctx context.Context, c Cell, from, to Timestamp) iter.Seq2[CellVersion, error] {
	return func(yield func(CellVersion, error) bool) {
		if err := db.checkCell(&c); err != nil {
			yield(CellVersion{}, called("History", err))
			return
		}
		if to != 0 && from > to {
			yield(CellVersion{}, fmt.Errorf("percolator: History: %w: from %v lies above to %v", ErrInvalid, from, to))
			return
		}
		h := &history{db: db, cell: c.stored(), from: from, to: to}
		for more := true; more; {
			var versions []CellVersion
			err := db.during(ctx, func(ctx context.Context) (err error) {
				versions, err = h.next(ctx)
				return err
			})
			if err != nil {
				yield(CellVersion{}, fmt.Errorf("percolator: reading the history of %v: %w", c, err))
				return
			}
			for i := range versions {
				if !yield(versions[i], nil) {
					return
				}
			}
			more = !h.done
		}
	}
}

// history is one visit of the versions of a cell, from the newest to the oldest.
//
// A collection removes the oldest versions first, and of those at or below its safe point it
// keeps the newest. So what a page shows above the safe point is complete, and so is the first version at or
// below it. What the page shows below that one may have gaps.
type history struct {
	db       *DB
	cell     Cell      // stored
	from, to Timestamp // to moves on with each page
	asked    Timestamp // to, as it was at the beginning
	begun    bool
	page     []rowstore.Version // read and not yet handed out
	whole    bool               // there is no other page
	last     Timestamp          // of the version that was handed out last
	done     bool
}

// next returns the next few versions.
func (h *history) next(ctx context.Context) ([]CellVersion, error) {
	if len(h.page) == 0 {
		if err := h.read(ctx); err != nil {
			return nil, err
		}
	}
	part := h.page[:min(historyLongs, len(h.page))]
	h.page = h.page[len(part):]
	versions, missing, err := h.values(ctx, part)
	if err != nil {
		return nil, err
	}
	safe, err := h.db.safePointAfter(ctx, h.cell.span())
	if err != nil {
		return nil, err
	}
	if h.from != 0 && h.from <= safe {
		return nil, h.tooOld(h.from, safe)
	}
	h.done = h.whole && len(h.page) == 0
	for i := range versions {
		if h.last != 0 && h.last <= safe {
			h.done = true
			return versions[:i], nil
		}
		switch {
		case missing[i] == 0:
		case h.last == 0 && h.asked < safe:
			return nil, h.tooOld(h.asked, safe) // it was collected since the page was read
		default:
			return nil, missingData(h.cell, missing[i])
		}
		h.last = versions[i].Commit
	}
	if h.done && h.last == 0 && h.asked < safe {
		return nil, h.tooOld(h.asked, safe) // what the cell had then may be gone
	}
	return versions, nil
}

func (h *history) tooOld(at, safe Timestamp) error {
	return &SnapshotTooOldError{Snapshot: at, SafePoint: safe, Table: h.db.ownSafePoint(h.cell.Table, safe)}
}

// read reads the next page. The first one shows no lock at or below to: a transaction that
// locks the cell afterwards commits above to, which was drawn before.
func (h *history) read(ctx context.Context) error {
	var picks []rowstore.Selector
	if !h.begun {
		now, err := h.db.draw(ctx)
		if err != nil {
			return err
		}
		if h.to == 0 {
			h.to = now
		}
		if h.to > now {
			return fmt.Errorf("%w: it was asked for up to %v, and the oracle is at %v", ErrSnapshotInFuture, h.to, now)
		}
		if h.from > h.to {
			return fmt.Errorf("%w: it was asked for from %v on, and the oracle is at %v", ErrSnapshotInFuture, h.from, now)
		}
		h.asked = h.to
		picks = append(picks, rowstore.Selector{Family: rowstore.Lock, Column: h.cell.Column, To: h.to, Limit: 1})
	}
	picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: h.cell.Column, From: h.from, To: h.to, Limit: historyPage})
	rows, _, err := h.db.readSettled(ctx, []rowstore.RowRead{{Table: h.cell.Table, Row: h.cell.Row, Selectors: picks}}, &snapshot{set: true, start: h.to})
	if err != nil {
		return err
	}
	h.begun = true
	h.page = slices.Clone(rows[0].All(rowstore.Write, h.cell.Column))
	h.whole = len(h.page) < historyPage || h.page[len(h.page)-1].TS <= max(h.from, 1)
	if !h.whole {
		h.to = h.page[len(h.page)-1].TS - 1
	}
	return nil
}

// values decodes versions. missing names the transaction of one whose long value is not
// there: it may have been collected.
func (h *history) values(ctx context.Context, part []rowstore.Version) (versions []CellVersion, missing []Timestamp, err error) {
	var long []longValue
	var longAt []int
	versions, missing = make([]CellVersion, len(part)), make([]Timestamp, len(part))
	for i := range part {
		w, err := format.DecodeWrite(part[i].Value)
		if err != nil {
			return nil, nil, fmt.Errorf("the version at %d: %w", uint64(part[i].TS), err)
		}
		versions[i] = CellVersion{Commit: part[i].TS, Deleted: w.Kind == format.KindDelete}
		switch {
		case versions[i].Deleted:
		case w.Long:
			long, longAt = append(long, longValue{h.cell, w.Start}), append(longAt, i)
		default:
			versions[i].Value = slices.Clone(notNil(w.Value))
		}
	}
	values, err := h.db.longValues(ctx, long)
	if err != nil {
		return nil, nil, err
	}
	for i, at := range longAt {
		if versions[at].Value = values[i]; values[i] == nil {
			missing[at] = long[i].start
		}
	}
	return versions, missing, nil
}

// safePointAfter returns the safe point of what was read that the answers go by which this process has
// got before the call: nothing above it was collected when they were made.
func (db *DB) safePointAfter(ctx context.Context, read span) (Timestamp, error) {
	v, err := db.viewAfter(ctx)
	if err != nil {
		return 0, err
	}
	return v.safePointIn(read), nil
}

// viewAfter returns the view that safePointAfter goes by, for several things that were read before the call.
func (db *DB) viewAfter(ctx context.Context) (*catalogView, error) {
	now, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	v := db.known()
	db.refreshSoon(v, db.clock.Now())
	if v.holds(now) {
		return v, nil
	}
	return db.loadCatalog(ctx)
}

// ownSafePoint is the public name of a table whose own safe point is safe, and "" if the
// database's is.
func (db *DB) ownSafePoint(table string, safe Timestamp) string {
	if safe <= db.known().safePoint {
		return ""
	}
	return Cell{Table: table}.public().Table
}
