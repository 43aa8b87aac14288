package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// drawing is how the tasks of one statement draw their timestamps.
type drawing struct {
	locks []rowLock // of all rows, each once, in ascending order
	tasks []*task
	at    int // the place of the bound among the parameters
}

// rowLock is the advisory lock of a row, exclusive if it is the transaction's own.
type rowLock struct {
	lock int64
	own  bool
}

// locksOf adds the locks of a task's rows: its own are those that it changes.
func (n *names) locksOf(to []rowLock, t *task) []rowLock {
	for i := range t.muts {
		m := &t.muts[i]
		to = append(to, rowLock{n.rowLock(m.Table, m.Row), len(m.Edits) > 0})
	}
	return to
}

func (s *plainStore) newDrawing(ts []*task) *drawing {
	d := &drawing{tasks: ts}
	for _, t := range ts {
		d.locks = s.names.locksOf(d.locks, t)
	}
	slices.SortFunc(d.locks, func(a, b rowLock) int {
		switch {
		case a.lock != b.lock || a.own == b.own:
			return cmp.Compare(a.lock, b.lock)
		case a.own: // it comes first, and stays
			return -1
		default:
			return 1
		}
	})
	d.locks = slices.CompactFunc(d.locks, func(a, b rowLock) bool { return a.lock == b.lock })
	return d
}

// params adds the parameters of a drawing to those of a function. d may be nil.
func (d *drawing) params(a *arrays, p [][]byte) [][]byte {
	if d == nil {
		return append(p, nil, nil, nil, nil, nil, nil)
	}
	lock, own, late := a.list(oidInt8), a.list(oidBool), a.list(oidInt8)
	bounded := false
	for _, l := range d.locks {
		lock.int8(uint64(l.lock)) //nolint:gosec // as it is
		own.bool(l.own)
	}
	for _, t := range d.tasks {
		if t.notAfter == 0 {
			late.none()
			continue
		}
		bounded = true
		late.int8(uint64(min(t.notAfter, oracle.Max)))
	}
	d.at = len(p) + 5
	p = append(p, lock.param(), own.param(), late.param(), int8Param(maxLag), int8Param(ahead), nil)
	if !bounded {
		p[len(p)-4] = nil
	}
	return p
}

// bound sets the bound of the oracle, as a connection knows it, 0 for one that does not.
func (d *drawing) bound(p [][]byte, bound uint64) {
	if p[d.at] = nil; bound != 0 {
		p[d.at] = int8Param(bound)
	}
}

// drew gives a task its timestamp, which is so much above the first as its number says. It returns false if
// that is too late.
func (t *task) drew(first oracle.Timestamp, g int) bool {
	commit := first + oracle.Timestamp(g) //nolint:gosec // few
	if t.notAfter != 0 && commit > t.notAfter {
		return false
	}
	t.commit = commit
	return true
}

// drawers cuts those tasks that draw into parts for one statement each. It refuses a task with too many rows.
func (s *plainStore) drawers(tasks []task) (all [][]*task) {
	var some []*task
	rows := 0
	for i := range tasks {
		t := &tasks[i]
		if !t.draws {
			continue
		}
		if len(t.muts) > maxOwnRows {
			t.err = fmt.Errorf("%w: a group of %d rows is to draw a timestamp, and the store takes %d", rowstore.ErrTooLarge, len(t.muts), maxOwnRows)
			continue
		}
		if rows+len(t.muts) > maxOwnRows {
			all = append(all, chunks(some)...)
			some, rows = nil, 0
		}
		some = append(some, t)
		rows += len(t.muts)
	}
	return append(all, chunks(some)...)
}

// drawn runs tasks that draw their timestamps, in one transaction. Where a row is busy for too long, the tasks of the other rows are run again, without
// those that need it: these may be other callers'.
func (s *plainStore) drawn(ctx context.Context, ts []*task) error {
	ended := s.drawnTogether(ctx, ts)
	if len(ts) == 1 || !waitedOut(ended) {
		return ended
	}
	rest := slices.DeleteFunc(slices.Clone(ts), func(t *task) bool { return t.done })
	busy, err := s.busyAmong(ctx, rest)
	if err != nil {
		return ended
	}
	free := rest[:0]
	for i, t := range rest {
		if busy[i] {
			t.err = ended
		} else {
			free = append(free, t)
		}
	}
	if len(free) == 0 {
		return ended
	}
	return s.drawnTogether(ctx, free)
}

// busyAmong tells of each task whether one of its rows is busy.
func (s *plainStore) busyAmong(ctx context.Context, ts []*task) ([]bool, error) {
	var reads []rowstore.RowRead
	var which, of []int
	for i, t := range ts {
		for j := range t.muts {
			which, of = append(which, len(which)), append(of, i)
			reads = append(reads, rowstore.RowRead{Table: t.muts[j].Table, Row: t.muts[j].Row, Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}})
		}
	}
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	p := s.newPoints(a, reads, which, make([]rowstore.Row, len(reads)), nil, settleTry)
	if err := s.run(ctx, s.q.point, a.params, false, p.begin, p.line); err != nil {
		return nil, err
	}
	busy := make([]bool, len(ts))
	for _, i := range p.busy {
		busy[of[i]] = true
	}
	return busy, nil
}

// drawnTogether runs tasks that draw their timestamps.
func (s *plainStore) drawnTogether(ctx context.Context, ts []*task) error {
	var w work
	compiled := true
	for _, t := range ts {
		compiled = compiled && w.compile(t)
	}
	rest := ts
	if compiled {
		if err := s.fast(ctx, &w, ts, false, nil, s.newDrawing(ts)); err != nil {
			return refusedDraw(err)
		}
		// What lost a race to another client is judged again, with the cells held.
		rest = slices.DeleteFunc(slices.Clone(ts), func(t *task) bool { return t.done })
	}
	if len(rest) == 0 {
		return nil
	}
	return refusedDraw(s.general(ctx, rest, false, s.newDrawing(rest)))
}

// refusedDraw makes the error of a server that has no memory for so many locks one that has the caller commit in
// another way. The server undid everything.
func refusedDraw(err error) error {
	if sqlState(err) == outOfMemory {
		return fmt.Errorf("%w: the server has no room for the locks of a group that draws a timestamp (max_locks_per_transaction): %w", rowstore.ErrTooLarge, err)
	}
	return err
}
