package main

import (
	"errors"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/combine"
	"github.com/percolate-go/percolate/recipes/export"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/recipes/once"
	"github.com/percolate-go/percolate/typed"
)

// shop is what a process has of the shop. Its methods may be called concurrently.
type shop struct {
	db        *percolator.DB
	vault     *vault
	persons   typed.Column[Person]
	requests  *once.Keys[answer]
	outbox    *export.Outbox
	sales     *combine.Combiner[Totals]
	index     *index.Index[Order]
	best      *index.Index[int64]
	unpaidFor time.Duration
}

// newShop makes a shop over db. It neither reads nor writes.
func newShop(db *percolator.DB, unpaidFor time.Duration) (*shop, error) {
	s := &shop{db: db, vault: &vault{db}, persons: persons(&vault{db}), unpaidFor: unpaidFor}
	var errs [5]error
	s.requests, errs[0] = once.New(db, "request", typed.JSON[answer]{}, once.Options{Keep: 24 * time.Hour})
	s.outbox, errs[1] = export.New(db, "outbox")
	s.sales, errs[2] = combine.New(db, "sales", typed.JSON[Totals]{}, addTotals)
	s.index, errs[3] = index.New(db, "order", orders, foundBy, index.Options{})
	s.best, errs[4] = index.New(db, "best seller", sold, mostSold, index.Options{})
	return s, errors.Join(errs[:]...)
}

// observers are what runs when something has changed.
func (s *shop) observers(mail export.Sink) ([]percolator.Observer, error) {
	// The letters of a process that was killed wait for three times the Timeout. Attempts come a minute apart at most: the mailbox may be
	// away for hours before somebody must release its letters.
	send, err := s.outbox.Observer("send mail", s.postman(mail), export.Options{Concurrency: 8, Timeout: 2 * time.Second, MaxAttempts: 1000})
	return []percolator.Observer{
		orders.Observer("add up", s.addUp),
		{Name: "cancel unpaid", Table: "order", Column: "unpaid", Func: s.lapse},
		send,
	}, err
}
