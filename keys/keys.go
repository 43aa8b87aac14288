package keys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// What an element begins with. The order of these is the order of elements of different kinds. Codes 0x00 and 0xff are
// not used, so that the end of an element sorts before whatever follows it. Integers have a
// code for each length, as in the tuples of FoundationDB, whose codes these are, but for
// that of times.
const (
	codeBytes  = 0x01
	codeText   = 0x02
	codeZero   = 0x14 // the integer 0; n bytes more are codeZero+n, of a negative integer codeZero-n
	codeTime   = 0x40
	codeBucket = 0x41

	// endOfText ends bytes and texts. A zero byte within them is followed by escape.
	endOfText = 0x00
	escape    = 0xff
)

// Key is a tuple of elements, encoded as the key of a row: string(k) is the row. Keys are ordered as
// tuples are, element by element: bytes and texts by their bytes, numbers and times by their values,
// and a tuple before those that go on after it. Elements of different kinds are in the order bytes, texts, integers, times.
// Int and Uint make the same element of the same number.
//
// The zero value is the tuple without elements. A Key does not change: each method returns a longer
// one. Compare keys with == and <.
type Key string

// Bytes returns k with some bytes as a further element. Nil and empty are the same. It
// takes len(b)+2 bytes, and one more for each zero byte.
func (k Key) Bytes(b []byte) Key { return k.escaped(codeBytes, string(b)) }

// Text returns k with a text as a further element. It may hold any bytes, and may be empty. It takes
// len(s)+2 bytes, and one more for each zero byte.
func (k Key) Text(s string) Key { return k.escaped(codeText, s) }

func (k Key) escaped(code byte, s string) Key {
	var b strings.Builder
	b.Grow(len(k) + len(s) + 2)
	b.WriteString(string(k))
	b.WriteByte(code)
	for i := range len(s) {
		b.WriteByte(s[i])
		if s[i] == endOfText {
			b.WriteByte(escape)
		}
	}
	b.WriteByte(endOfText)
	return Key(b.String())
}

// Int returns k with an integer as a further element. It takes one byte for 0, two for 1 to 255 and -1 to -255,
// and nine at most.
func (k Key) Int(i int64) Key {
	if i >= 0 {
		return k.Uint(uint64(i))
	}
	n := magnitude(i)
	size := width(n)
	// The complement within its length: of two negative integers the lesser sorts first.
	return k.fixed(codeZero-byte(size), ^n, size)
}

// Uint returns k with an integer as a further element: that of Int where both can hold it.
func (k Key) Uint(u uint64) Key {
	size := width(u)
	return k.fixed(codeZero+byte(size), u, size)
}

// Time returns k with a time as a further element, to the nanosecond. Its location and its monotonic reading are not
// kept. It takes 13 bytes.
func (k Key) Time(t time.Time) Key {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], uint64(t.Unix())^signBit) //nolint:gosec // the order of signed numbers, kept
	binary.BigEndian.PutUint32(b[8:], uint32(t.Nanosecond()))  //nolint:gosec // below 10^9
	return k + Key([]byte{codeTime}) + Key(b[:])
}

const signBit = 1 << 63

// fixed appends the low size bytes of a number.
func (k Key) fixed(code byte, u uint64, size int) Key {
	var b [9]byte
	b[0] = code
	binary.BigEndian.PutUint64(b[1:], u<<(64-8*size))
	return k + Key(b[:1+size])
}

// width is how many bytes a number takes: none for 0.
func width(u uint64) int { return (bits.Len64(u) + 7) / 8 }

func magnitude(i int64) uint64 { return -uint64(i) } //nolint:gosec // also of the least integer

// Range returns the rows of a table whose keys begin with the elements of k, that of k itself
// included; for the empty tuple all rows. Set its other fields as you need.
func (k Key) Range(table string) percolator.Range {
	r := percolator.Range{Table: table, From: string(k)}
	if k != "" {
		// All elements begin with less. What goes on with escape is a longer text than the last one of k.
		r.To = string(k) + string([]byte{escape})
	}
	return r
}

// Spread puts a number from 0 to its number of buckets, minus 1, before a key, computed from the key. So rows whose keys grow with
// time are spread over a store that keeps neighbours together, and their writers do not all go to one server. To
// visit all rows in order, scan each bucket. The zero value has one bucket.
//
// The numbers are stored in the keys: a table must always be used with the same number of buckets.
type Spread struct{ more uint8 }

// NewSpread returns a Spread with 1 to 256 buckets. Any other number is an error that
// matches percolator.ErrInvalid.
func NewSpread(buckets int) (Spread, error) {
	if buckets < 1 || buckets > 256 {
		return Spread{}, fmt.Errorf("keys: NewSpread: %w: %d buckets; there may be 1 to 256", percolator.ErrInvalid, buckets)
	}
	return Spread{uint8(buckets - 1)}, nil //nolint:gosec // checked above
}

// Buckets is the number of buckets.
func (s Spread) Buckets() int { return int(s.more) + 1 }

// Key returns k behind its bucket. Elements that are appended afterwards do not change the bucket: the rows
// of one customer stay together in Key(customer).Time(t).
func (s Spread) Key(k Key) Key {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k))
	// The low bits of FNV depend on the low bits of the bytes alone, so they are mixed with the high ones.
	sum := h.Sum64()
	sum ^= sum >> 32
	return bucket(int(sum%uint64(s.Buckets()))) + k //nolint:gosec // below 256
}

// Ranges returns for each bucket the rows whose keys begin with the elements of k: use it with the elements
// that follow the bucket, when the whole key that Key was called with is not known.
func (s Spread) Ranges(table string, k Key) []percolator.Range {
	ranges := make([]percolator.Range, s.Buckets())
	for i := range ranges {
		ranges[i] = (bucket(i) + k).Range(table)
	}
	return ranges
}

func bucket(i int) Key { return Key([]byte{codeBucket, byte(i)}) }

// ErrKey is matched by the errors of a Reader: a key has other elements than it was asked for, or is not made by this
// package.
var ErrKey = errors.New("keys: the key has another form")
