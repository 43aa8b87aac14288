package faultstore_test

import (
	"testing"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

const conformanceScale = 0.3

func TestConformanceOfFaultyWithoutFaults(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(testing.TB) rs.Store {
		return faultstore.New(memstore.New(memstore.WithApplyTimestamps()), faultstore.Options{})
	}, conformance.Scale(conformanceScale))
}
