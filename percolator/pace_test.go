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

// calmWorker makes a worker whose looks at table "t" find rows notified rows that all wait: its observer is paused. Each page takes calmPage.
// strike, if it is not nil, says what happens to the scan for a page, from 1 on.
func calmWorker(t testing.TB, rows int, strike func(page int) faultstore.Fault) (*Worker, *fakeClock) {
	t.Helper()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	wk := watching(t, c, Observer{Name: "o", Func: nothing})
	wk.listening.Store(1)
	wk.list[0].paused = true
	notifyRows(t, c, rows)
	pages := 0
	c.wire.AddRule(faultstore.Rule{Match: scansOfT, Times: -1, Before: func(context.Context, *faultstore.Call) faultstore.Fault {
		w.clock.advance(calmPage)
		if pages++; strike != nil {
			return strike(pages)
		}
		return faultstore.Fault{}
	}})
	return wk, w.clock
}

const (
	calmPage = 40 * time.Millisecond
	calmRest = vainLooks * calmPage
)

// passes waits until somebody sleeps for some times d, one after the other, and lets these pass.
func (c *fakeClock) passes(t testing.TB, times int, d time.Duration, done <-chan error) {
	t.Helper()
	for range times {
		_, ended := c.sleeps(t, d, done)
		require.False(t, ended)
		c.advance(d)
	}
}

// A calm look rests after each page of cells that wait, but its last, and so leaves the store to others. It does
// not rest where it finds something, nor once somebody asks for a look or pushes are not followed.
func TestCalmLookRestsAfterEachPage(t *testing.T) {
	t.Parallel()
	const rows = 2*lookPage + 10
	wk, clock := calmWorker(t, rows, nil)
	look := func(calm float64, rests int) *looker {
		var l *looker
		done := make(chan error, 1)
		go func() {
			var err error
			l, err = wk.look(t.Context(), "t", nil, calm)
			done <- err
		}()
		clock.passes(t, rests, calmRest, done)
		require.NoError(t, await.Value(t.Context(), t, done, nil))
		require.Equal(t, rows, l.visited)
		require.Equal(t, time.Duration(rests)*calmRest, l.rested)
		require.Equal(t, l.rested, l.waited)
		return l
	}
	require.Zero(t, look(vainLooks, 2).found)
	look(0, 0)
	wk.kickTable("t")
	look(vainLooks, 0)
	<-wk.kicks["t"]
	look(vainLooks, 2)
	wk.listening.Store(0)
	look(vainLooks, 0)
	wk.listening.Store(1)
	wk.list[0].paused = false
	require.Equal(t, rows, look(vainLooks, 0).found)
	wk.tasks.Wait()
}

// The rests of a look are bounded, each of them and all together.
func TestRestsOfALook(t *testing.T) {
	t.Parallel()
	wk, clock := calmWorker(t, 1, nil)
	for _, x := range []struct {
		calm               float64
		took, rested, want time.Duration
	}{
		{vainLooks, 100 * time.Millisecond, 0, 900 * time.Millisecond},
		{vainLooks, time.Minute, 0, longestPageRest},
		{vainLooks, time.Minute, longestRest - longestPageRest/2, longestPageRest / 2},
		{vainLooks, time.Minute, longestRest, 0},
		{0, time.Minute, 0, 0},
	} {
		l := &looker{w: wk, table: "t", calm: x.calm, rested: x.rested}
		done := make(chan error, 1)
		go func() { done <- l.rest(t.Context(), x.took) }()
		if x.want > 0 {
			clock.passes(t, 1, x.want, done)
		}
		require.NoError(t, await.Value(t.Context(), t, done, nil))
		require.Equal(t, x.rested+x.want, l.rested, "%+v", x)
		require.Equal(t, x.want, l.waited, "%+v", x)
	}
	l := &looker{w: wk, table: "t", calm: vainLooks, gained: &slotSet{}}
	require.NoError(t, l.rest(t.Context(), time.Minute))
	require.Zero(t, l.rested, "what was gained has waited for long")
}

