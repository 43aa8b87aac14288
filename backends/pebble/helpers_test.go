package pebble

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitFor is how long a test waits for a condition before it gives up, and tick how
// often it looks.
const (
	waitFor = time.Minute
	tick    = time.Millisecond
)

// receive returns the next value of a channel. It fails the test if none comes in time, or if the goroutine that would send it
// says by ended, which may be nil, that it has ended. A bare receive would hang then.
func receive[T any](t testing.TB, c <-chan T, ended <-chan error) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case err := <-ended:
		require.FailNow(t, "it has ended before", "%v", err)
	case <-time.After(waitFor):
		require.FailNow(t, "nothing came")
	}
	return v
}
