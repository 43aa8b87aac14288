package backup

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The second look at rows: for long values that the first one did not show, for what observers of old values saw last,
// and for runs from after the snapshot.

// mostAgain is how many rows are looked at again in one call.
const mostAgain = 128

// lookAgain answers what some of the rows ask.
func (k *keeper) lookAgain(ctx context.Context, rows []keptRow, which []int) error {
	for part := range slices.Chunk(which, mostAgain) {
		// What an observer saw last may have a long value. So there may be another round.
		for len(part) > 0 {
			reads := make([]rowstore.RowRead, len(part))
			for i, n := range part {
				reads[i] = k.readAgain(&rows[n])
			}
			read, err := k.store.Read(ctx, reads)
			if err != nil {
				return fmt.Errorf("reading %d rows again: %w", len(reads), err)
			}
			var left []int
			for i, n := range part {
				if read[i].Err != nil {
					return fmt.Errorf("reading row %q of table %q again: %w", read[i].Row, read[i].Table, read[i].Err)
				}
				if err := k.answer(ctx, &rows[n], &read[i]); err != nil {
					return fmt.Errorf("row %q of table %q: %w", read[i].Row, read[i].Table, err)
				}
				if len(rows[n].asks) > 0 {
					left = append(left, n)
				}
			}
			part = left
		}
	}
	return nil
}

func (k *keeper) readAgain(r *keptRow) rowstore.RowRead {
	read := rowstore.RowRead{Table: r.row.Table, Row: r.row.Row}
	for _, a := range r.asks {
		switch {
		case a.long != 0:
			read.Selectors = append(read.Selectors, rowstore.Selector{Family: rowstore.Data, Column: a.column, From: a.long, To: a.long})
		case a.unexplained:
			for _, column := range []string{a.column, format.AckColumn(a.seenBy, a.column), format.FailureColumn(a.seenBy, a.column)} {
				read.Selectors = append(read.Selectors, rowstore.Selector{Family: rowstore.Write, Column: column, From: k.at + 1, To: k.grace})
			}
		default:
			read.Selectors = append(read.Selectors,
				rowstore.Selector{Family: rowstore.Write, Column: a.column, To: a.acked, Limit: 1},
				rowstore.Selector{Family: rowstore.Write, Column: format.SeenColumn(a.seenBy, a.column), To: a.acked, Limit: 1})
		}
	}
	return read
}

func (k *keeper) answer(ctx context.Context, r *keptRow, read *rowstore.Row) error {
	asks := r.asks
	r.asks = nil
	for _, a := range asks {
		var err error
		switch {
		case a.long != 0:
			data := read.At(rowstore.Data, a.column, a.long)
			if data == nil {
				return fmt.Errorf("%w: column %q: the value of %v is missing", percolator.ErrCorrupt, a.column, a.long)
			}
			r.keep = append(r.keep, *data)
		case a.unexplained:
			err = k.weak(r, read, a)
		default:
			err = k.seen(ctx, r, read, a)
		}
		if err != nil {
			return fmt.Errorf("column %q: %w", a.column, err)
		}
	}
	return nil
}

// seen keeps what an observer of old values saw last, where a collection with the snapshot as its safe point would have put it.
func (k *keeper) seen(ctx context.Context, r *keptRow, read *rowstore.Row, a ask) error {
	keptIn := format.SeenColumn(a.seenBy, a.column)
	old := newestTo(read, a.column, a.acked)
	if v := newestTo(read, keptIn, a.acked); v != nil && (old == nil || v.TS > old.TS) {
		old = v
	}
	if old == nil {
		return k.lost(ctx, r, a)
	}
	w, err := format.DecodeWrite(old.Value)
	if err != nil || w.Kind != format.KindPut {
		return err
	}
	r.keep = append(r.keep, rowstore.Version{Family: rowstore.Write, Column: keptIn, TS: old.TS, Value: old.Value})
	if !w.Long {
		return nil
	}
	if data := r.row.At(rowstore.Data, a.column, w.Start); data != nil {
		r.keep = append(r.keep, *data)
	} else {
		r.asks = append(r.asks, ask{column: a.column, long: w.Start})
	}
	return nil
}

