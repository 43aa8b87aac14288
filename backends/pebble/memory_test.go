package pebble

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaultCacheIsAShareWithLimits(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{
		0:             leastCache,
		256 << 20:     leastCache,
		1 << 30:       leastCache,
		4 << 30:       256 << 20,
		16 << 30:      mostCache,
		1 << 40:       mostCache,
		math.MaxInt64: mostCache,
	} {
		require.Equal(t, want, defaultCache(memory), "with %d bytes", memory)
	}
}

func TestMemoryIsReadFromTheSystem(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(2048<<10), parseMeminfo([]byte("MemTotal:           2048 kB\nMemFree:  1 kB\n")))
	require.Equal(t, int64(7<<10), parseMeminfo([]byte("Other: 1 kB\nMemTotal:7 kB")))
	for _, s := range []string{"", "MemFree: 1 kB\n", "MemTotal:\n", "MemTotal: 12\n", "MemTotal: x kB\n", "MemTotal: -1 kB\n", "MemTotal: 9223372036854775807 kB\n"} {
		require.Zero(t, parseMeminfo([]byte(s)), s)
	}
	require.Equal(t, int64(4096), parseLimit([]byte("4096\n")))
	for _, s := range []string{"", "max\n", "-1\n", "1e3", strings.Repeat("9", 30)} {
		require.Zero(t, parseLimit([]byte(s)), s)
	}
	require.GreaterOrEqual(t, usableMemory(), int64(0))
}

// TestCacheSizeThatIsAskedForIsTaken: a setting of the user's wins over the share
// of the memory, and a store in memory takes little.
func TestCacheSizeThatIsAskedForIsTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts Options
		want int64
	}{
		{Options{Path: t.TempDir()}, defaultCache(usableMemory())},
		{Options{Path: t.TempDir(), CacheSize: 1 << 20}, 1 << 20},
		{Options{Path: t.TempDir(), CacheSize: 2 * mostCache}, 2 * mostCache},
		{Options{}, leastCache},
		{Options{CacheSize: 128 << 20}, 128 << 20},
	} {
		s, err := Open(t.Context(), c.opts)
		require.NoError(t, err)
		require.Equal(t, cacheBuckets(c.want), s.perStripe, "%+v", c.opts)
		require.NoError(t, s.Close())
	}
}
