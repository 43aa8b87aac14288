package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	levels := func() admin.Levels {
		t.Helper()
		r, err := admin.New(&unwritten{p.store, t})
		require.NoError(t, err)
		l, err := r.Levels(t.Context())
		require.NoError(t, err)
		last := l.Features[len(l.Features)-1]
		require.Equal(t, l.Known, last.Version, "no feature tells of the newest version")
		return l
	}
	has := func(l admin.Levels, words string) {
		t.Helper()
		require.Contains(t, strings.Join(l.Lines, "\n"), words)
	}
	l := levels()
	require.Equal(t, format.HintedVersion, l.Catalog)
	require.False(t, l.Raise)
	require.Equal(t, 1, l.Processes)
	require.Zero(t, l.Older)
	has(l, "the catalog has version 5; new databases begin with version 5, and this program knows versions up to")

	p.close()
	p.recatalog(func(c *format.Catalog) { c.Hinted, c.HintsFrom, c.Changes = false, 0, true })
	l = levels()
	require.Equal(t, format.ControlledVersion, l.Catalog)
	require.True(t, l.Raise)
	has(l, "the catalog can be raised to version 5")
	for _, f := range l.Features {
		require.Equal(t, f.What == "observers of old values", f.Used, f.What)
	}

	p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Mark, "ancient", p.draw(), format.Use{Revision: p.draw()}.Encode()))
	l = levels()
	require.Equal(t, 1, l.Older)
	has(l, "1 of 1 processes run programs that know no catalog of version 5")

	p.recatalog(func(c *format.Catalog) { c.Cascades = true })
	l = levels()
	require.Equal(t, l.Known, l.Catalog)
	require.True(t, l.Raise, "collections do not go by hints yet")

	empty, err := admin.New(memstore.New())
	require.NoError(t, err)
	_, err = empty.Levels(t.Context())
	require.ErrorIs(t, err, percolator.ErrNoStore)
}
