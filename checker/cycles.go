package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Limits of the search for short cycles. The components show before that there is a
// cycle. These limits decide only how short the printed cycles are, and whether each
// kind in a large component is named.
const (
	// maxStarts is how many edges of a component a search begins with, if one of them
	// led to a cycle.
	maxStarts = 64
	// searchBudget is how many steps all searches may take before each contents
	// itself with the first cycle that it finds, or with none where another kind was
	// found in the component.
	searchBudget = 30_000_000
)

// cycles finds the cycles of the graph and reports them.
func (c *valueChecker) cycles() {
	f := &finder{budget: searchBudget}
	levels := []level{levelData}
	if !c.o.NoProcess {
		levels = append(levels, levelProcess)
	}
	if !c.o.NoRealTime {
		levels = append(levels, levelRealTime)
	}
	all := &view{graph: c.g, kinds: edgeAll, level: levels[len(levels)-1]}
	components := all.components()
	if len(components) == 0 {
		return
	}
	// What snapshot isolation forbids.
	forbidden := &cycleSearch{c: c, f: f, view: *all, levels: levels, report: c.r.cycle(true, c)}
	forbidden.alternating()
	// What only Serializable forbids.
	switch c.o.Judge {
	case AsSerializable:
		s := &cycleSearch{c: c, f: f, view: *all, levels: levels, report: c.r.cycle(true, c)}
		s.plain(forbidden.nodes)
	case ByRecord, AsSnapshotIsolation:
		permitted := &cycleSearch{c: c, f: f, view: *all, levels: levels, report: c.r.cycle(false, c)}
		permitted.enough = func() bool { return len(c.r.Permitted) >= c.r.examples }
		if c.o.Judge == ByRecord {
			s := &cycleSearch{c: c, f: f, view: *all, levels: levels, report: c.r.cycle(true, c)}
			// The mixed serialization graph (Adya, Liskov and O'Neil, ICDE 2000): whoever writes, nobody may overwrite what a
			// serializable transaction has read before it commits, and a transaction under snapshot isolation puts up with that.
			s.view.keeps = func(txn int32) bool { return c.h[txn].Isolation == Serializable }
			s.plain(forbidden.nodes)
			permitted.skip = s.nodes
		}
		permitted.plain(forbidden.nodes)
	}
}

// cycle gives the function that reports a cycle.
func (r *Report) cycle(forbidden bool, c *valueChecker) func(kind Kind, cycle []hop, nodes []int32) {
	return func(kind Kind, cycle []hop, nodes []int32) {
		txns := make([]int, 0, len(cycle))
		for _, p := range cycle {
			txns = append(txns, int(p.from()))
		}
		text := func() string {
			if len(cycle) == 0 {
				return fmt.Sprintf("a cycle among %d transactions; the search for a short one was given up", len(txns))
			}
			var b strings.Builder
			for i, p := range cycle {
				fmt.Fprintf(&b, "%s -%s-> %s: %s", c.h.name(int(p.from())), p.kind(), c.h.name(int(p.to())), c.because(p))
				if i < len(cycle)-1 {
					b.WriteString("\n")
				}
			}
			return b.String()
		}
		if len(cycle) == 0 {
			for _, n := range nodes {
				if c.g.real(n) {
					txns = append(txns, int(n))
				}
			}
			slices.Sort(txns)
			txns = slices.Compact(txns)
		}
		switch {
		case forbidden:
			c.add(kind, text, txns...)
		case len(r.Permitted) < r.examples:
			r.Permitted = append(r.Permitted, Anomaly{kind, txns, c.explain(text(), txns)})
		}
	}
}

