package percolatetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/percolate-go/percolate/percolatetest.neverEnds"))
}

// neverEnds is a client that no context ends. Its goroutine is left behind; nobody can end it.
func neverEnds(context.Context, *percolator.DB) error {
	<-make(chan struct{})
	return nil
}

func TestGoroutineThatNeverEnds(t *testing.T) {
	t.Parallel()
	v := explore(t, Program{Clients: []Client{{Name: "stuck", Run: neverEnds}}}).Violation
	require.NotNil(t, v)
	require.ErrorContains(t, v, "stuck blocks for ever")
	require.ErrorContains(t, v, "stuck does not end, though its context has ended")
}
