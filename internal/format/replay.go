package format

import (
	"encoding/json"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Replay says how far a replay has got that is under way: JSON behind the version byte. Transactions write it, each
// together with the requests that it makes. Names are stored ones.
type Replay struct {
	Observer []byte `json:"observer"`
	Table    []byte `json:"table"`
	Column   []byte `json:"column"`
	From     []byte `json:"from,omitempty"` // the first row
	To       []byte `json:"to,omitempty"`   // excluded; empty for the end of the table
	// ID is a timestamp that was drawn when the replay began.
	ID Timestamp `json:"id"`
	// Next is the first row for which nothing was asked yet.
	Next  []byte `json:"next,omitempty"`
	Cells int64  `json:"cells"` // asked for so far
}

// Cell is where the replay is noted. Replays of the same rows share it.
func (r *Replay) Cell() Cell {
	return Cell{TableReplays, rowOf(string(r.Table), string(r.Column), string(r.Observer), string(r.From), string(r.To)), ColumnReplay}
}

// Encode returns the stored bytes.
func (r *Replay) Encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding a replay: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeReplay undoes Replay.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeReplay(b []byte) (Replay, error) {
	var r Replay
	if err := checkVersion(b, "replay"); err != nil {
		return r, err
	}
	if err := json.Unmarshal(b[1:], &r); err != nil {
		return r, fmt.Errorf("%w: replay: %w", ErrCorrupt, err)
	}
	if len(r.Observer) == 0 || len(r.Table) == 0 || len(r.Column) == 0 || r.ID == 0 || r.ID > oracle.Max || r.Cells < 0 {
		return r, fmt.Errorf("%w: replay: bad content", ErrCorrupt)
	}
	return r, nil
}
