package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func oracleNumber(n uint64) string { return strconv.FormatUint(n, 10) }

// TestNothingIsMade asks for every command over stores that are not there, and then looks whether they are.
func TestNothingIsMade(t *testing.T) {
	t.Parallel()
	everystore.URLs(t, func(t *testing.T, url string) {
		for _, args := range [][]string{
			{"tables"},
			{"get", "t", "r", "c"},
			{"why", "t", "r", "c"},
			{"observers"},
			{"set", "--new", "t", "r", "c", "v"},
			{"gc", "run"},
			{"txn", "--decide", "1", "t", "r", "c"},
			{"parked", "release", "--all"},
		} {
			a := ask(t, url, args...)
			require.Equal(t, exitNoStore, a.status, "%v: %s", args, a.err)
			_, err := rowstore.Open(t.Context(), everystore.With(url, "asis=true"))
			require.ErrorIs(t, err, rowstore.ErrNoStore, "%v", args)
		}
		// A store without a database in it is left so, too.
		s, err := rowstore.Open(t.Context(), url)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		for _, args := range [][]string{{"tables"}, {"set", "--new", "t", "r", "c", "v"}} {
			a := ask(t, url, args...)
			require.Equal(t, exitNoStore, a.status, "%v: %s", args, a.err)
			require.Contains(t, a.err, "no program has made a database")
		}
		s, err = rowstore.Open(t.Context(), everystore.With(url, "asis=true"))
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "\x00catalog", Row: "catalog", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1<<63 - 1}}}})
		require.NoError(t, err)
		require.Empty(t, rows[0].Versions)
	})
}

// someLinks makes a database with some cells.
func someLinks(t *testing.T) string {
	t.Helper()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for _, row := range []string{"a", "b", "c d", "\x00\xff%"} {
			if err := tx.Set(cell("links", row, "to"), []byte("value of "+row)); err != nil {
				return err
			}
		}
		return tx.Set(cell("links", "empty", "to"), nil)
	}))
	require.NoError(t, db.Close(t.Context()))
	return url
}

func TestCells(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	require.Equal(t, answer{out: "value of a\n"}, ask(t, url, "get", "links", "a", "to"))
	require.Equal(t, answer{out: "%\n"}, ask(t, url, "get", "links", "empty", "to"))
	require.Equal(t, answer{out: "value of %00%FF%25\n"}, ask(t, url, "get", "links", "%00%FF%25", "to"))
	require.Equal(t, answer{out: "value of \x00\xff%"}, ask(t, url, "get", "links", "%00%ff%25", "to", "--raw"))
	require.Equal(t, exitNotFound, ask(t, url, "get", "links", "z", "to").status)

	a := ask(t, url, "get", "lnks", "a", "to")
	require.Equal(t, exitNotFound, a.status)
	require.Contains(t, a.err, `there is no table named "lnks"; did you mean "links"?`)

	a = ask(t, url, "set", "lnks", "a", "to", "x")
	require.Equal(t, exitNotFound, a.status)
	require.Contains(t, a.err, `did you mean "links"?`)
	require.Contains(t, a.err, "--new")

	require.Equal(t, exitOK, ask(t, url, "set", "links", "a", "to", "%01 %20").status)
	require.Equal(t, answer{out: "%01 %20\n"}, ask(t, url, "get", "links", "a", "to"))
	require.Equal(t, exitOK, ask(t, url, "set", "links", "a", "to", "-").status)
	require.Equal(t, answer{out: "from the input%0A\n"}, ask(t, url, "get", "links", "a", "to"))
	require.Equal(t, exitOK, ask(t, url, "delete", "links", "a", "to").status)
	require.Equal(t, exitNotFound, ask(t, url, "delete", "links", "a", "to").status)
	a = ask(t, url, "get", "links", "a", "to")
	require.Equal(t, exitNotFound, a.status)
	require.Contains(t, a.err, "it was deleted at")

	a = ask(t, url, "history", "links", "a", "to")
	require.Equal(t, 5, strings.Count(a.out, "\n"), a.out) // a head and four versions
	require.Contains(t, a.out, "(deleted)")

	a = ask(t, url, "scan", "links", "--limit", "2")
	require.Contains(t, a.out, "value of %00%FF%25")
	require.Contains(t, a.out, `--from b%00`)
	a = ask(t, url, "scan", "links", "--from", "b%00")
	require.NotContains(t, a.out, "value of b\n")
	require.Contains(t, a.out, "value of c d\n")
	require.Equal(t, exitUsage, ask(t, url, "scan", "links", "--prefix", "a", "--from", "b").status)
	require.Equal(t, exitUsage, ask(t, url, "scan", "links", "--from", "%zz").status)
	require.Equal(t, exitSnapshot, ask(t, url, "get", "links", "b", "to", "--at", "9000000000000000000").status)
	require.Equal(t, exitNotFound, ask(t, url, "get", "links", "b", "to", "--at", "10m").status)
	require.Equal(t, exitUsage, ask(t, url, "get", "links", "b", "to", "--at", "noon").status)
}

