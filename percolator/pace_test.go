package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A look in vain that took long rests for longer: nine times as long where pushes are followed beside it, and else as long as it
// took. The push of a store may be refused for ever, and then nothing is followed.
func TestRestAfterALookInVain(t *testing.T) {
	t.Parallel()
	const usual = 2 * time.Second
	for _, x := range []struct {
		listens, slots bool
		took, want     time.Duration
	}{
		{true, true, 100 * time.Millisecond, usual},
		{true, true, time.Second, 9 * time.Second},
		{true, true, time.Hour, time.Minute},
		{true, false, time.Second, usual},
		{true, false, 3 * time.Second, 3 * time.Second},
		{false, true, time.Second, usual},
		{false, true, 3 * time.Second, 3 * time.Second},
		{false, true, time.Hour, 10 * time.Second},
		{false, false, time.Hour, 10 * time.Second},
	} {
		wk, _ := idleWorker(t)
		if x.listens {
			wk.listening.Store(1)
		}
		wk.db.slots = x.slots
		require.Equal(t, x.want, wk.restAfter(x.took, usual), "%+v", x)
	}
}

// Without a push the members of an observer together look 200 times a second at most, where nothing happens.
func TestPollOfManyMembers(t *testing.T) {
	t.Parallel()
	wk, _ := idleWorker(t)
	longest := func(table string) time.Duration {
		p := pace{misses: 100}
		return wk.untilNextLook(&p, table, 0)
	}
	require.Equal(t, wk.config.Rescan, longest("t"), "with a push")
	wk.wakers = nil
	require.Equal(t, 250*time.Millisecond, longest("t"), "it is no member yet")
	for _, x := range []struct {
		of, other int // that share the slots of two observers of the table
		want      time.Duration
	}{
		{0, 0, 250 * time.Millisecond},
		{1, 40, 250 * time.Millisecond},
		{50, 1, 250 * time.Millisecond},
		{100, 2, 500 * time.Millisecond},
		{2, 1000, 5 * time.Second},
	} {
		wk.member.shares.Store(&shares{wk.list[0]: {{of: x.of}}, wk.list[1]: {{of: x.other}}, wk.list[2]: {{of: 1}}})
		require.Equal(t, x.want, longest("t"), "%+v", x)
		require.Equal(t, 250*time.Millisecond, longest("u"), "the table has other members")
		p := pace{found: 0}
		require.LessOrEqual(t, wk.untilNextLook(&p, "t", 1), 2*wk.config.Poll.Min, "what is found is followed by a look at once")
	}
	wk.config.Poll = Backoff{Min: time.Minute, Max: time.Hour}
	require.Equal(t, time.Hour, longest("t"))
}

// A look counts as one in vain if it found next to nothing beside very many cells that wait.
func TestLookFindsMostlyWhatWaits(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		visited, found int
		want           bool
	}{
		{0, 0, true},
		{manyRows, 0, true},
		{manyRows - 1, 1, false},
		{manyRows, 1, true},
		{manyRows, manyRows / 16, false},
		{16 * manyRows, manyRows - 1, true},
	} {
		require.Equal(t, x.want, (&looker{visited: x.visited, found: x.found}).mostWaits(), "%+v", x)
	}
}

// The next look after a long one in vain is calm, where pushes are followed beside it.
func TestCalmAfterALookInVain(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		listens, slots bool
		visited, found int
		took           time.Duration
		want           float64
	}{
		{true, true, manyRows, 0, time.Second, vainLooks},
		{true, true, 16 * manyRows, manyRows - 1, longLook, vainLooks},
		{true, true, manyRows, 0, 20 * time.Second, 3},
		{true, true, manyRows, 0, 2 * time.Minute, 0.5},
		{true, true, manyRows, 0, longLook - 1, 0},
		{true, true, manyRows - 1, 0, time.Second, 0},
		{true, true, manyRows, manyRows, time.Second, 0},
		{true, false, manyRows, 0, time.Second, 0},
		{false, true, manyRows, 0, time.Second, 0},
	} {
		wk, _ := idleWorker(t)
		if x.listens {
			wk.listening.Store(1)
		}
		wk.db.slots = x.slots
		require.InDelta(t, x.want, wk.calmAfter(&looker{visited: x.visited, found: x.found}, x.took), 0.001, "%+v", x)
	}
}

// A calm look rests after each page of cells that wait, but its last, and so leaves the store to others. It does
// not rest where it finds something, nor once somebody asks for a look.
func TestCalmLookRestsAfterEachPage(t *testing.T) {
	t.Parallel()
	const page, rest = 40 * time.Millisecond, 360 * time.Millisecond
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	wk := NewWorker(c.DB, WorkerConfig{Backoff: Backoff{Min: time.Hour, Max: time.Hour}, BreakAt: -1})
	require.NoError(t, wk.Observe(Observer{
		Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return errors.New("on purpose") },
	}))
	const rows = 2*lookPage + 10
	notifyRows(t, c, rows)
	c.wire.AddRule(faultstore.Rule{Match: scansOfT, Times: -1, Before: func(context.Context, *faultstore.Call) faultstore.Fault {
		w.clock.advance(page)
		return faultstore.Fault{}
	}})
	look := func(calm float64, rests int) *looker {
		var l *looker
		done := make(chan error, 1)
		go func() {
			var err error
			l, err = wk.look(t.Context(), "t", nil, calm)
			done <- err
		}()
		for range rests {
			_, ended := w.clock.sleeps(t, rest, done)
			require.False(t, ended)
			w.clock.advance(rest)
		}
		require.NoError(t, await.Value(t.Context(), t, done, nil))
		wk.tasks.Wait()
		return l
	}
	require.Equal(t, rows, look(9, 0).found, "what is found is no reason to rest")
	look(0, 0) // it learns that hints are in vain
	l := look(9, 2)
	require.Zero(t, l.found)
	require.Equal(t, rows, l.visited)
	require.Equal(t, 2*rest, l.waited)
	require.Zero(t, look(0, 0).waited)
	wk.kickTable("t")
	require.Equal(t, rows, look(9, 0).visited)
}
