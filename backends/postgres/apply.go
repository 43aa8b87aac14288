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

// GroupKey implements rowstore.Grouper: any rows may share a group.
func (s *store) GroupKey(table, row string) string { return "postgres" }

// Draws implements rowstore.Grouper: a timestamp that a transaction draws is known
// to others before its rows are, so a reader could miss them.
func (s *store) Draws(key string) bool { return false }

// task is a group of mutations, or a single one, on its way.
type task struct {
	muts  []rowstore.Mutation
	cells [2]int // its part of the work's cells
	sides [2]int // its part of the work's sides

	done    bool
	applied bool
	failed  int // the mutation of out
	out     rowstore.Outcome
	inc     string
	err     error
}

// Apply implements rowstore.Store.
func (s *store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	ctx, done, err := s.enter(ctx, "apply")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckBatch(muts); err != nil {
		return nil, fmt.Errorf("postgres: apply: %w", err)
	}
	if err := rowstore.CheckLimits(s.Limits(), muts); err != nil {
		return nil, fmt.Errorf("postgres: apply: %w", err)
	}
	if len(muts) == 0 {
		return nil, nil
	}
	tasks := make([]task, len(muts))
	for i := range muts {
		tasks[i].muts = muts[i : i+1]
	}
	var drawn *oracle.Timestamp
	if opts.Draw && len(muts) <= step {
		drawn = new(oracle.Timestamp)
	}
	if err := s.perform(ctx, tasks, opts.Deferred, drawn); err != nil {
		return nil, s.fail("apply", err)
	}
	outs := make([]rowstore.Outcome, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		outs[i] = t.out
		outs[i].Applied = t.applied
		outs[i].Incarnation = t.inc
		if drawn != nil && *drawn != 0 && t.applied {
			outs[i].Drawn = *drawn + oracle.Timestamp(i) //nolint:gosec // few
		}
		if t.err != nil {
			outs[i] = rowstore.Outcome{Err: s.fail("apply", t.err)}
		}
	}
	return outs, nil
}

// Group implements rowstore.Grouper.
func (s *store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	ctx, done, err := s.enter(ctx, "group")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckGroups(s, groups); err != nil {
		return nil, fmt.Errorf("postgres: group: %w", err)
	}
	for i := range groups {
		if err := rowstore.CheckLimits(s.Limits(), groups[i].Mutations); err != nil {
			return nil, fmt.Errorf("postgres: group: %w", err)
		}
	}
	if len(groups) == 0 {
		return nil, nil
	}
	tasks := make([]task, len(groups))
	for i := range groups {
		tasks[i].muts = groups[i].Mutations
	}
	if err := s.perform(ctx, tasks, false, nil); err != nil {
		return nil, s.fail("group", err)
	}
	outs := make([]rowstore.GroupOutcome, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		switch {
		case t.err != nil:
			outs[i] = rowstore.GroupOutcome{Err: s.fail("group", t.err)}
		case t.applied:
			outs[i] = rowstore.GroupOutcome{Applied: true, Incarnation: t.inc}
		default:
			t.out.Incarnation = t.inc
			outs[i] = rowstore.GroupOutcome{Failed: t.failed, Outcome: t.out, Incarnation: t.inc}
		}
	}
	return outs, nil
}

// What one statement takes at most: lists are limited to a gigabyte, and a statement
// holds the locks of all of its rows until its end.
const (
	maxBatchBytes = 8 << 20
	maxBatchCells = 4096
)

