package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func argumentTests() []test {
	return []test{
		{"InvalidReads", Arguments, invalidReads},
		{"InvalidScans", Arguments, invalidScans},
		{"InvalidMutations", Arguments, invalidMutations},
		{"InvalidGroups", Arguments, invalidGroups},
		{"InvalidAmongValid", Arguments, invalidAmongValid},
	}
}

func contextTests() []test {
	return []test{
		{"EndedBeforeTheCall", Contexts, endedBeforeTheCall},
		{"EndedDuringAScan", Contexts, endedDuringAScan},
		{"EndedAtAnyMoment", Contexts, endedAtAnyMoment},
	}
}

func closingTests() []test {
	return []test{
		{"CloseTwice", Closing, closeTwice},
		{"EverythingAfterClose", Closing, everythingAfterClose},
		{"CloseUnderCalls", Closing, closeUnderCalls},
		{"CloseEndsListen", Closing, closeEndsListen},
		{"CloseWithinAScan", Closing, closeWithinAScan},
	}
}

const tooHigh = oracle.Max + 1

func badPicks() map[string][]rowstore.Selector {
	return map[string][]rowstore.Selector{
		"no picks":              {},
		"family 0":              {{Family: 0, To: 5}},
		"family 6":              {{Family: 6, To: 5}},
		"family 255":            {{Family: 255, To: 5}},
		"negative limit":        {{Family: rowstore.Write, To: 5, Limit: -1}},
		"From over the top":     {{Family: rowstore.Write, From: tooHigh, To: 5}},
		"To over the top":       {{Family: rowstore.Write, To: tooHigh}},
		"the second is invalid": {pick(rowstore.Write), {Family: 9, To: 5}},
	}
}

func invalidReads(t testing.TB, e *env) {
	h := e.harness(t)
	refused := func(name string, reads ...rowstore.RowRead) {
		t.Helper()
		rows, err := h.s.Read(h.ctx, reads)
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.Empty(t, rows, name)
	}
	good := rowstore.RowRead{Table: "t", Row: "r", Selectors: everything()}
	refused("no table", rowstore.RowRead{Row: "r", Selectors: everything()})
	refused("no row", rowstore.RowRead{Table: "t", Selectors: everything()})
	refused("the second without a table", good, rowstore.RowRead{Row: "r", Selectors: everything()})
	for name, picks := range badPicks() {
		refused(name, rowstore.RowRead{Table: "t", Row: "r", Selectors: picks})
		refused(name, good, rowstore.RowRead{Table: "t", Row: "r", Selectors: picks})
	}
}

func invalidScans(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("row", write(ver(rowstore.Write, "c", 5, "x")))
	refused := func(name string, s rowstore.ScanRange) {
		t.Helper()
		rows, err := collect(h.ctx, h.s, s)
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.Empty(t, rows, name)
	}
	refused("no table", rowstore.ScanRange{Selectors: everything()})
	refused("negative limit", rowstore.ScanRange{Table: "t", Limit: -1, Selectors: everything()})
	for name, picks := range badPicks() {
		refused(name, rowstore.ScanRange{Table: "t", Selectors: picks})
	}
}

