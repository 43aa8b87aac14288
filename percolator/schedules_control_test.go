package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules in which holds, pauses, waits, failures, and observers that are removed and come back meet.

// An observer that was removed and is back has seen nothing: what its first registration acknowledged
// does not tell that a run of the second one has taken effect.
func TestScheduleK_WaitObservedForAnObserverThatIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	at := updateAt(t, c, "1", rowA)
	require.True(t, o.run(rowA))
	require.NoError(t, c.WaitObserved(t.Context(), at, "o", rowA))
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	w.pass(worldLease)
	o.register()
	for _, at := range []Timestamp{at, 0} {
		done := waiting(t, c, at, "o", rowA)
		stillWaits(t, c, done)
		require.NoError(t, c.PauseObserver(t.Context(), "o"))
		require.ErrorIs(t, w.finish(done), ErrObserverPaused)
		require.NoError(t, c.ResumeObserver(t.Context(), "o"))
	}
	done := waiting(t, c, 0, "o", rowA)
	require.True(t, o.run(rowA))
	require.NoError(t, w.finish(done))
}

// A worker that starts while its observer is paused knows it before it begins to look for changes.
func TestScheduleK_WorkerStartsWithinAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	require.NoError(t, c.PauseObserver(t.Context(), "o"))
	worker := watching(t, w.client(), Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	set(t, c.DB, rowA, "1")
	require.NoError(t, worker.publish(t.Context()))
	rests(t, worker, rowA)
	require.Zero(t, worker.db.Stats().ObserverRuns)
}

// An observer is resumed, and nobody has told the worker yet: WaitIdle waits for the changes of the pause. So it does if the pause came while it looked.
func TestScheduleK_IdleAfterAResumption(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("paused during a look ", during), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c, other := w.client(), w.client()
			worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
			close(worker.ready)
			pauses := func() {
				require.NoError(t, other.PauseObserver(t.Context(), "o"))
				worker.notePaused(other.known())
			}
			if !during {
				pauses()
			}
			set(t, c.DB, rowA, "1")
			if !during {
				require.NoError(t, worker.WaitIdle(t.Context()), "it is not waited for")
			}
			scan := c.hold(t, func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" })
			read := c.hold(t, func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog })
			done := async(func() error { return worker.WaitIdle(t.Context()) })
			scan.wait()
			if during {
				pauses()
			}
			scan.release(pass)
			read.wait() // after the scans
			require.NoError(t, other.ResumeObserver(t.Context(), "o"))
			read.release(pass)
			select {
			case <-worker.recheck: // attend reads the catalog then
			case err := <-done:
				require.FailNow(t, "WaitIdle has returned while a change waits", "%v", err)
			case <-time.After(patience):
				require.FailNow(t, "nobody asks for the catalog")
			}
			worker.notePaused(other.known())
			runs(t, worker, rowA)
			require.NoError(t, w.finish(done))
			require.Empty(t, w.notified(rowA))
		})
	}
}

// A new observer is paused while its worker sweeps for it, which may take hours: the worker knows of it, and of
// its end, as soon as at any other time.
func TestScheduleK_PauseWithinASweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	const rows = 4 * sweepBatch
	for i := range rows {
		set(t, c.DB, row(fmt.Sprintf("r%06d", i)), "1")
	}
	o := newTold(t, c, "o", "t")
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	w.pass(worldLease)
	require.NoError(t, o.w.publish(t.Context()))
	other := w.client()
	puts := func(x *call) bool { return edits(x, puts(rowstore.Notify)) }
	p := c.hold(t, puts)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{})
	close(started)
	attended := async(func() error { return o.w.attend(ctx, started) })
	swept := async(func() error { return o.w.sweepFresh(ctx) })
	p.wait()
	passes := func() {
		_, ended := w.clock.sleeps(t, worldLease, attended)
		require.False(t, ended)
		w.pass(worldLease)
	}
	for _, paused := range []bool{true, false} {
		require.NoError(t, other.setPaused(t.Context(), "changing", "o", paused))
		passes()
		require.Eventually(t, func() bool { return o.w.isPaused("o", rowA) == paused }, patience, time.Millisecond)
		next := c.hold(t, puts)
		p.release(pass)
		p = next
		p.wait()
	}
	// It also knows that the observer was removed, and does not go on for nobody.
	require.NoError(t, other.RemoveObserver(t.Context(), "o"))
	passes()
	require.ErrorIs(t, w.finish(attended), ErrObserverRemoved)
	cancel() // as Run does then
	p.release(pass)
	require.ErrorIs(t, w.finish(swept), context.Canceled)
	require.Len(t, c.wire.sent(puts), 3)
}

