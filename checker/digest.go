package checker

import (
	"fmt"
	"slices"
)

// digest is a history cut down to what its transactions saw of each other and did to
// each other: their external reads, and their last writes.
type digest struct {
	h      History
	keys   []string
	list   []bool // of a key: whether it is a list
	byName map[string]int32
	reads  []extRead
	writes []extWrite
	// elements holds what writes append, one after another.
	elements []int64
}

// extRead is the first read of a key by a transaction that did not write it before,
// or, of a list, a read without the transaction's own appends.
type extRead struct {
	txn, key, op int32
	own          int32 // how many elements at the end are the transaction's own
	locks        bool  // this read, or a later one of the transaction, locks the key
	written      bool  // the transaction writes the key after it
}

// extWrite is what a transaction leaves behind at a key.
type extWrite struct {
	txn, key, op int32 // op is the last write
	several      bool  // the transaction wrote the register more than once
	from, to     int32 // of a list: in elements
}

// keyState is what a transaction knows of a key while its operations are followed.
type keyState struct {
	txn   int32 // whose state it is, plus one
	read  int32 // index in reads, or -1
	write int32 // index in writes, or -1
	// known says that the value is known, and by which operation.
	by int32
}

// newDigest follows each transaction's operations. internal is called for each
// operation that contradicts earlier ones of the same transaction. It returns an
// error if a key is a register and a list.
func newDigest(h History, internal func(txn, op int, text string)) (*digest, error) {
	ops := 0
	for i := range h {
		ops += len(h[i].Ops)
	}
	d := &digest{h: h, byName: map[string]int32{}, reads: make([]extRead, 0, ops/2), writes: make([]extWrite, 0, ops/2)}
	var states []keyState
	// order counts the operations of the transaction on lists that it reads again,
	// which are rare.
	for i := range h {
		t := &h[i]
		for o := range t.Ops {
			op := &t.Ops[o]
			k, ok := d.byName[op.Key]
			isList := op.Kind == ReadList || op.Kind == Append
			if !ok {
				k = int32(len(d.keys))
				d.byName[op.Key] = k
				d.keys = append(d.keys, op.Key)
				d.list = append(d.list, isList)
				states = append(states, keyState{})
			}
			if d.list[k] != isList {
				return nil, fmt.Errorf("checker: key %q is used as a register and as a list", op.Key)
			}
			s := &states[k]
			if s.txn != int32(i)+1 {
				*s = keyState{txn: int32(i) + 1, read: -1, write: -1, by: -1}
			}
			d.again(s, op)
			switch op.Kind {
			case Read:
				if s.by < 0 {
					s.read, s.by = int32(len(d.reads)), int32(o)
					d.reads = append(d.reads, extRead{txn: int32(i), key: k, op: int32(o), locks: op.Locks})
					continue
				}
				if by := &t.Ops[s.by]; by.Value != op.Value || by.Absent != op.Absent {
					internal(i, o, fmt.Sprintf("after %s it has %s", by, op))
				}
			case Write:
				if s.write < 0 {
					s.write = int32(len(d.writes))
					d.writes = append(d.writes, extWrite{txn: int32(i), key: k})
				} else {
					d.writes[s.write].several = true
				}
				d.writes[s.write].op, s.by = int32(o), int32(o)
			case Append:
				if s.write < 0 {
					s.write = int32(len(d.writes))
					d.writes = append(d.writes, extWrite{txn: int32(i), key: k})
					// The elements follow in a second pass over the operations, since
					// those of one write must lie together.
				}
				w := &d.writes[s.write]
				w.op = int32(o)
				w.to++
			case ReadList:
				own := int32(0)
				if s.write >= 0 {
					own = d.writes[s.write].to
				}
				d.readList(s, i, o, own, internal)
			}
		}
	}
	d.collect()
	return d, nil
}

// again notes what an operation on a key that was read before says of that read. So nobody has to look for it among all operations.
func (d *digest) again(s *keyState, op *Op) {
	if s.read >= 0 {
		r := &d.reads[s.read]
		r.locks = r.locks || op.Locks
		r.written = r.written || op.Kind == Write || op.Kind == Append
	}
}

// readList judges a read of a list by the transaction's own operations on it.
func (d *digest) readList(s *keyState, i, o int, own int32, internal func(txn, op int, text string)) {
	t := &d.h[i]
	op := &t.Ops[o]
	if own > 0 {
		// The transaction's own appends must be the end of it, in their order.
		at := len(op.List)
		for p := o - 1; p >= 0 && own > 0; p-- {
			a := &t.Ops[p]
			if a.Kind != Append || a.Key != op.Key {
				continue
			}
			if at--; at < 0 || op.List[at] != a.Value {
				internal(i, o, fmt.Sprintf("after %s it has %s", a, op))
				return
			}
			own--
		}
		own = int32(len(op.List) - at)
	}
	if s.read < 0 {
		s.read = int32(len(d.reads))
		d.reads = append(d.reads, extRead{txn: int32(i), key: d.byName[op.Key], op: int32(o), own: own, locks: op.Locks})
		return
	}
	first := d.reads[s.read]
	base := t.Ops[first.op].List
	base = base[:len(base)-int(first.own)]
	if !slices.Equal(base, op.List[:len(op.List)-int(own)]) {
		internal(i, o, fmt.Sprintf("after %s it has %s", &t.Ops[first.op], op))
	}
}

// collect puts the appended elements of each write together.
func (d *digest) collect() {
	total := int32(0)
	for w := range d.writes {
		if d.list[d.writes[w].key] {
			n := d.writes[w].to
			d.writes[w].from, d.writes[w].to = total, total
			total += n
		}
	}
	d.elements = make([]int64, total)
	// The writes of a transaction follow each other.
	for from := 0; from < len(d.writes); {
		to := from + 1
		for to < len(d.writes) && d.writes[to].txn == d.writes[from].txn {
			to++
		}
		d.collectOf(d.writes[from:to])
		from = to
	}
}

func (d *digest) collectOf(writes []extWrite) {
	var index map[int32]int
	if len(writes) > 8 {
		index = make(map[int32]int, len(writes))
		for w := range writes {
			index[writes[w].key] = w
		}
	}
	t := &d.h[writes[0].txn]
	for o := range t.Ops {
		if t.Ops[o].Kind != Append {
			continue
		}
		w := 0
		if index != nil {
			w = index[d.byName[t.Ops[o].Key]]
		} else {
			for t.Ops[writes[w].op].Key != t.Ops[o].Key {
				w++
			}
		}
		d.elements[writes[w].to] = t.Ops[o].Value
		writes[w].to++
	}
}

// base gives what an external read of a list found, without the own appends.
func (d *digest) base(r *extRead) []int64 {
	l := d.h[r.txn].Ops[r.op].List
	return l[:len(l)-int(r.own)]
}

// appended gives the elements of a write to a list.
func (d *digest) appended(w *extWrite) []int64 { return d.elements[w.from:w.to] }

// group sorts things by key, keeping their order otherwise: those of key k are
// sorted[from[k]:from[k+1]].
func group[T any](keys int, all []T, key func(*T) int32) (sorted []T, from []int32) {
	from = make([]int32, keys+1)
	for i := range all {
		from[key(&all[i])+1]++
	}
	for k := range keys {
		from[k+1] += from[k]
	}
	next := slices.Clone(from)
	sorted = make([]T, len(all))
	for i := range all {
		k := key(&all[i])
		sorted[next[k]] = all[i]
		next[k]++
	}
	return sorted, from
}
