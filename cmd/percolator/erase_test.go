package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestErase(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(t.Context(), url, percolator.WithSettings(percolator.Settings{
		CatalogLease: 100 * time.Millisecond, MaxTxnAge: time.Minute, Retention: time.Hour,
	}))
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(cell("order", "ann/1", "v"), []byte("secret")), tx.Set(cell("order", "ann/2", "v"), []byte("secret")),
			tx.Set(cell("order", "bob", "v"), []byte("of bob")))
	}))
	require.NoError(t, db.Close(t.Context()))

	for _, args := range [][]string{
		{"--prefix", "ann/"},
		{"--yes"},
		{"--yes", "--prefix", "ann/", "--all"},
		{"--yes", "--from", "a", "--all"},
		{"--yes", "--prefix", "ann/", "--to", "b"},
		{"--yes", "--prefix", "%zz"},
		// A script whose variable is not set.
		{"--yes", "--from", "", "--to", "b"},
		{"--yes", "--from", "a", "--to", ""},
		{"--yes", "--prefix", ""},
		{"--yes", "--prefix", "%"},
		// Bounds that were mixed up.
		{"--yes", "--from", "b", "--to", "ann/"},
		{"--yes", "--from", "b", "--to", "b"},
	} {
		a := ask(t, url, append([]string{"erase", "order"}, args...)...)
		require.Equal(t, exitUsage, a.status, "%v: %s", args, a.err)
	}
	a := ask(t, url, "erase", "ordr", "--prefix", "ann/", "--yes")
	require.Equal(t, exitNotFound, a.status)
	require.Contains(t, a.err, `did you mean "order"?`)
	require.Equal(t, answer{out: "secret\n"}, ask(t, url, "get", "order", "ann/1", "v"), "nothing was erased so far")

	a = ask(t, url, "erase", "order", "--prefix", "ann/", "--yes")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "2 rows are erased, 2 cells had a value")
	require.Contains(t, a.out, "not reached: ")
	a = ask(t, url, "history", "order", "ann/1", "v")
	require.NotContains(t, a.out, "secret")
	require.Equal(t, exitNotFound, ask(t, url, "get", "order", "ann/1", "v").status)
	require.Equal(t, answer{out: "of bob\n"}, ask(t, url, "get", "order", "bob", "v"))

	a = ask(t, url, "erase", "order", "--from", "ann/", "--to", "ann0", "--yes", "--json")
	require.Equal(t, exitOK, a.status, a.err)
	var receipt map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.out), &receipt), a.out)
	require.Equal(t, "order", receipt["table"])
	require.Equal(t, "ann/", receipt["from"])
	require.Zero(t, receipt["rows"])
	require.IsType(t, "", receipt["safe_point"], "a timestamp has more digits than a number of JSON may have")
	require.NotEmpty(t, receipt["elsewhere"])
}

// TestEraseThatLeavesRows: a script must not take an erasure for done beside which rows were written.
func TestEraseThatLeavesRows(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	atend.Do(t, func() { require.NoError(t, store.Close()) })
	db, err := percolator.New(t.Context(), keptMemory{store}, percolator.WithSettings(percolator.Settings{CatalogLease: 100 * time.Millisecond}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	writing, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; writing.Err() == nil; i++ {
			_ = db.Update(writing, func(tx *percolator.Txn) error {
				return tx.Set(cell("order", fmt.Sprintf("ann/%d", i%10), "v"), []byte("x"))
			})
		}
	})
	defer writer.Wait()
	defer stop()
	require.Eventually(t, func() bool { return db.Stats().OnePhase > 0 }, time.Minute, time.Millisecond)
	var out, errs strings.Builder
	opened := func(context.Context, bool) (rowstore.Store, error) { return keptMemory{store}, nil }
	status := run(t.Context(), strings.Fields("erase order --prefix ann/ --yes --json"), strings.NewReader(""), &out, &errs, opened)
	require.Equal(t, exitConflict, status, "%s %s", out.String(), errs.String())
	var receipt struct{ Kept int }
	require.NoError(t, json.Unmarshal([]byte(out.String()), &receipt), out.String())
	require.Positive(t, receipt.Kept)
	require.Empty(t, errs.String(), "the answer has it")
	stop()
	writer.Wait()
	out.Reset()
	require.Equal(t, exitOK, run(t.Context(), strings.Fields("erase order --prefix ann/ --yes"), strings.NewReader(""), &out, &errs, opened), errs.String())
	require.NotContains(t, out.String(), "erase again")
}

// TestLongCommands: what waits for leases and workers has no bound of its own, and says what to do if the one of the user is over.
func TestLongCommands(t *testing.T) {
	t.Parallel()
	for _, bound := range []string{"", "5s"} {
		a := &app{timeout: 30 * time.Second}
		c := &cobra.Command{RunE: a.long("overview", func(*cobra.Command, []string) error { return fmt.Errorf("waiting: %w", context.DeadlineExceeded) })}
		c.Flags().DurationVar(&a.timeout, "timeout", a.timeout, "")
		c.SilenceErrors, c.SilenceUsage = true, true
		var args []string
		if bound != "" {
			args = []string{"--timeout", bound}
		}
		c.SetArgs(args)
		err := c.Execute()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if bound == "" {
			require.Zero(t, a.timeout)
		} else {
			require.ErrorContains(t, err, "--timeout 5s: call it again")
		}
	}
}

// TestAllThatIsParkedMayTakeLong: what is done for all parked runs has no bound of its own, what is done for one has.
func TestAllThatIsParkedMayTakeLong(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]time.Duration{"": 0, "o t r c": 30 * time.Second} {
		a := &app{timeout: 30 * time.Second}
		run := a.oneOrMany(func(*cobra.Command, []string) error { return nil })
		require.NoError(t, run(&cobra.Command{}, strings.Fields(args)))
		require.Equal(t, want, a.timeout, args)
	}
}

// TestLongCommandsTellThatTheyWait looks at what a command says that waits for half a minute.
func TestLongCommandsTellThatTheyWait(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			a := &app{err: &said, json: asJSON}
			c := &cobra.Command{RunE: a.long("gc status", func(*cobra.Command, []string) error { time.Sleep(35 * time.Second); return nil })}
			c.SetArgs(nil)
			require.NoError(t, c.Execute())
			if asJSON {
				require.Empty(t, said.String())
				return
			}
			require.Equal(t, 3, strings.Count(said.String(), "gc status"))
			require.Contains(t, said.String(), "at it for 20s")
		})
	}
}