// badMutations are mutations of row "r" of table "t", or of no row, that break a
// rule.
func badMutations() map[string]rowstore.Mutation {
	w := write(ver(rowstore.Write, "c", 5, "x"))
	edit := func(e ...rowstore.Edit) rowstore.Mutation { return mut("r", nil, e...) }
	cond := func(c rowstore.Condition) rowstore.Mutation { return mut("r", when(c), w) }
	return map[string]rowstore.Mutation{
		"no table":                   {Row: "r", Edits: []rowstore.Edit{w}},
		"no row":                     {Table: "t", Edits: []rowstore.Edit{w}},
		"condition kind 0":           cond(rowstore.Condition{Family: rowstore.Write, Column: "c", TS: 5}),
		"condition kind 9":           cond(rowstore.Condition{Kind: 9, Family: rowstore.Write, Column: "c", TS: 5}),
		"Absent of Data":             cond(rowstore.Absent(rowstore.Data, "c", 5)),
		"Absent of family 0":         cond(rowstore.Absent(0, "c", 5)),
		"Absent of family 6":         cond(rowstore.Absent(6, "c", 5)),
		"AbsentAt of a Write":        cond(rowstore.Condition{Kind: rowstore.IfAbsentAt, Family: rowstore.Write, Column: "c", TS: 5}),
		"Present of a Write":         cond(rowstore.Condition{Kind: rowstore.IfPresent, Family: rowstore.Write, Column: "c", TS: 5}),
		"condition without a column": cond(rowstore.Absent(rowstore.Write, "", 5)),
		"condition over the top":     cond(rowstore.Absent(rowstore.Write, "c", tooHigh)),
		"AbsentAt over the top":      cond(rowstore.AbsentAt("c", rowstore.AssignedTimestamp)),
		"edit kind 0":                edit(rowstore.Edit{Family: rowstore.Write, Column: "c", TS: 5}),
		"edit kind 9":                edit(rowstore.Edit{Kind: 9, Family: rowstore.Write, Column: "c", TS: 5}),
		"edit of family 0":           edit(rowstore.Put(0, "c", 5, nil)),
		"edit of family 6":           edit(rowstore.Put(6, "c", 5, nil)),
		"edit without a column":      edit(rowstore.Put(rowstore.Write, "", 5, nil)),
		"put at 0":                   edit(rowstore.Put(rowstore.Write, "c", 0, nil)),
		"put over the top":           edit(rowstore.Put(rowstore.Write, "c", tooHigh, nil)),
		"put at AssignedTimestamp without AssignTimestamp": edit(rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil)),
		"put over AssignedTimestamp":                       edit(rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp+1, nil)),
		"delete at 0":                                      edit(rowstore.Delete(rowstore.Write, "c", 0)),
		"delete over the top":                              edit(rowstore.Delete(rowstore.Write, "c", tooHigh)),
		"delete at AssignedTimestamp":                      edit(rowstore.Delete(rowstore.Write, "c", rowstore.AssignedTimestamp)),
		"range to over the top":                            edit(rowstore.DeleteRange(rowstore.Write, "c", 0, tooHigh)),
		"range from over the top":                          edit(rowstore.DeleteRange(rowstore.Write, "c", tooHigh, 5)),
		"range without a column":                           edit(rowstore.DeleteRange(rowstore.Write, "", 0, 5)),
		"the same version twice":                           edit(w, w),
		"put and delete of a version":                      edit(w, rowstore.Delete(rowstore.Write, "c", 5)),
		"put within a range":                               edit(w, rowstore.DeleteRange(rowstore.Write, "c", 1, 9)),
		"put at the end of a range":                        edit(w, rowstore.DeleteRange(rowstore.Write, "c", 1, 5)),
		"ranges that overlap":                              edit(rowstore.DeleteRange(rowstore.Write, "c", 1, 5), rowstore.DeleteRange(rowstore.Write, "c", 5, 9)),
		"two marks of a column":                            edit(rowstore.Put(rowstore.Mark, "c", 5, nil), rowstore.Put(rowstore.Mark, "c", 6, nil)),
		"a mark beside a delete of one":                    edit(rowstore.Put(rowstore.Mark, "c", 5, nil), rowstore.Delete(rowstore.Mark, "c", 6)),
		"two locks of a column":                            edit(rowstore.Put(rowstore.Lock, "c", 5, nil), rowstore.Put(rowstore.Lock, "c", 6, nil)),
		"a bad edit after a good one":                      edit(w, rowstore.Put(rowstore.Write, "", 6, nil)),
		"a bad condition after good one":                   mut("r", when(rowstore.Absent(rowstore.Write, "c", 1), rowstore.Absent(rowstore.Data, "c", 1)), w),
	}
}