// perform runs tasks, in as few transactions as their kinds and sizes allow. It
// returns an error when there was one transaction only and that failed; otherwise
// the error of a transaction is that of its tasks. drawn, which may be nil, gets
// the first of as many timestamps as there are tasks where one fast statement did
// all of them: then they can be drawn with it, after it. Else it gets 0.
func (s *store) perform(ctx context.Context, tasks []task, deferred bool, drawn *oracle.Timestamp) (err error) {
	defer func() { s.pusher.add(wakes(tasks, err)) }()
	// The common case is that all go into one fast statement.
	var w work
	var checks, general, fast []*task
	for i := range tasks {
		t := &tasks[i]
		switch {
		case len(t.muts) == 1 && len(t.muts[0].Edits) == 0:
			checks = append(checks, t)
		case w.compile(t):
			fast = append(fast, t)
		default:
			general = append(general, t)
		}
	}
	parts, failures := 0, 0
	var last error
	part := func(ts []*task, do func([]*task) error) {
		if len(ts) == 0 {
			return
		}
		parts++
		if err := do(ts); err != nil {
			failures++
			last = err
			for _, t := range ts {
				if !t.done {
					t.err = err
				}
			}
		}
	}
	part(checks, func(ts []*task) error { return s.check(ctx, ts, deferred) })
	if len(fast) > 0 && w.bytes <= maxBatchBytes && len(w.cells)+len(w.sides) <= maxBatchCells {
		if len(fast) < len(tasks) {
			drawn = nil
		}
		part(fast, func(ts []*task) error { return s.fast(ctx, &w, ts, deferred, drawn) })
	} else {
		for _, ts := range chunks(fast) {
			part(ts, func(ts []*task) error {
				var w work
				for _, t := range ts {
					w.compile(t)
				}
				return s.fast(ctx, &w, ts, deferred, nil)
			})
		}
	}
	// What lost a race to another client is judged again, with the rows held.
	for _, t := range fast {
		if !t.done && t.err == nil {
			general = append(general, t)
			if drawn != nil {
				*drawn = 0 // this one will be applied after the draw
			}
		}
	}
	for _, ts := range chunks(general) {
		part(ts, func(ts []*task) error { return s.general(ctx, ts, deferred) })
	}
	if parts == 1 && failures == 1 {
		return last
	}
	return nil
}

// chunks cuts tasks into parts that one statement can take.
func chunks(tasks []*task) [][]*task {
	var all [][]*task
	from, bytes, cells := 0, 0, 0
	for i, t := range tasks {
		b, c := 0, 0
		for j := range t.muts {
			m := &t.muts[j]
			c += len(m.Conditions) + len(m.Edits)
			for k := range m.Edits {
				b += len(m.Edits[k].Value)
			}
		}
		if i > from && (bytes+b > maxBatchBytes || cells+c > maxBatchCells) {
			all = append(all, tasks[from:i])
			from, bytes, cells = i, 0, 0
		}
		bytes += b
		cells += c
	}
	if from < len(tasks) {
		all = append(all, tasks[from:])
	}
	return all
}

// Kinds of conditions and edits of a lock in a cellOp, as schema_apply.sql has them.
const (
	lockAny     = 0
	lockAbsent  = 1 // none at or above lc
	lockNotAt   = 2
	lockPresent = 3
	lockKeep    = 0
	lockPut     = 1
	lockDelete  = 2
)

// Kinds of sides, as schema_apply.sql has them.
const (
	putData      = 1
	deleteData   = 2
	putNotify    = 4
	deleteNotify = 8
	cutWrites    = 16 // no side, but a bit of their mask: a cell's writes are removed
)

const none = ^rowstore.Timestamp(0)

// cellOp is what a mutation asks and does of one cell.
type cellOp struct {
	g, mut         int // its task in the work, and its mutation in the task
	tab, key, col  string
	lk, le         uint8
	lc, lt         rowstore.Timestamp
	wf, mf, wt, mt rowstore.Timestamp // none for none
	lv, wv, mv     []byte
	rl, rh, xl, xh rowstore.Timestamp // ranges of writes, and of marks, to remove; rh, xh none for none
}

// sideOp is an edit of family Data or Notify.
type sideOp struct {
	g             int
	kind          uint8
	tab, key, col string
	ts            rowstore.Timestamp
	val           []byte
}

// work is what a fast statement does.
type work struct {
	tasks int
	cells []cellOp
	sides []sideOp
	incs  []string // of tasks, with incG
	incG  []int
	bytes int
}

// compile adds a task, or nothing, and false, when a fast statement cannot do it:
// that judges and changes each cell that the task names by one update of it.
func (w *work) compile(t *task) bool {
	cells, sides, incs, bytes := len(w.cells), len(w.sides), len(w.incs), w.bytes
	for i := range t.muts {
		if !w.mutation(i, &t.muts[i]) {
			w.cells, w.sides, w.incs, w.incG, w.bytes = w.cells[:cells], w.sides[:sides], w.incs[:incs], w.incG[:incs], bytes
			return false
		}
	}
	t.cells = [2]int{cells, len(w.cells)}
	t.sides = [2]int{sides, len(w.sides)}
	w.tasks++
	return true
}

