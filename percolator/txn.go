package percolator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Txn is a transaction. It reads from the snapshot at its start timestamp and
// sees its own writes, which go to the store at Commit.
//
// A Txn is for one goroutine at a time, also for reads. If two first reads side by side take two snapshots, the later one is ErrInvalid: an
// update of somebody else might be lost. Nothing else of such use is noticed. To read many cells at once, use GetMany.
//
// An error of a method, Get or Set say, does not end the transaction, and Commit does not return it. So return it from the function of
// Update, or roll back. If you drop it, the transaction goes on without what failed: a read that failed is not among those that
// Serializable checks, and a Set that failed is not among the writes. ErrNotFound is no failure: that there is no value is an answer.
//
// After Commit or Rollback every method but Rollback, StartTimestamp, Begun, Now, Hops and
// CommitTimestamp returns ErrTxnDone; StartTimestamp and Now too where no timestamp was drawn.
type Txn struct {
	db *DB
	snapshot
	commit Timestamp
	opt    txnOptions

	// The flags lie together: a Txn is smaller for it.
	readOnly   bool
	counted    bool // among those that only read, by View
	done       bool
	committing bool // Commit was called
	lent       bool // a function of Update or of an observer is being called
	keeping    bool // an Upkeep is being called
	endedBy    bool // the Upkeep that is being called has called Commit or Rollback
	hasEntries bool // an Upkeep may have written something
	hasRead    bool // Get or GetMany has read from the store
	unlimited  bool // what it writes from now on is the library's own: no program's Limits may keep a run from being parked, or released
	// storeFailed means that a read of the transaction failed. If an observer's function
	// went on all the same and its commit fails, that counts as a failure of the
	// function.
	storeFailed  bool
	tracesItself bool // the end of the transaction ends its span

	writes writeSet
	weak   []Cell // stored names, each once
	// weakSet has the same cells as weak.
	weakSet map[Cell]struct{}
	// told are cells, by stored names, that get a notification which is no change by itself: what it tells of is among the
	// writes.
	told []Cell
	gone *goneRows // nil for none
	// What Serializable validates. Stored names.
	reads  map[Cell]struct{}
	ranges []readRange

	// extra are edits that go with the commit of a row that the transaction writes,
	// in the same mutation: a run's removal of the notifications that it saw.
	extra map[rowName][]rowstore.Edit
	// run is what the transaction is the run of, nil for none.
	run *runOf

	kept []keptIndex // see upkeep.go
	puts int         // how often the transaction wrote, without upkeeps
	// When the indexes were kept last: after how many writes, and by which revision of the catalog, 0 for never.
	keptPuts int
	keptBy   Timestamp
	old      oldValues // of indexed cells

	onEnd    []func(err error) // see OnEnd
	attached map[any]any       // see Attach

	// absent are cells of which reads found no value, the first mostAbsent of them.
	absent []Cell
	trace  *traced    // its span, nil for none
	ahead  *readAhead // what Prefetch asks for, nil for nothing
}

// runOf names the run of an observer.
type runOf struct {
	observer string
	name     string    // by which the worker has the observer
	cell     Cell      // stored
	since    Timestamp // of the registration that the run goes by
	begun    bool      // a run for the change is on record, which failed or is to be repeated
	hops     int32     // of the change
	attempt  int32     // see Run.Attempt; 0 where no function is called
}

const mostAbsent = 16

// snapshot is what a transaction reads.
type snapshot struct {
	// set tells that there is a start timestamp: Update and View draw it with their
	// first read where the store can do both at once.
	set   bool
	start Timestamp
	began time.Time // local time just before start was drawn
}

// at is how a pick names the snapshot.
func (s *snapshot) at() Timestamp {
	if !s.set {
		return rowstore.AssignedTimestamp
	}
	return s.start
}

// begin draws the start timestamp unless there is one.
func (tx *Txn) begin(ctx context.Context) error {
	if tx.set {
		return nil
	}
	if f := tx.db.opt.begins; f != nil {
		f(ctx)
	}
	began := tx.db.clock.Now()
	ts, err := tx.db.draw(ctx)
	if err != nil {
		return fmt.Errorf("percolator: beginning a transaction: %w", err)
	}
	if tx.set {
		return errTwoAtOnce
	}
	tx.snapshot = snapshot{set: true, start: ts, began: began}
	return nil
}

// errTwoAtOnce is for a snapshot that came while another one was drawn. What the transaction has read before would be checked against the
// later one, and an update from between them be lost.
var errTwoAtOnce = fmt.Errorf("percolator: %w: two goroutines use a transaction at once", ErrInvalid)