func invalidMutations(t testing.TB, e *env) {
	h := e.harness(t)
	for name, m := range badMutations() {
		for _, deferred := range []bool{false, true} {
			out, err := h.s.Apply(h.ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: deferred})
			require.ErrorIs(t, err, rowstore.ErrInvalid, name)
			require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
			require.Empty(t, out, name)
			require.Empty(t, h.all("r"), name)
		}
	}
	require.Empty(t, h.tables())
}

func invalidGroups(t testing.TB, e *env) {
	h := e.harness(t)
	g := ability[rowstore.Grouper](t, h.s, "Grouper")
	gkey := g.GroupKey("t", "r")
	if gkey == "" {
		t.Skip("the row that the test uses may be in no group")
	}
	refused := func(name string, groups ...rowstore.Group) {
		t.Helper()
		out, err := g.Group(h.ctx, groups)
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
		require.Empty(t, out, name)
		require.Empty(t, h.all("r"), name)
		require.Empty(t, h.all("other"), name)
	}
	w := write(ver(rowstore.Write, "c", 5, "x"))
	good := rowstore.Group{Mutations: []rowstore.Mutation{mut("other", nil, w)}}
	refused("no mutation", rowstore.Group{})
	refused("no mutation after a good group", good, rowstore.Group{})
	refused("a row twice in a group", rowstore.Group{Mutations: []rowstore.Mutation{mut("r", nil, w), mut("r", nil, rowstore.Put(rowstore.Write, "d", 5, nil))}})
	refused("a row twice in a call", good, rowstore.Group{Mutations: []rowstore.Mutation{mut("other", nil, w)}})
	for name, m := range badMutations() {
		refused(name, rowstore.Group{Mutations: []rowstore.Mutation{m}})
		refused(name, good, rowstore.Group{Mutations: []rowstore.Mutation{m}})
		if g.GroupKey("t", "r") == g.GroupKey("t", "other") {
			refused(name, rowstore.Group{Mutations: []rowstore.Mutation{mut("other", nil, w), m}})
		}
	}
	if !g.AssignsTimestamps(gkey) {
		refused("AssignTimestamp where the store does not", rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut("r", nil, rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil))}})
		return
	}
	refused("AssignedTimestamp twice", rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{
		mut("r", nil, rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil), rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("x"))),
	}})
	refused("a range beside AssignedTimestamp", rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{
		mut("r", nil, rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil), rowstore.DeleteRange(rowstore.Write, "c", 0, 5)),
	}})
	refused("a delete of AssignedTimestamp", rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut("r", nil, rowstore.Delete(rowstore.Write, "c", rowstore.AssignedTimestamp))}})
}

func invalidAmongValid(t testing.TB, e *env) {
	h := e.harness(t)
	w := write(ver(rowstore.Write, "c", 5, "x"))
	var muts []rowstore.Mutation
	for i := range 20 {
		muts = append(muts, mut(key(i), nil, w))
	}
	for i, bad := range []rowstore.Mutation{mut(key(3), nil, w), mut("", nil, w), mut("r", nil, w, w), {Row: "r"}} {
		for _, at := range []int{0, 10, 20} {
			batch := append(append(append([]rowstore.Mutation{}, muts[:at]...), bad), muts[at:]...)
			out, err := h.s.Apply(h.ctx, batch, rowstore.ApplyOptions{})
			require.ErrorIs(t, err, rowstore.ErrInvalid, "case %d at %d", i, at)
			require.Empty(t, out)
			require.Empty(t, h.keys(rowstore.ScanRange{Selectors: everything()}), "nothing of a batch with an invalid mutation is applied")
		}
	}
	// A row twice in a small batch.
	_, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut("a", nil, w), mut("a", when(rowstore.Present("c", 1)))}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.Empty(t, h.tables())
}

