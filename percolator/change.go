package percolator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What an observer of old values is told, and what the function of any observer may say of its
// run. See "Old values" in docs/architecture.md.

// Change is what an observer has not seen yet of a cell: everything since its last run for the cell
// that took effect, as one change. So a total is kept by adding New and taking Old away, without a
// cell in which to remember what was added.
type Change struct {
	// Cell is the cell that changed.
	Cell Cell
	// Old is the value that the observer saw when its last run for the cell took effect, and New
	// is the newest one. A value that is there is never nil. The slices belong to the function. Old
	// may equal New: the cell was set back, or a transaction notified it (see Txn.Notify).
	Old, New []byte
	// OldFound and NewFound tell whether the cell had a value. A deleted cell has none.
	OldFound, NewFound bool
	// First tells that no run of the observer has taken effect for this cell since the observer was
	// registered. Then OldFound is false. It is also so for a cell that was deleted so long ago,
	// and seen, that garbage collection has removed all of it.
	First bool
	// Commit is the commit timestamp of the newest write of the cell, 0 if it has none.
	Commit Timestamp
	// Due is when a timer of the cell was due, in whole milliseconds and UTC, if one is among what the observer has not
	// seen (Txn.NotifyAt). Otherwise it is the zero Time.
	Due time.Time
	// Attempt counts the calls for this change from 1 on: it is one more than the failures
	// that are on record. Conflicts are not counted.
	Attempt int
}

// change makes the Change of observer i of a view for its run. A conflict tells that another run
// has taken effect meanwhile.
func (w *Worker) change(ctx context.Context, tx *Txn, i int, view *cellView) (*Change, error) {
	ch := &Change{Cell: view.cell.public(), Attempt: 1, First: view.acks[i] == 0}
	if f := &view.failures[i]; f.Change == view.change {
		ch.Attempt = f.Attempts + 1
	}
	var newest, old *rowstore.Version
	if len(view.writes) > 0 {
		newest = &view.writes[0]
		ch.Commit = newest.TS
	}
	if !ch.First {
		var err error
		if old, err = w.seenBy(ctx, i, view); err != nil {
			return nil, err
		}
	}
	var err error
	if ch.New, ch.NewFound, err = w.valueOf(ctx, tx, view.cell, newest); err != nil {
		return nil, err
	}
	if old != nil && newest != nil && old.TS == newest.TS {
		ch.Old, ch.OldFound = slices.Clone(ch.New), ch.NewFound
	} else if ch.Old, ch.OldFound, err = w.valueOf(ctx, tx, view.cell, old); err != nil {
		return nil, err
	}
	tx.noteRead(view.cell)
	return ch, nil
}

// seenBy returns the version of the cell that observer i saw last, which has acknowledged
// something; nil if there was none. The two newest versions nearly always show it: reads find
// the newest version at or below a timestamp, or none, whatever was collected. Otherwise the cell has
// changed more than once since, or a collection has moved that version.
func (w *Worker) seenBy(ctx context.Context, i int, view *cellView) (*rowstore.Version, error) {
	acked := view.acks[i]
	for j := range view.writes {
		if view.writes[j].TS <= acked {
			return &view.writes[j], nil
		}
	}
	c, name := view.cell, view.names[i]
	ack, seen := format.AckColumn(name, c.Column), format.SeenColumn(name, c.Column)
	rows, err := w.db.readRows(ctx, []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: c.Column, To: acked, Limit: 1},
		{Family: rowstore.Write, Column: seen, To: acked, Limit: 1},
		{Family: rowstore.Write, Column: ack, To: oracle.Max, Limit: 1},
	}}})
	if err != nil {
		return nil, fmt.Errorf("looking for what the observer saw last: %w", err)
	}
	if now := rows[0].Newest(rowstore.Write, ack); now == nil || now.TS != view.ackedAt[i] {
		// What that acknowledgment saw may be gone.
		return nil, &ConflictError{Cell: c.public(), Reason: "another run for the cell took effect"}
	}
	old, kept := rows[0].Newest(rowstore.Write, c.Column), rows[0].Newest(rowstore.Write, seen)
	if old == nil || kept != nil && kept.TS > old.TS {
		return kept, nil
	}
	return old, nil
}

