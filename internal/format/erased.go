package format

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// MaxErased is how many ranges may have a safe point of their own at once: the catalog holds them all, and
// every process reads it again and again.
const MaxErased = 256

// Erased lists the ranges that were erased and whose safe points are above those of their tables: JSON behind the version
// byte, beside the catalog.
type Erased struct {
	Ranges []ErasedRange `json:"ranges"`
}

// ErasedRange is a range of rows, from From to To, To not included, of which nothing is kept from below a safe point. An empty To is
// the end of the table.
type ErasedRange struct {
	Table     []byte    `json:"table"` // stored name
	From      []byte    `json:"from,omitempty"`
	To        []byte    `json:"to,omitempty"`
	SafePoint Timestamp `json:"safepoint"`
}

// Has tells whether a row of the range's table is in it.
func (r *ErasedRange) Has(row string) bool {
	return string(r.From) <= row && (len(r.To) == 0 || row < string(r.To))
}

// Contains tells whether another range lies in the range, and is not the same.
func (r *ErasedRange) Contains(o *ErasedRange) bool {
	from, to := bytes.Compare(r.From, o.From), bytes.Compare(r.To, o.To)
	toEnd := len(r.To) == 0
	if !bytes.Equal(r.Table, o.Table) || from > 0 || !toEnd && (to < 0 || len(o.To) == 0) {
		return false
	}
	return from < 0 || to != 0
}

// Encode returns the stored bytes.
func (e *Erased) Encode() ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding the erased ranges: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeErased undoes Erased.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeErased(b []byte) (Erased, error) {
	var e Erased
	if err := checkVersion(b, "erased ranges"); err != nil {
		return e, err
	}
	if err := json.Unmarshal(b[1:], &e); err != nil {
		return e, fmt.Errorf("%w: erased ranges: %w", ErrCorrupt, err)
	}
	if len(e.Ranges) > MaxErased {
		return e, fmt.Errorf("%w: erased ranges: there are %d", ErrCorrupt, len(e.Ranges))
	}
	for i := range e.Ranges {
		if r := &e.Ranges[i]; len(r.Table) == 0 || r.SafePoint == 0 || r.SafePoint > oracle.Max {
			return e, fmt.Errorf("%w: erased ranges: bad range", ErrCorrupt)
		}
	}
	return e, nil
}

// IsClaimColumn tells whether a stored column is one of ClaimColumn's.
func IsClaimColumn(stored string) bool {
	prefix, _, _, ok := splitColumn(stored)
	return ok && prefix == PrefixClaim
}
