package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func hookTests() []test {
	return []test{
		{"ReopenedStoreHasEverything", Reopening, reopenedStoreHasEverything},
		{"CloseUnderWritersTellsTheTruth", Reopening, closeUnderWritersTellsTheTruth},
		{"CrashedStoreHasWhatItAcknowledged", Reopening, crashedStoreHasWhatItAcknowledged},
		{"TimestampsRiseOverReopening", Reopening, timestampsRiseOverReopening},
		{"SecondOpenOfAStoreInUse", Reopening, secondOpenOfAStoreInUse},
		{"BrokenCallsTellTheTruth", Breaking, brokenCallsTellTheTruth},
		{"HangingCallsEndWithTheirContext", Breaking, hangingCallsEndWithTheirContext},
	}
}

// contents is all that a store holds, row by row.
func (h *harness) contents() map[string][]rowstore.Version {
	h.Helper()
	all := map[string][]rowstore.Version{}
	for _, table := range h.tables() {
		for _, r := range h.scan(rowstore.ScanRange{Table: table, Selectors: everything()}) {
			all[fmt.Sprintf("%q/%q", table, r.Row)] = r.Versions
		}
	}
	return all
}

// populate changes a store in every way, undeferred, and returns what is there then.
func (h *harness) populate() map[string][]rowstore.Version {
	h.Helper()
	for i := range 40 {
		ts := rowstore.Timestamp(10 * (i + 1)) //nolint:gosec // positive
		table := fmt.Sprintf("t%d", i%3)
		row := rowstore.Mutation{Table: table, Row: key(i / 2)}
		row.Edits = []rowstore.Edit{
			write(ver(rowstore.Write, "c", ts, fmt.Sprint("short ", i))), write(ver(rowstore.Data, "c", ts, fmt.Sprint("long ", i))),
			write(ver(rowstore.Mark, "c", ts, "")), write(ver(rowstore.Notify, "c", ts, "")), write(ver(rowstore.Lock, "d", ts, "lock")),
			rowstore.DeleteRange(rowstore.Write, "c", 0, ts-5),
		}
		require.True(h, h.apply(row)[0].Applied)
		row.Edits = []rowstore.Edit{rowstore.Delete(rowstore.Lock, "d", ts), rowstore.Delete(rowstore.Notify, "c", ts)}
		require.True(h, h.apply(row)[0].Applied)
	}
	if g, ok := rowstore.Unwrap[rowstore.Grouper](h.s); ok && g.GroupKey("g", "row") != "" {
		draw := g.AssignsTimestamps(g.GroupKey("g", "row"))
		edits := []rowstore.Edit{write(ver(rowstore.Data, "c", 5, "grouped"))}
		if draw {
			edits = append(edits, drawn(rowstore.Write, "c", "drawn"))
		}
		out, err := g.Group(h.ctx, []rowstore.Group{{AssignTimestamp: draw, Mutations: []rowstore.Mutation{{Table: "g", Row: "row", Edits: edits}}}})
		require.NoError(h, err)
		require.True(h, out[0].Applied)
	}
	return h.contents()
}

func reopenedStoreHasEverything(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil {
		t.Skip("the store has no hook Reopen")
	}
	want := h.populate()
	require.NotEmpty(t, want)
	for range 2 {
		require.NoError(t, h.s.Close())
		h = h.reopen(k)
		require.Equal(t, want, h.contents())
		// It is a store as before.
		h.put("new", write(ver(rowstore.Write, "c", 5, "x")))
		h.breaks("new", 0, ver(rowstore.Write, "c", 5, "x"), rowstore.Absent(rowstore.Write, "c", 5))
		want = h.contents()
	}
}

// closeUnderWritersTellsTheTruth closes a store while many write, and opens it again. What Close ended says so. Unless it
// says as well that it may have happened, it has not.
func closeUnderWritersTellsTheTruth(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil {
		t.Skip("the store has no hook Reopen")
	}
	const writers, least = 8, 5
	var all []claim
	for round := range e.n(8, 4) {
		claims := make([][]claim, writers)
		wrong := make([]error, writers)
		acknowledged := make([]atomic.Int64, writers)
		var running sync.WaitGroup
		for w := range writers {
			var group rowstore.Grouper
			if w%2 == 1 {
				group = grouper(h.s)
			}
			running.Go(func() {
				defer acknowledged[w].Add(least) // whoever has ended is waited for no more
				claims[w], wrong[w] = h.writeUntilClosed(group, fmt.Sprintf("%d-%d", round, w), &acknowledged[w])
			})
		}
		// Each of them is at it by then, on a busy machine too.
		for w := 0; w < writers && h.ctx.Err() == nil; {
			if acknowledged[w].Load() >= least {
				w++
				continue
			}
			h.put("meanwhile", write(ver(rowstore.Data, "c", 5, "x")))
		}
		require.NoError(t, h.s.Close())
		running.Wait()
		require.NoError(t, errors.Join(wrong...))
		all = append(all, slices.Concat(claims...)...)
		h = h.reopen(k)
		h.judge(all)
	}
}

