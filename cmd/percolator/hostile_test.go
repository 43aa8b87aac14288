package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// parkedRuns makes a database with a parked run of each of two observers of one cell, whose errors are what msg is.
func parkedRuns(t *testing.T, msg string) string {
	t.Helper()
	ctx, url := t.Context(), "pebble:"+filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(ctx, url, percolator.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	for _, name := range []string{"one", "two"} {
		require.NoError(t, w.Observe(percolator.Observer{Name: name, Table: "page", Column: "body", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
			return percolator.Park(errors.New(msg))
		}}))
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cell("page", "home", "body"), []byte("x")) }))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Close(ctx))
	return url
}

// TestTerminalIsSafe has an error that would take over a terminal. Its lines stay lines.
func TestTerminalIsSafe(t *testing.T) {
	t.Parallel()
	url := parkedRuns(t, "bad\x1b]0;title\x07 \x9b31m \u009b2J \u202e \xff\t\nsecond line")
	for _, args := range [][]string{
		{"parked"},
		{"parked", "show", "one", "page", "home", "body"},
		{"why", "page", "home", "body"},
		{"observers"},
		{"get", "\x1b]0;x\x07", "r", "c"},
		{"--\x1b[2J"},
		{"\x1b[2J"},
		{"scan", "page", "--prefix", "%\x1b[2J"},
	} {
		a := ask(t, url, args...)
		for _, r := range a.out + a.err {
			require.True(t, r == '\n' || unicode.IsPrint(r) && r != unicode.ReplacementChar, "%q has %q", args, a.out+a.err)
		}
	}
	a := ask(t, url, "parked", "show", "one", "page", "home", "body")
	require.Contains(t, a.out, "\nsecond line\n")
}

// TestEmptyObserverIsNobody has a script whose variable is not set. It must not drop the runs of all observers.
func TestEmptyObserverIsNobody(t *testing.T) {
	t.Parallel()
	url := parkedRuns(t, "no")
	for _, args := range [][]string{
		{"parked", "drop", "", "page", "home", "body"},
		{"parked", "drop", "%", "page", "home", "body"},
		{"parked", "drop", "--observer", "%"},
		{"parked", "release", "--observer", ""},
		{"parked", "--observer", "%"},
		{"parked", "--observer", ""},
		{"parked", "drop", "--all", "--observer", ""},
	} {
		a := ask(t, url, args...)
		require.Equal(t, exitUsage, a.status, "%q: %s%s", args, a.out, a.err)
		require.NotEmpty(t, a.err)
	}
	require.Equal(t, exitUsage, ask(t, url, "retention", "set", "--table", "", "--retention", "1s").status, "that of all tables")
	require.Equal(t, 3, strings.Count(ask(t, url, "parked").out, "\n"))
	require.Equal(t, exitOK, ask(t, url, "parked", "drop", "one", "page", "home", "body").status)
	require.Equal(t, 2, strings.Count(ask(t, url, "parked").out, "\n"))
}

// TestNamesCanBePasted has names that a shell, or the library of flags, would take for something else. What is shown can be typed.
func TestNamesCanBePasted(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), "pebble:"+filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(ctx, url)
	require.NoError(t, err)
	rows := []string{"$(touch x)", "--help", "`id`", "a b", "it's", `back\slash`, "~", "*"}
	for _, row := range rows {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cell("t", row, "c"), []byte("x")) }))
	}
	require.NoError(t, db.Close(ctx))
	for _, row := range rows {
		a := ask(t, url, "get", "--", "t", row, "nothing")
		require.Equal(t, exitNotFound, a.status)
		_, said, found := strings.Cut(a.err, "the cell ")
		require.True(t, found, a.err)
		said, _, found = strings.Cut(said, " has no value")
		require.True(t, found, a.err)
		words := shellWords(t, said)
		require.Len(t, words, 3, said)
		require.False(t, strings.HasPrefix(words[1], "-"), said)
		a = ask(t, url, "get", words[0], words[1], "c")
		require.Equal(t, answer{out: "x\n"}, a, said)
	}
	a := ask(t, url, "scan", "t", "--limit", "1")
	_, hint, found := strings.Cut(a.out, "--from ")
	require.True(t, found, a.out)
	require.Equal(t, []string{"$(touch x)%00"}, shellWords(t, strings.TrimSpace(hint)))
	// "%" is an empty prefix: the end of the range is that of --to.
	for _, prefix := range []string{"", "%"} {
		a = ask(t, url, "scan", "t", "--limit", "1", "--prefix", prefix, "--to", "b")
		_, hint, found = strings.Cut(a.out, "--from ")
		require.True(t, found, "%q: %s%s", prefix, a.out, a.err)
		require.Equal(t, []string{"$(touch x)%00", "--to", "b"}, shellWords(t, strings.TrimSpace(hint)), "%q", prefix)
	}
}

// shellWords takes words apart as a shell does, and fails for what a shell would not take as it is.
func shellWords(t *testing.T, s string) (words []string) {
	t.Helper()
	word, inWord := "", false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			require.GreaterOrEqual(t, end, 0, s)
			word, inWord = word+s[i+1:i+1+end], true
			i += end + 1
		case c == ' ':
			if inWord {
				words = append(words, word)
			}
			word, inWord = "", false
		default:
			require.NotContains(t, "$`\"\\;&|<>()*?[]{}~#!", s[i:i+1], s)
			word, inWord = word+s[i:i+1], true // A byte: a name may be of any script.
		}
	}
	return append(words, word)
}

// TestSnapshotsThatCannotBe has points in time that no clock of the database had. None of them is the present.
func TestSnapshotsThatCannotBe(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	for _, at := range []string{"0", "-1", "1900-01-01T00:00:00Z", "2000000h", "1970-01-01T00:00:00Z"} {
		for _, command := range []string{"get", "history"} {
			a := ask(t, url, command, "links", "b", "to", "--at="+at)
			require.NotEqual(t, exitOK, a.status, "%s --at %s: %s", command, at, a.out)
		}
	}
	require.Equal(t, exitUsage, ask(t, url, "scan", "links", "--at", "0").status)
}

// TestListsAreLists has answers in JSON with nothing in them: what is a list stays one.
func TestListsAreLists(t *testing.T) {
	t.Parallel()
	url := someLinks(t)
	for _, args := range [][]string{
		{"observers"},
		{"parked"},
		{"timers", "links"},
		{"locks", "links"},
		{"sessions"},
		{"members"},
		{"holds"},
		{"scan", "links", "--prefix", "nothing"},
	} {
		a := ask(t, url, append(args, "--json")...)
		require.Equal(t, exitOK, a.status, a.err)
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(a.out), &v))
		for key, x := range v {
			require.NotNil(t, x, "%v: %s is null: %s", args, key, a.out)
		}
	}
}
