package pebble

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sizesElsewhere is why only one run of the suite has tests of sizes.
const sizesElsewhere = "TestConformanceDisk has them"

func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		s, err := Open(t.Context(), Options{MemTableSize: minMemTable})
		require.NoError(t, err)
		return s
	}, conformance.Scale(0.2), conformance.Without(conformance.Sizes, sizesElsewhere))
}

// Half as much runs on disk, where only the waits for the log are added.
func TestConformanceDisk(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		s, err := Open(t.Context(), Options{Path: t.TempDir(), MemTableSize: minMemTable})
		require.NoError(t, err)
		return s
	}, conformance.Scale(0.1))
}
