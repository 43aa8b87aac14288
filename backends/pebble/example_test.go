package pebble_test

import (
	"context"
	"fmt"
	"log"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// A store in a directory of its own.
func ExampleOpen() {
	ctx := context.Background()
	store, err := pebble.Open(ctx, pebble.Options{Path: "data", CacheSize: 256 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
}

// A store in a database that the program has opened, beside keys of the program's own.
func ExampleNew() {
	ctx := context.Background()
	db, err := engine.Open("data", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := db.Set([]byte("mine"), []byte("1"), engine.Sync); err != nil {
		log.Fatal(err)
	}

	store, err := pebble.New(ctx, db, pebble.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }() // before the database

	p, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = p.Close(ctx) }()
	err = p.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "accounts", Row: "alice", Column: "balance"}, []byte("10"))
	})
	fmt.Println(err)
	// Output:
	// <nil>
}
