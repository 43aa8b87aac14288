package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Rows that cannot be read, because they are damaged or a newer program wrote them. What goes through many rows leaves such a row
// as it is, says so, and goes on behind it. See "A row that cannot be read" in docs/architecture.md.

const (
	// mostProbes bounds the scans that search for one such row: some nine for each byte of its name that it does not share with the row before it. The next
	// search goes on where this one has ended. Twice as many bound those of one walk. Beyond that very much cannot be read, and the walk fails. The next one finds by a few
	// what this one has found.
	mostProbes = 1 << 15
	// mostUnswept bounds the rows that a sweep remembers to read again, and mostUnsweptBytes their names. It does not find more than some 7,000 in one attempt,
	// and each time it sweeps those between two that it has forgotten it notifies these once more.
	mostUnswept      = 1 << 14
	mostUnsweptBytes = 1 << 21
	// mostDamagedSlots is how many slots a collection leaves out. A look at notifications, which comes all the time, leaves out fewer.
	mostDamagedSlots = 1024
	// mostSought bounds the bytes of names that are remembered for that.
	mostSought = 1 << 20
)

// sought remembers the names of rows that searches have found, and how far they have come with others.
type sought struct {
	mu     sync.Mutex
	tables map[string][]string // sorted
	bytes  int
}

// next is the first name of a table at or behind from, "" if there is none.
func (s *sought) next(table, from string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.tables[table]
	if i, _ := slices.BinarySearch(names, from); i < len(names) {
		return names[i]
	}
	return ""
}

func (s *sought) add(table, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.tables[table]
	i, known := slices.BinarySearch(names, name)
	if known || len(name) > mostSought {
		return
	}
	if s.bytes += len(name); s.tables == nil || s.bytes > mostSought {
		s.tables, s.bytes, names, i = map[string][]string{}, len(name), nil, 0
	}
	s.tables[table] = slices.Insert(names, i, name)
}

// remove forgets a name at which everything can be read.
func (s *sought) remove(table, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, known := slices.BinarySearch(s.tables[table], name); known {
		s.tables[table] = slices.Delete(s.tables[table], i, i+1)
		s.bytes -= len(name)
	}
}

// isOfARow tells whether a call has failed at a row that cannot be read, beside which others can be. What is damaged may also be
// the catalog or the oracle, and a version that this program does not know may be that of the store: then it must
// do nothing any more. So a failure is a row's only if the catalog has just been read.
func (db *DB) isOfARow(ctx context.Context, failed error) bool {
	if !unreadableKind(failed) {
		return false
	}
	_, err := db.loadCatalog(ctx)
	return err == nil
}

// unreadableKind tells whether an error may be isOfARow.
func unreadableKind(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormat) }

// unreadable is where a scan could not read: at the first row from from on, before to.
type unreadable struct {
	from, to string
	err      error
}

// row is the name of the row, if the search came to one.
func (u *unreadable) row() (string, bool) { return u.from, u.to == u.from+"\x00" }

// readEach is readRows where a row that cannot be read fails alone, by its Err. A store may fail a call all of whose rows cannot be read, that of one row too.
func (db *DB) readEach(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, err := db.store.Read(ctx, reads)
	if err == nil || !db.isOfARow(ctx, err) {
		return rows, err
	}
	if len(reads) == 1 {
		return []rowstore.Row{{Table: reads[0].Table, Row: reads[0].Row, Err: err}}, nil
	}
	rows = make([]rowstore.Row, len(reads))
	for i := range reads {
		one, err := db.store.Read(ctx, reads[i:i+1])
		if err != nil {
			rows[i] = rowstore.Row{Table: reads[i].Table, Row: reads[i].Row, Err: err}
			continue
		}
		rows[i] = one[0]
	}
	return rows, nil
}

// scanPast is Store.Scan in the order of rows, that goes on behind a row which cannot be read. A scan does not say which row that is, so it is
// searched for. left is told, and may end the scan with an error.
func (db *DB) scanPast(ctx context.Context, r rowstore.ScanRange, left func(u unreadable) error) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		probes := 0
		for todo := []rowstore.ScanRange{r}; len(todo) > 0; {
			now := todo[len(todo)-1]
			now.Limit = r.Limit
			todo = todo[:len(todo)-1]
			var failed error
			for row, err := range db.store.Scan(ctx, now) {
				if failed = err; err != nil {
					break
				}
				now.From = row.Row + "\x00"
				if !yield(row, nil) {
					return
				}
				if r.Limit == 1 {
					return
				}
				r.Limit = max(0, r.Limit-1)
			}
			if failed == nil {
				continue
			}
			u, err := db.findUnreadable(ctx, now, failed, &probes)
			if err == nil && u.err == nil { // somebody has mended it
				todo = append(todo, now)
				continue
			}
			if err == nil {
				err = left(u)
			}
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if u.to != "" && (now.To == "" || u.to < now.To) {
				todo = append(todo, rowstore.ScanRange{Table: now.Table, From: u.to, To: now.To, Selectors: now.Selectors})
			}
			if u.from > now.From { // what came there meanwhile
				todo = append(todo, rowstore.ScanRange{Table: now.Table, From: now.From, To: u.from, Selectors: now.Selectors})
			}
		}
	}
}