// write is the net effect on one cell.
type write struct {
	cell  Cell // stored names
	value []byte
	kind  format.Kind
	first bool // the cell has no version, so a put replaces nothing
	entry bool // an Upkeep has written it
}

func (w *write) long() bool { return w.kind == format.KindPut && len(w.value) > format.ShortValue }

// writeSet holds the writes in the order of their first call, with an index once
// there are many.
type writeSet struct {
	list  []write
	index map[Cell]int
	bytes int
}

const indexFrom = 16

func (s *writeSet) find(c Cell) *write {
	if s.index != nil {
		if i, ok := s.index[c]; ok {
			return &s.list[i]
		}
		return nil
	}
	for i := range s.list {
		if s.list[i].cell == c {
			return &s.list[i]
		}
	}
	return nil
}

func (s *writeSet) add(w write) {
	if s.list == nil {
		s.list = make([]write, 0, 2) // most transactions write a cell or two
	}
	s.list = append(s.list, w)
	switch {
	case s.index != nil:
		s.index[w.cell] = len(s.list) - 1
	case len(s.list) > indexFrom:
		s.index = make(map[Cell]int, 4*indexFrom)
		for i := range s.list {
			s.index[s.list[i].cell] = i
		}
	}
}

// readRange is what a scan has seen: rows from From on, up to To, which is
// excluded. "" are the table's ends.
type readRange struct {
	table    string
	from, to string
	columns  []string // stored names; nil means all of the user's
}

// StartTimestamp returns the timestamp of the snapshot that the transaction reads.
// Inside Update and View the timestamp is drawn when it is first needed, which may be
// in this call. Once drawn it stays the same, also after the transaction's end, and
// StartTimestamp returns no error. Before that, its errors are ErrTxnDone, ErrClosed,
// those of the context and of the oracle. After an error the next call tries again.
func (tx *Txn) StartTimestamp(ctx context.Context) (Timestamp, error) {
	if tx.set {
		return tx.start, nil
	}
	if err := tx.usable(ctx); err != nil {
		return 0, err
	}
	if err := tx.begin(ctx); err != nil {
		return 0, err
	}
	return tx.start, nil
}

// Begun returns the timestamp of the transaction's snapshot, and true, or false if it has not been drawn yet: whatever has been committed
// by the time of the call is in the snapshot then. It draws none, never calls the store, and has no errors. The commit of a transaction that has read nothing draws it; after the
// transaction's end it stays as it is. Like the other methods it is for one goroutine at a time.
func (tx *Txn) Begun() (start Timestamp, ok bool) { return tx.start, tx.set }

// CommitTimestamp returns the timestamp at which the transaction's writes became
// visible and its notifications stand, once Commit has returned nil. Otherwise, and for
// a transaction that neither wrote nor notified, it returns 0.
func (tx *Txn) CommitTimestamp() Timestamp { return tx.commit }

// Get returns the value of c at the transaction's snapshot, or as the transaction
// set it. The slice belongs to the caller; an empty value is an empty slice, never
// nil. Errors: ErrNotFound, ErrInvalid, ErrTooLarge, ErrSnapshotTooOld, ErrTxnDone,
// ErrClosed, those of the context and of the store.
//
// Get waits for the lock of a transaction that may be committing. It resolves a lock
// that a dead process left behind.
func (tx *Txn) Get(ctx context.Context, c Cell) ([]byte, error) {
	if err := tx.check(ctx, "Get", &c); err != nil {
		return nil, err
	}
	sc := c.stored()
	if w := tx.writes.find(sc); w != nil && w.kind != format.KindLock {
		if w.kind == format.KindDelete {
			return nil, notFound(c)
		}
		return append(make([]byte, 0, len(w.value)), w.value...), nil
	}
	value, found, err := tx.readCell(ctx, sc)
	if err != nil {
		tx.storeFailed = true
		return nil, fmt.Errorf("percolator: reading %v: %w", c, readFailed(ctx, err))
	}
	tx.noteRead(sc)
	tx.noteSeen(sc, value, found)
	if !found {
		tx.noteAbsent(sc)
		return nil, notFound(c)
	}
	return value, nil
}

func notFound(c Cell) error { return fmt.Errorf("%w: %v", ErrNotFound, c) }

