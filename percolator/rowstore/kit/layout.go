package kit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Reader is a view of an ordered key-value database, of one moment, for a [Layout]. It is
// used by one goroutine at a time.
type Reader interface {
	// Ascend calls visit for the keys from from, which is included, to to, which is not, in
	// byte order, until visit returns false. A nil to is the end of the database. The slices
	// need not outlive the call of visit, which does not change them, and which calls
	// neither the Reader nor the Txn.
	Ascend(from, to []byte, visit func(key, value []byte) bool) error
	// Descend is Ascend from the end of the range to its start.
	Descend(from, to []byte, visit func(key, value []byte) bool) error
}

// Txn is a transaction of an ordered key-value database that changes it. What it put is
// there when it reads.
type Txn interface {
	Reader
	// Put stores a value under a key, over one that is there. The Layout does not change
	// the slices afterwards, and the caller's mutation may hold the value: a database that
	// keeps it beyond the transaction copies it.
	Put(key, value []byte) error
	// Delete removes a key; an absent one is fine.
	Delete(key []byte) error
}

// Layout keeps rows in an ordered key-value database: each version under a key of its own,
//
//	prefix 'r' table row family column timestamp
//
// with names and timestamps as [AppendName] and [AppendTimestamp] write them, newer
// versions first; and for each row that holds a Notify an empty value under
//
//	prefix 'n' table row
//
// so that a scan for notifications alone passes no other rows. Other keys, also those that
// go on in another way behind the prefix, are yours. The newest version of a
// column costs one search, however long its history is.
//
// Its methods run inside a transaction of the caller's and do not know how that begins and
// ends. A Layout is immutable.
type Layout struct {
	// Prefix is what every key begins with; empty if the database, or a part of it that
	// the transactions are confined to, holds nothing else.
	Prefix string
}

const (
	spaceRows  = 'r'
	spaceSlots = 's'
	spaceOld   = 'n' // the index of notified rows in version 1
)

// KeyLen returns the greatest length of a key for names of the given lengths: a backend
// whose database limits keys finds its rowstore.Limits by it.
func (l Layout) KeyLen(table, row, column int) int {
	return len(l.Prefix) + 1 + 2*(table+row+column) + 3*2 + 1 + TimestampLen
}

func (l Layout) space(space byte) []byte {
	return append(append(make([]byte, 0, 128), l.Prefix...), space)
}

func (l Layout) table(space byte, table string) []byte { return AppendName(l.space(space), table) }

func (l Layout) row(table, row string) []byte {
	return AppendName(l.table(spaceRows, table), row)
}

func (l Layout) column(table, row string, family rowstore.Family, column string) []byte {
	return AppendName(append(l.row(table, row), byte(family)), column)
}

// first returns the first key of a range.
func first(r Reader, from, to []byte) (key []byte, err error) {
	err = r.Ascend(from, to, func(k, _ []byte) bool {
		key = bytes.Clone(k)
		return false
	})
	return key, err
}

// versions visits the versions of one column from one timestamp to another, newest first,
// with the part of the keys behind the column's.
func (l Layout) versions(r Reader, column []byte, from, to rowstore.Timestamp, visit func(ts rowstore.Timestamp, value []byte) bool) error {
	if from > to {
		return nil
	}
	n := len(column)
	lower := AppendTimestamp(slices.Clip(column), to)
	upper := append(AppendTimestamp(slices.Clip(column), from), 0)
	var bad error
	err := r.Ascend(lower, upper, func(k, v []byte) bool {
		ts, rest, err := CutTimestamp(k[n:])
		if err == nil && len(rest) > 0 {
			err = badKey(k)
		}
		if err != nil {
			bad = err
			return false
		}
		return visit(ts, v)
	})
	if err == nil {
		err = bad
	}
	return err
}

