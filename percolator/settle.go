package percolator

import (
	"context"
	"fmt"
	"iter"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Rows without locks in the way. A read at a snapshot may use a row only as one view shows it in
// which no put or delete lock stands at or below the snapshot. The locks in the way of several rows are resolved
// together, since a large transaction that died has left thousands. resolve.go decides what becomes of a transaction.

// settleMost is how many rows are settled together.
const settleMost = 128

// metLock is a lock in the way of a read or of a commit.
type metLock struct {
	row    int // index of its row among those that are settled
	column string
	start  Timestamp
	lock   format.Lock
	alive  bool // resolveLocks has found that its transaction is undecided, and the owner lives
}

// scanSettled is Store.Scan with rows that show no put or delete lock at or below at. As many rows as ahead
// tells, and at most settleMost, are read before the first of them is handed out; nil stands for
// settleMost. A scan with a Snapshot is at its Start. again, which may be nil, gets true before a row is handed out that was
// read again after the scan.
func (db *DB) scanSettled(ctx context.Context, r rowstore.ScanRange, at Timestamp, ahead func() int, again *bool) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		most := settleMost
		var rows []rowstore.Row
		flush := func() (more bool) {
			if r.Snapshot != nil {
				at = r.Snapshot.Start
				r.Selectors = r.At(at) // the scan keeps its own
			}
			read, err := db.settleRows(ctx, rows, func(int) []rowstore.Selector { return r.Selectors }, at)
			if err != nil {
				yield(rowstore.Row{}, err)
				return false
			}
			if read && again != nil {
				*again = true
			}
			for i := range rows {
				if !yield(rows[i], nil) {
					return false
				}
			}
			clear(rows)
			rows = rows[:0]
			return true
		}
		for row, err := range db.store.Scan(ctx, r) {
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if ahead != nil && len(rows) == 0 {
				most = min(settleMost, ahead())
			}
			if rows = append(rows, row); len(rows) >= most && !flush() {
				return
			}
		}
		flush()
	}
}

// settleRows makes sure that rows show no put or delete lock at or below the snapshot,
// and reads those rows again as a whole that showed one. It waits for transactions that
// live. picks tells what of a row is read. again tells whether any row was read again.
func (db *DB) settleRows(ctx context.Context, rows []rowstore.Row, picks func(i int) []rowstore.Selector, at Timestamp) (again bool, err error) {
	for from := 0; from < len(rows); from += settleMost {
		part := rows[from:min(from+settleMost, len(rows))]
		read, err := db.settlePart(ctx, part, func(i int) []rowstore.Selector { return picks(from + i) }, at)
		again = again || read
		if err != nil {
			return again, err
		}
	}
	return again, nil
}

// settlePart is settleRows for at most settleMost rows.
func (db *DB) settlePart(ctx context.Context, rows []rowstore.Row, picks func(i int) []rowstore.Selector, at Timestamp) (again bool, err error) {
	var met []metLock
	for i := range rows {
		if met, err = locksBelow(met, i, &rows[i], at); err != nil {
			return false, err
		}
	}
	for attempt := 0; len(met) > 0; attempt++ {
		wait, err := db.resolveLocks(ctx, rows, met, respectLiveOwner, oracle.Max)
		if err != nil {
			return attempt > 0, err
		}
		if wait {
			if err := db.clock.Sleep(ctx, db.opt.lockWait.wait(attempt, db.rand)); err != nil {
				row := &rows[met[0].row]
				return true, fmt.Errorf("waiting for a lock in row %q of table %q: %w", row.Row, row.Table, err)
			}
		}
		if met, err = db.readUnsettled(ctx, rows, met, picks, at); err != nil {
			return true, err
		}
		again = true
	}
	return again, nil
}

// readUnsettled reads the rows again in which locks were met, and returns the locks that are in the way now.
func (db *DB) readUnsettled(ctx context.Context, rows []rowstore.Row, met []metLock, picks func(i int) []rowstore.Selector, at Timestamp) ([]metLock, error) {
	var reads []rowstore.RowRead
	var where []int
	for i := range met {
		if r := met[i].row; i == 0 || r != met[i-1].row {
			reads = append(reads, rowstore.RowRead{Table: rows[r].Table, Row: rows[r].Row, Selectors: picks(r)})
			where = append(where, r)
		}
	}
	read, err := db.readRows(ctx, reads)
	if err != nil {
		return nil, err
	}
	met = met[:0]
	for i, r := range where {
		rows[r] = read[i]
		if met, err = locksBelow(met, r, &rows[r], at); err != nil {
			return nil, err
		}
	}
	return met, nil
}

// locksBelow appends the put and delete locks of a row at or below at.
func locksBelow(met []metLock, index int, row *rowstore.Row, at Timestamp) ([]metLock, error) {
	for i := range row.Versions {
		v := &row.Versions[i]
		if v.Family != rowstore.Lock {
			break // locks come first
		}
		if v.TS > at {
			continue
		}
		l, err := format.DecodeLock(v.Value)
		if err != nil {
			return nil, fmt.Errorf("table %q, row %q, column %q: %w", row.Table, row.Row, v.Column, err)
		}
		if l.Kind == format.KindLock {
			continue
		}
		met = append(met, metLock{row: index, column: v.Column, start: v.TS, lock: l})
	}
	return met, nil
}

