package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// processes looks for those that go by a catalog of long ago.
func (d *doctor) processes(context.Context) error {
	c := d.cat
	if c == nil {
		return nil
	}
	age := since(c.now, c.revision)
	if len(c.lagging) > 0 && age > Span(d.o.Forgotten) {
		d.risky("process-behind", "see whether these processes live, and end what hangs; percolator gc run forgets those that died",
			"%d of %d processes go by a catalog that was replaced %v ago: they are idle, cut off, or died without closing the database, and new observers wait for each of them",
			len(c.lagging), c.processes, age)
	}
	if c.old > 0 {
		d.risky("program-old", "update them: docs/versions.md says which versions may run beside each other",
			"%d processes run a program that knows no catalog of version %d", c.old, oldestHinted)
	}
	return nil
}

// workers looks at the members of all observers.
func (d *doctor) workers(ctx context.Context) error {
	if d.cat == nil {
		return nil
	}
	members, _, err := d.r.members(ctx, d.cat, "", 1000)
	if err != nil {
		return err
	}
	var shortest, longest Span
	gone := 0
	for i := range members {
		m := &members[i]
		if !m.Alive {
			if -m.Left > Span(d.o.Waiting) {
				gone++
			}
			continue
		}
		if shortest == 0 || m.Lease < shortest {
			shortest = m.Lease
		}
		longest = max(longest, m.Lease)
		var stuck []string
		for _, w := range m.Works {
			if w.Weight == 0 {
				stuck = append(stuck, fmt.Sprintf("%q", w.Observer))
			}
		}
		if len(stuck) > 0 {
			d.wrong("worker-stuck", "see that process's log: its functions hang (give the observers a Timeout), or its looks fail",
				"worker %s cannot begin any run of %s, and has given up its share", m.ID, strings.Join(stuck, ", "))
		}
	}
	if gone > 0 {
		d.risky("worker-gone", "see why they ended without leaving; start a worker, which takes such records away",
			"%d workers have left records behind, and their leases ended more than %v ago: they were killed, and no other worker runs", gone, Span(d.o.Waiting))
	}
	if shortest > 0 && longest > 2*shortest {
		d.risky("worker-leases", "give all workers the same WorkerConfig.MemberLease",
			"the leases of workers last from %v to %v: those with the short ones are taken for dead early, and the share of one with a long one waits", shortest, longest)
	}
	if trip := d.d.RoundTrip; shortest > 0 && trip*leaseTrips > shortest {
		d.wrong("lease-short", "make WorkerConfig.MemberLease longer, for all workers alike, or the round trip shorter",
			"a lease of a worker lasts %v, and a round trip takes %v: the workers take each other for dead", shortest, trip)
	}
	return nil
}

// locks looks for locks that should be gone, in the first rows of each table.
func (d *doctor) locks(ctx context.Context) error {
	if d.cat == nil {
		return nil
	}
	tables, _, failed := d.r.Tables(ctx, false, 0)
	began := time.Now()
	for _, t := range tables {
		if t.Own || t.Empty || time.Since(began) > pageTime {
			continue
		}
		found, err := d.r.Locks(ctx, percolator.Range{Table: string(t.Name)}, d.o.Rows)
		if err != nil {
			return err
		}
		d.locksOf(t, found.Locks)
	}
	return failed
}

func (d *doctor) locksOf(t Table, locks []Lock) {
	dead, late := 0, 0
	var deadest, latest *Lock
	for i := range locks {
		l := &locks[i]
		switch {
		case l.Txn.State == Abandoned && l.Txn.Age > Span(d.o.Waiting):
			if dead++; deadest == nil || l.Txn.Age > deadest.Txn.Age {
				deadest = l
			}
		case l.Txn.State == Committing && l.Txn.Age > t.MaxTxnAge:
			if late++; latest == nil || l.Txn.Age > latest.Txn.Age {
				latest = l
			}
		}
	}
	if dead > 0 {
		whose := "of a process that is gone"
		if s := deadest.Txn.Session; s != "" {
			whose = "of process " + s + ", which is gone"
		}
		d.risky("locks-dead", "nothing has to be done for safety: whoever meets such a lock removes it; percolator gc run removes all",
			"table %v has at least %d locks that dead processes have left, the oldest %v ago, %s (%v)", t.Name, dead, deadest.Txn.Age, whose, deadest.Cell)
	}
	if late > 0 {
		d.wrong("locks-late", "percolator txn shows the transaction, and its process; end that process if it hangs",
			"table %v has at least %d locks of transactions that are older than they may be (%v), the oldest %v (%v): they cannot commit any more", t.Name, late, t.MaxTxnAge, latest.Txn.Age, latest.Cell)
	}
}

// holds looks for those that keep much.
func (d *doctor) holds(context.Context) error {
	if d.cat == nil {
		return nil
	}
	retention := ms(d.cat.current.RetentionMs)
	for _, h := range d.cat.standing() {
		if h.Extra >= retention {
			d.risky("hold-far", fmt.Sprintf("if nobody needs it, end it: percolator holds release %s", h.Name.Word()),
				"the hold %v keeps history for %v longer than the retention of %v, and ends in %v: the data grows until then", h.Name, h.Extra, retention, h.Left)
		}
	}
	return nil
}

