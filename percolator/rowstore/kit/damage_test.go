package kit_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// damage spoils a version of the row "bad" of table t: its key has more behind the timestamp.
func damage(db *keyValues, family rowstore.Family) {
	column := kit.AppendName(append(kit.AppendName(kit.AppendName([]byte("r"), "t"), "bad"), byte(family)), "c")
	db.keys.Set(string(append(kit.AppendTimestamp(column, 5), "more"...)), nil)
}

// damaging is what meets a damaged version of each family, in a mutation that has an edit before it and
// one behind it.
func damaging() map[rowstore.Family]rowstore.Mutation {
	m := func(conditions []rowstore.Condition, e rowstore.Edit) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: "bad", Conditions: conditions, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Data, "before", 5, []byte("x")), e, rowstore.Put(rowstore.Data, "behind", 5, []byte("x")),
		}}
	}
	return map[rowstore.Family]rowstore.Mutation{
		rowstore.Write:  m([]rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)}, rowstore.Put(rowstore.Write, "c", 9, nil)),
		rowstore.Lock:   m(nil, rowstore.DeleteRange(rowstore.Lock, "c", 1, 9)),
		rowstore.Mark:   m(nil, rowstore.Put(rowstore.Mark, "c", 9, nil)),
		rowstore.Notify: m(nil, rowstore.DeleteRange(rowstore.Notify, "c", 1, 9)),
	}
}

// A key that names no table hides none: the others are listed, and its error comes with them.
func TestTablesBesideStrangeKeys(t *testing.T) {
	t.Parallel()
	l, db := kit.Layout{Prefix: "p"}, &keyValues{}
	for _, table := range []string{"a", "m", "z"} {
		_, _, err := l.Apply(db, []rowstore.Mutation{{Table: table, Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, nil)}}}, "")
		require.NoError(t, err)
	}
	for _, strange := range []string{"pr\x00\x01", "prb\x00\x07", "prtheirs", "prz"} {
		db.keys.Set(strange, nil)
		names, err := l.Tables(db)
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
		require.Equal(t, []string{"a", "m", "z"}, names, "%q", strange)
	}
	db.err = errors.New("broken")
	_, err := l.Tables(db)
	require.ErrorIs(t, err, db.err)
}

// A damaged row fails its own mutation, and its own group, alone, whether a condition meets it or an
// edit does, and nothing of it is edited.
func TestDamagedRowFailsAlone(t *testing.T) {
	t.Parallel()
	l := kit.Layout{}
	good := func(row string) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
	}
	for family, bad := range damaging() {
		t.Run(fmt.Sprint(family), func(t *testing.T) {
			t.Parallel()
			db := &keyValues{}
			damage(db, family)
			outs, changed, err := l.Apply(db, []rowstore.Mutation{good("a"), bad, good("z")}, "inc")
			require.NoError(t, err)
			require.True(t, changed)
			require.ErrorIs(t, outs[1].Err, rowstore.ErrCorrupt)
			require.ErrorContains(t, outs[1].Err, `row "bad"`)
			require.False(t, outs[1].Applied)
			require.Equal(t, []rowstore.Outcome{{Applied: true, Incarnation: "inc"}, {Applied: true, Incarnation: "inc"}}, []rowstore.Outcome{outs[0], outs[2]})
			require.Equal(t, 1+2*2, db.keys.Len(), "two rows, each with its key in the index")

			group := func(muts ...rowstore.Mutation) rowstore.Group { return rowstore.Group{Mutations: muts} }
			groups, changed, err := l.Groups(db, []rowstore.Group{group(good("b")), group(good("c"), bad), group(good("d"))}, 0, "inc")
			require.NoError(t, err)
			require.True(t, changed)
			require.ErrorIs(t, groups[1].Err, rowstore.ErrCorrupt)
			require.ErrorContains(t, groups[1].Err, `row "bad"`)
			require.False(t, groups[1].Applied)
			require.True(t, groups[0].Applied)
			require.True(t, groups[2].Applied)
			require.Equal(t, 1+2*4, db.keys.Len())
			_, err = l.Group(db, &rowstore.Group{Mutations: []rowstore.Mutation{good("e"), bad}}, 0, "inc")
			require.ErrorIs(t, err, rowstore.ErrCorrupt)

			_, changed, err = l.Apply(db, []rowstore.Mutation{bad}, "")
			require.NoError(t, err)
			require.False(t, changed)
			_, changed, err = l.Groups(db, []rowstore.Group{group(bad)}, 0, "")
			require.NoError(t, err)
			require.False(t, changed)
		})
	}
	// What the database says fails the call.
	broken := errors.New("broken")
	_, _, err := l.Apply(&keyValues{err: broken}, []rowstore.Mutation{damaging()[rowstore.Write]}, "")
	require.ErrorIs(t, err, broken)
	_, _, err = l.Groups(&keyValues{err: broken}, []rowstore.Group{{Mutations: []rowstore.Mutation{damaging()[rowstore.Lock]}}}, 0, "")
	require.ErrorIs(t, err, broken)
}

