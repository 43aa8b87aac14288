package tikvraw

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// valueVersion is the first byte of each head and chunk. Format 2 has left them as they
	// were in format 1.
	valueVersion = 1
	// mostVersion is the greatest first byte that is taken for the version of a newer
	// program. What begins with a greater one, such as text, no program of this library wrote.
	mostVersion = 31
)

// head is a row: what its conditions ask for, its newest versions, and where the
// others are.
type head struct {
	// tag is different in every head that was ever written, so that the bytes of a
	// head never come back: a swap can succeed once at most, however often it
	// arrives, and whoever finds his own tag knows that it did.
	tag uint64
	// index is the id of the row's notification marker, 0 if it has none. A row has
	// one exactly while it has a version in Notify.
	index   uint64
	entries []entry // in the order of rowstore.CompareVersions
	chunks  []chunk // by family and column, newest first; they do not overlap
}

// entry is a version. No entry of a head lies in the range of one of its chunks.
type entry struct {
	family rowstore.Family
	column string
	ts     rowstore.Timestamp
	value  value
}

// value is what a version holds: the bytes, or the id of the key that has them.
type value struct {
	bytes []byte
	id    uint64 // 0: bytes are the value
	size  int    // of the value, where id is not 0
}

// chunk is a key that holds versions of one column.
type chunk struct {
	family rowstore.Family
	column string
	lo, hi rowstore.Timestamp // of its oldest and newest version
	id     uint64
	size   int  // of its encoding
	values bool // some of its versions have their values in keys of their own
}

func compareEntries(a, b entry) int {
	return compareAddress(a.family, a.column, a.ts, b.family, b.column, b.ts)
}

func compareAddress(f1 rowstore.Family, c1 string, t1 rowstore.Timestamp, f2 rowstore.Family, c2 string, t2 rowstore.Timestamp) int {
	if c := cmp.Compare(f1, f2); c != 0 {
		return c
	}
	if c := strings.Compare(c1, c2); c != 0 {
		return c
	}
	return cmp.Compare(t2, t1)
}

func compareChunks(a, b chunk) int {
	return compareAddress(a.family, a.column, a.hi, b.family, b.column, b.hi)
}

// search returns the index of the first entry at or behind an address.
func search(entries []entry, family rowstore.Family, column string, ts rowstore.Timestamp) int {
	i, _ := slices.BinarySearchFunc(entries, entry{family: family, column: column, ts: ts}, compareEntries)
	return i
}

// span returns the part of entries that is in a column's range of timestamps, as
// two indexes.
func span(entries []entry, family rowstore.Family, column string, from, to rowstore.Timestamp) (i, j int) {
	i = search(entries, family, column, to)
	j = i
	for j < len(entries) && entries[j].family == family && entries[j].column == column && entries[j].ts >= from {
		j++
	}
	return i, j
}

// chunksOf returns the chunks of a column, as two indexes.
func (h *head) chunksOf(family rowstore.Family, column string) (i, j int) {
	i, _ = slices.BinarySearchFunc(h.chunks, chunk{family: family, column: column, hi: oracle.Max}, compareChunks)
	for j = i; j < len(h.chunks) && h.chunks[j].family == family && h.chunks[j].column == column; j++ {
	}
	return i, j
}

// hasNotify tells whether the row has a version in Notify, the greatest family.
func (h *head) hasNotify() bool {
	n, m := len(h.entries), len(h.chunks)
	return n > 0 && h.entries[n-1].family == rowstore.Notify || m > 0 && h.chunks[m-1].family == rowstore.Notify
}

// The encoding of a head:
//
//	version (1 byte), tag (8), index (8)
//	number of columns; for each: length, name          in ascending order
//	number of groups; for each:                        in ascending order
//	  family (1 byte), number of the column
//	  number of chunks; for each: hi, lo, id (8 bytes each), size, values (1 byte)
//	  number of entries and, if it is not 0, the entries
//
// and of entries:
//
//	timestamp of the first (8 bytes); then for each: value; how much lower the next is
//
// where a value is its length times two, and its bytes, or that plus one, and the id
// (8 bytes) of the key that has it. Numbers without a width are unsigned varints.
func (h *head) encode() []byte {
	columns := h.columns()
	dst := make([]byte, 0, 64+len(columns)*16+len(h.entries)*40+len(h.chunks)*32)
	dst = append(dst, valueVersion)
	dst = binary.BigEndian.AppendUint64(dst, h.tag)
	dst = binary.BigEndian.AppendUint64(dst, h.index)
	dst = binary.AppendUvarint(dst, uint64(len(columns)))
	for _, c := range columns {
		dst = binary.AppendUvarint(dst, uint64(len(c)))
		dst = append(dst, c...)
	}
	groups := 0
	for range h.groups() {
		groups++
	}
	dst = binary.AppendUvarint(dst, uint64(groups))
	for g := range h.groups() {
		at, _ := slices.BinarySearch(columns, g.column)
		dst = append(dst, byte(g.family))
		dst = binary.AppendUvarint(dst, uint64(at))
		dst = binary.AppendUvarint(dst, uint64(len(g.chunks)))
		for _, c := range g.chunks {
			dst = binary.BigEndian.AppendUint64(dst, uint64(c.hi))
			dst = binary.BigEndian.AppendUint64(dst, uint64(c.lo))
			dst = binary.BigEndian.AppendUint64(dst, c.id)
			dst = binary.AppendUvarint(dst, uint64(c.size))
			if c.values {
				dst = append(dst, 1)
			} else {
				dst = append(dst, 0)
			}
		}
		dst = binary.AppendUvarint(dst, uint64(len(g.entries)))
		dst = appendEntries(dst, g.entries)
	}
	return dst
}