func TestJSON(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	for _, args := range [][]string{
		{"tables"},
		{"get", "links", "a", "to"},
		{"scan", "links"},
		{"history", "links", "a", "to"},
		{"observers"},
		{"parked"},
		{"timers", "links"},
		{"why", "links", "a", "to"},
		{"locks", "links"},
		{"txn", "1", "links", "a", "to"},
		{"sessions"},
		{"members"},
		{"holds"},
		{"overview"},
		{"gc"},
		{"retention"},
		{"sizes"},
		{"migrate"},
		{"migrate", "check"},
		{"migrate", "run"},
		{"set", "links", "a", "to", "x"},
		{"observers", "list"},
		{"retention", "set", "--retention", "48h"},
		{"delete", "links", "a", "to"},
	} {
		for _, flag := range []string{"-json", "--json"} {
			if args[0] == "delete" && flag == "--json" {
				continue // there is nothing left
			}
			a := ask(t, url, append(append([]string{}, args...), flag)...)
			require.Equal(t, exitOK, a.status, "%v: %s", args, a.err)
			require.True(t, json.Valid([]byte(a.out)), "%v: %s", args, a.out)
			require.Empty(t, a.err)
		}
	}
	a := ask(t, url, "get", "links", "nowhere", "to", "--json")
	require.Equal(t, exitNotFound, a.status)
	var said struct {
		Error  string
		Status int
	}
	require.NoError(t, json.Unmarshal([]byte(a.err), &said))
	require.Equal(t, exitNotFound, said.Status)
	require.Empty(t, a.out)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	for _, args := range [][]string{
		{"nonsense"},
		{"get"},
		{"get", "t", "r"},
		{"tables", "--nonsense"},
		{"observers", "nonsense"},
		{"txn", "x", "t", "r", "c"},
		{"get", "%", "r", "c"},
		{"retention", "set"},
		{"retention", "set", "--table", "t", "--catalog-lease", "1s"},
		{"parked", "drop"},
		{"tables", "--limit", "-1"},
		{"txn", "9000000000000000000", "links", "a", "to"},
	} {
		a := ask(t, url, args...)
		require.Equal(t, exitUsage, a.status, "%v: %s%s", args, a.out, a.err)
		require.NotEmpty(t, a.err)
	}
	a := ask(t, url, "observers", "pause", "lnks")
	require.Equal(t, exitNotFound, a.status)
	require.Contains(t, a.err, "none at all")
	a = ask(t, url, "observers", "rename", "lnks", "links")
	require.Equal(t, exitNotFound, a.status)
}

