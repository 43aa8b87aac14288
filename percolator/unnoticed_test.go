package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Rules whose breaks no other test noticed.

// shardOf is the shard of a row's timers.
func shardOf(row string) timerShard {
	return timerShard{"t", byte(rowstore.Slot("t", row) % format.TimerShards)}
}

// While timers are new to the data, those that are due soon are in the index too, where a round finds them. So the rounds are short.
func TestRoundsAreShortWhileTimersAreNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	a := newAlarm(t, c, "o")
	_, err := c.raiseTo(t.Context(), timers)
	require.NoError(t, err)
	next := func() string {
		n, err := a.w.fireRound(t.Context(), shardOf("a"))
		require.NoError(t, err)
		return n.String()
	}
	require.Equal(t, firstRound.String(), next(), "somebody may not know of timers yet")
	w.pass(worldLease + time.Millisecond)
	require.Equal(t, firstRound.String(), next())
	w.pass(nearTimer)
	require.Equal(t, timerRound.String(), next())
}

// A worker leaves the timers of a table alone that none of its observers is of, also if that came to be while it waited.
func TestTimersOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	stranger := watching(t, c, Observer{Name: "x", Table: "other", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }})
	w.timer(c, rowA, later)
	w.pass(later)
	page, _, err := c.timersIn(t.Context(), shardOf("a"), "", oracle.Max)
	require.NoError(t, err)
	require.Len(t, page, 1)
	for n, wk := range map[int]*Worker{0: stranger, 1: a.w} {
		require.Equal(t, n == 1, wk.ownsTimers(shardOf("a")))
		got, err := wk.untilDue(t.Context(), shardOf("a"), page)
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
}

// A change of the shares has every shard looked at, and what was told of is looked at where no push tells of it.
func TestTimersWakeTheirWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	require.Len(t, a.w.shards, format.TimerShards)
	a.w.kickTimers()
	for s, ch := range a.w.shards {
		require.Len(t, ch, 1, "%v", s)
	}
	// Only a worker that hears of everything need not look by itself.
	hears := a.w.wakers
	for _, x := range []struct {
		name   string
		wakers []rowstore.Waker
		hears  int32
		kicks  int
	}{{"hears", hears, int32(len(hears)), 0}, {"the push is lost", hears, 0, 1}, {"no push", nil, 0, 1}} { //nolint:gosec // one
		w.timer(c, rowA, later)
		w.pass(later)
		a.w.wakers = x.wakers
		a.w.listening.Store(x.hears)
		page, _, err := c.timersIn(t.Context(), shardOf("a"), "", oracle.Max)
		require.NoError(t, err)
		require.NotEmpty(t, page)
		failed, err := a.w.tell(t.Context(), "t", page)
		require.NoError(t, err)
		require.NoError(t, failed)
		require.Len(t, a.w.kicks["t"], x.kicks, x.name)
		if x.kicks > 0 {
			<-a.w.kicks["t"]
		}
	}
}

// Of two timers that are told of in one call, one fails. Its row of the index stays, so that the next round tells of it.
func TestTimerThatCouldNotBeToldOfStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	second := ""
	for i := 0; second == ""; i++ {
		if name := fmt.Sprint("a", i); shardOf(name) == shardOf("a") {
			second = name
		}
	}
	for _, r := range []string{"a", second} {
		w.timer(c, row(r), later)
	}
	w.pass(later)
	tells := func(x *call) bool { return len(x.Mutations()) == 2 && x.Mutations()[0].Table == "t" }
	c.wire.verdict(both(op(faultstore.CallApply), tells), verdict{Kind: faultstore.FailRow, Row: 0})
	require.ErrorIs(t, a.w.fireDue(t.Context()), faultstore.ErrInjected)
	require.Equal(t, 1, w.indexed())
	fires(t, a.w)
	for _, r := range []string{"a", second} {
		runs(t, a.w, row(r))
		w.nothingIsLeftOf(a.w, row(r))
	}
}

// WaitIdle asks whether a timer is due.
func TestTimersDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	due := func() bool {
		d, err := c.timersDue(t.Context(), "t")
		require.NoError(t, err)
		return d
	}
	require.False(t, due())
	w.timers()
	a := newAlarm(t, c, "o")
	w.timer(c, rowA, later)
	require.False(t, due())
	w.pass(later)
	require.True(t, due())
	fires(t, a.w)
	require.False(t, due())
}

// Without the text of a schedule its version tells which one it is; with one, the text does.
func TestSameSchedule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, stored string
		version      int
		same         bool
	}{
		{"", "", 1, true}, {"", "", 2, false}, {"a", "", 1, false}, {"", "a", 1, false}, {"a", "a", 1, true}, {"a", "a", 2, true}, {"a", "b", 1, false},
	} {
		p := &periodic{Periodic: Periodic{Version: c.version}, text: c.text}
		require.Equal(t, c.same, p.same(&format.Periodic{Version: 1, Schedule: []byte(c.stored)}), "%+v", c)
	}
}

// Hints are stored at once when there are many, whatever the time.
func TestManyHintsAreStoredAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	now := mustNow(t, c)
	for i := range hintsAtOnce - 1 {
		c.hint(row(fmt.Sprint(i)), now)
	}
	require.False(t, c.hints.due(w.clock.Now))
	c.hint(rowA, now)
	require.True(t, c.hints.due(w.clock.Now))
	require.False(t, c.hints.due(w.clock.Now), "somebody stores them")
	require.NoError(t, c.storeHints(t.Context()))
	require.Len(t, w.storedHints("t"), hintsAtOnce)
}

