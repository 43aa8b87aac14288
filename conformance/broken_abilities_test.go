package conformance

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// brokenAbilities are faults of groups, timestamps, durability, waking, costs and limits.
var brokenAbilities = []brokenStore{
	{"groups are batches", func(b *broken) {
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			outs, err := b.Store.Group(ctx, groups)
			for i := range outs {
				if !outs[i].Applied && !outs[i].TooLate && !groups[i].AssignTimestamp {
					_, _ = b.Store.Apply(ctx, groups[i].Mutations, rowstore.ApplyOptions{})
				}
			}
			return outs, err
		}
	}, []string{"GroupIsAllOrNone", "GroupsAreIndependent", "GroupsUnderConcurrency", "RandomCallsAgainstMemory"}},
	{"locks are judged before the rest of a group", func(b *broken) {
		b.judgeGroupsEarly(isAbsentLock)
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			outs, err := b.Store.Apply(ctx, muts, opts)
			time.Sleep(gap) // locks stay for a while, as on a server
			return outs, err
		}
	}, []string{"RandomRowsAreLinearizable", "NoUpdateIsLost"}},
	{"marks are judged before the rest of a group", func(b *broken) { b.judgeGroupsEarly(isAbsentMark) }, []string{"FenceOrPrewrite", "RandomRowsAreLinearizable"}},
	{"Present is judged before the rest of a group", func(b *broken) { b.judgeGroupsEarly(isPresent) }, []string{"CommitOrRollback"}},
	{"AbsentAt is judged before the rest of a group", func(b *broken) { b.judgeGroupsEarly(isAbsentAt) }, []string{"FenceOrPrewrite"}},
	{"a scan takes its timestamp for the last that was drawn", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			return func(yield func(rowstore.Row, error) bool) {
				for row, err := range b.Store.Scan(ctx, s) {
					if s.Snapshot != nil {
						s.Snapshot.Latest = s.Snapshot.Start
					}
					if !yield(row, err) {
						return
					}
				}
			}
		}
	}, []string{"SnapshotScansAreScans"}},
	{"a scan draws its timestamp only for a row", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			return func(yield func(rowstore.Row, error) bool) {
				inner := s
				if s.Snapshot != nil {
					inner.Snapshot = &rowstore.ScanSnapshot{Start: s.Snapshot.Start}
				}
				for row, err := range b.Store.Scan(ctx, inner) {
					if s.Snapshot != nil {
						*s.Snapshot = *inner.Snapshot
					}
					if !yield(row, err) {
						return
					}
				}
			}
		}
	}, []string{"SnapshotScansAreScans"}},
	{"a scan draws its timestamp after its rows", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			if s.Snapshot == nil || s.Snapshot.Start != 0 {
				return b.Store.Scan(ctx, s)
			}
			return func(yield func(rowstore.Row, error) bool) {
				at := s
				at.Selectors, at.Snapshot = s.At(oracle.Max), nil
				rows, err := collect(ctx, b.Store, at)
				runtime.Gosched()
				if err == nil {
					s.Snapshot.Start, err = b.Store.Oracle().Draw(ctx, 1)
				}
				if err != nil {
					yield(rowstore.Row{}, err)
					return
				}
				s.Snapshot.Latest = s.Snapshot.Start
				for _, row := range rows {
					if !yield(row, nil) {
						return
					}
				}
			}
		}
	}, []string{"NoReaderMissesADrawnWrite"}},
	{"a snapshot read draws after its rows", func(b *broken) {
		b.snapshot = func(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
			answers := make([]rowstore.SnapshotRows, len(asks))
			for i := range asks {
				rows, err := b.Store.Read(ctx, asks[i].At(oracle.Max))
				if err != nil {
					return nil, err
				}
				answers[i].Rows = rows
			}
			time.Sleep(time.Millisecond) // the gap, as wide as that of a server
			for i := range asks {
				ts, err := b.Store.Oracle().Draw(ctx, 1)
				if err != nil {
					return nil, err
				}
				answers[i].TS = ts
			}
			return answers, nil
		}
	}, []string{"NoReaderMissesADrawnWrite", "NoReaderMissesALock"}},
	{"an Apply draws its timestamps before it applies", func(b *broken) { b.applyDrawing(0) }, []string{"NoReaderMissesALock"}},
	{"an Apply draws its timestamps before its last mutations", func(b *broken) { b.applyDrawing(1) }, []string{"NoReaderMissesALock"}},
	{"a snapshot read takes no notice of a context that ended", func(b *broken) {
		b.snapshot = func(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
			return b.Store.ReadSnapshot(context.WithoutCancel(ctx), asks)
		}
	}, []string{"EndedBeforeTheCall", "EverythingAfterClose"}},
	{"a scan at a snapshot finds the oracle closed, not the store", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			return func(yield func(rowstore.Row, error) bool) {
				for row, err := range b.Store.Scan(ctx, s) {
					if s.Snapshot != nil && errors.Is(err, rowstore.ErrClosed) {
						err = oracle.ErrClosed
					}
					if !yield(row, err) {
						return
					}
				}
			}
		}
	}, []string{"EverythingAfterClose"}},
	{"Report asks nobody", func(b *broken) {
		b.report = func(context.Context) (rowstore.Report, error) { return b.Store.Report(context.Background()) }
	}, []string{"EndedBeforeTheCall", "EverythingAfterClose"}},
	{"Report answers after Close", func(b *broken) {
		b.report = func(ctx context.Context) (rowstore.Report, error) {
			return rowstore.Report{Backend: "memory"}, ctx.Err()
		}
	}, []string{"EverythingAfterClose"}},
	{"Report denies the one-phase commit", func(b *broken) {
		b.report = func(ctx context.Context) (rowstore.Report, error) {
			r, err := b.Store.Report(ctx)
			for i := range r.Features {
				if f := &r.Features[i]; f.Name == rowstore.FeatureOnePhase {
					f.Supported, f.Reason = false, "nobody knows"
				}
			}
			return r, err
		}
	}, []string{"ReportNamesTheBackend"}},
	{"the timestamp is drawn before the rows are held", func(b *broken) {
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			var outs []rowstore.GroupOutcome
			for _, g := range groups {
				if g.AssignTimestamp {
					ts, err := b.Store.Oracle().Draw(ctx, 1)
					if err != nil {
						return nil, err
					}
					runtime.Gosched()
					g = withDrawn(g, ts)
					one, err := b.Store.Group(ctx, []rowstore.Group{g})
					if err != nil {
						return nil, err
					}
					one[0].Commit = ts
					outs = append(outs, one[0])
					continue
				}
				one, err := b.Store.Group(ctx, []rowstore.Group{g})
				if err != nil {
					return nil, err
				}
				outs = append(outs, one[0])
			}
			return outs, nil
		}
	}, []string{"NoReaderMissesADrawnWrite", "DrawNotAfter"}},
	{"the timestamp is drawn right before the rows are held", func(b *broken) {
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			changed := slices.Clone(groups)
			drawn := make([]oracle.Timestamp, len(groups))
			late := make([]bool, len(groups))
			for i, g := range groups {
				if !g.AssignTimestamp {
					continue
				}
				ts, err := b.Store.Oracle().Draw(ctx, 1)
				if err != nil {
					return nil, err
				}
				drawn[i], late[i] = ts, g.NotAfter != 0 && ts > g.NotAfter
				changed[i] = withDrawn(g, ts)
				if late[i] {
					changed[i].Mutations = []rowstore.Mutation{mut("none", when(rowstore.SameIncarnation("none")))}
				}
			}
			time.Sleep(time.Millisecond) // the gap, as wide as that of a server
			outs, err := b.Store.Group(ctx, changed)
			for i := range outs {
				if outs[i].Applied {
					outs[i].Commit = drawn[i]
				}
				if late[i] {
					outs[i] = rowstore.GroupOutcome{TooLate: true, Incarnation: outs[i].Incarnation}
				}
			}
			return outs, err
		}
	}, []string{"NoReaderMissesADrawnWrite"}},
	{"NotAfter does not matter", func(b *broken) {
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			groups = slices.Clone(groups)
			for i := range groups {
				groups[i].NotAfter = 0
			}
			return b.Store.Group(ctx, groups)
		}
	}, []string{"DrawNotAfter"}},
	{"timestamps are kept for later calls", func(b *broken) {
		var mu sync.Mutex
		ranges := map[int][]oracle.Timestamp{}
		turn := 0
		b.draw = func(ctx context.Context, n int) (oracle.Timestamp, error) {
			mu.Lock()
			defer mu.Unlock()
			if n > 1 {
				return b.Store.Oracle().Draw(ctx, n)
			}
			turn = (turn + 1) % 2 // as two connections, each with a range of its own
			if len(ranges[turn]) == 0 {
				first, err := b.Store.Oracle().Draw(ctx, 10)
				if err != nil {
					return 0, err
				}
				for i := range oracle.Timestamp(10) {
					ranges[turn] = append(ranges[turn], first+i)
				}
			}
			ts := ranges[turn][0]
			ranges[turn] = ranges[turn][1:]
			return ts, nil
		}
	}, []string{"DrawnAfterItWasAskedFor", "TimestampsRise"}},
	{"ranges of timestamps overlap", func(b *broken) {
		b.draw = func(ctx context.Context, n int) (oracle.Timestamp, error) { return b.Store.Oracle().Draw(ctx, 1+n/2) }
	}, []string{"RangesDoNotOverlap", "TimestampsRise"}},
	{"a draw of no timestamps succeeds", func(b *broken) {
		b.draw = func(ctx context.Context, n int) (oracle.Timestamp, error) {
			return b.Store.Oracle().Draw(ctx, max(n, 1))
		}
	}, []string{"TimestampsRise"}},
	{"the incarnation survives a crash", func(b *broken) {
		b.eachOutcome(func(_ rowstore.Mutation, o *rowstore.Outcome) { o.Incarnation = "always" })
	}, []string{"CrashChangesTheIncarnation", "IncarnationCondition"}},
	{"Flush does nothing", func(b *broken) {
		b.flush = func(context.Context) error { return nil }
	}, []string{"DeferredSurvivesAFlush", "EverythingAfterClose"}},
	{"an undeferred Apply leaves deferred ones behind", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			return b.Store.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: true})
		}
	}, []string{"DeferredSurvivesAFlush", "CrashChangesTheIncarnation"}},
	{"nobody is woken", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			wake(rowstore.Wake{})
			<-ctx.Done()
			return ctx.Err()
		}
	}, []string{"WakeAfterANotification", "WakeAfterAGroup"}},
	{"Listen does not say that it listens", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			return b.Store.Listen(ctx, func(at rowstore.Wake) {
				if at.Table != "" {
					wake(at)
				}
			})
		}
	}, []string{"WakeOnListening"}},
	{"it says that it listens before it does", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			wake(rowstore.Wake{})
			time.Sleep(5 * time.Millisecond)
			return b.Store.Listen(ctx, func(at rowstore.Wake) {
				if at.Table != "" {
					wake(at)
				}
			})
		}
	}, []string{"NothingIsMissedOnceItListens"}},
	{"wakes name other slots", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			return b.Store.Listen(ctx, func(at rowstore.Wake) {
				for i := range at.Slots {
					at.Slots[i]++
				}
				wake(at)
			})
		}
	}, []string{"WakeAfterANotification", "WakeAfterAGroup"}},
	{"a wake names the slot of one row", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			return b.Store.Listen(ctx, func(at rowstore.Wake) {
				at.Slots = at.Slots[:min(1, len(at.Slots))]
				wake(at)
			})
		}
	}, []string{"WakeForEachRow"}},
	{"what comes while a listener is busy is lost", func(b *broken) {
		// What came meanwhile is told by the call that makes it, and not by when it would be heard of: a slow machine hears late.
		var busy, lost atomic.Bool
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			if busy.Load() {
				lost.Store(true)
			}
			return b.Store.Apply(ctx, muts, opts)
		}
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			return b.Store.Listen(ctx, func(at rowstore.Wake) {
				if lost.Load() {
					return
				}
				busy.Store(true)
				defer busy.Store(false)
				wake(at)
			})
		}
	}, []string{"WakesWhileAListenerIsHeldUp"}},
	{"a search for notifications walks over all rows", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			picks := s.Selectors
			s.Selectors = everything()
			return func(yield func(rowstore.Row, error) bool) {
				for r, err := range b.Store.Scan(ctx, s) {
					if err == nil {
						if r.Versions = selected(r.Versions, picks); len(r.Versions) == 0 {
							continue
						}
					}
					if !yield(r, err) {
						return
					}
				}
			}
		}
	}, []string{"NotifyScanCostsNoRows"}},
	{"each column of a row costs a walk over the row", func(b *broken) {
		b.eachEdit(func(e rowstore.Edit) (rowstore.Edit, bool) {
			_, _ = b.Store.Read(context.Background(), []rowstore.RowRead{{Table: "t", Row: "2000", Selectors: everything()}})
			_, _ = b.Store.Read(context.Background(), []rowstore.RowRead{{Table: "t", Row: "500", Selectors: everything()}})
			return e, true
		})
		each := b.apply
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			if len(muts) == 1 && len(muts[0].Conditions) > 0 {
				for range muts[0].Conditions {
					_, _ = b.Store.Read(ctx, []rowstore.RowRead{{Table: "t", Row: muts[0].Row, Selectors: []rowstore.Selector{pick(rowstore.Write)}}})
				}
				return b.Store.Apply(ctx, muts, opts)
			}
			if len(muts[0].Edits) > 400 && muts[0].Edits[0].Kind == rowstore.DoPut {
				return b.Store.Apply(ctx, muts, opts) // the filling of the row
			}
			return each(ctx, muts, opts)
		}
	}, []string{"WideRowsCostTheirWidth"}},
	{"a limit counts the operations of each row of a group alone", func(b *broken) {
		b.Store = memstore.New()
		limits := rowstore.Limits{Operations: 32}
		b.limits = &limits
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			if err := rowstore.CheckLimits(limits, muts); err != nil {
				return nil, err
			}
			return b.Store.Apply(ctx, muts, opts)
		}
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			for _, g := range groups {
				if err := rowstore.CheckLimits(limits, g.Mutations); err != nil {
					return nil, err
				}
			}
			return b.Store.Group(ctx, groups)
		}
	}, []string{"LimitOfOperations"}},
	{"what is over a limit is found out row by row", func(b *broken) {
		limits := rowstore.Limits{Bytes: 4096}
		b.limits = &limits
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			var all []rowstore.Outcome
			for i := range muts {
				if err := rowstore.CheckLimits(limits, muts[i:i+1]); err != nil {
					return nil, err
				}
				out, err := b.Store.Apply(ctx, muts[i:i+1], opts)
				if err != nil {
					return nil, err
				}
				all = append(all, out...)
			}
			return all, nil
		}
	}, []string{"LimitOfBytes"}},
	{"Split gives the first rows", func(b *broken) {
		b.split = func(ctx context.Context, table string, n int) ([]string, error) {
			var keys []string
			for r, err := range b.Store.Scan(ctx, rowstore.ScanRange{Table: table, Limit: n - 1, Selectors: everything()}) {
				if err != nil {
					return nil, err
				}
				keys = append(keys, r.Row)
			}
			return keys[:min(len(keys), n-1)], nil
		}
	}, []string{"SplitIsBalanced"}},
}

