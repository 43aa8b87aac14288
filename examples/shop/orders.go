package main

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

// Status is how far an order has come.
type Status string

// An order is placed, and then either paid and shipped, or cancelled.
const (
	Placed    Status = "placed"
	Paid      Status = "paid"
	Shipped   Status = "shipped"
	Cancelled Status = "cancelled"
)

// Order is what a customer has ordered. It says nothing about the customer but the number.
type Order struct {
	ID       string    `json:"id"`
	Customer string    `json:"customer"`
	Lines    []Line    `json:"lines"`
	Total    int64     `json:"total"`
	Status   Status    `json:"status"`
	Placed   time.Time `json:"placed"`
}

// Line is a product of an order, at the price of that moment.
type Line struct {
	Product  string `json:"product"`
	Quantity int64  `json:"quantity"`
	Price    int64  `json:"price"`
}

var orders = typed.Column[Order]{Table: "order", Name: "order", Codec: typed.JSON[Order]{}}

// unpaid is a cell that nobody writes. It has the timer of an order that is not paid yet.
func unpaid(id string) percolator.Cell {
	return percolator.Cell{Table: "order", Row: id, Column: "unpaid"}
}

// foundBy are the values by which orders are found.
func foundBy(_ string, o Order) ([]keys.Key, error) {
	return []keys.Key{withStatus(o.Status).Time(o.Placed), ofCustomer(o.Customer).Time(o.Placed)}, nil
}

func withStatus(s Status) keys.Key  { return keys.Key("").Text("status").Text(string(s)) }
func ofCustomer(id string) keys.Key { return keys.Key("").Text("customer").Text(id) }

// find reads the orders with a value, the oldest first.
func (s *shop) find(ctx context.Context, tx *percolator.Txn, value keys.Key, limit int) ([]Order, error) {
	r := index.Begins(value)
	r.Limit = limit
	found := []Order{}
	for id, err := range s.index.Scan(ctx, tx, r) {
		if err != nil {
			return nil, err
		}
		o, err := orders.Get(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		found = append(found, o)
	}
	return found, nil
}

// order reads an order.
func order(ctx context.Context, tx *percolator.Txn, id string) (Order, error) {
	o, err := orders.Get(ctx, tx, id)
	return o, orElse(err, notFound("order", id))
}

// place takes the goods from the stock and makes an order of them. It is cancelled if it is not paid in time.
func (s *shop) place(ctx context.Context, tx *percolator.Txn, customer string, wanted []Wanted) (Order, error) {
	nobody := unacceptable("unknown_customer", fmt.Sprintf("there is no customer %q", customer))
	if err := known(ctx, tx, customer, nobody); err != nil {
		return Order{}, err
	}
	id, now, err := newID(ctx, tx)
	if err != nil {
		return Order{}, err
	}
	o := Order{ID: id, Customer: customer, Placed: now}
	for _, w := range wanted {
		price, err := take(ctx, tx, w.Product, w.Quantity)
		if err != nil {
			return Order{}, err
		}
		o.Lines = append(o.Lines, Line{Product: w.Product, Quantity: w.Quantity, Price: price})
		o.Total += price * w.Quantity
	}
	if err := tx.NotifyAfter(ctx, unpaid(id), s.unpaidFor); err != nil {
		return Order{}, err
	}
	return s.become(ctx, tx, o, Placed)
}

// become stores an order with its new status, and tells the customer.
func (s *shop) become(ctx context.Context, tx *percolator.Txn, o Order, status Status) (Order, error) {
	o.Status = status
	if err := orders.Set(ctx, tx, o.ID, o); err != nil {
		return Order{}, err
	}
	return o, s.tell(ctx, tx, o)
}

// pay takes the money for an order. From then on it is not cancelled any more.
func (s *shop) pay(ctx context.Context, tx *percolator.Txn, id string, amount int64) (Order, error) {
	o, err := order(ctx, tx, id)
	switch {
	case err != nil:
		return Order{}, err
	case o.Status != Placed:
		return Order{}, conflict("not_payable", fmt.Sprintf("order %s is %s", id, o.Status))
	case o.Total != amount:
		return Order{}, unacceptable("wrong_amount", fmt.Sprintf("order %s costs %d", id, o.Total))
	}
	if err := tx.CancelNotify(unpaid(id)); err != nil {
		return Order{}, err
	}
	return s.become(ctx, tx, o, Paid)
}

// ship sends the goods of an order away.
func (s *shop) ship(ctx context.Context, tx *percolator.Txn, id string) (Order, error) {
	o, err := order(ctx, tx, id)
	if err == nil && o.Status != Paid {
		err = conflict("not_paid", fmt.Sprintf("order %s is %s", id, o.Status))
	}
	if err != nil {
		return Order{}, err
	}
	return s.become(ctx, tx, o, Shipped)
}

// cancel puts the goods of an order back. The timer is taken back, too.
func (s *shop) cancel(ctx context.Context, tx *percolator.Txn, id string) (Order, error) {
	o, err := order(ctx, tx, id)
	if err == nil && o.Status != Placed {
		err = conflict("not_cancellable", fmt.Sprintf("order %s is %s", id, o.Status))
	}
	if err != nil {
		return Order{}, err
	}
	for _, l := range o.Lines {
		if _, err := putBack(ctx, tx, l.Product, l.Quantity); err != nil {
			return Order{}, err
		}
	}
	if err := tx.CancelNotify(unpaid(id)); err != nil {
		return Order{}, err
	}
	return s.become(ctx, tx, o, Cancelled)
}

// lapse runs when the time for paying an order is over.
func (s *shop) lapse(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	o, err := order(ctx, tx, c.Row)
	if err != nil || o.Status != Placed {
		return err
	}
	_, err = s.cancel(ctx, tx, o.ID)
	return err
}

// Past is what an order has been, from a time on.
type Past struct {
	At     time.Time `json:"at"`
	Status Status    `json:"status"`
}

// history reads what an order has been, the newest first, as far as it is kept.
func (s *shop) history(ctx context.Context, id string) ([]Past, error) {
	var past []Past
	for v, err := range s.db.History(ctx, orders.Cell(id), 0, 0) {
		if err != nil {
			return nil, err
		}
		o, err := orders.Codec.Decode(ctx, orders.Cell(id), v.Value)
		if err != nil {
			return nil, err
		}
		past = append(past, Past{At: v.Commit.Time(), Status: o.Status})
	}
	if past == nil {
		return nil, notFound("order", id)
	}
	return past, nil
}
