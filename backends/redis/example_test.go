package redis_test

import (
	"context"
	"log"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/backends/redis"
	"github.com/percolate-go/percolate/percolator"
)

// A store over connections of its own.
func ExampleOpen() {
	ctx := context.Background()
	store, err := redis.Open(ctx, redis.Options{Addrs: []string{"localhost:6379"}, Prefix: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
}

// A store over the client that the program has already. Its options may be what they
// like; it stays open when the store is closed.
func ExampleNew() {
	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: "localhost:6379"})
	defer func() { _ = client.Close() }()

	store, err := redis.New(ctx, client, redis.Options{Prefix: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }() // before the client

	db, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "accounts", Row: "alice", Column: "balance"}, []byte("10"))
	})
	if err != nil {
		log.Fatal(err)
	}
}