// GetMany returns the values of the cells that have one, as Get does, in as few
// requests as the store allows. A cell without a value is not in the map, which is
// never nil; a cell may be named twice.
func (tx *Txn) GetMany(ctx context.Context, cells ...Cell) (map[Cell][]byte, error) {
	if err := tx.usable(ctx); err != nil {
		return nil, err
	}
	got := make(map[Cell][]byte, len(cells))
	missing := make([]Cell, 0, len(cells)) // stored names
	for i := range cells {
		if err := tx.db.checkCell(&cells[i]); err != nil {
			return nil, called("GetMany", err)
		}
		sc := cells[i].stored()
		if w := tx.writes.find(sc); w != nil && w.kind != format.KindLock {
			if w.kind == format.KindPut {
				got[cells[i]] = append(make([]byte, 0, len(w.value)), w.value...)
			}
			continue
		}
		missing = append(missing, sc)
	}
	if len(missing) == 0 {
		return got, nil
	}
	values, err := tx.readCells(ctx, missing)
	if err != nil {
		tx.storeFailed = true
		return nil, fmt.Errorf("percolator: reading %d cells: %w", len(missing), readFailed(ctx, err))
	}
	for i, sc := range missing {
		tx.noteRead(sc)
		tx.noteSeen(sc, values[i], values[i] != nil)
		if values[i] != nil {
			got[sc.public()] = values[i]
		} else {
			tx.noteAbsent(sc)
		}
	}
	return got, nil
}

// GetForUpdate is Get, and makes the commit of this transaction conflict with that of
// any other which changes c meanwhile, as if this one wrote c. It is the remedy for
// write skew where one cell stands for what must not change. Nothing is locked before
// Commit. A transaction that only reads and locks commits without effect. Errors: those of Get, ErrReadOnly and
// ErrTooLarge; Commit returns ErrIndexed if the table has the entries of an index, which only its upkeep locks.
func (tx *Txn) GetForUpdate(ctx context.Context, c Cell) ([]byte, error) {
	if err := tx.check(ctx, "GetForUpdate", &c); err != nil {
		return nil, err
	}
	if tx.readOnly {
		return nil, fmt.Errorf("%w: GetForUpdate of %v", ErrReadOnly, c)
	}
	sc := c.stored()
	if err := tx.lock(sc); err != nil {
		return nil, err
	}
	return tx.Get(ctx, c)
}

// lock locks a stored cell at Commit, unless the transaction writes it.
func (tx *Txn) lock(sc Cell) error {
	switch w := tx.writes.find(sc); {
	case w == nil:
		if err := tx.grow(1, len(sc.Table)+len(sc.Row)+len(sc.Column)); err != nil {
			return err
		}
		tx.writes.add(write{cell: sc, kind: format.KindLock, entry: tx.keeping})
	case w.kind == format.KindLock:
		w.entry = w.entry && tx.keeping // no longer an upkeep's own
	}
	return nil
}

// Set makes value the value of c, at Commit. The value is copied; nil sets an empty
// value. Errors: ErrInvalid, ErrTooLarge, ErrReadOnly, ErrTxnDone; ErrIndexed, here or from Commit, if the column
// has an index that this process does not keep, or the table has the entries of one.
func (tx *Txn) Set(c Cell, value []byte) error {
	if err := tx.writable(&c, "Set"); err != nil {
		return err
	}
	if len(value) > tx.db.limits.Value {
		return fmt.Errorf("percolator: Set: %w: the value of %v has %d bytes, the limit is %d", ErrTooLarge, c, len(value), tx.db.limits.Value)
	}
	sc := c.stored()
	if err := tx.checkIndexed(sc); err != nil {
		return err
	}
	return tx.put(sc, format.KindPut, value)
}

// Delete removes the value of c, at Commit. It is no error if c has no value; the
// transaction conflicts with other writers of c all the same. Errors: ErrInvalid,
// ErrTooLarge, ErrReadOnly, ErrTxnDone, ErrIndexed as for Set.
func (tx *Txn) Delete(c Cell) error {
	if err := tx.writable(&c, "Delete"); err != nil {
		return err
	}
	sc := c.stored()
	if err := tx.checkIndexed(sc); err != nil {
		return err
	}
	return tx.put(sc, format.KindDelete, nil)
}

func (tx *Txn) put(sc Cell, k format.Kind, value []byte) error {
	if !tx.keeping {
		tx.puts++
	}
	w := tx.writes.find(sc)
	if w == nil {
		if err := tx.grow(1, len(sc.Table)+len(sc.Row)+len(sc.Column)+len(value)); err != nil {
			return err
		}
		tx.writes.add(write{cell: sc, kind: k, value: append([]byte(nil), value...), first: slices.Contains(tx.absent, sc), entry: tx.keeping})
		return nil
	}
	if err := tx.grow(0, len(value)-len(w.value)); err != nil {
		return err
	}
	w.kind, w.value, w.entry = k, append([]byte(nil), value...), w.entry && tx.keeping
	w.first = w.first || slices.Contains(tx.absent, sc)
	return nil
}

