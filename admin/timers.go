package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Timer is a timer that waits, by what the index of its table says.
type Timer struct {
	Cell
	Due time.Time `json:"due"`
	In  Span      `json:"in"` // until then; less than 0 if it is due already
	// Stale tells that the index names a timer that the cell does not have any more, or has for another time. The
	// worker that finds it due drops it.
	Stale bool `json:"stale,omitempty"`
	// Unreadable tells that the entry of the index, or the timer in the cell, does not decode: Error says which and why. Workers leave it alone. Row and Column are empty if
	// the entry does not say them, and Due is zero if not even its name is right.
	Unreadable bool   `json:"unreadable,omitempty"`
	Error      string `json:"error,omitempty"`
}

// Timers lists the timers of a table, in the order of their due times: up to limit of them, 100 for 0. from is the next of the
// page before, "" for the first; an empty next is the end. One that was set for the next half minute is in no index, and is not listed:
// Why shows it. What cannot be read is listed as Timer.Unreadable.
func (r *Reader) Timers(ctx context.Context, table string, from Bytes, limit int) (timers []Timer, next Bytes, err error) {
	if limit, err = limitedIn(table, "Timers", limit); err != nil {
		return nil, "", called("Timers", err)
	}
	c, err := r.load(ctx)
	if err == nil {
		timers, next, err = r.timers(ctx, c, format.Escape(table), string(from), limit)
	}
	if err != nil {
		return nil, "", called("Timers", fmt.Errorf("table %q: %w", table, err))
	}
	return timers, next, nil
}

// timerHint is an entry of the index. key orders the entries of all shards: it is their row without the shard.
type timerHint struct {
	key  string
	due  percolator.Timestamp
	cell format.Cell
	err  error // why the entry cannot be read
}

func (r *Reader) timerHints(ctx context.Context, table, from string, limit int) (hints []timerHint, err error) {
	for shard := range byte(format.TimerShards) {
		scan := rowstore.ScanRange{
			Table: format.TimersTable(table), From: format.TimersBegin(shard) + from, To: format.TimersBegin(shard + 1), Limit: limit,
			Selectors: []rowstore.Selector{newest(rowstore.Write, format.ColumnTimer, atMost)},
		}
		for row, err := range r.store.Scan(ctx, scan) {
			if err != nil {
				return nil, err
			}
			hint := timerHint{key: row.Row[1:]}
			if hint.due, hint.err = format.TimerDue(row.Row); hint.err == nil {
				var h format.TimerHint
				h, hint.err = format.DecodeTimerHint(row.Versions[0].Value)
				hint.cell = format.Cell{Table: table, Row: h.Row, Column: h.Column}
			}
			if hint.err != nil {
				hint.cell = format.Cell{Table: table}
				hint.err = fmt.Errorf("its entry, row %v of the index of timers, cannot be read: %w", Bytes(row.Row), hint.err)
			}
			hints = append(hints, hint)
		}
	}
	slices.SortFunc(hints, func(a, b timerHint) int { return cmp.Compare(a.key, b.key) })
	return hints, nil
}

func (r *Reader) timers(ctx context.Context, c *catalog, table, from string, limit int) (timers []Timer, next Bytes, err error) {
	if !c.Catalog.Timers {
		return nil, "", nil
	}
	hints, err := r.timerHints(ctx, table, from, limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(hints) > limit {
		hints, next = hints[:limit], Bytes(hints[limit].key)
	}
	for page := range slices.Chunk(hints, 256) {
		some, err := r.timersOf(ctx, c, page)
		if err != nil {
			return nil, "", err
		}
		timers = append(timers, some...)
	}
	return timers, next, nil
}

// timersOf makes timers of entries of the index, by what their cells have.
func (r *Reader) timersOf(ctx context.Context, c *catalog, hints []timerHint) (timers []Timer, err error) {
	var reads []rowstore.RowRead
	for _, h := range hints {
		if h.err == nil {
			col := format.TimerColumn(h.cell.Column)
			reads = append(reads, rowstore.RowRead{Table: h.cell.Table, Row: h.cell.Row, Selectors: []rowstore.Selector{newest(rowstore.Lock, col, atMost), newest(rowstore.Write, col, atMost)}})
		}
	}
	var rows []rowstore.Row
	if len(reads) > 0 {
		if rows, err = r.store.Read(ctx, reads); err != nil {
			return nil, err
		}
	}
	for _, h := range hints {
		t := Timer{Cell: publicCell(h.cell)}
		if h.due != 0 {
			t.Due, t.In = h.due.Time().UTC(), since(h.due, c.now)
		}
		if h.err == nil {
			var set bool
			var due percolator.Timestamp
			if set, due, err = r.timerOf(ctx, &rows[0], h.cell, c.now); errors.Is(err, percolator.ErrCorrupt) {
				h.err, err = fmt.Errorf("the timer of the cell cannot be read: %w", err), nil
			}
			if err != nil {
				return nil, err
			}
			t.Stale, rows = !set || due != h.due, rows[1:]
		}
		if h.err != nil {
			t.Unreadable, t.Error, t.Stale = true, h.err.Error(), false
		}
		timers = append(timers, t)
	}
	return timers, nil
}

// timerOf decodes the timer of a stored cell, in a row that was read with the lock and the newest write of its column.
func (r *Reader) timerOf(ctx context.Context, row *rowstore.Row, c format.Cell, now percolator.Timestamp) (set bool, due percolator.Timestamp, err error) {
	if row.Err != nil {
		return false, 0, row.Err
	}
	v, _, err := r.value(ctx, row, format.TimerColumn(c.Column), now, now)
	if err != nil || !v.Found {
		return false, 0, err
	}
	t, err := format.DecodeTimer([]byte(v.Value))
	return err == nil, t.Due, err
}
