package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func oracleTests() []test {
	return []test{
		{"TimestampsRise", Oracles, timestampsRise},
		{"RangesDoNotOverlap", Oracles, rangesDoNotOverlap},
		{"DrawnAfterItWasAskedFor", Oracles, drawnAfterItWasAskedFor},
		{"TimestampsAreWallTime", Oracles, timestampsAreWallTime},
		{"SnapshotReadsAreReads", Oracles, snapshotReadsAreReads},
		{"SnapshotReadsSeeWhatWasDone", Oracles, snapshotReadsSeeWhatWasDone},
		{"SnapshotScansAreScans", Oracles, snapshotScansAreScans},
		{"SnapshotScansAgain", Oracles, snapshotScansAgain},
		{"SnapshotScansOfNoSense", Oracles, snapshotScansOfNoSense},
		{"SnapshotScansSeeWhatWasDone", Oracles, snapshotScansSeeWhatWasDone},
		{"AppliesDrawAfterwards", Oracles, appliesDrawAfterwards},
		{"NoReaderMissesALock", Oracles, noReaderMissesALock},
	}
}

func otherAbilityTests() []test {
	return []test{
		{"DeferredIsVisible", Deferring, deferredIsVisible},
		{"DeferredSurvivesAFlush", Deferring, deferredSurvivesAFlush},
		{"CrashChangesTheIncarnation", Deferring, crashChangesTheIncarnation},
		{"SplitOfSmallTables", Splitting, splitOfSmallTables},
		{"SplitIsBalanced", Splitting, splitIsBalanced},
		{"WakeOnListening", Waking, wakeOnListening},
		{"NothingIsMissedOnceItListens", Waking, nothingIsMissedOnceItListens},
		{"WakeAfterANotification", Waking, wakeAfterANotification},
		{"WakeForEachRow", Waking, wakeForEachRow},
		{"WakeAfterAGroup", Waking, wakeAfterAGroup},
		{"ListenersDoNotDisturbEachOther", Waking, listenersDoNotDisturbEachOther},
		{"WakesWhileAListenerIsHeldUp", Waking, wakesWhileAListenerIsHeldUp},
		{"LimitsAreSane", Names, limitsAreSane},
		{"ReportNamesTheBackend", Names, reportNamesTheBackend},
	}
}

func (e *env) oracle(t testing.TB) (*harness, oracle.Oracle) {
	t.Helper()
	h := e.harness(t)
	return h, ability[rowstore.OracleProvider](t, h.s, "OracleProvider").Oracle()
}

func timestampsRise(t testing.TB, e *env) {
	h, o := e.oracle(t)
	for _, none := range []int{0, -1, math.MinInt} {
		_, err := o.Draw(h.ctx, none)
		require.ErrorIs(t, err, rowstore.ErrInvalid, "a draw of %d timestamps", none)
	}
	var last oracle.Timestamp
	for i := range e.n(300, 100) {
		n := 1 + i%7
		ts, err := o.Draw(h.ctx, n)
		require.NoError(t, err)
		require.Greater(t, ts, last)
		last = ts + oracle.Timestamp(n) - 1 //nolint:gosec // positive
		require.LessOrEqual(t, last, oracle.Max)
	}
	// More than one millisecond holds.
	n := 1<<oracle.LogicalBits + 5
	ts, err := o.Draw(h.ctx, n)
	if errors.Is(err, rowstore.ErrTooLarge) {
		t.Logf("more than one millisecond holds is too much for this oracle: %v", err)
		n = 1
		ts, err = o.Draw(h.ctx, n)
	}
	require.NoError(t, err)
	require.Greater(t, ts, last)
	next, err := o.Draw(h.ctx, 1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, next, ts+oracle.Timestamp(n)) //nolint:gosec // positive

	again, ok := rowstore.Unwrap[rowstore.OracleProvider](h.s)
	require.True(t, ok)
	ts, err = again.Oracle().Draw(h.ctx, 1)
	require.NoError(t, err)
	require.Greater(t, ts, next, "every oracle of a store draws from the same timestamps")
}

