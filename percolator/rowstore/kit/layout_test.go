package kit_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/btree"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// keyValues is an ordered key-value database in memory, and its own transaction.
type keyValues struct {
	keys  btree.Map[string, []byte]
	steps int // keys that were visited
	err   error
}

// Ascend implements kit.Reader.
func (d *keyValues) Ascend(from, to []byte, visit func(key, value []byte) bool) error {
	d.keys.Ascend(string(from), func(k string, v []byte) bool {
		d.steps++
		return (to == nil || k < string(to)) && lend(visit, k, v)
	})
	return d.err
}

// Descend implements kit.Reader.
func (d *keyValues) Descend(from, to []byte, visit func(key, value []byte) bool) error {
	d.keys.Descend(string(to), func(k string, v []byte) bool {
		d.steps++
		return k == string(to) || k >= string(from) && lend(visit, k, v)
	})
	return d.err
}

// lend shows a key and a value that do not outlive the visit, as those of many databases
// do not.
func lend(visit func(key, value []byte) bool, k string, v []byte) bool {
	key, value := []byte(k), bytes.Clone(v)
	more := visit(key, value)
	for _, b := range [][]byte{key, value} {
		for i := range b {
			b[i] = 0xEE
		}
	}
	return more
}

// Put implements kit.Txn.
func (d *keyValues) Put(key, value []byte) error {
	d.keys.Set(string(key), bytes.Clone(value))
	return d.err
}

// Delete implements kit.Txn.
func (d *keyValues) Delete(key []byte) error {
	d.keys.Delete(string(key))
	return d.err
}

var (
	families = []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify}
	few      = []string{"a", "a\x00", "a\x00\x01", "a\xff", "b"}
)

// random makes rows, picks and mutations of few names and timestamps, so that they meet.
type random struct{ *rand.Rand }

