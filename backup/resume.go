package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// place is an end of a frame to which a backup may go back.
type place struct {
	at          int64
	last        sum
	head        blockHead
	after       string
	rows, cells int64
}

// reopen reads the head of the incomplete file, and takes the hold again before the rest is read, which may take longer than the hold. If not even the head
// is whole, nothing was done yet.
func (w *writer) reopen(ctx context.Context) error {
	if _, err := w.file.Seek(0, 0); err != nil {
		return fmt.Errorf("backup: looking at the incomplete file: %w", err)
	}
	r, err := newReader(w.file)
	if err != nil {
		return err
	}
	head, err := r.begin()
	if err != nil {
		r.close()
	}
	switch {
	case errors.Is(err, ErrIncomplete):
		return nil
	case err != nil:
		return fmt.Errorf("%w; it is %s: remove it to begin anew", err, w.path+Incomplete)
	}
	w.head, w.old = head, r
	return w.takeAgain(ctx)
}

// findResume reads the incomplete file up to where it is whole, and makes that last.
func (w *writer) findResume(ctx context.Context) error {
	at, err := w.whole(ctx)
	if err != nil {
		return err
	}
	switch {
	case w.lapsed != nil && !w.ended:
		return w.lapsed
	case w.hold == nil:
		if err := w.mayName(ctx); err != nil {
			return err
		}
	}
	w.resume, w.after, w.grace, w.rows, w.cells = at.head, at.after, at.head.grace, at.rows, at.cells
	w.resumed = true
	if err := w.rewind(at.at, at.last); err != nil {
		return err
	}
	// The call that wrote it may have died before it was synced.
	return w.sync()
}

// whole reads the incomplete file up to where it is whole.
func (w *writer) whole(ctx context.Context) (place, error) {
	r := w.old
	at := place{at: r.at, last: r.last}
	for {
		if err := ctx.Err(); err != nil {
			return at, fmt.Errorf("backup: reading the incomplete file: %w", err)
		}
		kind, b, err := r.next()
		if err == nil && kind == frameEnd {
			at.at, at.last, w.ended = r.at, r.last, true
			return at, nil
		}
		if err == nil {
			err = at.pass(r, b)
		}
		// A frame that ends too early was being written when the backup was cut off. Of a machine that lost its power, the end of the file may be
		// anything. What comes before is whole.
		if errors.Is(err, ErrIncomplete) || errors.Is(err, ErrDamaged) {
			return at, nil
		}
		if err != nil {
			return at, err
		}
		w.tell.progress(at.rows, at.cells, r.at, 0)
	}
}

// pass notes that a block is whole. The notifications before and after the rows are looked at in one go: a backup goes back to where
// they begin.
func (p *place) pass(r *reader, raw []byte) error {
	head, rows, err := decodeBlock(raw)
	if err != nil || head.phase != phaseRows {
		return err
	}
	*p = place{at: r.at, last: r.last, head: head, rows: head.rows, cells: head.cells}
	if len(rows) > 0 {
		p.after = rows[len(rows)-1].Row
	}
	return nil
}

// takeAgain takes the hold of the backup that was cut off. It must stand, and no row be erased since, or the backup has lapsed, unless it is complete. That it stands
// shows that the history is there, and that this is the database that the backup is of.
func (w *writer) takeAgain(ctx context.Context) error {
	name := holdName(w.head.ID)
	holds, err := w.db.Holds(ctx)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if !slices.ContainsFunc(holds, func(h percolator.HoldInfo) bool { return h.Name == name && h.At == w.head.Snapshot }) {
		w.lapsed = fmt.Errorf("%w: the database has no hold %q: either its time was over, and history may be gone, or this is another database; remove %s and begin anew",
			ErrLapsed, name, w.path+Incomplete)
		return nil
	}
	switch w.hold, err = w.db.Hold(ctx, name, w.head.Snapshot, w.opts.Hold); {
	case errors.Is(err, percolator.ErrSnapshotTooOld): // it has ended since it was listed
		w.lapsed = fmt.Errorf("%w: %w", ErrLapsed, err)
		return nil
	case err != nil:
		return fmt.Errorf("backup: %w", err)
	}
	err = w.erasedSince(ctx)
	if errors.Is(err, ErrLapsed) {
		w.lapsed = err
		return nil
	}
	return err
}

// mayName tells whether a file that is complete, and whose hold is over, may get its name now. The caller asks for a backup of this database at the present: the
// file must not be older than a hold, and its catalog must be the one that the database has.
func (w *writer) mayName(ctx context.Context) error {
	now, err := w.db.Now(ctx)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	catalog, err := readCatalog(ctx, w.db)
	if err != nil {
		return err
	}
	if catalog.TS != w.head.Revision || now.Sub(w.head.Snapshot) > w.opts.Hold {
		return fmt.Errorf("%w: %s is a complete backup of %v, but old, or perhaps of another database: give it another name or remove it, and begin anew",
			ErrLapsed, w.path+Incomplete, w.head.Snapshot.Time().Format(time.RFC3339))
	}
	return nil
}