// columns returns the names in the head, in ascending order.
func (h *head) columns() []string {
	var columns []string
	for g := range h.groups() {
		if n := len(columns); n == 0 || columns[n-1] != g.column {
			columns = append(columns, g.column)
		}
	}
	// Sorted within each family already.
	slices.Sort(columns)
	return slices.Compact(columns)
}

// group is what a head has of one family and column.
type group struct {
	family  rowstore.Family
	column  string
	entries []entry
	chunks  []chunk
}

// groups yields the groups in ascending order.
func (h *head) groups() func(yield func(group) bool) {
	return func(yield func(group) bool) {
		entries, chunks := h.entries, h.chunks
		for len(entries) > 0 || len(chunks) > 0 {
			var g group
			if len(chunks) == 0 || len(entries) > 0 &&
				compareAddress(entries[0].family, entries[0].column, 0, chunks[0].family, chunks[0].column, 0) <= 0 {
				g.family, g.column = entries[0].family, entries[0].column
			} else {
				g.family, g.column = chunks[0].family, chunks[0].column
			}
			i, j := 0, 0
			for i < len(entries) && entries[i].family == g.family && entries[i].column == g.column {
				i++
			}
			for j < len(chunks) && chunks[j].family == g.family && chunks[j].column == g.column {
				j++
			}
			g.entries, entries = entries[:i:i], entries[i:]
			g.chunks, chunks = chunks[:j:j], chunks[j:]
			if !yield(g) {
				return
			}
		}
	}
}

// appendEntries encodes versions of one column.
func appendEntries(dst []byte, entries []entry) []byte {
	for i, e := range entries {
		if i == 0 {
			dst = binary.BigEndian.AppendUint64(dst, uint64(e.ts))
		} else {
			dst = binary.AppendUvarint(dst, uint64(entries[i-1].ts-e.ts))
		}
		if e.value.id != 0 {
			dst = binary.AppendUvarint(dst, uint64(e.value.size)<<1|1)
			dst = binary.BigEndian.AppendUint64(dst, e.value.id)
		} else {
			dst = binary.AppendUvarint(dst, uint64(len(e.value.bytes))<<1)
			dst = append(dst, e.value.bytes...)
		}
	}
	return dst
}

// length is about how many bytes appendEntries writes for the entry.
func (e *entry) length() int {
	if e.value.id != 0 {
		return 20
	}
	return 10 + len(e.value.bytes)
}

// encodeChunk encodes versions of one column, at least one.
func encodeChunk(entries []entry) []byte {
	dst := binary.AppendUvarint([]byte{valueVersion}, uint64(len(entries)))
	return appendEntries(dst, entries)
}

