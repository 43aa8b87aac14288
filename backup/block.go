package backup

import (
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A block is the raw payload of a data frame: where the backup was, and rows of one table.

// phases of a backup, in their order.
const (
	phaseBefore byte = 1 // notifications, before the rows
	phaseRows   byte = 2
	phaseAfter  byte = 3 // notifications, after the rows
)

// blockHead says where in the backup a block is.
type blockHead struct {
	phase byte
	table string // stored
	// grace is the timestamp up to which an acknowledgment may be of a weak notification that nothing else tells of; see weak.
	grace percolator.Timestamp
	// rows and cells are those up to here, with the block.
	rows, cells int64
}

// block collects rows of one table.
type block struct {
	head blockHead
	body []byte
	done float64 // how much of the backup is done, for the progress
	n    int
}

func (b *block) add(row string, versions []rowstore.Version) {
	b.body = appendBytes(b.body, row)
	b.body = binary.AppendUvarint(b.body, uint64(len(versions)))
	for i := range versions {
		v := &versions[i]
		b.body = append(b.body, byte(v.Family))
		b.body = appendBytes(b.body, v.Column)
		b.body = binary.AppendUvarint(b.body, uint64(v.TS))
		b.body = binary.AppendUvarint(b.body, uint64(len(v.Value)))
		b.body = append(b.body, v.Value...)
	}
	b.n++
}

// rowBytes is the most that a row takes of a block, and headBytes the most that its head takes.
func rowBytes(r *rowstore.Row) int {
	n := 2*binary.MaxVarintLen64 + len(r.Row)
	for i := range r.Versions {
		n += 1 + 3*binary.MaxVarintLen64 + len(r.Versions[i].Column) + len(r.Versions[i].Value)
	}
	return n
}

func headBytes(table string) int { return 1 + 4*binary.MaxVarintLen64 + len(table) }

func (b *block) encode() []byte {
	h := &b.head
	out := make([]byte, 0, 64+len(h.table)+len(b.body))
	out = append(out, h.phase)
	out = appendBytes(out, h.table)
	for _, n := range []uint64{uint64(h.grace), uint64(h.rows), uint64(h.cells)} { //nolint:gosec // counts
		out = binary.AppendUvarint(out, n)
	}
	return append(out, b.body...)
}

func appendBytes(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder takes a block apart. What its sum vouches for decodes, unless the program that wrote it was wrong.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) number() uint64 {
	n, w := binary.Uvarint(d.b)
	if w <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[w:]
	return n
}

func (d *decoder) bytes() []byte {
	n := d.number()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	s := d.b[:n:n]
	d.b = d.b[n:]
	return s
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

var errBlock = fmt.Errorf("%w: a block does not decode", ErrDamaged)

// minVersion is the least that a version takes of a block: its family, the length of a name and a byte of it, a timestamp, the length of a value.
const minVersion = 5

// decodeBlock returns a block's rows, whose values lie in raw.
func decodeBlock(raw []byte) (h blockHead, rows []rowstore.Row, err error) {
	d := &decoder{b: raw}
	h.phase, h.table = d.byte(), string(d.bytes())
	h.grace = percolator.Timestamp(d.number())
	h.rows, h.cells = int64(d.number()), int64(d.number()) //nolint:gosec // counts
	if d.bad || h.phase < phaseBefore || h.phase > phaseAfter || h.table == "" {
		return h, nil, errBlock
	}
	for len(d.b) > 0 {
		row := rowstore.Row{Table: h.table, Row: string(d.bytes())}
		n := d.number()
		if d.bad || row.Row == "" || n > uint64(len(d.b)/minVersion) {
			return h, nil, errBlock
		}
		for range n { // room is made for those that are there, not for those that a number claims
			var v rowstore.Version
			v.Family, v.Column = rowstore.Family(d.byte()), string(d.bytes())
			v.TS, v.Value = percolator.Timestamp(d.number()), d.bytes()
			family := v.Family == rowstore.Write || v.Family == rowstore.Data || v.Family == rowstore.Notify
			if d.bad || !family || v.Column == "" || v.TS == 0 || v.TS > oracle.Max {
				return h, nil, errBlock
			}
			row.Versions = append(row.Versions, v)
		}
		rows = append(rows, row)
	}
	return h, rows, nil
}
