package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
	"github.com/percolate-go/percolate/recipes/index"
)

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
		if err := s.prepare(serving, all); err != nil {
			return err
		}
		return serve(serving)
	})
	return group.Wait()
}

// prepare builds the indexes, and waits until the observers are registered: without them nothing can be put into the outbox.
func (s *shop) prepare(ctx context.Context, observers []percolator.Observer) error {
	_, err := s.index.Build(ctx, index.Pace{})
	if err == nil {
		_, err = s.best.Build(ctx, index.Pace{})
	}
	if err == nil { // a key that was destroyed shall not stay in the history
		err = s.db.ConfigureTable(ctx, "vault", percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
	}
	for err == nil {
		var known []percolator.ObserverInfo // others, too: of another version, or of another program
		known, err = s.db.Observers(ctx)
		missing := func(o percolator.Observer) bool {
			return !slices.ContainsFunc(known, func(k percolator.ObserverInfo) bool { return k.Name == o.Name && k.Table == o.Table })
		}
		if err == nil && !slices.ContainsFunc(observers, missing) {
			return nil
		}
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(10 * time.Millisecond): // until the next look
		}
	}
	return fmt.Errorf("prepare the shop: %w", err)
}
