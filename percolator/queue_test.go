package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// idleWorker has three observers, and does not run.
func idleWorker(t testing.TB) (*Worker, *world) {
	t.Helper()
	w := newWorld(t)
	return watching(t, w.client(), Observer{Name: "a", Func: nothing}, Observer{Name: "b", Func: nothing},
		Observer{Name: "c", Table: "u", Column: "v", Func: nothing}), w
}

// Whether a job that was found is queued, and what that leaves of it.
func TestWhatIsWanted(t *testing.T) {
	t.Parallel()
	const seen, other = 1, 2
	cell := Cell{"t", "r", "v"}
	for name, x := range map[string]struct {
		task     *task
		paused   time.Duration // for how long yet
		pausedBy uint64        // what was seen then
		turn     time.Duration // when its turn is, if it waits for that
		stopping bool
		full     bool

		want, again, pauseStays bool
	}{
		"new":                       {want: true},
		"running":                   {task: &task{running: true, seen: seen}},
		"running, changed":          {task: &task{running: true, seen: other}, again: true},
		"queued":                    {task: &task{seen: seen}},
		"queued, changed":           {task: &task{seen: other}},
		"paused":                    {paused: time.Second, pausedBy: seen, pauseStays: true},
		"paused, changed":           {paused: time.Second, pausedBy: other, want: true},
		"has a turn, changed":       {paused: time.Second, pausedBy: other, turn: time.Second, pauseStays: true},
		"had a turn, changed":       {paused: time.Second, pausedBy: other, turn: -time.Second, want: true},
		"the pause ends":            {paused: 1, pausedBy: seen, pauseStays: true},
		"the pause has ended":       {paused: -time.Second, pausedBy: seen, want: true},
		"the worker stops":          {stopping: true},
		"the queue has as many":     {full: true},
		"paused, the queue is full": {paused: time.Second, pausedBy: seen, full: true, pauseStays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wk, w := idleWorker(t)
			q := wk.list[0]
			j := job{cell, q.o}
			if x.task != nil {
				wk.jobs[j] = x.task
			}
			if x.paused != 0 {
				now := w.clock.Now()
				wk.pauseJob(&pausedJob{job: j, q: q, until: now.Add(x.paused), seen: x.pausedBy, turn: now.Add(x.turn)})
			}
			before, fresh := 0, len(name)%2 == 0
			waiting := q.waiting(fresh)
			if x.full {
				before = queueLength
				*waiting = make([]*task, before)
			}
			wk.stopping = x.stopping
			require.Equal(t, x.want, wk.found(q, cell, seen, fresh))
			require.Empty(t, *q.waiting(!fresh))
			require.Equal(t, x.pauseStays, wk.paused[j] != nil)
			require.Equal(t, x.full && !x.pauseStays, q.left)
			if x.want {
				require.Len(t, *waiting, 1)
				require.EqualValues(t, seen, (*waiting)[0].seen)
				require.Same(t, (*waiting)[0], wk.jobs[j])
				return
			}
			require.Len(t, *waiting, before)
			if x.task != nil {
				require.Equal(t, x.again, x.task.again)
				if x.task.running {
					require.EqualValues(t, seen, x.task.seen)
				}
			}
		})
	}
}