// Notify makes the observers of c's column run for c, at Commit, as a change of c
// would, but without writing c: a weak notification (section 2.4 of the paper). So
// transactions that notify the same cell do not conflict. Several notifications may
// lead to one run, and one, seldom, to several.
//
// Like Set, Notify only notes what Commit does. If no observer watches the column, the
// error matches ErrNotObserved. Notify returns it if what this process knows of the
// observers is recent enough; otherwise Commit returns it. Other errors: ErrInvalid,
// ErrTooLarge, ErrReadOnly, ErrTxnDone.
func (tx *Txn) Notify(c Cell) error {
	if err := tx.writable(&c, "Notify"); err != nil {
		return err
	}
	sc := c.stored()
	if v := tx.db.known(); len(v.observers(sc.Table, sc.Column)) == 0 && tx.set && v.holds(tx.start) {
		return fmt.Errorf("%w: %v", ErrNotObserved, c)
	}
	if _, twice := tx.weakSet[sc]; twice {
		return nil
	}
	if err := tx.grow(1, len(c.Table)+len(c.Row)+len(c.Column)); err != nil {
		return err
	}
	if tx.weakSet == nil {
		tx.weakSet = make(map[Cell]struct{})
	}
	tx.weakSet[sc] = struct{}{}
	tx.weak = append(tx.weak, sc)
	return nil
}

// Rollback ends the transaction without effect. It returns nil, also after Commit
// or another Rollback, so that "defer tx.Rollback(ctx)" is safe.
func (tx *Txn) Rollback(context.Context) error {
	if tx.keeping {
		tx.endedBy = true
		return nil
	}
	tx.finish(nil)
	return nil
}

// finish ends the transaction; err is that of its commit. Further calls do nothing.
func (tx *Txn) finish(err error) {
	if tx.tracesItself && !tx.done {
		tx.trace.end(err, tx.committing)
	}
	tx.done = true
	tx.writes, tx.weak, tx.weakSet, tx.told, tx.gone = writeSet{}, nil, nil, nil, nil
	tx.reads, tx.ranges, tx.extra, tx.old, tx.ahead = nil, nil, nil, oldValues{}, nil
	ended := tx.onEnd
	tx.onEnd = nil
	for _, f := range ended {
		f(err)
	}
	tx.attached = nil
}

// guarded tells whether the transaction must conflict with others though it writes
// nothing: it has locked cells, or its reads are validated.
func (tx *Txn) guarded() bool {
	return len(tx.writes.list) > 0 || len(tx.reads) > 0 || len(tx.ranges) > 0
}

func (tx *Txn) grow(cells, bytes int) error {
	l := &tx.db.limits
	if n := len(tx.writes.list) + len(tx.weak) + len(tx.told) + cells; n > l.Cells && !tx.unlimited {
		return fmt.Errorf("percolator: %w: the transaction writes, locks or notifies more than %d cells (Limits.Cells); split it", ErrTooLarge, l.Cells)
	}
	if tx.writes.bytes+bytes > l.Bytes && !tx.unlimited {
		return fmt.Errorf("percolator: %w: the transaction writes more than %d bytes (Limits.Bytes); split it", ErrTooLarge, l.Bytes)
	}
	tx.writes.bytes += bytes
	return nil
}

func (tx *Txn) noteRead(sc Cell) {
	if tx.opt.isolation != Serializable || tx.readOnly {
		return
	}
	if tx.reads == nil {
		tx.reads = make(map[Cell]struct{})
	}
	tx.reads[sc] = struct{}{}
}

func (tx *Txn) noteAbsent(sc Cell) {
	if !tx.readOnly && len(tx.absent) < mostAbsent {
		tx.absent = append(tx.absent, sc)
	}
}

func (tx *Txn) usable(ctx context.Context) error {
	switch {
	case tx.done:
		return ErrTxnDone
	case tx.db.ctx.Err() != nil:
		return errDBClosed // own writes too, which need no store
	}
	return ctx.Err()
}

func (tx *Txn) check(ctx context.Context, what string, c *Cell) error {
	if err := tx.usable(ctx); err != nil {
		return err
	}
	if err := tx.db.checkCell(c); err != nil {
		return called(what, err)
	}
	return nil
}

func (tx *Txn) writable(c *Cell, what string) error {
	if tx.done {
		return ErrTxnDone
	}
	if err := tx.db.checkCell(c); err != nil {
		return called(what, err)
	}
	if tx.readOnly {
		return fmt.Errorf("%w: %s of %v", ErrReadOnly, what, *c)
	}
	return nil
}
