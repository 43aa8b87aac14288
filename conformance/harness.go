package conformance

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// families lists every family, in order.
var families = []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify}

// harness wraps a store for tests that expect calls to succeed.
type harness struct {
	testing.TB
	s   rowstore.Store
	ctx context.Context //nolint:containedctx // of one test
}

func (e *env) harness(t testing.TB) *harness {
	t.Helper()
	return &harness{TB: t, s: e.store(t), ctx: e.context(t)}
}

// mut makes a mutation of a row of table "t".
func mut(row string, conds []rowstore.Condition, edits ...rowstore.Edit) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: row, Conditions: conds, Edits: edits}
}

// when lists conditions.
func when(c ...rowstore.Condition) []rowstore.Condition { return c }

// apply runs a batch, checks the shape of its answer, and returns it.
func (h *harness) apply(muts ...rowstore.Mutation) []rowstore.Outcome {
	h.Helper()
	out, err := h.s.Apply(h.ctx, muts, rowstore.ApplyOptions{})
	require.NoError(h, err)
	require.Len(h, out, len(muts), "one outcome for each mutation")
	for i := range out {
		require.NoError(h, out[i].Err, "mutation %d", i)
		if out[i].Applied {
			require.Zero(h, out[i].Broke, "an applied mutation broke nothing")
		}
	}
	return out
}

// put applies edits on a row of table "t", without conditions, in as many steps as the
// store's limits ask for.
func (h *harness) put(row string, edits ...rowstore.Edit) {
	h.Helper()
	limits := limitsOf(h.s)
	for {
		m, size := mut(row, nil), 0
		for len(edits) > 0 {
			size += len(edits[0].Column) + len(edits[0].Value)
			full := limits.Operations > 0 && len(m.Edits) == limits.Operations || limits.Bytes > 0 && size > limits.Bytes-len("t")-len(row)
			if full && len(m.Edits) > 0 {
				break
			}
			m.Edits, edits = append(m.Edits, edits[0]), edits[1:]
		}
		out := h.apply(m)
		require.True(h, out[0].Applied, "a mutation without conditions applies")
		if len(edits) == 0 {
			return
		}
	}
}

// holds checks that a mutation of conditions alone applies.
func (h *harness) holds(row string, c ...rowstore.Condition) {
	h.Helper()
	out := h.apply(mut(row, c))
	require.True(h, out[0].Applied, "%v must hold, but condition %d broke on %v", c, out[0].Failed, out[0].Broke)
}

// breaks checks that condition number failed of c is the first that does not
// hold, on that version.
func (h *harness) breaks(row string, failed int, broke rowstore.Version, c ...rowstore.Condition) {
	h.Helper()
	out := h.apply(mut(row, c))
	require.False(h, out[0].Applied, "%v must not hold", c)
	require.Equal(h, failed, out[0].Failed, "the index of the first condition that fails in %v", c)
	require.Equal(h, norm1(broke), norm1(out[0].Broke), "the version that broke condition %d of %v", failed, c)
}

// read reads a row of table "t".
func (h *harness) read(row string, picks ...rowstore.Selector) []rowstore.Version {
	h.Helper()
	return h.readOf("t", row, picks...)
}

func (h *harness) readOf(table, row string, picks ...rowstore.Selector) []rowstore.Version {
	h.Helper()
	rows, err := h.s.Read(h.ctx, []rowstore.RowRead{{Table: table, Row: row, Selectors: picks}})
	require.NoError(h, err)
	require.Len(h, rows, 1)
	require.NoError(h, rows[0].Err)
	require.Equal(h, table, rows[0].Table)
	require.Equal(h, row, rows[0].Row)
	return norm(rows[0].Versions)
}

// all reads all versions that a row of table "t" holds.
func (h *harness) all(row string) []rowstore.Version {
	h.Helper()
	return h.read(row, everything()...)
}

// scan collects a whole scan of table "t", or of the table that s names.
func (h *harness) scan(s rowstore.ScanRange) []rowstore.Row {
	h.Helper()
	if s.Table == "" {
		s.Table = "t"
	}
	rows, err := collect(h.ctx, h.s, s)
	require.NoError(h, err)
	return rows
}

// keys is scan, of which only the row keys count.
func (h *harness) keys(s rowstore.ScanRange) []string {
	h.Helper()
	keys := []string{}
	for _, r := range h.scan(s) {
		keys = append(keys, r.Row)
	}
	return keys
}

// tables collects the names of all tables.
func (h *harness) tables() []string {
	h.Helper()
	names := []string{}
	for name, err := range h.s.Tables(h.ctx) {
		require.NoError(h, err)
		names = append(names, name)
	}
	return names
}

// collect gathers a scan, and checks what holds for each: ascending or descending
// keys within the range, no key twice, no empty row, no error of a row, the order
// of versions, the limit.
func collect(ctx context.Context, s rowstore.Store, r rowstore.ScanRange) ([]rowstore.Row, error) {
	rows := []rowstore.Row{}
	var failed error
	for row, err := range s.Scan(ctx, r) {
		if failed != nil {
			return rows, fmt.Errorf("the scan went on after it yielded the error %w", failed)
		}
		if err != nil {
			if row.Row != "" || row.Table != "" || len(row.Versions) > 0 || row.Err != nil {
				return rows, fmt.Errorf("the scan yielded the row %q together with the error %w", row.Row, err)
			}
			failed = err
			continue
		}
		if err := checkScanned(r, rows, row); err != nil {
			return rows, err
		}
		row.Versions = norm(row.Versions)
		rows = append(rows, row)
	}
	return rows, failed
}

