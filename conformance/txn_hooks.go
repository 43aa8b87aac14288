package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func txnHookTests() []test {
	return []test{
		{"BrokenCommitsTellTheTruth", Breaking, brokenCommitsTellTheTruth},
		{"TransactionsOverTheStepLimit", Transactions, transactionsOverTheStepLimit},
	}
}

// brokenCommitsTellTheTruth breaks a store while transactions of two cells commit. An
// acknowledged transaction is there. One that certainly failed is not. If the outcome is
// unknown, DB.Outcome tells the truth about it. No transaction is there by half.
func brokenCommitsTellTheTruth(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Break == nil {
		t.Skip("the store has no hook Break")
	}
	for name, way := range map[string][]percolator.Option{"usual": nil, "two-phase": {coretest.WithoutGroups(), coretest.WithoutDeferred()}} {
		w := &world{TB: t, e: e, ctx: h.ctx, inner: k.Store, way: way}
		// Without patience, or it would outlast the break.
		db := w.db(append(shortLease(), percolator.WithStorePatience(0))...)
		var all []brokenCommit
		failed := 0
		// On a busy machine the store may be mended before the commit has begun: then it stays broken for longer.
		for broken := 5 * time.Millisecond; failed == 0 && broken < 3*time.Second; broken *= 8 {
			for _, m := range []Moment{BeforeCall, InCall, AfterCall} {
				for i := range e.n(4, 2) {
					id := fmt.Sprintf("%s-%d-%v-%d", name, m, broken, i)
					h.recovered(id)
					c, ok := w.breakCommit(db, k.Break, m, time.Duration(1+i%3)*broken, id)
					if !ok {
						t.Logf("the store cannot be broken %s", m)
						break
					}
					if c.err != nil {
						failed++
					}
					all = append(all, c)
				}
			}
			if len(all) == 0 {
				t.Skip("the store can be broken at no such moment")
			}
		}
		h.recovered(name)
		require.Positive(t, failed, "no commit failed: the hook does not do what it says")
		for _, c := range all {
			w.judgeBroken(db, c)
		}
	}
}

// brokenCommit is a transaction, by the row that it writes in two tables, and what its commit answered.
type brokenCommit struct {
	id  string
	err error
}

// breakCommit breaks the store for a while, and commits meanwhile. It is not ok if the store cannot be broken at that moment.
func (w *world) breakCommit(db *percolator.DB, broken func(Moment) (mend func()), m Moment, long time.Duration, id string) (c brokenCommit, ok bool) {
	w.Helper()
	tx, err := db.Begin(w.ctx)
	require.NoError(w, err)
	require.NoError(w, tx.Set(percolator.Cell{Table: table, Row: id, Column: "v"}, []byte(id)))
	require.NoError(w, tx.Set(percolator.Cell{Table: "u", Row: id, Column: "v"}, []byte(id)))
	_ = startOf(tx)
	mend := broken(m)
	if mend == nil {
		require.NoError(w, tx.Rollback(w.ctx))
		return c, false
	}
	time.AfterFunc(long, mend)
	ctx, cancel := context.WithTimeout(w.ctx, w.e.cfg.hang/4)
	defer cancel()
	err = tx.Commit(ctx)
	mend()
	return brokenCommit{id, err}, true
}

// judgeBroken compares what a commit answered with what is there.
func (w *world) judgeBroken(db *percolator.DB, c brokenCommit) {
	w.Helper()
	id, answered := c.id, c.err
	var unknown *percolator.UndeterminedError
	committed := answered == nil
	if errors.As(answered, &unknown) {
		outcome, err := db.Outcome(w.ctx, unknown.Start, unknown.Primary)
		require.NoError(w, err)
		committed = outcome.Status == percolator.OutcomeCommitted
	}
	got, err := getMany(w, db, []percolator.Cell{{Table: table, Row: id, Column: "v"}, {Table: "u", Row: id, Column: "v"}})
	require.NoError(w, err)
	want := missing
	if committed {
		want = id
	}
	require.Equal(w, []string{want, want}, got, "transaction %s, whose commit answered %v", id, answered)
}

// overTheStep chooses how many rows of one cell, and how long values, make a transaction that is larger than one step of
// the store may be. It exceeds each limit that the store has, as far as that takes neither too many rows nor too much memory;
// left names those that it does not. No row is larger than one step may be. rows is 0 if it exceeds none.
func overTheStep(l rowstore.Limits) (rows, size int, left []string) {
	const (
		mostRows, mostBytes = 3000, 64 << 20
		operations          = 3 // of a cell, at least: its lock is there, goes, and leaves a write
	)
	each := 100
	if l.Operations > 0 {
		if n := l.Operations/operations + 10; n <= mostRows {
			rows = max(100, n)
		} else {
			left = append(left, fmt.Sprintf("%d operations", l.Operations))
		}
	}
	if l.Bytes > 0 {
		if each = max(1, min(l.Bytes/8, 1<<16)); l.Value > 0 {
			each = min(each, l.Value)
		}
		if n := 2 * l.Bytes / each; n <= mostRows && 2*l.Bytes <= mostBytes {
			rows = max(100, rows, n)
			each = min(each, 1+2*l.Bytes/rows)
		} else {
			each = min(each, 100)
			left = append(left, fmt.Sprintf("%d bytes", l.Bytes))
		}
	}
	return rows, each, left
}

// transactionsOverTheStepLimit commits transactions that are larger than one step of the
// store may be, though each of their rows is not.
func transactionsOverTheStepLimit(t testing.TB, e *env) {
	limits := limitsOf(e.store(t))
	if limits.Operations == 0 && limits.Bytes == 0 {
		t.Skip("the store has no limit of one step")
	}
	rows, size, left := overTheStep(limits)
	if rows == 0 {
		t.Skipf("a transaction over the limit of one step would be too large for a test: %v", left)
	}
	if len(left) > 0 {
		t.Logf("not exceeded, because that would take too many rows: %v", left)
	}
	e.eachWay(t, func(w *world) {
		db := w.db()
		value := make([]byte, size)
		for round := range 2 {
			value[0] = byte(round)
			require.NoError(w, db.Update(w.ctx, func(tx *percolator.Txn) error {
				for i := range rows {
					if err := tx.Set(percolator.Cell{Table: table, Row: key(i), Column: "v"}, value); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
			n := 0
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				if v := row.Columns["v"]; len(v) != size || v[0] != 1 {
					return fmt.Errorf("row %s holds %d bytes", row.Key, len(v))
				}
				n++
			}
			if n != rows {
				return fmt.Errorf("%d rows of %d", n, rows)
			}
			return nil
		}))
	})
}
