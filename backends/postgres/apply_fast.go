package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// state is a cell as the server saw it.
type state struct {
	lock, write, mark rowstore.Version
}

// Modes of a fast statement, as schema_apply.sql has them.
const (
	modeCells  = 0 // each group is one cell
	modeHeld   = 1 // some have more, and are expected to apply, since they hold locks
	modeGroups = 2 // some have more
)

// modeOf returns the mode for tasks.
func (w *work) modeOf(ts []*task) int {
	mode := modeCells
	for _, t := range ts {
		if t.cells[1]-t.cells[0] < 2 {
			continue
		}
		mode = max(mode, modeHeld)
		for i := t.cells[0]; i < t.cells[1]; i++ {
			if w.cells[i].lk != lockPresent {
				return modeGroups
			}
		}
	}
	return mode
}

// sorted brings the sides into the order of keys, in which rows are locked, and returns that of the cells.
func (w *work) sorted() []int32 {
	order := make([]int32, len(w.cells))
	for i := range order {
		order[i] = int32(i) //nolint:gosec // limited
	}
	if len(order) > 1 {
		slices.SortFunc(order, func(a, b int32) int {
			x, y := &w.cells[a], &w.cells[b]
			return cmp.Or(strings.Compare(x.tab, y.tab), strings.Compare(x.key, y.key), strings.Compare(x.col, y.col))
		})
	}
	slices.SortStableFunc(w.sides, func(a, b sideOp) int {
		return cmp.Or(strings.Compare(a.tab, b.tab), strings.Compare(a.key, b.key), strings.Compare(a.col, b.col), cmp.Compare(a.ts, b.ts))
	})
	return order
}

// fast runs compiled tasks in one statement. Tasks that lost a race are not done
// when it returns nil, and certainly did not happen. drawn is as in runOn. d, which may be nil, says
// how the tasks draw their own timestamps.
func (s *plainStore) fast(ctx context.Context, w *work, ts []*task, deferred bool, drawn *oracle.Timestamp, d *drawing) error {
	order, shape, mode := w.sorted(), shapeOf(w.cells, d != nil), w.modeOf(ts)
	if d != nil && len(ts) == 1 {
		mode = min(mode, modeHeld) // nobody else pays for its failure
	}
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	for {
		answer := fastAnswer{s: s, work: w, order: order, lost: make(map[int]state)}
		params := w.params(a, shape, order, deferred, mode, d)
		choose := func(c *pgconn.PgConn) (query, [][]byte) {
			if answer.on = nil; d != nil {
				answer.on, answer.knew = c, s.boundOn(c)
				d.bound(params, answer.knew)
			}
			return s.q.apply[shape], params
		}
		err := s.runOn(ctx, choose, true, answer.begin, answer.line, drawn)
		if sqlState(err) == partialGroup && !errors.Is(err, rowstore.ErrAmbiguous) {
			if mode == modeHeld {
				mode = modeGroups
				continue
			}
			return nil // all of it was rolled back
		}
		if sqlState(err) == lockNotAvailable && !errors.Is(err, rowstore.ErrAmbiguous) {
			if waitedOut(err) {
				return err
			}
			return nil // it gave way to another client, and was rolled back
		}
		if err != nil {
			return err
		}
		if answer.inc == "" {
			return noFirstLine()
		}
		if d != nil && answer.first == 0 {
			if _, err := s.draw(ctx, 1, true); err != nil {
				return err
			}
			continue
		}
		for g, t := range ts {
			t.inc = answer.inc
			t.settle(w, answer.lost, d != nil && !t.drew(answer.first, g))
		}
		return nil
	}
}

// noFirstLine says of a write that the server's answer does not have the line that all have.
func noFirstLine() error {
	return fmt.Errorf("%w: the server's answer has no first line", rowstore.ErrAmbiguous)
}

// fastAnswer reads the answer to a fast statement: the incarnation and the cells that
// were not changed.
type fastAnswer struct {
	s     *plainStore
	work  *work
	order []int32
	inc   string
	lost  map[int]state // by the cell's place in the work

	on    *pgconn.PgConn // for tasks that draw: the connection, and the bound that it knew
	knew  uint64
	first rowstore.Timestamp // what the first task has drawn, or 0
}

func (a *fastAnswer) begin() {
	clear(a.lost)
	a.inc, a.first = "", 0
}