// resolveLocks is resolveLock for several locks, those of a row one after another. What became of a transaction is asked once.
// A lock may be left: one of a living transaction, which is noted in met, or one whose row has changed. The caller reads the rows again,
// after a while if wait says so: because of a living transaction, or
// of a lost reply, which a store that is in trouble may give again and again. Nothing more is asked once a living transaction is met that began after
// waiter: whoever waits for nobody younger must give up.
func (db *DB) resolveLocks(ctx context.Context, rows []rowstore.Row, met []metLock, mode ownerRule, waiter Timestamp) (wait bool, err error) {
	db.count.locksMet.Add(uint64(len(met)))
	type txnName struct {
		start   Timestamp
		primary format.Cell
	}
	fates := map[txnName]fate{}
	all := resolutions{operations: db.rowOperations() / operationsOfLock, bytes: db.resolvedBytes()}
	for i := range met {
		if i > 0 && met[i-1].alive && met[i-1].start > waiter {
			break
		}
		m := &met[i]
		row := &rows[m.row]
		cell := Cell{row.Table, row.Row, m.column}
		txn := txnName{m.start, m.lock.Primary}
		f, known := fates[txn]
		if !known {
			if f, err = db.settleTxn(ctx, m.start, &m.lock, mode); err != nil {
				return false, fmt.Errorf("resolving a lock on %v: %w", cell.public(), err)
			}
			fates[txn] = f
		}
		switch {
		case f.alive:
			m.alive, wait = true, true
		case f.primaryGone && cell == Cell(m.lock.Primary):
		default:
			all.add(&f, cell, m)
			// Whoever decided that it is rolled back has hinted the mark on the primary.
			if f.committed != 0 {
				db.hint(cell, f.committed)
			}
		}
	}
	lost, err := db.sendResolutions(ctx, &all)
	return wait || lost, err
}

// resolvedBytes bounds the mutation that resolves locks of one row, by half of what the store takes. So the estimate of
// resolutions.add need not be exact.
func (db *DB) resolvedBytes() int {
	if l := db.step.Bytes; l > 0 {
		return min(pieceBytes, l/2)
	}
	return pieceBytes
}

// resolutions are the mutations that resolve locks. Several of them may be of one row.
type resolutions struct {
	operations, bytes int // at most, of one: locks, and roughly their size
	muts              []rowstore.Mutation
	counts            []resolved
	sizes             []int
	items             []int
}

// add takes in a lock whose transaction is decided.
func (r *resolutions) add(f *fate, cell Cell, m *metLock) {
	const overhead = 128 // as in committer.cellBytes
	size := operationsOfLock*len(cell.Column) + len(m.lock.Value) + overhead
	n := len(r.muts) - 1
	if n < 0 || r.muts[n].Table != cell.Table || r.muts[n].Row != cell.Row ||
		len(r.muts[n].Conditions) >= max(1, r.operations) || r.sizes[n]+size > r.bytes {
		r.muts = append(r.muts, rowstore.Mutation{Table: cell.Table, Row: cell.Row})
		r.counts = append(r.counts, resolved{})
		r.sizes = append(r.sizes, len(cell.Table)+len(cell.Row))
		n++
		r.items = append(r.items, n)
	}
	f.resolve(&r.muts[n], &r.counts[n], cell, m.start, &m.lock)
	r.sizes[n] += size
}

// sendResolutions sends them in pieces, as a commit does. lost tells that the reply to one was.
func (db *DB) sendResolutions(ctx context.Context, r *resolutions) (lost bool, err error) {
	if len(r.muts) == 0 {
		return false, nil
	}
	items := newCutter(r.items, func(i int) rowName { return rowName{r.muts[i].Table, r.muts[i].Row} }, func(i int) int { return r.sizes[i] })
	err = db.send(ctx, items, func(i int) rowstore.Mutation { return r.muts[i] }, rowstore.ApplyOptions{}, func(p *piece) error {
		if mayAskAgain(p.err) {
			lost = true
			return nil
		}
		if p.err != nil {
			return fmt.Errorf("resolving locks in table %q: %w", p.muts[0].Table, p.err)
		}
		for i := range p.outs {
			n := p.items[i]
			switch out := &p.outs[i]; {
			case mayAskAgain(out.Err):
				lost = true
			case out.Err != nil:
				return fmt.Errorf("resolving locks in row %q of table %q: %w", p.muts[i].Row, p.muts[i].Table, out.Err)
			case out.Applied: // else a lock is gone: somebody else did it
				db.count.rolledForward.Add(r.counts[n].forward)
				db.count.rolledBack.Add(r.counts[n].back)
			}
		}
		return nil
	})
	return lost, err
}
