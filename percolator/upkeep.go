package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
)

// How transactions keep indexes. Just before a commit, or before somebody reads an index in the transaction, each
// index of a column that was written gets the changes, and writes its entries into the same transaction. The commit then
// finds out, by the view of the catalog that it goes by, whether every index was kept.

// keptIndex is an index that a transaction has kept.
type keptIndex struct {
	name  string
	since Timestamp
}

func keptAs(x *format.Index) keptIndex { return keptIndex{string(x.Name), x.Since} }

// oldValue is the value of an indexed cell at the snapshot, which a read has seen.
type oldValue struct {
	value []byte
	found bool
}

// WithIndexUpkeep lets a transaction write the entries of an index by itself: to build, to repair or to remove them. It commits only while
// the index is as info says, by its state too; otherwise Commit returns an error that matches ErrIndexChanged, and nothing was written.
func WithIndexUpkeep(info IndexInfo) TxnOption {
	return func(o *txnOptions) { o.upkeepOf = &info }
}

// Index tells about an index, as this transaction may use it, and brings the entries up to date with the transaction's own writes. If State is
// IndexReadable, every entry is there at the transaction's snapshot. An index that became readable after the snapshot counts as IndexBuilding.
// One that is not defined has the State IndexAbsent, without other fields. Errors: those of Keep, which Commit would
// return too; ErrIndexed; ErrInvalid if an Upkeep calls it; ErrTxnDone, ErrClosed, those of the context, of the store and of the oracle.
func (tx *Txn) Index(ctx context.Context, name string) (IndexInfo, error) {
	if err := tx.usable(ctx); err != nil {
		return IndexInfo{}, err
	}
	if tx.keeping { // it would be called within itself, without end
		return IndexInfo{}, fmt.Errorf("percolator: looking for the index %q: %w: the upkeep of an index is being called, which may read no index by its transaction", name, ErrInvalid)
	}
	// The view is looked at after the timestamp of the snapshot was drawn. If it still holds at that timestamp, every commit
	// that does not keep an index which it calls readable is later.
	if err := tx.begin(ctx); err != nil {
		return IndexInfo{}, err
	}
	v := tx.db.known()
	if !v.holds(tx.start) {
		var err error
		if v, err = tx.db.loadCatalog(ctx); err != nil {
			return IndexInfo{}, fmt.Errorf("percolator: looking for the index %q: %w", name, err)
		}
	}
	if err := tx.keepIndexes(ctx); err != nil {
		return IndexInfo{}, fmt.Errorf("percolator: keeping the indexes: %w", err)
	}
	x := v.index(name)
	if x == nil {
		return IndexInfo{}, nil
	}
	info := infoOf(x)
	if info.State == IndexReadable && tx.start < info.At {
		info.State = IndexBuilding
	}
	return info, nil
}

// keepIndexes writes the entries that fit what the transaction has written so far, and takes back those of an
// earlier call.
func (tx *Txn) keepIndexes(ctx context.Context) error {
	v := tx.db.known()
	if tx.keptPuts == tx.puts && tx.keptBy == v.revision {
		return nil
	}
	tx.takeBackEntries()
	tx.kept, tx.keptBy = nil, 0
	if len(v.Indexes) > 0 {
		if err := tx.keepBy(ctx, v); err != nil {
			return err
		}
	}
	tx.keptPuts, tx.keptBy = tx.puts, v.revision
	return nil
}

// keepBy is keepIndexes for a view of the catalog that has some.
func (tx *Txn) keepBy(ctx context.Context, v *catalogView) error {
	var cells []Cell // stored
	for i := range tx.writes.list {
		if w := &tx.writes.list[i]; w.kind != format.KindLock && v.indexed(w.cell) {
			cells = append(cells, w.cell)
		}
	}
	if len(cells) == 0 {
		return nil
	}
	old, err := tx.oldValues(ctx, cells)
	if err != nil {
		return err
	}
	changes := make([]RowChange, len(cells))
	for i, c := range cells {
		w := tx.writes.find(c)
		changes[i] = RowChange{Row: c.Row, Old: old[i].value, OldFound: old[i].found, New: w.value, NewFound: w.kind == format.KindPut}
	}
	for i := range v.Indexes {
		x := &v.Indexes[i]
		its := changesFor(x, cells, changes)
		if len(its) == 0 {
			continue
		}
		u := tx.db.upkeeps.of(x)
		if u == nil {
			return tx.db.notKept(x, Cell{string(x.Table), its[0].Row, string(x.Column)})
		}
		if err := tx.keep(ctx, u, its); err != nil {
			return err
		}
		tx.kept = append(tx.kept, keptAs(x))
	}
	return nil
}

