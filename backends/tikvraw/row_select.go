package tikvraw

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// windowBytes bounds the chunks that a read of every column holds at once.
const windowBytes = 16 << 20

// selectPicks returns what the picks select, in the order of rowstore.Row.
func (r *row) selectPicks(ctx context.Context, picks []rowstore.Selector) ([]entry, error) {
	var out []entry
	for _, p := range picks {
		if p.From > p.To {
			continue
		}
		columns := r.picked(p)
		for len(columns) > 0 {
			n, err := r.prepare(ctx, p, columns)
			if err != nil {
				return nil, err
			}
			for _, column := range columns[:n] {
				if out, err = r.appendPick(ctx, out, p, column); err != nil {
					return nil, err
				}
			}
			if columns = columns[n:]; len(columns) > 0 {
				r.chunks = nil
			}
		}
	}
	if len(picks) > 1 {
		slices.SortFunc(out, compareEntries)
		out = slices.CompactFunc(out, func(a, b entry) bool { return compareEntries(a, b) == 0 })
	}
	return out, nil
}

// picked returns the columns that a pick names.
func (r *row) picked(p rowstore.Selector) []string {
	if p.Column != rowstore.AllColumns {
		return []string{p.Column}
	}
	var out []string
	for g := range r.groups() {
		if g.family == p.Family {
			out = append(out, g.column)
		}
	}
	return out
}

// prepare loads the first chunk of each column that a pick needs for certain, or all of
// them if it has no limit, for as many of the columns as it returns. What a column needs
// beyond that is loaded when its turn comes.
func (r *row) prepare(ctx context.Context, p rowstore.Selector, columns []string) (int, error) {
	var want []chunk
	size := 0
	for n, column := range columns {
		if size > windowBytes {
			return n, r.loadAll(ctx, want)
		}
		certain, _ := r.reach(p, column)
		for _, c := range certain {
			want = append(want, c)
			size += c.size
		}
	}
	if len(columns) == 1 && len(want) == 1 {
		return 1, nil // load does it
	}
	return len(columns), r.loadAll(ctx, want)
}

// reach returns the chunks of a column in a pick's range, and which of them it needs for certain: all, or
// the first if it has a limit, or none if versions in the head are enough.
func (r *row) reach(p rowstore.Selector, column string) (certain, all []chunk) {
	i, j := span(r.entries, p.Family, column, p.From, p.To)
	a, b := r.chunksOf(p.Family, column)
	for a < b && r.head.chunks[a].lo > p.To {
		a++
	}
	for a < b && r.head.chunks[b-1].hi < p.From {
		b--
	}
	all = r.head.chunks[a:b]
	if p.Limit == 0 || len(all) == 0 {
		return all, all
	}
	if newer := search(r.entries[:j], p.Family, column, all[0].hi) - i; newer >= p.Limit {
		return nil, nil
	}
	return all[:1], all
}

// versionMost is about the greatest length of a version in a chunk.
const versionMost = inlineMax + 20

// weight returns about how many bytes of chunks selectPicks loads, and how many of them its answer keeps.
// It loads nothing if load is 0.
func (r *row) weight(picks []rowstore.Selector) (load, keep int) {
	if len(r.head.chunks) == 0 {
		return 0, 0
	}
	for _, p := range picks {
		if p.From > p.To {
			continue
		}
		for _, column := range r.picked(p) {
			certain, all := r.reach(p, column)
			first, most := chunkBytes(certain), chunkBytes(all)
			if p.Limit > 0 && p.Limit < most/versionMost {
				most = p.Limit * versionMost
			}
			load, keep = load+max(first, most), keep+most
		}
	}
	return load, keep
}

func chunkBytes(chunks []chunk) (size int) {
	for _, c := range chunks {
		size += max(c.size, 1) // a damaged head may say 0
	}
	return size
}

// appendPick appends what a pick selects in one column.
func (r *row) appendPick(ctx context.Context, dst []entry, p rowstore.Selector, column string) ([]entry, error) {
	i, j := span(r.entries, p.Family, column, p.From, p.To)
	inline := r.entries[i:j]
	first := len(dst)
	full := func() bool { return p.Limit > 0 && len(dst)-first >= p.Limit }
	take := func(entries []entry, above rowstore.Timestamp) []entry {
		for len(entries) > 0 && entries[0].ts > above && !full() {
			dst = append(dst, entries[0])
			entries = entries[1:]
		}
		return entries
	}
	a, b := r.chunksOf(p.Family, column)
	for _, c := range r.head.chunks[a:b] {
		if c.lo > p.To {
			continue
		}
		if c.hi < p.From {
			break
		}
		if inline = take(inline, c.hi); full() {
			return dst, nil
		}
		entries, err := r.load(ctx, c)
		if err != nil {
			return nil, err
		}
		i, j := span(entries, p.Family, column, p.From, p.To)
		before := len(dst)
		take(entries[i:j], 0)
		detach(dst[before:], c.size)
	}
	take(inline, 0)
	return dst, nil
}

// detach copies the values of versions that were taken out of a chunk of that size, unless they are most of
// it: one short value would hold the whole chunk.
func detach(taken []entry, chunk int) {
	size := 0
	for i := range taken {
		size += len(taken[i].value.bytes)
	}
	if size > chunk/2 {
		return
	}
	own := make([]byte, 0, size)
	for i := range taken {
		v := &taken[i].value
		from := len(own)
		own = append(own, v.bytes...)
		v.bytes = own[from:len(own):len(own)]
	}
}

// firstBroken returns the index of the first condition that does not hold and the version
// that broke it, if there is one; -1 if all hold.
func (r *row) firstBroken(ctx context.Context, conditions []rowstore.Condition) (int, *entry, error) {
	for i, c := range conditions {
		switch c.Kind {
		case rowstore.IfAbsent:
			broke, err := r.appendPick(ctx, nil, rowstore.Selector{Family: c.Family, From: c.TS, To: oracle.Max, Limit: 1}, c.Column)
			if err != nil {
				return 0, nil, err
			}
			if len(broke) > 0 {
				return i, &broke[0], nil
			}
		case rowstore.IfAbsentAt, rowstore.IfPresent:
			var at *entry
			if j := search(r.entries, rowstore.Lock, c.Column, c.TS); j < len(r.entries) {
				if e := &r.entries[j]; e.family == rowstore.Lock && e.column == c.Column && e.ts == c.TS {
					at = e
				}
			}
			if c.Kind == rowstore.IfAbsentAt && at != nil {
				return i, at, nil
			}
			if c.Kind == rowstore.IfPresent && at == nil {
				return i, nil, nil
			}
		case rowstore.IfIncarnation:
			if c.Incarnation != "" {
				return i, nil, nil
			}
		}
	}
	return -1, nil, nil
}