func newRandom(t *testing.T) random {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return random{rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // repeatable, not secret
}

func (r random) name() string            { return few[r.IntN(len(few))] }
func (r random) family() rowstore.Family { return families[r.IntN(len(families))] }
func (r random) ts() rowstore.Timestamp {
	if r.IntN(20) == 0 {
		return oracle.Max
	}
	return 1 + rowstore.Timestamp(r.IntN(40)) //nolint:gosec // positive
}

func (r random) picks() []rowstore.Selector {
	picks := make([]rowstore.Selector, 1+r.IntN(3))
	for i := range picks {
		p := rowstore.Selector{Family: r.family(), Column: rowstore.AllColumns, To: oracle.Max, Limit: r.IntN(3)}
		if r.IntN(2) == 0 {
			p.Column = r.name()
		}
		if r.IntN(2) == 0 {
			p.From, p.To = r.ts(), r.ts()
		}
		picks[i] = p
	}
	return picks
}

// notifyPicks are picks of Notify alone.
func (r random) notifyPicks() []rowstore.Selector {
	picks := r.picks()
	for i := range picks {
		picks[i].Family = rowstore.Notify
	}
	return picks
}

// slots makes ranges that begin and end at slots of rows, or cover all.
func (r random) slots() (ranges []rowstore.SlotRange) {
	var ends []uint16
	for range 1 + r.IntN(6) {
		ends = append(ends, rowstore.Slot(r.name(), r.name()))
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	for i := 0; i < len(ends); i++ {
		first := ends[i]
		if i+1 < len(ends) && r.IntN(2) == 0 {
			i++
		}
		ranges = append(ranges, rowstore.SlotRange{First: first, Last: ends[i]})
	}
	if r.IntN(4) == 0 {
		ranges = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
	}
	return ranges
}

// mutation makes one that breaks no rule.
func (r random) mutation() rowstore.Mutation {
	for {
		m := rowstore.Mutation{Table: r.name(), Row: r.name()}
		for range r.IntN(3) {
			switch c := r.name(); r.IntN(4) {
			case 0:
				m.Conditions = append(m.Conditions, rowstore.AbsentAt(c, r.ts()))
			case 1:
				m.Conditions = append(m.Conditions, rowstore.Present(c, r.ts()))
			case 2:
				m.Conditions = append(m.Conditions, rowstore.SameIncarnation([]string{"", "other"}[r.IntN(2)]))
			default:
				m.Conditions = append(m.Conditions, rowstore.Absent([]rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Mark, rowstore.Notify}[r.IntN(4)], c, r.ts()))
			}
		}
		for range r.IntN(6) {
			switch f, c := r.family(), r.name(); r.IntN(4) {
			case 0:
				m.Edits = append(m.Edits, rowstore.Delete(f, c, r.ts()))
			case 1:
				m.Edits = append(m.Edits, rowstore.DeleteRange(f, c, r.ts(), r.ts()))
			default:
				m.Edits = append(m.Edits, rowstore.Put(f, c, r.ts(), fmt.Append(nil, r.IntN(1000))))
			}
		}
		if rowstore.CheckBatch([]rowstore.Mutation{m}) == nil {
			return m
		}
	}
}

// TestLayoutAndSliceAgree changes rows that are kept by a Layout, and as sorted slices, and
// compares every answer.
func TestLayoutAndSliceAgree(t *testing.T) {
	t.Parallel()
	r := newRandom(t)
	for range 20 {
		db, l := &keyValues{}, kit.Layout{Prefix: "p\xff"}
		db.keys.Set("p", nil)      // somebody else's
		db.keys.Set("p\xffz", nil) //
		rows := map[[2]string][]rowstore.Version{}
		applied := 0
		for range 400 {
			m := r.mutation()
			at := [2]string{m.Table, m.Row}
			got, err := l.Judge(db, &m, "")
			require.NoError(t, err)
			want, err := kit.Judge(&m, "", func(f rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
				return kit.Newest(rows[at], f, column, from, to), nil
			})
			require.NoError(t, err)
			require.Equal(t, want, got)
			if !got.Applied {
				continue
			}
			applied++
			before := slices.Clone(rows[at])
			edited := kit.Edited(rows[at], m.Edits, 0)
			require.Equal(t, before, slices.Clone(rows[at]), "a row is not changed in place")
			rows[at] = edited
			require.NoError(t, l.Edit(db, &m, 0))

			picks := r.picks()
			versions, err := l.Read(db, m.Table, m.Row, picks)
			require.NoError(t, err)
			require.Equal(t, kit.Select(rows[at], picks), versions, "%v", picks)

			s := rowstore.ScanRange{Table: r.name(), Reverse: r.IntN(2) == 0, Selectors: r.picks(), Limit: r.IntN(3)}
			if r.IntN(2) == 0 {
				s.From, s.To = r.name(), r.name()
			}
			require.Equal(t, scanned(rows, s), scan(t, l, db, s, 1+r.IntN(4)), "%v", s)
			s = rowstore.ScanRange{Table: r.name(), Reverse: r.IntN(2) == 0, Selectors: r.notifyPicks(), Limit: r.IntN(3)}
			if r.IntN(2) == 0 {
				s.From, s.To = r.name(), r.name()
			}
			require.Equal(t, scanned(rows, s), scan(t, l, db, s, 1+r.IntN(4)), "%v", s)
			s = rowstore.ScanRange{Table: r.name(), Slots: r.slots(), Selectors: r.notifyPicks(), Limit: r.IntN(3)}
			if r.IntN(2) == 0 {
				s.From = r.name()
			}
			asked := slices.Clone(s.Slots)
			require.Equal(t, scanned(rows, s), scan(t, l, db, s, 1+r.IntN(4)), "%v", s)
			require.Equal(t, asked, s.Slots, "what the caller passed stays as it is")
			var tables []string
			for _, name := range few {
				if slices.ContainsFunc(few, func(row string) bool { return len(rows[[2]string{name, row}]) > 0 }) {
					tables = append(tables, name)
				}
			}
			listed, err := l.Tables(db)
			require.NoError(t, err)
			require.Equal(t, tables, listed)
		}
		require.Greater(t, applied, 50)
	}
}

// scan reads all pages.
func scan(t *testing.T, l kit.Layout, db kit.Reader, s rowstore.ScanRange, look int) []rowstore.Row {
	t.Helper()
	var all []rowstore.Row
	for rest := &s; rest != nil; {
		rows, next, err := l.Page(db, *rest, look)
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), look)
		all, rest = append(all, rows...), next
	}
	return all
}

