package postgres_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/backends/postgres"
	"github.com/percolate-go/percolate/percolator"
)

// A program that has a pool of connections for SQL of its own gives it to the store.
func ExampleNew() {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig("postgres://app@db.example:5432/shop")
	if err != nil {
		log.Fatal(err)
	}
	cfg.ConnConfig.OnNotice = postgres.OnNotice
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close() // last: the store leaves it open

	store, err := postgres.New(ctx, pool, postgres.Options{Schema: "percolator"})
	if err != nil {
		log.Fatal(err)
	}
	db, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(errors.Join(err, store.Close()))
	}
	defer func() { _ = db.Close(ctx) }()

	// The pool is the program's as before.
	var customers int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM customers").Scan(&customers); err != nil {
		log.Fatal(err)
	}
}

// Options that come from a configuration of the program's own, without a URL as text.
func ExampleOpen() {
	ctx := context.Background()
	opts, err := postgres.ParseURL("postgres://app@db.example:5432/shop?sslmode=verify-full&pool_max_conns=8")
	if err != nil {
		log.Fatal(err)
	}
	opts.Schema = "orders"
	opening, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	store, err := postgres.Open(opening, opts)
	if err != nil {
		log.Fatal(err)
	}
	db, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(errors.Join(err, store.Close()))
	}
	defer func() { _ = db.Close(ctx) }()
}
