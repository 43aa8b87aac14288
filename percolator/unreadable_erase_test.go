package percolator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// garble overwrites what is stored in one column of a row, and returns what puts it back.
func (w *world) garble(table, name, column string) (mend func()) {
	w.t.Helper()
	read, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{{Table: table, Row: name, Selectors: []rowstore.Selector{
		everything(rowstore.Write, column), everything(rowstore.Data, column),
	}}})
	require.NoError(w.t, err)
	var bad, good []rowstore.Edit
	for _, v := range read[0].Versions {
		bad, good = append(bad, rowstore.Put(v.Family, column, v.TS, []byte("\x01x"))), append(good, rowstore.Put(v.Family, column, v.TS, v.Value))
	}
	require.NotEmpty(w.t, bad)
	apply := func(edits []rowstore.Edit) {
		outs, err := w.mem.Apply(w.t.Context(), []rowstore.Mutation{{Table: table, Row: name, Edits: edits}}, rowstore.ApplyOptions{})
		require.NoError(w.t, err)
		require.NoError(w.t, outs[0].Err)
	}
	apply(bad)
	return func() { apply(good) }
}

// rowsOf are the names of the rows of a table.
func (w *world) rowsOf(table string) (names []string) {
	w.t.Helper()
	for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: table, Selectors: newestPicks}) {
		require.NoError(w.t, err)
		names = append(names, row.Row)
	}
	return names
}

// An erasure is not done while a row of the index of timers, or the record of a parked run, does not say whether it is of the range. Its error names the row.
func TestErasurePassesNoRecordThatDoesNotDecode(t *testing.T) {
	t.Parallel()
	long := row("ann/" + strings.Repeat("x", 300)) // the name of its parked run's record is a hash
	for _, table := range []string{format.TimersTable("t"), format.TableParked} {
		for _, reads := range []bool{false, true} {
			t.Run(fmt.Sprintf("%q, the store can read it: %v", table, reads), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.erasing()
				s, c, _ := w.damageable(ErrCorrupt)
				o := newTold(t, c, "o", "t")
				set(t, c.DB, long, "1")
				o.fail = errTest // parked after two
				for range 3 {
					look(t, o.w, long)
					w.pass(time.Minute)
				}
				require.Len(t, w.rowsOf(format.TableParked), 1)
				o.fail = nil
				set(t, c.DB, long, "2")
				look(t, o.w, long)
				w.timer(c, long, time.Hour)
				names := w.rowsOf(table)
				require.Len(t, names, 1)
				mend := s.mend
				if reads {
					mend = w.garble(table, names[0], map[string]string{format.TimersTable("t"): format.ColumnTimer, format.TableParked: format.ColumnParked}[table])
				} else {
					s.damage(names[0])
				}
				_, err := w.erase(c, func() { sees(o.w, long) })
				require.ErrorIs(t, err, ErrCorrupt)
				require.ErrorContains(t, err, fmt.Sprintf("%q", names[0]))
				require.ErrorContains(t, err, fmt.Sprintf("%q", table))
				require.Len(t, w.rowsOf(table), 1)
				mend()
				_, err = w.erase(c, func() { sees(o.w, long) })
				require.NoError(t, err)
				require.Empty(t, w.traces("ann/"))
				require.Empty(t, w.rowsOf(table))
			})
		}
	}
}
