package percolator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A catalog is raised on request when no older program lives: one that has died counts for a lease.
func TestRaiseCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, c := w.client(withoutHints()), w.client()
	w.lowerTo(format.ControlledVersion)
	stored := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Newest(rowstore.Write, format.ColumnConfig).Value[0]
	}
	raise := func(lives bool) error {
		done := async(func() error { return c.RaiseCatalog(t.Context()) })
		_, ended := w.clock.sleeps(t, worldLease, done)
		require.False(t, ended, "it did not wait for what may have died")
		require.EqualValues(t, format.ControlledVersion, stored())
		if lives {
			_, err := old.loadCatalog(t.Context())
			require.NoError(t, err)
		}
		w.pass(worldLease)
		return w.finish(done)
	}
	err := raise(true)
	require.ErrorIs(t, err, ErrOlderProgram)
	require.EqualValues(t, format.ControlledVersion, stored(), "nothing has changed")

	before := mustNow(t, c)
	require.NoError(t, raise(false))
	require.EqualValues(t, format.HintedVersion, stored())
	require.GreaterOrEqual(t, c.known().HintsFrom, before.Add(worldLease))

	revision := c.known().revision
	require.NoError(t, c.RaiseCatalog(t.Context()))
	require.Equal(t, revision, c.known().revision, "a catalog that is raised is left alone")
}

// Nothing is to be waited for where no older program has left a record.
func TestRaiseCatalogAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.lowerTo(format.PlainCatalogVersion)
	require.NoError(t, c.RaiseCatalog(t.Context()))
	require.True(t, c.known().Hinted)
	require.NotZero(t, c.known().HintsFrom)
	require.NoError(t, c.Close(t.Context()))
	w.without(c)
	require.ErrorIs(t, c.RaiseCatalog(t.Context()), ErrClosed)
}
