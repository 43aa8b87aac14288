package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Replay is a replay that has begun and has yet to ask for runs (percolator.DB.Replays). Nobody need be at work on it.
type Replay struct {
	Observer Bytes `json:"observer"`
	Table    Bytes `json:"table"`
	Column   Bytes `json:"column"`
	From     Bytes `json:"from,omitzero"` // the first row; empty is the beginning of the table
	To       Bytes `json:"to,omitzero"`   // excluded; empty is the end of the table
	Began    Stamp `json:"began"`
	Age      Span  `json:"age"`
	Next     Bytes `json:"next,omitzero"` // the first row for which the observer was not asked yet
	Cells    int64 `json:"cells"`         // for which it was asked
}

// Replays lists the replays that have begun and have yet to ask for runs, the oldest first: up to limit of them, 100 for 0. One of fewer than
// 128 rows asks for all of them at once, and is not listed (percolator.DB.Replays); what waits for its runs is in Backlog. more tells that there are
// others. It looks at ten times as many records at most.
func (r *Reader) Replays(ctx context.Context, limit int) (replays []Replay, more bool, err error) {
	if limit, err = limited("Replays", limit, 100); err != nil {
		return nil, false, called("Replays", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, false, called("Replays", err)
	}
	var values []Value
	var long []longValue
	looked := 0
	scan := rowstore.ScanRange{Table: format.TableReplays, Limit: 10 * limit, Selectors: []rowstore.Selector{
		newest(rowstore.Lock, format.ColumnReplay, c.now), newest(rowstore.Write, format.ColumnReplay, c.now),
	}}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return nil, false, called("Replays", err)
		}
		if more = len(values) == limit; more {
			break
		}
		looked++
		v, apart, err := r.value(ctx, &row, format.ColumnReplay, c.now, c.now)
		if err != nil {
			return nil, false, called("Replays", err)
		}
		if !v.Found {
			continue
		}
		if apart != 0 {
			long = append(long, longValue{len(values), format.Cell{Table: row.Table, Row: row.Row, Column: format.ColumnReplay}, apart})
		}
		values = append(values, v)
	}
	if _, err := r.fill(ctx, values, long); err != nil {
		return nil, false, called("Replays", err)
	}
	for i := range values {
		if values[i].Value == "" { // it was collected, so it has ended
			continue
		}
		said, err := format.DecodeReplay([]byte(values[i].Value))
		if err != nil {
			return nil, false, called("Replays", fmt.Errorf("listing the replays: %w", err))
		}
		replays = append(replays, c.replay(&said))
	}
	slices.SortFunc(replays, func(a, b Replay) int { return cmp.Compare(a.Began, b.Began) })
	return replays, more || looked == 10*limit, nil
}

func (c *catalog) replay(said *format.Replay) Replay {
	title := string(said.Observer)
	if o := c.registered(title, string(said.Table), string(said.Column)); o != nil {
		title = o.Title()
	}
	return Replay{
		Observer: Bytes(title), Table: public(string(said.Table)), Column: public(string(said.Column)), From: Bytes(said.From), To: Bytes(said.To),
		Began: Stamp(said.ID), Age: since(c.now, said.ID), Next: Bytes(said.Next), Cells: said.Cells,
	}
}
