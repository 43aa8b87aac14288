// Package format knows names and values as the protocol stores them: which names of
// tables, rows and columns are the library's own, how a user's names are stored beside
// them, and the bytes of each record.
//
// It holds no rules of the protocol. Package percolator writes and reads these records;
// a router of tables, the explorer and the conformance suite look at them. A change of
// the stored format happens here alone. See docs/versions.md for what a change needs.
//
// Each record begins with a version byte, so that a later format can be told from this
// one. A user's value in the family Data is not a record and has no version byte; nor
// has the empty mark of a roll back. Decoders accept any bytes and return an error that
// matches ErrCorrupt for garbage. They do not copy: the value of a decoded Lock or Write
// lies in the bytes that were decoded.
//
// Nothing here has state, so everything may be called concurrently.
package format

import (
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Version is the version of the records, and the first byte of each but the catalog.
const Version = 1

// CatalogVersion is the first byte of the catalog. It is greater than that of the other
// records where a program of before may not run beside this one, although it would
// understand each record. Every process reads the catalog within each lease, and stops at a
// version that it does not know.
//
// From 2 on every process has a Use. Version 3 is for data in which tables have settings of
// their own, and version 4 for data with an observer of old values, which a collection must keep, and
// for data with holds or paused observers. Version 5 is for data whose processes hint the rows in which they leave
// garbage, and whose sessions say which locks they have resolved: a collection relies on both. A catalog is stored as
// the least version that will do, so that programs of different versions may run beside each other until somebody
// uses what the older ones do not know. Version 5 comes when no older program runs any more. Version 6 is for data in
// which a timer was set: older programs would clear the notification that tells of it. Version 7 is for data with an
// index, whose column older programs would write without keeping it; or in which an observer was replayed, whose requests
// older programs cannot read, or a row deleted as a whole, which the writers of older programs do not look for. Version 8
// is for data with an observer that was renamed, which older programs would register once more. Version 9 is for data with
// an erased range, whose safe point older programs do not know. Version 10 is for data whose locks and notifications may
// say how their changes came about, which older programs cannot decode.
const (
	CatalogVersion      = CascadesVersion
	CascadesVersion     = 10
	ErasedVersion       = 9 // of a catalog with erased ranges, and without cascades
	RenamedVersion      = 8 // of a catalog with renamed observers, and without erased ranges
	IndexesVersion      = 7 // of a catalog with indexes, replays or deleted rows, and without renamed observers
	TimersVersion       = 6 // of a catalog with timers, and without indexes, replays and deleted rows
	HintedVersion       = 5 // of a catalog whose processes hint their garbage, and without timers
	ControlledVersion   = 4 // of a catalog with observers of old values, holds or paused observers, and without hints
	TablesVersion       = 3 // of a catalog in which tables have settings, and that needs no more
	PlainCatalogVersion = 2 // of a catalog with none of that
)

// ErrCorrupt says that stored bytes are no record of this version. It matches
// rowstore.ErrCorrupt too, so that a user asks for one error whoever met the damage.
var ErrCorrupt error = damaged{}

type damaged struct{}

func (damaged) Error() string        { return "percolator: a stored record is damaged" }
func (damaged) Is(target error) bool { return target == rowstore.ErrCorrupt }

// mostVersion is the greatest first byte that is taken for the version of a newer
// program. A record that begins with a greater one is damaged.
const mostVersion = 31

// checkVersion looks at a record's first byte. The error matches rowstore.ErrFormat if a
// newer program wrote the record, and ErrCorrupt if no program did.
func checkVersion(b []byte, what string) error { return checkVersionIs(Version, b, what) }

func checkVersionIs(version byte, b []byte, what string) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("%w: %s: empty", ErrCorrupt, what)
	case b[0] > version && b[0] <= mostVersion:
		return fmt.Errorf("percolator: %w: %s: a newer version of this library wrote it (version %d, this one knows %d); upgrade this program", rowstore.ErrFormat, what, b[0], version)
	case b[0] > 0 && b[0] < version:
		return fmt.Errorf("percolator: %w: %s: an older version of this library wrote it (version %d, this one knows %d)", rowstore.ErrFormat, what, b[0], version)
	case b[0] != version:
		return fmt.Errorf("%w: %s: format version %d", ErrCorrupt, what, b[0])
	}
	return nil
}

// TimestampOnly is the value of a record whose timestamp says everything, as that of the safe
// point. It must not be changed.
var TimestampOnly = []byte{Version}
