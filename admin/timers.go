package admin

import (
	"cmp"
	"context"
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
}

// Timers lists the timers of a table, in the order of their due times: up to limit of them, 100 for 0. from is the next of the
// page before, "" for the first; an empty next is the end. One that was set for the next half minute is in no index, and is not listed:
// Why shows it.
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
			due, err := format.TimerDue(row.Row)
			if err != nil {
				return nil, err
			}
			h, err := format.DecodeTimerHint(row.Versions[0].Value)
			if err != nil {
				return nil, err
			}
			hints = append(hints, timerHint{row.Row[1:], due, format.Cell{Table: table, Row: h.Row, Column: h.Column}})
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
		var reads []rowstore.RowRead
		for _, h := range page {
			col := format.TimerColumn(h.cell.Column)
			reads = append(reads, rowstore.RowRead{Table: table, Row: h.cell.Row, Selectors: []rowstore.Selector{newest(rowstore.Lock, col, atMost), newest(rowstore.Write, col, atMost)}})
		}
		rows, err := r.rows(ctx, reads)
		if err != nil {
			return nil, "", err
		}
		for i, h := range page {
			t := Timer{Cell: publicCell(h.cell), Due: h.due.Time().UTC(), In: since(h.due, c.now)}
			set, due, err := r.timerOf(ctx, &rows[i], h.cell, c.now)
			if err != nil {
				return nil, "", err
			}
			t.Stale = !set || due != h.due
			timers = append(timers, t)
		}
	}
	return timers, next, nil
}

// timerOf decodes the timer of a stored cell, in a row that was read with the lock and the newest write of its column.
func (r *Reader) timerOf(ctx context.Context, row *rowstore.Row, c format.Cell, now percolator.Timestamp) (set bool, due percolator.Timestamp, err error) {
	v, _, err := r.value(ctx, row, format.TimerColumn(c.Column), now, now)
	if err != nil || !v.Found {
		return false, 0, err
	}
	t, err := format.DecodeTimer([]byte(v.Value))
	return err == nil, t.Due, err
}
