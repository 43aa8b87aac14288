package percolator

import (
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The rules of a collection for one row: what is garbage.

// gcRow is what a scan shows of a row.
type gcRow struct {
	row    *rowstore.Row
	table  string
	safe   Timestamp
	view   *catalogView             // names the observers of old values
	deep   map[string][]seenVersion // those of deep columns that the scan did not show
	keptIn map[string][]string      // the columns that keep versions of a column
	own    map[ownOf][]string       // those that kept lists, nil before it was asked
	m      removal
	gone   map[string]bool // columns of acknowledgments and failure records that are removed as a whole
	// later tells that something is kept which may be garbage for a later collection, though nobody
	// changes the row again.
	later bool
}

// column removes from one column: the versions below the newest one at or below the
// safe point, with their data; that newest one too, if it is a delete that no observer
// still has to see; marks below the safe point; and data that belongs to no version. What an
// observer of old values saw last is kept elsewhere (gc_seen.go).
func (g *gcRow) column(column string) error {
	if _, _, ok := format.SplitSeenColumn(column); ok {
		return nil // goes with the column that it is of
	}
	writes := g.row.All(rowstore.Write, column)
	if g.gone[column] {
		writes = nil
	}
	acks, err := g.view.acknowledgments(g.row, g.table, column)
	if err != nil {
		return err
	}
	n, edits := 0, len(g.m.edits)
	for n < len(writes) && writes[n].TS > g.safe {
		n++
	}
	keep, drop := writes[:n], writes[n:]
	known := make(map[Timestamp]bool, len(writes)) // the starts of the versions, kept or not
	for i := range writes {
		w, err := format.DecodeWrite(writes[i].Value)
		if err == nil {
			known[w.Start] = true
		} else if i <= len(keep) {
			return err
		}
	}
	for _, own := range g.keptIn[column] {
		for _, v := range g.row.All(rowstore.Write, own) {
			w, err := format.DecodeWrite(v.Value)
			if err != nil {
				return err
			}
			known[w.Start] = true
		}
	}
	g.orphans(column, len(keep), drop, known)
	if len(drop) > 0 {
		newest, err := format.DecodeWrite(drop[0].Value)
		if err != nil {
			return err
		}
		if newest.Kind == format.KindDelete && g.seen(column) {
			g.forget(column)
		} else {
			g.later = g.later || newest.Kind == format.KindDelete
			drop = drop[1:]
		}
	}
	if err := g.drop(column, acks, drop); err != nil {
		return err
	}
	g.below(column, g.m.edits[edits:])
	if marks := g.row.All(rowstore.Mark, column); len(marks) > 0 {
		g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Mark, column, 0, g.safe-1))
		g.m.versions += len(marks)
	}
	return nil
}

// drop removes versions of a column, and keeps what observers of old values saw last.
func (g *gcRow) drop(column string, acks []acknowledgment, drop []rowstore.Version) error {
	seen := append(lastSeen(acks, column, oracle.Max, g.row.All(rowstore.Write, column)), g.deep[column]...)
	if err := g.dropSeen(column, acks, seen); err != nil || len(drop) == 0 {
		return err
	}
	seen = slices.DeleteFunc(seen, func(s seenVersion) bool { return s.version.TS > drop[0].TS || g.gone[s.column] })
	if err := g.m.keep(seen, false); err != nil {
		return err
	}
	// One range, since nothing can be written at or below the safe point.
	g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Write, column, 0, drop[0].TS))
	g.m.versions += len(drop)
	for i := range drop {
		if !keeps(seen, &drop[i]) {
			g.m.dataOf(column, &drop[i])
		}
	}
	return nil
}

// orphans removes data that belongs to no version: what a rolled back prewrite left. Of
// the versions above the safe point, only the oldest may have begun below it. If the
// column has more versions above than the scan showed, that oldest one is not known,
// and the column waits for a later collection. Data below the oldest version that was
// shown belongs to a deep column. That of its versions is already gone; whether there is other data, a later
// collection shows, which finds fewer versions.
func (g *gcRow) orphans(column string, above int, below []rowstore.Version, known map[Timestamp]bool) {
	data := g.row.All(rowstore.Data, column)
	if above == gcShallow {
		g.later = g.later || len(data) > 0
		return
	}
	oldest := Timestamp(0)
	if len(below) == gcShallow {
		oldest = below[len(below)-1].TS
	}
	for _, d := range data {
		if known[d.TS] {
			continue
		}
		g.later = true // there may be more below, and a lock may be rolled back
		if d.TS < oldest {
			continue
		}
		if g.row.At(rowstore.Lock, column, d.TS) != nil {
			continue
		}
		// A late prewrite may put its lock back; then the data is not garbage.
		g.m.conditions = append(g.m.conditions, rowstore.AbsentAt(column, d.TS))
		g.m.edits = append(g.m.edits, rowstore.Delete(rowstore.Data, column, d.TS))
		g.m.versions++
	}
}

