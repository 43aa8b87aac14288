package checker

import "slices"

// The dependency graph. Its first nodes are the transactions of the history; the rest
// are virtual: they stand for a state or a moment between transactions, so that "all
// of these come before all of those" takes as many edges as there are transactions,
// not their product. An edge that leaves a virtual node passes on the kind of the edge
// that entered.

// edgeKind is a kind of dependency, one bit each.
type edgeKind uint8

const (
	edgeWW edgeKind = 1 << iota
	edgeWR
	edgeRW
	edgeProcess
	edgeRealTime
	edgePass // out of a virtual node

	edgeAll = edgeWW | edgeWR | edgeRW | edgeProcess | edgeRealTime | edgePass
)

func (k edgeKind) String() string {
	return map[edgeKind]string{edgeWW: "ww", edgeWR: "wr", edgeRW: "rw", edgeProcess: "process", edgeRealTime: "realtime", edgePass: "pass"}[k]
}

// level says what an edge is inferred from, and so which suffix a cycle has.
type level uint8

const (
	levelData level = iota
	levelProcess
	levelRealTime
)

func (l level) suffix() string { return [...]string{"", "-process", "-realtime"}[l] }

// edge is one dependency. What it is about: the key; the value that the first
// transaction wrote or read, if not initial; the value that the second one wrote or
// read.
type edge struct {
	from, to int32
	kind     edgeKind
	level    level
	initial  bool
	key      int32
	a, b     int64
}

// graph is built by add and, once, finish.
type graph struct {
	txns  int32 // nodes below are transactions
	nodes int32
	edges []edge
	first []int32 // of a node, in edges
}

// virtual makes a node.
func (g *graph) virtual() int32 {
	g.nodes++
	return g.nodes - 1
}

func (g *graph) add(e edge) {
	if e.from != e.to {
		g.edges = append(g.edges, e)
	}
}

// finish sorts the edges by their origin.
func (g *graph) finish() {
	g.edges, g.first = group(int(g.nodes), g.edges, func(e *edge) int32 { return e.from })
}

func (g *graph) real(node int32) bool { return node < g.txns }

// view is a part of a graph.
type view struct {
	*graph
	kinds edgeKind
	level level
	// alternating leaves out two read-write edges one after another: its nodes are
	// 2*node, and 2*node+1 where the edge that entered is a read-write edge. A cycle
	// there is one that snapshot isolation forbids (Cerone and Gotsman, Analysing
	// Snapshot Isolation, JACM 2018, theorem 9).
	alternating bool
	// keeps, if not nil, tells whose read-write edges are in the view: those of the
	// transactions whose reads nobody may overwrite before they commit.
	keeps func(txn int32) bool
}

// has tells whether an edge is in the view. A read-write edge leaves a transaction
// always, also where it enters a virtual node.
func (v *view) has(e *edge) bool {
	return e.kind&v.kinds != 0 && e.level <= v.level && (e.kind != edgeRW || v.keeps == nil || v.keeps(e.from))
}

// size is the number of nodes.
func (v *view) size() int32 {
	if v.alternating {
		return 2 * v.nodes
	}
	return v.nodes
}

// base gives the node of the graph.
func (v *view) base(node int32) int32 {
	if v.alternating {
		return node / 2
	}
	return node
}

// follow gives the node to which an edge leads from a node, -1 if it is not in the
// view.
func (v *view) follow(node int32, e *edge) int32 {
	if !v.has(e) {
		return -1
	}
	if !v.alternating {
		return e.to
	}
	switch {
	case e.kind == edgePass:
		return 2*e.to + node%2
	case e.kind != edgeRW:
		return 2 * e.to
	case node%2 == 1:
		return -1
	}
	return 2*e.to + 1
}

