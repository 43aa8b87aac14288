package once

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// trouble is a codec that fails, or panics, while it has a reason.
type trouble struct {
	typed.Number[int]
	encoding, decoding error
	panics             bool
}

func (c *trouble) fail(err error) error {
	if err != nil && c.panics {
		panic(err)
	}
	return err
}

func (c *trouble) Encode(ctx context.Context, cell percolator.Cell, n int) ([]byte, error) {
	if err := c.fail(c.encoding); err != nil {
		return nil, err
	}
	return c.Number.Encode(ctx, cell, n)
}

func (c *trouble) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (int, error) {
	if err := c.fail(c.decoding); err != nil {
		return 0, err
	}
	return c.Number.Decode(ctx, cell, stored)
}

// TestCodecFails has a codec that fails or panics for a while. What could not be encoded was not done, and an answer that cannot be decoded is neither given nor made again.
func TestCodecFails(t *testing.T) {
	t.Parallel()
	away := errors.New("the keys are away")
	newer := fmt.Errorf("newer: %w", typed.ErrVersion)
	for _, why := range []error{away, newer} {
		for _, panics := range []bool{false, true} {
			ctx, db := t.Context(), percolatetest.Open(t)
			codec := &trouble{panics: panics}
			k, err := New(db, "once", codec, Options{Keep: time.Hour})
			require.NoError(t, err)
			fails := func(what func() error) {
				t.Helper()
				if panics {
					require.PanicsWithValue(t, why, func() { _ = what() })
					return
				}
				require.ErrorIs(t, what(), why)
			}
			do := func() error { _, _, err := k.Do(ctx, "a", count); return err }
			finish := func(c *Claim[int]) func() error {
				return func() error {
					return db.Update(ctx, func(tx *percolator.Txn) error {
						n, err := count(ctx, tx)
						if err != nil {
							return err
						}
						return c.Finish(ctx, tx, n)
					})
				}
			}
			c, _, err := k.Claim(ctx, "b", time.Hour)
			require.NoError(t, err)

			codec.encoding = why
			fails(do)
			fails(finish(c))
			require.Zero(t, counted(t, db), "what it does for the key is not done either")
			codec.encoding = nil
			require.NoError(t, do())
			require.NoError(t, finish(c)(), "the claim is there still")
			require.Equal(t, 2, counted(t, db))

			codec.decoding = why
			fails(do)
			fails(func() error { _, _, err := k.Claim(ctx, "a", time.Hour); return err })
			codec.decoding = nil
			answer, first, err := k.Do(ctx, "a", count)
			require.NoError(t, err)
			require.False(t, first)
			require.Equal(t, 1, answer)
			require.Equal(t, 2, counted(t, db))
		}
	}
}

// TestFunctionThatPanics has a function that panics, and one that calls for its own key.
func TestFunctionThatPanics(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	k := numbers(t, db)
	require.PanicsWithValue(t, "no", func() {
		_, _, _ = k.Do(ctx, "a", func(ctx context.Context, tx *percolator.Txn) (int, error) {
			_, err := count(ctx, tx)
			require.NoError(t, err)
			panic("no")
		})
	})
	require.Zero(t, counted(t, db))
	answer, first, err := k.Do(ctx, "a", count)
	require.NoError(t, err)
	require.True(t, first, "the key is not taken")
	require.Equal(t, 1, answer)

	answer, first, err = k.Do(ctx, "b", func(ctx context.Context, tx *percolator.Txn) (int, error) {
		if _, _, err := k.Do(ctx, "b", count); err != nil {
			return 0, err
		}
		return count(ctx, tx)
	})
	require.NoError(t, err)
	require.False(t, first, "the inner one was first")
	require.Equal(t, 2, answer)
	require.Equal(t, 2, counted(t, db))
}

// Callers that have forgotten their keys do not share an answer: the empty key is refused.
func TestEmptyKey(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	k, err := New(db, "orders", typed.Number[int]{}, Options{Keep: time.Hour})
	require.NoError(t, err)
	f := func(context.Context, *percolator.Txn) (int, error) {
		t.Error("it was called")
		return 1, nil
	}
	_, _, err = k.Do(ctx, "", f)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	claim, _, err := k.Claim(ctx, "", time.Minute)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	require.Nil(t, claim)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		_, _, err := k.Within(ctx, tx, "", f)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		return nil
	}))
}
