package checker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/percolate-go/percolate/checker"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// simulation makes histories that are correct: it runs transactions of several
// processes over versions, step by step in an order that the seed decides, and
// commits those that snapshot isolation (or, for serializable ones, their reads)
// permits.
type simulation struct {
	Seed         uint64
	Txns         int
	Processes    int
	Keys         int
	Ops          int     // of a transaction, at most
	Lists        bool    // else registers
	Serializable float64 // share of the transactions
	Unknown      float64
	Aborted      float64 // for no reason
	Lock         float64 // share of the reads
	AsOf         float64
	Observed     int  // the first keys are observed by "o", with one more process for its runs
	ReadAll      bool // the last transaction reads every key
	Repeat       bool // values are not unique
}

type simVersion struct {
	commit oracle.Timestamp
	value  checker.Op // a Read or ReadList of it
}

type simProcess struct {
	number int
	stage  int // 0 idle, 1 invoked, 2 running, 3 to be completed
	left   int
	place  int
	txn    checker.Txn
	own    map[string]checker.Op
	read   []string
	locked []string
}

type simulator struct {
	simulation
	rng   *rand.Rand
	now   int64
	ts    oracle.Timestamp
	value int64
	data  map[string][]simVersion
	marks map[string]oracle.Timestamp
	acks  map[string]oracle.Timestamp // start of the last committed run
	ackAt map[string]oracle.Timestamp // its commit
	late  []*simProcess               // of unknown outcome, perhaps still to be committed
	h     checker.History
}

func (s simulation) run() checker.History {
	m := &simulator{
		simulation: s, rng: rand.New(rand.NewPCG(s.Seed, 5)), data: map[string][]simVersion{}, ts: 10,
		marks: map[string]oracle.Timestamp{}, acks: map[string]oracle.Timestamp{}, ackAt: map[string]oracle.Timestamp{},
	}
	processes := make([]*simProcess, s.Processes)
	for i := range processes {
		processes[i] = &simProcess{number: i}
	}
	for len(m.h) < s.Txns {
		p := processes[m.rng.IntN(len(processes))]
		m.step(p, p.number < s.Observed)
		if len(m.late) > 0 && m.rng.IntN(20) == 0 {
			i := m.rng.IntN(len(m.late))
			m.commit(m.late[i])
			m.late = slices.Delete(m.late, i, i+1)
		}
	}
	// End what is under way.
	for _, p := range processes {
		for p.stage != 0 {
			m.step(p, false)
		}
	}
	if s.Observed > 0 {
		p := &simProcess{number: s.Processes}
		for again := true; again; {
			again = false
			for k := range s.Observed {
				key := m.key(k)
				if vs := m.data[key]; len(vs) > 0 && vs[len(vs)-1].commit > m.acks[key] {
					again = true
					m.begin(p, key)
					for p.stage != 0 {
						m.step(p, true)
					}
				}
			}
		}
	}
	if s.ReadAll {
		p := &simProcess{number: s.Processes + 1}
		m.begin(p, "")
		m.step(p, false)
		for k := range s.Keys {
			m.readKey(p, m.key(k))
		}
		p.left = 0
		for p.stage != 0 {
			m.step(p, false)
		}
	}
	return m.h
}

func (m *simulator) key(i int) string { return fmt.Sprintf("k%d", i) }

func (m *simulator) tick() int64 {
	m.now++
	return m.now
}

func (m *simulator) draw() oracle.Timestamp {
	m.ts += oracle.Timestamp(1 + m.rng.IntN(2))
	return m.ts
}

func (m *simulator) begin(p *simProcess, observed string) {
	*p = simProcess{number: p.number, stage: 1, left: 1 + m.rng.IntN(m.Ops), own: map[string]checker.Op{}}
	p.txn = checker.Txn{Process: p.number, Invoke: m.tick()}
	if m.rng.Float64() < m.Serializable {
		p.txn.Isolation = checker.Serializable
	}
	p.place = len(m.h)
	m.h = append(m.h, p.txn)
	if observed != "" {
		p.txn.Run = &checker.Run{Observer: "o", Key: observed}
		p.left = 0
	}
}

func (m *simulator) step(p *simProcess, observes bool) {
	switch p.stage {
	case 0:
		observed := ""
		if observes {
			observed = m.key(m.rng.IntN(m.Observed))
			if vs := m.data[observed]; len(vs) == 0 || vs[len(vs)-1].commit <= m.acks[observed] {
				return
			}
		}
		m.begin(p, observed)
	case 1:
		p.txn.Start = m.draw()
		if p.txn.Run == nil && m.rng.Float64() < m.AsOf {
			p.txn.AsOf = true
			p.txn.Start = 1 + oracle.Timestamp(m.rng.Uint64N(uint64(m.ts)))
		}
		p.stage = 2
		if p.txn.Run != nil {
			m.readKey(p, p.txn.Run.Key)
			// Another run may have been quicker.
			if m.acks[p.txn.Run.Key] >= m.newest(p.txn.Run.Key, p.txn.Start) {
				p.txn.Outcome, p.txn.Complete, p.stage = checker.Aborted, m.tick(), 3
			}
		}
	case 2:
		if p.left--; p.left >= 0 {
			m.op(p)
			return
		}
		m.end(p)
		p.stage = 3
	case 3:
		if p.txn.Outcome != checker.Unknown {
			p.txn.Complete = m.tick()
		}
		m.h[p.place] = p.txn
		p.stage = 0
	}
}

