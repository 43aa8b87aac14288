package keys

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Reader takes a row's key apart, element by element, in the order in which they were
// appended. After an error all its methods return zero values; so one look at Err at the end
// is enough. It may not be used concurrently.
type Reader struct {
	key  string
	left string
	err  error
}

// Read begins with the first element of a row's key. A bucket that a Spread has put there is passed over.
func Read(row string) *Reader {
	r := &Reader{key: row, left: row}
	if len(row) >= 2 && row[0] == codeBucket {
		r.left = row[2:]
	}
	return r
}

// More tells whether elements are left. It is false after an error.
func (r *Reader) More() bool { return r.err == nil && r.left != "" }

// Err returns the first error, which matches ErrKey; nil if there was none. Elements that are left are no error: see End.
func (r *Reader) Err() error { return r.err }

// End is Err, and an error if elements are left.
func (r *Reader) End() error {
	if r.More() {
		r.fail("has further elements")
	}
	return r.err
}

func (r *Reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %q at byte %d %s", ErrKey, r.key, len(r.key)-len(r.left), what)
	}
	r.left = ""
}

// Bytes reads an element made by Key.Bytes. The slice is the caller's, and never nil without an error.
func (r *Reader) Bytes() []byte {
	s, ok := r.escaped(codeBytes, "bytes")
	if !ok {
		return nil
	}
	return append(make([]byte, 0, len(s)), s...)
}

// Text reads an element made by Key.Text.
func (r *Reader) Text() string {
	s, _ := r.escaped(codeText, "a text")
	return s
}

func (r *Reader) escaped(code byte, kind string) (s string, ok bool) {
	raw, ok := r.raw(code, kind)
	return strings.ReplaceAll(raw, escapedZero, string([]byte{endOfText})), ok
}

var escapedZero = string([]byte{endOfText, escape})

// raw is what stands between the code and the end of bytes or a text.
func (r *Reader) raw(code byte, kind string) (raw string, ok bool) {
	if !r.is(code, kind) {
		return "", false
	}
	for i := 1; i < len(r.left); i++ {
		switch {
		case r.left[i] != endOfText:
		case i+1 < len(r.left) && r.left[i+1] == escape:
			i++
		default:
			raw, r.left = r.left[1:i], r.left[i+1:]
			return raw, true
		}
	}
	r.fail("begins " + kind + " that does not end")
	return "", false
}

func (r *Reader) is(code byte, kind string) bool {
	switch {
	case r.err != nil:
		return false
	case r.left == "":
		r.fail("ends, and " + kind + " was expected")
	case r.left[0] != code:
		r.fail("has " + kindOf(r.left[0]) + ", and " + kind + " was expected")
	}
	return r.err == nil
}

// Int reads an element made by Key.Int, or by Key.Uint if it is below 2^63; another one is an
// error.
func (r *Reader) Int() int64 {
	u, negative := r.number()
	switch {
	case negative && u <= 1<<63:
		return -int64(u) //nolint:gosec // also the least integer
	case negative || u > math.MaxInt64:
		r.fail("has an integer before this one that does not fit into 64 bits with a sign")
		return 0
	}
	return int64(u)
}

// Uint reads an element made by Key.Uint, or by Key.Int if it is not negative; another one is an error.
func (r *Reader) Uint() uint64 {
	u, negative := r.number()
	if negative {
		r.fail("has a negative integer before it")
		return 0
	}
	return u
}

func (r *Reader) number() (u uint64, negative bool) {
	const kind = "an integer"
	if r.err != nil {
		return 0, false
	}
	if r.left == "" || r.left[0] < codeZero-8 || r.left[0] > codeZero+8 {
		r.is(codeZero, kind) // it is not, and says why
		return 0, false
	}
	size := int(r.left[0]) - codeZero
	if negative = size < 0; negative {
		size = -size
	}
	if len(r.left) < 1+size {
		r.fail("begins " + kind + " that does not end")
		return 0, false
	}
	var b [8]byte
	copy(b[8-size:], r.left[1:1+size])
	if u = binary.BigEndian.Uint64(b[:]); negative {
		u = ^u & (math.MaxUint64 >> (64 - 8*size))
	}
	if width(u) != size {
		r.fail("has " + kind + " with leading zeros, which no key has")
		return 0, false
	}
	r.left = r.left[1+size:]
	return u, negative
}

// Time reads an element made by Key.Time, as a time in UTC.
func (r *Reader) Time() time.Time {
	const kind = "a time"
	if !r.is(codeTime, kind) {
		return time.Time{}
	}
	if len(r.left) < 13 {
		r.fail("begins " + kind + " that does not end")
		return time.Time{}
	}
	b := []byte(r.left[1:13])
	nanoseconds := binary.BigEndian.Uint32(b[8:])
	if nanoseconds >= 1e9 {
		r.fail("has a time with more than a second of nanoseconds")
		return time.Time{}
	}
	r.left = r.left[13:]
	return time.Unix(int64(binary.BigEndian.Uint64(b)^signBit), int64(nanoseconds)).UTC() //nolint:gosec // the reverse of Key.Time
}

// Check returns nil for a tuple, as the methods of Key and Spread make it, and otherwise an error that matches ErrKey: for Key("ann"), say, which is
// not Key("").Text("ann").
func (k Key) Check() error {
	r := Read(string(k))
	for r.More() {
		switch code := r.left[0]; kindOf(code) {
		case "bytes":
			r.raw(code, "bytes")
		case "a text":
			r.raw(code, "a text")
		case "an integer":
			r.number()
		case "a time":
			r.Time()
		default:
			r.fail("has " + kindOf(code) + " where an element begins")
		}
	}
	return r.err
}

func kindOf(code byte) string {
	switch {
	case code == codeBytes:
		return "bytes"
	case code == codeText:
		return "a text"
	case code >= codeZero-8 && code <= codeZero+8:
		return "an integer"
	case code == codeTime:
		return "a time"
	case code == codeBucket:
		return "a bucket"
	}
	return "something else"
}

// Describe writes a row's key for people, in logs and errors: ("order", 7, 2026-01-02T03:04:05Z). What it cannot read it
// quotes. Do not use it as a key.
func Describe(row string) string {
	var b strings.Builder
	r := Read(row)
	if len(r.left) < len(row) {
		b.WriteString(strconv.Itoa(int(row[1])) + ": ")
	}
	b.WriteByte('(')
	for i := 0; r.More(); i++ {
		if i > 0 {
			b.WriteString(", ")
		}
		left := r.left
		switch kindOf(left[0]) {
		case "bytes":
			fmt.Fprintf(&b, "0x%x", r.Bytes())
		case "a text":
			b.WriteString(strconv.Quote(r.Text()))
		case "an integer":
			if u, negative := r.number(); negative {
				b.WriteString("-" + strconv.FormatUint(u, 10))
			} else {
				b.WriteString(strconv.FormatUint(u, 10))
			}
		case "a time":
			b.WriteString(r.Time().Format(time.RFC3339Nano))
		default:
			r.fail("")
		}
		if r.err != nil {
			return strconv.Quote(row)
		}
	}
	b.WriteByte(')')
	return b.String()
}
