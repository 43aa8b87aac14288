package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// CompareWithMemory runs random calls on a store that wrap makes of a memstore.Store, and on
// another memstore.Store, and compares every answer. Batches are deferred, and stores
// crash, only if defers.
func CompareWithMemory(t *testing.T, defers bool, wrap func(*memstore.Store) rs.Store) {
	t.Helper()
	applied, refused, visited := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		// Both draw the same timestamps.
		clock := memstore.WithClock(func() time.Time { return time.UnixMilli(0) })
		c := comparison{inner: memstore.New(clock), reference: memstore.New(clock), defers: defers}
		c.store = wrap(c.inner)
		t.Repeat(map[string]func(*rapid.T){
			"apply":  c.apply,
			"group":  c.group,
			"read":   c.read,
			"scan":   c.scan,
			"slots":  c.slots,
			"tables": c.tables,
			"draw":   c.draw,
			"split":  c.split,
			"crash":  c.crash,
		})
		require.NoError(t, c.store.Close())
		applied += c.applied
		refused += c.refused
		visited += c.visited
	})
	require.NotZero(t, applied)
	require.NotZero(t, refused)
	require.NotZero(t, visited, "no scan of slots visited a row")
}

// comparison makes each call on a store over inner and on a reference, and compares the
// answers. It counts the mutations that were applied and refused, and the rows of scans of
// slots.
type comparison struct {
	store            rs.Store
	inner, reference *memstore.Store
	defers           bool
	applied, refused int
	visited          int // by scans of slots
}

// pair is the store and the reference, whose answers stand in this order.
func (c *comparison) pair() []rs.Store { return []rs.Store{c.store, c.reference} }

// apply applies a batch of drawn mutations.
func (c *comparison) apply(t *rapid.T) {
	muts := rapid.SliceOfNDistinct(rapid.Custom(drawMutation), 0, 4, rowName).Draw(t, "mutations")
	opts := rs.ApplyOptions{Deferred: c.defers && rapid.Bool().Draw(t, "deferred")}
	var got [2][]rs.Outcome
	for i, s := range c.pair() {
		var err error
		got[i], err = s.Apply(context.Background(), muts, opts)
		require.NoError(t, err)
		for j := range got[i] {
			require.NotEmpty(t, got[i][j].Incarnation)
			got[i][j].Incarnation = ""
			if got[i][j].Applied {
				c.applied++
			} else {
				c.refused++
			}
		}
	}
	require.Equal(t, len(got[1]), len(got[0]))
	if len(muts) > 0 {
		require.Equal(t, got[1], got[0])
	}
}

// group applies one or two groups, where the stores take their rows together.
func (c *comparison) group(t *rapid.T) {
	muts := rapid.SliceOfNDistinct(rapid.Custom(drawMutation), 1, 4, rowName).Draw(t, "mutations")
	cut := rapid.IntRange(1, len(muts)).Draw(t, "cut")
	groups := []rs.Group{{Mutations: muts[:cut], AssignTimestamp: rapid.Bool().Draw(t, "draw")}}
	if cut < len(muts) {
		groups = append(groups, rs.Group{Mutations: muts[cut:]})
	}
	if groups[0].AssignTimestamp {
		groups[0].NotAfter = rs.Timestamp(rapid.IntRange(0, 30).Draw(t, "not after"))
		groups[0].Mutations[0].Edits = append(groups[0].Mutations[0].Edits, rs.Put(rs.Write, "drawn", rs.AssignedTimestamp, []byte("d")))
	}
	var got [2][]rs.GroupOutcome
	for i, s := range c.pair() {
		g, ok := rs.Unwrap[rs.Grouper](s)
		if !ok {
			return
		}
		for _, gr := range groups {
			key := g.GroupKey(gr.Mutations[0].Table, gr.Mutations[0].Row)
			for _, m := range gr.Mutations {
				if g.GroupKey(m.Table, m.Row) != key || gr.AssignTimestamp && !g.AssignsTimestamps(key) {
					return
				}
			}
		}
		var err error
		got[i], err = g.Group(context.Background(), groups)
		require.NoError(t, err)
		for j := range got[i] {
			require.NotEmpty(t, got[i][j].Incarnation)
			got[i][j].Incarnation, got[i][j].Outcome.Incarnation = "", ""
		}
	}
	require.Equal(t, got[1], got[0])
}