// components gives the strongly connected components with two transactions or more,
// by Tarjan's algorithm, without recursion. Those of one call are in no promised
// order, but in the same one each time.
func (v *view) components() [][]int32 {
	n := v.size()
	index := make([]int32, n) // order of discovery, from 1; 0 is undiscovered
	low := make([]int32, n)
	onStack := make([]bool, n)
	var stack []int32
	type frame struct {
		node int32
		next int32 // edge
	}
	var frames []frame
	var found [][]int32
	next := int32(1)
	enter := func(node int32) {
		index[node], low[node] = next, next
		next++
		stack = append(stack, node)
		onStack[node] = true
		frames = append(frames, frame{node, v.first[v.base(node)]})
	}
	for root := range n {
		if index[root] != 0 {
			continue
		}
		enter(root)
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			node := f.node
			if f.next < v.first[v.base(node)+1] {
				e := &v.edges[f.next]
				f.next++
				to := v.follow(node, e)
				switch {
				case to < 0:
				case index[to] == 0:
					enter(to)
				case onStack[to]:
					low[node] = min(low[node], index[to])
				}
				continue
			}
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				up := frames[len(frames)-1].node
				low[up] = min(low[up], low[node])
			}
			if low[node] != index[node] {
				continue
			}
			at := len(stack) - 1
			for ; stack[at] != node; at-- {
				onStack[stack[at]] = false
			}
			onStack[node] = false
			if v.several(stack[at:]) {
				found = append(found, slices.Clone(stack[at:]))
			}
			stack = stack[:at]
		}
	}
	return found
}

// several tells whether nodes hold two transactions.
func (v *view) several(nodes []int32) bool {
	one := int32(-1)
	for _, node := range nodes {
		b := v.base(node)
		if !v.real(b) {
			continue
		}
		if one >= 0 && b != one {
			return true
		}
		one = b
	}
	return false
}

// goal says which cycles a search looks for. Each begins with a given edge.
type goal uint8

const (
	// goalPlain: no read-write edge but the first, if that is one.
	goalPlain goal = iota
	// goalFork: the first edge is a read-write edge, there is another, and no two
	// follow each other.
	goalFork
	// goalAlternating: no two read-write edges follow each other. If the component is
	// one of an alternating view, there is such a cycle.
	goalAlternating
	// goalSkew: two read-write edges follow each other somewhere.
	goalSkew
	// goalAny: any cycle. If the component is one of a plain view, there is one.
	goalAny
)

// The state of a search at a node, beside the node.
const (
	stateRW     = 1 << iota // the last edge between transactions is a read-write edge
	stateFlag               // what the goal looks for was met
	statePassed             // another transaction lies on the way
	states
)

// finder looks for short cycles. It keeps its memory between searches.
type finder struct {
	visited []int32 // by node and state: the number of the search
	search  int32
	tree    []step
	now     []int32
	next    []int32
	// budget is how many steps all searches together may still take beyond the first
	// search for each goal of a component.
	budget int
}

// step is a node that a search has reached, in a tree of places.
type step struct {
	node  int32
	state int32
	up    int32
	edge  int32
}

// cycle looks for the shortest cycle, by the number of transactions, that begins with
// the edge at place first, stays among the nodes that in admits, and fits the goal. It
// gives the places of its edges, nil if there is none.
func (f *finder) cycle(v *view, first int32, want goal, in func(node int32) bool) []int32 {
	if f.visited == nil {
		f.visited = make([]int32, int(v.nodes)*states)
	}
	f.search++
	f.tree, f.now, f.next = f.tree[:0], f.now[:0], f.next[:0]
	begin := &v.edges[first]
	home := begin.from
	firstRW := begin.kind == edgeRW
	state := int32(0)
	if firstRW {
		state |= stateRW
	}
	if v.real(begin.to) {
		state |= statePassed
	}
	f.tree = append(f.tree, step{begin.to, state, -1, first})
	f.now = append(f.now, 0)
	for len(f.now) > 0 {
		place := f.now[len(f.now)-1]
		f.now = f.now[:len(f.now)-1]
		s := f.tree[place]
		at := int(s.node)*states + int(s.state)
		if f.visited[at] != f.search {
			f.visited[at] = f.search
			f.budget--
			for i := v.first[s.node]; i < v.first[s.node+1]; i++ {
				e := &v.edges[i]
				if !v.has(e) || !in(e.to) {
					continue
				}
				state, ok := follow(s.state, e, want)
				if !ok {
					continue
				}
				isReal := v.real(e.to)
				if e.to == home {
					if state&statePassed == 0 {
						continue
					}
					if done(state, firstRW, want) {
						return f.path(place, i)
					}
					if want != goalAlternating {
						continue
					}
				} else if isReal {
					state |= statePassed
				}
				f.tree = append(f.tree, step{e.to, state, place, i})
				if isReal {
					f.next = append(f.next, int32(len(f.tree)-1))
				} else {
					f.now = append(f.now, int32(len(f.tree)-1))
				}
			}
		}
		if len(f.now) == 0 {
			f.now, f.next = f.next, f.now
			// In the order in which they were found.
			slices.Reverse(f.now)
		}
	}
	return nil
}

