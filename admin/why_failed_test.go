package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What an earlier registration has recorded does not count, unless its run is parked.
func TestFailuresOfAnEarlierRegistration(t *testing.T) {
	t.Parallel()
	for _, parked := range []bool{false, true} {
		f := format.Failure{Change: 5, Attempts: 3, NotBefore: 50, Parked: parked}
		w := format.Write{Kind: format.KindPut, Start: 9, Value: f.Encode()}
		v := &rowstore.Version{Family: rowstore.Write, TS: 10, Value: w.Encode()}
		counts, err := failed(v, 10)
		require.NoError(t, err)
		require.Equal(t, f, counts)
		counts, err = failed(v, 11)
		require.NoError(t, err)
		require.Equal(t, parked, counts == f)
	}
}
