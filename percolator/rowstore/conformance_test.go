package rowstore_test

import (
	"testing"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// A wrapper of a store is a store, so the suite for backends judges it too.

const conformanceScale = 0.3

func TestConformanceOfCoalesce(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) rs.Store { return rs.Coalesce(rs.NewMemory(), rs.CoalesceOptions{}) }
	conformance.RunStore(t, open, conformance.Scale(conformanceScale))
	conformance.RunTransactions(t, open, conformance.Scale(conformanceScale))
}

// With one call at a time, most are merged.
func TestConformanceOfCoalesceOneByOne(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(testing.TB) rs.Store {
		return rs.Coalesce(slowed{rs.NewMemory()}, rs.CoalesceOptions{MaxInFlight: 1, MaxBatch: 8})
	}, conformance.Scale(conformanceScale))
}

// The suite names its tables itself, so every second letter decides.
func TestConformanceOfRouter(t *testing.T) {
	t.Parallel()
	open := func(t testing.TB) rs.Store {
		tables := map[string]string{}
		for c := 'a'; c <= 'z'; c += 2 {
			tables[string(c)+"*"] = "other"
		}
		return newRouter(t, rs.RouterConfig{
			Stores: map[string]rs.Store{"main": rs.NewMemory(), "other": rs.NewMemory()}, Tables: tables, Authoritative: "main",
		})
	}
	conformance.RunStore(t, open, conformance.Scale(conformanceScale))
	conformance.RunTransactions(t, open, conformance.Scale(conformanceScale))
	conformance.RunObservers(t, open)
}

func TestConformanceOfFaultyWithoutFaults(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(testing.TB) rs.Store {
		return rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{})
	}, conformance.Scale(conformanceScale))
}
