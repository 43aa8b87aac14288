package postgres

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
)

// Lists are sent in the binary format of arrays, made here: a batch has twenty of
// them, and going through reflection for each would cost more than the batch.

// Object identifiers of the types of elements.
const (
	oidBool  = 16
	oidBytea = 17
	oidInt8  = 20
	oidInt2  = 21
	oidInt4  = 23
	oidText  = 25
)

// array is a one-dimensional array under construction, or NULL while empty is not
// asked for.
type array struct {
	buf  []byte
	oid  uint32
	n    int
	null bool // an element is NULL
}

const arrayHeader = 20

func (a *array) reset(oid uint32) {
	a.oid = oid
	a.n = 0
	a.null = false
	if cap(a.buf) > 1<<20 {
		a.buf = nil
	}
	a.buf = append(a.buf[:0], make([]byte, arrayHeader)...)
}

func (a *array) string(s string) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(s))) //nolint:gosec // limited to far less
	a.buf = append(a.buf, s...)
	a.n++
}

// bytes adds a value; an empty one is NULL, which is shorter.
func (a *array) bytes(b []byte) {
	if len(b) == 0 {
		a.none()
		return
	}
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(b))) //nolint:gosec // limited to far less
	a.buf = append(a.buf, b...)
	a.n++
}

func (a *array) none() {
	a.buf = binary.BigEndian.AppendUint32(a.buf, math.MaxUint32)
	a.null = true
	a.n++
}

func (a *array) int8(v uint64) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, v)
	a.n++
}

func (a *array) int4(v int) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 4)
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(v)) //nolint:gosec // a place in a list
	a.n++
}

func (a *array) bool(v bool) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 1)
	a.buf = append(a.buf, boolParam(v)...)
	a.n++
}

func (a *array) int2(v uint8) {
	a.buf = binary.BigEndian.AppendUint32(a.buf, 2)
	a.buf = binary.BigEndian.AppendUint16(a.buf, uint16(v))
	a.n++
}

// param returns the array as a parameter, valid until the next reset.
func (a *array) param() []byte {
	b := a.buf
	binary.BigEndian.PutUint32(b[8:], a.oid)
	var null uint32
	if a.null {
		null = 1
	}
	binary.BigEndian.PutUint32(b[4:], null)
	if a.n == 0 {
		binary.BigEndian.PutUint32(b[0:], 0)
		return b[:12]
	}
	binary.BigEndian.PutUint32(b[0:], 1)
	binary.BigEndian.PutUint32(b[12:], uint32(a.n)) //nolint:gosec // limited to far less
	binary.BigEndian.PutUint32(b[16:], 1)
	return b
}

// orNull is param, but NULL for an empty array.
func (a *array) orNull() []byte {
	if a.n == 0 {
		return nil
	}
	return a.param()
}

// arrays are reused, since they are large.
type arrays struct {
	a      [32]array
	used   int // of a, by list
	params [][]byte
}

// list returns the next array, empty.
func (a *arrays) list(oid uint32) *array {
	next := &a.a[a.used]
	a.used++
	next.reset(oid)
	return next
}

var arrayPool = sync.Pool{New: func() any { return new(arrays) }}

func boolParam(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

func int4Param(v int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(v)) //nolint:gosec // small
}

func int8Param(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// fields reads a line of an answer.
type fields struct {
	values [][]byte
	err    error
}

func (f *fields) int4(i int) int {
	b := f.values[i]
	if len(b) != 4 {
		f.bad(i)
		return 0
	}
	return int(int32(binary.BigEndian.Uint32(b))) //nolint:gosec // as it was sent
}

func (f *fields) int2(i int) int {
	b := f.values[i]
	if len(b) != 2 {
		f.bad(i)
		return 0
	}
	return int(binary.BigEndian.Uint16(b))
}

// int8 returns a timestamp, 0 for NULL, which is no timestamp.
func (f *fields) int8(i int) uint64 {
	b := f.values[i]
	if b == nil {
		return 0
	}
	if len(b) != 8 {
		f.bad(i)
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// bytes returns a copy, since the answer's buffer is used again.
func (f *fields) bytes(i int) []byte { return clone(f.values[i]) }

// clone copies a value; an empty one is nil.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

func (f *fields) bad(i int) {
	if f.err == nil {
		f.err = fmt.Errorf("the server's answer has %d bytes in column %d", len(f.values[i]), i)
	}
}
