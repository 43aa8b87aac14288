package admin_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// codes are those of findings, in their order.
func codes(d *admin.Diagnosis) (all []string) {
	for _, f := range d.Findings {
		if f.Grade != admin.Note {
			all = append(all, f.Code)
		}
	}
	return all
}

// TestDoctorBlamesWhoHasNotSeenIt has two observers of one column, of which one is paused. The notifications that wait for it stay, and the other one is not behind for that, but
// for a change that it has not seen itself.
func TestDoctorBlamesWhoHasNotSeenIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unseen bool // a change comes that b does not run for
		works  bool // a worker of b lives
		want   []string
	}{
		"seen, with a worker":      {works: true},
		"seen, without a worker":   {},
		"unseen, with a worker":    {true, true, []string{"observer-behind"}},
		"unseen, without a worker": {unseen: true, want: []string{"observer-alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.observers(fine, "a", "b")
			require.NoError(t, p.db.PauseObserver(t.Context(), "a"))
			for i := range 3 {
				p.set(fmt.Sprint("r", i))
			}
			p.observers(fine, "a", "b") // b runs
			if c.unseen {
				p.set("r1")
			}
			p.later(20 * time.Minute)
			if c.works {
				at := p.draw()
				m := format.Member{From: at, Lease: time.Minute, Works: []format.MemberWork{{Observer: "b", Table: "t", Column: "c", Weight: 1}}}
				p.apply(format.TableMembers, "w", rowstore.Put(rowstore.Lock, format.ColumnMember, at, m.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, at.Add(time.Hour), nil))
			}
			d := p.diagnose()
			require.Equal(t, c.want, codes(&d), "%+v", d.Findings)
			if c.unseen {
				require.Contains(t, d.Findings[0].What, "observer b of t c")
				require.Contains(t, d.Findings[0].What, "one for it for 20m")
			}
		})
	}
}

// TestDoctorLooksBehindWhatOthersWaitFor has more cells whose notifications wait for a paused observer than are looked at first. One that nobody runs waits behind them.
func TestDoctorLooksBehindWhatOthersWaitFor(t *testing.T) {
	t.Parallel()
	for _, before := range []int{15, 16, 300} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, percolator.WithSettings(percolator.Settings{Retention: 1000 * time.Hour}))
			p.observers(fine, "a", "b")
			require.NoError(t, p.db.PauseObserver(t.Context(), "a"))
			p.sets("r", before)
			p.observers(fine, "a", "b") // b runs, and what is left waits for a alone
			p.sets("later", 500)
			p.later(72 * time.Hour)
			d := p.diagnose()
			require.Equal(t, []string{"observer-alone", "observer-paused"}, codes(&d), "%+v", d.Findings)
			require.Contains(t, d.Findings[0].What, "observer b of t c")
			require.Contains(t, d.Findings[0].What, "one for it for 3 days")
		})
	}
}

// TestDoctorSaysWhereItsSearchEnds has more of such cells than doctor looks at. It says that it cannot tell, as a note where workers run the observer.
func TestDoctorSaysWhereItsSearchEnds(t *testing.T) {
	t.Parallel()
	const code = "observer-untold"
	p := newPatient(t, percolator.WithSettings(percolator.Settings{Retention: 1000 * time.Hour}))
	p.opts.Forgotten = 1000 * time.Hour
	p.observers(fine, "a", "b")
	require.NoError(t, p.db.PauseObserver(t.Context(), "a"))
	p.sets("r", 5000)
	p.observers(fine, "a", "b")
	p.later(72 * time.Hour)
	d := p.diagnose()
	require.Equal(t, []string{code}, codes(&d), "%+v", d.Findings)
	require.Contains(t, d.Findings[0].What, "observer b of t c")
	require.Contains(t, d.Findings[0].What, "5000 changes wait")
	require.Regexp(t, `the \d+ that have waited for the longest`, d.Findings[0].What) // 4000, unless the machine is slow

	at := p.draw()
	m := format.Member{From: at, Lease: time.Minute, Works: []format.MemberWork{{Observer: "b", Table: "t", Column: "c", Weight: 1}}}
	p.apply(format.TableMembers, "w", rowstore.Put(rowstore.Lock, format.ColumnMember, at, m.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, at.Add(time.Hour), nil))
	d = p.diagnose()
	require.Empty(t, codes(&d), "%+v", d.Findings)
	require.Condition(t, func() bool {
		return slices.ContainsFunc(d.Findings, func(f admin.Finding) bool { return f.Code == code })
	}, "%+v", d.Findings)
}

// TestDoctorSparesTheNamesake has an observer that has moved to another column under its name, and works there. Nobody runs what is left of
// it: to remove that would remove the other too.
func TestDoctorSparesTheNamesake(t *testing.T) {
	t.Parallel()
	for name, works := range map[string]bool{"it works": true, "nobody runs it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.observed(fine)
			p.recatalog(func(c *format.Catalog) {
				moved := c.Observers[0]
				moved.Column, moved.Since = []byte("d"), moved.Since+1
				c.Observers = append(c.Observers, moved)
			})
			p.set("r")
			p.later(20 * time.Minute)
			if works {
				at := p.draw()
				m := format.Member{From: at, Lease: time.Minute, Works: []format.MemberWork{{Observer: "o", Table: "t", Column: "d", Weight: 1}}}
				p.apply(format.TableMembers, "w", rowstore.Put(rowstore.Lock, format.ColumnMember, at, m.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, at.Add(time.Hour), nil))
			}
			d := p.diagnose()
			require.Equal(t, []string{"observer-alone"}, codes(&d), "%+v", d.Findings)
			require.Contains(t, d.Findings[0].What, "observer o of t c")
			require.Contains(t, d.Findings[0].Change, "percolator observers remove o --table t --column c, which leaves t d")
		})
	}
}