// follow gives the state after an edge.
func follow(state int32, e *edge, want goal) (int32, bool) {
	switch {
	case e.kind == edgePass:
	case e.kind != edgeRW:
		state &^= stateRW
	case want == goalPlain:
		return 0, false
	case want == goalFork || want == goalAlternating:
		if state&stateRW != 0 {
			return 0, false
		}
		state |= stateRW
		if want == goalFork {
			state |= stateFlag
		}
	case want == goalSkew:
		if state&stateRW != 0 {
			state |= stateFlag
		}
		state |= stateRW
	case want == goalAny:
		state |= stateRW
	}
	if want == goalAny || want == goalPlain {
		state &^= stateRW
	}
	return state, true
}

// done tells whether a cycle that is back at its beginning fits the goal.
func done(state int32, firstRW bool, want goal) bool {
	switch want {
	case goalFork:
		return state&stateFlag != 0 && state&stateRW == 0
	case goalAlternating:
		return !firstRW || state&stateRW == 0
	case goalSkew:
		return state&stateFlag != 0 || firstRW && state&stateRW != 0
	case goalPlain, goalAny:
	}
	return true
}

// path gives the edges of a search from its beginning, and one more.
func (f *finder) path(place, last int32) []int32 {
	edges := []int32{last}
	for ; place >= 0; place = f.tree[place].up {
		edges = append(edges, f.tree[place].edge)
	}
	slices.Reverse(edges)
	return edges
}

// hop is a dependency between two transactions, through virtual nodes perhaps.
type hop struct {
	first, last *edge // the same if direct
	level       level
}

func (p hop) from() int32 { return p.first.from }

func (p hop) to() int32 { return p.last.to }

func (p hop) kind() edgeKind { return p.first.kind }

// hops puts the edges of a closed walk together to hops between transactions, and cuts
// it down to a simple cycle. Of a walk in which no two read-write edges follow each
// other it keeps a cycle with that property.
func (g *graph) hops(walk []int32) []hop {
	var all []hop
	for i := 0; i < len(walk); i++ {
		p := hop{first: &g.edges[walk[i]], last: &g.edges[walk[i]], level: g.edges[walk[i]].level}
		for !g.real(p.last.to) {
			i++
			p.last = &g.edges[walk[i]]
			p.level = max(p.level, p.last.level)
		}
		if p.from() != p.to() {
			all = append(all, p)
		}
	}
	for {
		from, to := repeated(all)
		if from < 0 {
			return all
		}
		// The transaction is left at from and again at to. Of the two cycles that
		// meet there one is entered and left by other than read-write edges, or
		// either will do.
		inner := all[from:to]
		if inner[0].kind() == edgeRW && inner[len(inner)-1].kind() == edgeRW {
			all = slices.Concat(all[:from], all[to:])
		} else {
			all = slices.Clone(inner)
		}
	}
}

// repeated finds two hops that leave the same transaction, with none repeated between
// them.
func repeated(all []hop) (from, to int) {
	last := map[int32]int{}
	for i := range all {
		if at, ok := last[all[i].from()]; ok {
			return at, i
		}
		last[all[i].from()] = i
	}
	return -1, -1
}

// classify names a cycle.
func classify(cycle []hop) (Kind, level) {
	var l level
	kinds := edgeKind(0)
	forks, adjacent := 0, false
	for i := range cycle {
		l = max(l, cycle[i].level)
		kinds |= cycle[i].kind()
		if cycle[i].kind() == edgeRW {
			forks++
			adjacent = adjacent || cycle[(i+1)%len(cycle)].kind() == edgeRW
		}
	}
	switch {
	case forks == 1:
		return KindGSingle, l
	case forks > 0 && adjacent:
		return KindG2Item, l
	case forks > 0:
		return KindLongFork, l
	case kinds&edgeWR != 0:
		return KindG1c, l
	}
	return KindG0, l
}
