package format

import (
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Index is one index of the catalog. Table, Column and Entries are stored names.
type Index struct {
	Name   []byte `json:"name"`
	Table  []byte `json:"table"`
	Column []byte `json:"column"`
	// Entries is the table of the index's entries. Nothing else may write there.
	Entries []byte `json:"entries"`
	// Definition says in the words of the caller what the entries are. Two programs with different definitions do
	// not keep the same index.
	Definition []byte `json:"definition,omitempty"`
	State      byte   `json:"state"`
	// Since identifies the index: a timestamp that was drawn when it was defined.
	Since Timestamp `json:"since"`
	// At is a timestamp from when the state was stored, after everything that the state before it has brought about.
	At Timestamp `json:"at"`
}

// States of an index. Writers keep it in all but the last one.
const (
	IndexMaintained = 1 + iota // some writers may not know of it yet
	IndexBuilding              // every writer knows of it; entries of older data may be missing
	IndexReadable
	IndexDropping
)

const (
	// MaxIndexes is how many indexes there may be: the catalog holds them all, and every process reads it again and again.
	MaxIndexes = 256
	// MaxIndexName is the longest name of an index, in bytes.
	MaxIndexName = 128
	// MaxIndexDefinition is the longest definition, in bytes.
	MaxIndexDefinition = 1024
)

// Same tells whether two say the same of what is indexed and how.
func (x *Index) Same(o *Index) bool {
	return string(x.Name) == string(o.Name) && string(x.Table) == string(o.Table) && string(x.Column) == string(o.Column) &&
		string(x.Entries) == string(o.Entries) && string(x.Definition) == string(o.Definition)
}

// checkIndexes finds what is never stored.
func (c *Catalog) checkIndexes() error {
	if len(c.Indexes) > 0 && !c.Indexed || len(c.Indexes) > MaxIndexes {
		return fmt.Errorf("%w: catalog: %d indexes", ErrCorrupt, len(c.Indexes))
	}
	names, entries := map[string]bool{}, map[string]bool{}
	for i := range c.Indexes {
		x := &c.Indexes[i]
		switch {
		case len(x.Name) == 0, len(x.Name) > MaxIndexName, len(x.Definition) > MaxIndexDefinition, names[string(x.Name)],
			len(x.Table) == 0, Reserved(string(x.Table)), len(x.Column) == 0, Reserved(string(x.Column)),
			len(x.Entries) == 0, Reserved(string(x.Entries)), string(x.Entries) == string(x.Table), entries[string(x.Entries)],
			x.State < IndexMaintained, x.State > IndexDropping, x.Since > oracle.Max, x.At > oracle.Max:
			return fmt.Errorf("%w: catalog: bad index", ErrCorrupt)
		}
		names[string(x.Name)], entries[string(x.Entries)] = true, true
	}
	return nil
}
