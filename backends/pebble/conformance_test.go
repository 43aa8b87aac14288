package pebble

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sizesElsewhere is why only one run of the suite has tests of sizes.
const sizesElsewhere = "TestConformanceDisk has them"

// Transactions and observers see a store only through its calls, and are run on disk.
func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		s, err := Open(t.Context(), Options{MemTableSize: minMemTable})
		require.NoError(t, err)
		return s
	}, conformance.Scale(0.2), conformance.Without(sizesElsewhere, conformance.Sizes))
}

// On disk the waits for the log are added, and each test does half as much.
func TestConformanceDisk(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		s, err := Open(t.Context(), Options{Path: t.TempDir(), MemTableSize: minMemTable})
		require.NoError(t, err)
		return s
	}, conformance.Scale(0.1))
}