func (w *work) mutation(mut int, m *rowstore.Mutation) bool {
	from := len(w.cells)
	var wide map[string]int // the places of the columns, where there are many
	cell := func(col string) *cellOp {
		if n := len(w.cells) - from; n < 32 {
			for i := from; i < len(w.cells); i++ {
				if w.cells[i].col == col {
					return &w.cells[i]
				}
			}
		} else {
			if wide == nil {
				wide = make(map[string]int, 4*n)
				for i := from; i < len(w.cells); i++ {
					wide[w.cells[i].col] = i
				}
			}
			if i, ok := wide[col]; ok {
				return &w.cells[i]
			}
			wide[col] = len(w.cells)
		}
		w.cells = append(w.cells, cellOp{
			g: w.tasks, mut: mut, tab: m.Table, key: m.Row, col: col, wf: none, mf: none, wt: none, mt: none, rh: none, xh: none,
		})
		return &w.cells[len(w.cells)-1]
	}
	for i := range m.Conditions {
		c := &m.Conditions[i]
		if c.Kind == rowstore.IfIncarnation {
			w.incs = append(w.incs, c.Is)
			w.incG = append(w.incG, w.tasks)
			continue
		}
		if c.Family == rowstore.Notify {
			return false
		}
		o := cell(c.Column)
		switch {
		case c.Family == rowstore.Write:
			o.wf = min(o.wf, c.TS)
		case c.Family == rowstore.Rollback:
			o.mf = min(o.mf, c.TS)
		case o.lk != lockAny:
			return false
		case c.Kind == rowstore.IfAbsent:
			o.lk, o.lc = lockAbsent, c.TS
		case c.Kind == rowstore.IfAbsentAt:
			o.lk, o.lc = lockNotAt, c.TS
		default:
			o.lk, o.lc = lockPresent, c.TS
		}
	}
	for i := range m.Edits {
		e := &m.Edits[i]
		w.bytes += len(e.Value)
		put := e.Kind == rowstore.DoPut
		to := e.TS
		if e.Kind == rowstore.DoDeleteRange {
			if to = e.To; e.Family != rowstore.Write && e.Family != rowstore.Rollback {
				return false
			}
		}
		switch e.Family {
		case rowstore.Lock:
			o := cell(e.Column)
			if o.le != lockKeep {
				return false
			}
			o.le, o.lt, o.lv = lockDelete, e.TS, nil
			if put {
				o.le, o.lv = lockPut, e.Value
			}
		case rowstore.Write:
			o := cell(e.Column)
			if o.wt != none || o.rh != none {
				return false
			}
			if put {
				o.wt, o.wv = e.TS, e.Value
			} else {
				o.rl, o.rh = e.TS, to
			}
		case rowstore.Rollback:
			o := cell(e.Column)
			if o.mt != none || o.xh != none {
				return false
			}
			if put {
				o.mt, o.mv = e.TS, e.Value
			} else {
				o.xl, o.xh = e.TS, to
			}
		case rowstore.Data, rowstore.Notify:
			// Where a mutation has several parts it holds the cell of every column that it
			// names, so that it is judged and done at one moment.
			if len(m.Edits)+len(m.Conditions) > 1 {
				cell(e.Column)
			}
			o := sideOp{g: w.tasks, tab: m.Table, key: m.Row, col: e.Column, ts: e.TS, val: e.Value}
			switch {
			case e.Family == rowstore.Data && put:
				o.kind = putData
			case e.Family == rowstore.Data:
				o.kind = deleteData
			case put:
				o.kind = putNotify
			default:
				o.kind = deleteNotify
			}
			w.sides = append(w.sides, o)
		}
	}
	return true
}

// shapeOf returns the index in shapes of the function that does the cells.
func shapeOf(cells []cellOp) int {
	prewrite, commit := true, true
	for i := range cells {
		o := &cells[i]
		if o.rh != none || o.xh != none {
			return 2
		}
		if o.lk != lockAbsent || o.lc != 0 || o.le != lockPut || o.wf != o.lt || o.mf != o.lt || o.wt != none || o.mt != none {
			prewrite = false
		}
		if o.lk != lockPresent || o.lc != o.lt || o.le != lockDelete || o.wt == none || o.wf != none || o.mf != none || o.mt != none {
			commit = false
		}
	}
	switch {
	case prewrite:
		return 0
	case commit:
		return 1
	default:
		return 2
	}
}

// state is a cell as the server saw it.
type state struct {
	lock, write, mark rowstore.Version
}

