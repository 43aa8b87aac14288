package percolator

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How far collections have come (format.Collected). A collection publishes its safe points first, then it waits a catalog lease, and only then it removes
// something. A worker that lives for less than that ends in between. So the catalog's row says up to where collections have come to their ends, and from when on everybody
// goes by what was published: another worker goes on from there. The rules:
//
//   - A lease counts from a timestamp that was drawn after the safe points were read. It counts for later collections only as long as the catalog's row shows these
//     very safe points, in the same revision of the catalog: so each view from before has ended, whoever has it.
//   - Only a worker goes on with what another one has published, and only a few times: then there is more to collect.
//   - While one is at a collection, the others leave it alone: until a lease after the wait, and then for as long as between two collections.

// progress is how far collections are, as the catalog's row shows it.
type progress struct {
	collected   format.Collected
	collectedAt Timestamp // its version, 0 for none
}

// gcTries is how many collections go on with what one has published.
const gcTries = 3

// newestOf is the publication that collections of this kind go on with.
func newestOf(c *format.Collected, short bool) *format.Publication {
	if short {
		return &c.Short
	}
	return &c.Whole
}

// published tells whether it is known from when on everybody goes by the safe points of the view: by that of the database, and for the short tables also by
// their own.
func (v *catalogView) published(short bool) bool {
	p := newestOf(&v.collected, short)
	return p.Until != 0 && p.SafePoint == v.safePoint && p.Revision == v.revision && (!short || p.Points == v.pointsAt)
}

// unfinished tells that a collection of all tables has published the safe point of the view, and has not come to its end.
func (v *catalogView) unfinished() bool {
	return v.published(false) && v.collected.All < v.safePoint
}

// unfinishedIn is unfinished for a table with a short retention.
func (v *catalogView) unfinishedIn(table string) bool {
	return v.published(true) && v.collected.Of(table) < v.safePointOf(table)
}

// resumes tells whether the collection goes on with what an earlier one has published.
func (p *gcPass) resumes(v *catalogView) bool {
	published := newestOf(&v.collected, p.within > 0)
	if !p.goesOn || published.Tries >= gcTries {
		return false
	}
	if p.within > 0 {
		for t := range v.shortTables(p.within) {
			if v.unfinishedIn(t) {
				return true
			}
		}
		return false
	}
	for t := range v.shortTables(0) {
		// A collection that has not waited for it cleans no table.
		if !v.clean(t) && v.cleanIn(t) <= 0 && (published.Points != v.pointsAt || published.Cleans < v.sinceOf(t)) {
			return false
		}
	}
	return v.unfinished()
}

// resume takes what an earlier collection has published for its own.
func (p *gcPass) resume(v *catalogView) {
	published := newestOf(&v.collected, p.within > 0)
	p.view, p.resumed, p.tries, p.own = v, true, published.Tries+1, map[string]Timestamp{}
	if p.within == 0 {
		p.rest = v.safePoint
	}
	if published.Points != v.pointsAt {
		return // the tables are collected by the safe point of the database
	}
	for t := range v.shortTables(p.within) {
		switch {
		case v.clean(t):
			p.own[t] = v.safePointOf(t)
		case p.within == 0 && v.sinceOf(t) <= published.Cleans:
			p.own[t], p.cleans = v.safePointOf(t), max(p.cleans, v.sinceOf(t))
		}
	}
}

// sinceOf is the time when the retention of a table was last shortened.
func (v *catalogView) sinceOf(table string) Timestamp { return v.stored(v.asOf).Of(table).Since }

// outlast waits until everybody goes by the safe points that were published.
func (p *gcPass) outlast(ctx context.Context) error {
	v, err := p.db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	// The safe points were read before this view was begun.
	_, lease := v.widest()
	until := v.asOf.Add(lease)
	if p.resumed {
		until = min(until, newestOf(&p.view.collected, p.within > 0).Until)
	}
	if v.asOf < until {
		if err := p.note(ctx, until, until.Add(lease)); err != nil {
			return err
		}
	}
	now, err := p.db.waitUntil(ctx, v.asOf, until)
	if err != nil {
		return err
	}
	retention := p.within
	if retention == 0 {
		retention = p.view.at(p.view.asOf).Retention
	}
	return p.note(ctx, until, now.Add(gcInterval(retention)))
}

// note stores that the safe points of the view are published, until when somebody may not know them, and until when others leave the collection alone.
func (p *gcPass) note(ctx context.Context, until, left Timestamp) error {
	return p.db.changeCollected(ctx, func(_ *catalogView, c *format.Collected) bool {
		v := p.view
		next := format.Publication{SafePoint: v.safePoint, Points: v.pointsAt, Revision: v.revision, Cleans: p.cleans, Until: until, Left: left, Tries: p.tries}
		if p.resumed {
			// The wait was for those that were published then. Safe points of tables that are newer may be unknown to some for longer.
			then := newestOf(&v.collected, p.within > 0)
			next.Points, next.Cleans = then.Points, then.Cleans
		}
		of := newestOf(c, p.within > 0)
		if of.SafePoint > next.SafePoint || of.Points > next.Points || *of == next {
			return false // another collection has published since
		}
		*of = next
		return true
	})
}

// collected notes that what could be removed was removed in all tables that the collection has looked at.
func (p *gcPass) collected(ctx context.Context) error {
	return p.db.changeCollected(ctx, func(v *catalogView, c *format.Collected) bool {
		before, changed := c.All, false
		c.All = max(c.All, p.rest)
		for t, safe := range p.own {
			if safe > c.Of(t) {
				c.Tables = slices.DeleteFunc(c.Tables, func(o format.CollectedTable) bool { return string(o.Name) == t })
				c.Tables, changed = append(c.Tables, format.CollectedTable{Name: []byte(t), Collected: safe}), true
			}
		}
		// What says no more than what holds for all goes.
		c.Tables = slices.DeleteFunc(c.Tables, func(o format.CollectedTable) bool { return o.Collected <= c.All })
		slices.SortFunc(c.Tables, func(a, b format.CollectedTable) int { return bytes.Compare(a.Name, b.Name) })
		return changed || c.All > before
	})
}

// changeCollected lets change edit how far collections are, and stores it. change returns false to leave it as it is.
func (db *DB) changeCollected(ctx context.Context, change func(v *catalogView, c *format.Collected) bool) error {
	_, err := db.replaceInCatalog(ctx, func(v *catalogView) (*replacement, error) {
		c := v.collected
		c.Tables = slices.Clone(c.Tables)
		if !change(v, &c) {
			return nil, nil //nolint:nilnil // there is nothing to store
		}
		value, err := c.Encode()
		return &replacement{
			column: format.ColumnCollected, at: v.collectedAt, value: value,
			conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, format.ColumnCollected, v.collectedAt+1)},
		}, err
	})
	if err != nil {
		return fmt.Errorf("storing how far the collection is: %w", err)
	}
	return nil
}

// readCollected decodes how far collections are, where that is stored.
func (v *catalogView) readCollected(stored *rowstore.Version) (err error) {
	if stored == nil {
		return nil
	}
	v.collectedAt = stored.TS
	v.collected, err = format.DecodeCollected(stored.Value)
	return err
}
