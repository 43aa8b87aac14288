package howto

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/internal/testserver"
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

// openTest gives a test a database in memory.
func openTest(t *testing.T) *percolator.DB {
	t.Helper()
	db, err := percolator.Open(t.Context(), "memory:", percolator.WithSettings(percolator.Settings{
		CatalogLease: 50 * time.Millisecond, // how long a new observer waits; the default is 10 s
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}

// startWorker runs observers until the test ends.
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

func TestWordsAreCounted(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	w := startWorker(t, db, percolator.Observer{Name: "count", Table: "note", Column: "text", Func: countWords})

	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(text("1"), []byte("to be or not to be"))
	}))
	require.NoError(t, w.WaitIdle(ctx)) // everything that follows from the note is done

	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n, err := number(ctx, tx, words("1"))
		require.Equal(t, 6, n)
		return err
	}))
}

func TestFunctionWithoutAWorker(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
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
	ctx, db := t.Context(), openTest(t)
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
