package explore

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A store may draw the timestamp of a group before the group's writes become visible, if whoever may have drawn
// a later one waits for them (rowstore.Grouper). Postgres does so, under locks of the rows; its README has the rules.
// In a program with Drawn the stores do it in the same way:
//
//   - A group with a timestamp takes locks of its rows, then draws. Judging and writing are a step of their own. Anything
//     may happen in between, but for what waits for the locks.
//   - Who reads a row waits while such a lock of somebody who changes it is held.
//   - Who scans waits for those that hold locks when he comes, and for nobody else.
//   - Apply, and groups without a timestamp, wait for nothing.

// drawn is a group under way in such a store. world.mu guards it.
type drawn struct {
	store *memstore.Store
	rows  map[rowOf]bool // whether it is changed, and not only judged
	held  bool
	ts    rowstore.Timestamp
	told  *rowstore.GroupOutcome // set if it ended at the draw
}

type rowOf struct{ table, row string }

// hold adds a group to those that hold locks.
func (w *world) hold(d *drawn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.held = true
	w.drawn = append(w.drawn, d)
}

// release takes the locks of a group away. world.mu is held.
func (w *world) release(d *drawn) {
	d.held = false
	w.drawn = slices.DeleteFunc(w.drawn, func(o *drawn) bool { return o == d })
}

// changing tells whether somebody holds a row of a store that he changes. world.mu is held.
func (w *world) changing(store *memstore.Store, row rowOf) bool {
	return slices.ContainsFunc(w.drawn, func(d *drawn) bool { return d.store == store && d.rows[row] })
}

// mayLock tells whether a group can take its locks. world.mu is held.
func (w *world) mayLock(d *drawn) bool {
	return !slices.ContainsFunc(w.drawn, func(o *drawn) bool {
		if o.store != d.store {
			return false
		}
		for row, changes := range d.rows {
			if changed, locked := o.rows[row]; locked && (changes || changed) {
				return true
			}
		}
		return false
	})
}

// drawnParts are the two steps of a group. The second has an outcome for the caller.
func (g *gate) drawnParts(gr rowstore.Group, name string, rows []touch, tell func(rowstore.GroupOutcome)) []part {
	w := g.c.w
	d := &drawn{store: g.inner, rows: map[rowOf]bool{}}
	for i := range gr.Mutations {
		m := &gr.Mutations[i]
		row := rowOf{m.Table, m.Row}
		d.rows[row] = d.rows[row] || len(m.Edits) > 0
	}
	drew := false
	draw := part{
		label: name + " draws", touches: append(slices.Clone(rows), touch{oracleTable, "", true}),
		may: func() bool { return w.mayLock(d) },
		do: func() {
			drew = true
			ts, err := g.inner.Oracle().Draw(context.Background(), 1)
			switch {
			case err != nil:
				d.told = &rowstore.GroupOutcome{Err: err}
			case gr.NotAfter != 0 && ts > gr.NotAfter:
				d.told = &rowstore.GroupOutcome{TooLate: true}
			default:
				d.ts = ts
				w.hold(d)
			}
		},
	}
	end := part{
		label: name, touches: rows,
		may: func() bool { return drew },
		do: func() {
			if d.told != nil {
				tell(*d.told)
				return
			}
			got, err := g.inner.Group(context.Background(), []rowstore.Group{assigned(gr, d.ts)})
			if err != nil {
				got = []rowstore.GroupOutcome{{Err: err}}
			}
			if got[0].Applied {
				got[0].Commit = d.ts
			}
			tell(got[0])
			w.mu.Lock()
			defer w.mu.Unlock()
			w.release(d)
		},
		abandon: func() { w.release(d) },
	}
	return []part{draw, end}
}

// assigned is a group whose timestamp was drawn already.
func assigned(gr rowstore.Group, ts rowstore.Timestamp) rowstore.Group {
	all := make([]rowstore.Mutation, len(gr.Mutations))
	for i := range gr.Mutations {
		all[i] = clone(gr.Mutations[i])
		for j := range all[i].Edits {
			if e := &all[i].Edits[j]; e.TS == rowstore.AssignedTimestamp {
				e.TS = ts
			}
		}
	}
	return rowstore.Group{Mutations: all}
}

// mayRead tells whether a row can be read.
func (g *gate) mayRead(table, row string) func() bool {
	w := g.c.w
	if !w.program.Drawn || w.program.careless {
		return nil
	}
	return func() bool { return !w.changing(g.inner, rowOf{table, row}) }
}

// behindThose is a step that notes whom a scan of a table waits for, and whether it need not wait any more.
func (g *gate) behindThose(table string) (note part, may func() bool) {
	w := g.c.w
	var those []*drawn
	noted := false
	note = part{label: "asks who commits", touches: []touch{{table: table}}, do: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		noted = true
		if !w.program.careless {
			those = slices.DeleteFunc(slices.Clone(w.drawn), func(d *drawn) bool { return d.store != g.inner })
		}
	}}
	return note, func() bool {
		return noted && !slices.ContainsFunc(those, func(d *drawn) bool { return d.held })
	}
}
