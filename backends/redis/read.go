package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// readBatch is a run of the read script.
type readBatch struct {
	rows []int // indexes of the caller's reads
	may  int   // where the limits of the run are
	enc  packer
	call call
}

var readBatches = sync.Pool{New: func() any { return new(readBatch) }}

// Read answers each read from one atomic view of its row, all in one run of a
// script for each partition, or on one server for all. If that is too much for one run,
// the rest follows in further runs. readWide reads a row that alone is too much. If a run meets a damaged row, each of its rows is
// read by a run of its own, since the others may be those of strangers: the damaged one fails alone.
func (s *direct) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if err := rowstore.CheckReads(reads); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	left := make([]int, len(reads))
	out := make([]rowstore.Row, len(reads))
	for i := range reads {
		if err := checkNames(reads[i].Table, reads[i].Row); err != nil {
			return nil, err
		}
		left[i] = i
		out[i].Table, out[i].Row = reads[i].Table, reads[i].Row
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.end()
	failed := 0
	var alone []int // reads that shared a run with a damaged row, perhaps
	for len(left)+len(alone) > 0 {
		all := append(s.packReads(reads, left, maxRowsPerCall), s.packReads(reads, alone, 1)...)
		if err := s.runReads(ctx, all); err != nil {
			return nil, fmt.Errorf("redis: read: %w", err)
		}
		left, alone = left[:0], nil
		var wide []int
		var buf decoder
		for _, b := range all {
			n := 0
			err := b.call.err
			if err == nil {
				n, err = buf.rows(reads, b, out)
			}
			switch {
			case errors.Is(err, rowstore.ErrCorrupt) && len(b.rows) > 1:
				alone = append(alone, b.rows...)
			case err != nil:
				failed += len(b.rows)
				for _, i := range b.rows {
					out[i].Versions, out[i].Err = nil, fmt.Errorf("redis: read: %w", err)
				}
			case n == 0:
				wide = append(wide, b.rows[0])
				left = append(left, b.rows[1:]...)
			default:
				left = append(left, b.rows[n:]...)
			}
			readBatches.Put(b)
		}
		for _, i := range wide {
			vs, err := s.readWide(ctx, &reads[i])
			if err != nil {
				failed++
				out[i].Err = fmt.Errorf("redis: read: %w", err)
			}
			out[i].Versions = vs
		}
	}
	if failed > 0 && failed == len(reads) {
		return nil, out[0].Err
	}
	return out, nil
}

// packReads puts the reads whose indexes are in left into batches of so many rows at most.
func (s *direct) packReads(reads []rowstore.RowRead, left []int, most int) []*readBatch {
	var all []*readBatch
	open := make([]*readBatch, 1)
	if !s.oneSlot {
		open = make([]*readBatch, len(s.parts))
	}
	for _, i := range left {
		at := s.partOf(reads[i].Table, reads[i].Row)
		tag := s.parts[at].tag
		if s.oneSlot {
			at = 0
		}
		b := open[at]
		if b == nil || len(b.rows) >= most || len(b.enc.b) > maxBytesPerCall {
			b = readBatches.Get().(*readBatch)
			b.rows = b.rows[:0]
			b.enc.reset()
			b.may = b.enc.budget()
			b.call = call{part: at, script: readScript}
			open[at] = b
			all = append(all, b)
		}
		b.rows = append(b.rows, i)
		b.enc.read(tag, &reads[i])
	}
	return all
}

// runReads runs batches together. Its errors are those of wait.
func (s *direct) runReads(ctx context.Context, all []*readBatch) error {
	steps, bytes := share(len(all))
	calls := make([]*call, len(all))
	for i, b := range all {
		b.enc.allow(b.may, steps, bytes)
		b.call.arg.b = b.enc.bytes()
		calls[i] = &b.call
	}
	return s.wait(ctx, calls...)
}

// read writes one read.
func (p *packer) read(tag string, r *rowstore.RowRead) {
	table := escapeTable(r.Table)
	if column, at, ok := isSimple(r.Selectors); ok {
		p.small(0)
		p.key(tag, table, r.Row)
		p.field('W', column)
		p.halves(inv(at))
		return
	}
	p.small(1)
	p.key(tag, table, r.Row)
	pl := newPlan(r.Selectors)
	p.plan(&pl)
}

// beginField is a field of a row that the begin script reads: a cell's (kind W) or a
// column's notifications (kind N).
type beginField struct {
	beginKey
	two bool // the two newest writes of the cell are wanted
}

// beginKey names the field.
type beginKey struct {
	kind   byte
	column string
}

// beginAtOnce is how many fields of a row the begin script reads with one command. It counts
// what they hold only behind it.
const beginAtOnce = 8

