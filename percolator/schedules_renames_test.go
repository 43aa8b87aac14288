package percolator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules in which an observer is renamed while it runs, under either name.

// hires makes a worker that counts its runs, and registers its observer, named in a program.
func hires(t testing.TB, c *client, name string, count *int) *Worker {
	t.Helper()
	w := watching(t, c, Observer{Name: name, MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error {
		*count++
		return nil
	}})
	require.NoError(t, w.publish(t.Context()))
	return w
}

func namesOf(t testing.TB, c *client) string {
	t.Helper()
	infos, err := c.Observers(t.Context())
	require.NoError(t, err)
	var names []string
	for _, o := range infos {
		names = append(names, o.Name+"("+strings.Join(o.Aliases, ",")+")")
	}
	return strings.Join(names, " ")
}

// A run of the old name is under way when the observer is renamed, and a worker of the new name starts: the change is done
// once, whoever commits first, and what was acknowledged stays so.
func TestScheduleN_RunUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "old")
	c, c2 := w.client(), w.client()
	var runsOfOld, runsOfNew int
	var during func()
	old := watching(t, c, Observer{Name: "old", Func: func(context.Context, *Txn, Cell) error {
		if runsOfOld++; during != nil {
			during()
		}
		return nil
	}})
	require.NoError(t, old.publish(t.Context()))
	set(t, c.DB, rowA, "1")
	runs(t, old, rowA)
	set(t, c.DB, rowB, "1")
	var next *Worker
	during = func() {
		during = nil
		require.NoError(t, c2.RenameObserver(t.Context(), "old", "new"))
		next = hires(t, c2, "new", &runsOfNew)
		rests(t, next, rowA)
		runs(t, next, rowB)
	}
	require.Equal(t, runConflict, look(t, old, rowB))
	require.Equal(t, 2, runsOfOld)
	require.Equal(t, 1, runsOfNew)
	for _, worker := range []*Worker{old, next} {
		rests(t, worker, rowA)
		rests(t, worker, rowB)
	}
	require.Equal(t, "new(old)", namesOf(t, c))
	require.Equal(t, "", w.notifiedAny(rowA, rowB))
}

// notifiedAny says which of the cells are notified.
func (w *world) notifiedAny(cells ...Cell) (all string) {
	for _, c := range cells {
		if len(w.notified(c)) > 0 {
			all += c.String()
		}
	}
	return all
}

// Two workers, one with each name: they are members for one observer, so they share its changes out, and each change is
// acknowledged for both. Nothing is swept again.
func TestScheduleN_TwoWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "old")
	c, c2 := w.client(), w.client()
	var runsOfOld, runsOfNew int
	// The worker's name is neither the first one, by which records are stored, nor the newest one.
	require.NoError(t, c.RenameObserver(t.Context(), "old", "middle"))
	require.NoError(t, c.RenameObserver(t.Context(), "middle", "new"))
	old, next := hires(t, c, "middle", &runsOfOld), hires(t, c2, "new", &runsOfNew)
	for _, worker := range []*Worker{old, next} {
		require.Empty(t, worker.unswept(worker.db.known()))
		require.Equal(t, "old", worker.works()[0].Observer)
		require.NoError(t, worker.checkRegistered(worker.db.known()))
	}
	for i := range 4 {
		cell := row(fmt.Sprint(i))
		set(t, c.DB, cell, "1")
		first, second := old, next
		if i%2 == 1 {
			first, second = next, old
		}
		runs(t, first, cell)
		rests(t, second, cell)
	}
	require.Equal(t, []int{2, 2}, []int{runsOfOld, runsOfNew})
	// Control goes by either name, and reaches both.
	for i, name := range []string{"middle", "new"} {
		require.NoError(t, c.PauseObserver(t.Context(), name))
		for _, worker := range []*Worker{old, next} {
			v, err := worker.db.loadCatalog(t.Context())
			require.NoError(t, err)
			worker.notePaused(v)
			require.True(t, worker.list[0].paused)
		}
		cell := row(fmt.Sprint("paused ", i))
		set(t, c.DB, cell, "1")
		require.ErrorIs(t, c.WaitObserved(t.Context(), 0, []string{"new", "middle"}[i], cell), ErrObserverPaused)
		require.NoError(t, c.ResumeObserver(t.Context(), []string{"new", "middle"}[i]))
		for _, worker := range []*Worker{old, next} {
			v, err := worker.db.loadCatalog(t.Context())
			require.NoError(t, err)
			worker.notePaused(v)
		}
		runs(t, next, cell)
		require.NoError(t, c.WaitObserved(t.Context(), 0, name, cell))
	}
}

