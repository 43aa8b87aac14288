package rowstore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// CheckReads returns an error that matches ErrInvalid if a read breaks a rule of this
// package, else nil.
func CheckReads(reads []RowRead) error {
	for i := range reads {
		if err := checkName(reads[i].Table, reads[i].Row); err != nil {
			return err
		}
		if err := checkSelectors(reads[i].Selectors, false); err != nil {
			return err
		}
	}
	return nil
}

// CheckSnapshotReads is CheckReads for a SnapshotReader.
func CheckSnapshotReads(asks []SnapshotRead) error {
	for i := range asks {
		if len(asks[i].Reads) == 0 {
			return fmt.Errorf("%w: a timestamp to draw and nothing to read", ErrInvalid)
		}
		for j := range asks[i].Reads {
			r := &asks[i].Reads[j]
			if err := checkName(r.Table, r.Row); err != nil {
				return err
			}
			if err := checkSelectors(r.Selectors, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckScan is CheckReads for a scan.
func CheckScan(s ScanRange) error {
	if s.Table == "" {
		return fmt.Errorf("%w: the table's name is empty", ErrInvalid)
	}
	if s.Limit < 0 {
		return fmt.Errorf("%w: scan limit %d", ErrInvalid, s.Limit)
	}
	if len(s.Slots) > 0 {
		if err := checkSlots(&s); err != nil {
			return err
		}
	} else if s.Hints {
		return fmt.Errorf("%w: a scan asks for hints, and for no slots", ErrInvalid)
	}
	if s.Snapshot != nil && len(s.Slots) > 0 {
		return fmt.Errorf("%w: a scan of slots has a snapshot", ErrInvalid)
	}
	return checkSelectors(s.Selectors, s.Snapshot != nil)
}

func checkSlots(s *ScanRange) error {
	if s.To != "" || s.Reverse {
		return fmt.Errorf("%w: a scan of slots has an end or is in reverse", ErrInvalid)
	}
	for i, r := range s.Slots {
		if r.Last < r.First || i > 0 && r.First <= s.Slots[i-1].Last {
			return fmt.Errorf("%w: slots %d to %d of a scan", ErrInvalid, r.First, r.Last)
		}
	}
	for i := range s.Selectors {
		if s.Selectors[i].Family != Notify {
			return fmt.Errorf("%w: a scan of slots selects %v", ErrInvalid, s.Selectors[i].Family)
		}
	}
	return nil
}

// CheckBatch is CheckReads for the mutations of an Apply.
func CheckBatch(muts []Mutation) error {
	for i := range muts {
		if err := checkMutation(&muts[i], false); err != nil {
			return err
		}
	}
	return checkDistinct(len(muts), func(i int) *Mutation { return &muts[i] })
}

// CheckGroups is CheckReads for the groups of a call of g.
func CheckGroups(g Grouper, groups []Group) error {
	var few [16]*Mutation
	all := few[:0]
	for i := range groups {
		gr := &groups[i]
		if len(gr.Mutations) == 0 {
			return fmt.Errorf("%w: a group has no mutation", ErrInvalid)
		}
		key := g.GroupKey(gr.Mutations[0].Table, gr.Mutations[0].Row)
		for j := range gr.Mutations {
			m := &gr.Mutations[j]
			if err := checkMutation(m, gr.AssignTimestamp); err != nil {
				return err
			}
			if k := g.GroupKey(m.Table, m.Row); k == "" || k != key {
				return fmt.Errorf("%w: row %q of table %q may not be in a group with the others", ErrInvalid, m.Row, m.Table)
			}
			all = append(all, m)
		}
		if gr.AssignTimestamp && !g.AssignsTimestamps(key) {
			return fmt.Errorf("%w: the store does not draw timestamps in groups of these rows", ErrInvalid)
		}
	}
	return checkDistinct(len(all), func(i int) *Mutation { return all[i] })
}

// CheckLimits returns an error that matches ErrTooLarge if a mutation has a name or a value
// that is longer than l allows, or too many conditions and edits or too many bytes for one
// atomic step; else nil.
func CheckLimits(l Limits, muts []Mutation) error {
	if l == (Limits{}) {
		return nil
	}
	for i := range muts {
		step, err := l.measure(&muts[i])
		if err == nil {
			err = l.checkStep("mutation", step)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckGroupLimits is CheckLimits for groups, each of which is one atomic step.
func CheckGroupLimits(l Limits, groups []Group) error {
	if l == (Limits{}) {
		return nil
	}
	for i := range groups {
		var all StepSize
		for j := range groups[i].Mutations {
			step, err := l.measure(&groups[i].Mutations[j])
			if err != nil {
				return err
			}
			all.Operations += step.Operations
			all.Bytes += step.Bytes
		}
		if err := l.checkStep("group", all); err != nil {
			return err
		}
	}
	return nil
}

// StepSize is the size of a mutation as Limits.Operations and Limits.Bytes count it.
type StepSize struct{ Operations, Bytes int }

// SizeOf measures a mutation. Operations are its conditions and edits. Bytes are the names
// of its table and row, the name of the column in each condition and edit, and the values.
func SizeOf(m *Mutation) StepSize {
	size := StepSize{Operations: len(m.Conditions) + len(m.Edits), Bytes: len(m.Table) + len(m.Row)}
	for i := range m.Conditions {
		size.Bytes += len(m.Conditions[i].Column)
	}
	for i := range m.Edits {
		size.Bytes += len(m.Edits[i].Column) + len(m.Edits[i].Value)
	}
	return size
}

// measure checks the names and values of a mutation, and returns its size.
func (l Limits) measure(m *Mutation) (StepSize, error) {
	if err := l.check("table's name", len(m.Table), l.Table); err != nil {
		return StepSize{}, err
	}
	if err := l.check("row's key", len(m.Row), l.Row); err != nil {
		return StepSize{}, err
	}
	for j := range m.Conditions {
		if err := l.check("column's name", len(m.Conditions[j].Column), l.Column); err != nil {
			return StepSize{}, err
		}
	}
	for j := range m.Edits {
		if err := l.check("column's name", len(m.Edits[j].Column), l.Column); err != nil {
			return StepSize{}, err
		}
		if err := l.check("value", len(m.Edits[j].Value), l.Value); err != nil {
			return StepSize{}, err
		}
	}
	return SizeOf(m), nil
}

func (l Limits) checkStep(what string, size StepSize) error {
	if l.Operations > 0 && size.Operations > l.Operations {
		return fmt.Errorf("%w: a %s of %d conditions and edits, where the store takes %d", ErrTooLarge, what, size.Operations, l.Operations)
	}
	return l.check(what, size.Bytes, l.Bytes)
}

func (Limits) check(what string, length, limit int) error {
	if limit > 0 && length > limit {
		return fmt.Errorf("%w: a %s of %d bytes, where the store takes %d", ErrTooLarge, what, length, limit)
	}
	return nil
}

func checkName(table, row string) error {
	if table == "" {
		return fmt.Errorf("%w: the table's name is empty", ErrInvalid)
	}
	if row == "" {
		return fmt.Errorf("%w: the row's key is empty (table %q)", ErrInvalid, table)
	}
	return nil
}

func checkSelectors(selectors []Selector, assigned bool) error {
	if len(selectors) == 0 {
		return fmt.Errorf("%w: a read without selectors", ErrInvalid)
	}
	for i := range selectors {
		p := &selectors[i]
		if p.Family < Lock || p.Family > Notify {
			return fmt.Errorf("%w: family %d", ErrInvalid, p.Family)
		}
		if p.Limit < 0 {
			return fmt.Errorf("%w: pick limit %d", ErrInvalid, p.Limit)
		}
		if p.From > oracle.Max || p.To > oracle.Max && (!assigned || p.To != AssignedTimestamp) {
			return fmt.Errorf("%w: a pick's timestamp is over the greatest one", ErrInvalid)
		}
	}
	return nil
}

func checkMutation(m *Mutation, draw bool) error {
	if err := checkName(m.Table, m.Row); err != nil {
		return err
	}
	for i := range m.Conditions {
		c := &m.Conditions[i]
		switch c.Kind {
		case IfAbsent:
			if c.Family != Write && c.Family != Mark && c.Family != Notify && c.Family != Lock {
				return fmt.Errorf("%w: condition Absent on family %d", ErrInvalid, c.Family)
			}
		case IfAbsentAt, IfPresent:
			if c.Family != Lock {
				return fmt.Errorf("%w: condition AbsentAt or Present on family %d", ErrInvalid, c.Family)
			}
		case IfIncarnation:
			continue
		default:
			return fmt.Errorf("%w: condition kind %d", ErrInvalid, c.Kind)
		}
		if c.Column == "" {
			return fmt.Errorf("%w: a condition's column is empty", ErrInvalid)
		}
		if c.TS > oracle.Max {
			return fmt.Errorf("%w: a condition's timestamp is over the greatest one", ErrInvalid)
		}
	}
	for i := range m.Edits {
		e := &m.Edits[i]
		if e.Family < Lock || e.Family > Notify {
			return fmt.Errorf("%w: family %d", ErrInvalid, e.Family)
		}
		if e.Column == "" {
			return fmt.Errorf("%w: an edit's column is empty", ErrInvalid)
		}
		switch e.Kind {
		case DoPut, DoDelete:
			if e.TS == 0 || (e.TS > oracle.Max && !(draw && e.TS == AssignedTimestamp && e.Kind == DoPut)) {
				return fmt.Errorf("%w: timestamp %d in an edit", ErrInvalid, uint64(e.TS))
			}
		case DoDeleteRange:
			if e.TS > oracle.Max || e.To > oracle.Max {
				return fmt.Errorf("%w: an edit's timestamp is over the greatest one", ErrInvalid)
			}
		default:
			return fmt.Errorf("%w: edit kind %d", ErrInvalid, e.Kind)
		}
	}
	if editsCollide(m.Edits) {
		return fmt.Errorf("%w: two edits of row %q in table %q touch the same version", ErrInvalid, m.Row, m.Table)
	}
	return nil
}

// editsCollide tells whether two of the edits make their order matter.
func editsCollide(edits []Edit) bool {
	// Nearly every mutation is this short, and comparing pairs allocates nothing.
	if len(edits) <= 16 {
		for i := range edits {
			for j := range i {
				if touches(&edits[i], &edits[j]) {
					return true
				}
			}
		}
		return false
	}
	// Edits collide only within a family and column. There, in the order of their
	// lower ends, each is compared with the one that reaches furthest so far, and
	// with the last put, which is what the rules of a family ask about.
	order := make([]*Edit, len(edits))
	for i := range edits {
		order[i] = &edits[i]
	}
	slices.SortFunc(order, func(a, b *Edit) int {
		if c := cmp.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		if c := strings.Compare(a.Column, b.Column); c != 0 {
			return c
		}
		return cmp.Compare(a.TS, b.TS)
	})
	var furthest, put, ranged *Edit
	for i, e := range order {
		if i == 0 || e.Family != furthest.Family || e.Column != furthest.Column {
			furthest, put, ranged = e, nil, nil
		} else if touches(e, furthest) || touches(e, order[i-1]) ||
			put != nil && touches(e, put) || ranged != nil && touches(e, ranged) {
			return true
		}
		if e.upper() >= furthest.upper() {
			furthest = e
		}
		if e.Kind == DoPut {
			put = e
		}
		if e.Kind == DoDeleteRange && e.TS <= e.To {
			ranged = e
		}
	}
	return false
}

// touches tells whether two edits name a version in common, or change the same
// one by the rules of their family.
func touches(a, b *Edit) bool {
	if a.Family != b.Family || a.Column != b.Column {
		return false
	}
	aPuts, bPuts := a.Kind == DoPut, b.Kind == DoPut
	switch a.Family {
	case Lock:
		// A column has one lock at most.
		if aPuts && bPuts {
			return true
		}
	case Mark:
		// A Put of a mark removes lower ones, and is idle below a greater one.
		if aPuts || bPuts {
			return true
		}
	}
	if a.TS == AssignedTimestamp || b.TS == AssignedTimestamp {
		// Nobody knows yet whether a range will hold the timestamp.
		return a.TS == b.TS || a.Kind == DoDeleteRange && a.TS <= a.To || b.Kind == DoDeleteRange && b.TS <= b.To
	}
	if a.TS > a.upper() || b.TS > b.upper() {
		return false
	}
	lo, hi := max(a.TS, b.TS), min(a.upper(), b.upper())
	return lo <= hi
}

func (e *Edit) upper() Timestamp {
	if e.Kind == DoDeleteRange {
		return e.To
	}
	return e.TS
}

func checkDistinct(n int, at func(int) *Mutation) error {
	if n < 2 {
		return nil
	}
	if n <= 8 {
		for i := range n {
			for j := range i {
				if at(i).Row == at(j).Row && at(i).Table == at(j).Table {
					return twice(at(i))
				}
			}
		}
		return nil
	}
	type name struct{ table, row string }
	seen := make(map[name]struct{}, n)
	for i := range n {
		m := at(i)
		k := name{m.Table, m.Row}
		if _, ok := seen[k]; ok {
			return twice(m)
		}
		seen[k] = struct{}{}
	}
	return nil
}

func twice(m *Mutation) error {
	return fmt.Errorf("%w: row %q of table %q is named twice in one batch", ErrInvalid, m.Row, m.Table)
}
