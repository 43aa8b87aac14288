package kit_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// The selectors of a column are found among few as among so many that a map finds them.
func TestPicks(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{0, 1, 3, 1000} {
		var list []rowstore.Selector
		for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write} {
			for i := range columns {
				list = append(list, rowstore.Selector{Family: f, Column: fmt.Sprint(i)})
			}
			list = append(list, rowstore.Selector{Family: f, Column: rowstore.AllColumns})
		}
		p := kit.PicksOf(list)
		all := []int{columns, 2*columns + 1}
		require.ElementsMatch(t, all, p.Of(nil, "another"))
		require.ElementsMatch(t, append([]int{-1}, all...), p.Of([]int{-1}, "another"), "what was there stays")
		require.Equal(t, "another", p.Name("another"))
		for i := range columns {
			require.ElementsMatch(t, append([]int{i, columns + 1 + i}, all...), p.Of(nil, fmt.Sprint(i)))
			require.Equal(t, fmt.Sprint(i), p.Name(fmt.Sprint(i)))
		}
	}
}