// methods calls each method of a store and of its optional abilities. Those that
// write put into row "written" of table "t".
func methods(s rowstore.Store) map[string]func(ctx context.Context) error {
	m := []rowstore.Mutation{mut("written", nil, write(ver(rowstore.Write, "c", 5, "x")), write(ver(rowstore.Notify, "c", 5, "x")))}
	all := map[string]func(ctx context.Context) error{
		"Read": func(ctx context.Context) error {
			_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: everything()}})
			return err
		},
		"Apply": func(ctx context.Context) error {
			_, err := s.Apply(ctx, m, rowstore.ApplyOptions{})
			return err
		},
		"deferred Apply": func(ctx context.Context) error {
			_, err := s.Apply(ctx, m, rowstore.ApplyOptions{Deferred: true})
			return err
		},
		"Scan": func(ctx context.Context) error {
			_, err := collect(ctx, s, rowstore.ScanRange{Table: "t", Selectors: everything()})
			return err
		},
		"reverse Scan of Notify": func(ctx context.Context) error {
			_, err := collect(ctx, s, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Notify)}, Reverse: true})
			return err
		},
		"Tables": func(ctx context.Context) error {
			var last error
			for _, err := range s.Tables(ctx) {
				last = err
			}
			return last
		},
	}
	addAbilities(all, s, m)
	return all
}

// addAbilities adds the methods of a store's optional abilities. Those that write make the mutations m.
func addAbilities(all map[string]func(ctx context.Context) error, s rowstore.Store, m []rowstore.Mutation) {
	if g, ok := rowstore.Unwrap[rowstore.Grouper](s); ok {
		if gkey := g.GroupKey("t", "written"); gkey != "" {
			all["Group"] = func(ctx context.Context) error {
				_, err := g.Group(ctx, []rowstore.Group{{Mutations: m}})
				return err
			}
			if g.AssignsTimestamps(gkey) {
				all["Group with AssignTimestamp"] = func(ctx context.Context) error {
					_, err := g.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{mut("written", nil, rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil))}}})
					return err
				}
			}
		}
	}
	if d, ok := rowstore.Unwrap[rowstore.Deferrer](s); ok {
		all["Flush"] = d.Flush
	}
	if o, ok := rowstore.Unwrap[rowstore.OracleProvider](s); ok {
		all["Draw"] = func(ctx context.Context) error {
			_, err := o.Oracle().Draw(ctx, 1)
			return err
		}
	}
	if sp, ok := rowstore.Unwrap[rowstore.Splitter](s); ok {
		all["Split"] = func(ctx context.Context) error {
			_, err := sp.Split(ctx, "t", 4)
			return err
		}
	}
	if w, ok := rowstore.Unwrap[rowstore.Waker](s); ok {
		all["Listen"] = func(ctx context.Context) error { return w.Listen(ctx, func(rowstore.Wake) {}) }
	}
	if d, ok := rowstore.Unwrap[rowstore.SnapshotReader](s); ok {
		all["ReadSnapshot"] = func(ctx context.Context) error {
			_, err := d.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: readsAt(rowstore.AssignedTimestamp, []string{"r"})}})
			return err
		}
	}
	if _, ok := rowstore.Unwrap[rowstore.SnapshotScanner](s); ok {
		all["Scan at a snapshot"] = func(ctx context.Context) error {
			_, err := collect(ctx, s, rowstore.ScanRange{Table: "t", Selectors: snapshotAt("c", rowstore.AssignedTimestamp), Snapshot: &rowstore.ScanSnapshot{}})
			return err
		}
	}
	if _, ok := rowstore.Unwrap[rowstore.SlotScanner](s); ok {
		all["Scan of slots"] = func(ctx context.Context) error {
			_, err := collect(ctx, s, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Notify)}, Slots: []rowstore.SlotRange{{First: 0, Last: 9}}})
			return err
		}
	}
	if r, ok := rowstore.Unwrap[rowstore.Reporter](s); ok {
		all["Report"] = func(ctx context.Context) error {
			_, err := r.Report(ctx)
			return err
		}
	}
}

