package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// keptMemory is a store in memory that stays when a command closes it.
type keptMemory struct{ *memstore.Store }

func (keptMemory) Close() error { return nil }

// inMemory makes a database in memory, and returns what opens its store.
func inMemory(t *testing.T) opener {
	t.Helper()
	store := memstore.New()
	atend.Do(t, func() { require.NoError(t, store.Close()) })
	db, err := percolator.New(t.Context(), keptMemory{store})
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	return func(context.Context, bool) (rowstore.Store, error) { return keptMemory{store}, nil }
}

// hangingInput is a pipe that nobody writes to, and that nobody closes before the end of the test.
type hangingInput struct {
	reads func()
	ended <-chan struct{}
}

func (h hangingInput) Read([]byte) (int, error) {
	h.reads()
	<-h.ended
	return 0, io.EOF
}

// TestInputThatHangs: a command that waits for its standard input heeds its bound, and whoever interrupts it.
func TestInputThatHangs(t *testing.T) {
	t.Parallel()
	opened, ended := inMemory(t), make(chan struct{})
	atend.Do(t, func() { close(ended) })
	for _, args := range []string{"set --new t r c -", "import -", "import - --after 7 --format csv"} {
		var out, err strings.Builder
		status := run(t.Context(), append(strings.Fields(args), "--timeout", "50ms"), hangingInput{func() {}, ended}, &out, &err, opened)
		require.Equal(t, exitUnavailable, status, "%s: %s", args, err.String())
		ctx, interrupt := context.WithCancel(t.Context())
		err.Reset()
		status = run(ctx, strings.Fields(args), hangingInput{interrupt, ended}, &out, &err, opened)
		require.Equal(t, exitInterrupted, status, "%s: %s", args, err.String())
		require.Empty(t, out.String())
	}
	var out, err strings.Builder
	require.Equal(t, exitNotFound, run(t.Context(), strings.Fields("get t r c"), strings.NewReader(""), &out, &err, opened), "something was written")
	in := io.MultiReader(strings.NewReader(`{"table":"t","row":"r","column":"c","value":"from two`), strings.NewReader(" parts\"}\n"))
	require.Equal(t, exitOK, run(t.Context(), strings.Fields("import -"), in, &out, &err, opened), err.String())
	out.Reset()
	require.Equal(t, exitOK, run(t.Context(), strings.Fields("get t r c"), strings.NewReader(""), &out, &err, opened), err.String())
	require.Equal(t, "from two parts\n", out.String())
}

// TestInputWithoutEnd: no more is read of a value than one may have.
func TestInputWithoutEnd(t *testing.T) {
	t.Parallel()
	var out, err strings.Builder
	in := &endless{}
	status := run(t.Context(), strings.Fields("set --new t r c -"), in, &out, &err, inMemory(t))
	require.Equal(t, exitUsage, status, err.String())
	require.Contains(t, err.String(), "16777216 bytes")
	require.Less(t, in.read, 17<<20)
}

// endless is a standard input like that from /dev/zero.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	e.read += len(b)
	return len(b), nil
}
