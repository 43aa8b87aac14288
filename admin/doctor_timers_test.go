package admin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func (p *patient) timer(row string, after time.Duration) {
	p.Helper()
	require.NoError(p, p.db.Update(p.Context(), func(tx *percolator.Txn) error { return tx.NotifyAfter(p.Context(), cell(row), after) }))
}

// TestDoctorOfCancelledTimers has timers that were cancelled, whose entries of the index stay until a worker finds them due. They are not overdue, and one behind them is.
func TestDoctorOfCancelledTimers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits bool
		want  []string
	}{"alone": {}, "before another": {true, []string{"timer-overdue"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.observed(fine)
			for _, row := range []string{"a", "b"} {
				p.timer(row, time.Hour)
				require.NoError(t, p.db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.CancelNotify(cell(row)) }))
			}
			if c.waits {
				p.timer("waits", 90*time.Minute)
			}
			p.later(2 * time.Hour)
			d := p.diagnose()
			require.Equal(t, c.want, codes(&d), "%+v", d.Findings)
			if c.waits {
				require.Contains(t, d.Findings[0].What, "due for 30m0s")
				require.Contains(t, d.Findings[0].What, "(t waits c)")
			}
		})
	}
}

// cancelled sets n timers that are due after some time, and cancels them.
func (p *patient) cancelled(n int, after time.Duration) {
	p.Helper()
	for _, cancel := range []bool{false, true} {
		for from := 0; from < n; from += 100 {
			require.NoError(p, p.db.Update(p.Context(), func(tx *percolator.Txn) (err error) {
				for i := from; i < min(from+100, n) && err == nil; i++ {
					c := cell(fmt.Sprint("cancelled", i))
					if cancel {
						err = tx.CancelNotify(c)
					} else {
						err = tx.NotifyAfter(p.Context(), c, after)
					}
				}
				return err
			}))
		}
	}
}

// TestDoctorLooksBehindCancelledTimers has more cancelled timers than are looked at first, and an overdue one behind them.
func TestDoctorLooksBehindCancelledTimers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{99, 100, 1234} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.observed(fine)
			p.cancelled(n, time.Hour)
			p.timer("waits", 90*time.Minute)
			p.later(48 * time.Hour)
			d := p.diagnose()
			require.Equal(t, []string{"timer-overdue"}, codes(&d), "%+v", d.Findings)
			require.Contains(t, d.Findings[0].What, "(t waits c)")
		})
	}
}

// TestDoctorSaysWhereItsSearchOfTimersEnds has more of them than doctor looks at. It says that it cannot tell, and that nobody has dropped them. Those that are not due yet tell nothing.
func TestDoctorSaysWhereItsSearchOfTimersEnds(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.observed(fine)
	p.cancelled(4500, time.Hour)
	p.later(30 * time.Minute)
	d := p.diagnose()
	require.Empty(t, codes(&d), "%+v", d.Findings)
	p.ahead.Add(int64(47 * time.Hour))
	d = p.diagnose()
	require.Equal(t, []string{"timers-untold"}, codes(&d), "%+v", d.Findings)
	require.Contains(t, d.Findings[0].What, "no worker has dropped")
	require.Contains(t, d.Findings[0].What, "table t")
}

// TestTimersThatCannotBeRead damages what timers rest on: entries of the index, one of them in its name, and the timer of a cell. They are listed as what they are among the others,
// and doctor says so, and looks at those of other tables.
func TestTimersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.observed(fine)
	for _, row := range []string{"fine", "damaged"} {
		p.timer(row, time.Hour)
	}
	at := p.draw()
	garbage := format.Write{Kind: format.KindPut, Start: at - 1, Value: []byte("garbage")}
	p.apply("t", "damaged", rowstore.Put(rowstore.Write, format.TimerColumn("c"), at, garbage.Encode()))
	index := format.TimersTable("t")
	p.apply(index, format.TimerRow(3, at.Add(2*time.Hour), at, 0), rowstore.Put(rowstore.Write, format.ColumnTimer, at, []byte("garbage")))
	p.apply(index, "\x03short", rowstore.Put(rowstore.Write, format.ColumnTimer, at, []byte("garbage")))

	r, err := admin.New(&unwritten{p.store, t})
	require.NoError(t, err)
	for _, limit := range []int{1, 2, 100} {
		unreadable, others := 0, 0
		pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Timer, admin.Bytes, error) {
			return r.Timers(t.Context(), "t", from, limit)
		}, func(timer admin.Timer) string {
			require.Equal(t, timer.Unreadable, timer.Error != "")
			if timer.Unreadable {
				unreadable++
				require.False(t, timer.Stale)
			} else {
				others++
				require.Equal(t, admin.CellOf(cell("fine")), timer.Cell)
			}
			return timer.Error + timer.Cell.String()
		})
		require.Equal(t, 3, unreadable)
		require.Equal(t, 1, others)
	}
	d := p.diagnose()
	require.Equal(t, []string{"timer-unreadable"}, codes(&d), "%+v", d.Findings)
	require.Contains(t, d.Findings[0].What, "3 of the first timers of table t cannot be read")
	require.NotContains(t, d.Findings[0].Change, "restore")
	p.later(2 * time.Hour)
	d = p.diagnose()
	require.Equal(t, []string{"timer-overdue", "timer-unreadable"}, codes(&d), "%+v", d.Findings)
}