// because says why one transaction comes before another.
func (c *valueChecker) because(p hop) string {
	from, to := c.h.name(int(p.from())), c.h.name(int(p.to()))
	e := p.first
	switch e.kind {
	case edgeProcess:
		return fmt.Sprintf("process %d ran %s before %s", c.h[p.from()].Process, from, to)
	case edgeRealTime:
		return fmt.Sprintf("%s was completed at %d, before %s was invoked at %d", from, c.h[p.from()].Complete, to, c.h[p.to()].Invoke)
	}
	key := c.d.keys[e.key]
	how := ""
	if p.level == levelRealTime {
		how = " in real time"
	}
	if c.d.list[e.key] {
		switch e.kind {
		case edgeWW:
			return fmt.Sprintf("%s appended %d to %s, and %s appended %d later", from, e.a, key, to, p.last.b)
		case edgeWR:
			return fmt.Sprintf("%s appended %d to %s, and %s read it", from, e.a, key, to)
		}
		saw := fmt.Sprintf("up to %d", e.a)
		if e.initial {
			saw = "as empty"
		}
		return fmt.Sprintf("%s read %s %s, without the %d that %s appended", from, key, saw, p.last.b, to)
	}
	switch e.kind {
	case edgeWW:
		return fmt.Sprintf("%s wrote %s = %d, which the %d that %s wrote follows%s", from, key, e.a, p.last.b, to, how)
	case edgeWR:
		return fmt.Sprintf("%s wrote %s = %d, and %s read it", from, key, e.a, to)
	}
	return fmt.Sprintf("%s read %s = %s, which the %d that %s wrote follows%s", from, key, showValue(e.a, e.initial), p.last.b, to, how)
}

// cycleSearch looks for cycles in components.
type cycleSearch struct {
	c      *valueChecker
	f      *finder
	view   view
	levels []level
	report func(kind Kind, cycle []hop, nodes []int32)
	// enough, if not nil, tells that no more need be found.
	enough func() bool
	found  map[foundKey]struct{}
	// nodes are the transactions of what was reported.
	nodes map[int32]struct{}
	skip  map[int32]struct{}

	member []int32 // of a node: the component at hand
	stamp  int32
}

// foundKey stands for the cycles of a kind that were found in one place.
type foundKey struct {
	kind Kind
	node int32
}

// alternating reports the cycles that snapshot isolation forbids.
func (s *cycleSearch) alternating() {
	s.prepare()
	strongest := s.view
	strongest.alternating = true
	if len(strongest.components()) == 0 {
		return
	}
	for _, l := range s.levels {
		v := strongest
		v.level = l
		for _, component := range v.components() {
			s.forbidden(&v, component)
		}
	}
}

func (s *cycleSearch) prepare() {
	s.member = make([]int32, s.view.nodes)
	s.found = map[foundKey]struct{}{}
	s.nodes = map[int32]struct{}{}
}

