package format

import (
	"encoding/json"
	"fmt"
)

// Periodic is the value of the cell that says how far a periodic has come: JSON behind the version byte. It
// is an ordinary cell of an ordinary table, so programs of before treat it as any other.
type Periodic struct {
	// Since is that of the registration of the periodic's observer. What belongs to another one does not count.
	Since Timestamp `json:"since"`
	// Version and Schedule are those that count. Schedule is a description, empty if there is none.
	Version  int    `json:"version"`
	Schedule []byte `json:"schedule,omitempty"`
	// Next is the first tick that has not been run, and Parked the last one whose run was parked; 0 without one. Both are in
	// milliseconds since 1970.
	Next   int64 `json:"next"`
	Parked int64 `json:"parked,omitempty"`
}

// Encode returns the stored bytes.
func (p *Periodic) Encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding a periodic: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodePeriodic undoes Periodic.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodePeriodic(b []byte) (Periodic, error) {
	if err := checkVersion(b, "periodic"); err != nil {
		return Periodic{}, err
	}
	var p Periodic
	if err := json.Unmarshal(b[1:], &p); err != nil {
		return Periodic{}, fmt.Errorf("%w: periodic: %w", ErrCorrupt, err)
	}
	if p.Next < 1 || p.Parked < 0 || p.Version < 0 {
		return Periodic{}, fmt.Errorf("%w: periodic: version %d, next tick %d, parked tick %d", ErrCorrupt, p.Version, p.Next, p.Parked)
	}
	if len(p.Schedule) == 0 {
		p.Schedule = nil
	}
	return p, nil
}
