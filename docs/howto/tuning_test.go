package howto

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// load writes notes in transactions of a hundred, sixteen at a time.
func load(ctx context.Context, db *percolator.DB, notes map[string]string) error {
	var parts [][]string
	for id := range notes {
		if n := len(parts); n == 0 || len(parts[n-1]) == 100 {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], id)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, part := range parts {
		group.Go(func() error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				for _, id := range part {
					if err := tx.Set(text(id), []byte(notes[id])); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return group.Wait()
}

const shards = 16

func shard(name string, n int) percolator.Cell {
	return percolator.Cell{Table: "counter", Row: fmt.Sprintf("%s/%02d", name, n), Column: "n"}
}

// increment adds to one of several cells, so that few writers meet.
func increment(ctx context.Context, tx *percolator.Txn, name string) error {
	c := shard(name, rand.IntN(shards))
	n, err := number(ctx, tx, c)
	if err != nil {
		return err
	}
	return setNumber(tx, c, n+1)
}

// total reads all of them, at one snapshot.
func total(ctx context.Context, tx *percolator.Txn, name string) (sum int, err error) {
	for n := range shards {
		v, err := number(ctx, tx, shard(name, n))
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func TestLoadAndCount(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	notes := map[string]string{}
	for i := range 1000 {
		notes[fmt.Sprint(i)] = "a note"
	}
	require.NoError(t, load(ctx, db, notes))
	require.Equal(t, "a note", get(t, db, "999"))

	var group errgroup.Group
	for range 50 {
		group.Go(func() error {
			return db.Update(ctx, func(tx *percolator.Txn) error { return increment(ctx, tx, "visits") })
		})
	}
	require.NoError(t, group.Wait())
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n, err := total(ctx, tx, "visits")
		require.Equal(t, 50, n)
		return err
	}))
}
