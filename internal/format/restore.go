package format

import (
	"encoding/json"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// restoring is the first byte of a Restoring. Programs that do not know it take it for the version of a newer one, and
// leave the data alone.
const restoring = mostVersion

// Restoring stands in place of the Catalog while a backup is restored, so that nobody takes the half of it for a database: JSON
// behind a byte that is no version of a Catalog.
type Restoring struct {
	Backup string `json:"backup"` // its id
	// Blocks of the backup are in the store, and Timers rows of indexes of timers.
	Blocks int64 `json:"blocks"`
	Timers int64 `json:"timers"`
	// Unlooked: nobody has looked yet whether the store held anything when this was written. Nothing else was written then.
	Unlooked bool `json:"unlooked,omitempty"`
	// Began is a timestamp that was drawn, from the oracle of that name, when the restore began.
	Began  Timestamp `json:"began"`
	Oracle string    `json:"oracle,omitempty"`
}

// Encode returns the stored bytes.
func (r *Restoring) Encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the state of a restore: %w", err)
	}
	return append([]byte{restoring}, b...), nil
}

// IsRestoring tells whether the value in place of a Catalog is a Restoring.
func IsRestoring(b []byte) bool { return len(b) > 0 && b[0] == restoring }

// DecodeRestoring undoes Restoring.Encode. An error matches ErrCorrupt.
func DecodeRestoring(b []byte) (Restoring, error) {
	var r Restoring
	if !IsRestoring(b) {
		return r, fmt.Errorf("%w: state of a restore: bad head", ErrCorrupt)
	}
	if err := json.Unmarshal(b[1:], &r); err != nil {
		return r, fmt.Errorf("%w: state of a restore: %w", ErrCorrupt, err)
	}
	if r.Backup == "" || r.Blocks < 0 || r.Timers < 0 || r.Began == 0 || r.Began > oracle.Max {
		return r, fmt.Errorf("%w: state of a restore: bad content", ErrCorrupt)
	}
	return r, nil
}

// ErrRestoring says that a restore into the store has not ended. It matches rowstore.ErrFormat: no program may open what is there.
var ErrRestoring error = restoringError{}

type restoringError struct{}

func (restoringError) Error() string        { return rowstore.ErrFormat.Error() }
func (restoringError) Is(target error) bool { return target == rowstore.ErrFormat }

// errRestoring is what a program gets that takes the half of a restore for a database.
func errRestoring(b []byte) error {
	r, err := DecodeRestoring(b)
	if err != nil {
		return err
	}
	return fmt.Errorf("percolator: %w: the restore of backup %s into this store has not ended; restore the same backup again to go on, or begin with an empty store", ErrRestoring, r.Backup)
}