// A scan visits the rows before one that is damaged, in any order.
func TestScanUpToADamagedRow(t *testing.T) {
	t.Parallel()
	l := kit.Layout{}
	db := &keyValues{}
	rows := []string{"a", "b", "bad", "c", "d"}
	for _, row := range rows {
		m := rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	damage(db, rowstore.Notify)
	notify := []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
	all := []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}
	before := 0 // how many rows lie before it in the order of slots
	for _, row := range rows {
		if rowstore.Slot("t", row) < rowstore.Slot("t", "bad") {
			before++
		}
	}
	for name, c := range map[string]struct {
		s    rowstore.ScanRange
		want int
	}{
		"rows":     {rowstore.ScanRange{Selectors: append([]rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}, notify...)}, 2},
		"reverse":  {rowstore.ScanRange{Selectors: append([]rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}, notify...), Reverse: true}, 2},
		"notified": {rowstore.ScanRange{Selectors: notify}, 2},
		"slots":    {rowstore.ScanRange{Selectors: notify, Slots: all}, before},
	} {
		for _, look := range []int{1, 2, 3, 100} {
			c.s.Table = "t"
			n, last := 0, error(nil)
			page := func(_ context.Context, s rowstore.ScanRange) ([]rowstore.Row, *rowstore.ScanRange, error) {
				return l.Page(db, s, look)
			}
			for _, err := range kit.Pages(t.Context(), c.s, page) {
				if last = err; err == nil {
					n++
				}
			}
			require.ErrorIs(t, last, rowstore.ErrCorrupt, "%s, %d at a time", name, look)
			require.Equal(t, c.want, n, "%s, %d at a time", name, look)
		}
	}
}

// A key among those of the notified rows that is none of them fails scans that ask for its slot, and no others. In the order of rows it
// fails them at the end.
func TestScanBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	l := kit.Layout{}
	db := &keyValues{}
	rows := []string{"a", "b", "c", "d", "e"}
	for _, row := range rows {
		m := rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
		require.NoError(t, l.Edit(db, &m, 0))
	}
	slices.SortFunc(rows, func(a, b string) int { return int(rowstore.Slot("t", a)) - int(rowstore.Slot("t", b)) })
	at := rowstore.Slot("t", rows[1]) + 1
	require.Less(t, at, rowstore.Slot("t", rows[2]))
	db.keys.Set(string(append(binary.BigEndian.AppendUint16(kit.AppendName([]byte("s"), "t"), at), 0xff)), nil)
	scan := func(look int, slots ...rowstore.SlotRange) (got []string, last error) {
		s := rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}, Slots: slots}
		page := func(_ context.Context, s rowstore.ScanRange) ([]rowstore.Row, *rowstore.ScanRange, error) {
			return l.Page(db, s, look)
		}
		for row, err := range kit.Pages(t.Context(), s, page) {
			if last = err; err == nil {
				got = append(got, row.Row)
			}
		}
		return got, last
	}
	for _, look := range []int{1, 2, 100} {
		got, err := scan(look, rowstore.SlotRange{Last: at - 1})
		require.NoError(t, err)
		require.Equal(t, rows[:2], got)
		got, err = scan(look, rowstore.SlotRange{First: at + 1, Last: rowstore.Slots - 1})
		require.NoError(t, err)
		require.Equal(t, rows[2:], got)
		got, err = scan(look, rowstore.SlotRange{Last: rowstore.Slots - 1})
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
		require.Equal(t, rows[:2], got)
		got, err = scan(look)
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
		require.Equal(t, slices.Sorted(slices.Values(rows)), got)
	}
}
