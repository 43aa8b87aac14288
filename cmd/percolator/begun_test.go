package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestStatusOfABadLine: the status of wrong arguments says that nothing was done, so a line that ends an import behind others has another one.
func TestStatusOfABadLine(t *testing.T) {
	t.Parallel()
	for good, want := range map[int]int{0: exitUsage, 600: exitError} {
		var in, out, errs strings.Builder
		for i := range good {
			_, _ = fmt.Fprintf(&in, `{"table":"t","row":"r%d","column":"c","value":"v"}`+"\n", i)
		}
		in.WriteString("bad\n")
		status := run(t.Context(), []string{"import", "-"}, strings.NewReader(in.String()), &out, &errs, inMemory(t))
		require.Equal(t, want, status, "behind %d lines: %s", good, errs.String())
		require.Contains(t, errs.String(), fmt.Sprintf("line %d", good+1))
	}
}

// TestStatusOfABadAfter: neither does one that begins nothing, as for a number of lines that cannot be, or a bad first line behind those that are left out.
func TestStatusOfABadAfter(t *testing.T) {
	t.Parallel()
	for after, words := range map[string]string{"-3": "--after is -3", "0": "line 1", "1": "line 2"} {
		var out, errs strings.Builder
		status := run(t.Context(), []string{"import", "-", "--after", after}, strings.NewReader("bad\nbad\n"), &out, &errs, inMemory(t))
		require.Equal(t, exitUsage, status, "--after %s: %s", after, errs.String())
		require.Contains(t, errs.String(), words)
	}
}

// narrow takes no values of a row, as a store with lower limits than that of a backup.
type narrow struct {
	keptMemory
	row string
}

func (n narrow) Unwrap() rowstore.Store { return n.keptMemory }

func (n narrow) Apply(ctx context.Context, m []rowstore.Mutation, o rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	for i := range m {
		if m[i].Row == n.row {
			return nil, fmt.Errorf("%w: row %q", rowstore.ErrTooLarge, n.row)
		}
	}
	return n.keptMemory.Apply(ctx, m, o)
}

// TestStatusOfARestoreThatHasBegun: neither is what a store does not take, when rows were written already.
func TestStatusOfARestoreThatHasBegun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "links.backup")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", file).status)
	store := memstore.New()
	atend.Do(t, func() { require.NoError(t, store.Close()) })
	restore := func(row string) (int, string) {
		var out, errs strings.Builder
		status := run(t.Context(), []string{"restore", file}, strings.NewReader(""), &out, &errs, func(context.Context, bool) (rowstore.Store, error) { return narrow{keptMemory{store}, row}, nil })
		return status, errs.String()
	}
	status, said := restore("empty")
	require.Equal(t, exitError, status, said)
	require.Contains(t, said, percolator.ErrTooLarge.Error())
	status, said = restore("")
	require.Equal(t, exitOK, status, said)
	status, said = restore("")
	require.Equal(t, exitUsage, status, "the store is not empty: %s", said)
}
