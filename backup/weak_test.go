package backup

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
)

// jobs is an observer that does with each row what the test has it do.
type jobs struct {
	db     *percolator.DB
	worker *percolator.Worker
	fails  map[string]error // by row
}

func (j *jobs) observe(t *testing.T, name string) {
	t.Helper()
	wait := percolator.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	j.worker = percolator.NewWorker(j.db, percolator.WorkerConfig{GCInterval: -1, Backoff: wait})
	require.NoError(t, j.worker.Observe(percolator.Observer{Name: name, Table: "jobs", Column: "c", Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
		if err := j.fails[c.Row]; err != nil {
			return err
		}
		return tx.Set(at("done", name+" "+c.Row, "c"), []byte("x"))
	}}))
}

// left lists the rows that the observer has yet to see.
func (j *jobs) left(t *testing.T) []string {
	t.Helper()
	left, err := coretest.Left(t.Context(), j.worker)
	require.NoError(t, err)
	var rows []string
	for _, l := range left {
		rows = append(rows, l.Cell.Row)
	}
	slices.Sort(rows)
	return rows
}

// attempt makes one attempt at each run that is left.
func (j *jobs) attempt(t *testing.T) {
	t.Helper()
	left, err := coretest.Left(t.Context(), j.worker)
	require.NoError(t, err)
	for _, l := range left {
		_, err := coretest.Attempt(t.Context(), j.worker, l)
		require.NoError(t, err)
	}
	_, err = coretest.Left(t.Context(), j.worker) // clears what all have seen
	require.NoError(t, err)
}

func job(row string) percolator.Cell { return at("jobs", row, "c") }

// parked lists the parked runs by their rows.
func (j *jobs) parked(t *testing.T) map[string]percolator.ParkedRun {
	t.Helper()
	runs, err := j.db.Parked(t.Context())
	require.NoError(t, err)
	all := map[string]percolator.ParkedRun{}
	for _, r := range runs {
		all[r.Cell.Row] = r
	}
	return all
}

// TestWeakNotificationsAfterTheSnapshot lets every weak notification of before the snapshot be dealt with between the snapshot and the first
// look at notifications, where nothing but what the runs leave behind tells of them. What was asked for after the snapshot is
// not outstanding in it.
func TestWeakNotificationsAfterTheSnapshot(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	j := &jobs{db: s.db, fails: map[string]error{"again": percolator.Park(errBad), "released": percolator.Park(errBad)}}
	j.observe(t, "job")
	require.NoError(t, coretest.Publish(t.Context(), j.worker))
	s.update(t, func(tx *percolator.Txn) error {
		for _, row := range []string{"again", "done", "failed", "parked", "released", "replayed", "succeeds"} {
			if err := tx.Set(job(row), []byte("1")); err != nil {
				return err
			}
		}
		return nil
	})
	j.attempt(t)
	require.Len(t, j.parked(t), 2)
	_, err := j.db.Replay(t.Context(), "job", percolator.Range{Table: "jobs", From: "x"}) // raises the catalog
	require.NoError(t, err)
	outstanding := []string{"again", "failed", "parked", "succeeds"}
	s.update(t, func(tx *percolator.Txn) error {
		for _, row := range outstanding {
			if err := tx.Notify(job(row)); err != nil {
				return err
			}
		}
		return nil
	})
	j.fails = map[string]error{"failed": errBad}
	left, err := coretest.Left(t.Context(), j.worker)
	require.NoError(t, err)
	for _, l := range left {
		if l.Cell.Row == "failed" {
			_, err := coretest.Attempt(t.Context(), j.worker, l)
			require.NoError(t, err)
		}
	}
	require.Equal(t, outstanding, j.left(t))

	path := s.cutOff(t, 0)
	j.fails = map[string]error{"parked": percolator.Park(errBad)}
	require.NoError(t, j.db.Release(t.Context(), j.parked(t)["released"]))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	_, err = j.db.Replay(ctx, "job", percolator.Range{Table: "jobs", From: "replayed", To: "replayed\x00"})
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded) // nobody runs the worker
	time.Sleep(2 * time.Millisecond)                  // the wait of what has failed
	j.attempt(t)
	require.Empty(t, j.left(t))
	require.Len(t, j.parked(t), 1)

	again, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)
	require.True(t, again.Resumed)
	restored := &jobs{db: restored(t, "memory:", path).db}
	restored.observe(t, "job")
	require.Equal(t, outstanding, restored.left(t))
	require.Len(t, restored.parked(t), 2)
	restored.attempt(t)
	require.Empty(t, restored.left(t))
	require.Len(t, restored.parked(t), 1, "the run of a later notification forgets what was parked before")
}