// changesFor returns the changes of an index's own cells. Mostly those are all.
func changesFor(x *format.Index, cells []Cell, changes []RowChange) []RowChange {
	other := slices.IndexFunc(cells, func(c Cell) bool { return !keptFor(x, c) })
	if other < 0 {
		return slices.Clip(changes)
	}
	its := slices.Clone(changes[:other])
	for i := other; i < len(cells); i++ {
		if keptFor(x, cells[i]) {
			its = append(its, changes[i])
		}
	}
	return its
}

// keep calls an upkeep. What it writes is marked, so that it can be taken back.
func (tx *Txn) keep(ctx context.Context, u *Upkeep, changes []RowChange) error {
	tx.keeping, tx.hasEntries, tx.endedBy = true, true, false
	defer func() { tx.keeping = false }()
	err := unlessPanics("the upkeep", func() error { return u.Keep(ctx, tx, changes) })
	if err == nil && tx.endedBy {
		err = fmt.Errorf("%w: it has ended its transaction", ErrInvalid)
	}
	if err != nil {
		return &upkeepError{u.Name, err}
	}
	return nil
}

// upkeepError is an error of an upkeep: of what the transaction has written, unless a read of the store is behind it.
type upkeepError struct {
	index string
	err   error
}

func (e *upkeepError) Error() string { return fmt.Sprintf("keeping the index %q: %v", e.index, e.err) }
func (e *upkeepError) Unwrap() error { return e.err }

// takeBackEntries drops the writes of upkeeps.
func (tx *Txn) takeBackEntries() {
	if !tx.hasEntries {
		return
	}
	tx.hasEntries = false
	tx.gone.forgetPlaces()
	s := &tx.writes
	all := s.list
	s.list, s.index = make([]write, 0, len(all)), nil
	for _, w := range all {
		if w.entry {
			s.bytes -= len(w.cell.Table) + len(w.cell.Row) + len(w.cell.Column) + len(w.value)
			continue
		}
		s.add(w)
	}
}

// oldValues returns the values of indexed cells, by stored names, at the snapshot. What the transaction has read before is not
// read again.
func (tx *Txn) oldValues(ctx context.Context, cells []Cell) ([]oldValue, error) {
	all := make([]oldValue, len(cells))
	var missing []Cell
	var at []int
	for i, c := range cells {
		v, seen := tx.old.of(c)
		if all[i] = v; !seen {
			missing, at = append(missing, c), append(at, i)
		}
	}
	switch len(missing) {
	case 0:
		return all, nil
	case 1:
		value, found, err := tx.db.getCell(ctx, missing[0], &tx.snapshot)
		if err != nil {
			return nil, tx.failedToKeep(ctx, err)
		}
		all[at[0]] = oldValue{value, found}
		tx.old.note(missing[0], all[at[0]])
		return all, nil
	}
	values, err := tx.db.getCells(ctx, missing, &tx.snapshot)
	if err != nil {
		return nil, tx.failedToKeep(ctx, err)
	}
	for i, c := range missing {
		all[at[i]] = oldValue{values[i], values[i] != nil}
		tx.old.note(c, all[at[i]])
	}
	return all, nil
}

// failedToKeep is the error of a read of what is indexed.
func (tx *Txn) failedToKeep(ctx context.Context, err error) error {
	tx.storeFailed = true
	return fmt.Errorf("reading what is indexed: %w", readFailed(ctx, err))
}

// oldValues are values of indexed cells at the snapshot, by stored names. Most transactions have one or two, for which a list is cheapest.
type oldValues struct {
	list  []seenOld
	index map[Cell]int // once there are many
	bytes int          // of the cells' names and values
}

type seenOld struct {
	cell Cell
	oldValue
}

// of returns the value of a cell, and whether one was noted.
func (o *oldValues) of(c Cell) (oldValue, bool) {
	if o.index != nil {
		i, ok := o.index[c]
		if !ok {
			return oldValue{}, false
		}
		return o.list[i].oldValue, true
	}
	for i := range o.list {
		if o.list[i].cell == c {
			return o.list[i].oldValue, true
		}
	}
	return oldValue{}, false
}

// note remembers the value of a cell that has none yet. It must not change any more.
func (o *oldValues) note(c Cell, v oldValue) {
	o.list = append(o.list, seenOld{c, v})
	o.bytes += oldBytes(c, v.value)
	switch {
	case o.index != nil:
		o.index[c] = len(o.list) - 1
	case len(o.list) == indexFrom:
		o.index = make(map[Cell]int, 2*indexFrom)
		for i := range o.list {
			o.index[o.list[i].cell] = i
		}
	}
}