// below notes that there may be data below what the scan showed, which a later collection sees, as what is removed of it is gone by then.
func (g *gcRow) below(column string, removed []rowstore.Edit) {
	data := g.row.All(rowstore.Data, column)
	if len(data) < gcLong {
		return
	}
	g.later = g.later || slices.ContainsFunc(removed, func(e rowstore.Edit) bool {
		return e.Kind == rowstore.DoDelete && e.Family == rowstore.Data && slices.ContainsFunc(data, func(d rowstore.Version) bool { return d.TS == e.TS })
	})
}

// seen reports whether a delete of column has nothing left to tell any observer. If so,
// it makes that a condition of the removal.
func (g *gcRow) seen(column string) bool {
	if len(g.row.All(rowstore.Notify, column)) > 0 {
		return false
	}
	conds := []rowstore.Condition{rowstore.Absent(rowstore.Notify, column, 0)}
	for _, own := range g.kept(column, format.PrefixFailure) {
		if !g.deleted(own) && !g.moot(own) {
			return false
		}
		conds = append(conds, g.unchanged(own)...)
	}
	if g.row.Newest(rowstore.Write, column).TS <= g.safe {
		// An acknowledgment goes with the delete that it is of. Left alone, it would stay for
		// ever: so the delete waits for an acknowledgment that cannot go yet.
		for _, ack := range g.kept(column, format.PrefixAck) {
			if g.row.Newest(rowstore.Write, ack).TS > g.safe || g.row.Newest(rowstore.Lock, ack) != nil {
				return false
			}
		}
	}
	g.m.conditions = append(g.m.conditions, conds...)
	return true
}

// moot tells whether a failure record says nothing to anybody any more: it is from before its observer was registered, or for what the
// observer has seen since. That of a parked run stays until the run is dropped.
func (g *gcRow) moot(own string) bool {
	newest := g.row.Newest(rowstore.Write, own)
	if g.view == nil || newest.TS > g.safe {
		return false
	}
	_, observer, of, _ := format.SplitOwnColumn(own)
	known := g.view.registrations(g.table, of)
	since := known.sinceOf(observer)
	f, _, err := failureIn(g.row, own, since)
	switch {
	case err != nil, f.Parked:
		return false
	case !slices.Contains(known.names, observer):
		// If a newer catalog has it again, what it has recorded since lies above the safe point: see neededFrom.
		return true
	}
	acked, err := acknowledged(g.row, format.AckColumn(observer, of), since)
	return err == nil && acked >= f.Change && !f.Replay
}

// forget removes the acknowledgments of a deleted column together with it, and the failure records
// that are moot, if they are not above the safe point and the column has no newer version. With neither
// a change nor an acknowledgment left, nothing runs.
func (g *gcRow) forget(column string) {
	if w := g.row.Newest(rowstore.Write, column); w.TS > g.safe || g.row.Newest(rowstore.Lock, column) != nil {
		return
	}
	owns := slices.Clone(g.kept(column, format.PrefixAck))
	for _, own := range g.kept(column, format.PrefixFailure) {
		if !g.deleted(own) {
			owns = append(owns, own)
		}
	}
	for _, own := range owns {
		w := g.row.Newest(rowstore.Write, own)
		if w == nil || w.TS > g.safe || g.row.Newest(rowstore.Lock, own) != nil {
			continue
		}
		g.m.conditions = append(g.m.conditions, rowstore.Absent(rowstore.Write, column, g.safe+1), rowstore.Absent(rowstore.Lock, column, 0))
		g.m.conditions = append(g.m.conditions, g.unchanged(own)...)
		g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Write, own, 0, w.TS))
		g.m.versions += len(g.row.All(rowstore.Write, own))
		if g.gone == nil {
			g.gone = map[string]bool{}
		}
		g.gone[own] = true
	}
}

// ownOf names the columns of a kind that observers keep beside a column.
type ownOf struct{ prefix, column string }

// kept lists the columns that observers keep beside column. It is asked about each deleted column, and a row may have thousands: so it goes
// through the versions of the row once for all.
func (g *gcRow) kept(column, prefix string) []string {
	if g.own == nil {
		g.own = map[ownOf][]string{}
		for i := range g.row.Versions {
			v := &g.row.Versions[i]
			if v.Family != rowstore.Write || i > 0 && g.row.Versions[i-1].Family == rowstore.Write && g.row.Versions[i-1].Column == v.Column {
				continue
			}
			if p, _, of, ok := format.SplitOwnColumn(v.Column); ok {
				g.own[ownOf{p, of}] = append(g.own[ownOf{p, of}], v.Column)
			}
		}
	}
	return g.own[ownOf{prefix, column}]
}

func (g *gcRow) deleted(column string) bool {
	w, err := format.DecodeWrite(g.row.Newest(rowstore.Write, column).Value)
	return err == nil && w.Kind == format.KindDelete
}

// unchanged requires that a column stays as the view showed it.
func (g *gcRow) unchanged(column string) []rowstore.Condition {
	return []rowstore.Condition{
		rowstore.Absent(rowstore.Write, column, g.row.Newest(rowstore.Write, column).TS+1),
		rowstore.Absent(rowstore.Lock, column, 0),
	}
}
