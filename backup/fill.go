package backup

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The writes of a restore.

const (
	// batchBytes and batchRows bound what one call writes, and fillers is how many are under way.
	batchBytes = 512 << 10
	batchRows  = 256
	fillers    = 4
	// markEvery is after how many blocks the restore notes how far it is.
	markEvery = 16
	// perEdit is what an edit may cost beside its names and its value, in bytes.
	perEdit = 64
)

// errChanged: the file is not the one that was checked.
var errChanged = fmt.Errorf("%w: it was changed while it was restored", ErrDamaged)

// rows writes the blocks that are not in the store.
func (r *restorer) rows(ctx context.Context, path string) error {
	f, _, err := openFile(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in, err := newReader(f)
	if err != nil {
		return err
	}
	defer in.close()
	if head, err := in.begin(); err != nil {
		return err
	} else if head.ID != r.checked.head.ID {
		return errChanged
	}
	tell := r.part(0.1, 1)
	t := teller{to: tell}
	for n := int64(0); ; n++ {
		kind, raw, err := in.next()
		if err != nil {
			return err
		}
		if kind == frameEnd {
			if in.last != r.checked.last {
				return errChanged
			}
			return nil
		}
		h, rows, err := decodeBlock(raw)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil { // blocks that are there already come to no other look at it
			return fmt.Errorf("backup: reading the file: %w", err)
		}
		if n >= r.marker.Blocks {
			if err := r.block(ctx, n, rows); err != nil {
				return err
			}
		}
		t.progress(h.rows, h.cells, in.at, float64(in.at)/float64(r.checked.bytes))
	}
}

// block writes a block, and notes now and then how far the restore is.
func (r *restorer) block(ctx context.Context, n int64, rows []rowstore.Row) error {
	if err := r.stands(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx, rows); err != nil {
		return err
	}
	if n%markEvery != markEvery-1 {
		return nil
	}
	r.marker.Blocks = n + 1
	return r.mark(ctx, r.unended())
}

// fill writes the rows of a block, and the index of their timers. No call is under way when it returns.
func (r *restorer) fill(ctx context.Context, rows []rowstore.Row) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	b := &batch{restorer: r, send: func(muts []rowstore.Mutation) {
		g.Go(func() error { return r.applyRows(ctx, muts) })
	}}
	var err error
	for i := range rows {
		if err = b.row(&rows[i]); err != nil {
			break
		}
	}
	b.flush()
	return errors.Join(err, g.Wait())
}

// batch collects mutations of different rows.
type batch struct {
	*restorer
	send  func([]rowstore.Mutation)
	muts  []rowstore.Mutation
	named map[string]bool // rows in muts, of the table of the block
	bytes int
}

func (b *batch) flush() {
	if len(b.muts) > 0 {
		b.send(b.muts)
	}
	b.muts, b.bytes, b.named = nil, 0, map[string]bool{}
}

// row adds a row, in as many mutations as the store needs.
func (b *batch) row(row *rowstore.Row) error {
	most, size := len(row.Versions), batchBytes
	if n := b.limits.Operations; n > 0 {
		most = min(most, n)
	}
	if n := b.limits.Bytes; n > 0 {
		size = min(size, n-len(row.Table)-len(row.Row)-perEdit)
	}
	var m rowstore.Mutation
	bytes := 0
	put := func() {
		if len(m.Edits) == 0 {
			return
		}
		if b.named[row.Row] || b.bytes+bytes > batchBytes || len(b.muts) >= batchRows {
			b.flush()
		}
		b.named[row.Row] = true
		b.muts, b.bytes = append(b.muts, m), b.bytes+bytes
		m, bytes = rowstore.Mutation{}, 0
	}
	if b.named == nil {
		b.named = map[string]bool{}
	}
	for i := range row.Versions {
		v := &row.Versions[i]
		n := len(v.Column) + len(v.Value) + perEdit
		if len(m.Edits) >= max(most, 1) || len(m.Edits) > 0 && bytes+n > size {
			put()
		}
		m.Table, m.Row = row.Table, row.Row
		m.Edits = append(m.Edits, rowstore.Put(v.Family, v.Column, v.TS, v.Value))
		bytes += n
	}
	put()
	return b.timers(row)
}

// timers adds what the index has of the timers of a row.
func (b *batch) timers(row *rowstore.Row) error {
	for i := range row.Versions {
		v := &row.Versions[i]
		column, timer := format.SplitTimerColumn(v.Column)
		if !timer || v.Family != rowstore.Write || format.Reserved(row.Table) {
			continue
		}
		w, err := format.DecodeWrite(v.Value)
		if err != nil {
			return fmt.Errorf("backup: row %q of table %q: %w", row.Row, row.Table, err)
		}
		t, err := format.DecodeTimer(w.Value)
		if err != nil {
			return fmt.Errorf("backup: row %q of table %q: %w", row.Row, row.Table, err)
		}
		// The number keeps the rows of the index apart. A restore that goes on counts from where its marker stands.
		b.marker.Timers++
		shard := byte(rowstore.Slot(row.Table, row.Row) % format.TimerShards)
		n := len(row.Row) + len(column) + perEdit
		if b.bytes+n > batchBytes || len(b.muts) >= batchRows {
			b.flush()
		}
		b.muts = append(b.muts, rowstore.Mutation{
			Table: format.TimersTable(row.Table), Row: format.TimerRow(shard, t.Due, w.Start, int(b.marker.Timers)),
			Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnTimer, w.Start, format.TimerHint{Row: row.Row, Column: column}.Encode())},
		})
		b.bytes += n
	}
	return nil
}
