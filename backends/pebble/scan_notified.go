package pebble

import (
	"context"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// notified is page for picks of Notify alone, from the copy in memory; ok is false
// if there is none.
func (p *scan) notified(ctx context.Context, limit int) (rows []rowstore.Row, more, ok bool, err error) {
	if err := p.s.enter(ctx, "scan"); err != nil {
		return nil, false, false, err
	}
	defer p.s.leave()
	if p.done {
		return nil, false, true, nil
	}
	if limit == 0 || limit > pageRows {
		limit = pageRows
	}
	s := p.s
	// For the gate see view: no group stands between its draw and its edit of the copy.
	s.gate.Lock()
	known, more, ok := s.notes.page(string(p.lower), string(p.upper), p.reverse, limit)
	var durable *commit
	if s.syncs != nil {
		durable = s.syncs.barrier()
	}
	s.gate.Unlock()
	if !ok {
		return nil, false, false, nil
	}
	if len(known) > 0 {
		if p.reverse {
			p.upper = append(p.upper[:0], known[0].row()...)
		} else {
			p.lower = after(append(p.lower[:0], known[len(known)-1].row()...))
		}
	}
	p.done = !more
	for len(known) > 0 {
		prefix := known[0].row()
		n := 1
		for n < len(known) && strings.HasPrefix(known[n].key, prefix) {
			n++
		}
		r, err := p.notifiedRow(prefix, known[:n])
		if err != nil {
			return nil, false, false, err
		}
		if len(r.Versions) > 0 {
			rows = append(rows, r)
		}
		known = known[n:]
	}
	if p.reverse {
		slices.Reverse(rows)
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, false, false, err
		}
	}
	return rows, more, true, ctx.Err()
}

// notifiedRow is what the picks select from the notifications of one row.
func (p *scan) notifiedRow(prefix string, known []note) (rowstore.Row, error) {
	table, row, err := splitRow(append([]byte{spaceNotify}, prefix...))
	if err != nil {
		return rowstore.Row{}, err
	}
	all := make(notesOfRow, len(known))
	for i := range known {
		column, ts, err := splitVersion([]byte(known[i].key), len(prefix))
		if err != nil {
			return rowstore.Row{}, err
		}
		x := &all[i]
		x.ts, x.value = ts, known[i].value
		if i > 0 && sameName(column, all[i-1].column) {
			x.column = all[i-1].column
		} else {
			x.column = kit.NameOf(column)
		}
	}
	r := rowReader{}
	for i := range p.picks {
		r.out = all.pick(r.out, &p.picks[i])
	}
	return rowstore.Row{Table: table, Row: row, Versions: r.take()}, nil
}