func TestRenameObserver(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{MaxAttempts: 1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "old", Table: "links", Column: "to", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("on purpose"))
	}}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Close(t.Context()))

	require.Equal(t, exitNotFound, ask(t, url, "observers", "rename", "odl", "new").status)
	require.Equal(t, exitUsage, ask(t, url, "observers", "rename", "old").status)
	require.Equal(t, answer{out: "the observer old is called new\n"}, ask(t, url, "observers", "rename", "old", "new"))
	var listed struct {
		Items []struct {
			Name    string
			Aliases []string
			Parked  int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(ask(t, url, "observers", "--json").out), &listed))
	require.Len(t, listed.Items, 1)
	require.Equal(t, "new", listed.Items[0].Name)
	require.Equal(t, []string{"old"}, listed.Items[0].Aliases)
	require.Equal(t, 5, listed.Items[0].Parked)
	for _, name := range []string{"old", "new"} {
		require.Equal(t, 5, strings.Count(ask(t, url, "parked", "--observer", name).out, "new "), name)
	}
	require.Contains(t, ask(t, url, "why", "links", "a", "to").out, "observer new is parked")
	require.Equal(t, answer{out: "1 parked runs were dropped\n"}, ask(t, url, "parked", "drop", "old", "links", "a", "to"))
	require.Equal(t, answer{out: "4 parked runs were released\n"}, ask(t, url, "parked", "release", "--observer", "new"))
	require.Equal(t, exitOK, ask(t, url, "observers", "pause", "old").status)
	for _, args := range [][]string{{"--table", "links"}, {"--column", "to"}, {"--table", "", "--column", "to"}} {
		require.Equal(t, exitUsage, ask(t, url, append([]string{"observers", "remove", "old"}, args...)...).status, "%q", args)
	}
	other := ask(t, url, "observers", "remove", "old", "--table", "links", "--column", "from")
	require.Equal(t, exitNotFound, other.status)
	require.Contains(t, other.err, "the observer old is not registered on table links, column from, but on table links, column to")
	require.Equal(t, answer{out: "the observer old of table links, column to is removed\n"}, ask(t, url, "observers", "remove", "old", "--table", "links", "--column", "to"))
	require.Equal(t, exitNotFound, ask(t, url, "observers", "remove", "old").status)
}

// TestNoSecrets lets the command fail in ways that could show a password.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://u:geheim@127.0.0.1:1", "postgres://u:geheim@127.0.0.1:1/x", "nope://u:geheim@h", "redis://u:geheim#x@h", "geheim",
		"postgres://u:gehe?im@127.0.0.1/x",
	} {
		a := ask(t, url, "--timeout", "5s", "tables")
		require.NotEqual(t, exitOK, a.status)
		require.NotContains(t, a.out+a.err, "geheim", url)
	}
	require.Equal(t, exitUnavailable, ask(t, "redis://u:geheim@127.0.0.1:1", "tables").status)
	require.Equal(t, exitUnavailable, ask(t, "postgres://u:geheim@127.0.0.1:1/x", "tables").status)
}

// TestBinary runs the command as people do.
func TestBinary(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	bin := filepath.Join(t.TempDir(), "percolator")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	command := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), bin, args...)
		c.Env = append(c.Environ(), "PERCOLATOR_STORE="+url)
		return c
	}
	out, err = command("get", "links", "b", "to").CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "value of b\n", string(out))
	c := command("get", "links", "z", "to")
	require.Error(t, c.Run())
	require.Equal(t, exitNotFound, c.ProcessState.ExitCode())
	out, err = command("completion", "bash").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "percolator")

	// A write to a pipe that nobody reads heeds no signal: the second one kills.
	require.Equal(t, exitOK, ask(t, url, "set", "links", "large", "to", strings.Repeat("x", 1<<20)).status)
	c = command("get", "links", "large", "to", "--raw")
	pipe, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	_, err = pipe.Read(make([]byte, 1))
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Wait() }()
	require.Eventually(t, func() bool {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}, time.Minute, 10*time.Millisecond)

	// A store that a program has open.
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	c = command("tables")
	out, err = c.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitUnavailable, c.ProcessState.ExitCode(), string(out))
	require.Contains(t, string(out), "in use")
}
