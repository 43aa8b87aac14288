package backup_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func try(err error) {
	if err != nil {
		panic(err)
	}
}

// A backup is of one snapshot, and is restored into an empty store of any backend.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	try(err)
	defer func() { try(os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "shop.backup")
	state := percolator.Cell{Table: "order", Row: "17", Column: "state"}

	db, err := percolator.New(ctx, memstore.New())
	try(err)
	set := func(value string) {
		try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(state, []byte(value)) }))
	}
	set("placed")
	result, err := backup.Write(ctx, db, file, backup.Options{})
	try(err)
	set("paid")
	try(db.Close(ctx))

	store := memstore.New()
	_, err = backup.Restore(ctx, store, file, backup.RestoreOptions{})
	try(err)
	restored, err := percolator.New(ctx, store)
	try(err)
	defer func() { try(restored.Close(ctx)) }()
	try(restored.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, state)
		fmt.Printf("%d cell, the order was %s\n", result.Cells, v)
		return err
	}))
	// Output: 1 cell, the order was placed
}
