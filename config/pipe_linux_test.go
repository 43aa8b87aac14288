package config

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// waitedFor is a context that tells when somebody waits for its end.
type waitedFor struct {
	context.Context

	once *sync.Once
	by   chan struct{}
}

func (w waitedFor) Done() <-chan struct{} {
	w.once.Do(func() { close(w.by) })
	return w.Context.Done()
}

// TestOpenOfAPipe opens a file that is a pipe which nobody has opened to write, and one to which somebody writes a part: a context ends both,
// and no goroutine is left, which TestMain looks at.
func TestOpenOfAPipe(t *testing.T) {
	t.Parallel()
	pipe := func() string {
		path := filepath.Join(t.TempDir(), "percolator.yaml")
		require.NoError(t, syscall.Mkfifo(path, 0o600))
		return path
	}
	open := func(path string) (waiting <-chan struct{}, end func() error) {
		inner, cancel := context.WithCancel(t.Context())
		ctx := waitedFor{Context: inner, once: &sync.Once{}, by: make(chan struct{})}
		failed := make(chan error, 1)
		go func() {
			_, err := Open(ctx, path)
			failed <- err
		}()
		return ctx.by, func() error { cancel(); return <-failed }
	}
	write := func(path string) *os.File {
		w, err := os.OpenFile(path, os.O_WRONLY, 0) // waits until somebody has opened it to read
		require.NoError(t, err)
		return w
	}
	path := pipe()
	waiting, end := open(path)
	<-waiting
	require.ErrorIs(t, end(), context.Canceled)

	path = pipe()
	_, end = open(path)
	w := write(path)
	_, err := w.WriteString("stores:\n")
	require.NoError(t, err)
	require.ErrorIs(t, end(), context.Canceled)
	require.NoError(t, w.Close())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ended, path)
	require.ErrorIs(t, err, context.Canceled)

	// Whoever opens it and writes nothing has written an empty file.
	path = pipe()
	opened := make(chan error, 1)
	go func() { _, err := Load(path); opened <- err }()
	require.NoError(t, write(path).Close())
	require.ErrorContains(t, <-opened, "stores: there is none")

	// A pipe that somebody writes is a file like any other.
	path = pipe()
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(path, []byte(oneStore), 0) }()
	f, err := Load(path)
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	require.Equal(t, map[string]Store{"main": {URL: "memory:"}}, f.Stores)
}