// decodeHead decodes what encode made. Names and values are parts of raw, which must
// not change. An absent head (nil) is an empty row.
func decodeHead(raw []byte) (*head, error) {
	if raw == nil {
		return &head{}, nil
	}
	d := decoder{rest: raw}
	h := &head{}
	d.version()
	h.tag, h.index = d.fixed(), d.fixed()
	columns := make([]string, d.count(1))
	for i := range columns {
		columns[i] = string(d.bytes(d.count(1)))
		d.check(columns[i] != "" && (i == 0 || columns[i-1] < columns[i]), "column names out of order")
	}
	used := make([]bool, len(columns))
	lastFamily, lastColumn := rowstore.Family(0), 0
	for range d.count(3) {
		family := rowstore.Family(d.byte())
		at := d.count(-1)
		d.check(family >= rowstore.Lock && family <= rowstore.Notify && at < len(columns), "no such group")
		d.check(family > lastFamily || family == lastFamily && at > lastColumn, "groups out of order")
		if d.err != nil {
			break
		}
		lastFamily, lastColumn, used[at] = family, at, true
		first := len(h.chunks)
		for range d.count(26) {
			c := chunk{family: family, column: columns[at], hi: d.timestamp(), lo: d.timestamp(), id: d.fixed(), size: d.count(-1)}
			flag := d.byte()
			c.values = flag == 1
			d.check(c.lo <= c.hi && c.id != 0 && flag <= 1, "chunk with a bad range")
			if n := len(h.chunks); n > first {
				d.check(c.hi < h.chunks[n-1].lo, "chunks out of order")
			}
			h.chunks = append(h.chunks, c)
		}
		chunks := h.chunks[first:]
		from := len(h.entries)
		h.entries = d.entries(h.entries, d.count(2), family, columns[at])
		d.check(len(h.entries) > from || len(chunks) > 0, "empty group")
		for _, e := range h.entries[from:] {
			for len(chunks) > 0 && chunks[0].lo > e.ts {
				chunks = chunks[1:]
			}
			d.check(len(chunks) == 0 || chunks[0].hi < e.ts, "version within a chunk's range")
		}
	}
	d.check(!slices.Contains(used, false), "column without versions")
	d.check(len(d.rest) == 0, "bytes at the end")
	d.check(h.hasNotify() == (h.index != 0), "notifications and their marker differ")
	if d.err != nil {
		return nil, d.err
	}
	return h, nil
}

// decodeChunk decodes what encodeChunk made.
func decodeChunk(raw []byte, family rowstore.Family, column string) ([]entry, error) {
	d := decoder{rest: raw}
	d.version()
	n := d.count(2)
	entries := d.entries(nil, n, family, column)
	d.check(n > 0, "empty chunk")
	d.check(len(d.rest) == 0, "bytes at the end")
	if d.err != nil {
		return nil, d.err
	}
	return entries, nil
}

// decoder takes bytes off the front of rest, until the first mistake.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) check(ok bool, what string) {
	if !ok && d.err == nil {
		d.err = fmt.Errorf("%w: %s", rowstore.ErrCorrupt, what)
		d.rest = nil
	}
}

func (d *decoder) version() {
	v := d.byte()
	if d.err == nil && v > valueVersion && v <= mostVersion {
		d.err = fmt.Errorf("%w: the value has version %d, and this program knows %d: a newer program wrote it", rowstore.ErrFormat, v, valueVersion)
		d.rest = nil
	}
	d.check(v == valueVersion, "it does not begin as one of a store does")
}

func (d *decoder) byte() byte {
	if d.check(len(d.rest) >= 1, "too short"); d.err != nil {
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) fixed() uint64 {
	if d.check(len(d.rest) >= 8, "too short"); d.err != nil {
		return 0
	}
	v := binary.BigEndian.Uint64(d.rest)
	d.rest = d.rest[8:]
	return v
}

func (d *decoder) timestamp() rowstore.Timestamp {
	ts := rowstore.Timestamp(d.fixed())
	d.check(ts >= 1 && ts <= oracle.Max, "timestamp out of range")
	return ts
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.check(n > 0, "bad number"); d.err != nil {
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count reads a number of things that take at least so many bytes each; so garbage
// makes nobody allocate much more than it is long. With -1 it is any number below 4 Gi.
func (d *decoder) count(least int) int {
	v := d.uvarint()
	limit := uint64(1) << 32
	if least > 0 {
		limit = uint64(len(d.rest) / least)
	}
	d.check(v <= limit, "number too large")
	if d.err != nil {
		return 0
	}
	return int(v)
}

func (d *decoder) bytes(n int) []byte {
	if d.check(n <= len(d.rest), "too short"); d.err != nil {
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

// entries appends n versions of a column to dst.
func (d *decoder) entries(dst []entry, n int, family rowstore.Family, column string) []entry {
	dst = slices.Grow(dst, min(n, 1024))
	var last rowstore.Timestamp
	for i := range n {
		e := entry{family: family, column: column}
		if i == 0 {
			e.ts = d.timestamp()
		} else {
			lower := d.uvarint()
			d.check(lower > 0 && lower < uint64(last), "timestamps out of order")
			e.ts = last - rowstore.Timestamp(lower)
		}
		last = e.ts
		size := d.uvarint()
		if size&1 == 0 {
			d.check(size>>1 <= uint64(len(d.rest)), "too short")
			e.value.bytes = d.bytes(int(size >> 1))
		} else {
			d.check(size>>1 <= 1<<32, "number too large")
			e.value.size, e.value.id = int(size>>1), d.fixed()
			d.check(e.value.id != 0, "value without a key")
		}
		if d.err != nil {
			return dst
		}
		dst = append(dst, e)
	}
	return dst
}
