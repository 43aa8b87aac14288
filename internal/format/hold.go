package format

import (
	"encoding/json"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// MaxHoldName is the longest name of a hold, in bytes. MaxHolds is how many there may be at
// once: every process reads them with the catalog.
const (
	MaxHoldName = 128
	MaxHolds    = 64
)

// Holds are the holds on the safe points: JSON behind the version byte, beside the catalog.
type Holds struct {
	Holds []Hold `json:"holds"` // in the order of their names
}

// Hold keeps every safe point at or below At, until Until.
type Hold struct {
	Name   []byte    `json:"name"`
	At     Timestamp `json:"at"`
	Until  Timestamp `json:"until"`
	Placed Timestamp `json:"placed"`
}

// Encode returns the stored bytes.
func (h *Holds) Encode() ([]byte, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encoding the holds: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeHolds undoes Holds.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeHolds(b []byte) (Holds, error) {
	var h Holds
	if err := checkVersion(b, "holds"); err != nil {
		return h, err
	}
	if err := json.Unmarshal(b[1:], &h); err != nil {
		return h, fmt.Errorf("%w: holds: %w", ErrCorrupt, err)
	}
	if len(h.Holds) > MaxHolds {
		return h, fmt.Errorf("%w: %d holds", ErrCorrupt, len(h.Holds))
	}
	for i := range h.Holds {
		x := &h.Holds[i]
		if len(x.Name) == 0 || len(x.Name) > MaxHoldName || x.At == 0 || max(x.At, x.Until, x.Placed) > oracle.Max ||
			i > 0 && string(h.Holds[i-1].Name) >= string(x.Name) {
			return h, fmt.Errorf("%w: holds: bad hold", ErrCorrupt)
		}
	}
	return h, nil
}
