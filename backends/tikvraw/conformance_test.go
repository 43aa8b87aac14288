package tikvraw

import (
	"testing"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The store alone, over keys in memory: its own contract, and then transactions too, with
// rows whose parts move out early, so that every test meets chunks.
func TestConformanceFake(t *testing.T) {
	t.Parallel()
	t.Run("Usual", func(t *testing.T) {
		t.Parallel()
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			return openFake(t, newFakeData().client(), Options{})
		}, conformance.Scale(0.1), conformance.Without("SmallParts has them, and the run over the mock cluster with rows as usual",
			conformance.Conditions, conformance.Edits, conformance.Reads, conformance.Names, conformance.Arguments, conformance.Contexts,
			conformance.Closing, conformance.Groups, conformance.Oracles, conformance.Deferring, conformance.Splitting, conformance.Waking))
	})
	t.Run("SmallParts", func(t *testing.T) {
		t.Parallel()
		open := func(t testing.TB) rowstore.Store {
			return openFake(t, newFakeData().client(), small(Options{Oracle: OracleStore}))
		}
		conformance.RunStore(t, open, conformance.Scale(0.1))
		conformance.RunTransactions(t, open, conformance.Scale(0.1))
	})
}
