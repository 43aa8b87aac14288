package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) { testserver.Main(m, tikvtest.Leaks()...) }

// command runs the program and returns what it printed.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out, io.Discard)
	return out.String(), err
}

// count reads the number that follows a head of the report.
func count(t *testing.T, out, head string) int {
	t.Helper()
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == head {
			n, err := strconv.Atoi(fields[1])
			require.NoError(t, err, line)
			return n
		}
	}
	require.Fail(t, "no line "+head, out)
	return 0
}

func TestTransfersKeepTheTotal(t *testing.T) {
	t.Parallel()
	// Few accounts and many workers: conflicts are certain.
	out, err := command(t, "-store", "memory:", "-accounts", "5", "-workers", "8", "-transfers", "500", "-duration", "5m")
	require.NoError(t, err, out)
	t.Log(out)
	require.Positive(t, count(t, out, "transfers"))
	require.LessOrEqual(t, count(t, out, "transfers"), 500)
	require.Positive(t, count(t, out, "retries"))
	require.Greater(t, count(t, out, "audits"), 1)
	require.Contains(t, out, "each with the right total")
}

func TestAccountsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	store := "pebble:" + filepath.Join(t.TempDir(), "bank")
	out, err := command(t, "-store", store, "-accounts", "50", "-transfers", "100", "-duration", "5m")
	require.NoError(t, err, out)
	out, err = command(t, "-store", store, "-accounts", "0", "-transfers", "100", "-duration", "5m")
	require.NoError(t, err, out)
	require.Equal(t, 50, count(t, out, "accounts"))

	_, err = command(t, "-store", store, "-accounts", "51", "-transfers", "1")
	require.ErrorAs(t, err, &usageError{})
	require.ErrorContains(t, err, "-accounts 51: the store has 50 accounts already")
}

func TestBankOverTwoStores(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "percolator.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
stores:
  main: {url: "memory:"}
  accounts: {url: "memory:"}
authoritative: main
tables:
  bank/*: accounts
`), 0o600))
	out, err := command(t, "-config", file, "-accounts", "20", "-transfers", "200", "-duration", "5m")
	require.NoError(t, err, out)
	require.Contains(t, out, "each with the right total")
}

// TestBankOverTiKV has two runs of the program on one mock cluster, at the same time.
func TestBankOverTiKV(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	c.Churn(t, 100, 10*time.Millisecond)
	store := c.URL() + "?prefix=bank"
	out, err := command(t, "-store", store, "-accounts", "20", "-transfers", "50", "-duration", "5m")
	require.NoError(t, err, out)
	var both errgroup.Group
	for range 2 {
		both.Go(func() error {
			var out bytes.Buffer
			err := run(t.Context(), []string{"-store", store, "-accounts", "0", "-transfers", "100", "-duration", "5m"}, &out, io.Discard)
			if err == nil && !strings.Contains(out.String(), "each with the right total") {
				err = errors.New(out.String())
			}
			return err
		})
	}
	require.NoError(t, both.Wait())
}

// TestBankOverItsOwnPool has the accounts and the program's own table behind one pool.
func TestBankOverItsOwnPool(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	for range 2 {
		out, err := command(t, "-pool", url, "-accounts", "20", "-transfers", "50", "-workers", "8", "-duration", "5m")
		require.NoError(t, err, out)
		require.Contains(t, out, "each with the right total")
	}
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	var runs, transfers int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*), sum(transfers) FROM bank_runs WHERE right_total").Scan(&runs, &transfers))
	require.Equal(t, 2, runs)
	require.Positive(t, transfers)

	_, err = command(t, "-pool", url, "-store", "memory:")
	require.ErrorAs(t, err, &usageError{})
	_, err = command(t, "-pool", "postgres://127.0.0.1:1/nobody", "-duration", "1s")
	require.Error(t, err)
}

// unclosed lets several DBs share one store.
type unclosed struct{ rowstore.Store }

func (unclosed) Close() error             { return nil }
func (s unclosed) Unwrap() rowstore.Store { return s.Store }

func openShared(t *testing.T, store rowstore.Store) *percolator.DB {
	t.Helper()
	db, err := percolator.New(t.Context(), unclosed{store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}

func TestSeveralBanksOnOneStore(t *testing.T) {
	t.Parallel()
	store, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	// They also race to open the accounts.
	var all errgroup.Group
	reports := make([]*report, 3)
	for i := range reports {
		db := openShared(t, store)
		all.Go(func() (err error) {
			reports[i], err = play(t.Context(), db, options{accounts: 6, workers: 3, transfers: 100, duration: 5 * time.Minute})
			return err
		})
	}
	require.NoError(t, all.Wait())
	for _, r := range reports {
		require.EqualValues(t, 100, r.transfers+r.declined)
		require.GreaterOrEqual(t, r.audits, int64(2))
	}
}

func TestWrongTotalIsFound(t *testing.T) {
	t.Parallel()
	store, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	db := openShared(t, store)
	_, err = open(t.Context(), db, 10)
	require.NoError(t, err)
	require.NoError(t, audit(t.Context(), db, 10))

	set := func(n int64) {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(account(3), encode(n)) }))
	}
	set(initialBalance + 1)
	r, err := play(t.Context(), db, options{workers: 2, duration: 5 * time.Minute})
	require.ErrorIs(t, err, errWrongTotal)
	require.ErrorContains(t, err, "10001 in 10 accounts instead of 10000 in 10")
	var out bytes.Buffer
	r.print(&out)
	require.Contains(t, out.String(), "a wrong total")

	set(initialBalance)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Delete(account(3)) }))
	require.ErrorIs(t, audit(t.Context(), db, 10), errWrongTotal)
}

func TestInterruptedRunReports(t *testing.T) {
	t.Parallel()
	store, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	db := openShared(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for db.Stats().OnePhase+db.Stats().Group+db.Stats().TwoPhase < 10 {
			if ctx.Err() != nil {
				return
			}
		}
		cancel()
	}()
	r, err := play(ctx, db, options{accounts: 10, workers: 2, duration: 5 * time.Minute})
	require.NoError(t, err)
	require.NotNil(t, r)
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args  []string
		want  string
		usage bool
	}{
		"one account":        {[]string{"-accounts", "1"}, "-accounts 1", true},
		"negative accounts":  {[]string{"-accounts", "-2"}, "-accounts -2", true},
		"too many accounts":  {[]string{"-accounts", "50001"}, "-accounts 50001", true},
		"no accounts there":  {[]string{"-accounts", "0"}, "has no accounts yet", true},
		"duration":           {[]string{"-duration", "0s"}, "-duration 0s", true},
		"malformed duration": {[]string{"-duration", "long"}, "long", true},
		"transfers":          {[]string{"-transfers", "-1"}, "-transfers -1", true},
		"workers":            {[]string{"-workers", "0"}, "-workers 0", true},
		"argument":           {[]string{"memory:"}, `unexpected argument "memory:"`, true},
		"unknown flag":       {[]string{"-fast"}, "-fast", true},
		"unknown store":      {[]string{"-store", "nonsense://user:secret@host"}, `"nonsense"`, false},
		"no scheme":          {[]string{"-store", "bank"}, "scheme", false},
		"store and config":   {[]string{"-store", "memory:", "-config", "f"}, "-store and -config", true},
		"no such config":     {[]string{"-config", "nowhere.yaml"}, "nowhere.yaml", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := command(t, c.args...)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, c.usage, errors.As(err, &usageError{}))
		})
	}
}
