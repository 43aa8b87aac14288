package redis

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How a store lies in Redis. With P the prefix and n the partition of a row:
//
//	{P:0}m                 hash: format version, number of partitions, and what puts a
//	                       row into its partition (spread)
//	{P:0}o, {P:0}e         the oracle; see scripts/oracle_part.lua
//	{P:n}l                 the version, in stores of an earlier version that were migrated, so
//	                       that programs of that one write no more: see scripts/write_part.lua
//	{P:n}t                 set of the tables that have rows in the partition
//	{P:n}i:TABLE           sorted set: the row keys, all with score 0
//	{P:n}s:TABLE           sorted set, all with score 0: a member for each row and column
//	                       that has notifications: the row's slot (2 bytes, high byte
//	                       first), row (escaped), 00 01, column
//	{P:n}r:TABLE/ROW       hash: the row
//	{P:n}h:TABLE/ROW       sorted set: the row's history
//	{P:n}x                 never exists; see script.run
//
// TABLE is escaped so that it holds no slash; ROW is as it is. The fields of a
// row, where 7 is the length of the column's name:
//
//	W7:balance   255, one byte of flags (1 lock, 2 mark, 4 write; above them the number
//	             of H fields in use), then for the lock and the mark timestamp, length,
//	             value, and for the newest write timestamp, value
//	H7:balance   and a byte, 0 to 11: an older write, timestamp and value. When all 12 are in
//	             use, the history gets them as one member, and the fields are used again. Those
//	             that are not in use hold copies of what the history has. Those that are in use are
//	             newer than all writes of the column in the history
//	N7:balance   for each notification timestamp, length, value, newest first
//
// The members of the history, all with score 0:
//
//	C7:balance   and the timestamp of the oldest: at most 12 writes, newest first, for each
//	             the length of the rest (2 bytes), timestamp, value. Those of a column do not
//	             overlap
//	W7:balance   timestamp, value: an older write that is alone, because it is long, because its
//	             row has very many fields, or because it did not come in order
//	D7:balance   timestamp, value: data
//
// Every timestamp is inverted (2^64-1-ts), 8 bytes, most significant first: the newest
// sorts first.
//
// A cell that no program of version 3 has written lacks the 255, and the names of its H
// fields end in a timestamp, which the value lacks. See migrate.go.

const (
	// formatVersion is the version of this layout. It is stored. A store of an earlier version
	// is migrated (migrate.go), and one of a later version is refused.
	formatVersion = 3

	// What puts a row into its partition, as the record says. Stores that were made in
	// version 1 keep the hash that they have: to move rows is to write everything anew.
	spreadRows  = "rows"
	spreadSlots = "slots"

	maxTable  = 1 << 12
	maxRow    = 1 << 16
	maxColumn = 1 << 16
	maxValue  = 32 << 20

	flagLock  = 1
	flagMark  = 2
	flagWrite = 4

	// cellMark begins a cell since version 3.
	cellMark = 255
)

// inv is how a timestamp travels and is stored.
func inv(ts rowstore.Timestamp) uint64 { return ^uint64(ts) }

// partOf tells where a row lies.
func (s *direct) partOf(table, row string) int {
	switch {
	case len(s.parts) == 1:
		return 0
	case s.bySlot:
		return slotPartition(rowstore.Slot(table, row), len(s.parts))
	}
	return rowPartition(table, row, len(s.parts))
}

// slotPartition tells where the rows of a slot lie. Neighbours lie together, so that a scan
// of slots asks one partition after the other, and a scan of one slot asks one.
func slotPartition(slot uint16, partitions int) int { return int(slot) * partitions >> 16 }

// slotsOf is the slots of a partition; see slotPartition.
func slotsOf(part, partitions int) rowstore.SlotRange {
	first := func(p int) int { return (p<<16 + partitions - 1) / partitions }
	return rowstore.SlotRange{First: uint16(first(part)), Last: uint16(first(part+1) - 1)}
}

