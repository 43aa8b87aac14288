package rowstore

import "fmt"

// LayoutError says that a store's layout is of another version than the one that this program writes. It matches ErrFormat. Opening
// a store returns it: for a newer layout always, for an older one that the program would migrate if the store is to be
// taken as it is (asis=true). Nothing was changed.
type LayoutError struct {
	Store  string // which store, for people: `the schema "percolator"`
	Stored int    // the version of what is there
	Known  int    // the version that this program writes
	// HalfDone tells that a migration from version Stored has begun and was cut short. Programs of that version refuse the store too.
	HalfDone bool
}

// Newer tells that a newer program has made or migrated the store.
func (e *LayoutError) Newer() bool { return e.Stored > e.Known }

// Error says what the versions are, and what to do.
func (e *LayoutError) Error() string {
	if e.Newer() {
		return fmt.Sprintf("%v: %s has format version %d, and this program knows versions up to %d: use a newer program, or go back to a backup from before the upgrade",
			ErrFormat, e.Store, e.Stored, e.Known)
	}
	if e.HalfDone {
		return fmt.Sprintf("%v: %s is half migrated from format version %d to version %d: the migration was cut short, and goes on only if it is opened without asis, or by percolator migrate run",
			ErrFormat, e.Store, e.Stored, e.Known)
	}
	return fmt.Sprintf("%v: %s has format version %d, and this program migrates it to version %d only if it is opened without asis, or by percolator migrate run",
		ErrFormat, e.Store, e.Stored, e.Known)
}

// Is tells that the error is an ErrFormat.
func (e *LayoutError) Is(target error) bool { return target == ErrFormat }
