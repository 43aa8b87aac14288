package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// The command starts itself to have processes that it can kill.
func TestMain(m *testing.M) {
	if os.Getenv("MULTISTORE_MOVER") != "" {
		if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	testserver.Main(m, tikvtest.Leaks()...)
}

func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"-ledger", everystore.With(testserver.Postgres(t), "schema=multistore"),
		"-wallet", everystore.With(testserver.Redis(t), "prefix=multistore"),
		"-accounts", "10", "-movers", "2", "-duration", "8s", "-kill-every", "500ms",
	}, &out, os.Stderr)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "right")
}

// TestKilledAtRandomOverTiKV has the ledger in a mock cluster, which the processes reach
// over gRPC.
func TestKilledAtRandomOverTiKV(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	c.Churn(t, 200, 10*time.Millisecond)
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"-ledger", everystore.With(c.URL(), "prefix=multistore"),
		"-wallet", everystore.With(testserver.Redis(t), "prefix=multistore-tikv"),
		"-accounts", "10", "-movers", "2", "-duration", "8s", "-kill-every", "1s",
	}, &out, io.Discard)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "right")
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                              "name the stores",
		"-ledger memory:":               "go together",
		"-config x -ledger y -wallet z": "name the stores",
		"-ledger memory: -wallet memory: -movers 0": "must be positive",
		"-ledger memory: -wallet memory: extra":     "unexpected argument",
		"-ledger nothing: -wallet memory:":          "no backend",
		"-config nowhere.yaml":                      "nowhere.yaml",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		require.ErrorContains(t, err, want, args)
	}
}

// TestAccountsOfAnEarlierRun: the stores have as many accounts as the first run has opened. Another number is no wrong sum, and one that has gone is no mistake of the user's.
func TestAccountsOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	first := &play{accounts: 10}
	require.NoError(t, first.fill(ctx, db))
	require.NoError(t, first.fill(ctx, db))
	require.NoError(t, first.audit(ctx, db))
	for _, n := range []int{5, 20} {
		err := (&play{accounts: n}).fill(ctx, db)
		require.ErrorAs(t, err, &usageError{})
		require.ErrorContains(t, err, "the tables have 10 accounts each already")
	}
	require.NoError(t, first.audit(ctx, db))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Delete(account("wallet", 3)) }))
	err := first.fill(ctx, db)
	require.ErrorContains(t, err, "wallet has 9")
	require.False(t, errors.As(err, &usageError{}))
}
