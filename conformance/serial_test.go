package conformance_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// counted counts the stores that are open.
type counted struct {
	*memstore.Store
	open *atomic.Int64
}

func (c *counted) Close() error {
	c.open.Add(-1)
	return c.Store.Close()
}

// A test that runs beside others begins when the run has returned. So a serial run is one in which every test has ended then, and closed its store before
// the next one opened another.
func TestSerial(t *testing.T) {
	t.Parallel()
	var open, opened atomic.Int64
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		opened.Add(1)
		require.EqualValues(t, 1, open.Add(1), "another test has its store open")
		return &counted{memstore.New(), &open}
	}, conformance.Serial(), conformance.Without("a few tests are enough here", conformance.Reads, conformance.Scans, conformance.Names,
		conformance.Sizes, conformance.Contexts, conformance.Closing, conformance.Concurrency, conformance.Random, conformance.Groups,
		conformance.Oracles, conformance.Deferring, conformance.Splitting, conformance.Slots, conformance.Waking))
	require.Greater(t, opened.Load(), int64(2), "the tests have not run yet")
	require.Zero(t, open.Load())
}
