package percolator

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The safe points of ranges that were erased (erase.go). They lie in the catalog's row, beside those of tables, and count as those
// do, for what lies in the range. One goes when the safe point of its table has passed it.

// span is something that was read or written in a stored table: a row, some rows, or a range of rows. An empty to is the end of the table.
type span struct {
	table, from, to string
	row             bool               // from alone
	reads           []rowstore.RowRead // if not nil, the rows of these that lie in the table
}

func (c Cell) span() span { return span{table: c.Table, from: c.Row, row: true} }

func (s *scan) span() span { return span{table: s.table, from: s.r.From, to: s.r.To} }

// has tells whether a row is in the span.
func (s *span) has(table, row string) bool {
	return s.table == table && (s.row && s.from == row || !s.row && s.from <= row && (s.to == "" || row < s.to))
}

// meets tells whether the span has a row in common with an erased range.
func (s *span) meets(r *format.ErasedRange) bool {
	switch {
	case string(r.Table) != s.table:
		return false
	case s.row:
		return r.Has(s.from)
	case s.reads != nil:
		return slices.ContainsFunc(s.reads, func(read rowstore.RowRead) bool { return read.Table == s.table && r.Has(read.Row) })
	}
	// What both have begins where the later one begins. A range that ends before it begins has no row, and so none in common.
	from := max(s.from, string(r.From))
	return (len(r.To) == 0 || from < string(r.To)) && (s.to == "" || from < s.to)
}

// safePointIn returns the safe point of what was read or written.
func (v *catalogView) safePointIn(s span) Timestamp {
	return max(v.safePointOf(s.table), v.erasedIn(s))
}

// erasedIn returns the newest safe point of the erased ranges alone, 0 if none of them meets the span.
func (v *catalogView) erasedIn(s span) (safe Timestamp) {
	for i := range v.erased {
		if r := &v.erased[i]; r.SafePoint > safe && s.meets(r) {
			safe = r.SafePoint
		}
	}
	return safe
}

// readErased decodes the erased ranges, where there are any.
func (v *catalogView) readErased(stored *rowstore.Version) error {
	if stored == nil {
		return nil
	}
	e, err := format.DecodeErased(stored.Value)
	v.erased, v.erasedAt = e.Ranges, stored.TS
	return err
}

// spans are what the transaction writes or locks, and what it validates.
func (c *committer) spans() iter.Seq[span] {
	return func(yield func(span) bool) {
		for i := range c.writes {
			cell := &c.writes[i].cell
			if (i == 0 || cell.rowName() != c.writes[i-1].cell.rowName()) && !yield(cell.span()) {
				return
			}
		}
		c.readSpans()(yield)
	}
}

// readSpans are what a Serializable transaction validates.
func (c *committer) readSpans() iter.Seq[span] {
	return func(yield func(span) bool) {
		for cell := range c.tx.reads {
			if !yield(cell.span()) {
				return
			}
		}
		for i := range c.tx.ranges {
			if r := &c.tx.ranges[i]; !yield(span{table: r.table, from: r.from, to: r.to}) {
				return
			}
		}
	}
}

// publishErased gives ranges a safe point, unless they have a later one.
func (db *DB) publishErased(ctx context.Context, spans []span, safe Timestamp) error {
	_, err := db.replaceInCatalog(ctx, func(v *catalogView) (*replacement, error) {
		ranges, changed, err := v.withErased(spans, safe)
		if err != nil {
			return nil, err
		}
		return v.storeErased(ranges, changed)
	})
	if err != nil {
		return fmt.Errorf("publishing the safe point of the range: %w", err)
	}
	return nil
}

// withErased adds ranges to the erased ones of the view, unless these have a later safe point. One that lies in another with a safe point as late
// says nothing that this one does not say.
func (v *catalogView) withErased(spans []span, safe Timestamp) (ranges []format.ErasedRange, changed bool, err error) {
	all := v.standingErased()
	for _, s := range spans {
		i := slices.IndexFunc(all, func(r format.ErasedRange) bool { return s.is(&r) })
		if i < 0 {
			i, all = len(all), append(all, format.ErasedRange{Table: []byte(s.table), From: []byte(s.from), To: []byte(s.to)})
		}
		if all[i].SafePoint < safe {
			all[i].SafePoint, changed = safe, true
		}
	}
	for i := range all {
		if !slices.ContainsFunc(all, func(r format.ErasedRange) bool { return r.SafePoint >= all[i].SafePoint && r.Contains(&all[i]) }) {
			ranges = append(ranges, all[i])
		}
	}
	if len(ranges) > format.MaxErased {
		return nil, false, fmt.Errorf("%w: %d ranges were erased since the safe points of their tables, and there may be no more: erase larger ranges, or wait until the tables have later safe points",
			ErrTooLarge, format.MaxErased)
	}
	return ranges, changed, nil
}

// dropErased takes those ranges out of the catalog which the safe points of their tables have passed.
func (db *DB) dropErased(ctx context.Context, v *catalogView) error {
	if len(v.standingErased()) == len(v.erased) {
		return nil
	}
	_, err := db.replaceInCatalog(ctx, func(v *catalogView) (*replacement, error) {
		ranges := v.standingErased()
		return v.storeErased(ranges, len(ranges) < len(v.erased))
	})
	if err != nil {
		return fmt.Errorf("removing erased ranges from the catalog: %w", err)
	}
	return nil
}

// standingErased copies those erased ranges which the safe points of their tables have not passed.
func (v *catalogView) standingErased() (ranges []format.ErasedRange) {
	for i := range v.erased {
		if r := &v.erased[i]; r.SafePoint > v.safePointOf(string(r.Table)) {
			ranges = append(ranges, *r)
		}
	}
	return ranges
}

// storeErased stores erased ranges in the place of those of the view.
func (v *catalogView) storeErased(ranges []format.ErasedRange, changed bool) (*replacement, error) {
	if !changed {
		return nil, nil //nolint:nilnil // there is nothing to store
	}
	value, err := (&format.Erased{Ranges: ranges}).Encode()
	return &replacement{
		column: format.ColumnErased, at: v.erasedAt, value: value,
		conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnErased, v.erasedAt+1)},
	}, err
}

// is tells whether an erased range is the span.
func (s *span) is(r *format.ErasedRange) bool {
	return string(r.Table) == s.table && string(r.From) == s.from && string(r.To) == s.to
}
