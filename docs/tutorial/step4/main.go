// Command notes keeps notes in Postgres, and counts in how many of them each word is.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	_ "github.com/percolate-go/percolate/backends/postgres"
	"github.com/percolate-go/percolate/percolator"
)

// text is the cell that holds the text of a note.
func text(id string) percolator.Cell {
	return percolator.Cell{Table: "note", Row: id, Column: "text"}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) (err error) {
	db, err := percolator.Open(ctx, os.Getenv("NOTES_STORE"))
	if err != nil {
		return err
	}
	// Close finishes commits that are under way, also after an interrupt.
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()

	switch {
	case len(args) == 1 && args[0] == "work":
		return work(ctx, db)
	case len(args) == 3 && args[0] == "add":
		return add(ctx, db, args[1], args[2])
	case len(args) == 1 && args[0] == "counts":
		return counts(ctx, db)
	}
	return errors.New("usage: notes work | notes add ID TEXT | notes counts")
}

// work runs the observers until the program is interrupted.
func work(ctx context.Context, db *percolator.DB) error {
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	if err := observe(w); err != nil {
		return err
	}
	return w.Run(ctx)
}

func add(ctx context.Context, db *percolator.DB, id, words string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(text(id), []byte(words))
	})
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