// What a calm look could not rest is rested after it, and a look that is followed by the first calm one leaves the rest to that.
func TestPauseAndRestAfterALook(t *testing.T) {
	t.Parallel()
	wk, _ := calmWorker(t, 1, nil)
	usual := wk.config.Rescan
	for _, x := range []struct {
		listens bool
		calm    float64
		visited int
		took    time.Duration
		rested  time.Duration
		want    time.Duration // pause and rest
	}{
		{true, 0, manyRows, time.Second, 0, usual},
		{true, vainLooks, manyRows, time.Second, 9 * time.Second, usual},
		{true, vainLooks, manyRows, time.Second, 2 * time.Second, 7 * time.Second},
		{true, vainLooks, manyRows, time.Second, 0, 9 * time.Second},
		{true, vainLooks, manyRows, time.Hour, 10 * time.Second, 50 * time.Second},
		{true, vainLooks, manyRows - 1, time.Hour, 0, usual},
		{false, 0, manyRows, 5 * time.Second, 0, 5 * time.Second},
		{false, 0, manyRows, 5 * time.Second, time.Second, 4 * time.Second},
	} {
		wk.listening.Store(0)
		if x.listens {
			wk.listening.Store(1)
		}
		pause, rest := wk.afterLook(&pace{}, &looker{w: wk, table: "t", calm: x.calm, visited: x.visited, rested: x.rested}, x.took)
		require.Equal(t, min(x.took, usual, agreeAfter), pause, "%+v", x)
		require.Equal(t, x.want, pause+rest, "%+v", x)
	}
	pause, rest := wk.afterLook(&pace{}, &looker{w: wk, table: "t", visited: manyRows}, longLook-1)
	require.Zero(t, pause)
	require.Equal(t, usual, rest)
}

// A look that failed begins anew without rests, and they do not count as its time.
func TestCalmLookThatFails(t *testing.T) {
	t.Parallel()
	const rows = 2*lookPage + 10
	wk, clock := calmWorker(t, rows, func(page int) faultstore.Fault {
		if page == 2 {
			return faultstore.Fault{Kind: faultstore.Fail, Err: errors.New("on purpose")}
		}
		return faultstore.Fault{}
	})
	var took time.Duration
	done := make(chan error, 1)
	go func() {
		var err error
		_, took, err = wk.lookUntilDone(t.Context(), "t", nil, vainLooks)
		done <- err
	}()
	clock.passes(t, 1, calmRest, done)
	require.NoError(t, await.Value(t.Context(), t, done, nil))
	require.Equal(t, 5*calmPage, took, "a page, one that failed, and all three")
}

// Looks beside cells that wait become calm, and a look that somebody asks for is not.
func TestLooksAfterACalmOne(t *testing.T) {
	t.Parallel()
	const pages = manyRows/lookPage + 1
	wk, clock := calmWorker(t, manyRows+1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- wk.find(ctx, "t") }()
	const pause = pages * calmPage
	for range 2 {
		clock.passes(t, 1, pause, done)
		clock.passes(t, 1, wk.config.Rescan-pause, done)
		clock.passes(t, pages-1, calmRest, done)
	}
	clock.passes(t, 1, pause, done)
	_, ended := clock.sleeps(t, wk.config.Rescan-pause, done)
	require.False(t, ended)
	wk.kickTable("t")
	clock.passes(t, 1, pause, done) // a rest would come before it
	clock.passes(t, 1, wk.config.Rescan-pause, done)
	clock.passes(t, pages-1, calmRest, done)
	cancel()
	require.ErrorIs(t, await.Value(t.Context(), t, done, nil), context.Canceled)
}

// A long rest is for a worker that hears of what is new: it ends soon after the push is lost, and at its time while it works.
func TestLongRestEndsWithThePush(t *testing.T) {
	t.Parallel()
	wk, clock := calmWorker(t, 1, nil)
	rest := func() (done chan error) {
		done = make(chan error, 1)
		go func() {
			woken, err := wk.sleepHearing(t.Context(), "t", time.Minute)
			if woken {
				err = errors.New("nobody has woken it")
			}
			done <- err
		}()
		return done
	}
	done := rest()
	clock.passes(t, 6, longestUnheard, done)
	require.NoError(t, await.Value(t.Context(), t, done, nil))

	done = rest()
	clock.passes(t, 2, longestUnheard, done)
	_, ended := clock.sleeps(t, longestUnheard, done)
	require.False(t, ended)
	wk.listening.Store(0)
	clock.passes(t, 1, longestUnheard, done)
	require.NoError(t, await.Value(t.Context(), t, done, nil))
}
