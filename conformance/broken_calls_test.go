package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// brokenCalls are faults of the calls that every store has.
var brokenCalls = []brokenStore{
	{"edits happen although a condition failed", func(b *broken) {
		b.eachOutcome(func(m rowstore.Mutation, o *rowstore.Outcome) {
			if !o.Applied {
				m.Conditions = nil
				_, _ = b.Store.Apply(context.Background(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			}
		})
	}, []string{"AllOrNothingOverColumns", "RowsOfABatchAreIndependent", "RandomCallsAgainstMemory", "RandomRowsAreLinearizable", "CounterOnOneRow"}},
	{"some notifications are lost", func(b *broken) {
		var n atomic.Int64
		b.eachEdit(func(e rowstore.Edit) (rowstore.Edit, bool) {
			put := e.Family == rowstore.Notify && e.Kind == rowstore.DoPut
			return e, !put || n.Add(1)%5 != 4
		})
		b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
			for i := range groups {
				for j := range groups[i].Mutations {
					m := &groups[i].Mutations[j]
					m.Edits = slices.DeleteFunc(slices.Clone(m.Edits), func(e rowstore.Edit) bool {
						return e.Family == rowstore.Notify && e.Kind == rowstore.DoPut && n.Add(1)%5 == 4
					})
				}
			}
			return b.Store.Group(ctx, groups)
		}
	}, []string{"ScanLoopMayEditWhatItScans", "ScanOfNotificationsAmongRows", "RandomCallsAgainstMemory", "Chain"}},
	{"Broke is the oldest version", func(b *broken) {
		b.eachOutcome(func(m rowstore.Mutation, o *rowstore.Outcome) {
			if o.Applied || o.Broke.TS == 0 {
				return
			}
			c := m.Conditions[o.Failed]
			rows, _ := b.Store.Read(context.Background(), []rowstore.RowRead{{Table: m.Table, Row: m.Row, Selectors: []rowstore.Selector{{Family: c.Family, Column: c.Column, To: oracle.Max}}}})
			if v := rows[0].Versions; len(v) > 0 {
				o.Broke = v[len(v)-1]
			}
		})
	}, []string{"AbsentReportsTheNewest", "RandomCallsAgainstMemory"}},
	{"Broke has no value", func(b *broken) {
		b.eachOutcome(func(_ rowstore.Mutation, o *rowstore.Outcome) { o.Broke.Value = nil })
	}, []string{"BrokeCarriesTheValue", "AbsentOfOneVersion", "RandomCallsAgainstMemory"}},
	{"From is exclusive", func(b *broken) {
		b.eachCondition(func(c rowstore.Condition) rowstore.Condition {
			if c.Kind == rowstore.IfAbsent && c.TS > 0 && c.TS < oracle.Max {
				c.TS++
			}
			return c
		})
	}, []string{"AbsentOfOneVersion", "AbsentReportsTheNewest", "ProtocolStepsOnOneRow", "RandomCallsAgainstMemory"}},
	{"From is one too low", func(b *broken) {
		b.eachCondition(func(c rowstore.Condition) rowstore.Condition {
			if c.Kind == rowstore.IfAbsent && c.TS > 0 {
				c.TS--
			}
			return c
		})
	}, []string{"AbsentOfOneVersion", "RandomCallsAgainstMemory", "CounterOnOneRow"}},
	{"Failed is the last that failed", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			changed := slices.Clone(muts)
			for i := range changed {
				changed[i].Conditions = slices.Clone(muts[i].Conditions)
				slices.Reverse(changed[i].Conditions)
			}
			out, err := b.Store.Apply(ctx, changed, opts)
			for i := range out {
				if !out[i].Applied {
					out[i].Failed = len(muts[i].Conditions) - 1 - out[i].Failed
				}
			}
			return out, err
		}
	}, []string{"FirstFailedConditionInOrder", "RandomCallsAgainstMemory"}},
	{"mutations are applied edit by edit", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			out, err := b.Store.Apply(ctx, muts, opts)
			if err != nil || len(muts) != 1 || !out[0].Applied || len(muts[0].Edits) < 2 {
				return out, err
			}
			// Taken back and done again in pieces, which amounts to the same.
			m := muts[0]
			for i := range m.Edits {
				m.Conditions, m.Edits = nil, muts[0].Edits[i:i+1]
				e := m.Edits[0]
				if e.Kind == rowstore.DoPut {
					_, _ = b.Store.Apply(ctx, []rowstore.Mutation{mut(m.Row, nil, rowstore.Delete(e.Family, e.Column, e.TS))}, opts)
					runtime.Gosched()
					_, _ = b.Store.Apply(ctx, []rowstore.Mutation{m}, opts)
				}
			}
			return out, err
		}
	}, []string{"ViewsAreNotTorn", "ScanDuringWrites"}},
	{"a check and its edits are two steps", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			checks := slices.Clone(muts)
			for i := range checks {
				checks[i].Edits = nil
			}
			out, err := b.Store.Apply(ctx, checks, opts)
			if err != nil {
				return out, err
			}
			runtime.Gosched()
			for i := range out {
				if m := muts[i]; out[i].Applied {
					m.Conditions = nil
					if _, err := b.Store.Apply(ctx, []rowstore.Mutation{m}, opts); err != nil {
						return nil, err
					}
				}
			}
			return out, nil
		}
	}, []string{"CounterOnOneRow", "OneWinnerOfALock", "NoUpdateIsLost"}},
	{"Present is judged before the rest", func(b *broken) { b.judgeEarly(isPresent) }, []string{"CommitOrRollback"}},
	{"AbsentAt is judged before the rest", func(b *broken) { b.judgeEarly(isAbsentAt) }, []string{"FenceOrPrewrite"}},
	{"marks are judged before the rest", func(b *broken) { b.judgeEarly(isAbsentMark) }, []string{"FenceOrPrewrite"}},
	{"marks can sink", func(b *broken) {
		b.eachMutation(func(m rowstore.Mutation) rowstore.Mutation {
			if len(m.Edits) == 1 && m.Edits[0].Family == rowstore.Mark && m.Edits[0].Kind == rowstore.DoPut && len(m.Conditions) == 0 {
				_, _ = b.Store.Apply(context.Background(), []rowstore.Mutation{
					{Table: m.Table, Row: m.Row, Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Mark, m.Edits[0].Column, 0, oracle.Max)}},
				}, rowstore.ApplyOptions{})
			}
			return m
		})
	}, []string{"RollbackKeepsTheGreatest", "MarksOnlyRise"}},
	{"the end of DeleteRange is exclusive", func(b *broken) {
		b.eachEdit(func(e rowstore.Edit) (rowstore.Edit, bool) {
			if e.Kind == rowstore.DoDeleteRange && e.To > 0 && e.To < oracle.Max {
				e.To--
			}
			return e, true
		})
	}, []string{"DeleteRangeIsClosed", "RandomCallsAgainstMemory"}},
	{"a Selector's limit is for the row", func(b *broken) {
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			rows, err := b.Store.Read(ctx, reads)
			for i := range rows {
				if p := reads[i].Selectors; len(p) == 1 && p[0].Limit > 0 && len(rows[i].Versions) > p[0].Limit {
					rows[i].Versions = rows[i].Versions[:p[0].Limit]
				}
			}
			return rows, err
		}
	}, []string{"PickLimitOfEachColumn", "PickOfOneColumn", "RandomPicks", "RandomCallsAgainstMemory"}},
	{"overlapping picks repeat versions", func(b *broken) {
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			rows, err := b.Store.Read(ctx, reads)
			for i := range rows {
				var all []rowstore.Version
				for _, p := range reads[i].Selectors {
					one, err := b.Store.Read(ctx, []rowstore.RowRead{{Table: reads[i].Table, Row: reads[i].Row, Selectors: []rowstore.Selector{p}}})
					if err != nil {
						return nil, err
					}
					all = append(all, one[0].Versions...)
				}
				slices.SortFunc(all, rowstore.CompareVersions)
				rows[i].Versions = all
			}
			return rows, err
		}
	}, []string{"PicksMakeAUnion", "RandomCallsAgainstMemory"}},
	{"an answer is handed to a later call", func(b *broken) {
		var mu sync.Mutex
		cached := map[string][]rowstore.Row{}
		n := 0
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			rows, err := b.Store.Read(ctx, reads)
			if len(reads) != 1 || err != nil {
				return rows, err
			}
			mu.Lock()
			defer mu.Unlock()
			of := fmt.Sprint(reads)
			if n++; n%4 == 0 && cached[of] != nil {
				return cached[of], nil
			}
			cached[of] = rows
			return rows, err
		}
	}, []string{"AcknowledgedIsVisible"}},
	{"answers are mixed up", func(b *broken) {
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			rows, err := b.Store.Read(ctx, reads)
			if len(rows) > 1 {
				slices.Reverse(rows)
			}
			return rows, err
		}
	}, []string{"AnswersInOrder", "SameRowTwiceInARead", "RandomCallsAgainstMemory"}},
	{"it keeps what it was given", func(b *broken) {
		var given [][]byte
		var kept [][]byte
		b.eachMutation(func(m rowstore.Mutation) rowstore.Mutation {
			for _, e := range m.Edits {
				given, kept = append(given, e.Value), append(kept, bytes.Clone(e.Value))
			}
			return m
		})
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			rows, err := b.Store.Read(ctx, reads)
			for i := range rows {
				for j := range rows[i].Versions {
					v := &rows[i].Versions[j]
					for k := range kept {
						if len(kept[k]) > 0 && bytes.Equal(kept[k], v.Value) {
							v.Value = given[k]
						}
					}
				}
			}
			return rows, err
		}
	}, []string{"CallerReusesItsSlices"}},
	{"scans skip a row at every border of a page", func(b *broken) {
		b.eachScan(func(_ rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row {
			if n%256 == 255 {
				return nil
			}
			return []rowstore.Row{r}
		})
	}, []string{"ScanManyRows", "ScanLoopMayStop", "ScanDuringWrites"}},
	{"scans repeat a row at every border of a page", func(b *broken) {
		b.eachScan(func(_ rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row {
			if n%256 == 255 {
				return []rowstore.Row{r, r}
			}
			return []rowstore.Row{r}
		})
	}, []string{"ScanManyRows", "ScanDuringWrites"}},
	{"scans pass over rows with a lock only", func(b *broken) {
		b.eachScan(func(_ rowstore.ScanRange, _ int, r rowstore.Row) []rowstore.Row {
			if len(r.Versions) == 1 && r.Versions[0].Family == rowstore.Lock {
				return nil
			}
			return []rowstore.Row{r}
		})
	}, []string{"ScanRowsOfOneFamily", "ScanPicks", "RandomCallsAgainstMemory"}},
	{"a scan's limit counts rows in which nothing matches", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			limit, picks := s.Limit, s.Selectors
			if limit > 0 && len(picks) > 0 {
				s.Selectors = everything()
				s.Limit = 0
			}
			return func(yield func(rowstore.Row, error) bool) {
				n := 0
				for r, err := range b.Store.Scan(ctx, s) {
					if err == nil && limit > 0 && len(picks) > 0 {
						if n++; n > limit {
							return
						}
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
	}, []string{"ScanLimit", "RandomCallsAgainstMemory"}},
	{"a reverse scan includes To", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			if s.Reverse && s.To != "" && s.From < s.To {
				s.To += "\x00"
			}
			return b.Store.Scan(ctx, s)
		}
	}, []string{"ScanRanges", "RandomCallsAgainstMemory"}},
	{"a scan works on the notifications as they were", func(b *broken) {
		// What moved from one timestamp to another meanwhile is missed.
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			return func(yield func(rowstore.Row, error) bool) {
				type found struct {
					row string
					ts  rowstore.Timestamp
				}
				var index []found
				for r, err := range b.Store.Scan(ctx, s) {
					if err != nil {
						yield(r, err)
						return
					}
					index = append(index, found{r.Row, r.Versions[0].TS})
				}
				for _, f := range index {
					rows, err := b.Store.Read(ctx, []rowstore.RowRead{{Table: s.Table, Row: f.row, Selectors: s.Selectors}})
					if err != nil {
						yield(rowstore.Row{}, err)
						return
					}
					if len(rows[0].Versions) == 0 || rows[0].Versions[0].TS != f.ts {
						continue
					}
					if !yield(rows[0], nil) {
						return
					}
				}
			}
		}
	}, []string{"ScanOfNotificationsDuringWrites", "ScanDuringWrites"}},
	{"scans count the rows that they have passed", func(b *broken) {
		b.pagesByOffset(1000, func(s rowstore.ScanRange) bool { return len(s.Slots) == 0 })
	}, []string{"ScanLoopMayEditWhatItScans"}},
	{"keys end at a NUL", func(b *broken) {
		cut := func(s string) string {
			if i := strings.IndexByte(s, 0); i > 0 {
				return s[:i]
			}
			return s
		}
		b.eachMutation(func(m rowstore.Mutation) rowstore.Mutation { m.Row = cut(m.Row); return m })
		b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
			cutReads := slices.Clone(reads)
			for i := range cutReads {
				cutReads[i].Row = cut(reads[i].Row)
			}
			rows, err := b.Store.Read(ctx, cutReads)
			for i := range rows {
				rows[i].Row = reads[i].Row
			}
			return rows, err
		}
	}, []string{"NamesOfAnyBytes", "ScanIsInByteOrder", "AbsentRows", "RandomCallsAgainstMemory"}},
	{"tables are listed as they come", func(b *broken) {
		b.tables = func(ctx context.Context) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				var all []string
				for name, err := range b.Store.Tables(ctx) {
					if err != nil {
						yield("", err)
						return
					}
					all = append(all, name)
				}
				for _, name := range slices.Backward(all) {
					if !yield(name, nil) {
						return
					}
				}
			}
		}
	}, []string{"Tables"}},
	{"an invalid mutation spoils only itself", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			if rowstore.CheckBatch(muts) == nil {
				return b.Store.Apply(ctx, muts, opts)
			}
			var failed error
			for i := range muts {
				if _, err := b.Store.Apply(ctx, muts[i:i+1], opts); err != nil {
					failed = err
				}
			}
			return nil, failed
		}
	}, []string{"InvalidAmongValid"}},
	{"an ended context is ambiguous", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			out, err := b.Store.Apply(ctx, muts, opts)
			if err != nil && ctx.Err() != nil {
				err = errors.Join(err, rowstore.ErrAmbiguous)
			}
			return out, err
		}
	}, []string{"EndedBeforeTheCall"}},
	{"an ended context does not stop a write", func(b *broken) {
		b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			out, err := b.Store.Apply(context.WithoutCancel(ctx), muts, opts)
			if err == nil {
				err = ctx.Err()
			}
			return out, err
		}
	}, []string{"EndedBeforeTheCall", "EndedAtAnyMoment"}},
	{"it works on after Close", func(b *broken) {
		b.close = func() error { return nil }
	}, []string{"EverythingAfterClose"}},
}
