// Command notes keeps notes, in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// text is the cell that holds the text of a note.
func text(id string) percolator.Cell {
	return percolator.Cell{Table: "note", Row: id, Column: "text"}
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	db, err := percolator.Open(ctx, "memory:")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }()

	// Both notes are written, or neither.
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		if err := tx.Set(text("1"), []byte("to be or not to be")); err != nil {
			return err
		}
		return tx.Set(text("2"), []byte("not now"))
	})
	if err != nil {
		return err
	}

	// Everything that a transaction reads is of one moment.
	return db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "note"}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s\n", row.Key, row.Columns["text"])
		}
		return nil
	})
}
