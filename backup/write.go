package backup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/coreaccess"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// keepRows is how many rows are looked at together.
const keepRows = 256

// write writes what is left of the backup, from w.resume on.
func (w *writer) write(ctx context.Context) error {
	for t, err := range w.keeper.store.Tables(ctx) {
		if err != nil {
			return fmt.Errorf("backup: listing the tables: %w", err)
		}
		if wants(t) {
			w.tables = append(w.tables, t)
		}
	}
	slices.Sort(w.tables)
	g, both := errgroup.WithContext(ctx)
	blocks := make(chan *block, 2)
	g.Go(func() error {
		defer close(blocks)
		return w.read(both, func(b *block) error {
			select {
			case blocks <- b:
				return nil
			case <-both.Done():
				return context.Cause(both)
			}
		})
	})
	g.Go(func() error {
		for b := range blocks {
			if err := w.out.data(b.encode()); err != nil {
				return w.cannotWrite(err)
			}
			if w.out.at-w.lasting.at >= w.opts.syncEvery {
				if err := w.sync(); err != nil {
					return err
				}
			}
			w.tell.progress(b.head.rows, b.head.cells, w.out.at, b.done)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return w.lapsedOr(ctx, err)
	}
	return w.finish(ctx)
}

// lapsedOr returns why what was read seems to be damaged: a row that was erased between two reads of it lacks what the second one asks for. Otherwise it is err.
func (w *writer) lapsedOr(ctx context.Context, err error) error {
	if errors.Is(err, percolator.ErrCorrupt) {
		if erased := w.erasedSince(ctx); errors.Is(erased, ErrLapsed) {
			return erased
		}
	}
	return err
}

// finish writes the end. The hold must have stood all the time.
func (w *writer) finish(ctx context.Context) error {
	gone, err := w.changed(ctx)
	if err != nil {
		return err
	}
	switch err := w.hold.Renew(ctx, w.opts.Hold); {
	case errors.Is(err, percolator.ErrHoldEnded):
		return fmt.Errorf("%w: %w", ErrLapsed, err)
	case err != nil: // the hold may stand, and another call goes on
		return fmt.Errorf("backup: %w", err)
	}
	if err := w.erasedSince(ctx); err != nil {
		return err
	}
	if err := w.out.end(ending{Rows: w.rows, Cells: w.cells, Resweep: gone}); err != nil {
		return w.cannotWrite(err)
	}
	return w.sync()
}

// read reads the database and hands blocks out.
func (w *writer) read(ctx context.Context, out func(*block) error) error {
	if w.resume.phase < phaseRows {
		if err := w.notifications(ctx, phaseBefore, out); err != nil {
			return err
		}
		// Whatever stood before this was drawn has been seen, but for what a process has drawn and not stored yet.
		now, err := w.db.Now(ctx)
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		w.grace = now.Add(time.Duration(w.catalog.Current.CatalogLeaseMs) * time.Millisecond)
	}
	w.keeper.grace = w.grace
	for i, t := range w.tables {
		if t < w.resume.table {
			continue
		}
		from := ""
		if t == w.resume.table && w.resume.phase == phaseRows {
			from = w.after + "\x00"
		}
		if err := w.table(ctx, i, from, out); err != nil {
			return fmt.Errorf("backup: table %q: %w", t, err)
		}
	}
	return w.notifications(ctx, phaseAfter, out)
}

// table reads the rows of a table, from one on.
func (w *writer) table(ctx context.Context, index int, from string, out func(*block) error) error {
	table := w.tables[index]
	p := w.packer(phaseRows, table, out)
	bounds := w.bounds(ctx, table)
	flush := func(rows []rowstore.Row) error {
		if len(rows) == 0 {
			return nil
		}
		part, _ := slices.BinarySearch(bounds, rows[len(rows)-1].Row)
		p.done = (float64(index) + float64(part)/float64(len(bounds)+1)) / float64(len(w.tables))
		kept, err := w.keeper.keep(ctx, rows)
		if err != nil {
			return err
		}
		return p.add(kept)
	}
	if err := chunks(w.keeper.store.Scan(ctx, rowstore.ScanRange{Table: table, From: from, Selectors: w.keeper.picks}), flush); err != nil {
		return err
	}
	return p.flush()
}

// bounds are rows that cut a table into similar parts, for the progress; none where the store knows none.
func (w *writer) bounds(ctx context.Context, table string) []string {
	s, ok := rowstore.Unwrap[rowstore.Splitter](w.keeper.store)
	if !ok || w.opts.Progress == nil {
		return nil
	}
	keys, err := s.Split(ctx, table, 64)
	if err != nil {
		return nil // only the progress needs it
	}
	return keys
}

// chunks hands rows on, some at a time.
func chunks(rows iter.Seq2[rowstore.Row, error], flush func([]rowstore.Row) error) error {
	var some []rowstore.Row
	size := 0
	for row, err := range rows {
		if err != nil {
			return err
		}
		some = append(some, row)
		for i := range row.Versions {
			size += len(row.Versions[i].Value)
		}
		if len(some) >= keepRows || size > 4<<20 {
			if err := flush(some); err != nil {
				return err
			}
			some, size = nil, 0
		}
	}
	return flush(some)
}

// notifications writes those that stand, of columns that are observed.
func (w *writer) notifications(ctx context.Context, phase byte, out func(*block) error) error {
	picks := []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: w.head.Snapshot}}
	for _, t := range w.tables {
		if format.Reserved(t) || !w.observed(t) {
			continue
		}
		p := w.packer(phase, t, out)
		flush := func(rows []rowstore.Row) (err error) {
			for i := range rows {
				rows[i].Versions = slices.DeleteFunc(rows[i].Versions, func(v rowstore.Version) bool {
					return len(w.keeper.observers[columnName{t, v.Column}]) == 0
				})
				for j := range rows[i].Versions {
					v := &rows[i].Versions[j]
					if v.Value, err = plain(v); err != nil {
						return fmt.Errorf("row %q: %w", rows[i].Row, err)
					}
				}
			}
			return p.add(slices.DeleteFunc(rows, func(r rowstore.Row) bool { return len(r.Versions) == 0 }))
		}
		if err := chunks(coreaccess.Stored.Notified(ctx, w.db, t, picks), flush); err != nil {
			return fmt.Errorf("backup: notifications of table %q: %w", t, err)
		}
		if err := p.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) observed(table string) bool {
	for name := range w.keeper.observers {
		if name.table == table {
			return true
		}
	}
	return false
}

// packer puts rows into blocks.
type packer struct {
	w     *writer
	out   func(*block) error
	phase byte
	table string
	b     *block
	done  float64
}

func (w *writer) packer(phase byte, table string, out func(*block) error) *packer {
	p := &packer{w: w, out: out, phase: phase, table: table, b: &block{}}
	switch phase {
	case phaseRows:
	case phaseAfter:
		p.done = 1
	}
	return p
}

func (p *packer) add(rows []rowstore.Row) error {
	for i := range rows {
		size := rowBytes(&rows[i])
		if size > p.w.opts.mostBlock-headBytes(p.table) {
			table, ok := format.Unescape(p.table)
			if !ok {
				table = p.table
			}
			return fmt.Errorf("%w: row %q of table %q has about %d bytes of values and names, and a backup can hold rows of up to %d: make it smaller; then remove %s and begin anew",
				errWideRow, rows[i].Row, table, size, p.w.opts.mostBlock, p.w.path+Incomplete)
		}
		if len(p.b.body)+size > p.w.opts.mostBlock-headBytes(p.table) {
			if err := p.flush(); err != nil {
				return err
			}
		}
		p.b.add(rows[i].Row, rows[i].Versions)
		if p.phase == phaseRows {
			p.w.rows++
			for j := range rows[i].Versions {
				if rows[i].Versions[j].Family == rowstore.Write {
					p.w.cells++
				}
			}
		}
		if len(p.b.body) >= p.w.opts.blockBytes {
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *packer) flush() error {
	if p.b.n == 0 {
		return nil
	}
	b := p.b
	b.head = blockHead{phase: p.phase, table: p.table, grace: p.w.grace, rows: p.w.rows, cells: p.w.cells}
	b.done = p.done
	p.b = &block{body: make([]byte, 0, p.w.opts.blockBytes+4096)}
	return p.out(b)
}
