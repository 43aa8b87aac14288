package format

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/percolate-go/percolate/internal/hash"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// Member is what a worker says of itself to the other workers. Each worker has a row
// of TableMembers. The record is a Lock version of ColumnMember, at the timestamp of the
// joining, so that a lease can be renewed only while the record stands. The lease is a
// Write version of ColumnLease, at its end. Members are hints about who does which work.
// Correctness never depends on them.
type Member struct {
	From  Timestamp     // from which on the member has shares
	Until Timestamp     // up to which it has them; 0 while it stays
	Lease time.Duration // how long its lease lasts, at least; whole microseconds
	Works []MemberWork
}

// MemberWork is an observer that a member runs. Names are stored ones.
type MemberWork struct {
	Observer, Table, Column string
	// Weight is in proportion to the share of the changes that the member wants. It is 0
	// while the member cannot begin anything.
	Weight int
}

// MaxWeight is the greatest weight that a record can have.
const MaxWeight = math.MaxInt32

// Encode returns the stored bytes.
func (m *Member) Encode() []byte {
	b := []byte{Version}
	b = binary.AppendUvarint(b, uint64(m.From))
	b = binary.AppendUvarint(b, uint64(m.Until))
	b = binary.AppendUvarint(b, uint64(max(m.Lease.Microseconds(), 0)))
	b = binary.AppendUvarint(b, uint64(len(m.Works)))
	for _, w := range m.Works {
		b = appendString(b, w.Observer)
		b = appendString(b, w.Table)
		b = appendString(b, w.Column)
		b = binary.AppendUvarint(b, uint64(max(w.Weight, 0)))
	}
	return b
}

// DecodeMember undoes Member.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeMember(b []byte) (Member, error) {
	var m Member
	if err := checkVersion(b, "member"); err != nil {
		return m, err
	}
	rest := b[1:]
	var n [4]uint64
	for i := range n {
		v, w := binary.Uvarint(rest)
		if w <= 0 {
			return m, fmt.Errorf("%w: member: bad number", ErrCorrupt)
		}
		n[i], rest = v, rest[w:]
	}
	if n[0] > uint64(oracle.Max) || n[1] > uint64(oracle.Max) || n[2] > math.MaxInt64/1000 || n[3] > uint64(len(rest)) {
		return m, fmt.Errorf("%w: member: out of range", ErrCorrupt)
	}
	m.From, m.Until, m.Lease = Timestamp(n[0]), Timestamp(n[1]), time.Duration(n[2])*time.Microsecond //nolint:gosec // checked
	for range n[3] {
		var w MemberWork
		var err error
		for _, s := range []*string{&w.Observer, &w.Table, &w.Column} {
			if *s, rest, err = takeString(rest); err != nil {
				return Member{}, fmt.Errorf("%w: member: bad string", ErrCorrupt)
			}
		}
		weight, used := binary.Uvarint(rest)
		if used <= 0 || weight > MaxWeight {
			return Member{}, fmt.Errorf("%w: member: bad weight", ErrCorrupt)
		}
		w.Weight, rest = int(weight), rest[used:]
		m.Works = append(m.Works, w)
	}
	if len(rest) > 0 {
		return Member{}, fmt.Errorf("%w: member: %d bytes too many", ErrCorrupt, len(rest))
	}
	return m, nil
}

// Answer is what a member says to a barrier (ColumnBarrier). It is a Write version of
// ColumnAnswer in the member's row, at the timestamp of the barrier that the member had
// read before it counted.
type Answer struct {
	Works []WorkCount // in the order of Member.Works
}

// WorkCount is how far a member is with an observer.
type WorkCount struct {
	Begun   uint64 // calls of the function since the process has started
	Running uint32 // runs under way, and commits that a worker has left open as it stopped
}

// Encode returns the stored bytes.
func (a *Answer) Encode() []byte {
	b := binary.AppendUvarint([]byte{Version}, uint64(len(a.Works)))
	for _, w := range a.Works {
		b = binary.AppendUvarint(binary.AppendUvarint(b, w.Begun), uint64(w.Running))
	}
	return b
}

// DecodeAnswer undoes Answer.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeAnswer(b []byte) (Answer, error) {
	var a Answer
	if err := checkVersion(b, "answer"); err != nil {
		return a, err
	}
	next := func() (n uint64, ok bool) {
		n, used := binary.Uvarint(b)
		if used > 0 {
			b = b[used:]
		}
		return n, used > 0
	}
	b = b[1:]
	n, ok := next()
	if !ok || n > uint64(len(b))/2 {
		return a, fmt.Errorf("%w: answer: bad number of observers", ErrCorrupt)
	}
	for range n {
		begun, ok := next()
		running, ok2 := next()
		if !ok || !ok2 || running > math.MaxUint32 {
			return Answer{}, fmt.Errorf("%w: answer: bad count", ErrCorrupt)
		}
		a.Works = append(a.Works, WorkCount{begun, uint32(running)})
	}
	if len(b) > 0 {
		return Answer{}, fmt.Errorf("%w: answer: %d bytes too many", ErrCorrupt, len(b))
	}
	return a, nil
}

// MemberSeed is the number that stands for a member when slots are shared out.
func MemberSeed(id string) uint64 { return hash.Mix(hash.String(hash.Start, id)) }
