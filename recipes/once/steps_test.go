package once

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestFaultAtEachStep has a process that does a key, and dies or loses a reply at one of its steps; and another one that does the same key then. It is done once.
func TestFaultAtEachStep(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	second := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	others, want := numbers(t, second), 0
	do := func(ctx context.Context, k *Keys[int], key string) error {
		_, _, err := k.Do(ctx, key, count)
		return err
	}
	claim := func(ctx context.Context, k *Keys[int], key string) error {
		c, _, err := k.Claim(ctx, key, everystore.FaultLease)
		if err != nil || c == nil {
			return err
		}
		return k.db.Update(ctx, func(tx *percolator.Txn) error {
			n, err := count(ctx, tx)
			if err != nil {
				return err
			}
			return c.Finish(ctx, tx, n)
		})
	}
	for way, f := range map[string]func(ctx context.Context, k *Keys[int], key string) error{"do": do, "claim": claim} {
		everystore.EachFault(t, inner, func(name string, db *percolator.DB) {
			ctx := t.Context()
			k := numbers(t, db)
			k.lookEvery = 1
			first := f(ctx, k, way+name)
			want++
			if first == nil {
				require.Equal(t, want, counted(t, second), name)
			}
			require.Eventually(t, func() bool {
				err := f(ctx, others, way+name)
				if err != nil && !errors.Is(err, ErrClaimed) {
					require.NoError(t, err, name)
				}
				return err == nil
			}, time.Minute, time.Millisecond, "%s: the key stays claimed", name)
			require.Equal(t, want, counted(t, second), "%s: %v", name, first)
		})
	}
}
