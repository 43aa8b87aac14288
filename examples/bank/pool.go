package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/backends/postgres"
	"github.com/percolate-go/percolate/percolator"
)

// ledger is what a program has that uses Postgres already: a pool of connections, and a
// table of its own, bank_runs. The accounts are kept by percolator, over the same pool.
type ledger struct {
	pool *pgxpool.Pool
	run  int64
}

// openLedger connects to Postgres and notes that a run begins.
func openLedger(ctx context.Context, url string) (_ *ledger, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usageError{errors.New("-pool: the URL cannot be read")} // the error may quote a password
	}
	// These two lines are what percolator wants of a program's pool. The first one matters if the server has synchronous standbys. The
	// second one keeps the connection of a statement whose context ends.
	cfg.ConnConfig.OnNotice = postgres.OnNotice
	cfg.ConnConfig.BuildContextWatcherHandler = postgres.AwaitAnswers
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	l := &ledger{pool: pool}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bank_runs (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, begun timestamptz NOT NULL DEFAULT now(), transfers bigint, right_total boolean)`)
	if err != nil {
		return nil, fmt.Errorf("making the table bank_runs: %w", err)
	}
	if err := pool.QueryRow(ctx, "INSERT INTO bank_runs DEFAULT VALUES RETURNING id").Scan(&l.run); err != nil {
		return nil, fmt.Errorf("noting the run: %w", err)
	}
	return l, nil
}

// open opens the database over the pool. Closing the database leaves the pool open.
func (l *ledger) open(ctx context.Context) (*percolator.DB, error) {
	store, err := postgres.New(ctx, l.pool, postgres.Options{Schema: "bank"})
	if err != nil {
		return nil, err
	}
	db, err := percolator.New(ctx, store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return db, nil
}

// close notes how the run ended and closes the pool. The database is closed by now.
func (l *ledger) close(ctx context.Context, r *report) error {
	defer l.pool.Close()
	if r == nil {
		return nil
	}
	_, err := l.pool.Exec(ctx, "UPDATE bank_runs SET transfers = $2, right_total = $3 WHERE id = $1",
		l.run, r.transfers, !errors.Is(r.err, errWrongTotal))
	if err != nil {
		return fmt.Errorf("noting the end of the run: %w", err)
	}
	return nil
}
