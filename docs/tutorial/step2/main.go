// Command notes keeps notes, in a directory.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// text is the cell that holds the text of a note.
func text(id string) percolator.Cell {
	return percolator.Cell{Table: "note", Row: id, Column: "text"}
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) (err error) {
	db, err := percolator.Open(ctx, "pebble:notes.db",
		percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }()

	switch {
	case len(args) == 3 && args[0] == "add":
		return add(ctx, db, args[1], args[2])
	case len(args) == 1 && args[0] == "list":
		return list(ctx, db)
	case len(args) == 2 && args[0] == "list":
		ago, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return list(ctx, db, percolator.WithAsOf(time.Now().Add(-ago)))
	}
	return errors.New("usage: notes add ID TEXT | notes list [AGO]")
}

func add(ctx context.Context, db *percolator.DB, id, words string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(text(id), []byte(words))
	})
}

func list(ctx context.Context, db *percolator.DB, opts ...percolator.TxnOption) error {
	return db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "note"}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s\n", row.Key, row.Columns["text"])
		}
		return nil
	}, opts...)
}
