package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// cellName is what names a cell.
type cellName struct{ tab, key, col string }

// generalWork are tasks as the function apply_general gets them.
type generalWork struct {
	tasks []*task
	cells []cellName       // in the order of keys
	place map[cellName]int // in cells, from 1
	inc   string
	first rowstore.Timestamp      // what the first task has drawn, or 0
	broke map[int]brokenCondition // by the task's place
}

// brokenCondition is the first condition of a task that did not hold.
type brokenCondition struct {
	mut int
	out rowstore.Outcome
}

// general runs tasks of any kind in one transaction.
func (s *plainStore) general(ctx context.Context, ts []*task, deferred bool, d *drawing) error {
	w := newGeneralWork(ts)
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	for {
		params := d.params(a, w.params(a, deferred))
		if err := s.run(ctx, s.q.general, params, true, w.begin, w.line); err != nil {
			return err
		}
		if w.inc == "" {
			return noFirstLine()
		}
		if d == nil || w.first != 0 {
			break
		}
		if _, err := s.draw(ctx, 1, true); err != nil {
			return err
		}
	}
	for g, t := range ts {
		t.done, t.inc = true, w.inc
		if r, ok := w.broke[g]; ok {
			t.failed, t.out = r.mut, r.out
		} else if d != nil && !t.drew(w.first, g) {
			t.late = true
		} else {
			t.applied = true
		}
	}
	return nil
}

func newGeneralWork(ts []*task) *generalWork {
	w := &generalWork{tasks: ts, place: map[cellName]int{}, broke: map[int]brokenCondition{}}
	for _, t := range ts {
		for i := range t.muts {
			m := &t.muts[i]
			for j := range m.Conditions {
				if m.Conditions[j].Kind != rowstore.IfIncarnation {
					w.add(m, m.Conditions[j].Column)
				}
			}
			for j := range m.Edits {
				w.add(m, m.Edits[j].Column)
			}
		}
	}
	slices.SortFunc(w.cells, func(a, b cellName) int {
		return cmp.Or(strings.Compare(a.tab, b.tab), strings.Compare(a.key, b.key), strings.Compare(a.col, b.col))
	})
	for i, n := range w.cells {
		w.place[n] = i + 1
	}
	return w
}

// add adds a cell of a mutation, once.
func (w *generalWork) add(m *rowstore.Mutation, col string) {
	n := cellName{m.Table, m.Row, col}
	if _, ok := w.place[n]; !ok {
		w.place[n] = 0
		w.cells = append(w.cells, n)
	}
}

// params makes the parameters of apply_general: the cells, the conditions and the edits.
func (w *generalWork) params(a *arrays, deferred bool) [][]byte {
	a.used = 0
	tab, key, col, slot := a.list(oidBytea), a.list(oidBytea), a.list(oidBytea), a.list(oidInt4)
	for _, n := range w.cells {
		tab.string(n.tab)
		key.string(n.key)
		col.string(n.col)
		slot.int4(int(rowstore.Slot(n.tab, n.key)))
	}
	cg, cm, cn, ccell := a.list(oidInt4), a.list(oidInt4), a.list(oidInt4), a.list(oidInt4)
	ckind, cfam, cts, cis := a.list(oidInt2), a.list(oidInt2), a.list(oidInt8), a.list(oidText)
	eg, ecell, ekind, efam := a.list(oidInt4), a.list(oidInt4), a.list(oidInt2), a.list(oidInt2)
	ets, eto, eval := a.list(oidInt8), a.list(oidInt8), a.list(oidBytea)
	for g, t := range w.tasks {
		for i := range t.muts {
			m := &t.muts[i]
			for j := range m.Conditions {
				c := &m.Conditions[j]
				cg.int4(g)
				cm.int4(i)
				cn.int4(j)
				ccell.int4(w.place[cellName{m.Table, m.Row, c.Column}])
				ckind.int2(uint8(c.Kind))
				cfam.int2(uint8(c.Family))
				cts.int8(uint64(c.TS))
				cis.string(incarnationParam(c.Incarnation))
			}
			for j := range m.Edits {
				e := &m.Edits[j]
				eg.int4(g)
				ecell.int4(w.place[cellName{m.Table, m.Row, e.Column}])
				ekind.int2(uint8(e.Kind))
				efam.int2(uint8(e.Family))
				ets.int8(uint64(e.TS))
				eto.int8(uint64(e.To))
				eval.bytes(e.Value)
			}
		}
	}
	a.params = append(a.params[:0], boolParam(deferred), tab.param(), key.param(), col.param(),
		cg.param(), cm.param(), cn.param(), ccell.param(), ckind.param(), cfam.param(), cts.param(), cis.param(),
		eg.param(), ecell.param(), ekind.param(), efam.param(), ets.param(), eto.param(), eval.param(), slot.param())
	return a.params
}

func (w *generalWork) begin() {
	w.inc, w.first = "", 0
	clear(w.broke)
}

// line reads the incarnation, or the first condition of a task that did not hold.
func (w *generalWork) line(f *fields) {
	g := f.int4(0)
	if g == -1 {
		w.inc, w.first = string(f.values[1]), rowstore.Timestamp(f.int8(4))
		return
	}
	i, j := f.int4(2), f.int4(3)
	if g < 0 || g >= len(w.tasks) || i < 0 || i >= len(w.tasks[g].muts) || j < 0 || j >= len(w.tasks[g].muts[i].Conditions) {
		f.bad(0)
		return
	}
	o := rowstore.Outcome{Failed: j}
	if c := &w.tasks[g].muts[i].Conditions[j]; f.values[4] != nil {
		o.Broke = rowstore.Version{Family: c.Family, Column: c.Column, TS: rowstore.Timestamp(f.int8(4)), Value: f.bytes(5)}
	}
	w.broke[g] = brokenCondition{i, o}
}
