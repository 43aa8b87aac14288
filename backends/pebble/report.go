package pebble

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The limits of the store. The engine would take more; these keep a block, a table
// in memory and a scan's page at a size that it is made for.
const (
	maxName  = 16 << 10
	maxValue = 16 << 20
)

// Limits implements rowstore.Limiter.
func (s *Store) Limits() rowstore.Limits {
	return rowstore.Limits{Table: maxName, Row: maxName, Column: maxName, Value: maxValue}
}

// checkLimits returns an error that matches rowstore.ErrTooLarge for a mutation
// over a limit.
func checkLimits(m *rowstore.Mutation) error {
	if len(m.Table) > maxName || len(m.Row) > maxName {
		return fmt.Errorf("%w: pebble: the names of a table and a row have %d and %d bytes, the limit is %d",
			rowstore.ErrTooLarge, len(m.Table), len(m.Row), maxName)
	}
	for i := range m.Conditions {
		if n := len(m.Conditions[i].Column); n > maxName {
			return fmt.Errorf("%w: pebble: the name of a column has %d bytes, the limit is %d", rowstore.ErrTooLarge, n, maxName)
		}
	}
	for i := range m.Edits {
		if n := len(m.Edits[i].Column); n > maxName {
			return fmt.Errorf("%w: pebble: the name of a column has %d bytes, the limit is %d", rowstore.ErrTooLarge, n, maxName)
		}
		if n := len(m.Edits[i].Value); n > maxValue {
			return fmt.Errorf("%w: pebble: a value of row %q of table %q has %d bytes, the limit is %d",
				rowstore.ErrTooLarge, m.Row, m.Table, n, maxValue)
		}
	}
	return nil
}

// Report implements rowstore.Reporter.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) {
	if err := s.enter(ctx); err != nil {
		return rowstore.Report{}, err
	}
	defer s.leave()
	r := rowstore.Report{
		Backend: "pebble",
		Version: fmt.Sprintf("%s, format %d, engine format %d", engineVersion(), formatVersion, s.db.FormatMajorVersion()),
		Features: []rowstore.Feature{
			{Name: "group", Supported: true, Reason: "one write batch may change any rows"},
			{Name: "one-phase commit", Supported: true, Reason: "readers wait for the stripes of a group that has drawn"},
			{Name: "deferred batches", Reason: "a client of an embedded store dies with it, and a commit is one flush already"},
			{Name: "oracle", Supported: true, Reason: "in this process, below a durable bound"},
			{Name: "split", Supported: true, Reason: "from a sample of the rows"},
			{Name: "wake", Supported: true, Reason: "in this process"},
			{Name: "durable", Supported: s.path != "", Reason: "each commit is in the log on disk before it is answered"},
		},
	}
	if s.path == "" {
		r.Features[len(r.Features)-1].Reason = "the store is in memory"
	}
	return r, nil
}

// engineVersion is the version of the engine's module in this program.
func engineVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/cockroachdb/pebble/v2" {
				if m.Replace != nil {
					m = m.Replace
				}
				return m.Version
			}
		}
	}
	return "unknown version"
}