// The old name is registered again, by a worker that starts after the rename; then the observer is renamed back, and to a third
// name. It stays one observer, and nothing runs twice.
func TestScheduleN_OldNameAgainAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	var n int
	first := hires(t, c, "old", &n)
	since := c.known().Observers[0].Since
	set(t, c.DB, rowA, "1")
	runs(t, first, rowA)
	for _, x := range []struct{ from, to, names string }{
		{"old", "new", "new(old)"},
		{"new", "old", "old(new)"},
		{"new", "new", "new(old)"},
		{"old", "third", "third(old,new)"},
		{"third", "old", "old(new,third)"},
		{"old", "old", "old(new,third)"},
	} {
		require.NoError(t, c.RenameObserver(t.Context(), x.from, x.to))
		require.Equal(t, x.names, namesOf(t, c))
		for _, name := range []string{"old", "new"} {
			if !c.known().Observers[0].Has(name) {
				continue
			}
			again := hires(t, w.client(), name, &n)
			require.NoError(t, again.checkRegistered(again.db.known()))
			rests(t, again, rowA)
		}
		require.Len(t, c.known().Observers, 1)
		require.Equal(t, since, c.known().Observers[0].Since)
	}
	require.Equal(t, 1, n)
	require.True(t, c.known().Renamed)
	value, err := c.known().encode()
	require.NoError(t, err)
	require.EqualValues(t, format.RenamedVersion, value[0])
}

// A renamed observer is removed: workers of all its names stop, and the names are free. A registration under one of them begins
// anew. A worker that knew the removed observer by a name that somebody else has now does not go on for the other one.
func TestScheduleN_Removed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	var n int
	old := hires(t, c, "old", &n)
	require.NoError(t, c.RenameObserver(t.Context(), "old", "new"))
	next := hires(t, w.client(), "new", &n)
	set(t, c.DB, rowA, "1")
	runs(t, next, rowA)
	require.NoError(t, c.RemoveObserver(t.Context(), "old"))
	w.pass(worldLease + time.Second)
	for _, worker := range []*Worker{old, next} {
		v, err := worker.db.loadCatalog(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, worker.checkRegistered(v), ErrObserverRemoved)
	}
	again, other := hires(t, w.client(), "new", &n), hires(t, w.client(), "old", &n)
	require.Equal(t, "new() old()", namesOf(t, c))
	require.Len(t, again.unswept(again.db.known()), 1, "it begins anew")
	v, err := next.db.loadCatalog(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, next.checkRegistered(v), ErrObserverRemoved, "its id is that of another observer now")
	runs(t, again, rowA)
	runs(t, other, rowA)
}

// Runs are parked before and after a rename; they are listed by the new name, and released and dropped by either.
func TestScheduleN_Parked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cause := errTest
	worker := watching(t, c, Observer{Name: "old", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error { return cause }})
	require.NoError(t, worker.publish(t.Context()))
	park := func(cells ...Cell) {
		for _, cell := range cells {
			set(t, c.DB, cell, "1")
			look(t, worker, cell)
		}
	}
	park(rowA)
	require.NoError(t, c.RenameObserver(t.Context(), "old", "new"))
	park(rowB, rowC)
	parked, err := c.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 3)
	for i := range parked {
		require.Equal(t, "new", parked[i].Observer)
	}
	var waits *ParkedError
	require.ErrorAs(t, c.WaitObserved(t.Context(), 0, "old", rowA), &waits)
	require.Equal(t, "new", waits.Run.Observer)
	cause = nil
	require.NoError(t, c.Release(t.Context(), waits.Run, ParkedRun{Observer: "old", Cell: rowB}))
	runs(t, worker, rowA)
	runs(t, worker, rowB)
	require.NoError(t, c.DropParked(t.Context(), ParkedRun{Observer: "new", Cell: rowC}))
	rests(t, worker, rowC)

	// What was parked for an observer that was removed goes by its first name, also if another one has come to have that.
	cause = errTest
	park(rowA, rowB)
	require.NoError(t, c.RemoveObserver(t.Context(), "new"))
	w.pass(worldLease + time.Second)
	var n int
	hires(t, c, "other", &n)
	require.NoError(t, c.RenameObserver(t.Context(), "other", "old"))
	parked, err = c.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 2)
	require.Equal(t, "old", parked[0].Observer)
	require.NoError(t, c.Release(t.Context(), parked[0]))
	require.NoError(t, c.DropParked(t.Context(), parked[1]))
	parked, err = c.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
}

