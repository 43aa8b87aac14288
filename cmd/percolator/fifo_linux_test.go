package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
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

// TestRestoreFromAFIFO: a backup is read more than once, so a FIFO is refused, and not waited for.
func TestRestoreFromAFIFO(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	for _, args := range [][]string{{"restore", path}, {"restore", "--check", path}, {"restore", filepath.Dir(path)}} {
		var out, err strings.Builder
		status := run(t.Context(), args, strings.NewReader(""), &out, &err, inMemory(t))
		require.Equal(t, exitUsage, status, err.String())
		require.Contains(t, err.String(), "no regular file", args)
	}
}

// TestBackupToAFIFO: neither a FIFO nor a folder has room for a backup. What is there is named and stays.
func TestBackupToAFIFO(t *testing.T) {
	t.Parallel()
	for what, plant := range map[string]func(path string) error{
		"FIFO":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(t.TempDir(), "links.backup")
		require.NoError(t, plant(path+backup.Incomplete))
		var out, err strings.Builder
		status := run(t.Context(), []string{"backup", path}, strings.NewReader(""), &out, &err, inMemory(t))
		require.Equal(t, exitUsage, status, "%s: %s", what, err.String())
		require.Contains(t, err.String(), path+backup.Incomplete+" is no regular file", what)
		_, serr := os.Lstat(path + backup.Incomplete)
		require.NoError(t, serr, what)
	}
}

// TestImportFromAFolder: a folder has no lines.
func TestImportFromAFolder(t *testing.T) {
	t.Parallel()
	var out, err strings.Builder
	status := run(t.Context(), []string{"import", t.TempDir()}, strings.NewReader(""), &out, &err, inMemory(t))
	require.Equal(t, exitUsage, status, err.String())
	require.Contains(t, err.String(), "is a folder")
}

// TestConfigurationFromAPipe: a command that opens the store more than once reads its configuration once, as from <(sops -d FILE).
func TestConfigurationFromAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "pebble:" + filepath.Join(dir, "data")
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	for _, args := range []string{"set --new t r c v", "get t r c", "migrate check", "gc status"} {
		path := filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(path, 0o600))
		wrote := make(chan error, 1)
		go func() { wrote <- os.WriteFile(path, []byte("stores: {main: {url: \""+url+"\"}}\n"), 0) }()
		var out, err strings.Builder
		status := run(t.Context(), append(strings.Fields(args), "--config", path, "--timeout", "20s"), strings.NewReader(""), &out, &err, nil)
		require.Equal(t, exitOK, status, "%s: %s", args, err.String())
		require.NoError(t, <-wrote)
	}
}