// read reads drawn rows by drawn selectors.
func (c *comparison) read(t *rapid.T) {
	reads := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rs.RowRead {
		return rs.RowRead{
			Table: tableNames.Draw(t, "table"), Row: rowKeys.Draw(t, "row"),
			Selectors: rapid.SliceOfN(rapid.Custom(drawPick), 1, 4).Draw(t, "selectors"),
		}
	}), 1, 4).Draw(t, "reads")
	var got [2][]rs.Row
	for i, s := range c.pair() {
		var err error
		got[i], err = s.Read(context.Background(), reads)
		require.NoError(t, err)
	}
	require.Equal(t, got[1], got[0])
}

// scan scans a drawn range.
func (c *comparison) scan(t *rapid.T) {
	r := rs.ScanRange{
		Table:     tableNames.Draw(t, "table"),
		From:      rapid.OneOf(rapid.Just(""), rowKeys).Draw(t, "from"),
		To:        rapid.OneOf(rapid.Just(""), rowKeys).Draw(t, "to"),
		Reverse:   rapid.Bool().Draw(t, "reverse"),
		Limit:     rapid.IntRange(0, 3).Draw(t, "limit"),
		Selectors: rapid.SliceOfN(rapid.Custom(drawPick), 1, 2).Draw(t, "selectors"),
	}
	c.scanned(t, r)
}

// slots scans drawn ranges of slots for notifications.
func (c *comparison) slots(t *rapid.T) {
	r := rs.ScanRange{
		Table: tableNames.Draw(t, "table"),
		From:  rapid.OneOf(rapid.Just(""), rowKeys).Draw(t, "from"),
		Limit: rapid.IntRange(0, 3).Draw(t, "limit"),
		Selectors: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rs.Selector {
			p := drawPick(t)
			p.Family = rs.Notify
			return p
		}), 1, 2).Draw(t, "selectors"),
	}
	// Of nine parts of all slots, some, as one range or several.
	for part := range uint16(9) {
		const length = rs.Slots / 9
		switch next := (rs.SlotRange{First: part * length, Last: part*length + length - 1}); rapid.IntRange(0, 2).Draw(t, "part") {
		case 0:
		case 1:
			r.Slots = append(r.Slots, next)
		default:
			if n := len(r.Slots); n > 0 && r.Slots[n-1].Last == next.First-1 {
				r.Slots[n-1].Last = next.Last
			} else {
				r.Slots = append(r.Slots, next)
			}
		}
	}
	for _, s := range c.pair() {
		if _, ok := rs.Unwrap[rs.SlotScanner](s); !ok || len(r.Slots) == 0 {
			return
		}
	}
	c.scanned(t, r)
}

// scanned makes a scan.
func (c *comparison) scanned(t *rapid.T, r rs.ScanRange) {
	var got [2][]rs.Row
	for i, s := range c.pair() {
		for row, err := range s.Scan(context.Background(), r) {
			require.NoError(t, err)
			got[i] = append(got[i], row)
		}
	}
	require.Equal(t, got[1], got[0])
	if len(r.Slots) > 0 {
		c.visited += len(got[0])
	}
}

// tables lists the tables.
func (c *comparison) tables(t *rapid.T) {
	var got [2][]string
	for i, s := range c.pair() {
		for name, err := range s.Tables(context.Background()) {
			require.NoError(t, err)
			got[i] = append(got[i], name)
		}
	}
	require.Equal(t, got[1], got[0])
}

// draw takes timestamps.
func (c *comparison) draw(t *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(t, "n")
	var got [2]rs.Timestamp
	for i, s := range c.pair() {
		p, ok := rs.Unwrap[rs.OracleProvider](s)
		require.True(t, ok)
		var err error
		got[i], err = p.Oracle().Draw(context.Background(), n)
		require.NoError(t, err)
	}
	require.Equal(t, got[1], got[0])
}

