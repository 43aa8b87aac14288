package percolator

import (
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a collection keeps for observers of old values. For each acknowledgment, the newest version
// at or below it is what the observer saw last. When that version leaves its column, it goes to a
// column of the observer's in the same row, in the same mutation. So reads of the column itself need
// not know of it. See "Old values" in docs/architecture.md.

// acknowledgment is the newest one of an observer of old values for a column of a row.
type acknowledgment struct {
	column   string // that it stands in
	acked    Timestamp
	ackedAt  Timestamp // when it was committed
	observer string
}

// seenVersion is what an observer saw last.
type seenVersion struct {
	acknowledgment
	keptIn  string // see format.SeenColumn
	version *rowstore.Version
}

// acknowledgments lists those that count for a column of a row. A nil view knows of none.
func (v *catalogView) acknowledgments(row *rowstore.Row, table, column string) ([]acknowledgment, error) {
	if v == nil {
		return nil, nil
	}
	known := v.registrations(table, column)
	var all []acknowledgment
	for i, name := range known.names {
		if !known.old[i] {
			continue
		}
		own := format.AckColumn(name, column)
		acked, err := acknowledged(row, own, known.since[i])
		if err != nil {
			return nil, err
		}
		if acked > 0 {
			all = append(all, acknowledgment{column: own, acked: acked, ackedAt: row.Newest(rowstore.Write, own).TS, observer: name})
		}
	}
	return all, nil
}

// lastSeen finds what observers saw last among some versions of a column that follow each other,
// newest first. above is the timestamp of the next newer version, or more if there is none.
func lastSeen(acks []acknowledgment, column string, above Timestamp, versions []rowstore.Version) []seenVersion {
	var seen []seenVersion
	for _, a := range acks {
		if a.acked >= above {
			continue
		}
		if i := slices.IndexFunc(versions, func(v rowstore.Version) bool { return v.TS <= a.acked }); i >= 0 {
			seen = append(seen, seenVersion{a, format.SeenColumn(a.observer, column), &versions[i]})
		}
	}
	return seen
}

// keep keeps versions, which the removal takes from their column, for those who saw them last. Nothing
// is kept of a delete, and then nothing older may be left (deletes). The condition is that an observer has
// acknowledged nothing else: then it has seen a version that is not removed yet.
func (r *removal) keep(seen []seenVersion, deletes bool) error {
	for _, s := range seen {
		w, err := format.DecodeWrite(s.version.Value)
		if err != nil {
			return err
		}
		r.conditions = append(r.conditions, rowstore.Absent(rowstore.Write, s.column, s.ackedAt+1))
		switch {
		case w.Kind == format.KindPut:
			r.edits = append(r.edits, rowstore.Put(rowstore.Write, s.keptIn, s.version.TS, s.version.Value))
		case deletes:
			r.edits = append(r.edits, rowstore.DeleteRange(rowstore.Write, s.keptIn, 0, s.version.TS))
		}
	}
	return nil
}

// keeps tells whether a version is among those that are kept.
func keeps(seen []seenVersion, v *rowstore.Version) bool {
	return slices.ContainsFunc(seen, func(s seenVersion) bool { return s.version.TS == v.TS })
}

// dropSeen removes what was kept of a column for observers that have seen something else since, or
// that have gone. seen is what those that are left saw last, as far as the row shows it.
func (g *gcRow) dropSeen(column string, acks []acknowledgment, seen []seenVersion) error {
	var gone []rowstore.Version
	needed := map[Timestamp]bool{} // the starts of versions whose long values stay
	for _, w := range g.row.All(rowstore.Write, column) {
		if wv, err := format.DecodeWrite(w.Value); err == nil {
			needed[wv.Start] = true
		}
	}
	for _, s := range g.keptIn[column] {
		versions := g.row.All(rowstore.Write, s)
		below := g.neededFrom(s, versions, acks, seen)
		n := slices.IndexFunc(versions, func(v rowstore.Version) bool { return v.TS < below })
		if n < 0 {
			n = len(versions)
		} else {
			gone = append(gone, versions[n:]...)
			g.m.edits = append(g.m.edits, rowstore.DeleteRange(rowstore.Write, s, 0, versions[n].TS))
		}
		for i := range versions[:n] {
			wv, err := format.DecodeWrite(versions[i].Value)
			if err != nil {
				return err
			}
			needed[wv.Start] = true
		}
	}
	g.m.versions += len(gone)
	for i := range gone {
		if wv, err := format.DecodeWrite(gone[i].Value); err == nil && !needed[wv.Start] {
			needed[wv.Start] = true // two observers may have kept it
			g.m.dataOf(column, &gone[i])
		}
	}
	return nil
}

// neededFrom is the timestamp below which nothing is needed of what a column keeps for an observer.
func (g *gcRow) neededFrom(keptIn string, versions []rowstore.Version, acks []acknowledgment, seen []seenVersion) Timestamp {
	observer, column, _ := format.SplitSeenColumn(keptIn)
	all := versions[0].TS + 1
	if i := slices.IndexFunc(acks, func(a acknowledgment) bool { return a.observer == observer }); i >= 0 && !g.gone[acks[i].column] {
		from := Timestamp(0)
		if s := slices.IndexFunc(seen, func(s seenVersion) bool { return s.observer == observer }); s >= 0 {
			from = seen[s].version.TS
		}
		if k := slices.IndexFunc(versions, func(v rowstore.Version) bool { return v.TS <= acks[i].acked }); k >= 0 {
			from = max(from, versions[k].TS)
		}
		return from
	}
	ack := format.AckColumn(observer, column)
	newest := g.row.Newest(rowstore.Write, ack)
	if newest == nil || g.gone[ack] {
		return all
	}
	// The observer was removed, or registered again later. If it may be registered again by now, what
	// it has acknowledged since lies above the safe point.
	acked, err := acknowledged(g.row, ack, 0)
	if err != nil || acked >= g.safe || g.row.Newest(rowstore.Lock, ack) != nil {
		g.later = true
		return 0
	}
	g.m.conditions = append(g.m.conditions, g.unchanged(ack)...)
	return all
}
