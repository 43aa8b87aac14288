package main

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// Person is what is known of a customer. It is stored encrypted, by a key of the customer's own.
type Person struct {
	Name string `json:"name"`
	Mail string `json:"mail"`
}

// Customer is a customer as the shop shows one.
type Customer struct {
	ID string `json:"id"`
	Person
}

// newcomer is the answer to who makes a customer. It has the number alone, because answers are kept.
type newcomer struct {
	ID string `json:"id"`
}

// persons is the column of customers.
func persons(v *vault) typed.Column[Person] {
	return typed.Column[Person]{Table: "customer", Name: "person", Codec: typed.Encrypted[Person]{Codec: typed.JSON[Person]{}, Keys: v}}
}

// person reads who a customer is.
func (s *shop) person(ctx context.Context, tx *percolator.Txn, id string) (Customer, error) {
	p, err := s.persons.Get(ctx, tx, id)
	return Customer{ID: id, Person: p}, orElse(err, notFound("customer", id))
}

// welcome makes a customer.
func (s *shop) welcome(ctx context.Context, tx *percolator.Txn, p Person) (id string, err error) {
	if id, _, err = newID(ctx, tx); err != nil {
		return "", err
	}
	if ctx, err = s.vault.create(ctx, tx, id); err != nil {
		return "", err
	}
	return id, s.persons.Set(ctx, tx, id, p)
}

// leaving is when erasing a customer had met conflicts again and again. For a while from then on the customer's orders are refused: to
// erase takes longer than to order, and whoever orders without a pause would keep it from committing for ever.
var leaving = typed.Column[time.Time]{Table: "customer", Name: "leaving", Codec: typed.JSON[time.Time]{}}

const (
	leavingFor    = 10 * time.Second
	eraseAttempts = 4 // before that
)

// known sees to it that a customer is there and not about to leave, and is not erased before tx has committed.
func known(ctx context.Context, tx *percolator.Txn, id string, otherwise error) error {
	if err := tx.Prefetch("customer", id, "person", "leaving"); err != nil {
		return err
	}
	if err := hold(ctx, tx, id, otherwise); err != nil {
		return err
	}
	since, err := leaving.Get(ctx, tx, id)
	if err != nil {
		return orElse(err, nil)
	}
	if now, err := tx.Now(ctx); err != nil || now.Sub(since) >= leavingFor {
		return err
	}
	return conflict("leaving", fmt.Sprintf("customer %q is about to be erased", id))
}

// hold sees to it that a customer is there, and that nobody else who holds or erases the customer commits before tx.
func hold(ctx context.Context, tx *percolator.Txn, id string, otherwise error) error {
	_, err := tx.GetForUpdate(ctx, percolator.Cell{Table: "customer", Row: id, Column: "person"})
	return orElse(err, otherwise)
}

// leave has no orders taken of a customer for a while, so that erase can commit. It meets no orders itself.
func leave(ctx context.Context, tx *percolator.Txn, id string) error {
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	return leaving.Set(ctx, tx, id, now)
}

// erase forgets who a customer is, and destroys the key: what backups and the history have of it cannot be read any more.
// Orders stay in the books, without a person behind their number. Those that are not paid are cancelled.
func (s *shop) erase(ctx context.Context, tx *percolator.Txn, id string) error {
	if err := hold(ctx, tx, id, notFound("customer", id)); err != nil {
		return err
	}
	theirs, err := s.find(ctx, tx, ofCustomer(id), 0)
	if err != nil {
		return err
	}
	for _, o := range theirs {
		switch o.Status {
		case Paid:
			return conflict("not_shipped", fmt.Sprintf("order %s is paid and must be shipped first", o.ID))
		case Placed:
			if _, err := s.cancel(ctx, tx, o.ID); err != nil {
				return err
			}
		}
	}
	if err := s.persons.Delete(ctx, tx, id); err != nil {
		return err
	}
	if err := leaving.Delete(ctx, tx, id); err != nil {
		return err
	}
	return s.vault.destroy(ctx, tx, id)
}