// fast runs compiled tasks in one statement. Tasks that lost a race are not done
// when it returns nil, and certainly did not happen.
// drawn is as in runOn.
func (s *store) fast(ctx context.Context, w *work, ts []*task, deferred bool, drawn *oracle.Timestamp) error {
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
	shape := shapeOf(w.cells)
	// 0: each group is one cell. 1: larger ones that are expected to apply, since they
	// hold locks. 2: larger ones.
	mode := 0
	for _, t := range ts {
		if n := t.cells[1] - t.cells[0]; n > 1 {
			mode = max(mode, 1)
			for i := t.cells[0]; i < t.cells[1]; i++ {
				if w.cells[i].lk != lockPresent {
					mode = 2
				}
			}
		}
	}
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	for {
		lost := make(map[int]state)
		inc := ""
		begin := func() { clear(lost); inc = "" }
		params := w.params(a, shape, order, deferred, mode)
		choose := func(*pgconn.PgConn) (query, [][]byte) { return s.q.apply[shape], params }
		err := s.runOn(ctx, choose, true, begin, func(f *fields) {
			i := f.int4(0)
			if i == 0 {
				inc = string(f.values[1])
				return
			}
			if i < 1 || i > len(order) {
				f.bad(0)
				return
			}
			c := int(order[i-1])
			col := w.cells[c].col
			version := func(family rowstore.Family, at int) rowstore.Version {
				if f.values[at] == nil {
					return rowstore.Version{}
				}
				return rowstore.Version{Family: family, Column: col, TS: rowstore.Timestamp(f.int8(at)), Value: f.bytes(at + 1)}
			}
			lost[c] = state{version(rowstore.Lock, 2), version(rowstore.Write, 4), version(rowstore.Rollback, 6)}
		}, drawn)
		if sqlState(err) == partialGroup && !errors.Is(err, rowstore.ErrAmbiguous) {
			if mode == 1 {
				mode = 2
				continue
			}
			return nil // all of it was rolled back
		}
		if sqlState(err) == lockNotAvailable && !errors.Is(err, rowstore.ErrAmbiguous) {
			return nil // it gave way to another client, and was rolled back
		}
		if err != nil {
			return err
		}
		if inc == "" {
			return fmt.Errorf("%w: the server's answer has no first line", rowstore.ErrAmbiguous)
		}
		for _, t := range ts {
			t.inc = inc
			t.judge(w, lost)
		}
		return nil
	}
}

// judge finds out what became of a task from the cells that were not changed.
func (t *task) judge(w *work, lost map[int]state) {
	applied := true
	for i := range t.muts {
		for j := range t.muts[i].Conditions {
			if c := &t.muts[i].Conditions[j]; c.Kind == rowstore.IfIncarnation && c.Is != t.inc {
				applied = false
			}
		}
	}
	if applied {
		if len(lost) == 0 {
			t.done, t.applied = true, true
			return
		}
		for i := t.cells[0]; i < t.cells[1]; i++ {
			if _, ok := lost[i]; ok {
				applied = false
			}
		}
	}
	if applied {
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
				holds = c.Is == t.inc
			} else {
				if k, ok := places[place{i, c.Column}]; ok {
					st := lost[k]
					broke, holds = st.judge(c)
				}
			}
			if !holds {
				t.done = true
				t.failed = i
				t.out = rowstore.Outcome{Failed: j, Broke: broke}
				return
			}
		}
	}
}

