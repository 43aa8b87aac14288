package combine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

func TestMain(m *testing.M) { everystore.Main(m) }

// counter is a Combiner of numbers, as another process has it: with slots of its own.
func counter(t testing.TB, db *percolator.DB) *Combiner[int] {
	t.Helper()
	c, err := New(db, "count", typed.Number[int]{}, Sum[int])
	require.NoError(t, err)
	return apart(c)
}

// apart gives a Combiner slots of its own.
func apart[T any](c *Combiner[T]) *Combiner[T] {
	c.slots = &slots{}
	return c
}

// eager makes every cell idle at once, and has every transaction that makes a cell look for others.
func eager[T any](c *Combiner[T], idle int) *Combiner[T] {
	c.freshFor, c.idleAfter, c.looksFor, c.idle = 0, 0, 1, idle
	return c
}

// get reads a value in a transaction of its own.
func get[T any](t testing.TB, c *Combiner[T], key string) T {
	t.Helper()
	var v T
	require.NoError(t, c.db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		v, err = c.Get(t.Context(), tx, key)
		return err
	}))
	return v
}

// add adds in a transaction of its own.
func add[T any](t testing.TB, c *Combiner[T], key string, delta T) {
	t.Helper()
	require.NoError(t, c.db.Update(t.Context(), func(tx *percolator.Txn) error { return c.Add(t.Context(), tx, key, delta) }))
}

// cells counts the cells of a value, its base included.
func cells[T any](t testing.TB, c *Combiner[T], key string) (n int) {
	t.Helper()
	require.NoError(t, c.db.View(t.Context(), func(tx *percolator.Txn) error {
		n = 0
		for _, err := range c.parts(t.Context(), tx, key) {
			if err != nil {
				return fmt.Errorf("counting: %w", err)
			}
			n++
		}
		return nil
	}))
	return n
}
