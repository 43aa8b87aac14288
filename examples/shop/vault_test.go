package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// keysOf lists the customers who have a key.
func keysOf(t *testing.T, db *percolator.DB) (customers []string) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		for row, err := range secrets.Scan(t.Context(), tx, percolator.Range{}) {
			if err != nil {
				return err
			}
			customers = append(customers, row.Key)
		}
		return nil
	}))
	return customers
}

// The key of a customer commits with the customer, or not at all: attempts that come to nothing leave no key behind.
func TestKeyCommitsWithTheCustomer(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	s, err := newShop(db, time.Hour)
	require.NoError(t, err)
	ann := Person{Name: "Ann", Mail: "ann@example.org"}

	refused := errors.New("no")
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error {
		_, err := s.welcome(ctx, tx, ann)
		return errors.Join(err, refused)
	}), refused)
	require.Empty(t, keysOf(t, db))

	var ids []string
	clash := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		id, err := s.welcome(ctx, tx, ann)
		if ids = append(ids, id); err == nil && len(ids) == 1 {
			err = db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(clash, nil) })
		}
		return errors.Join(err, tx.Set(clash, nil))
	}))
	require.Len(t, ids, 2)
	require.Equal(t, ids[1:], keysOf(t, db))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		got, err := s.person(ctx, tx, ids[1])
		require.Equal(t, Customer{ids[1], ann}, got)
		return err
	}))
}

// Nobody is stored by a key that is not there.
func TestPersonWithoutAKey(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	s, err := newShop(db, time.Hour)
	require.NoError(t, err)
	err = db.Update(ctx, func(tx *percolator.Txn) error { return s.persons.Set(ctx, tx, "bob", Person{Name: "Bob"}) })
	require.ErrorContains(t, err, `customer "bob" has no key`)
	require.Empty(t, keysOf(t, db))
}
