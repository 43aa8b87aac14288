package conformance

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// brokenSlots are faults of scans by slot.
var brokenSlots = []brokenStore{
	{"slots are scanned in row order", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			rows := b.rowsOf(s)
			slices.SortFunc(rows, func(x, y rowstore.Row) int { return strings.Compare(x.Row, y.Row) })
			return rows
		})
	}, []string{"SlotsOfRandomRows", "SlotsAtTheBounds", "SlotsPageByPage"}},
	{"the rows of a slot come in reverse", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			rows := b.rowsOf(s)
			slices.SortStableFunc(rows, func(x, y rowstore.Row) int {
				if rowstore.Slot(x.Table, x.Row) == rowstore.Slot(y.Table, y.Row) {
					return -strings.Compare(x.Row, y.Row)
				}
				return compareBySlot(x, y)
			})
			return rows
		})
	}, []string{"SlotsPageByPage", "SlotsAtTheBounds"}},
	{"slots of one byte", func(b *broken) {
		b.eachSlotScan(func(s rowstore.ScanRange) rowstore.ScanRange {
			for i := range s.Slots {
				s.Slots[i].First &= 0xff00
			}
			return s
		})
	}, []string{"SlotsAtTheBounds", "SlotsOfRandomRows"}},
	{"the first row of slots is ignored", func(b *broken) {
		b.eachSlotScan(func(s rowstore.ScanRange) rowstore.ScanRange {
			s.From = ""
			return s
		})
	}, []string{"SlotsPageByPage", "SlotsOfRandomRows"}},
	{"the first row counts in every slot", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			return slices.DeleteFunc(b.rowsOf(s), func(r rowstore.Row) bool { return r.Row < s.From })
		})
	}, []string{"SlotsPageByPage", "SlotsOfRandomRows"}},
	{"the last slot of a range is left out", func(b *broken) {
		b.eachSlotScan(func(s rowstore.ScanRange) rowstore.ScanRange {
			for i := range s.Slots {
				s.Slots[i].Last = max(s.Slots[i].First, s.Slots[i].Last-min(s.Slots[i].Last, 1))
			}
			return s
		})
	}, []string{"SlotsAtTheBounds", "SlotsOfRandomRows"}},
	{"the last slot of all is left out", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			return slices.DeleteFunc(b.rowsOf(s), func(r rowstore.Row) bool { return rowstore.Slot(r.Table, r.Row) == rowstore.Slots-1 })
		})
	}, []string{"SlotsAtTheBounds"}},
	{"ranges that touch lose a slot between them", func(b *broken) {
		b.eachSlotScan(func(s rowstore.ScanRange) rowstore.ScanRange {
			for i := range s.Slots {
				if r := &s.Slots[i]; i > 0 && r.First == s.Slots[i-1].Last+1 && r.First < r.Last {
					r.First++
				}
			}
			return s
		})
	}, []string{"SlotsAtTheBounds", "SlotsOfRandomRows"}},
	{"ranges after the thousandth are forgotten", func(b *broken) {
		b.eachSlotScan(func(s rowstore.ScanRange) rowstore.ScanRange {
			s.Slots = s.Slots[:min(len(s.Slots), 1000)]
			return s
		})
	}, []string{"SlotsAtTheBounds"}},
	{"some rows are missed among hints", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			return slices.DeleteFunc(b.rowsOf(s), func(r rowstore.Row) bool { return s.Hints && rowstore.Slot(r.Table, r.Row) == 78 })
		})
	}, []string{"SlotsWithHints"}},
	{"hints for those who do not ask", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			rows := b.rowsOf(s)
			for i := range rows {
				rows[i].Hint, rows[i].Versions = true, nil
			}
			return rows
		})
	}, []string{"SlotsOfRandomRows", "SlotsPageByPage"}},
	{"rows are hints again and again", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			rows := b.rowsOf(s)
			for i := range rows {
				if s.Hints {
					rows[i].Hint, rows[i].Versions = true, nil
				}
			}
			return rows
		})
	}, []string{"SlotsWithHints"}},
	{"rows without notifications stay in the index", func(b *broken) {
		b.staleIndex(false)
	}, []string{"SlotsWithoutNotifications", "SlotsOfRandomRows"}},
	{"the index keeps what a crash has lost", func(b *broken) {
		b.staleIndex(true)
	}, []string{"SlotsAfterLosingDeferred"}},
	{"the limit counts rows that were looked at", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			looked := s
			looked.Selectors = []rowstore.Selector{pick(rowstore.Notify)}
			return selectedRows(b.rowsOf(looked), s.Selectors)
		})
	}, []string{"SlotsWithSelectors"}},
	{"a scan of slots walks over all notifications", func(b *broken) {
		b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
			all := s
			all.Slots, all.From, all.Limit = allSlots(), "", 0
			rows := b.rowsOf(all)
			rows = slices.DeleteFunc(rows, func(r rowstore.Row) bool {
				slot := rowstore.Slot(r.Table, r.Row)
				return slot == s.Slots[0].First && r.Row < s.From ||
					!slices.ContainsFunc(s.Slots, func(in rowstore.SlotRange) bool { return in.First <= slot && slot <= in.Last })
			})
			if s.Limit > 0 {
				rows = rows[:min(len(rows), s.Limit)]
			}
			return rows
		})
	}, []string{"SlotsCostWhatTheyHold"}},
	{"bad ranges of slots are taken", func(b *broken) {
		b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
			if rowstore.CheckScan(s) != nil && len(s.Slots) > 0 {
				s.Slots = nil
			}
			return b.Store.Scan(ctx, s)
		}
	}, []string{"InvalidSlots"}},
	{"a scan of slots takes no notice of its context", func(b *broken) {
		b.slotRows(b.rowsOf)
	}, []string{"SlotsWhenTheContextEnds"}},
	{"a scan of slots visits what comes behind it once more", func(b *broken) {
		b.eachScan(func(s rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row {
			if len(s.Slots) > 0 && n%5 == 4 {
				return []rowstore.Row{r, r}
			}
			return []rowstore.Row{r}
		})
	}, []string{"SlotsWhileOthersComeAndGo", "SlotsPageByPage"}},
	{"a scan of slots loses rows while others come", func(b *broken) {
		b.eachScan(func(s rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row {
			if len(s.Slots) > 0 && n == 7 {
				return nil
			}
			return []rowstore.Row{r}
		})
	}, []string{"SlotsWhileOthersComeAndGo"}},
	{"scans of slots count the rows that they have passed", func(b *broken) {
		b.pagesByOffset(100, func(s rowstore.ScanRange) bool { return len(s.Slots) > 0 })
	}, []string{"SlotsLoopMayClearWhatItScans"}},
}

// pagesByOffset has some scans read a page at a time, each from behind as many rows as were passed.
func (b *broken) pagesByOffset(size int, some func(s rowstore.ScanRange) bool) {
	b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
		if !some(s) || s.Snapshot != nil || s.Limit > 0 {
			return b.Store.Scan(ctx, s)
		}
		return func(yield func(rowstore.Row, error) bool) {
			for passed := 0; ; passed += size {
				page := s
				page.Limit = passed + size
				n := 0
				for row, err := range b.Store.Scan(ctx, page) {
					if n++; err == nil && n <= passed {
						continue
					}
					if !yield(row, err) || err != nil {
						return
					}
				}
				if n < page.Limit {
					return
				}
			}
		}
	}
}

