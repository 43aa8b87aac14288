package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The lock of a transaction that parks a run changes no acknowledgment: nobody waits for it.
func TestALockThatChangesNothingIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for kind, waits := range map[format.Kind]bool{format.KindPut: true, format.KindDelete: true, format.KindLock: false} {
		l := format.Lock{Kind: kind, Session: "s", Primary: format.Cell{Table: "t", Row: "r", Column: "c"}}
		row := &rowstore.Row{Versions: []rowstore.Version{{Family: rowstore.Lock, Column: format.AckColumn("o", "c"), TS: 5, Value: l.Encode()}}}
		acking, err := acknowledging(row, "o", format.Cell{Table: "t", Row: "r", Column: "c"})
		require.NoError(t, err)
		require.Equal(t, waits, acking, kind)
	}
}

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