// judge tells whether a condition on a cell's state holds, and what broke it.
func (st *state) judge(c *rowstore.Condition) (rowstore.Version, bool) {
	v := st.lock
	switch c.Family {
	case rowstore.Write:
		v = st.write
	case rowstore.Rollback:
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

// wakes lists the tables whose listeners are to be woken: of tasks that were applied,
// or may have been.
func wakes(ts []task, err error) []string {
	var tables []string
	for k := range ts {
		t := &ts[k]
		if !t.applied && !errors.Is(t.err, rowstore.ErrAmbiguous) && !errors.Is(err, rowstore.ErrAmbiguous) {
			continue
		}
		for i := range t.muts {
			m := &t.muts[i]
			notify, lock := false, false
			for j := range m.Edits {
				e := &m.Edits[j]
				if e.Kind == rowstore.DoPut {
					notify = notify || e.Family == rowstore.Notify
					lock = lock || e.Family == rowstore.Lock
				}
			}
			if notify && !lock && !slices.Contains(tables, m.Table) {
				tables = append(tables, m.Table)
			}
		}
	}
	return tables
}

// params makes the parameters of a fast statement.
func (w *work) params(a *arrays, shape int, order []int32, deferred bool, mode int) [][]byte {
	next := 0
	list := func(oid uint32) *array {
		next++
		a.a[next-1].reset(oid)
		return &a.a[next-1]
	}
	stamp := func(to *array, ts rowstore.Timestamp) {
		if ts == none {
			to.none()
		} else {
			to.int8(uint64(ts))
		}
	}
	ig, is := list(oidInt4), list(oidText)
	for i, g := range w.incG {
		ig.int4(g)
		is.string(w.incs[i])
	}
	g, tab, key, col := list(oidInt4), list(oidBytea), list(oidBytea), list(oidBytea)
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
	case 0:
		lt, lv := list(oidInt8), list(oidBytea)
		for _, i := range order {
			o := &w.cells[i]
			lt.int8(uint64(o.lt))
			lv.bytes(o.lv)
		}
		p = append(p, lt.param(), lv.param())
	case 1:
		lt, wt, wv := list(oidInt8), list(oidInt8), list(oidBytea)
		for _, i := range order {
			o := &w.cells[i]
			lt.int8(uint64(o.lt))
			wt.int8(uint64(o.wt))
			wv.bytes(o.wv)
		}
		p = append(p, lt.param(), wt.param(), wv.param())
	default:
		lk, lc, wf, mf := list(oidInt2), list(oidInt8), list(oidInt8), list(oidInt8)
		le, lt, lv := list(oidInt2), list(oidInt8), list(oidBytea)
		wt, wv, mt, mv := list(oidInt8), list(oidBytea), list(oidInt8), list(oidBytea)
		rl, rh, xl, xh := list(oidInt8), list(oidInt8), list(oidInt8), list(oidInt8)
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
		p = append(p, lk.param(), lc.param(), wf.param(), mf.param(), le.param(), lt.param(), lv.param(),
			wt.param(), wv.param(), mt.param(), mv.param(), rl.param(), rh.param(), xl.param(), xh.param())
	}
	p = append(p, boolParam(clean))
	sg, sk, stab, skey, scol, sts, sval := list(oidInt4), list(oidInt2), list(oidBytea), list(oidBytea),
		list(oidBytea), list(oidInt8), list(oidBytea)
	for i := range w.sides {
		o := &w.sides[i]
		mask |= int(o.kind)
		sg.int4(o.g)
		sk.int2(o.kind)
		stab.string(o.tab)
		skey.string(o.key)
		scol.string(o.col)
		sts.int8(uint64(o.ts))
		sval.bytes(o.val)
	}
	p = append(p, int4Param(mask), sg.orNull(), sk.orNull(), stab.orNull(), skey.orNull(), scol.orNull(), sts.orNull(), sval.orNull())
	a.params = p
	return p
}

// check answers tasks that only ask, from one view of each row.
func (s *store) check(ctx context.Context, ts []*task, deferred bool) error {
	reads := make([]rowstore.RowRead, len(ts))
	which := make([]int, len(ts))
	for i, t := range ts {
		which[i] = i
		m := &t.muts[0]
		reads[i] = rowstore.RowRead{Table: m.Table, Row: m.Row}
		for j := range m.Conditions {
			c := &m.Conditions[j]
			switch {
			case c.Kind == rowstore.IfIncarnation:
			case c.Kind == rowstore.IfAbsent:
				reads[i].Picks = append(reads[i].Picks, rowstore.Pick{Family: c.Family, Column: c.Column, From: c.TS, To: oracle.Max, Limit: 1})
			default:
				reads[i].Picks = append(reads[i].Picks, rowstore.Pick{Family: c.Family, Column: c.Column, From: c.TS, To: c.TS})
			}
		}
	}
	rows := make([]rowstore.Row, len(ts))
	inc := ""
	if err := s.readPicks(ctx, s.q.check, reads, which, rows, &inc); err != nil {
		return err
	}
	if !deferred {
		// What was deferred before is durable when an undeferred batch returns.
		if err := s.run(ctx, s.q.flush, nil, false, nil, func(*fields) {}); err != nil {
			return err
		}
	}
	for i, t := range ts {
		t.done, t.applied, t.inc = true, true, inc
		for j := range t.muts[0].Conditions {
			c := &t.muts[0].Conditions[j]
			holds := true
			var broke rowstore.Version
			if c.Kind == rowstore.IfIncarnation {
				holds = c.Is == inc
			} else {
				v := rows[i].Newest(c.Family, c.Column)
				if c.Kind != rowstore.IfAbsent {
					v = rows[i].At(c.Family, c.Column, c.TS)
				}
				switch {
				case c.Kind == rowstore.IfPresent:
					holds = v != nil
				case v != nil && v.TS >= c.TS:
					holds, broke = false, *v
				}
			}
			if !holds {
				t.applied = false
				t.out = rowstore.Outcome{Failed: j, Broke: broke}
				break
			}
		}
	}
	return nil
}

// general runs tasks of any kind in one transaction.
func (s *store) general(ctx context.Context, ts []*task, deferred bool) error {
	type name struct{ tab, key, col string }
	place := map[name]int{}
	var cells []name
	for _, t := range ts {
		for i := range t.muts {
			m := &t.muts[i]
			add := func(col string) {
				n := name{m.Table, m.Row, col}
				if _, ok := place[n]; !ok {
					place[n] = 0
					cells = append(cells, n)
				}
			}
			for j := range m.Conditions {
				if m.Conditions[j].Kind != rowstore.IfIncarnation {
					add(m.Conditions[j].Column)
				}
			}
			for j := range m.Edits {
				add(m.Edits[j].Column)
			}
		}
	}
	slices.SortFunc(cells, func(a, b name) int {
		return cmp.Or(strings.Compare(a.tab, b.tab), strings.Compare(a.key, b.key), strings.Compare(a.col, b.col))
	})
	for i, n := range cells {
		place[n] = i + 1
	}

	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	next := 0
	list := func(oid uint32) *array {
		next++
		a.a[next-1].reset(oid)
		return &a.a[next-1]
	}
	tab, key, col := list(oidBytea), list(oidBytea), list(oidBytea)
	for _, n := range cells {
		tab.string(n.tab)
		key.string(n.key)
		col.string(n.col)
	}
	cg, cm, cn, ccell := list(oidInt4), list(oidInt4), list(oidInt4), list(oidInt4)
	ckind, cfam, cts, cis := list(oidInt2), list(oidInt2), list(oidInt8), list(oidText)
	eg, ecell, ekind, efam := list(oidInt4), list(oidInt4), list(oidInt2), list(oidInt2)
	ets, eto, eval := list(oidInt8), list(oidInt8), list(oidBytea)
	for g, t := range ts {
		for i := range t.muts {
			m := &t.muts[i]
			for j := range m.Conditions {
				c := &m.Conditions[j]
				cg.int4(g)
				cm.int4(i)
				cn.int4(j)
				ccell.int4(place[name{m.Table, m.Row, c.Column}])
				ckind.int2(uint8(c.Kind))
				cfam.int2(uint8(c.Family))
				cts.int8(uint64(c.TS))
				cis.string(c.Is)
			}
			for j := range m.Edits {
				e := &m.Edits[j]
				eg.int4(g)
				ecell.int4(place[name{m.Table, m.Row, e.Column}])
				ekind.int2(uint8(e.Kind))
				efam.int2(uint8(e.Family))
				ets.int8(uint64(e.TS))
				eto.int8(uint64(e.To))
				eval.bytes(e.Value)
			}
		}
	}
	params := append(a.params[:0], boolParam(deferred), tab.param(), key.param(), col.param(),
		cg.param(), cm.param(), cn.param(), ccell.param(), ckind.param(), cfam.param(), cts.param(), cis.param(),
		eg.param(), ecell.param(), ekind.param(), efam.param(), ets.param(), eto.param(), eval.param())
	a.params = params

	inc := ""
	failed := map[int]*task{}
	begin := func() { inc = ""; clear(failed) }
	err := s.run(ctx, s.q.general, params, true, begin, func(f *fields) {
		g := f.int4(0)
		if g == -1 {
			inc = string(f.values[1])
			return
		}
		i, j := f.int4(2), f.int4(3)
		if g < 0 || g >= len(ts) || i < 0 || i >= len(ts[g].muts) || j < 0 || j >= len(ts[g].muts[i].Conditions) {
			f.bad(0)
			return
		}
		o := rowstore.Outcome{Failed: j}
		if c := &ts[g].muts[i].Conditions[j]; f.values[4] != nil {
			o.Broke = rowstore.Version{Family: c.Family, Column: c.Column, TS: rowstore.Timestamp(f.int8(4)), Value: f.bytes(5)}
		}
		failed[g] = &task{failed: i, out: o}
	})
	if err != nil {
		return err
	}
	if inc == "" {
		return fmt.Errorf("%w: the server's answer has no first line", rowstore.ErrAmbiguous)
	}
	for g, t := range ts {
		t.done, t.inc = true, inc
		if r := failed[g]; r != nil {
			t.failed, t.out = r.failed, r.out
		} else {
			t.applied = true
		}
	}
	return nil
}

// sqlState returns the code of a server's error, "" of any other.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