// scanned is scan over slices.
func scanned(rows map[[2]string][]rowstore.Version, s rowstore.ScanRange) []rowstore.Row {
	var all []rowstore.Row
	keys := slices.Sorted(slices.Values(few))
	if s.Reverse {
		slices.Reverse(keys)
	}
	if len(s.Slots) > 0 {
		slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(rowstore.Slot(s.Table, a), rowstore.Slot(s.Table, b)) })
		keys = slices.DeleteFunc(keys, func(row string) bool {
			slot := rowstore.Slot(s.Table, row)
			return slot == s.Slots[0].First && row < s.From ||
				!slices.ContainsFunc(s.Slots, func(r rowstore.SlotRange) bool { return r.First <= slot && slot <= r.Last })
		})
		s.From = ""
	}
	for _, row := range keys {
		if row < s.From || s.To != "" && row >= s.To || s.Limit > 0 && len(all) == s.Limit {
			continue
		}
		if vs := kit.Select(rows[[2]string{s.Table, row}], s.Selectors); len(vs) > 0 {
			all = append(all, rowstore.Row{Table: s.Table, Row: row, Versions: vs})
		}
	}
	return all
}

// TestLayoutPassesLittle counts the keys that are visited.
func TestLayoutPassesLittle(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{}
	const rows, deep = 100, 1000
	for i := range rows {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprintf("%03d", i)}
		for ts := range rowstore.Timestamp(deep) {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, "c", ts+1, nil))
		}
		if i == rows/2 {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", 5, nil))
		}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	cost := func(least int, pick rowstore.Selector) int {
		db.steps = 0
		require.Len(t, scan(t, l, db, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick}}, 10), least)
		return db.steps
	}
	require.Less(t, cost(1, rowstore.Selector{Family: rowstore.Notify, To: oracle.Max}), 20)
	notified := rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}
	slot := rowstore.Slot("t", fmt.Sprintf("%03d", rows/2))
	for i := range 1000 {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint("other", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
		if rowstore.Slot("t", m.Row) != slot {
			require.NoError(t, l.Edit(db, &m, 0))
		}
	}
	notified.Slots = []rowstore.SlotRange{{First: slot, Last: slot}}
	db.steps = 0
	require.Len(t, scan(t, l, db, notified, 10), 1)
	require.Less(t, db.steps, 20, "the rows of other slots cost nothing")
	for i := range 1000 {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint("other", i), Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", 5)}}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	newest := rowstore.Selector{Family: rowstore.Write, To: oracle.Max, Limit: 1}
	require.Less(t, cost(rows, newest), 30*rows)
	newest.To = 10
	require.Less(t, cost(rows, newest), 50*rows, "old versions are searched for, not walked to")
	newest.Column = "c"
	require.Less(t, cost(rows, newest), 5*rows)
}

// TestPagesAreBounded has a page of rows of large values, and one of rows in which nothing
// matches.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{}
	for i := range 6 {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Data, "c", 5, make([]byte, 400<<10))}}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	for _, reverse := range []bool{false, true} {
		s := rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{{Family: rowstore.Data, To: oracle.Max}}}
		rows, rest, err := l.Page(db, s, 100)
		require.NoError(t, err)
		require.Len(t, rows, 3, "more than a mebibyte")
		require.NotNil(t, rest)
		rows, rest, err = l.Page(db, *rest, 100)
		require.NoError(t, err)
		require.Len(t, rows, 3)
		require.NotNil(t, rest, "it has not looked further")
		rows, rest, err = l.Page(db, *rest, 100)
		require.NoError(t, err)
		require.Empty(t, rows)
		require.Nil(t, rest)
		s.Selectors[0].Family = rowstore.Write
		db.steps = 0
		rows, rest, err = l.Page(db, s, 2)
		require.NoError(t, err)
		require.Empty(t, rows)
		require.NotNil(t, rest, "it looked at two rows and found nothing")
		require.Less(t, db.steps, 10)
	}
}

