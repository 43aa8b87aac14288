package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file without an end, or a very long one, fills no memory.
func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), "long.yaml")
	require.NoError(t, os.WriteFile(long, []byte(strings.Repeat("#", longestFile+1)), 0o600))
	files := []string{long}
	if _, err := os.Stat("/dev/zero"); err == nil {
		files = append(files, "/dev/zero")
	}
	for _, file := range files {
		_, err := Load(file)
		require.ErrorIs(t, err, ErrInvalid, file)
		require.ErrorContains(t, err, "longer than")
	}
	_, err := Load(t.TempDir())
	require.ErrorContains(t, err, "directory")
}

// Without a source of variables none is set.
func TestParseWithoutVariables(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("stores: {main: {url: 'memory:', password: '${X}'}}"), nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "X is not set")
}