// Whose job is started next, and which observers have a place.
func TestWhoseJobIsNext(t *testing.T) {
	t.Parallel()
	const nobody = -1
	for name, x := range map[string]struct {
		concurrency    int
		running, waits [3]int
		turn           int
		stopping       bool
		want           int
		places         [3]bool
	}{
		"all the same":             {16, [3]int{}, [3]int{1, 1, 1}, 0, false, 0, [3]bool{true, true, true}},
		"in turn":                  {16, [3]int{}, [3]int{1, 1, 1}, 4, false, 1, [3]bool{true, true, true}},
		"nothing waits":            {16, [3]int{}, [3]int{}, 0, false, nobody, [3]bool{true, true, true}},
		"the fewest":               {16, [3]int{2, 1, 0}, [3]int{1, 1, 0}, 0, false, 1, [3]bool{true, true, true}},
		"no place":                 {16, [3]int{15, 1, 0}, [3]int{1, 1, 1}, 0, false, nobody, [3]bool{}},
		"kept for those with none": {16, [3]int{14, 0, 0}, [3]int{1, 0, 0}, 0, false, nobody, [3]bool{false, true, true}},
		"more than is kept":        {16, [3]int{13, 0, 0}, [3]int{1, 0, 0}, 0, false, 0, [3]bool{true, true, true}},
		"one with none":            {16, [3]int{14, 0, 0}, [3]int{1, 1, 0}, 0, false, 1, [3]bool{false, true, true}},
		"all have some":            {16, [3]int{5, 5, 5}, [3]int{1, 0, 0}, 0, false, 0, [3]bool{true, true, true}},
		"kept for one":             {16, [3]int{14, 1, 0}, [3]int{1, 0, 0}, 0, false, nobody, [3]bool{false, false, true}},
		"nothing is kept of three": {3, [3]int{2, 0, 0}, [3]int{1, 0, 0}, 0, false, 0, [3]bool{true, true, true}},
		"one of four":              {4, [3]int{3, 0, 0}, [3]int{1, 0, 0}, 0, false, nobody, [3]bool{false, true, true}},
		"stops":                    {16, [3]int{}, [3]int{1, 1, 1}, 0, true, nobody, [3]bool{true, true, true}},
	} {
		wk, _ := idleWorker(t)
		wk.config.Concurrency, wk.turn, wk.stopping = x.concurrency, x.turn, x.stopping
		for i, q := range wk.list {
			q.running, q.tasks = x.running[i], make([]*task, x.waits[i])
			wk.running += x.running[i]
		}
		for i, q := range wk.list {
			require.Equal(t, x.places[i], wk.hasPlace(q), "%s: place of %d", name, i)
		}
		if x.want == nobody {
			require.Nil(t, wk.nextQueue(), name)
			continue
		}
		require.Same(t, wk.list[x.want], wk.nextQueue(), name)
		require.Equal(t, x.turn+1, wk.turn, name)
	}
}

// From when on a worker is stuck with an observer.
func TestStuckFrom(t *testing.T) {
	t.Parallel()
	const never = time.Duration(-1 << 62)
	for name, x := range map[string]struct {
		change func(wk *Worker, q, other *queue, now time.Time)
		want   time.Duration
	}{
		"nothing waits":       {func(*Worker, *queue, *queue, time.Time) {}, never},
		"a job waits":         {func(_ *Worker, q, _ *queue, _ time.Time) { q.tasks = make([]*task, 1) }, 3 * time.Second},
		"more was found":      {func(_ *Worker, q, _ *queue, _ time.Time) { q.left = true }, 3 * time.Second},
		"stuck already":       {func(_ *Worker, q, _ *queue, _ time.Time) { q.stuck = true }, 3 * time.Second},
		"there is a place":    {func(wk *Worker, q, _ *queue, _ time.Time) { q.left, wk.config.Concurrency = true, 16 }, never},
		"functions take long": {func(_ *Worker, q, _ *queue, _ time.Time) { q.left, q.takes = true, 5*time.Second }, 10 * time.Second},
		"not long":            {func(_ *Worker, q, _ *queue, _ time.Time) { q.left, q.takes = true, time.Second }, 3 * time.Second},
		"very long":           {func(_ *Worker, q, _ *queue, _ time.Time) { q.left, q.takes = true, time.Hour }, 30 * time.Second},
		"another one's functions": {func(_ *Worker, q, o *queue, now time.Time) {
			q.left, o.takes, o.moved = true, time.Hour, now.Add(time.Hour)
		}, 3 * time.Second},
		"waits for another one's": {func(_ *Worker, q, o *queue, now time.Time) {
			q.left, q.running, o.running, o.takes, o.moved = true, 0, 1, 4*time.Second, now.Add(time.Second)
		}, 9 * time.Second},
		"another one's moved before": {func(_ *Worker, q, o *queue, now time.Time) {
			q.left, q.running, o.running, o.moved = true, 0, 1, now.Add(-time.Second)
		}, 3 * time.Second},
		"its own places are taken": {func(wk *Worker, q, _ *queue, _ time.Time) {
			q.left, q.o.Concurrency, wk.config.Concurrency = true, 1, 16
		}, 3 * time.Second},
		"a place of its own is free": {func(_ *Worker, q, _ *queue, _ time.Time) { q.left, q.o.Concurrency = true, 2 }, never},
		"others have no place for it": {func(_ *Worker, q, o *queue, _ time.Time) {
			q.left, q.running, o.running, q.o.Concurrency = true, 0, 1, 1
		}, never},
		"one with its own is not waited for": {func(wk *Worker, q, o *queue, now time.Time) {
			q.left, q.running, o.o.Concurrency, o.takes, o.moved = true, 0, 1, 4*time.Second, now.Add(time.Second)
			wk.list[2].running = 1
		}, 3 * time.Second},
		"a look":                        {func(wk *Worker, _, _ *queue, now time.Time) { wk.looking["t"] = now }, 3 * time.Second},
		"a look at another table":       {func(wk *Worker, _, _ *queue, now time.Time) { wk.looking["u"] = now }, never},
		"a look that hangs for longer":  {func(wk *Worker, q, _ *queue, now time.Time) { q.left, wk.looking["t"] = true, now.Add(-time.Second) }, 2 * time.Second},
		"a look that hangs for shorter": {func(wk *Worker, q, _ *queue, now time.Time) { q.left, wk.looking["t"] = true, now.Add(time.Second) }, 3 * time.Second},
	} {
		wk, w := idleWorker(t)
		q, now := wk.list[0], w.clock.Now()
		wk.config.Concurrency, wk.running, q.running, q.moved = 1, 1, 1, now
		x.change(wk, q, wk.list[1], now)
		from, ok := wk.stuckFrom(q)
		require.Equal(t, x.want != never, ok, name)
		if ok {
			require.Equal(t, x.want, from.Sub(now), name)
			require.True(t, wk.isStuck(q, from), name)
			require.False(t, wk.isStuck(q, from.Add(-1)), name)
		}
	}
	var q queue
	for _, x := range [][2]time.Duration{{8, 8}, {1, 7}, {10, 10}, {9, 9}} {
		q.note(x[0])
		require.Equal(t, x[1], q.takes)
	}
}