// findUnreadable searches for the row of a range that a scan of it has failed at. The range has no other row before that one. The row's name is found from its first byte on.
// The answer has no error if there is no such row any more.
func (db *DB) findUnreadable(ctx context.Context, r rowstore.ScanRange, failed error, probes *int) (unreadable, error) {
	if !db.isOfARow(ctx, failed) || *probes >= 2*db.opt.probes {
		return unreadable{}, failed
	}
	s := &probing{db: db, r: r, failed: failed}
	s.r.Limit = 0
	prefix, found := s.soughtBefore(ctx)
	if !found {
		prefix = s.shared(ctx)
	}
	longest := db.longestRow()
	for !found && s.err == nil && s.probes < db.opt.probes && len(prefix) <= longest && !s.before(ctx, prefix+"\x00") {
		first, last := 0, 255
		for first < last && s.err == nil {
			if b := (first + last) / 2; s.before(ctx, prefix+string([]byte{byte(b + 1)})) {
				last = b
			} else {
				first = b + 1
			}
		}
		prefix += string([]byte{byte(first)})
	}
	*probes += s.probes
	u := unreadable{from: prefix, to: prefix + "\x00"}
	if !found && (s.probes >= db.opt.probes || len(prefix) > longest) { // it is no row, or its name is very long
		u.to = behind(prefix)
	}
	if s.r.From = prefix; s.fails(ctx, u.to) {
		u.err = s.failed
	}
	if s.err == nil && u.err != nil && !db.isOfARow(ctx, u.err) { // by now
		return u, u.err
	}
	if s.err == nil && u.err != nil {
		db.sought.add(r.Table, prefix)
	}
	return u, s.err
}

// longestRow is how long the name of a row can be.
func (db *DB) longestRow() int {
	if l := db.step.Row; l > 0 {
		return l
	}
	return max(db.limits.Row, 1<<16)
}

// probing searches for a row by scans.
type probing struct {
	db     *DB
	r      rowstore.ScanRange // From rises: nothing is in the way before it
	probes int
	failed error // of the row
	err    error // of the search
}

// before tells whether the row lies before to. "" is the end of the table.
func (s *probing) before(ctx context.Context, to string) bool {
	switch {
	case s.err != nil || to == "" || s.r.To != "" && to >= s.r.To:
		return true
	case to <= s.r.From:
		return false
	}
	if s.probes++; s.fails(ctx, to) {
		return true
	}
	s.r.From = to
	return false
}

// fails tells whether a scan up to there fails, at the row or for another reason.
func (s *probing) fails(ctx context.Context, to string) bool {
	part := s.r
	if to != "" && (part.To == "" || to < part.To) {
		part.To = to
	}
	for _, err := range s.db.store.Scan(ctx, part) {
		switch {
		case err == nil:
		case unreadableKind(err):
			s.failed = err
			return true
		default:
			s.err = err
			return true
		}
	}
	return false
}

// soughtBefore looks for the row by what earlier searches have found. If the row is none of these, From lies behind those before it.
func (s *probing) soughtBefore(ctx context.Context) (row string, found bool) {
	for s.err == nil {
		name := s.db.sought.next(s.r.Table, s.r.From)
		if name == "" || s.before(ctx, name) {
			return "", false
		}
		if s.before(ctx, name+"\x00") {
			return name, true
		}
		s.db.sought.remove(s.r.Table, name) // it was mended, or is the beginning of a longer name
	}
	return "", false
}

// shared is the longest beginning of the range's From that the row's name begins with too.
func (s *probing) shared(ctx context.Context) string {
	from := s.r.From
	least, most := 0, len(from)
	for least < most && s.err == nil {
		if n := (least + most + 1) / 2; s.before(ctx, behind(from[:n])) {
			least = n
		} else {
			most = n - 1
		}
	}
	return from[:least]
}