// writeUntilClosed changes one row after another, as groups if there is a grouper that takes them, until an answer says
// that the store is closed. It counts what is acknowledged.
func (h *harness) writeUntilClosed(g rowstore.Grouper, name string, acknowledged *atomic.Int64) ([]claim, error) {
	var claims []claim
	for i := 0; ; i++ {
		row := fmt.Sprintf("%s-%05d", name, i)
		out, err := applyAlone(h.ctx, h.s, g, mut(row, when(rowstore.Absent(rowstore.Write, "c", 0)), write(ver(rowstore.Write, "c", 5, "x"))))
		claims = append(claims, claimOf(row, "by a store that was closed meanwhile", out, err))
		switch err := errors.Join(err, outErr(out)); {
		case errors.Is(err, rowstore.ErrClosed):
			return claims, nil
		case h.ctx.Err() != nil:
			return nil, errors.New("the calls went on after Close")
		case err != nil && !errors.Is(err, rowstore.ErrAmbiguous):
			return nil, fmt.Errorf("changing row %s: %w", row, err)
		case err == nil && !out[0].Applied:
			return nil, fmt.Errorf("the change of row %s was refused by its condition although nothing was there", row)
		}
		acknowledged.Add(1)
	}
}

// crashedStoreHasWhatItAcknowledged crashes a store right after acknowledgments. Each
// undeferred change must be there. Each deferred one must be there too, unless the
// incarnation has changed.
func crashedStoreHasWhatItAcknowledged(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil || k.Crash == nil {
		t.Skip("the store has no hooks Reopen and Crash")
	}
	want := h.populate()
	for i := range 3 {
		name := fmt.Sprintf("last %d", i)
		h.put(name, write(ver(rowstore.Write, "c", 5, "undeferred")))
		want[fmt.Sprintf("%q/%q", "t", name)] = versions(ver(rowstore.Write, "c", 5, "undeferred"))
		deferred := fmt.Sprintf("deferred %d", i)
		out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(deferred, nil, write(ver(rowstore.Write, "c", 5, "x")))}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
		k.Crash()
		_ = h.s.Close() // what a dead process does not do; here it sets free what the test has of it
		h = h.reopen(k)
		got := h.contents()
		at := fmt.Sprintf("%q/%q", "t", deferred)
		if _, ok := got[at]; ok {
			want[at] = got[at]
		} else {
			require.NotEqual(t, out[0].Incarnation, h.apply(mut("any", nil))[0].Incarnation, "a deferred batch was lost, and nobody can tell")
		}
		require.Equal(t, want, got, "what was acknowledged before crash %d", i+1)
	}
}

// timestampsRiseOverReopening draws so many timestamps that they run ahead of the time.
// So later timestamps are not greater just because time went on.
func timestampsRiseOverReopening(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil {
		t.Skip("the store has no hook Reopen")
	}
	ability[rowstore.OracleProvider](t, h.s, "OracleProvider")
	var greatest oracle.Timestamp
	draw := func(n int) error {
		o, ok := rowstore.Unwrap[rowstore.OracleProvider](h.s)
		require.True(t, ok)
		ts, err := o.Oracle().Draw(h.ctx, n)
		if err == nil {
			require.Greater(t, ts, greatest)
			greatest = ts + oracle.Timestamp(n) - 1 //nolint:gosec // positive
		}
		return err
	}
	const ahead = 20
	for i := range 4 {
		const quarter = 1 << (oracle.LogicalBits + 8) // of a second
		for j := range 4 * ahead {
			if err := draw(quarter); err != nil {
				require.ErrorIs(t, err, rowstore.ErrTooLarge)
				t.Logf("the timestamps do not run ahead of the time: draw %d: %v", j, err)
				break
			}
		}
		require.NoError(t, draw(1))
		if k.Crash != nil && i%2 == 1 {
			k.Crash()
			_ = h.s.Close()
		} else {
			require.NoError(t, h.s.Close())
		}
		h = h.reopen(k)
		require.NoError(t, draw(1))
	}
	ahead2 := time.Until(greatest.Time())
	t.Logf("the last timestamp is %v ahead of the time", ahead2.Round(time.Millisecond))
}

