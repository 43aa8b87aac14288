package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

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
	send, err := s.outbox.Observer("send mail", s.postman(mail), export.Options{Concurrency: 8})
	return []percolator.Observer{
		orders.Observer("add up", s.addUp),
		{Name: "cancel unpaid", Table: "order", Column: "unpaid", Func: s.lapse},
		send,
	}, err
}

// run runs the observers and serve, until ctx ends or one of them fails. Requests end before the observers do.
func (s *shop) run(ctx context.Context, mail export.Sink, serve func(ctx context.Context) error) error {
	all, err := s.observers(mail)
	if err != nil {
		return err
	}
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{})
	errs := []error{w.Use(traced)}
	for _, o := range all {
		errs = append(errs, w.Observe(o))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error { return w.Run(working) })
	group.Go(func() error {
		defer stop()
		if err := s.prepare(serving, len(all)); err != nil {
			return err
		}
		return serve(serving)
	})
	group.Go(func() error { s.shorten(serving); return nil })
	return group.Wait()
}

// prepare builds the indexes and waits until the observers are registered: without them nothing can be put into the outbox.
func (s *shop) prepare(ctx context.Context, observers int) error {
	_, err := s.index.Build(ctx, index.Pace{})
	if err == nil {
		_, err = s.best.Build(ctx, index.Pace{})
	}
	for err == nil {
		var known []percolator.ObserverInfo
		if known, err = s.db.Observers(ctx); len(known) >= observers {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("prepare the shop: %w", err)
}

// shorten gives the tables in which much is replaced a short history, once for all. A change takes two catalog leases, and one is made at a
// time. What no process has come to is done when one starts the next time.
func (s *shop) shorten(ctx context.Context) {
	for _, table := range []string{"vault", "outbox", "sales"} {
		if _, done := s.db.TableSettings()[table]; done {
			continue
		}
		err := s.db.ConfigureTable(ctx, table, percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
		if err != nil && ctx.Err() == nil {
			slog.Info("the history of a table stays as long as it was", "table", table, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(2*s.db.Settings().CatalogLease + time.Second):
		}
	}
}