func endedBeforeTheCall(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("r", write(ver(rowstore.Write, "c", 5, "x")))
	cancelled, cancel := context.WithCancel(h.ctx)
	cancel()
	expired, cancel := context.WithDeadline(h.ctx, time.Now().Add(-time.Second))
	defer cancel()
	for name, call := range methods(h.s) {
		for _, c := range []struct {
			ctx  context.Context //nolint:containedctx // a table of them
			want error
		}{{cancelled, context.Canceled}, {expired, context.DeadlineExceeded}} {
			err := call(c.ctx)
			require.ErrorIs(t, err, c.want, name)
			require.NotErrorIs(t, err, rowstore.ErrAmbiguous, "%s: nothing can have happened", name)
			require.NotErrorIs(t, err, rowstore.ErrClosed, name)
		}
	}
	require.Empty(t, h.all("written"), "nothing is done with a context that has ended")
	require.Equal(t, []string{"r"}, h.keys(rowstore.ScanRange{Selectors: everything()}))
	// The store works on.
	h.put("written", write(ver(rowstore.Write, "c", 5, "x")))
}

func endedDuringAScan(t testing.TB, e *env) {
	h := e.harness(t)
	n := e.n(3000, 1500)
	fill(h, "t", n, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	for _, at := range []int{1, 2, 700} {
		ctx, cancel := context.WithCancel(h.ctx)
		seen := 0
		var last error
		for row, err := range h.s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: everything()}) {
			require.NoError(t, last, "an error is the last step")
			if last = err; err != nil {
				require.Zero(t, row)
				continue
			}
			if seen++; seen == at {
				cancel()
			}
		}
		cancel()
		if last == nil {
			require.Equal(t, n, seen, "a scan that yields no error has visited all")
		} else {
			require.ErrorIs(t, last, context.Canceled)
		}
	}
	require.Len(t, h.keys(rowstore.ScanRange{Selectors: everything()}), n)
}