func rangesDoNotOverlap(t testing.TB, e *env) {
	h, o := e.oracle(t)
	const workers = 8
	rounds := e.n(200, 50)
	rng := seeded(t)
	type span struct{ first, last oracle.Timestamp }
	spans := make([][]span, workers)
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		g.Go(func() error {
			for range rounds {
				n := 1 + rng.IntN(5)
				if rng.IntN(20) == 0 {
					n = 1000
				}
				ts, err := o.Draw(h.ctx, n)
				if err != nil {
					return fmt.Errorf("drawing %d: %w", n, err)
				}
				s := span{ts, ts + oracle.Timestamp(n) - 1} //nolint:gosec // positive
				if mine := spans[w]; len(mine) > 0 && ts <= mine[len(mine)-1].last {
					return fmt.Errorf("drew %d after %d", ts, mine[len(mine)-1].last)
				}
				spans[w] = append(spans[w], s)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	all := slices.Concat(spans...)
	slices.SortFunc(all, func(a, b span) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	for i := 1; i < len(all); i++ {
		require.Greater(t, all[i].first, all[i-1].last, "two ranges overlap")
	}
	require.Len(t, all, workers*rounds)
}

// drawnAfterItWasAskedFor checks real time across goroutines: what was drawn
// before a call began is below what the call draws.
func drawnAfterItWasAskedFor(t testing.TB, e *env) {
	h, o := e.oracle(t)
	var greatest atomic.Uint64
	raise := func(ts uint64) {
		for {
			old := greatest.Load()
			if old >= ts || greatest.CompareAndSwap(old, ts) {
				return
			}
		}
	}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			for range e.n(300, 80) {
				floor := greatest.Load()
				ts, err := o.Draw(h.ctx, 1)
				if err != nil {
					return fmt.Errorf("drawing: %w", err)
				}
				if uint64(ts) <= floor {
					return fmt.Errorf("drew %d although %d was drawn before the call", ts, floor)
				}
				raise(uint64(ts))
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

func timestampsAreWallTime(t testing.TB, e *env) {
	h, o := e.oracle(t)
	ts, err := o.Draw(h.ctx, 1)
	require.NoError(t, err)
	// A day is far more than clocks differ, and far less than another unit would.
	require.WithinDuration(t, time.Now(), ts.Time(), 24*time.Hour)
}

func deferredIsVisible(t testing.TB, e *env) {
	// Every store takes Deferred; one that defers nothing takes no notice.
	h := e.harness(t)
	apply := func(m ...rowstore.Mutation) []rowstore.Outcome {
		out, err := h.s.Apply(h.ctx, m, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.Len(t, out, len(m))
		return out
	}
	lock := ver(rowstore.Lock, "c", 5, "lock")
	out := apply(mut("a", when(rowstore.Absent(rowstore.Lock, "c", 0)), write(lock)), mut("b", nil, write(lock)))
	require.True(t, out[0].Applied && out[1].Applied)
	require.Equal(t, versions(lock), h.all("a"), "a deferred batch is visible when Apply returns")
	require.Equal(t, []string{"a", "b"}, h.keys(rowstore.ScanRange{Selectors: everything()}))
	out = apply(mut("a", when(rowstore.Absent(rowstore.Lock, "c", 0)), write(ver(rowstore.Lock, "c", 6, ""))))
	require.False(t, out[0].Applied)
	require.Equal(t, norm1(lock), norm1(out[0].Broke))
	again := h.apply(mut("a", when(rowstore.Present("c", 5)), rowstore.Delete(rowstore.Lock, "c", 5)))
	require.True(t, again[0].Applied)
	require.Equal(t, out[0].Incarnation, again[0].Incarnation)
	out = apply(mut("a", when(rowstore.SameIncarnation(again[0].Incarnation))), mut("b", when(rowstore.SameIncarnation("other"))))
	require.True(t, out[0].Applied)
	require.False(t, out[1].Applied)
	require.Empty(t, h.all("a"))
}

func deferredSurvivesAFlush(t testing.TB, e *env) {
	h := e.harness(t)
	d := ability[rowstore.Deferrer](t, h.s, "Deferrer")
	crash := ability[rowstore.Crasher](t, h.s, "Crasher")
	deferred := func(row string) {
		out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(row, nil, write(ver(rowstore.Write, "c", 5, row)))}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
	}
	deferred("flushed")
	require.NoError(t, d.Flush(h.ctx))
	crash.Crash()
	require.Len(t, h.all("flushed"), 1, "Flush made it durable")
	deferred("before an undeferred one")
	h.put("undeferred", write(ver(rowstore.Write, "c", 5, "x")))
	crash.Crash()
	require.Len(t, h.all("before an undeferred one"), 1, "an undeferred Apply makes durable what came before it")
	require.Len(t, h.all("undeferred"), 1)
	if g, ok := rowstore.Unwrap[rowstore.Grouper](h.s); ok && g.GroupKey("t", "grouped") != "" {
		deferred("before a group")
		out, err := g.Group(h.ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{mut("grouped", nil, write(ver(rowstore.Write, "c", 5, "x")))}}})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
		crash.Crash()
		require.Len(t, h.all("before a group"), 1)
		require.Len(t, h.all("grouped"), 1)
	}
}

func crashChangesTheIncarnation(t testing.TB, e *env) {
	h := e.harness(t)
	ability[rowstore.Deferrer](t, h.s, "Deferrer")
	crash := ability[rowstore.Crasher](t, h.s, "Crasher")
	h.put("kept", write(ver(rowstore.Write, "c", 5, "x")))
	seen := map[string]bool{}
	for i := range 3 {
		row := key(i)
		out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(row, nil, write(ver(rowstore.Lock, "c", 5, "x")))}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		before := out[0].Incarnation
		require.NotEmpty(t, before)
		require.False(t, seen[before], "an incarnation never comes back")
		seen[before] = true
		crash.Crash()
		now := h.apply(mut("kept", nil))[0].Incarnation
		require.NotEqual(t, before, now, "a deferred batch may have been lost")
		h.breaks("kept", 0, rowstore.Version{}, rowstore.SameIncarnation(before))
		h.holds("kept", rowstore.SameIncarnation(now))
		if g, ok := rowstore.Unwrap[rowstore.Grouper](h.s); ok && g.GroupKey("t", "kept") != "" {
			out, err := g.Group(h.ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{mut("kept", when(rowstore.SameIncarnation(before)))}}})
			require.NoError(t, err)
			require.False(t, out[0].Applied)
			require.Equal(t, now, out[0].Incarnation)
		}
	}
	require.Len(t, h.all("kept"), 1)
}

func splitOfSmallTables(t testing.TB, e *env) {
	h := e.harness(t)
	sp := ability[rowstore.Splitter](t, h.s, "Splitter")
	check := func(table string, n int) {
		t.Helper()
		keys, err := sp.Split(h.ctx, table, n)
		require.NoError(t, err)
		checkSplit(t, keys, n)
	}
	for _, n := range []int{1, 2, 8, 1000} {
		check("none", n)
		h.put("only", write(ver(rowstore.Write, "c", 5, "x")))
		check("t", n)
	}
	fill(h, "t", 20, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	for _, n := range []int{1, 2, 3, 19, 20, 21, 22, 500} {
		check("t", n)
	}
}

func checkSplit(t testing.TB, keys []string, n int) {
	t.Helper()
	require.LessOrEqual(t, len(keys), n-1)
	require.True(t, slices.IsSorted(keys), "the keys are in ascending order: %q", keys)
	require.Len(t, slices.Compact(slices.Clone(keys)), len(keys), "the keys are all different: %q", keys)
	require.NotContains(t, keys, "", "a row key is not empty")
}

func splitIsBalanced(t testing.TB, e *env) {
	h := e.harness(t)
	sp := ability[rowstore.Splitter](t, h.s, "Splitter")
	const rows = 10_000
	value := strings.Repeat("v", 60)
	fill(h, "t", rows, func(i int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, value))} })
	// Neighbours that must not count.
	fill(h, "s", 500, func(i int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, value))} })
	fill(h, "u", 500, func(i int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, value))} })
	for _, n := range []int{1, 2, 4, 16, 100} {
		keys, err := sp.Split(h.ctx, "t", n)
		require.NoError(t, err)
		checkSplit(t, keys, n)
		if len(keys) == 0 {
			t.Logf("no keys for %d parts", n)
			continue
		}
		largest, from := 0, 0
		for _, k := range append(keys, key(rows)) {
			to := indexOf(k, rows)
			largest = max(largest, to-from)
			from = to
		}
		require.LessOrEqual(t, largest, 3*rows/(len(keys)+1), "the largest of %d parts", len(keys)+1)
		t.Logf("%d parts asked for, %d given, the largest of %d rows", n, len(keys)+1, largest)
	}
}

