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

// findResume reads the incomplete file up to where it is whole, and takes the hold again. If not even the head is whole, nothing was
// done yet.
func (w *writer) findResume(ctx context.Context) error {
	if _, err := w.file.Seek(0, 0); err != nil {
		return fmt.Errorf("backup: looking at the incomplete file: %w", err)
	}
	r, err := newReader(w.file)
	if err != nil {
		return err
	}
	defer r.close()
	head, err := r.begin()
	switch {
	case errors.Is(err, ErrIncomplete):
		return nil
	case err != nil:
		return fmt.Errorf("%w; it is %s: remove it to begin anew", err, w.path+Incomplete)
	}
	w.head = head
	at := place{at: r.at, last: r.last}
	for {
		kind, b, err := r.next()
		if errors.Is(err, ErrIncomplete) {
			break // the frame that was being written when the backup was cut off
		}
		if err == nil && kind == frameEnd {
			at.at, at.last, w.ended = r.at, r.last, true
			break
		}
		if err == nil {
			err = at.pass(r, b)
		}
		if errors.Is(err, ErrDamaged) {
			// Of a machine that lost its power, the end of the file may be anything. What comes before is whole.
			break
		}
		if err != nil {
			return err
		}
	}
	w.resume, w.after, w.grace, w.rows, w.cells = at.head, at.after, at.head.grace, at.rows, at.cells
	if err := w.takeAgain(ctx); err != nil {
		return err
	}
	w.resumed = true
	return w.rewind(at.at, at.last)
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

// takeAgain takes the hold of the backup that was cut off. It must stand: that shows that the history is there, and that this is the
// database that the backup is of.
func (w *writer) takeAgain(ctx context.Context) error {
	name := holdName(w.head.ID)
	holds, err := w.db.Holds(ctx)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	i := slices.IndexFunc(holds, func(h percolator.HoldInfo) bool { return h.Name == name && h.At == w.head.Snapshot })
	if i < 0 && w.ended {
		return w.mayName(ctx)
	}
	if i < 0 {
		return fmt.Errorf("%w: the database has no hold %q: either its time was over, and history may be gone, or this is another database; remove %s and begin anew",
			ErrLapsed, name, w.path+Incomplete)
	}
	switch w.hold, err = w.db.Hold(ctx, name, w.head.Snapshot, w.opts.Hold); {
	case errors.Is(err, percolator.ErrSnapshotTooOld): // it has ended since it was listed
		return fmt.Errorf("%w: %w", ErrLapsed, err)
	case err != nil:
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// mayName tells whether a file that is complete, and whose hold was released, may get its name now. The caller asks for a backup of this database at the present: the
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