// brokenCallsTellTheTruth breaks calls at each moment. A change that was certainly
// refused did not happen and never does; an acknowledged one happened; any other may
// have.
func brokenCallsTellTheTruth(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Break == nil {
		t.Skip("the store has no hook Break")
	}
	var claims []claim
	rounds := e.n(6, 3)
	for _, m := range []Moment{BeforeCall, InCall, AfterCall} {
		failed := 0
		for i := range rounds {
			row := fmt.Sprintf("%d-%d", m, i)
			h.recovered(row + " before")
			mend := k.Break(m)
			if mend == nil {
				t.Logf("the store cannot be broken %s", m)
				break
			}
			change := mut(row, when(rowstore.Absent(rowstore.Write, "c", 0)), write(ver(rowstore.Write, "c", 5, "x")))
			ctx, cancel := context.WithTimeout(h.ctx, e.cfg.hang/4)
			var group rowstore.Grouper
			if i%2 == 1 {
				group = grouper(h.s)
			}
			out, err := applyAlone(ctx, h.s, group, change)
			cancel()
			mend()
			c := claimOf(row, m.String(), out, err)
			switch {
			case c.applied:
			case err == nil && outErr(out) == nil:
				t.Fatalf("%s, %s: a change was refused by its condition although nothing was there", row, m)
			case c.certain:
				failed++
				t.Logf("%s, %s: certain: %v", row, m, errors.Join(err, outErr(out)))
			default:
				failed++
				require.NotErrorIs(t, errors.Join(err, outErr(out)), rowstore.ErrUnavailable, "what is unavailable has done nothing")
			}
			claims = append(claims, c)
		}
		if len(claims) > 0 && claims[len(claims)-1].when == m.String() {
			require.Positive(t, failed, "no call failed %s: the hook does not do what it says", m)
		}
	}
	if len(claims) == 0 {
		t.Skip("the store can be broken at no such moment")
	}
	h.recovered("the end")
	h.judge(claims)
}

// claim is what the answer to a change of a row says of it, a change that puts a Write.
type claim struct {
	row, when string
	certain   bool // certainly it did not happen, and never does
	applied   bool
}

func claimOf(row, when string, out []rowstore.Outcome, err error) claim {
	if err == nil && outErr(out) == nil {
		return claim{row: row, when: when, applied: out[0].Applied}
	}
	return claim{row: row, when: when, certain: !ambiguous(out, err)}
}

// judge holds claims to what is there.
func (h *harness) judge(claims []claim) {
	h.Helper()
	there := map[string]bool{}
	for _, row := range h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Write)}}) {
		there[row] = true
	}
	happened, open := map[string]int{}, 0
	for _, c := range claims {
		require.False(h, c.certain && there[c.row], "the change of row %s, %s, was refused for certain, and happened", c.row, c.when)
		require.False(h, c.applied && !there[c.row], "the change of row %s, %s, was acknowledged, and is not there", c.row, c.when)
		if there[c.row] {
			happened[c.when]++
		}
		if !c.applied && !c.certain {
			open++
		}
	}
	h.Logf("of %d changes %d were ambiguous; happened: %v", len(claims), open, happened)
}

// applyAlone applies one mutation, as a group if there is a grouper that takes it.
func applyAlone(ctx context.Context, s rowstore.Store, g rowstore.Grouper, m rowstore.Mutation) ([]rowstore.Outcome, error) {
	if g == nil || g.GroupKey(m.Table, m.Row) == "" {
		return s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	}
	outs, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{m}}})
	if err != nil {
		return nil, err
	}
	return []rowstore.Outcome{{Applied: outs[0].Applied, Err: outs[0].Err}}, nil
}

func outErr(out []rowstore.Outcome) error {
	if len(out) == 0 {
		return nil
	}
	return out[0].Err
}

func grouper(s rowstore.Store) rowstore.Grouper {
	g, _ := rowstore.Unwrap[rowstore.Grouper](s)
	return g
}

