package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
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

// TestCommandsEndBesideAStoreThatHangs has a server that does not answer any more when a command that writes has done its work, and closes the database.
func TestCommandsEndBesideAStoreThatHangs(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"doctor --load --timeout 0", "migrate run --make", "set --new t r c v --timeout 0"} {
		t.Run(strings.Fields(args)[0], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				memory := memstore.New()
				defer func() { require.NoError(t, memory.Close()) }()
				if !strings.Contains(args, "--make") {
					db, err := percolator.New(t.Context(), keptMemory{memory})
					require.NoError(t, err)
					require.NoError(t, db.Close(t.Context()))
				}
				var hung atomic.Bool
				opened := opener(func(context.Context, bool) (rowstore.Store, error) {
					s := faultstore.New(keptMemory{memory}, faultstore.Options{})
					s.AddRule(faultstore.Rule{Times: -1, Match: removesItsUse, Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
						hung.Store(true)
						<-ctx.Done()
						return faultstore.Fault{}
					}})
					return s, nil
				})
				var out, err strings.Builder
				status := run(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &err, opened)
				require.Contains(t, []int{exitOK, exitFindings}, status, err.String())
				require.NotEmpty(t, out.String())
				require.True(t, hung.Load())
			})
		})
	}
}

// removesItsUse tells of the last call of a process, by which it takes away the record of the catalog that it goes by.
func removesItsUse(c *faultstore.Call) bool {
	return c.Kind == faultstore.CallApply && len(c.Muts) == 1 && c.Muts[0].Table == format.TableCatalog && len(c.Muts[0].Edits) == 1 &&
		c.Muts[0].Edits[0].Family == rowstore.Mark && c.Muts[0].Edits[0].Kind == rowstore.DoDeleteRange
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
