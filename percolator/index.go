package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/internal/format"
)

// Indexes in the catalog: which columns are indexed, and how far each index is. What a transaction does with its
// writes of such a column is in upkeep.go. Package recipes/index is made of both. See "Indexes" in docs/architecture.md.

// Errors of indexes, matched with errors.Is.
var (
	// ErrIndexed: the column has an index that this process cannot keep, or the table holds the entries of one. Nothing was written.
	ErrIndexed = errors.New("percolator: the column is indexed")
	// ErrIndexChanged: another process has moved the index to another state, or removed it.
	ErrIndexChanged = errors.New("percolator: the index was changed meanwhile")
)

// IndexState says how far an index is. Processes learn of a state at different moments. MoveIndex sees to it that
// no two of them go by states between which there is a third one.
type IndexState int

const (
	// IndexAbsent: there is no such index.
	IndexAbsent IndexState = iota
	// IndexMaintained: writers keep the index as soon as they know of it. Some may not yet.
	IndexMaintained
	// IndexBuilding: every writer keeps the index. Entries of older data may be missing.
	IndexBuilding
	// IndexReadable: every entry is there.
	IndexReadable
	// IndexDropping: writers leave the index alone as soon as they know of it, and nobody reads it.
	IndexDropping
)

// String returns the name of the state, such as "building".
func (s IndexState) String() string {
	switch s {
	case IndexAbsent:
		return "absent"
	case IndexMaintained:
		return "maintained"
	case IndexBuilding:
		return "building"
	case IndexReadable:
		return "readable"
	case IndexDropping:
		return "dropping"
	}
	return fmt.Sprintf("state %d", int(s))
}

// after lists the states that may follow.
func (s IndexState) after() []IndexState {
	switch s {
	case IndexMaintained:
		return []IndexState{IndexBuilding, IndexDropping}
	case IndexBuilding:
		return []IndexState{IndexReadable, IndexDropping}
	case IndexReadable:
		return []IndexState{IndexBuilding}
	case IndexDropping:
		return []IndexState{IndexAbsent}
	}
	return nil
}

// IndexInfo describes an index in the catalog.
type IndexInfo struct {
	Name, Table, Column string
	// Entries is the table of the entries, which nothing but the upkeep writes.
	Entries string
	// Definition is that of the Upkeep.
	Definition string
	State      IndexState
	// Since identifies the index: one that is dropped and defined again gets another one.
	Since Timestamp
	// At is when the state was stored. Snapshots from then on have what the state promises.
	At Timestamp
}

// Upkeep keeps an index of one column, in the transactions that write the column.
type Upkeep struct {
	// Name is that of the index, from 1 to 128 bytes.
	Name string
	// Table and Column are what is indexed.
	Table, Column string
	// Entries is a table that nothing else uses. Only Keep, and transactions with WithIndexUpkeep, may write in it.
	Entries string
	// Definition says what the entries are, in at most 1,024 bytes of the caller's words. Processes whose definitions differ do not
	// keep the same index: it must change whenever Keep does.
	Definition string
	// Keep makes the entries of a transaction fit what it changes, by reads, and by Set and Delete of cells of Entries. The changes are
	// those of the whole transaction, each row once, in the order of the first writes; other indexes get the same slice, so Keep must not change it. It may read no index by
	// the transaction (Txn.Index is ErrInvalid). Keep may be called several times in a
	// transaction, if somebody reads the index before the commit: what it has written before was taken back then. An error, or a panic, fails
	// Commit, which returns it wrapped, and nothing was written; so does an end of the transaction by Keep, which is ErrInvalid. In a run of an observer it is a failure (Observer.Func), except a conflict, and an error of
	// tx which says that the store failed. Keep may be called by several transactions at once.
	Keep func(ctx context.Context, tx *Txn, changes []RowChange) error
}

// RowChange is what a transaction changes in a column of a row. It may be neither changed nor kept, nor may its slices.
type RowChange struct {
	Row                string
	Old, New           []byte // at the transaction's snapshot, and after it
	OldFound, NewFound bool
}

// upkeeps are those that this process has.
type upkeeps struct {
	mu     sync.RWMutex
	byName map[string]*Upkeep
}

// of returns the upkeep of an index, nil if this process has none, or one with another definition.
func (u *upkeeps) of(x *format.Index) *Upkeep {
	u.mu.RLock()
	defer u.mu.RUnlock()
	own := u.byName[string(x.Name)]
	if own == nil || !own.stored().Same(x) {
		return nil
	}
	return own
}

func (u *Upkeep) stored() *format.Index {
	return &format.Index{
		Name: []byte(u.Name), Table: []byte(format.Escape(u.Table)), Column: []byte(format.Escape(u.Column)),
		Entries: []byte(format.Escape(u.Entries)), Definition: []byte(u.Definition),
	}
}

func infoOf(x *format.Index) IndexInfo {
	c := Cell{Table: string(x.Table), Column: string(x.Column)}.public()
	return IndexInfo{
		Name: string(x.Name), Table: c.Table, Column: c.Column, Entries: Cell{Table: string(x.Entries)}.public().Table,
		Definition: string(x.Definition), State: IndexState(x.State), Since: x.Since, At: x.At,
	}
}

