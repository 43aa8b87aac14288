package format

import (
	"encoding/json"
	"fmt"
)

// Catalog is what every process must agree on: JSON behind the version byte. An older
// program that reads and writes the catalog drops fields that it does not know, so a new
// field needs a new CatalogVersion.
type Catalog struct {
	Oracle    string     `json:"oracle"` // "" is the store's own
	Current   Settings   `json:"current"`
	Next      *Settings  `json:"next,omitempty"`
	NextFrom  Timestamp  `json:"next_from,omitempty"` // when Next takes effect; 0: not known yet
	Past      []PastAge  `json:"past,omitempty"`      // the oldest first, each less than the next and Current's
	Observers []Observer `json:"observers,omitempty"`
}

// Settings are those of the database, in milliseconds.
type Settings struct {
	MaxTxnAgeMs    int64 `json:"max_txn_age_ms"`
	RetentionMs    int64 `json:"retention_ms"`
	CatalogLeaseMs int64 `json:"catalog_lease_ms"`
}

// check finds what is never stored.
func (s Settings) check() error {
	const most = int64(1) << 43 // keeps milliseconds within a Duration
	if s.MaxTxnAgeMs > most || s.RetentionMs > most || s.CatalogLeaseMs > most {
		return fmt.Errorf("%w: catalog: settings out of range", ErrCorrupt)
	}
	if s.MaxTxnAgeMs < 1 || s.RetentionMs < 1 || s.CatalogLeaseMs < 1 || s.MaxTxnAgeMs+s.CatalogLeaseMs >= s.RetentionMs {
		return fmt.Errorf("%w: catalog: MaxTxnAge of %d ms, retention of %d ms and catalog lease of %d ms do not fit together",
			ErrCorrupt, s.MaxTxnAgeMs, s.RetentionMs, s.CatalogLeaseMs)
	}
	return nil
}

// PastAge is a MaxTxnAge that was in force until a moment, and is less than those that
// followed it. It still binds the transactions that began before that moment.
type PastAge struct {
	MaxTxnAgeMs int64     `json:"max_txn_age_ms"`
	Until       Timestamp `json:"until"`
}

// Observer is one registered observer. Table and Column are stored names. The names are
// byte slices, because a JSON string cannot hold arbitrary bytes.
type Observer struct {
	Name   []byte `json:"name"`
	Table  []byte `json:"table"`
	Column []byte `json:"column"`
	// Since identifies the registration: a timestamp that was drawn when it was made. An
	// observer that is removed and registered again gets a new one.
	Since Timestamp `json:"since,omitempty"`
	// Swept is the snapshot of the sweep, 0 while it is not done.
	Swept Timestamp `json:"swept,omitempty"`
}

// Is tells whether it is the registration of an observer for a stored column.
func (r Observer) Is(name, table, column string) bool {
	return string(r.Name) == name && string(r.Table) == table && string(r.Column) == column
}

// Encode returns the stored bytes.
func (c *Catalog) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the catalog: %w", err)
	}
	return append([]byte{CatalogVersion}, b...), nil
}

// RaiseCatalog returns what a stored catalog becomes in this version, and whether it was of an
// older one. What it does not know it returns as it is, for DecodeCatalog to refuse.
//
// Version 1 has the same fields. Programs of it have no Use, so who raises a catalog puts
// UseOfVersion1 beside it, condemned.
func RaiseCatalog(b []byte) (raised []byte, older bool) {
	if len(b) == 0 || b[0] != 1 {
		return b, false
	}
	return append([]byte{CatalogVersion}, b[1:]...), true
}

// UseOfVersion1 is the column of a Use that stands for all programs that may still go by a
// catalog of version 1.
const UseOfVersion1 = "version 1"

// DecodeCatalog undoes Catalog.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeCatalog(b []byte) (Catalog, error) {
	var c Catalog
	if len(b) < 1 {
		return c, fmt.Errorf("%w: catalog: empty", ErrCorrupt)
	}
	if err := checkVersionIs(CatalogVersion, b, "catalog"); err != nil {
		return c, err
	}
	if err := json.Unmarshal(b[1:], &c); err != nil {
		return c, fmt.Errorf("%w: catalog: %w", ErrCorrupt, err)
	}
	for _, s := range []*Settings{&c.Current, c.Next} {
		if s == nil {
			continue
		}
		if err := s.check(); err != nil {
			return c, err
		}
	}
	for _, p := range c.Past {
		if p.MaxTxnAgeMs < 1 || p.MaxTxnAgeMs > c.Current.MaxTxnAgeMs {
			return c, fmt.Errorf("%w: catalog: bad past settings", ErrCorrupt)
		}
	}
	for _, o := range c.Observers {
		if len(o.Name) == 0 || len(o.Name) > MaxObserverName || len(o.Table) == 0 || len(o.Column) == 0 {
			return c, fmt.Errorf("%w: catalog: bad observer", ErrCorrupt)
		}
	}
	return c, nil
}
