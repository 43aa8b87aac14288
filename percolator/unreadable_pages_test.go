package percolator

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pagedRows fails a page of a scan before it shows those of its rows that lie before the damaged one, as a store may that reads pages.
type pagedRows struct{ *damagedRows }

const rowsOfAPage = 4

func (s pagedRows) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		var page []rowstore.Row
		for row, err := range s.damagedRows.Scan(ctx, r) {
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if page = append(page, row); len(page) < rowsOfAPage {
				continue
			}
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
			page = nil
		}
		for i := range page {
			if !yield(page[i], nil) {
				return
			}
		}
	}
}

// A scan finds the rows before a damaged one also if the store fails the whole page, each once, in order, and no more than it is to find.
func TestScanPastInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _, _ := w.damageable(ErrCorrupt)
	c := w.clientOver(newWireTo(pagedRows{s}, w.mem))
	var good, bad []string
	for i := range 30 {
		name := fmt.Sprintf("r%02d", i)
		set(t, c.DB, row(name), "1")
		if i%7 == 2 || i == 10 {
			bad = append(bad, name)
		} else {
			good = append(good, name)
		}
	}
	s.damage(bad...)
	for _, limit := range []int{0, 1, 2, 3, 5, 9, 24, 100} {
		var found, left []string
		r := rowstore.ScanRange{Table: "t", Limit: limit, Selectors: []rowstore.Selector{everything(rowstore.Write, "v")}}
		for row, err := range c.scanPast(t.Context(), r, func(u unreadable) error {
			name, ok := u.row()
			require.True(t, ok)
			left = append(left, name)
			return nil
		}) {
			require.NoError(t, err)
			found = append(found, row.Row)
		}
		want := good
		if limit > 0 {
			want = good[:min(limit, len(good))]
		}
		require.Equal(t, want, found, "limit %d", limit)
		require.Subset(t, bad, left)
		require.True(t, slices.IsSorted(left))
		if limit == 0 {
			require.Equal(t, bad, left)
		}
	}
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, len(bad), report.Damaged)
}

// A row that the store refuses to change, though it can read it, keeps its garbage, and no other does.
func TestCollectionPassesRefusedRows(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		w := newWorld(t)
		s, c, said := w.damageable(ErrCorrupt)
		s.onlyWrites, s.refuses = true, true
		for _, name := range []string{"a", "b", "c"} {
			w.history(row(name), 2*gcShallow, false)
			set(t, c.DB, row(name), "1")
			set(t, c.DB, row(name), "2")
		}
		s.damage("b")
		w.clock.advance(2 * worldRetention)
		report, err := w.collectBy(c, GCOptions{Full: full})
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 2*gcShallow + 2, 1}, []int{report.Damaged, w.versionsIn("a"), w.versionsIn("b"), w.versionsIn("c")})
		require.Equal(t, 1, report.Damaged)
		require.Contains(t, said.String(), "row=b")
		s.mend()
		w.clock.advance(worldRetention + worldRetention/10)
		w.hintedCollect(c)
		require.Equal(t, 1, w.versionsIn("b"))
	}
}

// failingReads fails the reads of row b from one on.
type failingReads struct {
	*damagedRows
	reads, from atomic.Int64
}

func (s *failingReads) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, err := s.damagedRows.Read(ctx, reads)
	for i := range rows {
		if reads[i].Table == "t" && reads[i].Row == "b" && s.reads.Add(1) >= s.from.Load() {
			rows[i] = rowstore.Row{Table: "t", Row: "b", Err: fmt.Errorf("%w: a part of a row", ErrCorrupt)}
			if len(rows) == 1 {
				return nil, rows[i].Err
			}
		}
	}
	return rows, err
}

// Wherever a long history cannot be read, no newer version goes before an older one, and others are collected.
func TestCollectionPassesPagesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const versions = 7*gcPage + 20 // more pages than are kept in memory
	for from := int64(1); ; from++ {
		w := newWorld(t)
		d, _, _ := w.damageable(ErrCorrupt)
		s := &failingReads{damagedRows: d}
		s.from.Store(1 << 30)
		c := w.clientOver(newWireTo(s, w.mem))
		w.history(row("b"), versions, true)
		set(t, c.DB, row("b"), "1")
		for range 3 {
			set(t, c.DB, row("a"), "1")
		}
		all := w.raw(row("b"))
		w.clock.advance(2 * worldRetention)
		s.reads.Store(0)
		s.from.Store(from)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Equal(t, 1, w.versionsIn("a"))
		left := w.raw(row("b"))
		kept := left.All(rowstore.Write, "v")
		require.Equal(t, all.All(rowstore.Write, "v")[:len(kept)], kept, "the newest are left, without a gap")
		require.GreaterOrEqual(t, len(left.All(rowstore.Data, "v")), len(kept)-1, "with their values")
		if report.Damaged == 0 {
			require.Greater(t, from, int64(10), "pages were read, and read again")
			require.Len(t, kept, 1)
			return
		}
		s.from.Store(1 << 30)
		w.clock.advance(worldRetention + worldRetention/10)
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		require.Equal(t, 1, w.versionsIn("b"))
	}
}

// Of a row whose first part the store refuses nothing more is removed: its other columns may need what stays.
func TestCollectionLeavesTheRestOfARefusedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	s.onlyWrites, s.refuses = true, true
	s.damage("b")
	p := &gcPass{db: c.DB, view: c.known(), report: &GCReport{}}
	col := p.collection("t", mustNow(t, c))
	part := func(column string) removal {
		return removal{edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, column, 0, 1)}, versions: 1}
	}
	require.NoError(t, col.add(t.Context(), "a", part("v")))
	require.NoError(t, col.add(t.Context(), "b", part("v")))
	require.NoError(t, col.add(t.Context(), "b", part("w")))
	require.Empty(t, col.muts)
	require.Equal(t, 1, p.report.Damaged)
	require.NoError(t, col.add(t.Context(), "a", part("w")))
	require.Len(t, col.muts, 1)
}