// A push of a table, or of all, ends the wait for the locks there.
func TestPushResumesTables(t *testing.T) {
	t.Parallel()
	for at, want := range map[string][2]int{"": {0, 0}, "t": {0, 1}, "u": {1, 0}, "nobody's": {1, 1}} {
		wk, w := idleWorker(t)
		for _, q := range []*queue{wk.list[0], wk.list[2]} {
			wk.pauseJob(&pausedJob{job: job{Cell{q.table, "r", "v"}, q.o}, q: q, until: w.clock.Now().Add(time.Hour), locked: true})
		}
		wk.stopping = true // nothing is to run
		wk.kick(rowstore.Wake{Table: at})
		require.Equal(t, want, [2]int{len(wk.locked["t"]), len(wk.locked["u"])}, "push of %q", at)
		require.Equal(t, want, [2]int{1 - len(wk.kicks["t"]), 1 - len(wk.kicks["u"])}, "push of %q", at)
	}
}

// Which runs are claimed by a look at what runs.
func TestWhichRunsAreClaimed(t *testing.T) {
	t.Parallel()
	moved := func(wk *Worker, after time.Duration, begin, end shareKind) {
		now := wk.now()
		wk.member.shares.Store(&shares{wk.list[0]: {{kind: begin}, {from: now.Add(after), kind: end}}})
	}
	for name, x := range map[string]struct {
		change func(wk *Worker, x *task, now time.Time)
		want   bool
	}{
		"just called":     {func(*Worker, *task, time.Time) {}, false},
		"called for long": {func(_ *Worker, x *task, now time.Time) { x.calledAt = now.Add(-claimAfter) }, true},
		"not long enough": {func(_ *Worker, x *task, now time.Time) { x.calledAt = now.Add(1 - claimAfter) }, false},
		"queued":          {func(_ *Worker, x *task, now time.Time) { x.running, x.calledAt = false, now.Add(-claimAfter) }, false},
		"not called":      {func(wk *Worker, x *task, _ time.Time) { x.calledAt, wk.stopping = time.Time{}, true }, false},
		"claimed a moment ago": {func(_ *Worker, x *task, now time.Time) {
			x.calledAt, x.claimed = now.Add(-time.Minute), now.Add(1-time.Second)
		}, false},
		"claimed a third ago": {func(_ *Worker, x *task, now time.Time) {
			x.calledAt, x.claimed = now.Add(-time.Minute), now.Add(-time.Second)
		}, true},
		"the worker stops":      {func(wk *Worker, _ *task, _ time.Time) { wk.stopping = true }, true},
		"its cell goes":         {func(wk *Worker, _ *task, _ time.Time) { moved(wk, 2*claimAfter-1, shareAll, shareNone) }, true},
		"its cell goes later":   {func(wk *Worker, _ *task, _ time.Time) { moved(wk, 3*claimAfter, shareAll, shareNone) }, false},
		"its cell has gone":     {func(wk *Worker, _ *task, _ time.Time) { moved(wk, claimAfter, shareNone, shareNone) }, false},
		"its cell comes":        {func(wk *Worker, _ *task, _ time.Time) { moved(wk, claimAfter, shareNone, shareAll) }, false},
		"its cell stays":        {func(wk *Worker, _ *task, _ time.Time) { moved(wk, claimAfter, shareAll, shareAll) }, false},
		"no member, called now": {func(wk *Worker, _ *task, _ time.Time) { wk.member.shares.Store(nil) }, false},
	} {
		wk, w := idleWorker(t)
		q, now := wk.list[0], w.clock.Now()
		wk.member.time.Store(&oracleTime{oracle.FromTime(now), now})
		run := &task{job: job{Cell{"t", "r", "v"}, q.o}, q: q, running: true, calledAt: now}
		wk.jobs[run.job] = run
		x.change(wk, run, now)
		before := run.claimed
		got := wk.toClaim()
		require.Equal(t, x.want, len(got) == 1, name)
		if x.want {
			require.Equal(t, now, run.claimed, name)
		} else {
			require.Equal(t, before, run.claimed, name)
		}
	}
}