// rowPartition tells where a row of a store lies that was made in version 1.
func rowPartition(table, row string, partitions int) int {
	h := crc32.Update(crc32.ChecksumIEEE([]byte(table)), crc32.IEEETable, zeroByte)
	return int(crc32.Update(h, crc32.IEEETable, []byte(row)) % uint32(partitions))
}

var zeroByte = []byte{0}

// escapeTable makes a table's name free of slashes.
func escapeTable(t string) string {
	if !strings.ContainsAny(t, "/%") {
		return t
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(t)
}

func unescapeTable(t string) string {
	if !strings.Contains(t, "%") {
		return t
	}
	return strings.NewReplacer("%25", "%", "%2F", "/").Replace(t)
}

// escapeRow makes a row's key a part of a member of the notification index: in the order of
// the rows, whatever follows the terminator 00 01.
func escapeRow(row string) string {
	if strings.IndexByte(row, 0) < 0 {
		return row
	}
	return strings.ReplaceAll(row, "\x00", "\x00\xff")
}

func unescapeRow(row string) string {
	if strings.IndexByte(row, 0) < 0 {
		return row
	}
	return strings.ReplaceAll(row, "\x00\xff", "\x00")
}

// slotBytes is the beginning of all members of a slot.
func slotBytes(slot uint16) string { return string([]byte{byte(slot >> 8), byte(slot)}) }

// member writes the member of the notification index.
func (p *packer) member(slot uint16, row, column string) {
	row = escapeRow(row)
	p.strHead(2 + len(row) + 2 + len(column))
	p.b = append(p.b, byte(slot>>8), byte(slot))
	p.b = append(p.b, row...)
	p.b = append(p.b, 0, 1)
	p.b = append(p.b, column...)
}

// decimals is the number of digits of n.
func decimals(n int) int {
	d := 1
	for ; n >= 10; n /= 10 {
		d++
	}
	return d
}

// field writes the field of a column, or the beginning of its history members.
func (p *packer) field(kind byte, column string) {
	p.strHead(2 + decimals(len(column)) + len(column))
	p.b = appendField(p.b, kind, column)
}

func appendField(b []byte, kind byte, column string) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(len(column)), 10)
	b = append(b, ':')
	return append(b, column...)
}

// key writes the key of a row's hash.
func (p *packer) key(tag, table, row string) {
	p.strHead(len(tag) + 3 + len(table) + len(row))
	p.b = append(p.b, tag...)
	p.b = append(p.b, 'r', ':')
	p.b = append(p.b, table...)
	p.b = append(p.b, '/')
	p.b = append(p.b, row...)
}

// span writes the two ends of a range of a column's history, which holds the
// timestamps from lo to hi.
func (p *packer) span(kind byte, column string, lo, hi rowstore.Timestamp) {
	first, last := spanEnds(kind, column, lo, hi)
	p.str(first)
	p.str(last)
}

// spanEnds is the two ends that span writes.
func spanEnds(kind byte, column string, lo, hi rowstore.Timestamp) (first, last string) {
	prefix := string(appendField(nil, kind, column))
	return "[" + prefix + string(binary.BigEndian.AppendUint64(nil, inv(hi))),
		"(" + prefix + string(binary.BigEndian.AppendUint64(nil, inv(max(lo, 1)-1)))
}

// parseField takes the name of a field, or the beginning of a history member,
// apart; rest is what follows the column.
func parseField(s string) (kind byte, column, rest string, err error) {
	if len(s) < 3 {
		return 0, "", "", fmt.Errorf("%w: the field %q is not a store's", rowstore.ErrCorrupt, s)
	}
	i := strings.IndexByte(s, ':')
	if i < 2 {
		return 0, "", "", fmt.Errorf("%w: the field %q is not a store's", rowstore.ErrCorrupt, s)
	}
	n, err := strconv.Atoi(s[1:i])
	if err != nil || n < 1 || n > len(s)-i-1 {
		return 0, "", "", fmt.Errorf("%w: the field %q is not a store's", rowstore.ErrCorrupt, s)
	}
	return s[0], s[i+1 : i+1+n], s[i+1+n:], nil
}

