package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// The shop opens when its own observers are registered, however many others the database has.
func TestPrepareWaitsForItsOwnObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := percolatetest.Open(t)
		s, err := newShop(db, time.Hour)
		require.NoError(t, err)
		all, err := s.observers(newMailbox())
		require.NoError(t, err)
		others := make([]percolator.Observer, len(all))
		for i, o := range all {
			others[i] = percolator.Observer{Name: "other " + o.Name, Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}
		}
		percolatetest.RunUntilIdle(t, db, others...)
		percolatetest.RunUntilIdle(t, db, all[1:]...)

		enough := errors.New("enough")
		ctx, stop := context.WithTimeoutCause(t.Context(), time.Minute, enough)
		defer stop()
		require.ErrorIs(t, s.prepare(ctx, all), enough)
		percolatetest.RunUntilIdle(t, db, all...)
		require.NoError(t, s.prepare(t.Context(), all))
	})
}