// rowsOf collects a scan.
func (b *broken) rowsOf(s rowstore.ScanRange) (rows []rowstore.Row) {
	for r, err := range b.Store.Scan(context.Background(), s) {
		if err == nil {
			rows = append(rows, r)
		}
	}
	return rows
}

// slotRows gives scans of slots other rows.
func (b *broken) slotRows(rows func(s rowstore.ScanRange) []rowstore.Row) {
	b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
		if len(s.Slots) == 0 || rowstore.CheckScan(s) != nil {
			return b.Store.Scan(ctx, s)
		}
		return func(yield func(rowstore.Row, error) bool) {
			for _, r := range rows(s) {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// eachSlotScan rewrites scans of slots.
func (b *broken) eachSlotScan(change func(s rowstore.ScanRange) rowstore.ScanRange) {
	b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
		if len(s.Slots) > 0 && rowstore.CheckScan(s) == nil {
			s.Slots = slices.Clone(s.Slots)
			s = change(s)
		}
		return b.Store.Scan(ctx, s)
	}
}

// selectedRows leaves of rows what selectors select.
func selectedRows(rows []rowstore.Row, picks []rowstore.Selector) []rowstore.Row {
	for i := range rows {
		rows[i].Versions = kit.Select(rows[i].Versions, picks)
	}
	return slices.DeleteFunc(rows, func(r rowstore.Row) bool { return len(r.Versions) == 0 })
}

// staleIndex keeps the rows that were notified once in an index of its own, as if they still
// were. If removes, it takes out those whose notifications were deleted one by one, so that
// what is wrong comes from a crash.
func (b *broken) staleIndex(removes bool) {
	var mu sync.Mutex
	kept := map[[2]string][]rowstore.Version{}
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		outs, err := b.Store.Apply(ctx, muts, opts)
		mu.Lock()
		defer mu.Unlock()
		for i := range outs {
			if !outs[i].Applied {
				continue
			}
			at := [2]string{muts[i].Table, muts[i].Row}
			rows, _ := b.Store.Read(context.Background(), []rowstore.RowRead{{Table: at[0], Row: at[1], Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}})
			if len(rows[0].Versions) > 0 || removes {
				kept[at] = rows[0].Versions
			}
		}
		return outs, err
	}
	b.slotRows(func(s rowstore.ScanRange) []rowstore.Row {
		mu.Lock()
		defer mu.Unlock()
		var rows []rowstore.Row
		for at, versions := range kept {
			slot := rowstore.Slot(at[0], at[1])
			if at[0] == s.Table && (slot > s.Slots[0].First || at[1] >= s.From) &&
				slices.ContainsFunc(s.Slots, func(in rowstore.SlotRange) bool { return in.First <= slot && slot <= in.Last }) {
				rows = append(rows, rowstore.Row{Table: at[0], Row: at[1], Versions: slices.Clone(versions)})
			}
		}
		slices.SortFunc(rows, compareBySlot)
		rows = selectedRows(rows, s.Selectors)
		if s.Limit > 0 {
			rows = rows[:min(len(rows), s.Limit)]
		}
		return rows
	})
}