// newest returns the newest version of a column in a range of timestamps, or nil.
func (l Layout) newest(r Reader, table, row string, family rowstore.Family, column string, from, to rowstore.Timestamp) (found *rowstore.Version, err error) {
	err = l.versions(r, l.column(table, row, family, column), from, to, func(ts rowstore.Timestamp, value []byte) bool {
		found = &rowstore.Version{Family: family, Column: column, TS: ts, Value: bytes.Clone(value)}
		return false
	})
	return found, err
}

// Read returns the versions of a row that any of the picks selects, in the order of
// rowstore.Row, nil where nothing matches.
func (l Layout) Read(r Reader, table, row string, picks []rowstore.Selector) ([]rowstore.Version, error) {
	var out []rowstore.Version
	for i := range picks {
		p := &picks[i]
		var err error
		if p.Column == rowstore.AllColumns {
			out, err = l.readFamily(r, table, row, p, out)
		} else {
			n := 0
			err = l.versions(r, l.column(table, row, p.Family, p.Column), p.From, p.To, func(ts rowstore.Timestamp, value []byte) bool {
				out = append(out, rowstore.Version{Family: p.Family, Column: p.Column, TS: ts, Value: bytes.Clone(value)})
				n++
				return n != p.Limit
			})
		}
		if err != nil {
			return nil, err
		}
	}
	if len(picks) > 1 {
		slices.SortFunc(out, rowstore.CompareVersions)
		out = slices.CompactFunc(out, func(a, b rowstore.Version) bool { return rowstore.CompareVersions(a, b) == 0 })
	}
	return out, nil
}

// passes is how many versions a read of all columns passes over in a column before it
// searches for what it wants next.
const passes = 16

