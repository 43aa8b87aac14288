package backup

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/coreaccess"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What of a row is kept. See the package's documentation for why.

// observer is a registration for a column.
type observer struct {
	name  string
	since percolator.Timestamp
	old   bool
}

type columnName struct{ table, column string }

// keeper makes of rows, as the store has them, what a backup keeps of them.
type keeper struct {
	db        *percolator.DB
	store     rowstore.Store
	at        percolator.Timestamp // the snapshot
	grace     percolator.Timestamp // see weak
	observers map[columnName][]observer
	picks     []rowstore.Selector
}

func newKeeper(db *percolator.DB, at percolator.Timestamp, c *format.Catalog) *keeper {
	k := &keeper{db: db, store: coreaccess.Stored.Store(db), at: at, observers: map[columnName][]observer{}}
	for _, o := range c.Observers {
		name := columnName{string(o.Table), string(o.Column)}
		k.observers[name] = append(k.observers[name], observer{string(o.Name), o.Since, o.OldValues})
	}
	all := rowstore.AllColumns
	k.picks = []rowstore.Selector{
		{Family: rowstore.Lock, Column: all, To: at, Limit: 1},
		{Family: rowstore.Write, Column: all, From: at + 1, To: oracle.Max, Limit: 1}, // tells of what happened since
		{Family: rowstore.Write, Column: all, To: at, Limit: 1},
		{Family: rowstore.Data, Column: all, To: at, Limit: 1}, // nearly always the one of the newest write
		{Family: rowstore.Notify, Column: all, To: at},
	}
	return k
}

// wants tells whether the rows of a stored table are looked at.
func wants(table string) bool {
	return !format.Reserved(table) || table == format.TableParked || table == format.TableReplays
}

// keptRow is a row under way.
type keptRow struct {
	row  *rowstore.Row
	keep []rowstore.Version
	asks []ask
}

// ask is something that a second look at the row has to answer.
type ask struct {
	column string
	// long is the start timestamp whose value is asked for; 0 if not.
	long percolator.Timestamp
	// seenBy is an observer that has nothing to do for changes up to acked, and of which what it saw last is asked for.
	seenBy string
	acked  percolator.Timestamp
	// unexplained asks instead whether what it has written since the snapshot tells of a weak notification.
	unexplained bool
}

// keep returns what is kept of some rows of a table, without those of which nothing is. The rows were read by
// k.picks.
func (k *keeper) keep(ctx context.Context, rows []rowstore.Row) ([]rowstore.Row, error) {
	if err := coreaccess.Stored.Settle(ctx, k.db, rows, k.picks, k.at); err != nil {
		return nil, err
	}
	kept := make([]keptRow, len(rows))
	var more []int
	for i := range rows {
		kept[i].row = &rows[i]
		if err := k.row(&kept[i]); err != nil {
			return nil, fmt.Errorf("row %q of table %q: %w", rows[i].Row, rows[i].Table, err)
		}
		if len(kept[i].asks) > 0 {
			more = append(more, i)
		}
	}
	if err := k.lookAgain(ctx, kept, more); err != nil {
		return nil, err
	}
	out := rows[:0:0]
	for i := range kept {
		if len(kept[i].keep) > 0 {
			out = append(out, rowstore.Row{Table: rows[i].Table, Row: rows[i].Row, Versions: sorted(kept[i].keep)})
		}
	}
	return out, nil
}

// sorted puts versions into the order of a Row, each once.
func sorted(versions []rowstore.Version) []rowstore.Version {
	slices.SortStableFunc(versions, func(a, b rowstore.Version) int {
		switch {
		case a.Family != b.Family:
			return int(a.Family) - int(b.Family)
		case a.Column != b.Column:
			if a.Column < b.Column {
				return -1
			}
			return 1
		case a.TS > b.TS:
			return -1
		case a.TS < b.TS:
			return 1
		}
		return 0
	})
	return slices.CompactFunc(versions, func(a, b rowstore.Version) bool {
		return a.Family == b.Family && a.Column == b.Column && a.TS == b.TS
	})
}

// row decides what is kept of a settled row.
func (k *keeper) row(r *keptRow) error {
	var columns []string // those that anything is known of, but acknowledgments and the like
	for i := range r.row.Versions {
		v := &r.row.Versions[i]
		if v.Family == rowstore.Notify {
			if len(k.observers[columnName{r.row.Table, v.Column}]) > 0 {
				value, err := plain(v)
				if err != nil {
					return err
				}
				r.notify(v.Column, v.TS, value)
			}
		}
		if v.Family != rowstore.Write && v.Family != rowstore.Notify {
			continue
		}
		column := v.Column
		if _, _, of, own := format.SplitOwnColumn(column); own {
			column = of
		} else if of, timer := format.SplitTimerColumn(column); timer {
			column = of
		} else if format.Reserved(column) {
			continue // what an observer saw is found by its acknowledgment
		}
		if len(columns) == 0 || columns[len(columns)-1] != column {
			columns = append(columns, column)
		}
		if v.Family == rowstore.Write && v.TS <= k.at {
			if err := k.cell(r, v, column); err != nil {
				return fmt.Errorf("column %q: %w", v.Column, err)
			}
		}
	}
	slices.Sort(columns)
	for _, column := range slices.Compact(columns) {
		if err := k.waiting(r, column); err != nil {
			return fmt.Errorf("column %q: %w", column, err)
		}
	}
	return nil
}

