package redis

import (
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// compareVersions is rowstore.CompareVersions for versions of an answer.
func compareVersions(a, b version) int {
	if a.family != b.family {
		return int(a.family) - int(b.family)
	}
	if c := strings.Compare(a.column, b.column); c != 0 {
		return c
	}
	switch {
	case a.ts > b.ts:
		return -1
	case a.ts < b.ts:
		return 1
	}
	return 0
}

// pick returns those of the versions that were read that the picks want, in order, each
// once. The script may have answered more than that.
func (d *decoder) pick(picks []rowstore.Selector) []rowstore.Version {
	if len(d.vs) == 0 {
		return nil
	}
	if !slices.IsSortedFunc(d.vs, compareVersions) {
		slices.SortFunc(d.vs, compareVersions)
	}
	d.vs = slices.CompactFunc(d.vs, func(a, b version) bool { return compareVersions(a, b) == 0 })
	d.keep = slices.Grow(d.keep[:0], len(d.vs))[:len(d.vs)]
	d.counts = slices.Grow(d.counts[:0], len(picks))[:len(picks)]
	at := kit.PicksOf(picks)
	n, size := 0, 0
	for i := range d.vs {
		v := &d.vs[i]
		d.keep[i] = false
		if i == 0 || v.family != d.vs[i-1].family || v.column != d.vs[i-1].column {
			d.mine = at.Of(d.mine[:0], v.column)
			for _, j := range d.mine {
				d.counts[j] = 0
			}
		}
		for _, j := range d.mine {
			p := &picks[j]
			if p.To == rowstore.AssignedTimestamp && v.ts > d.drawn {
				d.ahead = d.ahead || p.Family == v.family && v.family == rowstore.Write
				continue
			}
			if p.Family != v.family || v.ts < p.From || v.ts > p.To || p.Limit > 0 && d.counts[j] >= p.Limit {
				continue
			}
			d.counts[j]++
			d.keep[i] = true
		}
		if d.keep[i] {
			n++
			size += len(v.value)
		}
	}
	if n == 0 {
		return nil
	}
	// The values of a row get memory of their own: an answer has many rows, and a caller
	// that keeps one value must not keep all of them in memory.
	out := make([]rowstore.Version, 0, n)
	values := make([]byte, 0, size)
	for i := range d.vs {
		if !d.keep[i] {
			continue
		}
		v := &d.vs[i]
		begin := len(values)
		values = append(values, v.value...)
		var value []byte
		if v.value != "" {
			value = values[begin:len(values):len(values)]
		}
		out = append(out, rowstore.Version{Family: v.family, Column: at.Name(v.column), TS: v.ts, Value: value})
	}
	return out
}
