// Command notes keeps notes, and counts in how many of them each word is.
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
		return errors.Join(add(ctx, db, args[1], args[2]), catchUp(ctx, db))
	case len(args) == 1 && args[0] == "counts":
		return counts(ctx, db)
	}
	return errors.New("usage: notes add ID TEXT | notes counts")
}

func add(ctx context.Context, db *percolator.DB, id, words string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(text(id), []byte(words))
	})
}

// catchUp runs the observers until there is nothing left for them to do.
func catchUp(ctx context.Context, db *percolator.DB) error {
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	if err := observe(w); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- w.Run(running) }()
	err := w.WaitIdle(ctx)
	stop()
	return errors.Join(err, <-ended)
}

func counts(ctx context.Context, db *percolator.DB) error {
	return db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "count"}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s\n", row.Key, row.Columns["notes"])
		}
		return nil
	})
}
