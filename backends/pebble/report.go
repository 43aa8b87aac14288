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

// Report implements rowstore.Reporter.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) {
	if err := s.enter(ctx, "report"); err != nil {
		return rowstore.Report{}, err
	}
	defer s.leave()
	r := rowstore.Report{
		Backend: "pebble",
		Layout:  formatVersion,
		Version: fmt.Sprintf("%s, format %d, engine format %d", engineVersion(), formatVersion, s.db.FormatMajorVersion()),
		Features: []rowstore.Feature{
			{Name: rowstore.FeatureGroups, Supported: true, Reason: "one write batch may change any rows"},
			{Name: rowstore.FeatureOnePhase, Supported: true, Reason: "readers wait for a group that has its timestamp and is not visible yet"},
			{Name: rowstore.FeatureDeferred, Reason: "a client of an embedded store dies with it, and a commit is one flush already"},
			{Name: rowstore.FeatureOracle, Supported: true, Reason: "in this process, below a durable bound"},
			{Name: rowstore.FeatureSplit, Supported: true, Reason: "from a sample of the rows"},
			{Name: rowstore.FeatureSlots, Supported: true, Reason: "the order of the notifications"},
			{Name: rowstore.FeatureWake, Supported: true, Reason: "in this process"},
			{Name: "durable", Supported: s.durable, Reason: "each commit is in the log on disk before it is answered"},
		},
	}
	r.Warnings = s.room.warning()
	if !s.durable {
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