// valueOf returns the value of a version of a cell; nil stands for no version.
func (w *Worker) valueOf(ctx context.Context, tx *Txn, c Cell, v *rowstore.Version) (value []byte, found bool, err error) {
	if v == nil {
		return nil, false, nil
	}
	wv, err := format.DecodeWrite(v.Value)
	if err != nil || wv.Kind != format.KindPut {
		return nil, false, err
	}
	if !wv.Long {
		return append(make([]byte, 0, len(wv.Value)), wv.Value...), true, nil
	}
	values, err := w.db.longValues(ctx, []longValue{{c, wv.Start}})
	switch {
	case err != nil:
		return nil, false, err
	case values[0] != nil:
		return values[0], true, nil
	}
	// It was collected since the view: either the snapshot is too old, or the observer has
	// acknowledged something newer.
	if err := w.db.checkSnapshot(ctx, tx.start, c.span()); err != nil {
		return nil, false, err
	}
	now, err := w.db.readRows(ctx, []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: format.AckColumn(tx.run.observer, c.Column), From: tx.start, To: oracle.Max, Limit: 1}}}})
	if err == nil && len(now[0].Versions) > 0 {
		err = &ConflictError{Cell: c.public(), Reason: "another run for the cell took effect"}
	}
	if err == nil {
		err = missingData(c, wv.Start)
	}
	return nil, false, err
}

// lockUnchanged makes a lock of what a run writes to its own cell, if that is the value which the
// cell has. Otherwise the observer would set itself off for ever.
func (w *Worker) lockUnchanged(ctx context.Context, tx *Txn, view *cellView) error {
	own := tx.writes.find(view.cell)
	if own == nil || own.kind == format.KindLock {
		return nil
	}
	var newest *rowstore.Version
	if len(view.writes) > 0 {
		newest = &view.writes[0]
	}
	if own.long() && newest == nil {
		return nil
	}
	value, found, err := w.valueOf(ctx, tx, view.cell, newest)
	if err != nil {
		return readFailed(ctx, err)
	}
	if found == (own.kind == format.KindPut) && bytes.Equal(value, own.value) {
		own.kind, own.value = format.KindLock, nil
	}
	return nil
}

// mostRetryAfter is the longest wait that RetryAfter asks for.
const mostRetryAfter = 30 * 24 * time.Hour

// RetryAfter returns an error with which the function of an observer ends a run that is to be
// repeated later: what the run has written is discarded, and the function is called again after d. It is
// no failure and brings no run nearer to being parked. The time is stored, so it also holds for
// other processes. If the cell changes meanwhile, the function is called for that at once. If d is
// 0 or negative, it is called again at once; the longest wait is 30 days. The error may be wrapped.
func RetryAfter(d time.Duration) error { return &retryError{after: min(d, mostRetryAfter)} }

// retryError is what RetryAfter returns.
type retryError struct{ after time.Duration }

func (e *retryError) Error() string {
	return fmt.Sprintf("percolator: the observer asks to be called again after %v", max(e.after, 0))
}

// Park returns an error with which the function of an observer ends a run that would fail again
// however often it was repeated: what it has written is discarded, and the run is parked without a further
// attempt, with err, which may be nil. It waits for Release, or for another change of the cell. The
// error matches what err matches, and may be wrapped.
func Park(err error) error { return &parkError{cause: err} }

// parkError is what Park returns.
type parkError struct{ cause error }

func (e *parkError) Error() string {
	if e.cause == nil {
		return "percolator: the observer parked the run"
	}
	return "percolator: the observer parked the run: " + e.cause.Error()
}

func (e *parkError) Unwrap() error { return e.cause }

// asksToPark and asksToRetry tell what a function asks for by its error.
func asksToPark(err error) bool {
	var e *parkError
	return errors.As(err, &e)
}

func asksToRetry(err error) (after time.Duration, ok bool) {
	var e *retryError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.after, true
}