// collection looks whether garbage is collected.
func (d *doctor) collection(ctx context.Context) error {
	if d.cat == nil {
		return nil
	}
	g, err := d.r.Collection(ctx, 0)
	if err != nil {
		return err
	}
	const change = "see whether workers run, and what their logs say of collections; without workers call DB.CollectGarbage, or percolator gc run"
	switch {
	case g.SafePoint != 0 && g.HeldBy == "" && g.Behind > g.Retention:
		d.wrong("gc-late", change, "garbage was collected up to %v ago, and the retention is %v: the data grows", g.Age, g.Retention)
	case g.SafePoint == 0 && g.Due > 0:
		if age := since(d.cat.now, g.oldest); age-g.Retention > g.Retention { // twice it may be more than a Span holds
			d.wrong("gc-late", change, "garbage was never collected, and the oldest that is known of has waited for %v; the retention is %v: the data grows", age, g.Retention)
		}
	}
	for _, t := range g.Tables {
		held := g.HeldBy != "" || slices.ContainsFunc(g.Holds, func(h Hold) bool { return h.At <= t.SafePoint })
		if !held && t.behind > t.Retention && t.behind > Span(d.o.Behind) {
			d.wrong("gc-late", change, "garbage of table %v was collected up to %v ago, and its retention is %v: the table grows", t.Name, since(d.cat.now, percolator.Timestamp(t.SafePoint)), t.Retention)
		}
	}
	return nil
}

// observers looks at what waits for whom.
func (d *doctor) observers(ctx context.Context) error {
	if d.cat == nil {
		return nil
	}
	cat, err := d.r.load(ctx)
	if err != nil {
		return err
	}
	list, err := d.r.observers(ctx, cat, min(max(10_000, d.o.Parked+1), mostRows), mostFirst)
	if err != nil {
		return err
	}
	if !d.cat.Cascades && len(list) > 1 {
		d.note("cascades-untracked", "if they may set each other off, percolator cascades track: then a loop ends after 1,000 runs, or as many as MaxHops says",
			"there are %d observers, and cascades are not tracked: a loop of observers that set each other off runs for ever", len(list))
	}
	d.until, d.all = time.Now().Add(pageTime), list
	for i := range list {
		o := &list[i]
		who := fmt.Sprintf("observer %v of %v %v", o.Name, o.Table, o.Column)
		if err := d.observerWaits(ctx, cat, o, who); err != nil {
			return err
		}
		switch {
		case o.Parked >= d.o.Parked:
			d.wrong("parked-many", "docs/runbooks.md, a flood of parked runs, has the steps: mend the function, then percolator parked release",
				"%s has at least %d parked runs: something that all of them need is broken", who, o.Parked)
		case o.Parked > 0:
			d.risky("parked", "percolator parked show says why; then parked release, or parked drop", "%s has %d parked runs, which wait for you", who, o.Parked)
		}
	}
	return nil
}

// startOrRemove is what to do about an observer that nobody runs. A name alone would remove what it has on other columns, too, which
// workers may run.
func (d *doctor) startOrRemove(o *observed) string {
	for i := range d.all {
		if other := &d.all[i]; other != o && other.Name == o.Name {
			return fmt.Sprintf("start a worker that has it; if it is not needed any more, percolator observers remove %s --table %s --column %s, which leaves %v %v, of the same name",
				o.Name.Word(), o.Table.Word(), o.Column.Word(), other.Table, other.Column)
		}
	}
	return fmt.Sprintf("start a worker that has it; if it is not needed any more, percolator observers remove %s", o.Name.Word())
}

// observerWaits looks whether changes wait for an observer for too long.
func (d *doctor) observerWaits(ctx context.Context, cat *catalog, o *observed, who string) error {
	bound := d.o.Behind
	switch {
	case o.Paused:
		bound = d.o.Forgotten
	case o.Workers == 0:
		bound = d.o.Waiting
	}
	if o.Notified == 0 || o.Oldest <= Span(bound) {
		return nil
	}
	waits := fmt.Sprintf("%d changes wait, the oldest for %v", o.Notified, o.Oldest)
	if o.AtLeast {
		waits = "at least " + waits
	}
	if len(cat.observed[[2]string{string(o.of.Table), string(o.of.Column)}]) > 1 {
		ts, looked, told, err := d.waitsLong(ctx, cat, o, Span(bound))
		if err != nil {
			return err
		}
		if ts == 0 {
			if !told {
				d.untold(o, who, waits, looked)
			}
			return nil
		}
		waits += fmt.Sprintf(", for it or for others of the column, and one for it for %v", since(cat.now, ts))
	}
	switch {
	case o.Paused:
		d.risky("observer-paused", fmt.Sprintf("percolator observers resume %s, or observers remove", o.Name.Word()), "%s is paused, perhaps forgotten: %s", who, waits)
	case o.Workers == 0:
		d.wrong("observer-alone", d.startOrRemove(o), "no worker runs %s: %s", who, waits)
	default:
		d.wrong("observer-behind", "docs/runbooks.md, a backlog grows, has the steps: failing runs, too few places, a slow store", "%s is behind, although %d workers run it: %s", who, o.Workers, waits)
	}
	return nil
}
