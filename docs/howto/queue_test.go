package howto

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// openJobs keeps the history of a table of jobs short, because each job is written and deleted.
func openJobs(ctx context.Context, db *percolator.DB, table string) error {
	return db.ConfigureTable(ctx, table, percolator.TableSettings{MaxTxnAge: time.Minute, Retention: 2 * time.Minute})
}

// job is the cell of a job. Its column is its priority: "urgent" or "later".
func job(priority, id string) percolator.Cell {
	return percolator.Cell{Table: "job", Row: id, Column: priority}
}

// doJob is the function of an observer of jobs. What it writes and the end of the job are one transaction.
func doJob(do func(ctx context.Context, tx *percolator.Txn, id string, body []byte) error) func(context.Context, *percolator.Txn, percolator.Cell) error {
	return func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		body, err := tx.Get(ctx, c)
		if errors.Is(err, percolator.ErrNotFound) {
			return nil // it was done, or taken back
		}
		if err != nil {
			return err
		}
		if err := do(ctx, tx, c.Row, body); err != nil {
			return err
		}
		return tx.Delete(c)
	}
}

// jobObservers are the observers of both priorities. Each has places of its own, so jobs that are not urgent hold no urgent ones up.
func jobObservers(do func(ctx context.Context, tx *percolator.Txn, id string, body []byte) error) []percolator.Observer {
	return []percolator.Observer{
		{Name: "urgent jobs", Table: "job", Column: "urgent", Concurrency: 8, MaxAttempts: 3, Func: doJob(do)},
		{Name: "later jobs", Table: "job", Column: "later", Concurrency: 2, MaxAttempts: 3, Func: doJob(do)},
	}
}

// releaseAll has all parked runs attempted again. It holds a page of them at a time.
func releaseAll(ctx context.Context, db *percolator.DB) error {
	for run, err := range db.ParkedRuns(ctx) {
		if err == nil {
			err = db.Release(ctx, run)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errBadJob = errors.New("the job makes no sense")

// addTask puts a task into a queue that others take from. The lowest priority comes first, and of one priority the oldest. The id is the
// caller's: each task that one transaction adds has another.
func addTask(ctx context.Context, tx *percolator.Txn, priority int64, id, body string) error {
	start, err := tx.StartTimestamp(ctx)
	if err != nil {
		return err
	}
	row := keys.Key("").Int(priority).Uint(uint64(start)).Text(id)
	return tx.Set(percolator.Cell{Table: "task", Row: string(row), Column: "body"}, []byte(body))
}

// takeTask takes one of the first tasks out of the queue, as a part of tx. Of those who take at the same time some conflict, and take another one
// when they run again; so each takes one of the first 16 at random.
func takeTask(ctx context.Context, tx *percolator.Txn) (body []byte, found bool, err error) {
	var first []percolator.Row
	for row, err := range tx.Scan(ctx, percolator.Range{Table: "task", Columns: []string{"body"}, Limit: 16}) {
		if err != nil {
			return nil, false, err
		}
		first = append(first, row)
	}
	if len(first) == 0 {
		return nil, false, nil
	}
	row := first[rand.IntN(len(first))]
	return row.Columns["body"], true, tx.Delete(percolator.Cell{Table: "task", Row: row.Key, Column: "body"})
}

func TestJobs(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	require.NoError(t, openJobs(ctx, db, "job"))
	done := percolator.Cell{Table: "result", Row: "1", Column: "body"}
	var broken sync.Map
	broken.Store("bad", true)
	w := startWorker(t, db, jobObservers(func(_ context.Context, tx *percolator.Txn, id string, body []byte) error {
		if _, bad := broken.Load(id); bad {
			return percolator.Park(errBadJob)
		}
		return tx.Set(percolator.Cell{Table: "result", Row: id, Column: "body"}, body)
	})...)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(job("urgent", "1"), []byte("send")), tx.Set(job("later", "2"), []byte("sweep")), tx.Set(job("later", "bad"), nil))
	}))
	require.NoError(t, w.WaitIdle(ctx))
	got := func(cell percolator.Cell) string {
		var b []byte
		err := db.View(ctx, func(tx *percolator.Txn) (err error) { b, err = tx.Get(ctx, cell); return err })
		if errors.Is(err, percolator.ErrNotFound) {
			return "none"
		}
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, "send", got(done))
	require.Equal(t, "none", got(job("urgent", "1")))
	require.Equal(t, "none", got(job("later", "2")))

	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, job("later", "bad"), parked[0].Cell)
	require.Contains(t, parked[0].Error, errBadJob.Error())
	broken.Delete("bad")
	require.NoError(t, releaseAll(ctx, db))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, "none", got(job("later", "bad")))
}

func TestTasks(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	const tasks, takers = 42, 4
	for i := range tasks - 2 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			return addTask(ctx, tx, int64(i%2)-1, fmt.Sprint(i), fmt.Sprintf("%02d", i))
		}))
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(addTask(ctx, tx, 1, "letter", "40"), addTask(ctx, tx, 1, "bill", "41"))
	}), "two of one priority")
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "task", Limit: 1}) {
			require.NoError(t, err)
			require.Equal(t, "00", string(row.Columns["body"]))
		}
		return nil
	}))
	var mu sync.Mutex
	var taken []string
	var group errgroup.Group
	for range takers {
		group.Go(func() error {
			for {
				var body []byte
				var found bool
				err := db.Update(ctx, func(tx *percolator.Txn) (err error) { body, found, err = takeTask(ctx, tx); return err })
				if err != nil || !found {
					return err
				}
				mu.Lock()
				taken = append(taken, string(body))
				mu.Unlock()
			}
		})
	}
	require.NoError(t, group.Wait())
	slices.Sort(taken)
	require.Len(t, taken, tasks)
	require.Len(t, slices.Compact(taken), tasks, "each was taken once")
}
