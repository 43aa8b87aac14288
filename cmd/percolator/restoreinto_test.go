package main

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
)

// TestRestoreLeavesAnOlderLayout: a store of an older layout that holds data is refused by restore as it is: only migrate run migrates one.
func TestRestoreLeavesAnOlderLayout(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "links.backup")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", file).status)
	url := someLinks(t)
	version := func(set bool) uint64 {
		db, err := engine.Open(strings.TrimPrefix(url, "pebble:"), &engine.Options{FormatMajorVersion: engine.FormatValueSeparation, Logger: silent{t}})
		require.NoError(t, err)
		key := append([]byte{1}, "format"...)
		if set {
			require.NoError(t, db.Set(key, binary.BigEndian.AppendUint64(nil, 1), engine.Sync))
		}
		v, c, err := db.Get(key)
		require.NoError(t, err)
		n := binary.BigEndian.Uint64(v)
		require.NoError(t, c.Close())
		require.NoError(t, db.Close())
		return n
	}
	require.EqualValues(t, 1, version(true))
	a := ask(t, url, "restore", file)
	require.Equal(t, exitFormat, a.status, a.err)
	require.Contains(t, a.err, "percolator migrate run")
	require.EqualValues(t, 1, version(false), "it was migrated")
}

// TestRestoreIntoMemory: what would be gone with the process is not said to be restored.
func TestRestoreIntoMemory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "links.backup")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", file).status)
	a := ask(t, "memory:", "restore", file)
	require.Equal(t, exitUsage, a.status)
	require.Contains(t, a.err, "memory of this process")
	require.Empty(t, a.out)
	require.Equal(t, exitOK, ask(t, "memory:", "restore", "--check", file).status)
}