// What pushes told of and what a walk has found take turns, and each goes on alone.
func TestPushedJobsTakeTurns(t *testing.T) {
	t.Parallel()
	q := &queue{}
	put := func(fresh bool, n int) {
		for range n {
			list := q.waiting(fresh)
			*list = append(*list, &task{fresh: fresh, seen: uint64(q.waits())}) //nolint:gosec // a small number
		}
	}
	take := func(n int) (order string) {
		for range n {
			order += map[bool]string{false: "w", true: "p"}[q.next().fresh]
		}
		return order
	}
	put(false, 2)
	put(true, 4)
	require.Equal(t, "pwpwpp", take(6))
	require.Zero(t, q.waits())
	put(false, 3)
	require.Equal(t, "ww", take(2))
	put(true, 1)
	require.Equal(t, "pw", take(2))
}

// What had no room is looked for once there is room. A look goes through all rows, so the jobs
// that pushes tell of, of which each has room at once, do not ask for it again and again.
func TestLookForWhatWasLeft(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		tasks, fresh int // that wait
		want         bool
	}{
		{lowWater + 1, 1, false},
		{lowWater, 1, true},
		{lowWater + 1, 0, true},
		{lowWater + 2, 0, false},
		{0, lowWater + 100, true},
	} {
		wk, _ := idleWorker(t)
		q := wk.list[0]
		q.o.Concurrency = 1 // one of them is started
		for i := range x.tasks + x.fresh {
			fresh := i >= x.tasks
			require.True(t, wk.enqueue(&task{job: job{Cell{"t", fmt.Sprint(i), "v"}, q.o}, q: q, fresh: fresh}))
		}
		q.left = true
		wk.mu.Lock()
		q.running = 0
		wk.dispatch()
		left, kicks := q.left, len(wk.kicks["t"])
		wk.mu.Unlock()
		require.Equal(t, !x.want, left, "%+v", x)
		require.Equal(t, x.want, kicks == 1, "%+v", x)
		wk.tasks.Wait()
	}
}

// What dispatch drops and asks for.
func TestDispatchOfForeignJobs(t *testing.T) {
	t.Parallel()
	for i, waits := range []int{lowWater + 1, lowWater + 2, lowWater + 1} {
		wk, w := idleWorker(t)
		q, fresh := wk.list[0], i == 2
		for range waits {
			require.True(t, wk.enqueue(&task{job: job{Cell{"t", fmt.Sprint(q.waits()), "v"}, q.o}, q: q, fresh: fresh}))
		}
		q.left = true
		now := w.clock.Now()
		wk.member.time.Store(&oracleTime{oracle.FromTime(now), now})
		wk.member.shares.Store(&shares{q: {{kind: shareNone}}})
		wk.mu.Lock()
		wk.dispatch()
		wk.mu.Unlock()
		wk.tasks.Wait()
		require.Empty(t, wk.jobs)
		require.Zero(t, q.waits())
		require.Zero(t, wk.running, "nothing of others was started")
		require.False(t, q.left)
		require.Len(t, wk.roomOf("t", fresh), 1)
		require.Empty(t, wk.roomOf("t", !fresh))
		require.Len(t, wk.kicks["t"], 1, "what was left is looked for")
	}
}