func (m *simulator) newest(key string, at oracle.Timestamp) oracle.Timestamp {
	found := oracle.Timestamp(0)
	for _, v := range m.data[key] {
		if v.commit <= at {
			found = v.commit
		}
	}
	return found
}

func (m *simulator) snapshot(key string, at oracle.Timestamp) checker.Op {
	op := checker.Op{Kind: checker.Read, Absent: true, Key: key}
	if m.Lists {
		op = checker.Op{Kind: checker.ReadList, Key: key}
	}
	vs := m.data[key]
	for i := len(vs) - 1; i >= 0; i-- {
		if vs[i].commit <= at {
			return vs[i].value
		}
	}
	return op
}

func (m *simulator) readKey(p *simProcess, key string) {
	op, ok := p.own[key]
	if !ok {
		op = m.snapshot(key, p.txn.Start)
		p.read = append(p.read, key)
	}
	op.List = slices.Clone(op.List)
	if !p.txn.AsOf && m.rng.Float64() < m.Lock {
		op.Locks = true
		p.locked = append(p.locked, key)
	}
	p.txn.Ops = append(p.txn.Ops, op)
}

func (m *simulator) op(p *simProcess) {
	key := m.key(m.rng.IntN(m.Keys))
	if p.txn.AsOf || m.rng.IntN(2) == 0 {
		m.readKey(p, key)
		return
	}
	m.value++
	v := m.value
	if m.Repeat {
		v = int64(m.rng.IntN(3))
	}
	if m.Lists {
		now, ok := p.own[key]
		if !ok {
			now = m.snapshot(key, p.txn.Start)
		}
		now.List = append(slices.Clone(now.List), v)
		p.own[key] = now
		p.txn.Ops = append(p.txn.Ops, checker.Op{Kind: checker.Append, Key: key, Value: v})
		return
	}
	if m.Repeat && v == 0 {
		p.own[key] = checker.Op{Kind: checker.Read, Key: key, Absent: true}
		p.txn.Ops = append(p.txn.Ops, checker.Op{Kind: checker.Write, Key: key, Absent: true})
		return
	}
	p.own[key] = checker.Op{Kind: checker.Read, Key: key, Value: v}
	p.txn.Ops = append(p.txn.Ops, checker.Op{Kind: checker.Write, Key: key, Value: v})
}

// end commits, or not, and decides what the client learns of it.
func (m *simulator) end(p *simProcess) {
	switch {
	case m.rng.Float64() < m.Aborted:
		p.txn.Outcome = checker.Aborted
	case m.rng.Float64() < m.Unknown:
		p.txn.Outcome = checker.Unknown
		switch m.rng.IntN(3) {
		case 0:
		case 1:
			late := *p
			m.late = append(m.late, &late)
		case 2:
			m.commit(p)
		}
		p.txn.Outcome, p.txn.Commit = checker.Unknown, 0
	default:
		p.txn.Outcome = checker.Aborted
		if m.commit(p) {
			p.txn.Outcome = checker.Committed
		}
	}
}

func (m *simulator) commit(p *simProcess) bool {
	// Nobody may have written what it writes, nor locked it, nor, where that was
	// promised, what it read.
	for key := range p.own {
		if m.newest(key, oracle.Max) > p.txn.Start || m.marks[key] > p.txn.Start {
			return false
		}
	}
	run := p.txn.Run
	if len(p.own) > 0 {
		kept := p.locked
		if p.txn.Isolation == checker.Serializable {
			kept = slices.Concat(p.locked, p.read)
		}
		for _, key := range kept {
			if m.newest(key, oracle.Max) > p.txn.Start {
				return false
			}
		}
	} else if run == nil {
		return true
	}
	if run != nil {
		if m.ackAt[run.Key] > p.txn.Start {
			return false
		}
		m.acks[run.Key] = p.txn.Start
	}
	p.txn.Commit = m.draw()
	if run != nil {
		m.ackAt[run.Key] = p.txn.Commit
	}
	for key, value := range p.own {
		m.data[key] = append(m.data[key], simVersion{p.txn.Commit, value})
	}
	for _, key := range p.locked {
		if len(p.own) > 0 {
			m.marks[key] = p.txn.Commit
		}
	}
	return true
}
