package config_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
)

func try(err error) {
	if err != nil {
		panic(err)
	}
}

// The program names no backend: the file does, and an import makes it known.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	try(err)
	defer func() { try(os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "percolator.yaml")
	try(os.WriteFile(file, fmt.Appendf(nil, `
stores:
  main:
    url: "pebble:%s"
settings: {retention: 48h}
`, filepath.Join(dir, "data")), 0o600))

	db, err := config.Open(ctx, file)
	try(err)
	defer func() { try(db.Close(ctx)) }()
	greeting := percolator.Cell{Table: "page", Row: "home", Column: "title"}
	try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(greeting, []byte("welcome")) }))
	try(db.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, greeting)
		fmt.Printf("%s, kept for %v\n", v, db.Settings().Retention)
		return err
	}))
	// Output: welcome, kept for 48h0m0s
}