// cell keeps the newest write of a column. of is the user's column that it belongs to.
func (k *keeper) cell(r *keptRow, v *rowstore.Version, of string) error {
	w, err := format.DecodeWrite(v.Value)
	if err != nil {
		return err
	}
	if w.Kind == format.KindDelete {
		// Only observers can tell it from a cell that never was.
		if v.Column == of && k.watched(r.row, of) {
			r.keep = append(r.keep, *v)
		}
		return nil
	}
	r.keep = append(r.keep, *v)
	if column, timer := format.SplitTimerColumn(v.Column); timer {
		t, err := format.DecodeTimer(w.Value)
		if err != nil {
			return err
		}
		if !t.Indexed {
			r.keep = append(r.keep, rowstore.Version{Family: rowstore.Notify, Column: column, TS: v.TS, Value: format.StrongNotification})
		}
	}
	if w.Long {
		if data := r.row.At(rowstore.Data, v.Column, w.Start); data != nil {
			r.keep = append(r.keep, *data)
		} else {
			r.asks = append(r.asks, ask{column: v.Column, long: w.Start})
		}
	}
	return nil
}

// watched tells whether anything of observers belongs to a column.
func (k *keeper) watched(row *rowstore.Row, column string) bool {
	if len(k.observers[columnName{row.Table, column}]) > 0 {
		return true
	}
	return slices.ContainsFunc(row.Versions, func(v rowstore.Version) bool {
		_, _, of, own := format.SplitOwnColumn(v.Column)
		return own && of == column
	})
}

// committed returns the newest write of a column at or below the snapshot, nil without one.
func (k *keeper) committed(row *rowstore.Row, column string) (*rowstore.Version, *format.Write, error) {
	for _, v := range row.All(rowstore.Write, column) {
		if v.TS <= k.at {
			w, err := format.DecodeWrite(v.Value)
			return &v, &w, err
		}
	}
	return nil, nil, nil
}

// since tells whether a column was written after the snapshot.
func (k *keeper) since(row *rowstore.Row, column string) bool {
	newest := row.Newest(rowstore.Write, column)
	return newest != nil && newest.TS > k.at
}

// waiting makes those notifications anew which a run from after the snapshot has cleared, and asks for what an observer of
// old values saw last.
func (k *keeper) waiting(r *keptRow, column string) error {
	newest, _, err := k.committed(r.row, column)
	if err != nil {
		return err
	}
	change := percolator.Timestamp(0)
	if newest != nil {
		change = newest.TS
	}
	for _, o := range k.observers[columnName{r.row.Table, column}] {
		s, err := k.state(r.row, o, column)
		if err != nil {
			return err
		}
		if o.old && s.acked != 0 && (change == 0 || s.acked < change) {
			r.asks = append(r.asks, ask{column: column, seenBy: o.name, acked: s.acked})
		}
		if !s.moved {
			continue // nothing has been cleared
		}
		covered := s.acked
		if s.failed && s.failure.Parked {
			covered = max(covered, s.failure.Change)
		}
		switch {
		case s.failed && s.failure.Replay && !s.failure.Parked:
			r.notify(column, k.at, format.StrongNotification)
		case change > covered:
			r.notify(column, change, format.StrongNotification)
		default:
			r.asks = append(r.asks, ask{column: column, seenBy: o.name, acked: covered, unexplained: true})
		}
	}
	return nil
}

// plain is a notification that does not say how its change came about: where it is restored, the database may not track cascades.
func plain(v *rowstore.Version) ([]byte, error) {
	kind, err := format.DecodeNotification(v.Value)
	if err != nil {
		return nil, fmt.Errorf("column %q: %w", v.Column, err)
	}
	return format.EncodeNotification(kind, nil), nil
}

func (r *keptRow) notify(column string, ts percolator.Timestamp, value []byte) {
	r.keep = append(r.keep, rowstore.Version{Family: rowstore.Notify, Column: column, TS: ts, Value: value})
}

// observed is what an observer had done for a cell at the snapshot.
type observed struct {
	acked   percolator.Timestamp
	failed  bool
	failure format.Failure
	moved   bool // it has written since
}

func (k *keeper) state(row *rowstore.Row, o observer, column string) (s observed, err error) {
	ack, failure := format.AckColumn(o.name, column), format.FailureColumn(o.name, column)
	s.moved = k.since(row, ack) || k.since(row, failure)
	_, w, err := k.committed(row, ack)
	if err == nil && w != nil && w.Kind == format.KindPut {
		if s.acked, err = format.DecodeAck(w.Value); s.acked < o.since {
			s.acked = 0 // of a registration before this one
		}
	}
	if err != nil {
		return s, err
	}
	_, w, err = k.committed(row, failure)
	if err == nil && w != nil && w.Kind == format.KindPut {
		s.failed = true
		s.failure, err = format.DecodeFailure(w.Value)
	}
	return s, err
}