// split asks where a table may be split.
func (c *comparison) split(t *rapid.T) {
	table, n := tableNames.Draw(t, "table"), rapid.IntRange(1, 4).Draw(t, "n")
	var got [2][]string
	for i, s := range c.pair() {
		p, ok := rs.Unwrap[rs.Splitter](s)
		require.True(t, ok)
		var err error
		got[i], err = p.Split(context.Background(), table, n)
		require.NoError(t, err)
	}
	require.Equal(t, got[1], got[0])
}

// crash flushes now and then, and loses what was deferred.
func (c *comparison) crash(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "flush") == 0 {
		d, ok := rs.Unwrap[rs.Deferrer](c.store)
		require.True(t, ok)
		require.NoError(t, d.Flush(context.Background()))
		require.NoError(t, c.reference.Flush(context.Background()))
	}
	if c.defers {
		c.inner.Crash()
		c.reference.Crash()
	}
}

var (
	tableNames = rapid.SampledFrom([]string{"a", "b"})
	rowKeys    = rapid.SampledFrom([]string{"1", "2", "3", "4"})
	columns    = rapid.SampledFrom([]string{"x", "y"})
)

func rowName(m rs.Mutation) string { return m.Table + m.Row }

func drawTS(t *rapid.T, low int, label string) rs.Timestamp {
	return rs.Timestamp(rapid.IntRange(low, 12).Draw(t, label))
}

func drawPick(t *rapid.T) rs.Selector {
	p := rs.Selector{
		Family: rs.Family(rapid.IntRange(1, 5).Draw(t, "family")),
		Column: rapid.OneOf(rapid.Just(rs.AllColumns), columns).Draw(t, "column"),
		From:   drawTS(t, 0, "from"), To: drawTS(t, 0, "to"),
		Limit: rapid.IntRange(0, 2).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "newest") {
		p.From, p.To = 0, oracle.Max
	}
	return p
}

// drawMutation makes a mutation that keeps the rules of the seam, those for the
// caller too.
func drawMutation(t *rapid.T) rs.Mutation {
	m := rs.Mutation{Table: tableNames.Draw(t, "table"), Row: rowKeys.Draw(t, "row")}
	for range rapid.IntRange(0, 2).Draw(t, "conditions") {
		column := columns.Draw(t, "column")
		switch rapid.IntRange(0, 4).Draw(t, "condition") {
		case 0:
			m.Conditions = append(m.Conditions, rs.Present(column, drawTS(t, 0, "at")))
		case 1:
			m.Conditions = append(m.Conditions, rs.AbsentAt(column, drawTS(t, 0, "at")))
		default:
			family := rapid.SampledFrom([]rs.Family{rs.Lock, rs.Write, rs.Mark, rs.Notify}).Draw(t, "family")
			m.Conditions = append(m.Conditions, rs.Absent(family, column, drawTS(t, 0, "from")))
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "edits") {
		e := rs.Edit{
			Kind:   rapid.SampledFrom([]rs.EditKind{rs.DoPut, rs.DoPut, rs.DoPut, rs.DoDelete, rs.DoDeleteRange}).Draw(t, "kind"),
			Family: rs.Family(rapid.IntRange(1, 5).Draw(t, "family")),
			Column: columns.Draw(t, "column"),
			TS:     drawTS(t, 1, "ts"),
		}
		switch e.Kind {
		case rs.DoPut:
			e.Value = fmt.Appendf(nil, "%d.%d", e.TS, i)
		case rs.DoDeleteRange:
			e.To = drawTS(t, 0, "to")
		}
		with := m
		with.Edits = append(with.Edits[:len(with.Edits):len(with.Edits)], e)
		if rs.CheckBatch([]rs.Mutation{with}) != nil {
			continue // it collides with an earlier one
		}
		m = with
		if e.Kind == rs.DoPut && e.Family == rs.Lock {
			m.Conditions = append(m.Conditions, rs.Absent(rs.Lock, e.Column, 0))
		}
	}
	return m
}