// beginFields appends the fields that a read needs to a list that is empty. It returns false if the begin script
// cannot answer the read: it knows locks, marks, notifications, and the newest write, or the two
// newest ones, at the assigned timestamp or at all. A lease is a write at the time of its end, which lies ahead.
func beginFields(picks []rowstore.Selector, to []beginField) ([]beginField, bool) {
	var at map[beginKey]int // where the fields are, where they are too many to look at each
	for i := range picks {
		p := &picks[i]
		f := beginField{beginKey: beginKey{'W', p.Column}}
		switch {
		case p.Column == rowstore.AllColumns, p.Family == rowstore.Data,
			p.Family == rowstore.Write && (p.To < oracle.Max || p.Limit < 1 || p.Limit > 2):
			return to, false
		case p.Family == rowstore.Notify:
			f.kind = 'N'
		case p.Family == rowstore.Write:
			f.two = p.Limit == 2
		}
		have := -1
		if at == nil {
			have = slices.IndexFunc(to, func(t beginField) bool { return t.beginKey == f.beginKey })
		} else if i, ok := at[f.beginKey]; ok {
			have = i
		}
		if have >= 0 {
			to[have].two = to[have].two || f.two
			continue
		}
		to = append(to, f)
		switch n := len(to); {
		case at != nil:
			at[f.beginKey] = n - 1
		case n > fewColumns:
			at = make(map[beginKey]int, 4*n)
			for i := range to {
				at[to[i].beginKey] = i
			}
		}
	}
	return to, true
}

// ReadSnapshot draws a timestamp for each ask and answers its reads, on one server in the
// same run of a script. In a Cluster, and for reads that are not those of a snapshot,
// it draws first.
func (s *direct) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if err := rowstore.CheckSnapshotReads(asks); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b := readBatches.Get().(*readBatch)
	b.enc.reset()
	b.enc.u32(uint32(len(asks)))
	b.enc.u32(maxAnswer)
	rows, fields, plain, err := s.packBegins(&b.enc, asks)
	if err != nil {
		return nil, err
	}
	if !plain || fields > 2*maxRowsPerCall || len(b.enc.b) > maxBytesPerCall || len(asks) == 0 {
		readBatches.Put(b)
		return kit.TimestampThenRead(ctx, s.Oracle(), s, asks)
	}
	c := &call{script: beginScript, keys: []string{s.okey}}
	c.arg.b = b.enc.bytes()
	if err := s.wait(ctx, c); err != nil {
		return nil, fmt.Errorf("redis: begin: %w", err)
	}
	readBatches.Put(b)
	var answers []rowstore.SnapshotRows
	err = c.err
	if err == nil {
		answers, err = begun(c.answer, asks, rows, fields)
	}
	if errors.Is(err, rowstore.ErrCorrupt) || err == nil && fields > 0 && answers == nil {
		// A row is damaged, which must not fail the others; or the reads are too much for one run of the script.
		return kit.TimestampThenRead(ctx, s.Oracle(), s, asks)
	}
	if err != nil {
		return nil, fmt.Errorf("redis: begin: %w", err)
	}
	return answers, nil
}

// packBegins writes the fields that the begin script reads for asks. It returns how many rows
// and fields they are. If the script cannot answer them all, plain is false.
func (s *direct) packBegins(enc *packer, asks []rowstore.SnapshotRead) (rows, fields int, plain bool, err error) {
	var few [8]beginField
	plain = s.oneSlot
	for i := range asks {
		for j := range asks[i].Reads {
			r := &asks[i].Reads[j]
			if err := checkNames(r.Table, r.Row); err != nil {
				return 0, 0, false, err
			}
			wanted, ok := beginFields(r.Selectors, few[:0])
			if plain = plain && ok; !plain {
				continue
			}
			table, tag := escapeTable(r.Table), s.parts[s.partOf(r.Table, r.Row)].tag
			fields += len(wanted)
			for len(wanted) > 0 {
				n := 1
				for n < min(len(wanted), beginAtOnce) && !wanted[n].two {
					n++
				}
				enc.key(tag, table, r.Row)
				if wanted[0].two {
					enc.small(-n)
				} else {
					enc.small(n)
				}
				for _, f := range wanted[:n] {
					enc.field(f.kind, f.column)
				}
				wanted = wanted[n:]
			}
		}
		rows += len(asks[i].Reads)
	}
	return rows, fields, plain, nil
}

