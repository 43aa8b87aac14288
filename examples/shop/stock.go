package main

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// Product is what is for sale. Prices are in cents.
type Product struct {
	Name  string `json:"name"`
	Price int64  `json:"price"`
}

// Wanted is how much of a product a customer wants.
type Wanted struct {
	Product  string `json:"product"`
	Quantity int64  `json:"quantity"`
}

var (
	products = typed.Column[Product]{Table: "product", Name: "product", Codec: typed.JSON[Product]{}}
	// left is how many pieces are in stock. It is a column of its own, so that a new price and a sale do not conflict.
	left = typed.Column[int64]{Table: "product", Name: "left", Codec: typed.Number[int64]{}}
)

// maxStock is the greatest number of pieces of a product.
const maxStock = 1_000_000_000

// take takes pieces of a product out of the stock and returns its price. Of two who want the last piece one gets it.
func take(ctx context.Context, tx *percolator.Txn, product string, quantity int64) (price int64, err error) {
	p, err := products.Get(ctx, tx, product)
	if err != nil {
		return 0, orElse(err, unacceptable("unknown_product", fmt.Sprintf("there is no product %q", product)))
	}
	n, err := left.GetForUpdate(ctx, tx, product)
	if err != nil {
		return 0, err
	}
	if n < quantity {
		return 0, conflict("out_of_stock", fmt.Sprintf("%d of %q are left", n, product))
	}
	return p.Price, left.Set(ctx, tx, product, n-quantity)
}

// putBack puts pieces of a product into the stock and returns how many there are.
func putBack(ctx context.Context, tx *percolator.Txn, product string, quantity int64) (int64, error) {
	n, err := left.GetForUpdate(ctx, tx, product)
	if err != nil {
		return 0, orElse(err, notFound("product", product))
	}
	return n + quantity, left.Set(ctx, tx, product, n+quantity)
}

// deliver puts a delivery of a supplier into the stock.
func deliver(ctx context.Context, tx *percolator.Txn, product string, quantity int64) (int64, error) {
	n, err := putBack(ctx, tx, product, quantity)
	if err == nil && n > maxStock {
		err = conflict("no_room", fmt.Sprintf("there is room for %d of %q", maxStock-n+quantity, product))
	}
	return n, err
}

// offer makes a product, or gives it another name and price. Orders keep the price that they were placed at.
func offer(ctx context.Context, tx *percolator.Txn, id string, p Product) error {
	if _, err := left.Get(ctx, tx, id); isNotFound(err) {
		err = left.Set(ctx, tx, id, 0)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return products.Set(ctx, tx, id, p)
}

// Offer is a product and how many are left of it.
type Offer struct {
	ID string `json:"id"`
	Product
	Left int64 `json:"left"`
}

// look reads a product.
func look(ctx context.Context, tx *percolator.Txn, id string) (Offer, error) {
	p, err := products.Get(ctx, tx, id)
	if err != nil {
		return Offer{}, orElse(err, notFound("product", id))
	}
	n, err := left.Get(ctx, tx, id)
	return Offer{ID: id, Product: p, Left: n}, err
}
