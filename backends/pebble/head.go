package pebble

import (
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// head is what a column's head holds: everything that a condition asks for, and
// what a read of the newest version needs.
type head struct {
	lockTS, markTS, writeTS rowstore.Timestamp // 0 where there is none
	// older is 0 if there is no write below writeTS, else the timestamp of the newest of
	// them or a later one.
	older             rowstore.Timestamp
	lock, mark, write []byte // values
}

// The encoding: one byte of flags, each present timestamp as 8 bytes in the order
// lock, mark, write, older, the length of the lock's value as an unsigned varint
// (if there is a lock) and that value, the same for the mark's value (if it is not
// empty), and the rest is the write's value. The upper bits of the flags are the
// version of the encoding, 0.
const (
	headLock  = 1 << 0
	headMark  = 1 << 1
	headWrite = 1 << 2
	headOlder = 1 << 3
	headValue = 1 << 4 // the mark has a value, which none of the protocol's has
	headAll   = headLock | headMark | headWrite | headOlder | headValue
)

func (h *head) empty() bool { return h.lockTS == 0 && h.markTS == 0 && h.writeTS == 0 }

// size is an upper bound of the length of the encoding.
func (h *head) size() int {
	return 1 + 4*kit.TimestampLen + 2*binary.MaxVarintLen64 + len(h.lock) + len(h.mark) + len(h.write)
}

func (h *head) append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, 0)
	var flags byte
	for i, ts := range [...]rowstore.Timestamp{h.lockTS, h.markTS, h.writeTS, h.older} {
		if ts != 0 {
			flags |= 1 << i
			dst = binary.BigEndian.AppendUint64(dst, uint64(ts))
		}
	}
	if h.lockTS != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(h.lock)))
		dst = append(dst, h.lock...)
	}
	if h.markTS != 0 && len(h.mark) > 0 {
		flags |= headValue
		dst = binary.AppendUvarint(dst, uint64(len(h.mark)))
		dst = append(dst, h.mark...)
	}
	dst[at] = flags
	if h.writeTS != 0 {
		dst = append(dst, h.write...)
	}
	return dst
}

// decode reads a head. Its values are parts of b.
func (h *head) decode(b []byte) error {
	*h = head{}
	if len(b) == 0 {
		return corruptHead("is empty")
	}
	flags := b[0]
	b = b[1:]
	if flags&^headAll != 0 {
		return corruptHead(fmt.Sprintf("has flags %#x", flags))
	}
	if flags&headOlder != 0 && flags&headWrite == 0 || flags&headValue != 0 && flags&headMark == 0 || flags == 0 {
		return corruptHead(fmt.Sprintf("has flags %#x", flags))
	}
	for i, ts := range [...]*rowstore.Timestamp{&h.lockTS, &h.markTS, &h.writeTS, &h.older} {
		if flags&(1<<i) == 0 {
			continue
		}
		if len(b) < kit.TimestampLen {
			return corruptHead("ends within a timestamp")
		}
		*ts = rowstore.Timestamp(binary.BigEndian.Uint64(b))
		if !validTS(*ts) {
			return corruptHead(fmt.Sprintf("has the timestamp %d", uint64(*ts)))
		}
		b = b[kit.TimestampLen:]
	}
	if h.older >= h.writeTS && h.older != 0 {
		return corruptHead("has an older write above the newest")
	}
	var ok bool
	if h.lockTS != 0 {
		if h.lock, b, ok = cutValue(b); !ok {
			return corruptHead("ends within the value of a lock")
		}
	}
	if flags&headValue != 0 {
		if h.mark, b, ok = cutValue(b); !ok {
			return corruptHead("ends within the value of a mark")
		}
	}
	if h.writeTS != 0 {
		h.write, b = b[:len(b):len(b)], nil
	}
	if len(b) != 0 {
		return corruptHead("has bytes left over")
	}
	return nil
}

// cutValue splits off a value with its length before it.
func cutValue(b []byte) (value, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	end := k + int(n)
	return b[k:end:end], b[end:], true
}

func validTS(ts rowstore.Timestamp) bool { return ts > 0 && ts <= oracle.Max }

func corruptHead(what string) error {
	return fmt.Errorf("%w: the head of a column %s", rowstore.ErrCorrupt, what)
}
