package percolator

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
)

// Observers that were renamed. What an observer keeps in the store is stored under its id, the name of its first registration,
// which never changes: its acknowledgments, failures, claims, parked runs and replays, and its share of the work. So a
// rename is one change of the catalog, and nothing that runs meanwhile need know of it. A worker looks up the id of each of
// its observers as it publishes them. See "Renamed observers" in docs/architecture.md.

// RenameObserver gives every observer of the name old the name name. The name that it had becomes an alias: workers that go on
// with it, also those that start later, run the same observer, with the same acknowledgments. So programs may be replaced one
// after the other, and no change runs twice. Rename the observer before the first program with the new name starts: one that
// starts before registers another observer, and RenameObserver returns an error.
//
// old may be any name that the observer has or had. Every other call that takes the name of an observer takes an alias too; what
// is listed has the new name. Renaming it back makes the new name an alias. It is no error if the observer has that name already. RemoveObserver frees
// all its names. A worker that has two names of one observer does not run: see Worker.Run. An observer has up to 16 aliases.
//
// Errors, which come before anything is written: ErrNotObserved if nobody has the name old; ErrInvalid if name is empty, is longer than 128 bytes, or is the name or
// an alias of another observer, of any column; if the observer has too many names; or if it is that of a periodic, whose ticks are
// stored under its name. Others: ErrClosed, those of the context and of the store; then call it again. It may be called concurrently.
//
// From the first rename on, programs of versions that do not know of renames get ErrFormat, also those that have the data
// open.
func (db *DB) RenameObserver(ctx context.Context, old, name string) error {
	if name == "" || len(name) > format.MaxObserverName {
		return fmt.Errorf("percolator: RenameObserver: %w: the new name has %d bytes; it must have 1 to %d", ErrInvalid, len(name), format.MaxObserverName)
	}
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) { return v.rename(old, name) })
	if err != nil {
		return fmt.Errorf("percolator: renaming the observer %.128q: %w", old, err)
	}
	return nil
}

// rename edits the observers, of which the caller has a copy.
func (v *catalogView) rename(old, name string) (changed bool, err error) {
	found := false
	for i := range v.Observers {
		o := &v.Observers[i]
		c := Cell{Table: string(o.Table), Column: string(o.Column)}.public()
		switch {
		case !o.Has(old) && o.Has(name):
			return false, fmt.Errorf("%w: another observer, of table %q, column %q, has the name %q", ErrInvalid, c.Table, c.Column, name)
		case !o.Has(old):
			continue
		case c.Table == PeriodicTable:
			return false, fmt.Errorf("%w: it is a periodic, which keeps its name", ErrInvalid)
		}
		found = true
		if o.Title() == name {
			continue
		}
		if !o.Has(name) && len(o.Others()) == format.MaxAliases {
			return false, fmt.Errorf("%w: it has %d aliases, and may have no more", ErrInvalid, format.MaxAliases)
		}
		o.Rename(name)
		changed = true
	}
	if !found {
		return false, fmt.Errorf("%w: there is no observer of that name", ErrNotObserved)
	}
	v.Renamed = v.Renamed || changed
	return changed, nil
}

// named finds the registration that has a name, for a stored column. It is nil if there is none.
func (v *catalogView) named(name, table, column string) *format.Observer {
	for i := range v.Observers {
		if o := &v.Observers[i]; string(o.Table) == table && string(o.Column) == column && o.Has(name) {
			return o
		}
	}
	return nil
}

// idOf returns the id of the observer of a stored column that has a name. Without one it is the name itself: what an observer
// that was removed has left may be stored under it.
func (v *catalogView) idOf(name, table, column string) string {
	if o := v.named(name, table, column); o != nil {
		return string(o.Name)
	}
	return name
}

// titleOf returns what the observer of a stored column is called that has an id.
func (v *catalogView) titleOf(id, table, column string) string {
	for i := range v.Observers {
		if o := &v.Observers[i]; o.Is(id, table, column) {
			return o.Title()
		}
	}
	return id
}

// registration finds the registration that a queue's observer goes by as the worker starts, nil without one. It returns an
// error if another observer of the worker goes by the same one.
func (w *Worker) registration(v *catalogView, q *queue) (*format.Observer, error) {
	r := v.named(q.o.Name, q.table, q.column)
	for _, other := range w.list {
		if r != nil && other != q && other.table == q.table && other.column == q.column && r.Has(other.o.Name) {
			return nil, fmt.Errorf("%w: the worker has the observers %q and %q, which are one: it was renamed; leave out the older name",
				ErrInvalid, q.o.Name, other.o.Name)
		}
	}
	return r, nil
}

// noteIDs notes under which names the records of the worker's observers are stored. Nothing of the worker runs yet.
func (w *Worker) noteIDs(v *catalogView) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.list {
		q.o.id = v.idOf(q.o.Name, q.table, q.column)
	}
}
