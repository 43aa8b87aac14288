package howto

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// number decodes a counter; a cell without a value counts 0.
func number(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (int, error) {
	value, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(value))
}

func setNumber(tx *percolator.Txn, c percolator.Cell, n int) error {
	return tx.Set(c, strconv.AppendInt(nil, int64(n), 10))
}

func text(id string) percolator.Cell {
	return percolator.Cell{Table: "note", Row: id, Column: "text"}
}

func words(id string) percolator.Cell {
	return percolator.Cell{Table: "note", Row: id, Column: "words"}
}

// countWords is the observer that the tests are about.
func countWords(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
	note, err := tx.Get(ctx, changed)
	if errors.Is(err, percolator.ErrNotFound) {
		return tx.Delete(words(changed.Row))
	}
	if err != nil {
		return err
	}
	return setNumber(tx, words(changed.Row), len(strings.Fields(string(note))))
}

func TestWordsAreCounted(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(text("1"), []byte("to be or not to be"))
	}))

	// Everything that follows from the note is done afterwards.
	percolatetest.RunUntilIdle(t, db, percolator.Observer{Name: "count", Table: "note", Column: "text", Func: countWords})

	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n, err := number(ctx, tx, words("1"))
		require.Equal(t, 6, n)
		return err
	}))
}

// appendWord appends a word to a note.
func appendWord(ctx context.Context, db *percolator.DB) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		note, err := tx.Get(ctx, text("1"))
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		return tx.Set(text("1"), append(note, "word "...))
	})
}

// edits are two clients that append to the same note, beside the observer that counts its words.
var edits = percolatetest.Program{
	Clients:   []percolatetest.Client{{Name: "ann", Run: appendWord}, {Name: "bob", Run: appendWord}},
	Observers: []percolator.Observer{{Name: "count", Table: "note", Column: "text", Func: countWords}},
	Finally: func(ctx context.Context, tx *percolator.Txn) error {
		n, err := number(ctx, tx, words("1"))
		if err == nil && n != 2 {
			err = fmt.Errorf("%d words were counted", n)
		}
		return err
	},
	Faults: percolatetest.Faults{Conflicts: 1},
}

func TestEdits(t *testing.T) {
	t.Parallel()
	percolatetest.Explore(t, edits)
}

// openTest gives a test of another page a database in memory.
func openTest(t *testing.T) *percolator.DB {
	t.Helper()
	return percolatetest.Open(t)
}

// startWorker runs observers until the test ends, for tests of other pages.
func startWorker(t *testing.T, db *percolator.DB, observers ...percolator.Observer) *percolator.Worker {
	t.Helper()
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	for _, o := range observers {
		require.NoError(t, w.Observe(o))
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	return w
}

func TestFunctionWithoutAWorker(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		if err := tx.Set(text("1"), []byte("not now")); err != nil {
			return err
		}
		return countWords(ctx, tx, text("1")) // it sees what the transaction has written
	}))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n, err := number(ctx, tx, words("1"))
		require.Equal(t, 2, n)
		return err
	}))
}

func TestConflict(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	first, err := db.Begin(ctx)
	require.NoError(t, err)
	second, err := db.Begin(ctx)
	require.NoError(t, err)
	for _, tx := range []*percolator.Txn{first, second} {
		n, err := number(ctx, tx, words("1"))
		require.NoError(t, err)
		require.NoError(t, setNumber(tx, words("1"), n+1))
	}
	require.NoError(t, first.Commit(ctx))
	require.ErrorIs(t, second.Commit(ctx), percolator.ErrConflict)
}
