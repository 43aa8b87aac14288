package howto

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/combine"
	"github.com/percolate-go/percolate/typed"
)

// openVisits makes the counters of visits by page. Their table has a short history, because it is written often.
func openVisits(ctx context.Context, db *percolator.DB) (*combine.Combiner[int64], error) {
	err := db.ConfigureTable(ctx, "visits", percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
	if err != nil {
		return nil, err
	}
	return combine.New(db, "visits", typed.Number[int64]{}, combine.Sum[int64])
}

func lastPage(visitor string) percolator.Cell {
	return percolator.Cell{Table: "visitor", Row: visitor, Column: "page"}
}

func visit(ctx context.Context, db *percolator.DB, visits *combine.Combiner[int64], visitor, page string) error {
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		if err := tx.Set(lastPage(visitor), []byte(page)); err != nil {
			return err
		}
		return visits.Add(ctx, tx, page, 1)
	})
	return err
}

func TestVisitsAreCounted(t *testing.T) {
	t.Parallel()
	ctx, db, page := t.Context(), openTest(t), "/"
	visits, err := openVisits(ctx, db)
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, visit(ctx, db, visits, fmt.Sprint(i), page))
	}
	for range 2 {
		err := visits.AddNow(ctx, page, 1)
		require.NoError(t, err)
	}
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n, err := visits.Get(ctx, tx, page) // percolator.ErrNotFound before the first Add
		require.EqualValues(t, 5, n)
		return err
	}))
}

// TestVisitsInEveryOrder has two processes that count, in every order.
func TestVisitsInEveryOrder(t *testing.T) {
	t.Parallel()
	client := func(name string) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			visits, err := combine.New(db, "visits", typed.Number[int64]{}, combine.Sum[int64])
			if err != nil {
				return err
			}
			return visit(ctx, db, visits, name, "/")
		}}
	}
	var counted *combine.Combiner[int64]
	percolatetest.Explore(t, percolatetest.Program{
		Setup: func(_ context.Context, db *percolator.DB) (err error) {
			counted, err = combine.New(db, "visits", typed.Number[int64]{}, combine.Sum[int64])
			return err
		},
		Clients: []percolatetest.Client{client("ann"), client("bob")},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			visitors := int64(0)
			for _, err := range tx.Scan(ctx, percolator.Range{Table: "visitor"}) {
				if err != nil {
					return err
				}
				visitors++
			}
			n, err := counted.Get(ctx, tx, "/")
			if err == nil && (n != 2 || visitors != 2) {
				err = fmt.Errorf("%d visits of %d visitors", n, visitors)
			}
			return err
		},
	})
}