// TestRenamedObserver backs up an observer that was renamed before the snapshot, and is renamed again after it. Under either
// name of before the snapshot it goes on where it was.
func TestRenamedObserver(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	j := &jobs{db: s.db}
	j.observe(t, "job")
	require.NoError(t, coretest.Publish(t.Context(), j.worker))
	write := func(rows ...string) {
		s.update(t, func(tx *percolator.Txn) error {
			for _, row := range rows {
				if err := tx.Set(job(row), []byte("1")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	write("changed", "done", "notified", "parked")
	j.attempt(t)
	require.NoError(t, s.db.RenameObserver(t.Context(), "job", "work"))
	write("parked")
	j.fails = map[string]error{"parked": percolator.Park(errBad)}
	j.attempt(t)
	write("changed")
	s.update(t, func(tx *percolator.Txn) error { return tx.Notify(job("notified")) })

	path := s.cutOff(t, 0)
	require.NoError(t, s.db.RenameObserver(t.Context(), "work", "toil"))
	j.attempt(t)
	require.Empty(t, j.left(t))
	_, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)

	whole, err := check(t.Context(), path, func(Progress) {})
	require.NoError(t, err)
	require.Empty(t, whole.end.Resweep, "it would look at every row once more")
	for _, name := range []string{"job", "work"} {
		restored := &jobs{db: restored(t, "memory:", path).db}
		infos, err := restored.db.Observers(t.Context())
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.Equal(t, []string{"work", "job"}, append([]string{infos[0].Name}, infos[0].Aliases...))
		restored.observe(t, name)
		require.NoError(t, coretest.Publish(t.Context(), restored.worker))
		require.Equal(t, []string{"changed", "notified"}, restored.left(t))
		require.Equal(t, "work", restored.parked(t)["parked"].Observer)
		restored.attempt(t)
		require.Empty(t, restored.left(t))
	}
}

// TestRemovedObserver removes an observer while a backup runs. Then nobody keeps a notification for it. It is in the backup, so
// it looks at every row after the restore, and runs for what it had not seen.
func TestRemovedObserver(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	run := func(db *percolator.DB) {
		for _, name := range []string{"job", "other"} {
			j := &jobs{db: db}
			j.observe(t, name)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- j.worker.Run(ctx) }()
			require.NoError(t, j.worker.WaitIdle(t.Context()))
			cancel()
			require.NoError(t, <-ended)
		}
	}
	swept := func(db *percolator.DB) map[string]bool {
		infos, err := db.Observers(t.Context())
		require.NoError(t, err)
		all := map[string]bool{}
		for _, o := range infos {
			all[o.Name] = o.Swept
		}
		return all
	}
	run(s.db)
	require.Equal(t, map[string]bool{"job": true, "other": true}, swept(s.db))
	s.update(t, func(tx *percolator.Txn) error { return tx.Set(job("late"), []byte("1")) })

	path := s.cutOff(t, 0)
	require.NoError(t, s.db.RemoveObserver(t.Context(), "job"))
	j := &jobs{db: s.db}
	j.observe(t, "other")
	j.attempt(t)
	_, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)

	db := restored(t, "memory:", path).db
	require.Equal(t, map[string]bool{"job": false, "other": true}, swept(db))
	run(db)
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), at("done", "job late", "c"))
		return err
	}))
}