// applyDrawing has an Apply draw timestamps when only the first of its mutations are applied.
func (b *broken) applyDrawing(first int) {
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		if !opts.AssignTimestamp || len(muts) <= first {
			return b.Store.Apply(ctx, muts, opts)
		}
		outs, err := b.Store.Apply(ctx, muts[:first], opts)
		if err != nil {
			return nil, err
		}
		ts, err := b.Store.Oracle().Draw(ctx, len(muts))
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond) // the gap, as wide as that of a server
		last, err := b.Store.Apply(ctx, muts[first:], opts)
		if err != nil {
			return nil, err
		}
		outs = append(outs, last...)
		for i := range outs {
			if outs[i].Applied {
				outs[i].Timestamp = ts + oracle.Timestamp(i) //nolint:gosec // positive
			}
		}
		return outs, nil
	}
}

// withDrawn puts a timestamp where a group says AssignedTimestamp.
func withDrawn(g rowstore.Group, ts rowstore.Timestamp) rowstore.Group {
	g.AssignTimestamp, g.NotAfter = false, 0
	g.Mutations = slices.Clone(g.Mutations)
	for i := range g.Mutations {
		g.Mutations[i].Edits = slices.Clone(g.Mutations[i].Edits)
		for j := range g.Mutations[i].Edits {
			if e := &g.Mutations[i].Edits[j]; e.TS == rowstore.AssignedTimestamp {
				e.TS = ts
			}
		}
	}
	return g
}
