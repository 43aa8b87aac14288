package combine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// TestPartsOfASumThatDoNotFit: a sum of parts that does not fit is an error also where the value would. Nothing is lost: with the type that Sum asks for it is read.
func TestPartsOfASumThatDoNotFit(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	adder := func() *Combiner[int8] { // another process
		c, err := New(db, "small", typed.Number[int8]{}, Sum[int8])
		require.NoError(t, err)
		return apart(c)
	}
	first := adder()
	add(t, first, "k", 100)
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error { return first.Add(ctx, tx, "k", 100) }), ErrMerge)
	add(t, adder(), "k", 100)
	add(t, adder(), "k", -100)
	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error { _, err := first.Get(ctx, tx, "k"); return err }), ErrMerge)
	wide, err := New(db, "small", typed.Number[int64]{}, Sum[int64])
	require.NoError(t, err)
	require.EqualValues(t, 100, get(t, wide, "k"))
}
