package atend_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
)

func TestDo(t *testing.T) {
	var order []string
	t.Run("a test", func(t *testing.T) {
		atend.Do(t, func() { order = append(order, "first") })
		atend.Do(t, func() { order = append(order, "second") })
	})
	require.Equal(t, []string{"second", "first"}, order, "as Cleanup calls them")
}

// What a test held is free once it has ended, though package testing keeps the test itself.
func TestFreedAtTheEnd(t *testing.T) {
	t.Parallel()
	var freed atomic.Bool
	var kept *testing.T // as a parallel test is, until all have ended
	t.Run("holds much", func(t *testing.T) {
		kept = t
		held := new([1 << 20]byte)
		runtime.AddCleanup(held, func(f *atomic.Bool) { f.Store(true) }, &freed)
		atend.Do(t, func() { held[0]++ })
	})
	require.Eventually(t, func() bool { runtime.GC(); return freed.Load() }, time.Minute, time.Millisecond)
	runtime.KeepAlive(kept)
}
