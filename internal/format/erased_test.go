package format

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErasedRangeContains(t *testing.T) {
	t.Parallel()
	of := func(table, from, to string) *ErasedRange {
		return &ErasedRange{Table: []byte(table), From: []byte(from), To: []byte(to)}
	}
	for _, c := range []struct {
		outer, inner *ErasedRange
		contains     bool
	}{
		{of("t", "b", "d"), of("t", "b", "d"), false},
		{of("t", "b", "d"), of("t", "b", "c"), true},
		{of("t", "b", "d"), of("t", "c", "d"), true},
		{of("t", "b", "d"), of("u", "b", "c"), false},
		{of("t", "b", "d"), of("t", "a", "c"), false},
		{of("t", "b", "d"), of("t", "c", "e"), false},
		{of("t", "b", "d"), of("t", "c", ""), false},
		{of("t", "b", ""), of("t", "b", ""), false},
		{of("t", "b", ""), of("t", "c", ""), true},
		{of("t", "b", ""), of("t", "c", "d"), true},
		{of("t", "b", ""), of("t", "a", "d"), false},
		{of("t", "", ""), of("t", "a", "d"), true},
		{of("t", "", ""), of("t", "", ""), false},
	} {
		require.Equal(t, c.contains, c.outer.Contains(c.inner), "%+v %+v", c.outer, c.inner)
	}
}