// recovered waits until the store answers again, after what was broken is mended.
func (h *harness) recovered(row string) {
	h.Helper()
	for {
		out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut("recovered "+row, nil, write(ver(rowstore.Data, "c", 1, "x")))}, rowstore.ApplyOptions{})
		if err == nil && out[0].Err == nil {
			return
		}
		select {
		case <-h.ctx.Done():
			h.Fatalf("the store does not recover: %v", errors.Join(err, outErr(out)))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// lateness is how much later than its context a call may return. It is less than the timeouts of drivers, of three seconds
// and more, so a call that waits for one of those instead of its context is late.
func (e *env) lateness() time.Duration { return min(2*time.Second, e.cfg.hang/8) }

// hangingCallsEndWithTheirContext has calls of every kind wait for a server that does not
// answer, and behind each other. Each ends soon after its context. On a machine that has much else to do calls may be late
// once, so it tries again.
func hangingCallsEndWithTheirContext(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Break == nil {
		t.Skip("the store has no hook Break")
	}
	h.put("row", write(ver(rowstore.Write, "c", 5, "x")))
	for try := 1; ; try++ {
		mend := k.Break(HangCall)
		if mend == nil {
			t.Skip("the store cannot be made to hang")
		}
		late, waited := hangCalls(h, e, mend)
		h.recovered(fmt.Sprint("hang ", try))
		require.Positive(t, waited, "no call waited: the hook does not do what it says")
		if len(late) == 0 {
			return
		}
		t.Logf("try %d: late are %v", try, late)
		require.Less(t, try, 3, "a call returns soon after its context ended: %v", late)
	}
}

// hangCalls makes calls of every kind while the store hangs, and mends it when they have ended. It returns those that ended
// too late, and how many failed.
func hangCalls(h *harness, e *env, mend func()) (late []string, waited int) {
	h.Helper()
	defer mend()
	calls := callsOfEveryKind(h)
	// First those that take all connections, turns and locks there are, then those that
	// wait behind them.
	const many = 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range many {
		for name, call := range calls {
			wg.Go(func() {
				patience := 100 * time.Millisecond
				if i < many/2 {
					patience = 400 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(h.ctx, patience)
				defer cancel()
				began := time.Now()
				err := call(ctx, i)
				took := time.Since(began)
				mu.Lock()
				defer mu.Unlock()
				if took > patience+e.lateness() {
					late = append(late, fmt.Sprintf("%s after %v, for a context of %v", name, took.Round(time.Millisecond), patience))
				}
				if err != nil {
					waited++
				}
			})
		}
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(e.cfg.hang / 2):
		mend()
		<-ended
		h.Fatalf("calls wait on although their contexts ended")
	}
	slices.Sort(late)
	return late, waited
}

// callsOfEveryKind are calls that need the server, each to be made any number of times.
func callsOfEveryKind(h *harness) map[string]func(ctx context.Context, i int) error {
	calls := map[string]func(ctx context.Context, i int) error{
		"Apply": func(ctx context.Context, i int) error {
			out, err := h.s.Apply(ctx, []rowstore.Mutation{mut(key(i), nil, write(ver(rowstore.Write, "c", 5, "x")))}, rowstore.ApplyOptions{})
			return errors.Join(err, outErr(out))
		},
		"Read": func(ctx context.Context, _ int) error {
			_, err := h.s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "row", Selectors: everything()}})
			return err
		},
		"Scan": func(ctx context.Context, _ int) error {
			_, err := collect(ctx, h.s, rowstore.ScanRange{Table: "t", Selectors: everything()})
			return err
		},
	}
	if d, ok := rowstore.Unwrap[rowstore.SnapshotReader](h.s); ok {
		calls["ReadSnapshot"] = func(ctx context.Context, _ int) error {
			_, err := d.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: readsAt(rowstore.AssignedTimestamp, []string{"row"})}})
			return err
		}
	}
	if r, ok := rowstore.Unwrap[rowstore.Reporter](h.s); ok {
		calls["Report"] = func(ctx context.Context, _ int) error {
			_, err := r.Report(ctx)
			return err
		}
	}
	if o, ok := rowstore.Unwrap[rowstore.OracleProvider](h.s); ok {
		calls["Draw"] = func(ctx context.Context, _ int) error {
			_, err := o.Oracle().Draw(ctx, 1)
			return err
		}
	}
	if g := grouper(h.s); g != nil && g.GroupKey("t", key(0)) != "" {
		calls["Group"] = func(ctx context.Context, i int) error {
			_, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{mut(key(i), nil, write(ver(rowstore.Write, "c", 6, "x")))}}})
			return err
		}
	}
	return calls
}