// enter makes a component the one at hand: its nodes, without doubles and sorted.
func (s *cycleSearch) enter(v *view, component []int32) []int32 {
	s.stamp++
	nodes := component[:0]
	for _, n := range component {
		if b := v.base(n); s.member[b] != s.stamp {
			s.member[b] = s.stamp
			nodes = append(nodes, b)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (s *cycleSearch) in(node int32) bool { return s.member[node] == s.stamp }

// isNew tells whether a kind was not found among these transactions before, and
// records it as found.
func (s *cycleSearch) isNew(kind Kind, cycle []hop) bool {
	for _, p := range cycle {
		if _, ok := s.found[foundKey{kind, p.from()}]; ok {
			return false
		}
	}
	return true
}

func (s *cycleSearch) note(kind Kind, nodes []int32) {
	for _, n := range nodes {
		if s.view.real(n) {
			s.found[foundKey{kind, n}] = struct{}{}
			s.nodes[n] = struct{}{}
		}
	}
}

// forbidden reports the kinds of cycles in a component of an alternating view.
func (s *cycleSearch) forbidden(v *view, component []int32) {
	nodes := s.enter(v, component)
	plain := *v
	plain.alternating = false
	some := false
	for _, n := range nodes {
		if _, ok := s.nodes[n]; ok {
			some = true
			break
		}
	}
	for _, search := range []struct {
		kinds edgeKind // beside the kinds of the level
		first edgeKind
		want  goal
	}{
		{edgeWW, edgeWW | edgeProcess | edgeRealTime, goalPlain},
		{edgeWW | edgeWR, edgeWR, goalPlain},
		{edgeWW | edgeWR | edgeRW, edgeRW, goalPlain},
		{edgeWW | edgeWR | edgeRW, edgeRW, goalFork},
	} {
		part := plain
		part.kinds = search.kinds | edgeProcess | edgeRealTime | edgePass
		if cycle := s.shortest(&part, nodes, search.first, search.want, some); cycle != nil {
			some = s.one(cycle, nodes) || some
		}
	}
	if some {
		return
	}
	// There is a cycle all the same.
	cycle := s.shortest(&plain, nodes, edgeRW, goalAlternating, false)
	if cycle == nil {
		s.note(KindLongFork, nodes)
		s.report(KindLongFork+Kind(v.level.suffix()), nil, nodes)
		return
	}
	s.one(cycle, nodes)
}

// one reports a cycle unless its kind was reported for this place, at a stricter
// level.
func (s *cycleSearch) one(cycle []hop, nodes []int32) bool {
	kind, l := classify(cycle)
	if !s.isNew(kind, cycle) {
		return false
	}
	s.note(kind, nodes)
	s.report(kind+Kind(l.suffix()), cycle, nodes)
	return true
}

// plain reports the cycles in which read-write edges follow each other. Those in
// components where others were reported already need not have any.
func (s *cycleSearch) plain(reported map[int32]struct{}) {
	s.prepare()
	for _, l := range s.levels {
		v := s.view
		v.level = l
		for _, component := range v.components() {
			if s.enough != nil && s.enough() {
				return
			}
			s.skew(&v, component, reported)
		}
	}
}

func (s *cycleSearch) skew(v *view, component []int32, reported map[int32]struct{}) {
	nodes := s.enter(v, component)
	some, skip := false, false
	for _, n := range nodes {
		_, before := reported[n]
		_, now := s.nodes[n]
		_, elsewhere := s.skip[n]
		some = some || before || now
		skip = skip || elsewhere
	}
	if skip {
		return
	}
	if cycle := s.shortest(v, nodes, edgeRW, goalSkew, some); cycle != nil {
		s.one(cycle, nodes)
		return
	}
	if some {
		return
	}
	cycle := s.shortest(v, nodes, edgeAll&^edgePass, goalAny, false)
	if cycle == nil {
		s.note(KindG2Item, nodes)
		s.report(KindG2Item+Kind(v.level.suffix()), nil, nodes)
		return
	}
	s.one(cycle, nodes)
}

// shortest looks for the shortest cycle in the component at hand that begins with an
// edge of certain kinds. Unless it must find one, it stops when the budget is used up.
func (s *cycleSearch) shortest(v *view, nodes []int32, first edgeKind, want goal, optional bool) []hop {
	var best []hop
	starts := 0
	for _, n := range nodes {
		if !v.real(n) {
			continue
		}
		for i := v.first[n]; i < v.first[n+1]; i++ {
			e := &v.edges[i]
			if e.kind&first == 0 || !v.has(e) || !s.in(e.to) {
				continue
			}
			if (best != nil || optional || want != goalAlternating && want != goalAny) && (starts >= maxStarts && best != nil || s.f.budget < 0) {
				return best
			}
			starts++
			walk := s.f.cycle(v, i, want, s.in)
			if walk == nil {
				continue
			}
			cycle := s.c.g.hops(walk)
			if !fits(cycle, want) {
				continue
			}
			if best == nil || len(cycle) < len(best) {
				best = rotate(cycle)
				if len(best) == 2 {
					return best
				}
			}
		}
	}
	return best
}

// fits tells whether a cycle is what a search wanted, after it was made a simple one.
func fits(cycle []hop, want goal) bool {
	if len(cycle) < 2 {
		return false
	}
	kind, _ := classify(cycle)
	switch want {
	case goalFork:
		return kind == KindLongFork
	case goalSkew:
		return kind == KindG2Item
	case goalAlternating:
		return kind != KindG2Item
	case goalPlain, goalAny:
	}
	return true
}

// rotate lets a cycle begin with its first transaction.
func rotate(cycle []hop) []hop {
	at := 0
	for i := range cycle {
		if cmp.Less(cycle[i].from(), cycle[at].from()) {
			at = i
		}
	}
	return slices.Concat(cycle[at:], cycle[:at])
}