// TestGroupsDrawApart gives each group a timestamp of its own, up to the last that it takes.
func TestGroupsDrawApart(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{}
	put := func(row string, notAfter rowstore.Timestamp) rowstore.Group {
		return rowstore.Group{AssignTimestamp: true, NotAfter: notAfter, Mutations: []rowstore.Mutation{
			{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil)}},
		}}
	}
	outs, changed, err := l.Groups(db, []rowstore.Group{put("a", 0), put("b", 21), put("c", 21)}, 20, "inc")
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []rowstore.GroupOutcome{
		{Applied: true, Commit: 20, Incarnation: "inc"}, {Applied: true, Commit: 21, Incarnation: "inc"}, {TooLate: true, Incarnation: "inc"},
	}, outs)
	for row, want := range map[string]rowstore.Timestamp{"a": 20, "b": 21} {
		versions, err := l.Read(db, "t", row, []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}})
		require.NoError(t, err)
		require.Len(t, versions, 1)
		require.Equal(t, want, versions[0].TS)
	}
	_, changed, err = l.Groups(db, []rowstore.Group{put("c", 21)}, 22, "")
	require.NoError(t, err)
	require.False(t, changed)
}

func TestLayoutErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := kit.Layout{}
	put := rowstore.Mutation{
		Table: "t", Row: "r", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, "c", 5, nil), rowstore.Put(rowstore.Notify, "c", 5, nil)},
	}
	all := []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}, {Family: rowstore.Write, Column: "c", To: oracle.Max}}
	pages := func(db *keyValues, s rowstore.ScanRange) (err error) {
		for rest := &s; rest != nil && err == nil; {
			_, rest, err = l.Page(db, *rest, 10)
		}
		return err
	}
	calls := func(db *keyValues) map[string]error {
		errs := map[string]error{"edit": l.Edit(db, &put, 0)}
		_, errs["judge"] = l.Judge(db, &put, "")
		_, errs["read all"] = l.Read(db, "t", "r", all[:1])
		_, errs["read"] = l.Read(db, "t", "r", all[1:])
		errs["page"] = pages(db, rowstore.ScanRange{Table: "t", Selectors: all})
		errs["reverse page"] = pages(db, rowstore.ScanRange{Table: "t", Selectors: all, Reverse: true})
		notify := rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}
		errs["notified"] = pages(db, notify)
		notify.Slots = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
		errs["slots"] = pages(db, notify)
		errs["upgrade"] = l.Upgrade(t.Context(), func(move func(kit.Txn) error) error { return move(db) })
		_, errs["tables"] = l.Tables(db)
		return errs
	}
	for name, err := range calls(&keyValues{err: broken}) {
		require.ErrorIs(t, err, broken, name)
	}
	// A key that is not one of the layout's.
	bad := &keyValues{}
	bad.keys.Set(string(append(kit.AppendName(kit.AppendName([]byte("r"), "t"), "r"), "\x02c\x00\x01abc"...)), nil)
	bad.keys.Set("nt\x00\x01r\x00\x01more", nil)
	bad.keys.Set("st\x00\x01\xff", nil)
	for name, err := range calls(bad) {
		if name != "edit" && name != "tables" && name != "judge" && name != "read" {
			require.ErrorIs(t, err, rowstore.ErrCorrupt, name)
		}
	}
	// One that has more behind its timestamp.
	longer := &keyValues{}
	column := kit.AppendName(append(kit.AppendName(kit.AppendName([]byte("r"), "t"), "r"), byte(rowstore.Write)), "c")
	longer.keys.Set(string(append(kit.AppendTimestamp(column, 5), "more"...)), nil)
	longer.keys.Set("nt\x00\x01r", nil)
	longer.keys.Set("st\x00\x01\x00\x00r\x00\x01more", nil)
	for name, err := range calls(longer) {
		if name != "edit" && name != "tables" {
			require.ErrorIs(t, err, rowstore.ErrCorrupt, name)
		}
	}
	bad.keys.Set("rt", nil)
	_, err := l.Tables(bad)
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
}

