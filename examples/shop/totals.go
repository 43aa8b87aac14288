package main

import (
	"context"
	"errors"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

// Totals are of all orders that are paid.
type Totals struct {
	Orders  int64 `json:"orders"`
	Revenue int64 `json:"revenue"`
}

// addTotals puts totals together.
func addTotals(a, b Totals) (Totals, error) {
	return Totals{Orders: a.Orders + b.Orders, Revenue: a.Revenue + b.Revenue}, nil
}

// sold is how many pieces of a product were sold, by its row.
var sold = typed.Column[int64]{Table: "product", Name: "sold", Codec: typed.Number[int64]{}}

// mostSold orders products, the one that sells best first.
func mostSold(_ string, n int64) ([]keys.Key, error) { return []keys.Key{keys.Key("").Int(-n)}, nil }

// counts tells whether an order is in the totals.
func (o Order) counts() bool { return o.Status == Paid || o.Status == Shipped }

// addUp is the observer of orders that keeps what was sold. An order comes into the totals when it is paid, and stays.
func (s *shop) addUp(ctx context.Context, tx *percolator.Txn, change typed.Change[Order]) error {
	if change.Old.counts() || !change.New.counts() {
		return nil
	}
	for _, l := range change.New.Lines {
		n, err := sold.Get(ctx, tx, l.Product)
		if err != nil && !isNotFound(err) {
			return err
		}
		if err := sold.Set(ctx, tx, l.Product, n+l.Quantity); err != nil {
			return err
		}
	}
	return s.sales.Add(ctx, tx, "all", Totals{Orders: 1, Revenue: change.New.Total})
}

// totals reads the totals.
func (s *shop) totals(ctx context.Context, tx *percolator.Txn) (Totals, error) {
	t, err := s.sales.Get(ctx, tx, "all")
	if errors.Is(err, percolator.ErrNotFound) {
		return Totals{}, nil
	}
	return t, err
}

// Seller is a product and how many of it were sold.
type Seller struct {
	Product string `json:"product"`
	Sold    int64  `json:"sold"`
}

// bestSellers reads what sells best.
func (s *shop) bestSellers(ctx context.Context, tx *percolator.Txn, limit int) ([]Seller, error) {
	best := []Seller{}
	for product, err := range s.best.Scan(ctx, tx, index.Range{Limit: limit}) {
		if err != nil {
			return nil, err
		}
		n, err := sold.Get(ctx, tx, product)
		if err != nil {
			return nil, err
		}
		best = append(best, Seller{Product: product, Sold: n})
	}
	return best, nil
}
