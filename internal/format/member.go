package format

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

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
		if used <= 0 || weight > math.MaxInt32 {
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

// Slots is the number of slots into which the rows of a table fall.
const Slots = 1 << 16

// Slot is the slot of a row of a stored table, below Slots. Workers share the changes
// out by slots, so every program that runs observers of the same data must compute the
// same ones: the function never changes.
func Slot(table, row string) uint32 {
	h := Mix(hashString(hashString(fnvOffset, table)^0xff, row))
	return uint32(h >> 48) //nolint:gosec // 16 bits
}

// The constants of FNV-1a with 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func hashString(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// Mix lets each bit of the result depend on all bits of x. It is the last step of
// MurmurHash3 with 64 bits. It never changes, for the reason that Slot gives.
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// MemberSeed is the number that stands for a member when slots are shared out.
func MemberSeed(id string) uint64 { return Mix(hashString(fnvOffset, id)) }
