package backup

import (
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
)

// Errors of this package, matched with errors.Is.
var (
	// ErrNotEmpty: the store holds something already. No rows were written by a call that begins then. One that has begun earlier, was thought dead, and goes on when another call has ended the same
	// restore looks at its marker before each block and each attempt. So it writes nothing but what it had under way when the other one ended: at most a block, of about a
	// MiB, whose rows get the values of the backup again, also those that were erased since. See that it is dead before programs use the database. It matches percolator.ErrInvalid.
	ErrNotEmpty error = is{"backup: the store is not empty", percolator.ErrInvalid}
	// ErrExists: the file is there already. Nothing was written. It matches percolator.ErrInvalid.
	ErrExists error = is{"backup: the file is there already", percolator.ErrInvalid}
	// ErrInUse: another call, perhaps of another process, is writing a backup to the same path. Nothing was changed. It matches percolator.ErrInvalid.
	ErrInUse error = is{"backup: another backup is writing this file", percolator.ErrInvalid}
	// ErrDamaged: the bytes of the file are not those that were written. It matches percolator.ErrCorrupt.
	ErrDamaged error = is{"backup: the file is damaged", percolator.ErrCorrupt}
	// ErrIncomplete: the file ends too early: it was truncated, or the backup was cut off. It matches percolator.ErrCorrupt.
	ErrIncomplete error = is{"backup: the file is not complete", percolator.ErrCorrupt}
	// ErrLapsed: a backup that was cut off cannot be resumed, because its hold is over, another
	// database has it, rows were erased meanwhile, or what an observer of old values saw last was collected. Remove
	// the incomplete file and begin anew. It matches percolator.ErrSnapshotTooOld.
	ErrLapsed error = is{"backup: the backup that was cut off cannot be resumed", percolator.ErrSnapshotTooOld}
	// ErrOracleBehind: the oracle of the store is so far behind the backup that Restore does not wait for it.
	ErrOracleBehind = errors.New("backup: the oracle of the store is behind the backup")
)

// errWideRow: a row is too large for a backup. It stays so at the backup's snapshot, so no other call goes on. It matches percolator.ErrTooLarge.
var errWideRow error = is{percolator.ErrTooLarge.Error(), percolator.ErrTooLarge}

// is is an error that matches another one too.
type is struct {
	text string
	of   error
}

func (e is) Error() string        { return e.text }
func (e is) Is(target error) bool { return target == e.of }

func invalid(format string, args ...any) error {
	return fmt.Errorf("backup: %w: %s", percolator.ErrInvalid, fmt.Sprintf(format, args...))
}
