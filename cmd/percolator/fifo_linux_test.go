package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
)

// TestFIFOThatHangs imports from a FIFO that nobody has opened to write, and from one that somebody has opened and writes nothing to.
func TestFIFOThatHangs(t *testing.T) {
	t.Parallel()
	opened, path := inMemory(t), filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	fails := func() {
		t.Helper()
		var out, err strings.Builder
		status := run(t.Context(), []string{"import", path, "--timeout", "50ms"}, strings.NewReader(""), &out, &err, opened)
		require.Equal(t, exitUnavailable, status, err.String())
	}
	fails()
	w, err := os.OpenFile(path, os.O_RDWR, 0) // which waits for nobody
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, w.Close()) })
	fails()
}
