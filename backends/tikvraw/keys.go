package tikvraw

import (
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Every key of a store is
//
//	prefix 0x00 space
//
// for the spaces of one key each, and
//
//	prefix 0x00 space table row [id]
//
// for the others, and in the index there is the row's slot between table and row. The
// prefix holds no zero byte, so no store's keys lie among those of another. Table and row
// are escaped: a zero byte is written as 00 ff, and each ends with 00 01. So keys sort as
// tables and then rows do, whatever bytes they hold.
const (
	// spaceIndex holds an empty marker for each row with notifications. Its id is named in
	// the row's head. The slot, two bytes, makes a range of slots a range of keys.
	spaceIndex = 'm'
	// spaceOldIndex is where format 1 has its markers, without slots.
	spaceOldIndex = 'n'
	// spaceOracle is the key of the oracle, where the store keeps its own.
	spaceOracle = 'o'
	// spaceHead holds the heads of rows.
	spaceHead = 'r'
	// spaceSide holds what a head points to: long values and chunks of older
	// versions. The id is followed by the kind.
	spaceSide = 's'
	// spaceRecord is the key of the store's record; see record.
	spaceRecord = 'v'
	// spaceSweep is the key that says when garbage was last looked for.
	spaceSweep = 'w'
)

// The kinds of side keys.
const (
	kindValue = 'd' // the value of one version
	kindChunk = 'k' // versions of one column
)

const (
	idLen   = 8
	slotLen = 2
	// markerLen is how many bytes of its id a marker's key ends with, the low ones. So it is
	// no longer than a side key of the same row, and names have the limits of format 1.
	markerLen = idLen - 1
)

// How names are escaped; see kit.AppendName.
const (
	escape  = 0x00
	escaped = 0xff
)

// keyspace makes and takes apart the keys of a store.
type keyspace struct {
	base []byte // prefix and zero byte
}

func newKeyspace(prefix string) keyspace {
	return keyspace{base: append([]byte(prefix), 0)}
}

// end is the first key behind the store's.
func (k keyspace) end() []byte {
	end := append([]byte(nil), k.base...)
	end[len(end)-1]++
	return end
}

// space returns the beginning of a space, or the one key of it.
func (k keyspace) space(space byte) []byte {
	key := make([]byte, 0, len(k.base)+1)
	return append(append(key, k.base...), space)
}

// table returns what the keys of a table begin with, in a space.
func (k keyspace) table(space byte, table string) []byte {
	key := make([]byte, 0, len(k.base)+1+len(table)+2)
	return kit.AppendName(append(append(key, k.base...), space), table)
}

// afterTable returns the first key behind those of a table.
func (k keyspace) afterTable(space byte, table string) []byte {
	key := k.table(space, table)
	key[len(key)-1]++
	return key
}

// row returns a row's key in the space of heads, and what its keys begin with in the
// others.
func (k keyspace) row(space byte, table, row string) []byte {
	key := make([]byte, 0, len(k.base)+1+len(table)+len(row)+4+idLen+1)
	return kit.AppendName(kit.AppendName(append(append(key, k.base...), space), table), row)
}

// marker returns the key of a row's notification marker.
func (k keyspace) marker(table, row string, id uint64) []byte {
	key := k.slot(table, rowstore.Slot(table, row), len(row)+2+idLen)
	key = kit.AppendName(key, row)
	return binary.BigEndian.AppendUint64(key, id<<8)[:len(key)+markerLen]
}

// slot returns what the markers of a table's slot begin with, with room for more.
func (k keyspace) slot(table string, slot uint16, room int) []byte {
	key := make([]byte, 0, len(k.base)+1+len(table)+2+slotLen+room)
	key = kit.AppendName(append(append(key, k.base...), spaceIndex), table)
	return binary.BigEndian.AppendUint16(key, slot)
}

// afterSlot returns the first key behind the markers of a table's slot.
func (k keyspace) afterSlot(table string, slot uint16) []byte {
	if slot == rowstore.Slots-1 {
		return k.afterTable(spaceIndex, table)
	}
	return k.slot(table, slot+1, 0)
}

// markerID is the part of a marker's id that its key names. The other byte makes no
// difference: an id is random, and never used again.
func markerID(id uint64) uint64 { return id & (1<<(8*markerLen) - 1) }

// side returns the key of a value or a chunk.
func (k keyspace) side(head []byte, id uint64, kind byte) []byte {
	key := k.sibling(head, spaceSide)
	return append(binary.BigEndian.AppendUint64(key, id), kind)
}

// sibling moves a row's key to another space.
func (k keyspace) sibling(key []byte, space byte) []byte {
	out := make([]byte, len(key), len(key)+idLen+1)
	copy(out, key)
	out[len(k.base)] = space
	return out
}

// parse takes apart a key of a space with rows: rest is what follows the row.
func (k keyspace) parse(space byte, key []byte) (table, row string, rest []byte, err error) {
	if len(key) <= len(k.base) || string(key[:len(k.base)]) != string(k.base) || key[len(k.base)] != space {
		return "", "", nil, strange(key)
	}
	table, rest, err = kit.CutName(key[len(k.base)+1:])
	if err == nil {
		row, rest, err = kit.CutName(rest)
	}
	if err != nil || table == "" || row == "" {
		return "", "", nil, strange(key)
	}
	return table, row, rest, nil
}

// marked is what the key of a notification marker says.
type marked struct {
	table, row string
	slot       uint16
	id         uint64 // markerID of the marker's id
}

// parseIndex takes apart a key of the space of notification markers.
func (k keyspace) parseIndex(key []byte) (m marked, err error) {
	if len(key) <= len(k.base) || string(key[:len(k.base)]) != string(k.base) || key[len(k.base)] != spaceIndex {
		return marked{}, strange(key)
	}
	table, rest, err := kit.CutName(key[len(k.base)+1:])
	if err != nil || table == "" || len(rest) < slotLen {
		return marked{}, strange(key)
	}
	slot := binary.BigEndian.Uint16(rest)
	row, rest, err := kit.CutName(rest[slotLen:])
	if err != nil || row == "" || len(rest) != markerLen || slot != rowstore.Slot(table, row) {
		return marked{}, strange(key)
	}
	var id [idLen]byte
	copy(id[idLen-markerLen:], rest)
	return marked{table: table, row: row, slot: slot, id: binary.BigEndian.Uint64(id[:])}, nil
}

// slotIn reads the slot in the key of a marker, behind that many bytes, whatever follows. Bytes that
// are missing are zeros.
func slotIn(key []byte, behind int) uint16 {
	var slot [slotLen]byte
	copy(slot[:], key[behind:])
	return binary.BigEndian.Uint16(slot[:])
}

// fromOld returns where a marker of format 1 lies now.
func (k keyspace) fromOld(key []byte) ([]byte, error) {
	table, row, rest, err := k.parse(spaceOldIndex, key)
	if err != nil || len(rest) != idLen {
		return nil, strange(key)
	}
	return k.marker(table, row, binary.BigEndian.Uint64(rest)), nil
}

// parseSide returns the row's head key, and id and kind, of a side key.
func (k keyspace) parseSide(key []byte) (head []byte, id uint64, kind byte, err error) {
	_, _, rest, err := k.parse(spaceSide, key)
	if err == nil && (len(rest) != idLen+1 || rest[idLen] != kindValue && rest[idLen] != kindChunk) {
		err = strange(key)
	}
	if err != nil {
		return nil, 0, 0, err
	}
	return k.sibling(key[:len(key)-len(rest)], spaceHead), binary.BigEndian.Uint64(rest), rest[idLen], nil
}

// cutBoundary reads a row's key from what stands behind the table in the first key
// of a region: any bytes, since TiKV chooses it. Rows below the name lie, but for
// bytes that were cut off, below the boundary.
func cutBoundary(b []byte) string {
	var out []byte
	for i := 0; i < len(b); i++ {
		if b[i] != escape {
			out = append(out, b[i])
			continue
		}
		i++
		if i >= len(b) || b[i] != escaped {
			break
		}
		out = append(out, 0)
	}
	return string(out)
}

// strange says that a key in one of the spaces of a store that is open cannot be read. It is one key
// among the store's own: whether somebody damaged it or another application wrote it, it is damage to
// those who meet it.
func strange(key []byte) error {
	return fmt.Errorf("%w: the key %q is not one of a store: it is damaged, or another application uses the prefix", rowstore.ErrCorrupt, key)
}

// foreign says, when a store is opened, that a key under the prefix is not the store's.
func foreign(key []byte) error {
	return fmt.Errorf("%w: the key %q is not one of a store: another application uses the prefix; take another one", rowstore.ErrForeign, key)
}