func (a *fastAnswer) line(f *fields) {
	i := f.int4(0)
	if i == 0 {
		a.inc = string(f.values[1])
		if a.on != nil {
			a.first = rowstore.Timestamp(f.int8(2))
			a.s.stepped(a.on, a.knew, f.int8(4), a.first)
		}
		return
	}
	if i < 1 || i > len(a.order) {
		f.bad(0)
		return
	}
	c := int(a.order[i-1])
	col := a.work.cells[c].col
	version := func(family rowstore.Family, at int) rowstore.Version {
		if f.values[at] == nil {
			return rowstore.Version{}
		}
		return rowstore.Version{Family: family, Column: col, TS: rowstore.Timestamp(f.int8(at)), Value: f.bytes(at + 1)}
	}
	a.lost[c] = state{version(rowstore.Lock, 2), version(rowstore.Write, 4), version(rowstore.Mark, 6)}
}

// settle finds out what became of a task from the cells that were not changed. late says that its timestamp
// is too late, so that none was.
func (t *task) settle(w *work, lost map[int]state, late bool) {
	if !late && t.allApplied(lost) {
		t.done, t.applied = true, true
		return
	}
	type place struct {
		mut int
		col string
	}
	places := make(map[place]int, t.cells[1]-t.cells[0])
	for k := t.cells[0]; k < t.cells[1]; k++ {
		places[place{w.cells[k].mut, w.cells[k].col}] = k
	}
	for i := range t.muts {
		for j := range t.muts[i].Conditions {
			c := &t.muts[i].Conditions[j]
			var broke rowstore.Version
			holds := true
			if c.Kind == rowstore.IfIncarnation {
				holds = c.Incarnation == t.inc
			} else if k, ok := places[place{i, c.Column}]; ok {
				st := lost[k]
				broke, holds = st.satisfies(c)
			}
			if !holds {
				t.done = true
				t.failed = i
				t.out = rowstore.Outcome{Failed: j, Broke: broke}
				return
			}
		}
	}
	t.done, t.late = late, late
}

// allApplied tells whether a task was applied: its incarnation is the server's, and all of its
// cells were changed.
func (t *task) allApplied(lost map[int]state) bool {
	for i := range t.muts {
		for j := range t.muts[i].Conditions {
			if c := &t.muts[i].Conditions[j]; c.Kind == rowstore.IfIncarnation && c.Incarnation != t.inc {
				return false
			}
		}
	}
	if len(lost) == 0 {
		return true
	}
	for i := t.cells[0]; i < t.cells[1]; i++ {
		if _, ok := lost[i]; ok {
			return false
		}
	}
	return true
}

// satisfies tells whether a condition on a cell's state holds, and what broke it.
func (st *state) satisfies(c *rowstore.Condition) (rowstore.Version, bool) {
	v := st.lock
	switch c.Family {
	case rowstore.Write:
		v = st.write
	case rowstore.Mark:
		v = st.mark
	}
	switch c.Kind {
	case rowstore.IfAbsent:
		if v.TS != 0 && v.TS >= c.TS {
			return v, false
		}
	case rowstore.IfAbsentAt:
		if v.TS != 0 && v.TS == c.TS {
			return v, false
		}
	default:
		return rowstore.Version{}, v.TS == c.TS && v.TS != 0
	}
	return rowstore.Version{}, true
}

// params makes the parameters of a fast statement.
func (w *work) params(a *arrays, shape int, order []int32, deferred bool, mode int, d *drawing) [][]byte {
	a.used = 0
	ig, is := a.list(oidInt4), a.list(oidText)
	for i, g := range w.incG {
		ig.int4(g)
		is.string(incarnationParam(w.incs[i]))
	}
	g, tab, key, col := a.list(oidInt4), a.list(oidBytea), a.list(oidBytea), a.list(oidBytea)
	clean, mask := false, 0
	for _, i := range order {
		o := &w.cells[i]
		g.int4(o.g)
		tab.string(o.tab)
		key.string(o.key)
		col.string(o.col)
		clean = clean || o.le == lockDelete && o.wt == none && o.mt == none || o.xh != none
		if o.rh != none {
			mask |= cutWrites
		}
	}
	p := append(a.params[:0], boolParam(deferred), int4Param(mode), ig.orNull(), is.orNull(),
		g.param(), tab.param(), key.param(), col.param())
	switch shape {
	case shapePrewrite:
		p = w.prewriteParams(a, p, order)
	case shapeCommit:
		p = w.commitParams(a, p, order)
	case shapeOne:
		p = w.oneParams(a, p, order)
	default:
		p = w.anyParams(a, p, order)
	}
	if shapes[shape].empties {
		p = append(p, boolParam(clean))
	}
	if len(shapes[shape].draws) > 0 {
		p = d.params(a, p)
	}
	a.params = w.sideParams(a, p, mask)
	return a.params
}

