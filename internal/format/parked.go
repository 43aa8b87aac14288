package format

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Parked is a parked run: JSON behind the version byte. It has a table of its own, so
// that listing parked runs does not read every row. Names are stored ones.
type Parked struct {
	Observer []byte    `json:"observer"`
	Table    []byte    `json:"table"`
	Row      []byte    `json:"row"`
	Column   []byte    `json:"column"`
	Change   Timestamp `json:"change"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	At       Timestamp `json:"at"`
}

// MaxErrorText bounds the error that a parked run keeps, in bytes.
const MaxErrorText = 4 << 10

// NewParked returns the record of an observer's run for a cell that failed for the last
// time, at at. Of the error's text it keeps MaxErrorText bytes.
func NewParked(observer string, c Cell, f Failure, cause error, at Timestamp) Parked {
	text := cause.Error()
	if len(text) > MaxErrorText {
		text = text[:MaxErrorText]
	}
	return Parked{
		Observer: []byte(observer), Table: []byte(c.Table), Row: []byte(c.Row), Column: []byte(c.Column),
		Change: f.Change, Attempts: f.Attempts, Error: strings.ToValidUTF8(text, ""), At: at,
	}
}

// Cell is the cell that the run was for.
func (p *Parked) Cell() Cell { return Cell{string(p.Table), string(p.Row), string(p.Column)} }

// Encode returns the stored bytes.
func (p *Parked) Encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding a parked record: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeParked undoes Parked.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeParked(b []byte) (Parked, error) {
	var p Parked
	if err := checkVersion(b, "parked record"); err != nil {
		return p, err
	}
	if err := json.Unmarshal(b[1:], &p); err != nil {
		return p, fmt.Errorf("%w: parked record: %w", ErrCorrupt, err)
	}
	return p, nil
}
