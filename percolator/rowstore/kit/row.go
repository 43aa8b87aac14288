package kit

import (
	"bytes"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Newest returns the newest version of a family and column with a timestamp from one to
// another, both included, or nil. versions are a row's, in the order of
// rowstore.CompareVersions; the pointer is into them. It takes as long as a binary search.
func Newest(versions []rowstore.Version, family rowstore.Family, column string, from, to rowstore.Timestamp) *rowstore.Version {
	i, _ := slices.BinarySearchFunc(versions, rowstore.Version{Family: family, Column: column, TS: to}, rowstore.CompareVersions)
	if i < len(versions) {
		if v := &versions[i]; v.Family == family && v.Column == column && v.TS >= from && v.TS <= to {
			return v
		}
	}
	return nil
}

// Select returns copies of the versions that any of the picks selects, each once and in
// order: the answer to a rowstore.RowRead. versions are a row's, in the order of
// rowstore.CompareVersions. The result is nil where nothing matches.
func Select(versions []rowstore.Version, picks []rowstore.Selector) []rowstore.Version {
	var chosen []int
	for _, p := range picks {
		if p.Column != rowstore.AllColumns {
			chosen = choose(chosen, versions, p, p.Column)
			continue
		}
		// No column sorts before "", so this is where the family begins.
		i, _ := slices.BinarySearchFunc(versions, rowstore.Version{Family: p.Family, TS: oracle.Max}, rowstore.CompareVersions)
		for i < len(versions) && versions[i].Family == p.Family {
			column := versions[i].Column
			chosen = choose(chosen, versions, p, column)
			// The lowest timestamp is 1, so the next column begins where 0 would stand.
			i, _ = slices.BinarySearchFunc(versions, rowstore.Version{Family: p.Family, Column: column}, rowstore.CompareVersions)
		}
	}
	if len(picks) > 1 {
		slices.Sort(chosen)
		chosen = slices.Compact(chosen)
	}
	if len(chosen) == 0 {
		return nil
	}
	out := make([]rowstore.Version, len(chosen))
	for i, c := range chosen {
		out[i] = versions[c]
		out[i].Value = bytes.Clone(out[i].Value)
	}
	return out
}

func choose(chosen []int, versions []rowstore.Version, p rowstore.Selector, column string) []int {
	i, _ := slices.BinarySearchFunc(versions, rowstore.Version{Family: p.Family, Column: column, TS: p.To}, rowstore.CompareVersions)
	for n := 0; i < len(versions) && (p.Limit == 0 || n < p.Limit); i, n = i+1, n+1 {
		v := &versions[i]
		if v.Family != p.Family || v.Column != column || v.TS < p.From {
			break
		}
		chosen = append(chosen, i)
	}
	return chosen
}

// Edited returns a row as it is after the edits of a mutation that was judged: versions,
// which are in the order of rowstore.CompareVersions and stay as they are, without those
// that the edits remove, and with copies of those that they put. assigned takes the place
// of rowstore.AssignedTimestamp. It takes time in proportion to the row, however many edits
// there are.
func Edited(versions []rowstore.Version, edits []rowstore.Edit, assigned rowstore.Timestamp) []rowstore.Version {
	var puts []rowstore.Version
	var gone []span
	for _, e := range edits {
		if e.TS == rowstore.AssignedTimestamp {
			e.TS = assigned
		}
		from, to := e.TS, e.TS
		switch e.Kind {
		case rowstore.DoPut:
			if e.Family == rowstore.Mark {
				if mark := Newest(versions, rowstore.Mark, e.Column, 0, oracle.Max); mark != nil && mark.TS > e.TS {
					continue
				}
				from = 0
			}
			v := rowstore.Version{Family: e.Family, Column: e.Column, TS: e.TS}
			if len(e.Value) > 0 {
				v.Value = bytes.Clone(e.Value)
			}
			puts = append(puts, v)
		case rowstore.DoDeleteRange:
			to = e.To
		}
		if s := between(versions, e.Family, e.Column, from, to); s.from < s.to {
			gone = append(gone, s)
		}
	}
	slices.SortFunc(gone, func(a, b span) int { return a.from - b.from })
	slices.SortFunc(puts, rowstore.CompareVersions)
	all := make([]rowstore.Version, 0, len(versions)+len(puts))
	at := 0
	for _, g := range gone {
		all, puts = merge(all, versions[at:g.from], puts)
		at = g.to
	}
	all, puts = merge(all, versions[at:], puts)
	return append(all, puts...)
}

// merge appends versions, and each of puts before the first one that comes after it. It returns
// the puts that come after all of them.
func merge(all, versions, puts []rowstore.Version) (appended, left []rowstore.Version) {
	for len(puts) > 0 {
		i, _ := slices.BinarySearchFunc(versions, puts[0], rowstore.CompareVersions)
		if all = append(all, versions[:i]...); i == len(versions) {
			return all, puts
		}
		all, versions, puts = append(all, puts[0]), versions[i:], puts[1:]
	}
	return append(all, versions...), nil
}

// span is a part of a row's versions, by their places.
type span struct{ from, to int }

// between finds the versions of family in column from one timestamp to another.
func between(versions []rowstore.Version, family rowstore.Family, column string, from, to rowstore.Timestamp) span {
	if from > to {
		return span{}
	}
	i, _ := slices.BinarySearchFunc(versions, rowstore.Version{Family: family, Column: column, TS: to}, rowstore.CompareVersions)
	j, there := slices.BinarySearchFunc(versions, rowstore.Version{Family: family, Column: column, TS: from}, rowstore.CompareVersions)
	if there {
		j++
	}
	return span{i, j}
}