func (w *work) prewriteParams(a *arrays, p [][]byte, order []int32) [][]byte {
	lt, lv := a.list(oidInt8), a.list(oidBytea)
	for _, i := range order {
		o := &w.cells[i]
		lt.int8(uint64(o.lt))
		lv.bytes(o.lv)
	}
	return append(p, lt.param(), lv.param())
}

func (w *work) commitParams(a *arrays, p [][]byte, order []int32) [][]byte {
	lt, wt, wv := a.list(oidInt8), a.list(oidInt8), a.list(oidBytea)
	for _, i := range order {
		o := &w.cells[i]
		lt.int8(uint64(o.lt))
		wt.int8(uint64(o.wt))
		wv.bytes(o.wv)
	}
	return append(p, lt.param(), wt.param(), wv.param())
}

func (w *work) oneParams(a *arrays, p [][]byte, order []int32) [][]byte {
	lt, wt, wv := a.list(oidInt8), a.list(oidInt8), a.list(oidBytea)
	for _, i := range order {
		o := &w.cells[i]
		lt.int8(uint64(o.wf))
		wt.int8(uint64(o.wt))
		wv.bytes(o.wv)
	}
	return append(p, lt.param(), wt.param(), wv.param())
}

func (w *work) anyParams(a *arrays, p [][]byte, order []int32) [][]byte {
	stamp := func(to *array, ts rowstore.Timestamp) {
		if ts == none {
			to.none()
		} else {
			to.int8(uint64(ts))
		}
	}
	lk, lc, wf, mf := a.list(oidInt2), a.list(oidInt8), a.list(oidInt8), a.list(oidInt8)
	le, lt, lv := a.list(oidInt2), a.list(oidInt8), a.list(oidBytea)
	wt, wv, mt, mv := a.list(oidInt8), a.list(oidBytea), a.list(oidInt8), a.list(oidBytea)
	rl, rh, xl, xh := a.list(oidInt8), a.list(oidInt8), a.list(oidInt8), a.list(oidInt8)
	for _, i := range order {
		o := &w.cells[i]
		lk.int2(o.lk)
		lc.int8(uint64(o.lc))
		stamp(wf, o.wf)
		stamp(mf, o.mf)
		le.int2(o.le)
		lt.int8(uint64(o.lt))
		lv.bytes(o.lv)
		stamp(wt, o.wt)
		wv.bytes(o.wv)
		stamp(mt, o.mt)
		mv.bytes(o.mv)
		rl.int8(uint64(o.rl))
		stamp(rh, o.rh)
		xl.int8(uint64(o.xl))
		stamp(xh, o.xh)
	}
	return append(p, lk.param(), lc.param(), wf.param(), mf.param(), le.param(), lt.param(), lv.param(),
		wt.param(), wv.param(), mt.param(), mv.param(), rl.param(), rh.param(), xl.param(), xh.param())
}

func (w *work) sideParams(a *arrays, p [][]byte, mask int) [][]byte {
	g, kind, tab, key, col, ts, val := a.list(oidInt4), a.list(oidInt2), a.list(oidBytea), a.list(oidBytea),
		a.list(oidBytea), a.list(oidInt8), a.list(oidBytea)
	slot := a.list(oidInt4)
	for i := range w.sides {
		o := &w.sides[i]
		mask |= int(o.kind)
		g.int4(o.g)
		kind.int2(o.kind)
		tab.string(o.tab)
		key.string(o.key)
		col.string(o.col)
		ts.int8(uint64(o.ts))
		val.bytes(o.val)
		if o.kind == putNotify || o.kind == deleteNotify {
			slot.int4(int(rowstore.Slot(o.tab, o.key)))
		} else {
			slot.none()
		}
	}
	slots := slot.orNull()
	if mask&(putNotify|deleteNotify) == 0 {
		slots = nil
	}
	return append(p, int4Param(mask), g.orNull(), kind.orNull(), tab.orNull(), key.orNull(), col.orNull(), ts.orNull(), val.orNull(), slots)
}
