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

// What a test held is free while the next one runs, though both are parallel.
func TestFreedAtTheEnd(t *testing.T) {
	var freed atomic.Bool
	over := make(chan struct{})
	t.Run("both", func(t *testing.T) {
		t.Run("holds much", func(t *testing.T) {
			t.Parallel()
			held := new([1 << 20]byte)
			runtime.AddCleanup(held, func(f *atomic.Bool) { f.Store(true) }, &freed)
			t.Cleanup(func() { close(over) })
			atend.Do(t, func() { held[0]++ })
		})
		t.Run("runs on", func(t *testing.T) {
			t.Parallel()
			<-over
			require.Eventually(t, func() bool { runtime.GC(); return freed.Load() }, time.Minute, time.Millisecond)
		})
	})
}
