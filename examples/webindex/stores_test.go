package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/all"
)

// TestPlainBuildHasNoBackend keeps the first "go run ./examples/webindex" quick.
func TestPlainBuildHasNoBackend(t *testing.T) {
	t.Parallel()
	deps := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, append(args, ".")...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	plain := deps()
	for _, heavy := range []string{"percolate/backends/", "cockroachdb/pebble", "redis/go-redis", "jackc/pgx", "tikv/client-go"} {
		require.NotContains(t, plain, heavy)
	}
	require.Contains(t, deps("-tags", storesTag), "percolate/backends/all")
	require.True(t, strings.HasSuffix(strings.TrimSpace(plain), modulePath), "the package has another path")
}

// TestRunWithStores puts a script in the place of the go command, so that nothing is
// compiled. It is not parallel, because it sets the environment.
func TestRunWithStores(t *testing.T) {
	dir := t.TempDir()
	script := func(name, body string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o700))
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	t.Setenv("HOME", dir)

	script("program", "echo ran \"$@\"; echo trouble >&2; exit 3\n")
	script("go", "echo \"$@\" >"+filepath.Join(dir, "asked")+"; cp "+filepath.Join(dir, "program")+" \"$6\"\n")
	var out, errs bytes.Buffer
	require.Equal(t, 3, runWithStores(t.Context(), []string{"-store", "pebble:x y", "-check"}, &out, &errs))
	require.Equal(t, "ran -store pebble:x y -check\n", out.String())
	require.Equal(t, "trouble\n", errs.String())
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	require.NoError(t, err)
	require.Regexp(t, `^build -v -tags everystore -o \S+ `+modulePath+"\n$", string(asked))

	script("go", "echo no such module >&2; exit 1\n")
	errs.Reset()
	require.Equal(t, 1, runWithStores(t.Context(), []string{"-store", "redis://u:secret@h"}, &out, &errs))
	require.Contains(t, errs.String(), "no such module")
	require.Contains(t, errs.String(), "go run -tags everystore ./examples/webindex")
	require.NotContains(t, errs.String(), "secret")
}

// TestBecomesTheProgramWithStores: the process that the user started, and may kill, is the
// one that works on the store.
func TestBecomesTheProgramWithStores(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be replaced there: the program is a child")
	}
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", plain, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	program := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho $$ \"$@\"\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\ncp "+program+" \"$6\"\n"), 0o700))

	cmd := exec.CommandContext(t.Context(), plain, "-store", "pebble:x")
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir, "XDG_CACHE_HOME=" + filepath.Join(dir, "cache")}
	got, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d -store pebble:x\n", cmd.Process.Pid), string(got))
}
