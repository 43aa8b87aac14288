package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestScheduleOfTheHowTo makes the mistake that docs/howto/testing.md tells of, and compares
// what Explore says of it.
func TestScheduleOfTheHowTo(t *testing.T) {
	t.Parallel()
	text := percolator.Cell{Table: "note", Row: "1", Column: "text"}
	words := percolator.Cell{Table: "note", Row: "1", Column: "words"}
	get := func(ctx context.Context, tx *percolator.Txn) (string, error) {
		note, err := tx.Get(ctx, text)
		if errors.Is(err, percolator.ErrNotFound) {
			err = nil
		}
		return string(note), err
	}
	appendWord := func(ctx context.Context, db *percolator.DB) error {
		var note string
		err := db.View(ctx, func(tx *percolator.Txn) (err error) {
			note, err = get(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
		return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(text, []byte(note+"word ")) })
	}
	r := explore(t, Program{
		Clients: []Client{{Name: "ann", Run: appendWord}, {Name: "bob", Run: appendWord}},
		Observers: []percolator.Observer{{Name: "count", Table: "note", Column: "text", Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error {
			note, err := get(ctx, tx)
			if err != nil {
				return err
			}
			return set(tx, words, len(strings.Fields(note)))
		}}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			n, err := number(ctx, tx, words)
			if err == nil && n != 2 {
				err = fmt.Errorf("%d words were counted", n)
			}
			return err
		},
		Faults: Faults{Conflicts: 1},
	})
	require.NotNil(t, r.Violation)
	page, err := os.ReadFile("../docs/howto/testing.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```text\n")
	require.True(t, found)
	block, _, _ := strings.Cut(rest, "```")
	require.Equal(t, block, r.Violation.Error())
}