// indexOf says how many of key(0) to key(n-1) are less than k.
func indexOf(k string, n int) int {
	lo, hi := 0, n
	for lo < hi {
		mid := (lo + hi) / 2
		if key(mid) < k {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func limitsAreSane(t testing.TB, e *env) {
	h := e.harness(t)
	l := ability[rowstore.Limiter](t, h.s, "Limiter").Limits()
	for name, n := range map[string]int{"table": l.Table, "row": l.Row, "column": l.Column} {
		require.True(t, n == 0 || n >= 64, "the limit of a %s is %d bytes", name, n)
	}
	require.True(t, l.Value == 0 || l.Value >= 1<<10, "the limit of a value is %d bytes", l.Value)
}

func reportNamesTheBackend(t testing.TB, e *env) {
	h := e.harness(t)
	r, err := ability[rowstore.Reporter](t, h.s, "Reporter").Report(h.ctx)
	require.NoError(t, err)
	require.NotEmpty(t, r.Backend)
	names, has := map[string]bool{}, h.features()
	for _, f := range r.Features {
		require.NotEmpty(t, f.Name)
		if supported, known := has[f.Name]; known {
			require.Equal(t, supported, f.Supported, "feature %q", f.Name)
		}
		require.False(t, names[f.Name], "feature %q is reported twice", f.Name)
		names[f.Name] = true
		require.True(t, f.Supported || f.Reason != "", "feature %q is not there, and no reason is given", f.Name)
	}
	// The report of a router says what its stores are, and leaves their abilities out.
	some := false
	for name := range has {
		some = some || names[name]
	}
	for name, supported := range has {
		require.True(t, names[name] || !some || !supported, "the store has the ability %q, and does not report it", name)
	}
	for _, w := range r.Warnings {
		require.NotEmpty(t, w)
	}
	t.Logf("%s %s: %d features, %d warnings", r.Backend, r.Version, len(r.Features), len(r.Warnings))
}

// features tells by the name of each ability whether the store has it. A one-phase commit is an ability also where only
// some rows can have one.
func (h *harness) features() map[string]bool {
	h.Helper()
	has := map[string]bool{}
	reference := memstore.New()
	defer func() { require.NoError(h, reference.Close()) }()
	for _, f := range kit.Features(reference, nil) { // it has every one
		has[f.Name] = false
	}
	for _, f := range kit.Features(h.s, nil) {
		has[f.Name] = true
	}
	if g := grouper(h.s); g != nil {
		has[rowstore.FeatureOnePhase] = rowsOfAGroup(g, 1, true) != nil
	}
	return has
}
