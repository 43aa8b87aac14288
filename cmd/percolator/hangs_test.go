package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestAStoreThatHangs has an engine that does not come back from opening its files, whatever its context says.
func TestAStoreThatHangs(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	opened := opener(func(context.Context, bool) (rowstore.Store, error) { <-hang; return nil, context.Canceled })
	for _, args := range []string{"tables", "set a b c d", "migrate", "backup none.backup"} {
		var out, err strings.Builder
		status := run(t.Context(), append(strings.Fields(args), "--timeout", "50ms"), strings.NewReader(""), &out, &err, opened)
		require.Equal(t, exitUnavailable, status, "%s: %s", args, err.String())
		require.Contains(t, err.String(), "has not opened in time", args)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var out, err strings.Builder
	require.Equal(t, exitInterrupted, run(ctx, []string{"tables"}, strings.NewReader(""), &out, &err, opened), err.String())
}

// TestJSONOfRefusedArguments has arguments that are refused before --json is read.
func TestJSONOfRefusedArguments(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"tabels --json", "-json tabels", "tables --jsn --json", "tables --limit x --json", "get a --json"} {
		var out, err strings.Builder
		status := run(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &err, nil)
		require.Equal(t, exitUsage, status, args)
		var said struct {
			Error  string
			Status int
		}
		require.NoError(t, json.Unmarshal([]byte(err.String()), &said), "%s: %s", args, err.String())
		require.Equal(t, exitUsage, said.Status)
		require.NotEmpty(t, said.Error)
	}
}
