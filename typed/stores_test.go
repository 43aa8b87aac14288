package typed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

func TestMain(m *testing.M) { everystore.Main(m) }

// The codecs of an old program, and of a new one that has begun to write another version.
var (
	oldNumber = typed.Column[int]{Table: "number", Name: "n", Codec: typed.Versions[int]{Current: 1, Codecs: map[byte]typed.Codec[int]{1: typed.Number[int]{}}}}
	newNumber = typed.Column[int]{Table: "number", Name: "n", Codec: typed.Versions[int]{Current: 2, Codecs: map[byte]typed.Codec[int]{1: typed.Number[int]{}, 2: typed.JSON[int]{}}}}
)

// increment adds one to the number of a row, and notes that in a row of its own.
func increment(ctx context.Context, db *percolator.DB, of typed.Column[int], row, mark string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		n, err := of.Get(ctx, tx, row)
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		return errors.Join(of.Set(ctx, tx, row, n+1), tx.Set(percolator.Cell{Table: "mark", Row: mark, Column: "c"}, nil))
	})
}

// overwrite is increment without a look: only Set tells that a newer program has written the value.
func overwrite(ctx context.Context, db *percolator.DB, row string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error { return oldNumber.Set(ctx, tx, row, 0) })
}

// TestOldAndNewProgram has an old program and a new one in every order, where a commit may meet a conflict or be undetermined, and a process may die. What the new one has
// written, the old one neither misreads nor replaces.
func TestOldAndNewProgram(t *testing.T) {
	t.Parallel()
	client := func(name string, f func(ctx context.Context, db *percolator.DB) error) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			if err := f(ctx, db); err != nil && !errors.Is(err, typed.ErrVersion) {
				return err
			}
			return nil
		}}
	}
	check := func(ctx context.Context, tx *percolator.Txn) error {
		marks := map[string]bool{}
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "mark"}) {
			if err != nil {
				return err
			}
			marks[row.Key] = true
		}
		n, err := newNumber.Get(ctx, tx, "a")
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		if n != len(marks) {
			return fmt.Errorf("the number is %d after %v", n, marks)
		}
		if _, err := oldNumber.Get(ctx, tx, "a"); marks["new"] != errors.Is(err, typed.ErrVersion) {
			return fmt.Errorf("after %v the old program reads: %w", marks, err)
		}
		return nil
	}
	percolatetest.Explore(t, percolatetest.Program{
		Clients: []percolatetest.Client{
			client("old", func(ctx context.Context, db *percolator.DB) error { return increment(ctx, db, oldNumber, "a", "old") }),
			client("new", func(ctx context.Context, db *percolator.DB) error { return increment(ctx, db, newNumber, "a", "new") }),
		},
		Always: check, Finally: check,
		Faults: percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
	})
}

// TestEveryStore has an old program and a new one at once on each backend: they count together, until the new one begins to write its version, which the old one leaves alone.
func TestEveryStore(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		const each = 20
		prepared := newNumber // it can read the new version, and writes the old one
		prepared.Codec = typed.Versions[int]{Current: 1, Codecs: newNumber.Codec.(typed.Versions[int]).Codecs}
		var group errgroup.Group
		old := 0
		group.Go(func() error {
			for ; ; old++ {
				switch err := increment(ctx, one, oldNumber, "a", fmt.Sprint("old", old)); {
				case errors.Is(err, typed.ErrVersion):
					return nil
				case err != nil:
					return err
				}
			}
		})
		group.Go(func() error {
			for i := range 2 * each {
				of := prepared
				if i >= each {
					of = newNumber
				}
				if err := increment(ctx, two, of, "a", fmt.Sprint("new", i)); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, group.Wait())
		require.ErrorIs(t, overwrite(ctx, one, "a"), typed.ErrVersion)
		require.NoError(t, two.View(ctx, func(tx *percolator.Txn) error {
			n, err := newNumber.Get(ctx, tx, "a")
			require.Equal(t, 2*each+old, n)
			return err
		}))
	})
}
