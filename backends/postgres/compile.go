package postgres

import (
	"unicode/utf8"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

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

// incarnationParam is an incarnation for the server, which takes no bytes that are no text of its encoding, and refuses the whole statement for them. Its own
// are ASCII, and not empty. So what is not is as good as none.
func incarnationParam(s string) string {
	for i := range len(s) {
		if s[i] == 0 || s[i] >= utf8.RuneSelf {
			return ""
		}
	}
	return s
}

// compile adds a task, or nothing, and false, when a fast statement cannot do it:
// that judges and changes each cell that the task names by one update of it.
func (w *work) compile(t *task) bool {
	cells, sides, incs, bytes := len(w.cells), len(w.sides), len(w.incs), w.bytes
	for i := range t.muts {
		if !w.add(i, &t.muts[i]) {
			w.cells, w.sides, w.incs, w.incG, w.bytes = w.cells[:cells], w.sides[:sides], w.incs[:incs], w.incG[:incs], bytes
			return false
		}
	}
	t.cells = [2]int{cells, len(w.cells)}
	t.sides = [2]int{sides, len(w.sides)}
	w.tasks++
	return true
}

// sort puts tasks to the statements that can do them: those that only ask, those that a fast statement does,
// which are compiled into w, and the others.
func (w *work) sort(tasks []task) (checks, fast, general []*task) {
	for i := range tasks {
		t := &tasks[i]
		switch {
		case t.draws:
		case len(t.muts) == 1 && len(t.muts[0].Edits) == 0:
			checks = append(checks, t)
		case w.compile(t):
			fast = append(fast, t)
		default:
			general = append(general, t)
		}
	}
	return checks, fast, general
}

// fits tells whether one statement takes all of it.
func (w *work) fits() bool {
	return w.bytes <= maxBatchBytes && len(w.cells)+len(w.sides) <= maxBatchCells
}

// add adds a mutation, or returns false if a fast statement cannot do it.
func (w *work) add(mut int, m *rowstore.Mutation) bool {
	cells := cellsOf{work: w, mut: mut, m: m, from: len(w.cells)}
	for i := range m.Conditions {
		if !cells.condition(&m.Conditions[i]) {
			return false
		}
	}
	for i := range m.Edits {
		if !cells.edit(&m.Edits[i]) {
			return false
		}
	}
	return true
}

// cellsOf finds the cells of one mutation in a work, and adds to them.
type cellsOf struct {
	*work
	mut  int // the mutation's place in its task
	m    *rowstore.Mutation
	from int            // its first cell in the work
	wide map[string]int // the places of the columns, where there are many
}

// cell returns the cell of a column, and makes it if it is not there. It is valid until the next call.
func (c *cellsOf) cell(col string) *cellOp {
	w := c.work
	if n := len(w.cells) - c.from; n < 32 {
		for i := c.from; i < len(w.cells); i++ {
			if w.cells[i].col == col {
				return &w.cells[i]
			}
		}
	} else {
		if c.wide == nil {
			c.wide = make(map[string]int, 4*n)
			for i := c.from; i < len(w.cells); i++ {
				c.wide[w.cells[i].col] = i
			}
		}
		if i, ok := c.wide[col]; ok {
			return &w.cells[i]
		}
		c.wide[col] = len(w.cells)
	}
	w.cells = append(w.cells, cellOp{
		g: w.tasks, mut: c.mut, tab: c.m.Table, key: c.m.Row, col: col, wf: none, mf: none, wt: none, mt: none, rh: none, xh: none,
	})
	return &w.cells[len(w.cells)-1]
}

// condition adds a condition, or returns false if a fast statement cannot judge it.
func (c *cellsOf) condition(cond *rowstore.Condition) bool {
	if cond.Kind == rowstore.IfIncarnation {
		c.incs = append(c.incs, cond.Incarnation)
		c.incG = append(c.incG, c.tasks)
		return true
	}
	if cond.Family == rowstore.Notify {
		return false
	}
	o := c.cell(cond.Column)
	switch {
	case cond.Family == rowstore.Write:
		o.wf = min(o.wf, cond.TS)
	case cond.Family == rowstore.Mark:
		o.mf = min(o.mf, cond.TS)
	case o.lk != lockAny:
		return false
	case cond.Kind == rowstore.IfAbsent:
		o.lk, o.lc = lockAbsent, cond.TS
	case cond.Kind == rowstore.IfAbsentAt:
		o.lk, o.lc = lockNotAt, cond.TS
	default:
		o.lk, o.lc = lockPresent, cond.TS
	}
	return true
}

// edit adds an edit, or returns false if a fast statement cannot do it.
func (c *cellsOf) edit(e *rowstore.Edit) bool {
	c.bytes += len(e.Value)
	put := e.Kind == rowstore.DoPut
	to := e.TS
	if e.Kind == rowstore.DoDeleteRange {
		if to = e.To; e.Family != rowstore.Write && e.Family != rowstore.Mark {
			return false
		}
	}
	switch e.Family {
	case rowstore.Lock:
		o := c.cell(e.Column)
		if o.le != lockKeep || put && e.TS == rowstore.AssignedTimestamp { // nobody locks at a drawn timestamp: no fast statement replaces it
			return false
		}
		o.le, o.lt, o.lv = lockDelete, e.TS, nil
		if put {
			o.le, o.lv = lockPut, e.Value
		}
	case rowstore.Write:
		o := c.cell(e.Column)
		if o.wt != none || o.rh != none {
			return false
		}
		if put {
			o.wt, o.wv = e.TS, e.Value
		} else {
			o.rl, o.rh = e.TS, to
		}
	case rowstore.Mark:
		o := c.cell(e.Column)
		if o.mt != none || o.xh != none {
			return false
		}
		if put {
			o.mt, o.mv = e.TS, e.Value
		} else {
			o.xl, o.xh = e.TS, to
		}
	case rowstore.Data, rowstore.Notify:
		c.side(e, put)
	}
	return true
}

// side adds an edit of family Data or Notify, which have tables of their own. It does not make the mutation hold the cell of its
// column: what the mutation is judged by is held, and all that it does can be seen from one moment on. The cell need not even be
// there, as with a column that is notified and never written; a statement that had to hold it would fail.
func (c *cellsOf) side(e *rowstore.Edit, put bool) {
	o := sideOp{g: c.tasks, tab: c.m.Table, key: c.m.Row, col: e.Column, ts: e.TS, val: e.Value}
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
	c.sides = append(c.sides, o)
}

// The indexes in shapes.
const (
	shapePrewrite = iota
	shapeCommit
	shapeAny
	shapeOne
)

// shapeOf returns the index in shapes of the function that does the cells of groups that draw, or of others.
func shapeOf(cells []cellOp, draws bool) int {
	if draws {
		for i := range cells {
			o := &cells[i]
			if o.lk != lockAbsent || o.lc != 0 || o.le != lockKeep || o.wf == none || o.mf != o.wf || o.wt == none || o.mt != none ||
				o.rh != none || o.xh != none {
				return shapeAny
			}
		}
		return shapeOne
	}
	prewrite, commit := true, true
	for i := range cells {
		o := &cells[i]
		if o.rh != none || o.xh != none {
			return shapeAny
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
		return shapePrewrite
	case commit:
		return shapeCommit
	default:
		return shapeAny
	}
}