// version is a version as it stands in an answer.
type version struct {
	family rowstore.Family
	column string
	ts     rowstore.Timestamp
	value  string
}

// parseCell appends the versions that a cell's field holds.
func parseCell(to []version, column, v string) ([]version, error) {
	if v == "" {
		return to, errCell
	}
	flags, v := cellFlags(v)
	if flags&(flagLock|flagMark|flagWrite) == 0 {
		return to, errCell
	}
	for _, part := range [2]struct {
		flag   byte
		family rowstore.Family
	}{{flagLock, rowstore.Lock}, {flagMark, rowstore.Mark}} {
		if flags&part.flag == 0 {
			continue
		}
		ts, value, rest, ok := parseSized(v)
		if !ok {
			return to, errCell
		}
		to = append(to, version{part.family, column, ts, value})
		v = rest
	}
	if flags&flagWrite != 0 {
		if len(v) < 8 {
			return to, errCell
		}
		to = append(to, version{rowstore.Write, column, tsOf(v), v[8:]})
	}
	return to, nil
}

// cellFlags returns the flags of a cell's field, which is not empty, and what follows them.
func cellFlags(v string) (flags byte, rest string) {
	if v[0] != cellMark {
		return v[0], v[1:]
	}
	if len(v) == 1 {
		return 0, ""
	}
	return v[1], v[2:]
}

// parseNotes appends the notifications of a column's field.
func parseNotes(to []version, column, v string) ([]version, error) {
	for v != "" {
		ts, value, rest, ok := parseSized(v)
		if !ok {
			return to, errCell
		}
		to = append(to, version{rowstore.Notify, column, ts, value})
		v = rest
	}
	return to, nil
}

// parseHistory appends the versions of a history member.
func parseHistory(to []version, member string) ([]version, error) {
	kind, column, rest, err := parseField(member)
	if err != nil {
		return to, err
	}
	if len(rest) < 8 {
		return to, errCell
	}
	if kind == 'C' {
		return parseChunk(to, column, rest)
	}
	family := rowstore.Write
	if kind == 'D' {
		family = rowstore.Data
	}
	return append(to, version{family, column, tsOf(rest), rest[8:]}), nil
}

// parseChunk appends the writes of a chunk, whose member goes on with s behind the column.
func parseChunk(to []version, column, s string) ([]version, error) {
	oldest, s := tsOf(s), s[8:]
	for s != "" {
		if len(s) < 10 {
			return to, errCell
		}
		n := int(s[0])<<8 | int(s[1])
		if n < 8 || n > len(s)-2 {
			return to, errCell
		}
		to = append(to, version{rowstore.Write, column, tsOf(s[2:]), s[10 : 2+n]})
		s = s[2+n:]
	}
	if len(to) == 0 || to[len(to)-1].ts != oldest {
		return to, errCell
	}
	return to, nil
}

var errCell = fmt.Errorf("%w: a stored row cannot be read", rowstore.ErrCorrupt)

func parseSized(v string) (ts rowstore.Timestamp, value, rest string, ok bool) {
	if len(v) < 12 {
		return 0, "", "", false
	}
	n := int(v[8])<<24 | int(v[9])<<16 | int(v[10])<<8 | int(v[11])
	if n > len(v)-12 {
		return 0, "", "", false
	}
	return tsOf(v), v[12 : 12+n], v[12+n:], true
}

func tsOf(v string) rowstore.Timestamp {
	var n uint64
	for i := range 8 {
		n = n<<8 | uint64(v[i])
	}
	return rowstore.Timestamp(^n)
}