func oldBytes(c Cell, value []byte) int {
	return len(c.Table) + len(c.Row) + len(c.Column) + len(value)
}

// noteSeen remembers what a read has seen of a cell that is indexed: the upkeep of a write needs it. A transaction may read far more than it writes, and values may be large, so it
// holds little of what was read: the upkeep reads the rest again.
func (tx *Txn) noteSeen(sc Cell, value []byte, found bool) {
	const most, mostBytes = 1024, 1 << 20
	if tx.readOnly || len(tx.old.list) >= most || tx.old.bytes+oldBytes(sc, value) > mostBytes || !tx.db.known().indexed(sc) {
		return
	}
	if _, seen := tx.old.of(sc); !seen {
		tx.old.note(sc, oldValue{append([]byte(nil), value...), found})
	}
}

// indexed tells whether writers keep an index of a stored cell's column.
func (v *catalogView) indexed(sc Cell) bool {
	return slices.ContainsFunc(v.Indexes, func(x format.Index) bool { return keptFor(&x, sc) })
}

// checkIndexed returns the error of a write, by what this process knows of indexes if that is recent enough. Otherwise Commit
// returns it.
func (tx *Txn) checkIndexed(sc Cell) (err error) {
	v := tx.db.known()
	if len(v.Indexes) == 0 || tx.keeping || !tx.set || !v.holds(tx.start) {
		return nil
	}
	v.indexesOf(sc, func(x *format.Index) {
		if tx.db.upkeeps.of(x) == nil && err == nil {
			err = fmt.Errorf("percolator: %w", tx.db.notKept(x, sc))
		}
	})
	if x := v.entriesIn(sc.Table); x != nil && tx.opt.upkeepOf == nil && err == nil {
		err = fmt.Errorf("percolator: %w", ownTable(x, sc))
	}
	return err
}

// notKept is the error of a write of a stored cell by a process that cannot keep an index of it.
func (db *DB) notKept(x *format.Index, sc Cell) error {
	info := infoOf(x)
	db.upkeeps.mu.RLock()
	own := db.upkeeps.byName[info.Name]
	db.upkeeps.mu.RUnlock()
	if own == nil {
		return fmt.Errorf("%w: %v, by the index %q, which this program does not keep (DB.KeepIndex)", ErrIndexed, sc.public(), info.Name)
	}
	return fmt.Errorf("%w: %v, by the index %q, which is defined otherwise than in this program: as table %q, column %q, entries in %q, %q, and here as table %q, column %q, entries in %q, %q",
		ErrIndexed, sc.public(), info.Name, info.Table, info.Column, info.Entries, info.Definition, own.Table, own.Column, own.Entries, own.Definition)
}

// ownTable is the error of a write of a stored cell in a table of entries.
func ownTable(x *format.Index, sc Cell) error {
	return fmt.Errorf("%w: %v is in the table of the entries of the index %q, which only its upkeep writes", ErrIndexed, sc.public(), x.Name)
}

// checkIndexes returns an error unless the transaction has kept exactly the indexes of what it writes, by the view that the commit goes
// by. The upkeep may have gone by another view: then it is a conflict, because a new transaction knows better.
func (c *committer) checkIndexes() error {
	v, tx := c.view, c.tx
	if own := tx.opt.upkeepOf; own != nil && !own.stands(v) {
		return fmt.Errorf("%w: %q is not %v any more", ErrIndexChanged, own.Name, own.State)
	}
	for _, k := range tx.kept {
		if x := v.index(k.name); x == nil || x.Since != k.since || x.State == format.IndexDropping {
			return c.conflict(c.primaryCell(), 0, fmt.Sprintf("the index %q was dropped meanwhile", k.name))
		}
	}
	if len(v.Indexes) == 0 {
		return nil
	}
	for i := range c.writes {
		if err := c.checkKept(&c.writes[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkKept is checkIndexes for one write.
func (c *committer) checkKept(w *write) (err error) {
	if x := c.view.entriesIn(w.cell.Table); x != nil && !w.entry {
		if own := c.tx.opt.upkeepOf; own == nil || own.Name != string(x.Name) {
			return ownTable(x, w.cell)
		}
	}
	if w.kind == format.KindLock {
		return nil
	}
	c.view.indexesOf(w.cell, func(x *format.Index) {
		switch {
		case err != nil || slices.Contains(c.tx.kept, keptAs(x)):
		case c.db.upkeeps.of(x) == nil:
			err = c.db.notKept(x, w.cell)
		default:
			err = c.conflict(w.cell, 0, fmt.Sprintf("the index %q was defined meanwhile", x.Name))
		}
	})
	return err
}
