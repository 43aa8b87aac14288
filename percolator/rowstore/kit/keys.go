package kit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Keys are made of names and timestamps, one behind the other. The byte order of such keys
// is the order of their parts, whatever bytes a name holds: a zero byte is written as
// 0x00 0xFF, and each name ends with 0x00 0x01. So no name's form is a prefix of another's.
const (
	zero      = 0x00
	escaped   = 0xFF
	endOfName = 0x01
)

// TimestampLen is the length of a timestamp in a key.
const TimestampLen = 8

// AppendName appends the form of a name in a key to dst. The form is at most twice as long
// as the name, and two bytes.
func AppendName(dst []byte, name string) []byte {
	for {
		i := strings.IndexByte(name, zero)
		if i < 0 {
			return append(append(dst, name...), zero, endOfName)
		}
		dst = append(append(dst, name[:i]...), zero, escaped)
		name = name[i+1:]
	}
}

// CutName takes the name off with which a key, or a part of one, begins. The error matches
// rowstore.ErrCorrupt if there is none.
func CutName(key []byte) (name string, rest []byte, err error) {
	raw, rest, err := CutRaw(key)
	if err != nil {
		return "", nil, err
	}
	return NameOf(raw), rest, nil
}

// CutRaw is CutName without the work of decoding: raw is a part of key, the form of the
// name without its end. Two names are the same if their forms are.
func CutRaw(key []byte) (raw, rest []byte, err error) {
	for i := 0; ; {
		j := bytes.IndexByte(key[i:], zero)
		if j < 0 || i+j+1 >= len(key) {
			return nil, nil, badKey(key)
		}
		i += j
		switch key[i+1] {
		case endOfName:
			return key[:i], key[i+2:], nil
		case escaped:
			i += 2
		default:
			return nil, nil, badKey(key)
		}
	}
}

// NameOf decodes what CutRaw returned.
func NameOf(raw []byte) string {
	if bytes.IndexByte(raw, zero) < 0 {
		return string(raw)
	}
	return string(bytes.ReplaceAll(raw, []byte{zero, escaped}, []byte{zero}))
}

// AppendTimestamp appends the form of a timestamp in a key, in which newer ones come first.
func AppendTimestamp(dst []byte, ts rowstore.Timestamp) []byte {
	return binary.BigEndian.AppendUint64(dst, ^uint64(ts))
}

// CutTimestamp takes off the timestamp with which a part of a key begins. The error matches
// rowstore.ErrCorrupt if there is none.
func CutTimestamp(key []byte) (ts rowstore.Timestamp, rest []byte, err error) {
	if len(key) < TimestampLen {
		return 0, nil, badKey(key)
	}
	return rowstore.Timestamp(^binary.BigEndian.Uint64(key)), key[TimestampLen:], nil
}

// PrefixEnd returns the first key behind all keys that begin with prefix, nil if there is
// none. It returns a new slice.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xFF {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}

func badKey(key []byte) error {
	const most = 200
	more := ""
	if len(key) > most {
		key, more = key[:most], "..."
	}
	return fmt.Errorf("%w: the key ending in %q%s", rowstore.ErrCorrupt, key, more)
}