// lost finds out whether what an observer saw last may be gone. A collection keeps that for the newest acknowledgment alone. So it is
// gone if, while the backup ran, a run took effect for a change that had waited for longer than history is kept, and the row was
// collected afterwards.
func (k *keeper) lost(ctx context.Context, r *keptRow, a ask) error {
	if !k.since(r.row, format.AckColumn(a.seenBy, a.column)) {
		return nil
	}
	table, _ := format.Unescape(r.row.Table)
	safe, err := k.db.TableSafePoint(ctx, table)
	if err != nil {
		return err
	}
	if safe <= a.acked {
		return nil
	}
	return fmt.Errorf("%w: what observer %q saw last was collected, because it had not seen a change for longer than history is kept, and ran for it now; begin the backup anew",
		ErrLapsed, a.seenBy)
}

// newestTo returns the newest write of a column at or below a timestamp.
func newestTo(row *rowstore.Row, column string, to percolator.Timestamp) *rowstore.Version {
	for _, v := range row.All(rowstore.Write, column) {
		if v.TS <= to {
			return &v
		}
	}
	return nil
}

// weak notifies a cell for which there was a run after the snapshot, although nothing shows what the run was for: then it was
// for a weak notification, which leaves nothing behind. Whether that came before the snapshot or after it is not
// known. Notifications were looked at before the rows, so this is a question only for runs of about that time.
func (k *keeper) weak(r *keptRow, read *rowstore.Row, a ask) error {
	seen, err := k.unexplained(read, a)
	if err != nil || seen == 0 {
		return err
	}
	_, timer, err := k.committed(r.row, format.TimerColumn(a.column))
	if err != nil {
		return err
	}
	if timer != nil && timer.Kind == format.KindPut {
		t, err := format.DecodeTimer(timer.Value)
		if err != nil || t.Due <= seen {
			return err // it was for the timer, which is kept
		}
	}
	// If the run had failed before, its attempts and its wait go on.
	r.notify(a.column, min(seen, k.at), format.WeakNotification)
	return nil
}

// unexplained returns up to where the first run of after the snapshot has seen the cell, or 0 if it was for something of after the
// snapshot, or if there was none.
func (k *keeper) unexplained(read *rowstore.Row, a ask) (seen percolator.Timestamp, err error) {
	var asked []percolator.Timestamp // releases, requests of replays, changes
	for _, v := range read.All(rowstore.Write, format.FailureColumn(a.seenBy, a.column)) {
		w, err := format.DecodeWrite(v.Value)
		if err != nil {
			return 0, err
		}
		f := format.Failure{}
		if w.Kind == format.KindPut {
			if f, err = format.DecodeFailure(w.Value); err != nil {
				return 0, err
			}
		}
		switch {
		case f.Change > a.acked && f.Change <= k.at:
			return f.Change, nil // a run failed for it
		case w.Kind != format.KindPut, f.Replay:
			asked = append(asked, v.TS)
		}
	}
	acks := read.All(rowstore.Write, format.AckColumn(a.seenBy, a.column))
	if len(acks) == 0 {
		return 0, nil
	}
	w, err := format.DecodeWrite(acks[len(acks)-1].Value)
	if err != nil || w.Kind != format.KindPut {
		return 0, err
	}
	if seen, err = format.DecodeAck(w.Value); err != nil {
		return 0, err
	}
	for _, v := range read.All(rowstore.Write, a.column) {
		asked = append(asked, v.TS)
	}
	if slices.ContainsFunc(asked, func(ts percolator.Timestamp) bool { return ts <= seen }) {
		return 0, nil
	}
	return seen, nil
}