// behind is the first name behind all that begin with prefix, "" if there is none.
func behind(prefix string) string {
	for n := len(prefix); n > 0; n-- {
		if last := prefix[n-1]; last < 255 {
			return prefix[:n-1] + string([]byte{last + 1})
		}
	}
	return ""
}

// notifiedPast is notifiedRows of the rows that can be read. Where the store finds them by slots, that leaves out the slot of a row which cannot be read, from
// that row on: left is told of the slot.
func (db *DB) notifiedPast(ctx context.Context, table string, picks []rowstore.Selector, left func(u unreadable) error) iter.Seq2[rowstore.Row, error] {
	r := rowstore.ScanRange{Table: table, Selectors: picks}
	if !db.slots {
		return db.scanPast(ctx, r, left)
	}
	return func(yield func(rowstore.Row, error) bool) {
		r.Slots = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
		s := &slotWalk{db: db, left: left, yield: func(row rowstore.Row) bool { return yield(row, nil) }}
		if err := s.walk(ctx, r); err != nil && !s.ended {
			yield(rowstore.Row{}, err)
		}
	}
}

// slotWalk goes through the rows of slots.
type slotWalk struct {
	db      *DB
	left    func(u unreadable) error
	yield   func(row rowstore.Row) bool
	ended   bool // nobody wants more
	damaged int  // slots that were left out
}

func (s *slotWalk) walk(ctx context.Context, r rowstore.ScanRange) error {
	var failed error
	for row, err := range s.db.store.Scan(ctx, r) {
		if failed = err; err != nil {
			break
		}
		if !s.yield(row) {
			s.ended = true
			return nil
		}
		r.From, r.Slots = row.Row+"\x00", slotsFrom(r.Slots, rowstore.Slot(r.Table, row.Row))
	}
	if failed == nil || s.damaged == mostDamagedSlots || !s.db.isOfARow(ctx, failed) {
		return failed
	}
	first, second := halves(r.Slots)
	if len(second) == 0 {
		s.damaged++
		return s.left(unreadable{err: fmt.Errorf("slot %d: %w", first[0].First, failed)})
	}
	r.Slots = first
	err := s.walk(ctx, r)
	if err == nil && !s.ended {
		r.From, r.Slots = "", second
		err = s.walk(ctx, r)
	}
	return err
}

const (
	// mostSaid bounds the rows that one collection names in the log.
	mostSaid = 100
	// mostKnown bounds those that it remembers, to count each once.
	mostKnown = 1 << 13
)

// saidRows are rows that the log has named: each once in a process, and no more than mostSaid.
type saidRows struct {
	mu   sync.Mutex
	rows map[rowName]bool
}

// first tells whether a row is to be named, and whether it is the last one.
func (s *saidRows) first(name rowName) (first, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows[name] || len(s.rows) >= mostSaid {
		return false, false
	}
	if s.rows == nil {
		s.rows = map[rowName]bool{}
	}
	s.rows[name] = true
	return true, len(s.rows) == mostSaid
}

// damage is what a collection could not read.
type damage struct {
	db     *DB
	report *GCReport
	all    bool // all rows must be read: what cannot be is an error
	known  map[rowName]bool
}

// pass is for a row that a collection has failed at. It returns an error if that is the collection's.
func (d *damage) pass(ctx context.Context, table, row string, failed error) error {
	if d.all || !d.db.isOfARow(ctx, failed) {
		return fmt.Errorf("row %q: %w", row, failed)
	}
	if name := (rowName{table, row}); !d.known[name] {
		if d.known == nil || len(d.known) >= mostKnown {
			d.known = map[rowName]bool{} // a row may count twice then
		}
		d.known[name] = true
		d.count(Cell{Table: table}.public().Table, row, failed)
	}
	return nil
}

// passAt is pass for what a scan could not read.
func (d *damage) passAt(ctx context.Context, table string, u unreadable) error {
	if row, ok := u.row(); ok {
		return d.pass(ctx, table, row, u.err)
	}
	if d.all {
		return u.err
	}
	d.count(Cell{Table: table}.public().Table, "", u.err)
	return nil
}

func (d *damage) count(table, row string, failed error) {
	d.report.Damaged++
	d.db.count.gcDamaged.Add(1)
	switch {
	case d.report.Damaged > mostSaid:
	case row == "":
		d.db.log.Error("rows cannot be read, and keep their garbage", "table", table, "err", failed)
	default:
		d.db.log.Error("a row cannot be read, and keeps its garbage", "table", table, "row", row, "err", failed)
	}
	if d.report.Damaged == mostSaid {
		d.db.log.Error("further rows that cannot be read are only counted")
	}
}