// A collection of all rows removes the hints of what it has passed. One whose span goes on after it serves the next collection, though the span began before.
func TestHintsAfterACollectionOfAllRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, gc := w.client(), w.client()
	length := worldRetention / hintSpans
	set(t, c.DB, rowB, "old")
	w.stored(c)
	span := c.known().hintSpanOf("t", mustNow(t, c))
	w.clock.advance(span.to.Sub(mustNow(t, c)))
	for i := range 2 {
		set(t, c.DB, rowA, fmt.Sprint(i))
	}
	w.clock.advance(length / 2)
	set(t, c.DB, rowA, "2")
	w.stored(c)
	require.Equal(t, map[string]int{"a": 1, "b": 1}, w.storedHints("t"))
	w.clock.advance(worldRetention - length/4)
	report, err := w.collectBy(gc, GCOptions{Full: true})
	require.NoError(t, err)
	require.True(t, report.Full)
	require.Equal(t, 1, report.Versions)
	require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"), "the other one is needless")
	w.clock.advance(length)
	require.Equal(t, 1, w.hintedCollect(gc).Versions)
	require.Empty(t, w.storedHints("t"))
}

// The reader of a dead transaction's primary hints the mark that it leaves there.
func TestMarkOfAPrimaryIsHinted(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		dead, c := w.client(opts...), w.client()
		dead.wire.verdict(commitPoint(rowA), die)
		_ = writes(t, dead, "dead", rowA, rowB).Commit(t.Context())
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession + worldExpiry)
		require.Equal(t, "none", value(t, c, rowA))
		w.stored(c)
		require.Contains(t, w.storedHints("t"), "a")
	})
}

// Data that belongs to no version waits for a later collection where the scan did not show enough to tell.
func TestOrphansThatAreKeptComeAgain(t *testing.T) {
	t.Parallel()
	data := &rowstore.Row{Table: "t", Row: "a", Versions: []rowstore.Version{{Family: rowstore.Data, Column: "v", TS: 7}}}
	for _, c := range []struct {
		row   *rowstore.Row
		above int
		later bool
		edits int
	}{
		{data, gcShallow, true, 0}, {&rowstore.Row{Table: "t", Row: "a"}, gcShallow, false, 0}, {data, 0, true, 1}, {&rowstore.Row{Table: "t", Row: "a"}, 0, false, 0},
	} {
		g := &gcRow{row: c.row, table: "t", safe: 9}
		g.orphans("v", c.above, nil, map[Timestamp]bool{})
		require.Equal(t, c.later, g.later)
		require.Len(t, g.m.edits, c.edits)
	}
	g := &gcRow{row: data, table: "t", safe: 9}
	g.orphans("v", 0, nil, map[Timestamp]bool{7: true})
	require.False(t, g.later, "it is a version's")
}

// A store that is away may end a context of its own, of a connection say. That is no failure of the function, so it opens no breaker and parks nothing;
// a read whose own context has ended is one.
func TestTimeoutOfTheStoreIsTheStores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	reader := sdkmetric.NewManualReader()
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	set(t, c.DB, rowA, "1")
	var next func(ctx context.Context, tx *Txn) error
	wk := watching(t, c, Observer{Name: "o", MaxAttempts: 9, Func: func(ctx context.Context, tx *Txn, _ Cell) error { return next(ctx, tx) }})
	for _, err := range []error{context.DeadlineExceeded, context.Canceled} {
		next = func(ctx context.Context, tx *Txn) error {
			c.wire.verdict(op(faultstore.CallRead), verdict{Kind: faultstore.Fail, Err: err})
			_, err := tx.Get(ctx, rowC)
			return err
		}
		result, _, rerr := wk.runCell(t.Context(), rowA)
		require.Equal(t, runTrouble, result)
		require.ErrorIs(t, rerr, err)
	}
	require.Zero(t, c.Stats().ObserverFailures)
	next = func(ctx context.Context, tx *Txn) error {
		within, cancel := context.WithCancel(ctx)
		c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallRead), Times: 1, Before: func(context.Context, *call) verdict {
			cancel()
			return verdict{Kind: faultstore.Fail, Err: context.Canceled}
		}})
		_, err := tx.Get(within, rowC)
		return err
	}
	require.Equal(t, runAgain, look(t, wk, rowA))
	require.EqualValues(t, 1, c.Stats().ObserverFailures)
	next = func(context.Context, *Txn) error { return nil }
	w.pass(wk.config.Backoff.Max)
	runs(t, wk, rowA)
	results := map[string]uint64{}
	for _, p := range collect(t, reader)["percolator.observer.duration"].(metricdata.Histogram[float64]).DataPoints {
		result, _ := p.Attributes.Value("result")
		results[result.AsString()] += p.Count
	}
	require.Equal(t, map[string]uint64{"store": 2, "failed": 1, "ok": 1}, results)
}

// A panic of the function is an error of the span, which ends with it.
func TestTracingOfAPanic(t *testing.T) {
	t.Parallel()
	r := tracetest.NewSpanRecorder()
	c := newWorld(t).client(WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))))
	require.PanicsWithValue(t, errTest, func() { _ = c.Update(t.Context(), func(*Txn) error { panic(errTest) }) })
	require.PanicsWithValue(t, errTest, func() { _ = c.View(t.Context(), func(*Txn) error { panic(errTest) }) })
	require.Equal(t, []string{"percolator.update percolator.outcome=error percolator.attempts=1", "percolator.view percolator.outcome=error"}, spans(r))
}
