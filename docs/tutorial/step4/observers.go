package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/percolate-go/percolate/percolator"
)

// observe tells w what to do when a note changes, and when a word does.
func observe(w *percolator.Worker) error {
	return errors.Join(
		w.Observe(percolator.Observer{Name: "split", Table: "note", Column: "text", Func: split}),
		w.Observe(percolator.Observer{Name: "count", Table: "word", Column: "in", Func: count, Isolation: percolator.Serializable}),
	)
}

// in is the cell that says that a note has a word.
func in(word, id string) percolator.Cell {
	return percolator.Cell{Table: "word", Row: word + "/" + id, Column: "in"}
}

// split runs for each note that changed. It writes a row for each of its words, and
// deletes those of the words that the note had before.
func split(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
	before := percolator.Cell{Table: "note", Row: changed.Row, Column: "split"}
	cells, err := tx.GetMany(ctx, changed, before)
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(string(cells[before])) {
		if err := tx.Delete(in(word, changed.Row)); err != nil {
			return err
		}
	}
	for _, word := range strings.Fields(string(cells[changed])) {
		if err := tx.Set(in(word, changed.Row), nil); err != nil {
			return err
		}
	}
	return tx.Set(before, cells[changed])
}

// count runs for each row that split wrote or deleted. It counts the notes that have
// the word.
func count(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
	word, _, _ := strings.Cut(changed.Row, "/")
	notes := 0
	for _, err := range tx.Scan(ctx, percolator.Range{Table: "word", From: word + "/", To: percolator.PrefixEnd(word + "/")}) {
		if err != nil {
			return err
		}
		notes++
	}
	return tx.Set(percolator.Cell{Table: "count", Row: word, Column: "notes"}, []byte(strconv.Itoa(notes)))
}