// endedAtAnyMoment ends contexts while calls are under way, and holds the store to
// what it said then.
func endedAtAnyMoment(t testing.TB, e *env) {
	h := e.harness(t)
	rng := seeded(t)
	const workers = 6
	rounds := e.n(150, 40)
	type claim struct {
		row               string
		applied, possible bool
	}
	claims := make([][]claim, workers)
	var failed, ambiguous atomic.Int64
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		g.Go(func() error {
			for i := range rounds {
				row := fmt.Sprintf("w%d-%04d", w, i)
				ctx, cancel := context.WithTimeout(h.ctx, time.Duration(rng.IntN(400))*time.Microsecond)
				out, err := h.s.Apply(ctx, []rowstore.Mutation{mut(row, when(rowstore.Absent(rowstore.Lock, "a", 0)),
					write(ver(rowstore.Lock, "a", 5, row)), write(ver(rowstore.Lock, "b", 5, row)), write(ver(rowstore.Notify, "a", 5, "")))}, rowstore.ApplyOptions{})
				cancel()
				if err == nil {
					err = out[0].Err
				}
				c := claim{row: row, applied: err == nil, possible: errors.Is(err, rowstore.ErrAmbiguous)}
				if err != nil {
					failed.Add(1)
					if c.possible {
						ambiguous.Add(1)
					}
					if !errors.Is(err, context.DeadlineExceeded) && !c.possible {
						return fmt.Errorf("a context that ended made Apply fail with %w", err)
					}
				} else if !out[0].Applied {
					return fmt.Errorf("row %q: a first mutation met %v", row, out[0].Broke)
				}
				claims[w] = append(claims[w], c)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("%d of %d calls failed, %d of them ambiguous", failed.Load(), workers*rounds, ambiguous.Load())
	for _, all := range claims {
		for _, c := range all {
			n := len(h.all(c.row))
			switch {
			case c.applied:
				require.Equal(t, 3, n, "row %q was applied", c.row)
			case c.possible:
				require.True(t, n == 0 || n == 3, "row %q is all or nothing", c.row)
			default:
				require.Zero(t, n, "row %q: the error said that nothing was applied", c.row)
			}
		}
	}
}

func closeTwice(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("r", write(ver(rowstore.Write, "c", 5, "x")))
	require.NoError(t, h.s.Close())
	require.NoError(t, h.s.Close(), "a second Close does nothing")
}

func everythingAfterClose(t testing.TB, e *env) {
	h := e.harness(t)
	calls := methods(h.s)
	ended, cancel := context.WithCancel(h.ctx)
	cancel()
	require.NoError(t, h.s.Close())
	for name, call := range calls {
		err := call(h.ctx)
		want := rowstore.ErrClosed
		if name == "Draw" {
			want = oracle.ErrClosed
		}
		require.ErrorIs(t, err, want, name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
		err = call(ended)
		require.ErrorIs(t, err, context.Canceled, "%s: a context that ended wins over Close", name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
	}
}

func closeUnderCalls(t testing.TB, e *env) {
	h := e.harness(t)
	var done sync.WaitGroup
	var calls atomic.Int64
	var wrong atomic.Value
	for w := range 4 {
		done.Go(func() {
			for i := 0; ; i++ {
				row := fmt.Sprintf("%d-%d", w, i)
				var err error
				switch w {
				case 0, 1:
					var out []rowstore.Outcome
					out, err = h.s.Apply(h.ctx, []rowstore.Mutation{mut(row, nil, write(ver(rowstore.Write, "c", 5, "x")))}, rowstore.ApplyOptions{})
					if err == nil {
						err = out[0].Err
					}
				case 2:
					var rows []rowstore.Row
					rows, err = h.s.Read(h.ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: everything()}})
					if err == nil {
						err = rows[0].Err
					}
				case 3:
					_, err = collect(h.ctx, h.s, rowstore.ScanRange{Table: "t", Selectors: everything(), Limit: 50})
				}
				if errors.Is(err, rowstore.ErrClosed) {
					return // and every later call says the same
				}
				if h.ctx.Err() != nil {
					wrong.Store("the calls went on after Close")
					return
				}
				calls.Add(1)
			}
		})
	}
	for calls.Load() < 50 && h.ctx.Err() == nil {
		h.put("r", write(ver(rowstore.Write, "c", 5, "x")))
	}
	require.NoError(t, h.s.Close())
	done.Wait()
	require.Nil(t, wrong.Load())
}

func closeEndsListen(t testing.TB, e *env) {
	h := e.harness(t)
	w := ability[rowstore.Waker](t, h.s, "Waker")
	listening := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- w.Listen(h.ctx, func(rowstore.Wake) {
			select {
			case listening <- struct{}{}:
			default:
			}
		})
	}()
	await(h, listening, "the first wake")
	require.NoError(t, h.s.Close())
	require.Error(t, await(h, ended, "the end of Listen after Close"))
}

func closeWithinAScan(t testing.TB, e *env) {
	h := e.harness(t)
	fill(h, "t", 1200, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	n := 0
	var last error
	for _, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything()}) {
		require.NoError(t, last, "an error is the last step")
		if last = err; err != nil {
			continue
		}
		if n++; n == 3 {
			require.NoError(t, h.s.Close())
		}
	}
	if last == nil {
		require.Equal(t, 1200, n, "a scan that yields no error has visited all")
	}
}

// await receives from a channel, or fails the test when what it waits for does not
// come.
func await[T any](h *harness, ch <-chan T, what string) T {
	h.Helper()
	select {
	case v := <-ch:
		return v
	case <-h.ctx.Done():
		h.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}
