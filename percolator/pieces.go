package percolator

import (
	"context"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A commit sends its mutations in pieces. A large call would hold up the other calls of
// the process, and of the server.
const (
	pieceRows  = 256
	pieceBytes = 1 << 20
	// What is more than one piece goes apart from all other calls (rowstore.ApplyOptions.Bulk),
	// and in smaller pieces where a store needs long for them: a piece should keep the server
	// busy for pieceTakes at most. So a small transaction beside a large one waits for
	// little more than it would alone. One piece follows the other: two would keep the server busy
	// without a gap, and this process beside it. Only where even a call with little to do takes as
	// long as remoteCall, most of it on the way, two are under way.
	pieceTakes   = 500 * time.Microsecond
	fewestRows   = 16
	piecesAtOnce = 2
	remoteCall   = 2 * time.Millisecond
	// partOperations bounds the mutation of one row. A wider row is changed in parts,
	// which is as good, since each cell has a lock of its own.
	partOperations = 4096
	// A transaction within these bounds may commit as one group, where the store's own
	// limits allow it.
	groupCells = 4096
	groupBytes = 4 << 20
)

// rowOperations is how many conditions and edits of one row may go in one mutation.
func (db *DB) rowOperations() int {
	if l := db.step.Operations; l > 0 {
		return min(partOperations, l)
	}
	return partOperations
}

// operations is how many conditions and edits the cell of a write takes at most, in a
// prewrite, a commit or a roll back.
func (c *committer) operations(i int) int {
	n := 4
	if c.writes[i].long() {
		n++
	}
	if c.notify[i] {
		n++
	}
	return n
}

// cellBytes is roughly the size of those conditions and edits.
func (c *committer) cellBytes(i int) int {
	w, p := &c.writes[i], c.primaryCell()
	const overhead = 128 // a lock's session, timestamps, and the like
	return c.operations(i)*len(w.cell.Column) + len(w.value) + len(p.Table) + len(p.Row) + len(p.Column) + overhead
}

// splitRows divides the writes, which are sorted, into rows, and wide rows into parts,
// each of which fits into a mutation.
func (c *committer) splitRows() {
	operations, bytes := c.db.rowOperations(), pieceBytes
	if c.db.step.Operations > 0 {
		operations = min(operations, c.db.step.Operations-2) // the incarnation, and the mark on the primary
	}
	if l := c.db.step.Bytes; l > 0 {
		bytes = min(bytes, l)
	}
	c.rows, c.split, c.operationsAll, c.bytesAll = make([]commitRow, 0, len(c.writes)), false, 0, 0
	ops, guards := 0, 0
	if c.view.RowDeletes {
		guards = rowGuards
	}
	for i := range c.writes {
		o, b := c.operations(i), c.cellBytes(i)
		c.operationsAll, c.bytesAll = c.operationsAll+o, c.bytesAll+b
		n := len(c.rows)
		same := n > 0 && c.writes[c.rows[n-1].from].cell.rowName() == c.writes[i].cell.rowName()
		if same && ops+o <= operations && c.rows[n-1].bytes+b <= bytes {
			c.rows[n-1].to++
			c.rows[n-1].bytes += b
			ops += o
		} else {
			c.split = c.split || same
			c.rows = append(c.rows, commitRow{from: i, to: i + 1, bytes: b + len(c.writes[i].cell.Table) + len(c.writes[i].cell.Row)})
			ops = o + guards
			c.operationsAll += guards
		}
		if i == c.primary {
			c.primaryRow = len(c.rows) - 1
		}
	}
}

// fitsGroup tells whether the transaction is small enough for one atomic step with n
// more operations.
func (c *committer) fitsGroup(n int) bool {
	l := &c.db.step
	if c.operationsAll+n > l.Operations && l.Operations > 0 || l.Bytes > 0 && c.bytesAll+c.besideBytes() > l.Bytes {
		return false
	}
	// A single large value is one call in either case.
	return len(c.writes)+n <= groupCells && (c.bytesAll <= groupBytes || len(c.writes) == 1)
}

// beside is the number of edits other than those of the writes.
func (c *committer) beside() int {
	n := len(c.notices) + len(c.hints)
	for _, extra := range c.extra {
		n += len(extra)
	}
	return n
}

// besideBytes is the size of those edits.
func (c *committer) besideBytes() int {
	n := 0
	for i := range c.notices {
		cell := &c.notices[i].cell
		n += len(cell.Table) + len(cell.Row) + len(cell.Column) + len(c.notices[i].value)
	}
	for i := range c.hints {
		m := &c.hints[i]
		n += rowstore.SizeOf(m).Bytes
	}
	for _, extra := range c.extra {
		for i := range extra {
			n += len(extra[i].Column) + len(extra[i].Value)
		}
	}
	return n
}

// extraOf returns the extra edits of a mutation that commits cells of a row, as many as
// the store takes. Notifications that are left out are found and removed by a later
// scan.
func (c *committer) extraOf(m *rowstore.Mutation) []rowstore.Edit {
	extra := c.extra[rowName{m.Table, m.Row}]
	if l := c.db.step.Operations; l > 0 {
		extra = extra[:max(0, min(len(extra), l-1-len(m.Conditions)-len(m.Edits)))]
	}
	if l := c.db.step.Bytes; l > 0 && len(extra) > 0 {
		extra = extra[:within(l-rowstore.SizeOf(m).Bytes, extra)]
	}
	return extra
}

// piece is one call of several, and its answer.
type piece struct {
	items []int // the items that its mutations are for, in their order
	muts  []rowstore.Mutation
	outs  []rowstore.Outcome
	err   error
	took  time.Duration
}

// cutter divides mutations, numbered by items, into pieces, each of which names a row once.
type cutter struct {
	items []int // that are left
	row   func(item int) rowName
	bytes func(item int) int
	names map[rowName]struct{} // of the piece that is cut, where there are many items
}

func newCutter(items []int, row func(int) rowName, bytes func(int) int) *cutter {
	c := &cutter{items: items, row: row, bytes: bytes}
	if len(items) > indexFrom {
		c.names = make(map[rowName]struct{}, min(len(items), pieceRows))
	}
	return c
}

// next cuts off a piece of so many rows at most, and of one at least.
func (c *cutter) next(rows int) (piece []int) {
	piece = c.items[:c.length(rows)]
	c.items = c.items[len(piece):]
	return piece
}

// one tells whether all that is left is one piece.
func (c *cutter) one() bool { return c.length(pieceRows) == len(c.items) }

func (c *cutter) length(rows int) int {
	clear(c.names)
	to, size := 0, 0
	for ; to < len(c.items) && to < rows; to++ {
		name, b := c.row(c.items[to]), c.bytes(c.items[to])
		if to > 0 && size+b > pieceBytes || c.named(c.items[:to], name) {
			break
		}
		if size += b; c.names != nil {
			c.names[name] = struct{}{}
		}
	}
	return to
}

func (c *cutter) named(piece []int, name rowName) bool {
	if c.names == nil {
		return slices.ContainsFunc(piece, func(i int) bool { return c.row(i) == name })
	}
	_, named := c.names[name]
	return named
}

// pieceSize finds out how many rows a piece may have.
type pieceSize struct {
	rows int
	// quickest is the least time that a piece took: how long a call takes that gives the
	// server little to do.
	quickest time.Duration
}

// atOnce is how many pieces may be under way.
func (s *pieceSize) atOnce() int {
	if s.quickest < remoteCall {
		return 1
	}
	return piecesAtOnce
}

// took is told how long a piece took.
func (s *pieceSize) took(p *piece) {
	if s.quickest == 0 || p.took < s.quickest {
		s.quickest = p.took
	}
	switch full := len(p.items) >= s.rows; {
	case p.took > s.quickest+pieceTakes:
		s.rows = max(fewestRows, s.rows*3/4)
	case full && p.took < s.quickest+pieceTakes/2:
		s.rows = min(pieceRows, s.rows+max(1, s.rows/8))
	}
}

// send applies the mutations of items, in pieces. It gives each piece to done with its answer,
// in the caller's goroutine. After an error of done no more pieces are sent. Those under way
// are still waited for and given to done, and the first error is returned.
func (db *DB) send(ctx context.Context, items *cutter, build func(item int) rowstore.Mutation, opts rowstore.ApplyOptions, done func(p *piece) error) error {
	answers := make(chan *piece, piecesAtOnce)
	apply := func(p *piece) {
		asked := db.clock.Now()
		p.outs, p.err = db.store.Apply(ctx, p.muts, opts)
		p.took = db.clock.Now().Sub(asked)
	}
	size := pieceSize{rows: pieceRows}
	if !items.one() {
		opts.Bulk, size.rows = true, fewestRows
	}
	var first error
	for underWay := 0; underWay > 0 || len(items.items) > 0 && first == nil; {
		var p *piece
		if first == nil && len(items.items) > 0 && underWay < size.atOnce() {
			p = &piece{items: items.next(size.rows)}
			p.muts = make([]rowstore.Mutation, len(p.items))
			for i, item := range p.items {
				p.muts[i] = build(item)
			}
			if opts.Bulk {
				underWay++
				go func() {
					apply(p)
					answers <- p
				}()
				continue
			}
			apply(p) // alone
		} else {
			p = <-answers
			underWay--
			size.took(p)
		}
		if err := done(p); err != nil && first == nil {
			first = err
		}
	}
	return first
}
