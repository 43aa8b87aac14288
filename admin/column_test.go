package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
)

// TestColumnsOfRenamedObservers: what an observer keeps beside a cell is said to be of the name that it has now.
func TestColumnsOfRenamedObservers(t *testing.T) {
	t.Parallel()
	cat := &catalog{observed: map[[2]string][]format.Observer{{"t", "v"}: {{Name: []byte("first"), Called: []byte("now")}, {Name: []byte("other")}}}}
	for stored, want := range map[string]string{
		format.AckColumn("first", "v"):     `acknowledgment of the observer "now"`,
		format.FailureColumn("first", "v"): `failure record of the observer "now"`,
		format.AckColumn("other", "v"):     `acknowledgment of the observer "other"`,
		format.AckColumn("gone", "v"):      `acknowledgment of the observer "gone"`,
		format.TimerColumn("v"):            "timer",
	} {
		user, beside := cat.column("t", stored)
		require.Equal(t, "v", user)
		require.Equal(t, want, beside)
	}
	user, beside := cat.column("t", "v")
	require.Equal(t, "v", user)
	require.Empty(t, beside)
}