// An observer is resumed after a job of its has found it paused, and before that job has ended: the
// job looks again, because nobody else looks at a cell that has one.
func TestScheduleK_ResumedWhileAJobEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	set(t, c.DB, rowA, "1")
	require.NoError(t, c.PauseObserver(t.Context(), "o"))
	worker.notePaused(c.known())
	q := worker.list[0]
	task := &task{job: job{rowA, q.o}, q: q, running: true}
	worker.jobs[task.job] = task
	q.running, worker.running = 1, 1
	r := worker.attempt(t.Context(), task)
	require.Equal(t, runDone, r.next)
	require.NoError(t, c.ResumeObserver(t.Context(), "o"))
	worker.notePaused(c.known())
	require.False(t, worker.endJob(task, r.next, worker.pauseAfter(task, r)), "the change is left to a look that may come a minute later")
	require.Equal(t, runDone, worker.attempt(t.Context(), task).next)
	require.EqualValues(t, 1, c.Stats().ObserverRuns)
}

// A run fails, or asks to be parked or repeated, while another worker's run for the same change takes
// effect: nothing is recorded, so nobody is told of a failure, and it does not count against the observer.
func TestScheduleK_FailureThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"fails": errTest, "parks": Park(errTest), "retries": RetryAfter(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c, c2 := w.client(), w.client()
			other := watching(t, c2, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
			worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error {
				runs(t, other, rowA)
				return cause
			}})
			require.NoError(t, worker.OnError(func(_ context.Context, e RunError) { t.Errorf("told of %+v", e) }))
			set(t, c.DB, rowA, "1")
			require.Equal(t, runAgain, look(t, worker, rowA))
			require.Empty(t, worker.list[0].breaker.failed)
			require.Zero(t, c.Stats().ObserverFailures)
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Empty(t, parked)
			rests(t, worker, rowA)
		})
	}
}

// A store that answers nothing certain to the removal of locks is not asked again at once.
func TestScheduleK_AmbiguousResolutions(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		dead, c := w.client(opts...), w.client(WithLockWait(Backoff{Min: time.Minute, Max: time.Minute}))
		dead.wire.verdict(commitPoint(rowA), die)
		_ = writes(t, dead, "dead", rowA, rowB).Commit(t.Context())
		require.NoError(t, dead.drained(t.Context()))
		require.Len(t, w.versions(rowstore.Lock), 2)
		w.pass(worldSession + time.Second)
		// The primary is rolled back; what is left is its other row.
		require.Equal(t, "none", value(t, c, rowA))
		tries := func(x *call) bool { return x.Kind == faultstore.CallApply && on(rowB)(x) }
		c.wire.AddRule(faultstore.Rule{Match: tries, Fault: lose, Times: -1})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := async(func() error {
			return c.View(ctx, func(tx *Txn) error { _, err := tx.Get(ctx, rowB); return err })
		})
		_, ended := w.clock.sleeps(t, time.Minute, done)
		require.False(t, ended)
		cancel()
		require.ErrorIs(t, w.finish(done), context.Canceled)
		require.Len(t, c.wire.sent(tries), 1)
		c.wire.SetRules()
		require.Equal(t, "none", value(t, c, rowB))
	})
}

// An open breaker lets one run through: a job that finds nothing to run, or must wait, does not use it up.
func TestScheduleK_BreakerLetsARunThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var cause error
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return cause }})
	set(t, c.DB, rowA, "1")
	runs(t, worker, rowA)
	cause = errTest
	set(t, c.DB, rowB, "1")
	look(t, worker, rowB)
	cause = nil
	set(t, c.DB, rowC, "1")
	worker.list[0].breaker = breaker{at: 1, open: true, next: w.clock.Now()}
	rests(t, worker, rowA)
	require.Equal(t, runWaiting, look(t, worker, rowB), "for its next attempt")
	runs(t, worker, rowC)
	require.False(t, worker.list[0].breaker.open)
}
