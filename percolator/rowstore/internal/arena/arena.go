// Package arena copies the arguments of calls, for wrappers that still need them after their
// caller returned.
package arena

import "github.com/percolate-go/percolate/percolator/rowstore"

// Arena holds what copied asks refer to. Its slices stay valid when it grows and moves.
type Arena struct {
	reads     []rowstore.RowRead
	begins    []rowstore.SnapshotRead
	groups    []rowstore.Group
	selectors []rowstore.Selector
	muts      []rowstore.Mutation
	conds     []rowstore.Condition
	edits     []rowstore.Edit
	bytes     []byte
}

// Reset empties the arena for another batch. It drops names, and memory that only an
// unusually large batch needed.
func (a *Arena) Reset() {
	a.reads = emptied(a.reads)
	a.begins = emptied(a.begins)
	a.groups = emptied(a.groups)
	a.selectors = emptied(a.selectors)
	a.muts = emptied(a.muts)
	a.conds = emptied(a.conds)
	a.edits = emptied(a.edits)
	if cap(a.bytes) > 1<<20 {
		a.bytes = nil
	}
	a.bytes = a.bytes[:0]
}

func emptied[T any](s []T) []T {
	if cap(s) > 1<<13 {
		return nil
	}
	clear(s)
	return s[:0]
}

// Bytes is the total length of the values that were copied.
func (a *Arena) Bytes() int { return len(a.bytes) }

// KeepReads appends copies of reads to a slice; what they refer to lies in the arena.
func KeepReads(to []rowstore.RowRead, a *Arena, reads []rowstore.RowRead) []rowstore.RowRead {
	for i := range reads {
		r := reads[i]
		from := len(a.selectors)
		a.selectors = append(a.selectors, r.Selectors...)
		r.Selectors = a.selectors[from:len(a.selectors):len(a.selectors)]
		to = append(to, r)
	}
	return to
}

// KeepSnapshotReads appends copies of asks to a slice; what they refer to lies in the arena.
func KeepSnapshotReads(to []rowstore.SnapshotRead, a *Arena, asks []rowstore.SnapshotRead) []rowstore.SnapshotRead {
	for i := range asks {
		from := len(a.reads)
		a.reads = KeepReads(a.reads, a, asks[i].Reads)
		to = append(to, rowstore.SnapshotRead{Reads: a.reads[from:len(a.reads):len(a.reads)]})
	}
	return to
}

// KeepMutations appends copies of mutations to a slice; what they refer to lies in the arena.
func KeepMutations(to []rowstore.Mutation, a *Arena, muts []rowstore.Mutation) []rowstore.Mutation {
	for i := range muts {
		m := muts[i]
		from := len(a.conds)
		a.conds = append(a.conds, m.Conditions...)
		m.Conditions = a.conds[from:len(a.conds):len(a.conds)]
		from = len(a.edits)
		a.edits = append(a.edits, m.Edits...)
		m.Edits = a.edits[from:len(a.edits):len(a.edits)]
		for j := range m.Edits {
			e := &m.Edits[j]
			if len(e.Value) > 0 {
				from = len(a.bytes)
				a.bytes = append(a.bytes, e.Value...)
				e.Value = a.bytes[from:len(a.bytes):len(a.bytes)]
			}
		}
		to = append(to, m)
	}
	return to
}

// KeepGroups appends copies of groups to a slice; what they refer to lies in the arena.
func KeepGroups(to []rowstore.Group, a *Arena, groups []rowstore.Group) []rowstore.Group {
	for i := range groups {
		g := groups[i]
		from := len(a.muts)
		a.muts = KeepMutations(a.muts, a, g.Mutations)
		g.Mutations = a.muts[from:len(a.muts):len(a.muts)]
		to = append(to, g)
	}
	return to
}

// SnapshotReads is a copy of asks that lies in the arena.
func (a *Arena) SnapshotReads(asks []rowstore.SnapshotRead) []rowstore.SnapshotRead {
	from := len(a.begins)
	a.begins = KeepSnapshotReads(a.begins, a, asks)
	return a.begins[from:len(a.begins):len(a.begins)]
}

// Groups is a copy of groups that lies in the arena.
func (a *Arena) Groups(groups []rowstore.Group) []rowstore.Group {
	from := len(a.groups)
	a.groups = KeepGroups(a.groups, a, groups)
	return a.groups[from:len(a.groups):len(a.groups)]
}
