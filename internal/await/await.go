// Package await lets tests wait for others without hanging when these fail.
package await

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for one value. The machine may be busy.
const patience = time.Minute

// Value returns the next value of a channel. It fails the test if none comes while the context lasts, or within a minute, or if the
// goroutine that would send it says by ended, which may be nil, that it has ended. A bare receive would hang then. Call it in the test's goroutine.
func Value[T any](ctx context.Context, t testing.TB, c <-chan T, ended <-chan error) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case err := <-ended:
		require.FailNow(t, "it has ended before", "%v", err)
	case <-ctx.Done():
		require.FailNow(t, "nothing came", "%v", ctx.Err())
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
	}
	return v
}

// Ready calls open until it fails no more with an error that is busy, for a minute at most, and returns what it gave. A store with short time
// limits may not answer in time at first on a busy machine. Call it in the test's goroutine.
func Ready[T any](t testing.TB, busy error, open func() (T, error)) T {
	t.Helper()
	for began := time.Now(); ; {
		v, err := open()
		if err == nil || !errors.Is(err, busy) || time.Since(began) > patience {
			require.NoError(t, err)
			return v
		}
		time.Sleep(10 * time.Millisecond)
	}
}
