package contexts

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, Sleep(ctx, 0))
		require.NoError(t, Sleep(ctx, -1))
		require.Zero(t, time.Since(began))
		require.NoError(t, Sleep(ctx, time.Second))
		require.Equal(t, time.Second, time.Since(began))
		require.ErrorIs(t, Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
		require.ErrorIs(t, Sleep(ctx, 0), context.DeadlineExceeded)
	})
}

// late is a context that does not notice its own deadline.
type late struct{ context.Context }

func (late) Err() error { return nil }

func TestEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, Ended(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, Ended(ctx))
		time.Sleep(time.Minute)
		require.ErrorIs(t, Ended(late{ctx}), context.DeadlineExceeded)
		synctest.Wait() // until ctx has noticed, too
		cancel()
		require.ErrorIs(t, Ended(ctx), context.DeadlineExceeded)
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, Ended(ctx), context.Canceled)
	})
}