// stuck is a database that cannot delete.
type stuck struct{ *keyValues }

func (stuck) Delete([]byte) error { return errors.New("stuck") }

func TestLayoutDeletes(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{}
	put := rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil), rowstore.Put(rowstore.Mark, "c", 5, nil)}}
	require.NoError(t, l.Edit(db, &put, 0))
	require.Equal(t, 3, db.keys.Len(), "two versions, and that the row has a notification")
	for name, e := range map[string]rowstore.Edit{
		"delete": rowstore.Delete(rowstore.Notify, "c", 5), "range": rowstore.DeleteRange(rowstore.Notify, "c", 1, 9), "mark": rowstore.Put(rowstore.Mark, "c", 6, nil),
	} {
		require.ErrorContains(t, l.Edit(stuck{db}, &rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{e}}, 0), "stuck", name)
	}
	gone := rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", 5), rowstore.Delete(rowstore.Mark, "c", 6), rowstore.Delete(rowstore.Mark, "c", 5)}}
	require.NoError(t, l.Edit(db, &gone, 0))
	require.Zero(t, db.keys.Len(), "nothing is left of a row without versions")
}

func TestLayoutKeyLen(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{Prefix: "prefix"}
	table, row, column := string(make([]byte, 7)), string(make([]byte, 20)), string(make([]byte, 30))
	m := rowstore.Mutation{Table: table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, column, 5, nil)}}
	require.NoError(t, l.Edit(db, &m, 0))
	key, _, _ := db.keys.Min()
	require.Len(t, key, l.KeyLen(7, 20, 30))
}

func TestPagesStops(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	page := func(_ context.Context, s rowstore.ScanRange) ([]rowstore.Row, *rowstore.ScanRange, error) {
		s.Limit--
		switch s.Limit {
		case 0:
			return nil, nil, broken
		case 1:
			return nil, &s, nil // looked at rows, and found none
		}
		return []rowstore.Row{{Row: fmt.Sprint(s.Limit)}}, &s, nil
	}
	var rows []string
	var last error
	for r, err := range kit.Pages(t.Context(), rowstore.ScanRange{Limit: 5}, page) {
		rows, last = append(rows, r.Row), err
	}
	require.Equal(t, []string{"4", "3", "2", ""}, rows)
	require.ErrorIs(t, last, broken)
	for _, err := range kit.Pages(t.Context(), rowstore.ScanRange{Limit: 5}, page) {
		require.NoError(t, err)
		break
	}
}

// TestLayoutUpgrade gives the index of version 1 its new form, in steps of which each may fail.
func TestLayoutUpgrade(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{Prefix: "p"}
	const rows = 2500
	all := rowstore.ScanRange{Table: "t\x00", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}
	for i := range rows {
		m := rowstore.Mutation{Table: all.Table, Row: fmt.Sprint(i, "\x00"), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	want := db.keys.Keys()
	old := &keyValues{}
	for _, key := range want {
		if key[1] == 's' {
			table, rest, err := kit.CutName([]byte(key[2:]))
			require.NoError(t, err)
			key = string(kit.AppendName([]byte("pn"), table)) + string(rest[2:])
		}
		old.keys.Set(key, nil)
	}
	old.keys.Set("pm", nil) // somebody else's
	old.keys.Set("po", nil)
	require.Empty(t, scan(t, l, old, all, rows))
	steps := 0
	broken := errors.New("broken")
	update := func(move func(kit.Txn) error) error {
		if steps++; steps%2 == 0 {
			return broken
		}
		before := old.keys.Len()
		err := move(old)
		require.Equal(t, before, old.keys.Len())
		return err
	}
	for l.Upgrade(t.Context(), update) != nil {
		require.Less(t, steps, 20)
	}
	require.Greater(t, steps, 4, "it takes several transactions")
	old.keys.Delete("pm")
	old.keys.Delete("po")
	require.Equal(t, want, old.keys.Keys())
	require.Len(t, scan(t, l, old, all, 100), rows)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Upgrade(gone, update), context.Canceled)
}
