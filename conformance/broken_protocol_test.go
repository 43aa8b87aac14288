package conformance

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// brokenProtocols are faults that the tests of transactions and of observers must find by
// themselves: a backend may run one part of the suite alone, and what a test is there for
// must not be seen by others only.
var brokenProtocols = []brokenStore{
	{"reads look past their snapshot", func(b *broken) {
		b.eachSelector(func(p rowstore.Selector) rowstore.Selector {
			if p.Family == rowstore.Write && p.Column != rowstore.AllColumns || p.Family == rowstore.Write && p.To < oracle.Max {
				p.To = oracle.Max
			}
			return p
		})
	}, []string{"SnapshotsStay", "AsOf", "LongFork"}},
	{"reads lag behind by one commit", func(b *broken) {
		var newest atomic.Uint64
		b.eachVersion(func(v rowstore.Version) bool {
			if v.Family != rowstore.Write {
				return true
			}
			for {
				old := newest.Load()
				if uint64(v.TS) <= old {
					return true
				}
				if newest.CompareAndSwap(old, uint64(v.TS)) {
					return false // seen for the first time
				}
			}
		})
	}, []string{"ReadersSeeWhatWasCommitted"}},
	{"some locks stay", func(b *broken) {
		var n atomic.Int64
		b.eachEditOfAll(func(e rowstore.Edit) (rowstore.Edit, bool) {
			return e, e.Family != rowstore.Lock || e.Kind != rowstore.DoDelete || n.Add(1)%7 != 6
		})
	}, []string{"DeathAtEachStepOfACommit", "DeathAtEachStepUnderRaces"}},
	{"Present always holds", func(b *broken) {
		b.eachConditionOfAll(func(c rowstore.Condition) bool { return c.Kind != rowstore.IfPresent })
	}, []string{"PresentAtOneTimestamp", "SuspendedClientCannotCommit", "DeadLocksWaitForTheLease"}},
	{"columns that begin with a zero are not kept", func(b *broken) {
		b.eachEditOfAll(func(e rowstore.Edit) (rowstore.Edit, bool) {
			return e, e.Kind != rowstore.DoPut || !strings.HasPrefix(e.Column, "\x00")
		})
	}, []string{"SeveralObserversOfAColumn", "OthersNotificationsStay", "Backfill", "FailureAndParking"}},
	{"notifications stay", func(b *broken) {
		b.eachEditOfAll(func(e rowstore.Edit) (rowstore.Edit, bool) {
			return e, e.Family != rowstore.Notify || e.Kind == rowstore.DoPut
		})
	}, []string{"OthersNotificationsStay", "FailureAndParking", "WeakNotificationsOverlap", "DeathBetweenCommitAndNotification"}},
	{"weak notifications are lost", func(b *broken) {
		b.eachEditOfAll(func(e rowstore.Edit) (rowstore.Edit, bool) {
			return e, e.Family != rowstore.Notify || e.Kind != rowstore.DoPut || string(e.Value) != "\x01\x02"
		})
	}, []string{"WeakNotificationOfAnUnwrittenCell", "WeakNotificationsOverlap", "FailureAndParking"}},
	{"the list of parked runs is not kept", func(b *broken) {
		b.eachMutationOfAll(func(m *rowstore.Mutation) {
			if strings.HasPrefix(m.Table, "\x00parked") {
				m.Edits = nil
			}
		})
	}, []string{"FailureAndParking", "LaterChangeOfAParkedCell", "PanicIsAFailure"}},
	{"scans end after a page", func(b *broken) {
		b.eachScan(func(s rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row {
			if n >= 40 && !strings.HasPrefix(s.Table, "\x00") && slices.ContainsFunc(s.Selectors, func(p rowstore.Selector) bool { return p.Family == rowstore.Write }) {
				return nil
			}
			return []rowstore.Row{r}
		})
	}, []string{"Backfill", "WeakNotificationsOverlap"}},
	{"an idle worker is not woken", func(b *broken) {
		b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
			wake(rowstore.Wake{})
			<-ctx.Done()
			return ctx.Err()
		}
	}, []string{"PushWakesAnIdleWorker"}},
}

// eachMutationOfAll changes the mutations of every Apply and Group; they are copies.
func (b *broken) eachMutationOfAll(change func(m *rowstore.Mutation)) {
	changed := func(muts []rowstore.Mutation) []rowstore.Mutation {
		muts = slices.Clone(muts)
		for i := range muts {
			muts[i].Conditions, muts[i].Edits = slices.Clone(muts[i].Conditions), slices.Clone(muts[i].Edits)
			change(&muts[i])
		}
		return muts
	}
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		return b.Store.Apply(ctx, changed(muts), opts)
	}
	b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
		groups = slices.Clone(groups)
		for i := range groups {
			groups[i].Mutations = changed(groups[i].Mutations)
		}
		return b.Store.Group(ctx, groups)
	}
}

// eachEditOfAll rewrites the edits of every Apply and Group, or drops them.
func (b *broken) eachEditOfAll(change func(e rowstore.Edit) (rowstore.Edit, bool)) {
	b.eachMutationOfAll(func(m *rowstore.Mutation) {
		var edits []rowstore.Edit
		for _, e := range m.Edits {
			if e, keep := change(e); keep {
				edits = append(edits, e)
			}
		}
		m.Edits = edits
	})
}

// eachConditionOfAll drops conditions of every Apply and Group.
func (b *broken) eachConditionOfAll(keep func(c rowstore.Condition) bool) {
	b.eachMutationOfAll(func(m *rowstore.Mutation) {
		for i := range m.Conditions {
			if !keep(m.Conditions[i]) {
				// One that holds, in its place: Failed counts them.
				m.Conditions[i] = rowstore.Absent(rowstore.Lock, "a column that nobody has", 0)
			}
		}
	})
}

// eachSelector rewrites the selectors of every Read, ReadSnapshot and Scan.
func (b *broken) eachSelector(change func(p rowstore.Selector) rowstore.Selector) {
	changed := func(picks []rowstore.Selector) []rowstore.Selector {
		picks = slices.Clone(picks)
		for i := range picks {
			picks[i] = change(picks[i])
		}
		return picks
	}
	reads := func(reads []rowstore.RowRead) []rowstore.RowRead {
		reads = slices.Clone(reads)
		for i := range reads {
			reads[i].Selectors = changed(reads[i].Selectors)
		}
		return reads
	}
	b.read = func(ctx context.Context, asks []rowstore.RowRead) ([]rowstore.Row, error) {
		return b.Store.Read(ctx, reads(asks))
	}
	b.snapshot = func(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
		asks = slices.Clone(asks)
		for i := range asks {
			asks[i].Reads = reads(asks[i].Reads)
		}
		return b.Store.ReadSnapshot(ctx, asks)
	}
	b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
		s.Selectors = changed(s.Selectors)
		return b.Store.Scan(ctx, s)
	}
}

// eachVersion drops versions from the answers of Read and ReadSnapshot.
func (b *broken) eachVersion(keep func(v rowstore.Version) bool) {
	some := func(rows []rowstore.Row) {
		for i := range rows {
			rows[i].Versions = slices.DeleteFunc(rows[i].Versions, func(v rowstore.Version) bool { return !keep(v) })
		}
	}
	b.read = func(ctx context.Context, asks []rowstore.RowRead) ([]rowstore.Row, error) {
		rows, err := b.Store.Read(ctx, asks)
		some(rows)
		return rows, err
	}
	b.snapshot = func(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
		answers, err := b.Store.ReadSnapshot(ctx, asks)
		for i := range answers {
			some(answers[i].Rows)
		}
		return answers, err
	}
}
