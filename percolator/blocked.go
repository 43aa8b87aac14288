package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What is in the way of a commit. A lock of another transaction is resolved or waited for; anything else is a conflict. A large
// transaction that died has left thousands of locks, so those that one call meets are resolved together (settle.go).

// blockers are the locks that one call of a commit has met.
type blockers struct {
	rows []rowstore.Row // their names alone
	met  []metLock
	muts []*rowstore.Mutation // those that a lock was in the way of, for block
}

func (b *blockers) add(name rowName, column string, start Timestamp, l format.Lock) {
	if n := len(b.rows); n == 0 || b.rows[n-1].Table != name.table || b.rows[n-1].Row != name.row {
		b.rows = append(b.rows, rowstore.Row{Table: name.table, Row: name.row})
	}
	b.met = append(b.met, metLock{row: len(b.rows) - 1, column: column, start: start, lock: l})
}

// block takes in the version that broke a condition of a mutation.
func (c *committer) block(b *blockers, m *rowstore.Mutation, failed int, broke *rowstore.Version) error {
	cell := Cell{m.Table, m.Row, m.Conditions[failed].Column}
	switch broke.Family {
	case rowstore.Lock:
	case rowstore.Mark:
		return c.conflict(cell, broke.TS, "a newer transaction locked the cell, or this one was rolled back")
	default:
		return c.conflict(cell, broke.TS, "another transaction wrote the cell")
	}
	l, err := format.DecodeLock(broke.Value)
	if err != nil {
		return fmt.Errorf("%v: %w", cell.public(), err)
	}
	b.add(cell.rowName(), cell.Column, broke.TS, l)
	b.muts = append(b.muts, m)
	return nil
}

// clear resolves the locks that were met. wait means that the owner of one lives and is older: the
// younger start waits for the older, never the other way round, so that waits form no
// cycle. The call is to be made again in any case.
func (c *committer) clear(ctx context.Context, b *blockers) (wait bool, err error) {
	if len(b.met) == 0 {
		return false, nil
	}
	if wait, err = c.db.resolveLocks(ctx, b.rows, b.met, respectLiveOwner, c.start); err != nil {
		return false, err
	}
	for i := range b.met {
		m := &b.met[i]
		if m.alive && m.start > c.start {
			name := &b.rows[m.row]
			return false, c.conflict(Cell{name.Table, name.Row, m.column}, m.start, "a newer transaction has the cell locked")
		}
	}
	return wait, nil
}

// clearRows is clear for prewrites, each of which has told of one lock alone. A row of which a lock was resolved, and which is in the way again,
// is asked for all its locks: a transaction that died may have left one in each of thousands of columns. Where the owner of a lock lives there is nothing to ask for.
func (c *committer) clearRows(ctx context.Context, b *blockers) (wait bool, err error) {
	all := &blockers{}
	var ask []*rowstore.Mutation
	for i, m := range b.muts {
		name := rowName{m.Table, m.Row}
		if _, again := c.resolved[name]; again && len(lockConditions(m)) > 1 {
			ask = append(ask, m)
			continue
		}
		all.add(name, b.met[i].column, b.met[i].start, b.met[i].lock)
	}
	if err := c.askForLocks(ctx, all, ask); err != nil {
		return false, err
	}
	wait, err = c.clear(ctx, all)
	if c.resolved == nil {
		c.resolved = map[rowName]struct{}{}
	}
	for i := range all.rows {
		c.resolved[rowName{all.rows[i].Table, all.rows[i].Row}] = struct{}{}
	}
	for i := range all.met {
		if m := &all.met[i]; m.alive {
			delete(c.resolved, rowName{all.rows[m.row].Table, all.rows[m.row].Row})
		}
	}
	return wait, err
}

// clearGroup is clear for a commit in one phase, which tells of one lock alone. Once a lock was resolved, and another one is in the way, all its rows are
// asked for their locks.
func (c *committer) clearGroup(ctx context.Context, g *rowstore.Group, out *rowstore.GroupOutcome) (wait bool, err error) {
	b := &blockers{}
	if err := c.block(b, &g.Mutations[out.Failed], out.Outcome.Failed, &out.Outcome.Broke); err != nil {
		return false, err
	}
	var ask []*rowstore.Mutation
	locks := 0
	for i := range g.Mutations {
		ask = append(ask, &g.Mutations[i])
		locks += len(lockConditions(&g.Mutations[i]))
	}
	if !c.groupResolved || locks == 1 {
		wait, err = c.clear(ctx, b)
		c.groupResolved = err == nil && !wait
		return wait, err
	}
	for some := range slices.Chunk(ask, settleMost) {
		all := &blockers{}
		if err := c.askForLocks(ctx, all, some); err != nil {
			return false, err
		}
		waits, err := c.clear(ctx, all)
		if err != nil {
			return false, err
		}
		wait = wait || waits
	}
	c.groupResolved = !wait
	return wait, nil
}

// lockConditions are the columns that may have no lock if a mutation is to be applied.
func lockConditions(m *rowstore.Mutation) (columns []string) {
	for i := range m.Conditions {
		if cond := &m.Conditions[i]; cond.Kind == rowstore.IfAbsent && cond.Family == rowstore.Lock {
			columns = append(columns, cond.Column)
		}
	}
	return columns
}

// askForLocks adds the locks that are in the way of mutations.
func (c *committer) askForLocks(ctx context.Context, b *blockers, muts []*rowstore.Mutation) error {
	var reads []rowstore.RowRead
	for _, m := range muts {
		read := rowstore.RowRead{Table: m.Table, Row: m.Row}
		for _, column := range lockConditions(m) {
			read.Selectors = append(read.Selectors, rowstore.Selector{Family: rowstore.Lock, Column: column, To: oracle.Max, Limit: 1})
		}
		if len(read.Selectors) > 0 {
			reads = append(reads, read)
		}
	}
	if len(reads) == 0 {
		return nil
	}
	rows, err := c.db.readRows(ctx, reads)
	if err != nil {
		return fmt.Errorf("reading the locks in the way: %w", err)
	}
	for i := range rows {
		for j := range rows[i].Versions {
			v := &rows[i].Versions[j]
			if v.TS == c.start {
				continue
			}
			l, err := format.DecodeLock(v.Value)
			if err != nil {
				return fmt.Errorf("%v: %w", Cell{rows[i].Table, rows[i].Row, v.Column}.public(), err)
			}
			b.add(rowName{rows[i].Table, rows[i].Row}, v.Column, v.TS, l)
		}
	}
	return nil
}
