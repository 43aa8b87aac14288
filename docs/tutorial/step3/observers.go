package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/percolate-go/percolate/percolator"
)

// observe tells w what to do when a note changes, and when a word does.
func observe(w *percolator.Worker) error {
	return errors.Join(
		w.Observe(percolator.Observer{Name: "split", Table: "note", Column: "text", OnChange: split}),
		w.Observe(percolator.Observer{Name: "count", Table: "word", Column: "in", OnChange: count}),
	)
}

// in is the cell that says that a note has a word.
func in(word, id string) percolator.Cell {
	return percolator.Cell{Table: "word", Row: word + "/" + id, Column: "in"}
}

// wordsOf cuts a text at spaces, and at each /, which ends the word in the name of a row.
func wordsOf(text []byte) []string {
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '/' || unicode.IsSpace(r) })
}

// split runs for each note that changed. It deletes the rows of the words that the note
// had, and writes a row for each of those that it has now.
func split(_ context.Context, tx *percolator.Txn, note percolator.Change) error {
	for _, word := range wordsOf(note.Old) {
		if err := tx.Delete(in(word, note.Cell.Row)); err != nil {
			return err
		}
	}
	for _, word := range wordsOf(note.New) {
		if err := tx.Set(in(word, note.Cell.Row), nil); err != nil {
			return err
		}
	}
	return nil
}

// count runs for each row that split wrote or deleted. It keeps the number of notes that
// have the word.
func count(ctx context.Context, tx *percolator.Txn, row percolator.Change) error {
	if row.OldFound == row.NewFound {
		return nil // the note had the word, and has it still
	}
	word, _, _ := strings.Cut(row.Cell.Row, "/")
	number := percolator.Cell{Table: "count", Row: word, Column: "notes"}
	notes := 0
	value, err := tx.Get(ctx, number)
	switch {
	case errors.Is(err, percolator.ErrNotFound):
	case err != nil:
		return err
	default:
		if notes, err = strconv.Atoi(string(value)); err != nil {
			return err
		}
	}
	if row.NewFound {
		notes++
	} else {
		notes--
	}
	return tx.Set(number, []byte(strconv.Itoa(notes)))
}
