package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestDoctorOfARestoreThatWasCutOff has the record in place of the catalog that says how far a restore is. No migration helps with that.
func TestDoctorOfARestoreThatWasCutOff(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	at, err := s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	half := format.Restoring{Backup: "monday", Began: at}
	b, err := half.Encode()
	require.NoError(t, err)
	outs, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnConfig, at, b)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, outs[0].Err)
	r, err := admin.New(s)
	require.NoError(t, err)
	d, err := r.Doctor(t.Context(), admin.DoctorOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"restoring"}, codes(&d), "%+v", d.Findings)
	require.Contains(t, d.Findings[0].What, "backup monday")
	require.Contains(t, d.Findings[0].Change, "restore the same backup again")
	require.NotContains(t, d.Findings[0].Change, "migrate")

	_, err = percolator.New(t.Context(), s)
	require.ErrorIs(t, err, percolator.ErrFormat, "as for any data that a program may not open")
	found, ok := admin.CannotOpen(err)
	require.True(t, ok)
	require.Equal(t, "restoring", found.Code)
}