// A replay that was begun under the old name goes on under the new one.
func TestScheduleN_Replay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.observed("t", "v", "old")
	w.replays()
	var n int
	for i := range 2 * replayPage {
		set(t, c.DB, row(fmt.Sprintf("r%04d", i)), "1")
	}
	worker := hires(t, c, "old", &n)
	require.NoError(t, asks(c, "old"))
	require.NoError(t, c.RenameObserver(t.Context(), "old", "new"))
	replaying, err := c.Replays(t.Context())
	require.NoError(t, err)
	require.Len(t, replaying, 1)
	require.Equal(t, "new", replaying[0].Observer)
	require.NoError(t, asks(c, "new"))
	require.True(t, w.asked(row(fmt.Sprintf("r%04d", replayPage)), "old"), "the second page")
	runs(t, worker, row("r0000"))
	require.NoError(t, c.CancelReplay(t.Context(), "old", Range{Table: "t"}))
	replaying, err = c.Replays(t.Context())
	require.NoError(t, err)
	require.Empty(t, replaying)
}

// A worker that has both names does not run, whatever it was that registered them.
func TestScheduleN_BothNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.observed("t", "v", "old")
	require.NoError(t, c.RenameObserver(t.Context(), "old", "new"))
	nothing := func(context.Context, *Txn, Cell) error { return nil }
	for _, names := range [][]string{{"old", "new"}, {"new", "old"}} {
		worker := watching(t, c, Observer{Name: names[0], Func: nothing}, Observer{Name: "beside", Func: nothing}, Observer{Name: names[1], Func: nothing})
		err := worker.Run(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, `"old"`)
		require.ErrorContains(t, err, `"new"`)
		require.Equal(t, "new(old)", namesOf(t, c), "nothing of it is registered")
	}
}

func TestRenameObserverRefuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.observed("t", "v", "o", "other")
	w.observed("t2", "v", "o", "elsewhere")
	w.observed(PeriodicTable, periodicPrefix+"p", "p")
	c := w.client()
	_, err := c.loadCatalog(ctx)
	require.NoError(t, err)
	before := c.known().revision
	long := strings.Repeat("x", format.MaxObserverName)
	for _, x := range []struct {
		old, name string
		is        error
	}{
		{"nobody", "n", ErrNotObserved},
		{"", "n", ErrNotObserved},
		{"o", "", ErrInvalid},
		{"o", long + "x", ErrInvalid},
		{"o", "other", ErrInvalid},
		{"o", "elsewhere", ErrInvalid},
		{"other", "o", ErrInvalid},
		{"p", "q", ErrInvalid},
	} {
		err := c.RenameObserver(ctx, x.old, x.name)
		require.ErrorIs(t, err, x.is, "%.20q to %.20q", x.old, x.name)
	}
	require.NoError(t, c.RenameObserver(ctx, "o", "o"))
	require.Equal(t, before, c.known().revision, "nothing is written")
	require.False(t, c.known().Renamed)

	require.NoError(t, c.RenameObserver(ctx, "o", long), "in both tables")
	require.Equal(t, long+"(o) other() "+long+"(o) elsewhere() p()", namesOf(t, c))
	require.ErrorIs(t, c.RenameObserver(ctx, "other", "o"), ErrInvalid, "an alias")
	for i := range format.MaxAliases - 1 {
		require.NoError(t, c.RenameObserver(ctx, "o", fmt.Sprint("name", i)))
	}
	require.ErrorIs(t, c.RenameObserver(ctx, "o", "one too many"), ErrInvalid)
	require.NoError(t, c.RenameObserver(ctx, "o", "name0"), "it has that one")
	require.NoError(t, c.RemoveObserver(ctx, long))
	require.Equal(t, "other() elsewhere() p()", namesOf(t, c))
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, c.RenameObserver(ctx, "other", "n"), ErrClosed)
}

// The reply to a rename gets lost: it has been done once.
func TestScheduleN_LostReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "old")
	c := w.client()
	c.wire.verdict(func(x *call) bool {
		return x.Kind == faultstore.CallApply && edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Table == format.TableCatalog && e.Column == format.ColumnConfig
		})
	}, lose)
	require.NoError(t, c.RenameObserver(t.Context(), "old", "new"))
	require.Equal(t, "new(old)", namesOf(t, c))
}
