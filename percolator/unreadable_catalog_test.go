package percolator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// No failure counts as a row's while the catalog cannot be read either: nothing is left out then, and nothing counted.
func TestNoRowFailsBesideTheCatalog(t *testing.T) {
	t.Parallel()
	for _, kind := range kindsOfDamage {
		w := newWorld(t)
		s, c, _ := w.damageable(kind)
		set(t, c.DB, rowA, "1")
		set(t, c.DB, rowB, "1")
		s.damage("a", format.RowCatalog)
		require.False(t, c.isOfARow(t.Context(), fmt.Errorf("%w: x", kind)))
		picks := []rowstore.Selector{everything(rowstore.Write, "v")}
		var err error
		for _, err = range c.scanPast(t.Context(), rowstore.ScanRange{Table: "t", Selectors: picks}, func(unreadable) error {
			t.Error("the row was left out")
			return nil
		}) {
		}
		require.ErrorIs(t, err, kind)
		_, err = c.readEach(t.Context(), []rowstore.RowRead{{Table: "t", Row: "a", Selectors: picks}})
		require.ErrorIs(t, err, kind)
		report := &GCReport{}
		require.ErrorIs(t, (&damage{db: c.DB, report: report}).pass(t.Context(), "t", "a", fmt.Errorf("%w: x", kind)), kind)
		require.Zero(t, report.Damaged)
		_, left, err := c.dropTimers(t.Context(), []Cell{rowA, rowB})
		require.ErrorIs(t, err, kind)
		require.Empty(t, left)
	}
}

// If it is the oracle that is damaged, no row is.
func TestNoRowFailsBesideTheOracle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	require.True(t, c.isOfARow(t.Context(), fmt.Errorf("%w: x", ErrCorrupt)))
	c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallDraw), Fault: faultstore.Fault{Kind: faultstore.Fail, Err: fmt.Errorf("%w: the bound", ErrCorrupt)}, Times: -1})
	require.False(t, c.isOfARow(t.Context(), fmt.Errorf("%w: x", ErrCorrupt)))
}
