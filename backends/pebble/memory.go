package pebble

import (
	"bytes"
	"math"
	"os"
	"runtime/debug"
	"strconv"
)

const (
	// cacheShare is the part of the memory, as a divisor, that caches of a size which
	// nobody chose have: once for blocks and at most once more for columns.
	cacheShare = 16
	// leastCache is the default where the memory is small or not known, and in memory,
	// where blocks have no disk behind them.
	leastCache = 64 << 20
	// mostCache leaves the memory of a large machine to the program around the store.
	mostCache = 1 << 30
)

// defaultCache is the size of the caches of a store on disk with so much memory.
func defaultCache(memory int64) int64 {
	return min(max(memory/cacheShare, leastCache), mostCache)
}

// usableMemory returns how many bytes of memory this process may use: the least of
// what the machine has, what its container is allowed, and the limit that the Go
// runtime was told (GOMEMLIMIT). It is 0 where none of them is known.
func usableMemory() int64 {
	least := debug.SetMemoryLimit(-1) // which asks and changes nothing
	for _, f := range []struct {
		path  string
		parse func([]byte) int64
	}{
		{"/proc/meminfo", parseMeminfo},
		{"/sys/fs/cgroup/memory.max", parseLimit},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", parseLimit},
	} {
		// A file that is not there is of another system, or of another kind of group.
		if b, err := os.ReadFile(f.path); err == nil {
			if n := f.parse(b); n > 0 {
				least = min(least, n)
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// parseMeminfo reads the total of /proc/meminfo, 0 if it has none.
func parseMeminfo(b []byte) int64 {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemTotal:")); ok {
			kB, ok := bytes.CutSuffix(bytes.TrimSpace(rest), []byte(" kB"))
			if n := parseLimit(kB); ok && n <= math.MaxInt64>>10 {
				return n << 10
			}
			return 0
		}
	}
	return 0
}

// parseLimit reads the number in a file of a control group, 0 if there is none:
// "max" stands for no limit.
func parseLimit(b []byte) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
