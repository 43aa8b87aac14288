package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// heldPage says what the leases of other workers mean for a page.
type heldPage struct {
	queues []*queue // of observers whose work in the page another worker has leased
	all    bool     // the page has no other work
	to     string   // the first row at which one of those leases ends
}

// share takes leases for observers that have much to do in a page, and finds out for
// which of them another worker has one already.
func (l *looker) share(ctx context.Context, page []finding) (heldPage, error) {
	var h heldPage
	count := map[*queue]int{}
	for _, f := range page {
		for _, q := range f.queues {
			count[q]++
		}
	}
	var many []*queue
	for _, q := range l.w.list {
		if count[q] >= leaseFrom {
			many = append(many, q)
		}
	}
	if len(many) == 0 {
		return h, nil
	}
	others, err := l.lease(ctx, many, page[0].cell.Row, page[len(page)-1].cell.Row)
	if err != nil {
		return h, err
	}
	for i, other := range others {
		if other == nil {
			continue
		}
		h.queues = append(h.queues, many[i])
		if h.to == "" || other.To < h.to {
			h.to = other.To
		}
	}
	h.all = len(h.queues) == len(count)
	return h, nil
}

// lease takes a lease of the rows from first to last, both included, for the observer
// of each queue. If another worker has a lease of a part of that range, lease takes
// none for that observer and returns the other worker's instead. others is in the order
// of the queues.
func (l *looker) lease(ctx context.Context, queues []*queue, first, last string) (others []*format.ScanLease, err error) {
	w, db := l.w, l.w.db
	now, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	reads := make([]rowstore.RowRead, len(queues))
	for i, q := range queues {
		reads[i] = rowstore.RowRead{Table: format.TableScanLeases, Row: format.ScanLeaseRow(q.table, q.column, q.o.Name), Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: rowstore.AllColumns, From: now, To: oracle.Max, Limit: 1},
		}}
	}
	rows, err := db.readRows(ctx, reads)
	if err != nil {
		return nil, fmt.Errorf("reading scan leases: %w", err)
	}
	others = make([]*format.ScanLease, len(queues))
	until := now.Add(w.config.ScanLease)
	var muts []rowstore.Mutation
	for i := range rows {
		var ends Timestamp
		if others[i], ends, err = w.othersLease(&rows[i], first, last); err != nil {
			return nil, err
		}
		if others[i] == nil {
			muts = append(muts, w.takeLease(reads[i].Row, until, format.ScanLease{From: first, To: last}))
			continue
		}
		if d := max(ends.Sub(now), time.Millisecond); l.held == 0 || d < l.held {
			l.held = d
		}
	}
	if len(muts) == 0 {
		return others, nil
	}
	w.mu.Lock()
	for _, m := range muts {
		w.leased[m.Row] = l.table
	}
	w.mu.Unlock()
	outs, err := db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
	for i := range outs {
		err = errors.Join(err, outs[i].Err)
	}
	if err != nil {
		return nil, fmt.Errorf("taking a scan lease: %w", err)
	}
	return others, nil
}

// othersLease finds another worker's lease of a part of a range, and when it ends.
func (w *Worker) othersLease(row *rowstore.Row, first, last string) (*format.ScanLease, Timestamp, error) {
	for i := range row.Versions {
		v := &row.Versions[i]
		if v.Column == w.id {
			continue
		}
		s, err := format.DecodeScanLease(v.Value)
		if err != nil {
			return nil, 0, err
		}
		if s.From <= last && first <= s.To {
			return &s, v.TS, nil
		}
	}
	return nil, 0, nil
}

// takeLease is the mutation that replaces this worker's lease.
func (w *Worker) takeLease(row string, until Timestamp, s format.ScanLease) rowstore.Mutation {
	return rowstore.Mutation{Table: format.TableScanLeases, Row: row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, w.id, until, s.Encode()),
		rowstore.DeleteRange(rowstore.Write, w.id, 0, until-1),
	}}
}

// releaseLeases gives up the worker's leases of a table, or with "" all.
func (w *Worker) releaseLeases(table string) {
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	var muts []rowstore.Mutation
	w.mu.Lock()
	for row, of := range w.leased {
		if table == "" || of == table {
			delete(w.leased, row)
			muts = append(muts, rowstore.Mutation{Table: format.TableScanLeases, Row: row, Edits: []rowstore.Edit{
				rowstore.DeleteRange(rowstore.Write, w.id, 0, oracle.Max),
			}})
		}
	}
	w.mu.Unlock()
	if len(muts) == 0 {
		return
	}
	// The order of a map is random, and the calls of a run must be repeatable.
	slices.SortFunc(muts, func(a, b rowstore.Mutation) int { return strings.Compare(a.Row, b.Row) })
	if _, err := w.db.store.Apply(ctx, muts, rowstore.ApplyOptions{}); err != nil {
		w.db.log.Debug("scan leases were left to end by themselves", "err", err)
	}
}