// KeepIndex has this DB keep an index from now on, whether or not it is defined already. It neither reads nor
// writes. A program calls it before it writes the column: without it, writes of a column whose index is defined are ErrIndexed. A further call for
// the same definition replaces the function. A name that is too long, an empty one, an Entries that is the Table, a nil Keep, and a
// definition that differs from that of an earlier call are ErrInvalid; names over the limits are ErrTooLarge. It may be called concurrently.
func (db *DB) KeepIndex(u Upkeep) error {
	if err := db.checkUpkeep(&u); err != nil {
		return called("KeepIndex", err)
	}
	db.upkeeps.mu.Lock()
	defer db.upkeeps.mu.Unlock()
	if before := db.upkeeps.byName[u.Name]; before != nil && !before.stored().Same(u.stored()) {
		return fmt.Errorf("percolator: KeepIndex: %w: this DB keeps an index %q of another definition: %v", ErrInvalid, u.Name, before.stored())
	}
	if db.upkeeps.byName == nil {
		db.upkeeps.byName = make(map[string]*Upkeep)
	}
	db.upkeeps.byName[u.Name] = &u
	return nil
}

func (db *DB) checkUpkeep(u *Upkeep) error {
	switch {
	case u.Name == "" || len(u.Name) > format.MaxIndexName:
		return fmt.Errorf("%w: the name of an index has from 1 to %d bytes, not %d", ErrInvalid, format.MaxIndexName, len(u.Name))
	case len(u.Definition) > format.MaxIndexDefinition:
		return fmt.Errorf("%w: the definition of the index %q has %d bytes; it may have %d", ErrInvalid, u.Name, len(u.Definition), format.MaxIndexDefinition)
	case u.Keep == nil:
		return fmt.Errorf("%w: the function of the index %q is nil", ErrInvalid, u.Name)
	case u.Entries == u.Table:
		return fmt.Errorf("%w: the index %q has its entries in the table that it is of", ErrInvalid, u.Name)
	}
	if err := db.checkTable(u.Entries); err != nil {
		return err
	}
	return db.checkCell(&Cell{Table: u.Table, Row: "r", Column: u.Column})
}

// Indexes lists the indexes that are defined, by any process. Errors: ErrClosed, those of the context and of the store.
func (db *DB) Indexes(ctx context.Context) ([]IndexInfo, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("percolator: listing the indexes: %w", err)
	}
	infos := make([]IndexInfo, len(v.Indexes))
	for i := range v.Indexes {
		infos[i] = infoOf(&v.Indexes[i])
	}
	return infos, nil
}

// DefineIndex is KeepIndex, and puts the index into the catalog as IndexMaintained, unless it is there. From then on no process writes the column
// without keeping the index: within one catalog lease, others get ErrIndexed. It returns what the catalog says.
//
// An index of that name with another definition is ErrInvalid, and so are an Entries that is indexed or has
// entries already, a Table that has some, and more than 256 indexes. Other errors: those of KeepIndex; ErrClosed, those of the context
// and of the store, after which the index may be defined or not: call it again.
//
// From the first index on, programs of versions that do not know of indexes get ErrFormat, also those that have the data open.
func (db *DB) DefineIndex(ctx context.Context, u Upkeep) (IndexInfo, error) {
	if err := db.KeepIndex(u); err != nil {
		return IndexInfo{}, err
	}
	if err := db.enter(); err != nil {
		return IndexInfo{}, err
	}
	defer db.leave()
	var info IndexInfo
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		own := u.stored()
		if x := v.index(u.Name); x != nil {
			if !x.Same(own) {
				there := infoOf(x)
				return false, fmt.Errorf("%w: it is defined as table %q, column %q, entries in %q, %q, and here as table %q, column %q, entries in %q, %q; drop it first, or use another name",
					ErrInvalid, there.Table, there.Column, there.Entries, there.Definition, u.Table, u.Column, u.Entries, u.Definition)
			}
			info = infoOf(x)
			return false, nil
		}
		if len(v.Indexes) == format.MaxIndexes {
			return false, fmt.Errorf("%w: there are %d indexes, and there may be no more: drop one that nobody needs (DB.Indexes lists them)", ErrInvalid, format.MaxIndexes)
		}
		for i := range v.Indexes {
			x := &v.Indexes[i]
			if string(x.Entries) == string(own.Entries) || string(x.Table) == string(own.Entries) || string(x.Entries) == string(own.Table) {
				return false, fmt.Errorf("%w: the index %q uses the table too", ErrInvalid, x.Name)
			}
		}
		own.State, own.Since, own.At = format.IndexMaintained, v.asOf, v.asOf
		v.Indexes = append(v.Indexes, *own)
		v.Indexed = true
		info = infoOf(own)
		return true, nil
	})
	if err != nil {
		return IndexInfo{}, fmt.Errorf("percolator: defining the index %q: %w", u.Name, err)
	}
	return info, nil
}

