package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBackupAndRestore takes a database from a store to another one by the commands, in a file that is refused when it is damaged.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	url, dir := someLinks(t), t.TempDir()
	file, into := filepath.Join(dir, "links.backup"), "pebble:"+filepath.Join(dir, "into")
	a := ask(t, url, "backup", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "is complete: 5 cells of 5 rows")
	require.Equal(t, exitUsage, ask(t, url, "backup", file).status, "the file is there")
	require.Equal(t, exitUsage, ask(t, url, "restore", file).status, "the store is not empty")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	bad := filepath.Join(dir, "bad")
	b[len(b)/2] ^= 4
	require.NoError(t, os.WriteFile(bad, b, 0o600))
	require.Equal(t, exitCorrupt, ask(t, into, "restore", bad).status)
	require.Equal(t, exitCorrupt, ask(t, into, "restore", "--check", bad).status)
	require.NoError(t, os.WriteFile(bad, b[:len(b)/3], 0o600))
	require.Contains(t, ask(t, into, "restore", bad).err, "not complete")
	require.NoError(t, os.WriteFile(bad, []byte("something else that is no backup at all"), 0o600))
	require.Equal(t, exitFormat, ask(t, into, "restore", bad).status)

	a = ask(t, "", "restore", "--check", "--json", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, `"cells": 5`)
	a = ask(t, into, "restore", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Equal(t, answer{out: "value of %00%FF%25\n"}, ask(t, into, "get", "links", "%00%FF%25", "to"))
	require.Equal(t, ask(t, url, "history", "links", "a", "to"), ask(t, into, "history", "links", "a", "to"))
}

// TestExportAndImport takes values through a file, and says how to go on after a bad line.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	url, dir := someLinks(t), t.TempDir()
	file := filepath.Join(dir, "links.csv")
	a := ask(t, url, "export", file)
	require.Equal(t, exitOK, a.status, a.err)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(b), "links,%00%FF%25,to,value of %00%FF%25\n")
	require.Equal(t, exitUsage, ask(t, url, "export", file).status, "the file is there")
	a = ask(t, url, "export", "-", "--table", "links")
	require.Contains(t, a.out, `{"table":"links","row":"empty","column":"to","value":"%"}`)

	into := someLinks(t)
	require.Equal(t, exitOK, ask(t, into, "delete", "links", "c d", "to").status)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(b), "links,b,", "links,%b,", 1)), 0o600))
	a = ask(t, into, "import", file)
	require.Equal(t, exitUsage, a.status, a.err)
	require.Contains(t, a.err, "line 4")
	require.Equal(t, exitNotFound, ask(t, into, "get", "links", "c d", "to").status, "a part of the batch was written")
	a = ask(t, into, "import", "--after", "4", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Equal(t, answer{out: "value of c d\n"}, ask(t, into, "get", "links", "c d", "to"))
}
