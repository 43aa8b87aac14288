package router_test

import (
	"testing"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

const conformanceScale = 0.15

// The suite names its tables itself, so every second letter decides.
func TestConformanceOfRouter(t *testing.T) {
	t.Parallel()
	open := func(t testing.TB) rs.Store {
		tables := map[string]string{}
		for c := 'a'; c <= 'z'; c += 2 {
			tables[string(c)+"*"] = "other"
		}
		return newRouter(t, router.Config{
			Stores: map[string]rs.Store{"main": memstore.New(memstore.WithApplyTimestamps()), "other": memstore.New()}, Tables: tables, Authoritative: "main",
		})
	}
	conformance.RunStore(t, open, conformance.Scale(conformanceScale))
	conformance.RunTransactions(t, open, conformance.Scale(conformanceScale))
	conformance.RunObservers(t, open, conformance.Scale(conformanceScale))
}
