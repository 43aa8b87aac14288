package format

import (
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Use is what a process says of the catalog that it goes by: nothing that it does relies
// on a revision older than this one. The record is a Mark version in the catalog's own
// row, so that one read shows it together with the catalog. Its column is the id of the
// process. Of several versions the newest one counts.
type Use struct {
	// Revision is the timestamp of a version of ColumnConfig.
	Revision Timestamp
	// Condemned says that somebody else asks whether the process lives. A process that
	// reads this stores its record anew before it goes by what it read. If it does not for
	// a catalog lease, the record may be removed.
	Condemned bool
}

// UsePrefix begins the column of a Use whose program knows catalogs of version 5. Those of older programs
// have no prefix.
const UsePrefix = "5-"

const useLength = 2 + 8

// Encode returns the stored bytes.
func (u Use) Encode() []byte {
	b := make([]byte, 0, useLength)
	b = append(b, Version, 0)
	if u.Condemned {
		b[1] = 1
	}
	return binary.BigEndian.AppendUint64(b, uint64(u.Revision))
}

// DecodeUse undoes Use.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeUse(b []byte) (Use, error) {
	if err := checkVersion(b, "use of the catalog"); err != nil {
		return Use{}, err
	}
	if len(b) != useLength || b[1] > 1 {
		return Use{}, fmt.Errorf("%w: use of the catalog: %x", ErrCorrupt, b)
	}
	revision := binary.BigEndian.Uint64(b[2:])
	if revision == 0 || revision > uint64(oracle.Max) {
		return Use{}, fmt.Errorf("%w: use of the catalog: revision %d", ErrCorrupt, revision)
	}
	return Use{Revision: Timestamp(revision), Condemned: b[1] == 1}, nil
}
