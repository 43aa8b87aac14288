package coalesce_test

import (
	"testing"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

const conformanceScale = 0.15

func TestConformanceOfCoalesce(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) rs.Store {
		return coalesce.New(memstore.New(memstore.WithApplyTimestamps()), coalesce.Options{})
	}
	conformance.RunStore(t, open, conformance.Scale(conformanceScale))
	conformance.RunTransactions(t, open, conformance.Scale(conformanceScale))
}

// With one call at a time, most are merged.
func TestConformanceOfCoalesceOneByOne(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(testing.TB) rs.Store {
		return coalesce.New(storetest.Slowed{Store: memstore.New(memstore.WithApplyTimestamps())}, coalesce.Options{MaxInFlight: 1, MaxBatch: 8})
	}, conformance.Scale(conformanceScale))
}