// readFamily answers a pick of all columns.
func (l Layout) readFamily(r Reader, table, row string, p *rowstore.Selector, out []rowstore.Version) ([]rowstore.Version, error) {
	family := append(l.row(table, row), byte(p.Family))
	end := PrefixEnd(family)
	var raw []byte // the form of the column that is being read
	var name string
	found := 0 // of it
	for from := family; from != nil; {
		var next []byte // where to go on
		var bad error
		passed := 0
		err := r.Ascend(from, end, func(k, v []byte) bool {
			column, rest, err := CutRaw(k[len(family):])
			var ts rowstore.Timestamp
			if err == nil {
				ts, rest, err = CutTimestamp(rest)
			}
			if err == nil && len(rest) > 0 {
				err = badKey(k)
			}
			if err != nil {
				bad = err
				return false
			}
			if !bytes.Equal(column, raw) {
				raw, name, found = bytes.Clone(column), NameOf(column), 0
			}
			past := ts < p.From || p.Limit > 0 && found == p.Limit
			if !past && ts <= p.To {
				out = append(out, rowstore.Version{Family: p.Family, Column: name, TS: ts, Value: bytes.Clone(v)})
				found++
				passed = 0
				return true
			}
			if passed++; passed < passes {
				return true
			}
			if prefix := k[:len(k)-TimestampLen]; past {
				next = PrefixEnd(prefix)
			} else {
				next = AppendTimestamp(bytes.Clone(prefix), p.To)
			}
			return false
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return nil, err
		}
		from = next
	}
	return out, nil
}

// Judge tells whether every condition of a mutation holds; see the function [Judge].
func (l Layout) Judge(r Reader, m *rowstore.Mutation, incarnation string) (rowstore.Outcome, error) {
	return Judge(m, incarnation, func(family rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
		return l.newest(r, m.Table, m.Row, family, column, from, to)
	})
}

// Edit makes the edits of a mutation whose conditions hold. assigned takes the place of
// rowstore.AssignedTimestamp. After an error the transaction must be rolled back.
func (l Layout) Edit(t Txn, m *rowstore.Mutation, assigned rowstore.Timestamp) error {
	steps, err := l.plan(t, m, assigned)
	if err != nil {
		return err
	}
	return l.make(t, m, steps)
}

// step is the change of one key.
type step struct {
	key, value []byte
	gone       bool
}

// plan finds what a mutation changes, and changes nothing. No edit reads what another one of its
// mutation has written (rowstore.CheckBatch sees to that), so all that is read can be read before the
// first write: a row that is damaged is met while nothing of its mutation is done.
func (l Layout) plan(r Reader, m *rowstore.Mutation, assigned rowstore.Timestamp) (steps []step, err error) {
	for i := range m.Edits {
		e := &m.Edits[i]
		ts := e.TS
		if ts == rowstore.AssignedTimestamp {
			ts = assigned
		}
		column := l.column(m.Table, m.Row, e.Family, e.Column)
		switch {
		case e.Kind == rowstore.DoDelete:
			steps = append(steps, step{key: AppendTimestamp(column, ts), gone: true})
			continue
		case e.Kind == rowstore.DoDeleteRange:
			err = l.versions(r, column, ts, e.To, func(ts rowstore.Timestamp, _ []byte) bool {
				steps = append(steps, step{key: AppendTimestamp(slices.Clip(column), ts), gone: true})
				return true
			})
			if err != nil {
				return nil, err
			}
			continue
		case e.Family == rowstore.Mark:
			// A column has one mark, the greatest.
			mark, err := l.newest(r, m.Table, m.Row, e.Family, e.Column, 0, oracle.Max)
			if err != nil {
				return nil, err
			}
			if mark != nil && mark.TS > ts {
				continue
			}
			if mark != nil && mark.TS < ts {
				steps = append(steps, step{key: AppendTimestamp(slices.Clip(column), mark.TS), gone: true})
			}
		}
		steps = append(steps, step{key: AppendTimestamp(slices.Clip(column), ts), value: e.Value})
	}
	return steps, nil
}

// make makes the edits of a mutation, of which plan has found the steps.
func (l Layout) make(t Txn, m *rowstore.Mutation, steps []step) (err error) {
	for i := range steps {
		if s := &steps[i]; s.gone {
			err = t.Delete(s.key)
		} else {
			err = t.Put(s.key, s.value)
		}
		if err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool { return e.Family == rowstore.Notify }) {
		return nil
	}
	family := append(l.row(m.Table, m.Row), byte(rowstore.Notify))
	some, err := first(t, family, PrefixEnd(family))
	if err != nil {
		return err
	}
	index := l.notified(m.Table, m.Row)
	if some == nil {
		return t.Delete(index)
	}
	return t.Put(index, nil)
}

// Apply runs the mutations of a batch, each by itself: it judges one, and edits if every
// condition holds. changed tells whether anything was edited; if not, the transaction may as
// well be rolled back. After an error it must be. A row that is damaged fails its own mutation
// alone: the Err of that outcome matches rowstore.ErrCorrupt, and nothing of it was edited.
func (l Layout) Apply(t Txn, muts []rowstore.Mutation, incarnation string) (outs []rowstore.Outcome, changed bool, err error) {
	outs = make([]rowstore.Outcome, len(muts))
	for i := range muts {
		m := &muts[i]
		var steps []step
		if outs[i], err = l.Judge(t, m, incarnation); err == nil && outs[i].Applied {
			steps, err = l.plan(t, m, 0)
		}
		if errors.Is(err, rowstore.ErrCorrupt) {
			outs[i] = rowstore.Outcome{Incarnation: incarnation, Err: ofRow(m, err)}
			continue
		}
		if err == nil && outs[i].Applied && len(m.Edits) > 0 {
			changed = true
			err = l.make(t, m, steps)
		}
		if err != nil {
			return nil, false, err
		}
	}
	return outs, changed, nil
}

// ofRow says which row cannot be read.
func ofRow(m *rowstore.Mutation, err error) error {
	return fmt.Errorf("row %q of table %q: %w", m.Row, m.Table, err)
}

// Groups runs groups, each all or none. first is the first of as many timestamps as there
// are groups, if any of them asks for one; see [Layout.Group]. changed, errors and damaged rows
// are as in Apply: such a row fails its own group alone.
func (l Layout) Groups(t Txn, groups []rowstore.Group, first rowstore.Timestamp, incarnation string) (outs []rowstore.GroupOutcome, changed bool, err error) {
	outs = make([]rowstore.GroupOutcome, len(groups))
	for i := range groups {
		g := &groups[i]
		var steps [][]step
		outs[i], steps, err = l.planGroup(t, g, first+rowstore.Timestamp(i), incarnation) //nolint:gosec // not negative
		if errors.Is(err, rowstore.ErrCorrupt) {
			outs[i] = rowstore.GroupOutcome{Incarnation: incarnation, Err: err}
			continue
		}
		if err == nil {
			err = l.makeGroup(t, g, steps)
		}
		if err != nil {
			return nil, false, err
		}
		changed = changed || outs[i].Applied
	}
	return outs, changed, nil
}

// Group runs a group: it judges all mutations, refuses a group with AssignTimestamp whose
// timestamp is above NotAfter, and then edits. ts is the timestamp that was drawn for a
// group with AssignTimestamp, by somebody who sees to it that no other change comes between
// the draw and this call, and who holds readers (see [Pending]). After an error the
// transaction must be rolled back.
func (l Layout) Group(t Txn, g *rowstore.Group, ts rowstore.Timestamp, incarnation string) (rowstore.GroupOutcome, error) {
	out, steps, err := l.planGroup(t, g, ts, incarnation)
	if err == nil {
		err = l.makeGroup(t, g, steps)
	}
	if err != nil {
		return rowstore.GroupOutcome{Incarnation: incarnation}, err
	}
	return out, nil
}

// planGroup judges a group, and finds what each of its mutations changes if it is to be applied. It
// changes nothing. The rows of a group differ, so none reads what another one writes.
func (l Layout) planGroup(r Reader, g *rowstore.Group, ts rowstore.Timestamp, incarnation string) (out rowstore.GroupOutcome, steps [][]step, err error) {
	out.Incarnation = incarnation
	for i := range g.Mutations {
		m := &g.Mutations[i]
		o, err := l.Judge(r, m, incarnation)
		if err != nil {
			return out, nil, ofRow(m, err)
		}
		if !o.Applied {
			out.Failed, out.Outcome = i, o
			return out, nil, nil
		}
	}
	if g.AssignTimestamp && g.NotAfter != 0 && ts > g.NotAfter {
		out.TooLate = true
		return out, nil, nil
	}
	steps = make([][]step, len(g.Mutations))
	for i := range g.Mutations {
		m := &g.Mutations[i]
		if steps[i], err = l.plan(r, m, ts); err != nil {
			return out, nil, ofRow(m, err)
		}
	}
	if g.AssignTimestamp {
		out.Commit = ts
	}
	out.Applied = true
	return out, steps, nil
}

// makeGroup makes the edits of a group. steps is nil if it is not applied.
func (l Layout) makeGroup(t Txn, g *rowstore.Group, steps [][]step) error {
	for i := range steps {
		if err := l.make(t, &g.Mutations[i], steps[i]); err != nil {
			return err
		}
	}
	return nil
}

// Tables lists the tables that hold anything, in byte order. A key that names none hides none behind it: all
// names are returned together with an error that matches rowstore.ErrCorrupt.
func (l Layout) Tables(r Reader) (names []string, err error) {
	space := l.space(spaceRows)
	var strange error
	for from, end := space, PrefixEnd(space); from != nil; {
		var next []byte
		err := r.Ascend(from, end, func(k, _ []byte) bool {
			name, _, err := CutName(k[len(space):])
			if err == nil && name == "" {
				err = badKey(k)
			}
			if err != nil {
				strange = cmp.Or(strange, err)
				return true
			}
			names = append(names, name)
			next = PrefixEnd(l.table(spaceRows, name))
			return false
		})
		if err != nil {
			return names, err
		}
		from = next
	}
	return names, strange
}
