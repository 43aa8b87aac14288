package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The arguments and the answers of the scripts are flat lists in MessagePack,
// which the server takes apart in one step. Only the few kinds of item that the
// scripts use are written and read here.

// packer writes one list. Its length is written last.
type packer struct {
	b     []byte
	items uint32
}

// reset empties the packer and keeps its memory.
func (p *packer) reset() {
	p.b = append(p.b[:0], 0xdd, 0, 0, 0, 0)
	p.items = 0
}

// bytes ends the list.
func (p *packer) bytes() []byte {
	binary.BigEndian.PutUint32(p.b[1:], p.items)
	return p.b
}

// strHead begins a string of n bytes; the caller appends them to p.b.
func (p *packer) strHead(n int) {
	p.items++
	switch {
	case n < 32:
		p.b = append(p.b, 0xa0|byte(n))
	case n < 1<<8:
		p.b = append(p.b, 0xd9, byte(n))
	case n < 1<<16:
		p.b = append(p.b, 0xda, byte(n>>8), byte(n))
	default:
		p.b = append(p.b, 0xdb, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}

func (p *packer) str(s string) {
	p.strHead(len(s))
	p.b = append(p.b, s...)
}

func (p *packer) blob(s []byte) {
	p.strHead(len(s))
	p.b = append(p.b, s...)
}

func (p *packer) bool(v bool) {
	p.items++
	if v {
		p.b = append(p.b, 0xc3)
	} else {
		p.b = append(p.b, 0xc2)
	}
}

// small writes a number from -32 to 127.
func (p *packer) small(n int) {
	p.items++
	p.b = append(p.b, byte(n))
}

// minusOne writes -1.
func (p *packer) minusOne() {
	p.items++
	p.b = append(p.b, 0xff)
}

func (p *packer) u32(n uint32) {
	p.items++
	if n < 128 {
		p.b = append(p.b, byte(n))
		return
	}
	p.b = append(p.b, 0xce, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// halves writes a 64-bit number as two of 32 bits, which a Lua number can hold.
func (p *packer) halves(n uint64) {
	p.u32(uint32(n >> 32))
	p.u32(uint32(n))
}

// eight writes a 64-bit number as a string of 8 bytes.
func (p *packer) eight(n uint64) {
	p.strHead(8)
	p.b = binary.BigEndian.AppendUint64(p.b, n)
}

// later reserves a number that settle fills in.
func (p *packer) later() int {
	p.items++
	p.b = append(p.b, 0xce, 0, 0, 0, 0)
	return len(p.b) - 4
}

// settle writes the place of the next item, counted from 1 as Lua does, into a
// number reserved by later.
func (p *packer) settle(at int) {
	binary.BigEndian.PutUint32(p.b[at:], p.items+1)
}

var errAnswer = errors.New("the script's answer cannot be read")

// unpacker reads items. The first error stays, and every later item is zero.
type unpacker struct {
	s   string
	err error
}

// item is one item of an answer.
type item struct {
	kind itemKind
	n    int64  // number, or length of a list
	s    string // string
}

type itemKind uint8

const (
	isFalse itemKind = iota
	isNumber
	isString
	isList
)

func (u *unpacker) fail() item {
	if u.err == nil {
		u.err = errAnswer
	}
	u.s = ""
	return item{}
}

func (u *unpacker) uint(n int) (uint64, bool) {
	if len(u.s) < n {
		u.fail()
		return 0, false
	}
	var v uint64
	for i := range n {
		v = v<<8 | uint64(u.s[i])
	}
	u.s = u.s[n:]
	return v, true
}

func (u *unpacker) sized(n int) item {
	v, ok := u.uint(n)
	if !ok {
		return item{}
	}
	return u.take(v)
}

func (u *unpacker) take(n uint64) item {
	if n > uint64(len(u.s)) {
		return u.fail()
	}
	it := item{kind: isString, s: u.s[:n]}
	u.s = u.s[n:]
	return it
}

// next reads one item; the items of a list follow it.
func (u *unpacker) next() item {
	c, ok := u.uint(1)
	if !ok {
		return item{}
	}
	switch {
	case c < 0x80:
		return item{kind: isNumber, n: int64(c)}
	case c >= 0xe0:
		return item{kind: isNumber, n: int64(c) - 256}
	case c&0xe0 == 0xa0:
		return u.take(c & 0x1f)
	case c&0xf0 == 0x90:
		return item{kind: isList, n: int64(c & 0x0f)}
	}
	switch c {
	case 0xc0, 0xc2:
		return item{kind: isFalse}
	case 0xc3:
		return item{kind: isNumber, n: 1}
	case 0xd9:
		return u.sized(1)
	case 0xda:
		return u.sized(2)
	case 0xdb:
		return u.sized(4)
	case 0xdc, 0xdd:
		v, _ := u.uint(2 << (c - 0xdc))
		return item{kind: isList, n: int64(v)}
	case 0xcc, 0xcd, 0xce, 0xcf:
		v, _ := u.uint(1 << (c - 0xcc))
		return item{kind: isNumber, n: int64(v)}
	case 0xd0:
		v, _ := u.uint(1)
		return item{kind: isNumber, n: int64(int8(v))}
	case 0xd1:
		v, _ := u.uint(2)
		return item{kind: isNumber, n: int64(int16(v))}
	case 0xd2:
		v, _ := u.uint(4)
		return item{kind: isNumber, n: int64(int32(v))}
	case 0xd3:
		v, _ := u.uint(8)
		return item{kind: isNumber, n: int64(v)}
	}
	return u.fail()
}

// list reads the head of a list and returns its length.
func (u *unpacker) list() int {
	it := u.next()
	// Each item takes a byte at least, so a greater length is garbage.
	if it.kind != isList || it.n > int64(len(u.s)) {
		u.fail()
		return 0
	}
	return int(it.n)
}

func (u *unpacker) number() int64 {
	it := u.next()
	if it.kind != isNumber {
		u.fail()
	}
	return it.n
}

// tooMuch tells whether the next item is a 1, which stands for a row that is too much
// for one run of a script, and takes it.
func (u *unpacker) tooMuch() bool {
	if u.s == "" || u.s[0] != 1 {
		return false
	}
	u.s = u.s[1:]
	return true
}

// string reads a string; false stands for an absent one.
func (u *unpacker) string() (string, bool) {
	it := u.next()
	if it.kind != isString && it.kind != isFalse {
		u.fail()
	}
	return it.s, it.kind == isString
}

// done returns the first error; what is left over is one.
func (u *unpacker) done() error {
	if u.err == nil && u.s != "" {
		return fmt.Errorf("%w: %d bytes are left over", errAnswer, len(u.s))
	}
	return u.err
}