// MoveIndex moves an index from the state that info has to another one, and returns what the catalog says then. First it
// waits until every process knows of the present state: usually some milliseconds, at most a catalog lease. The states that may follow each other are
// maintained, building, readable; from readable back to building; from maintained and building to dropping; and from dropping to
// absent, which takes the index out of the catalog. The caller has done before what the state promises: a readable index has every entry,
// and one that is absent has none.
//
// If the index is not as info says any more, the error matches ErrIndexChanged; if it is in the new state already, because
// another process was first or an earlier reply was lost, it is no error. Other states are ErrInvalid. Other errors: ErrClosed, those of the context and of the
// store, after which the index may be moved or not: ask Indexes.
func (db *DB) MoveIndex(ctx context.Context, info IndexInfo, to IndexState) (IndexInfo, error) {
	if !slices.Contains(info.State.after(), to) {
		return IndexInfo{}, fmt.Errorf("percolator: MoveIndex: %w: the index %q is %v, and cannot become %v", ErrInvalid, info.Name, info.State, to)
	}
	var now IndexInfo
	err := db.during(ctx, func(ctx context.Context) (err error) {
		now, err = db.moveIndex(ctx, info, to)
		return err
	})
	if err != nil {
		return IndexInfo{}, fmt.Errorf("percolator: making the index %q %v: %w", info.Name, to, err)
	}
	return now, nil
}

// AwaitIndex waits until every process knows that the index is as info says, as MoveIndex does. So what was written by an older state is
// below the snapshots of transactions that begin afterwards. If the index is otherwise by now, the error matches ErrIndexChanged. Other errors:
// ErrClosed, those of the context and of the store.
func (db *DB) AwaitIndex(ctx context.Context, info IndexInfo) error {
	if err := db.during(ctx, func(ctx context.Context) error { return db.awaitIndex(ctx, info) }); err != nil {
		return fmt.Errorf("percolator: waiting until every process knows the index %q as %v: %w", info.Name, info.State, err)
	}
	return nil
}

func (db *DB) awaitIndex(ctx context.Context, info IndexInfo) error {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	moved := func(v *catalogView) bool { return !info.stands(v) }
	if moved(v) {
		return ErrIndexChanged
	}
	at, err := db.outlastOlder(ctx, v.revision, moved)
	if err == nil && at == 0 {
		err = ErrIndexChanged
	}
	return err
}

func (db *DB) moveIndex(ctx context.Context, info IndexInfo, to IndexState) (now IndexInfo, err error) {
	// Nobody who goes by an older view than a readable one does otherwise than by the state after it.
	if info.State != IndexReadable {
		if err := db.awaitIndex(ctx, info); err != nil && !errors.Is(err, ErrIndexChanged) {
			return now, err
		}
	}
	_, err = db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		i := slices.IndexFunc(v.Indexes, func(x format.Index) bool { return string(x.Name) == info.Name && x.Since == info.Since })
		switch {
		case i < 0 && to == IndexAbsent:
			now = IndexInfo{}
			return false, nil
		case i >= 0 && IndexState(v.Indexes[i].State) == to:
			now = infoOf(&v.Indexes[i])
			return false, nil
		case !info.stands(v):
			return false, ErrIndexChanged
		case to == IndexAbsent:
			now = IndexInfo{}
			v.Indexes = slices.Delete(v.Indexes, i, i+1)
			return true, nil
		}
		v.Indexes[i].State, v.Indexes[i].At = byte(to), v.asOf
		now = infoOf(&v.Indexes[i])
		return true, nil
	})
	return now, err
}

// stands tells whether the index is as info says.
func (info *IndexInfo) stands(v *catalogView) bool {
	x := v.index(info.Name)
	return x != nil && x.Since == info.Since && x.At == info.At && IndexState(x.State) == info.State
}

// index finds an index by its name, nil without one.
func (v *catalogView) index(name string) *format.Index {
	for i := range v.Indexes {
		if string(v.Indexes[i].Name) == name {
			return &v.Indexes[i]
		}
	}
	return nil
}

// keptFor tells whether writers of a stored cell keep an index.
func keptFor(x *format.Index, sc Cell) bool {
	return x.State != format.IndexDropping && string(x.Table) == sc.Table && string(x.Column) == sc.Column
}

// indexesOf visits the indexes that writers of a stored cell keep.
func (v *catalogView) indexesOf(sc Cell, yield func(x *format.Index)) {
	for i := range v.Indexes {
		if x := &v.Indexes[i]; keptFor(x, sc) {
			yield(x)
		}
	}
}

// entriesIn finds the index whose entries a stored table has, nil without one.
func (v *catalogView) entriesIn(table string) *format.Index {
	for i := range v.Indexes {
		if string(v.Indexes[i].Entries) == table {
			return &v.Indexes[i]
		}
	}
	return nil
}

// awaitsIndexes tells whether somebody may be waiting until everybody knows the state of an index.
func (v *catalogView) awaitsIndexes() bool {
	return slices.ContainsFunc(v.Indexes, func(x format.Index) bool { return x.State != format.IndexReadable })
}