// begun reads the answer of the begin script. It returns nil without an error if the
// script left the fields out, because they were too much for one run, or if a write lies ahead.
func begun(answer string, asks []rowstore.SnapshotRead, rows, fields int) ([]rowstore.SnapshotRows, error) {
	u := unpacker{s: answer}
	n := u.list()
	if n != 2+fields && n != 2 {
		return nil, errAnswer
	}
	first := u.timestamp()
	if n == 2 && fields > 0 {
		return nil, u.done()
	}
	answers, err := beginRows(&u, first, asks, rows)
	if err == nil {
		err = u.done()
	}
	if errors.Is(err, errAhead) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// errAhead says that the newest write of a cell lies ahead of the timestamp at which it is read. The begin script answers that
// write alone, or the one behind it, so it has to be read anew. Commits never lie ahead; a lease is a write at the time of its end.
var errAhead = errors.New("a write lies ahead of the timestamp that was drawn")

// beginRows reads the fields that begins were answered, the first of which has the timestamp
// first. Its error may match errAhead.
func beginRows(u *unpacker, first oracle.Timestamp, asks []rowstore.SnapshotRead, rows int) ([]rowstore.SnapshotRows, error) {
	var d decoder
	var few [8]beginField
	answers := make([]rowstore.SnapshotRows, len(asks))
	all := make([]rowstore.Row, rows)
	for i := range asks {
		n := len(asks[i].Reads)
		answers[i] = rowstore.SnapshotRows{TS: first + oracle.Timestamp(i), Rows: all[:n:n]}
		all = all[n:]
		for j := range asks[i].Reads {
			r := &asks[i].Reads[j]
			d.vs, d.drawn, d.ahead = d.vs[:0], answers[i].TS, false
			wanted, _ := beginFields(r.Selectors, few[:0])
			for _, f := range wanted {
				if err := d.column(u, f.kind, f.column); err != nil {
					return nil, fmt.Errorf("row %q of table %q: %w", r.Row, r.Table, err)
				}
			}
			answers[i].Rows[j] = rowstore.Row{Table: r.Table, Row: r.Row, Versions: d.pick(r.Selectors)}
			if d.ahead {
				return nil, errAhead
			}
		}
	}
	return answers, u.err
}

// decoder turns answers into rows. Its memory is reused.
type decoder struct {
	vs     []version
	keep   []bool
	counts []int
	mine   []int // the picks of a column
	// drawn is what AssignedTimestamp stands for in the picks, and ahead says that a write was left out because it lies ahead of that.
	drawn rowstore.Timestamp
	ahead bool
}

// rows reads the answer to a batch. It returns how many of the batch's first rows the
// answer has: 0 if the first row alone is too much for one run.
func (d *decoder) rows(reads []rowstore.RowRead, b *readBatch, out []rowstore.Row) (int, error) {
	u := unpacker{s: b.call.answer}
	n := u.list()
	if n < 1 || n > len(b.rows) {
		return 0, errAnswer
	}
	if u.tooMuch() {
		if n > 1 {
			return 0, errAnswer
		}
		return 0, u.done()
	}
	for _, i := range b.rows[:n] {
		picks := reads[i].Selectors
		var err error
		d.vs = d.vs[:0]
		if column, _, ok := isSimple(picks); ok {
			err = d.column(&u, 'W', column)
		} else {
			pl := newPlan(picks)
			err = d.general(&u, &pl)
		}
		if err == nil {
			err = u.err
		}
		if err != nil {
			return 0, err
		}
		out[i].Versions = d.pick(picks)
	}
	return n, u.done()
}

// column reads the view of one field: the field, or a list of history members and
// the field.
func (d *decoder) column(u *unpacker, kind byte, name string) error {
	it := u.next()
	n := int64(0)
	if it.kind == isList {
		n = it.n - 1
		for range n {
			m, ok := u.string()
			if !ok {
				return errAnswer
			}
			var err error
			if d.vs, err = parseHistory(d.vs, m); err != nil {
				return err
			}
		}
		it = u.next()
	}
	switch it.kind {
	case isFalse:
		return nil
	case isString:
		var err error
		if kind == 'W' {
			d.vs, err = parseCell(d.vs, name, it.s)
		} else {
			d.vs, err = parseNotes(d.vs, name, it.s)
		}
		return err
	}
	return errAnswer
}

// general reads the answer to a plan.
func (d *decoder) general(u *unpacker, pl *plan) error {
	n := u.list() - len(pl.ranges)
	if pl.all {
		if n < 0 || n%2 != 0 {
			return errAnswer
		}
		for range n / 2 {
			f, ok := u.string()
			if !ok {
				return errAnswer
			}
			kind, column, _, err := parseField(f)
			if err != nil {
				return err
			}
			if err := d.column(u, kind, column); err != nil {
				return err
			}
		}
	} else {
		if n != len(pl.cells)+len(pl.notes)+len(pl.again) {
			return errAnswer
		}
		for i := range pl.cells {
			if err := d.column(u, 'W', pl.cells[i].column); err != nil {
				return err
			}
		}
		for _, c := range pl.notes {
			if err := d.column(u, 'N', c); err != nil {
				return err
			}
		}
		for i := range pl.again {
			if err := d.column(u, 'W', pl.again[i].column); err != nil {
				return err
			}
		}
	}
	return d.members(u, len(pl.ranges))
}

// members reads the answers to ranges of a row's history.
func (d *decoder) members(u *unpacker, ranges int) error {
	for range ranges {
		for range u.list() {
			m, ok := u.string()
			if !ok {
				return errAnswer
			}
			var err error
			if d.vs, err = parseHistory(d.vs, m); err != nil {
				return err
			}
		}
	}
	return u.err
}