func checkScanned(r rowstore.ScanRange, before []rowstore.Row, row rowstore.Row) error {
	switch {
	case row.Err != nil:
		return fmt.Errorf("a scanned row carries an error of its own: %w", row.Err)
	case row.Table != r.Table:
		return fmt.Errorf("the scan of table %q yielded a row of table %q", r.Table, row.Table)
	case row.Hint && !r.Hints:
		return fmt.Errorf("the scan yielded row %q as a hint, and was not asked for hints", row.Row)
	case row.Hint && len(row.Versions) > 0:
		return fmt.Errorf("the scan yielded row %q as a hint, with versions", row.Row)
	case len(row.Versions) == 0 && !row.Hint:
		return fmt.Errorf("the scan yielded row %q, in which nothing matched", row.Row)
	case r.Limit > 0 && len(before) >= r.Limit:
		return fmt.Errorf("the scan with limit %d yielded more rows", r.Limit)
	case len(r.Slots) > 0:
		return checkScannedSlot(r, before, row)
	case row.Row < r.From || r.To != "" && row.Row >= r.To:
		return fmt.Errorf("the scan of [%q, %q) yielded row %q", r.From, r.To, row.Row)
	}
	if len(before) > 0 {
		last := before[len(before)-1].Row
		if row.Row == last {
			return fmt.Errorf("the scan yielded row %q twice", row.Row)
		}
		if (row.Row < last) != r.Reverse {
			return fmt.Errorf("the scan (reverse: %v) yielded row %q after row %q", r.Reverse, row.Row, last)
		}
	}
	return ordered(row.Versions)
}

// checkScannedSlot is checkScanned for a scan of slots, in whose order the rows come.
func checkScannedSlot(r rowstore.ScanRange, before []rowstore.Row, row rowstore.Row) error {
	slot := rowstore.Slot(row.Table, row.Row)
	if !slices.ContainsFunc(r.Slots, func(in rowstore.SlotRange) bool { return in.First <= slot && slot <= in.Last }) {
		return fmt.Errorf("the scan of some slots yielded row %q of slot %d", row.Row, slot)
	}
	if slot == r.Slots[0].First && row.Row < r.From {
		return fmt.Errorf("the scan of slots from row %q on yielded row %q", r.From, row.Row)
	}
	if n := len(before); n > 0 && compareBySlot(before[n-1], row) >= 0 {
		return fmt.Errorf("the scan of slots yielded row %q after row %q", row.Row, before[n-1].Row)
	}
	return ordered(row.Versions)
}

// ordered checks that versions are in the order of Row.Versions, each once.
func ordered(v []rowstore.Version) error {
	for i := 1; i < len(v); i++ {
		if rowstore.CompareVersions(v[i-1], v[i]) >= 0 {
			return fmt.Errorf("versions out of order, or one of them twice: %v before %v", v[i-1], v[i])
		}
	}
	return nil
}

// pick selects all versions of a family in every column.
func pick(f rowstore.Family) rowstore.Selector {
	return rowstore.Selector{Family: f, From: 0, To: oracle.Max}
}

// everything selects all that a row can hold.
func everything() []rowstore.Selector {
	var p []rowstore.Selector
	for _, f := range families {
		p = append(p, pick(f))
	}
	return p
}

// ver makes a version.
func ver(f rowstore.Family, column string, ts rowstore.Timestamp, value string) rowstore.Version {
	return rowstore.Version{Family: f, Column: column, TS: ts, Value: []byte(value)}
}

// write makes the edit that puts v.
func write(v rowstore.Version) rowstore.Edit {
	return rowstore.Put(v.Family, v.Column, v.TS, v.Value)
}

// norm copies versions and makes nil values empty, because the two mean the same.
func norm(v []rowstore.Version) []rowstore.Version {
	out := make([]rowstore.Version, len(v))
	for i := range v {
		out[i] = norm1(v[i])
	}
	return out
}

func norm1(v rowstore.Version) rowstore.Version {
	v.Value = append([]byte{}, v.Value...)
	return v
}

// versions sorts what a test expects as Row.Versions is sorted.
func versions(v ...rowstore.Version) []rowstore.Version {
	out := norm(v)
	slices.SortFunc(out, rowstore.CompareVersions)
	return out
}

// ability returns an optional interface of the store, or skips the test with
// that as the reason.
func ability[T any](t testing.TB, s rowstore.Store, name string) T {
	t.Helper()
	a, ok := rowstore.Unwrap[T](s)
	if !ok {
		t.Skipf("the store is no %s", name)
	}
	return a
}

// num writes a timestamp as a number, which String does not.
func num(ts rowstore.Timestamp) string { return strconv.FormatUint(uint64(ts), 10) }
