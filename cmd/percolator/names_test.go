package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
)

// namesNothing are arguments that name nothing, one or more for each command that takes a name, with what the command says of it.
var namesNothing = []struct {
	args   string
	status int
	words  string
}{
	{"get lnks a to", exitNotFound, `no table named "lnks"; did you mean "links"?`},
	{"get links a tp", exitNotFound, `the cell links a tp has no value; there is no column of that row named "tp"; did you mean "to"?`},
	{"get links emtpy to", exitNotFound, `the cell links emtpy to has no value; did you mean row "empty"?`},
	{"history lnks a to", exitNotFound, `did you mean "links"?`},
	{"history links a tp", exitNotFound, `has no versions; there is no column of that row named "tp"; did you mean "to"?`},
	{"history links emtpy to", exitNotFound, `did you mean row "empty"?`},
	{"why lnks a to", exitNotFound, `did you mean "links"?`},
	{"why links a tp", exitNotFound, `was never written; there is no column of that row named "tp"; did you mean "to"?`},
	{"why links emtpy to", exitNotFound, `did you mean row "empty"?`},
	{"scan lnks", exitNotFound, `did you mean "links"?`},
	{"scan links --columns tp", exitNotFound, `no column named "tp"; did you mean "to"?`},
	{"set lnks a to x", exitNotFound, `did you mean "links"? (--new makes it)`},
	{"delete lnks a to", exitNotFound, `did you mean "links"?`},
	{"delete links a tp", exitNotFound, `has no value; there is no column of that row named "tp"; did you mean "to"?`},
	{"delete links emtpy to", exitNotFound, `did you mean row "empty"?`},
	{"erase lnks --all --yes", exitNotFound, `did you mean "links"?`},
	{"export - --table lnks", exitNotFound, `did you mean "links"?`},
	{"locks lnks", exitNotFound, `did you mean "links"?`},
	{"backlog lnks", exitNotFound, `did you mean "links"?`},
	{"backlog links tp", exitNotFound, `no observed column named "tp"; did you mean "to"?`},
	{"backlog plain", exitNotFound, `no observed table named "plain" (there are: links)`},
	{"timers lnks", exitNotFound, `did you mean "links"?`},
	{"txn 1 lnks a to", exitNotFound, `did you mean "links"?`},
	{"txn --decide 1 lnks a to", exitNotFound, `did you mean "links"? (--new decides it all the same)`},
	{"observers pause linkr", exitNotFound, `no observer named "linkr"; did you mean "linker"?`},
	{"observers resume linkr", exitNotFound, `did you mean "linker"?`},
	{"observers remove linkr", exitNotFound, `did you mean "linker"?`},
	{"observers rename linkr new", exitNotFound, `did you mean "linker"?`},
	{"observers replay linkr links --all", exitNotFound, `did you mean "linker"?`},
	{"observers replay linker lnks --all", exitNotFound, `did you mean "links"?`},
	{"observers replay linker plain --all", exitNotFound, `linker`},
	{"observers replay linker links", exitUsage, `name the rows by --prefix`},
	{"parked list --observer linkr", exitNotFound, `did you mean "linker"?`},
	{"parked show linkr links a to", exitNotFound, `did you mean "linker"?`},
	{"parked show linker lnks a to", exitNotFound, `did you mean "links"?`},
	{"parked show linker links aa to", exitNotFound, `observer linker is not parked for the cell links aa to; did you mean links a to?`},
	{"parked release linkr links a to", exitNotFound, `did you mean "linker"?`},
	{"parked release linker links aa to", exitNotFound, `did you mean links a to?`},
	{"parked release linker links a to --from x", exitUsage, `--from goes with --observer or --all`},
	{"parked release --observer linkr", exitNotFound, `did you mean "linker"?`},
	{"parked drop linkr links a to", exitNotFound, `did you mean "linker"?`},
	{"parked drop linker links aa to", exitNotFound, `did you mean links a to?`},
	{"parked drop --observer linkr", exitNotFound, `did you mean "linker"?`},
	{"holds release nigthly", exitNotFound, `no hold named "nigthly"; did you mean "nightly"?`},
	{"retention set --table lnks --retention 48h", exitNotFound, `did you mean "links"? (--new sets them all the same)`},
	{"restore nowhere.backup", exitUsage, `nowhere.backup`},
	{"restore --check nowhere.backup", exitUsage, `nowhere.backup`},
	{"import nowhere.jsonl", exitUsage, `nowhere.jsonl`},
	{"observer", exitUsage, "observers"},
	{"observers puase linker", exitUsage, `no command named "puase"; did you mean "pause"?`},
	{"parked relase", exitUsage, `did you mean "release"?`},
	{"holds relase", exitUsage, `did you mean "release"?`},
	{"gc rnu", exitUsage, `did you mean "run"?`},
	{"retention st", exitUsage, `did you mean "set"?`},
	{"migrate rn", exitUsage, `did you mean "run"?`},
}

// nameless are the commands that take no name of anything that is there.
var nameless = []string{
	"backup", "cascades", "cascades status", "cascades track", "completion bash", "completion fish", "completion powershell", "completion zsh", "doctor", "exit", "gc", "gc run", "gc status", "help", "holds", "holds list", "members",
	"migrate", "migrate check", "migrate run", "migrate status", "observers", "observers list", "overview", "parked", "retention", "retention show", "sessions", "sizes", "tables", "ui",
}

// TestNamesThatNameNothing gives each command names that are nearly right. It says what there is that is like them, by the exit status of its
// kind, and nothing is written.
func TestNamesThatNameNothing(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), someLinks(t)
	db, err := percolator.Open(ctx, url, percolator.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1, BreakAt: -1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "linker", Table: "links", Column: "to", Func: func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
		if c.Row == "a" || c.Row == "notified" {
			return percolator.Park(errors.New("on purpose"))
		}
		return nil
	}}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx)) // the observer is known
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Notify(cell("links", "notified", "to")) }))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cell("plain", "r", "c"), nil) }))
	_, err = db.Hold(ctx, "nightly", 0, time.Hour)
	require.NoError(t, err)
	require.NoError(t, db.Close(ctx))
	before := lasting(t, url)
	seen := map[string]bool{}
	for _, c := range namesNothing {
		args := strings.Fields(c.args)
		a := ask(t, url, args...)
		require.Equal(t, c.status, a.status, "%s: %s%s", c.args, a.out, a.err)
		require.Contains(t, a.err, c.words, c.args)
		require.Empty(t, a.out, c.args)
		for i := range args {
			seen[strings.Join(args[:i+1], " ")] = true
		}
	}
	require.Contains(t, ask(t, url, "why", "links", "notified", "to").out, "it was never written\n")
	require.Equal(t, before, lasting(t, url), "something was written")
	require.NotContains(t, ask(t, url, "delete", "lnks", "a", "to").err, "--new", "delete has no such flag")
	for _, command := range nameless {
		require.False(t, seen[command] && !strings.Contains("observers parked holds gc retention migrate", command), "%s takes a name", command)
		seen[command] = true
	}
	var walk func(c *cobra.Command, path string)
	walk = func(c *cobra.Command, path string) {
		for _, sub := range c.Commands() {
			walk(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
		if path != "" && c.Runnable() {
			require.True(t, seen[path], "nothing names anything wrong for the command %q", path)
		}
	}
	walk((&app{}).root(), "")
}

// TestScanOfAColumnGoesOn scans for a column that few rows have. A page without any is no error: only a scan of the whole table knows that nobody
// has the column.
func TestScanOfAColumnGoesOn(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), someLinks(t)
	db, err := percolator.Open(ctx, url)
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range 50 {
			if err := tx.Set(cell("links", fmt.Sprintf("m%02d", i), "to"), nil); err != nil {
				return err
			}
		}
		return tx.Set(cell("links", "m30", "seldom"), []byte("here"))
	}))
	require.NoError(t, db.Close(ctx))
	found := 0
	for args, more := []string{"scan", "links", "--columns", "seldom", "--limit", "1"}, true; more; {
		a := ask(t, url, args...)
		require.Equal(t, exitOK, a.status, "%q: %s", args, a.err)
		found += strings.Count(a.out, "here")
		var rest string
		if _, rest, more = strings.Cut(a.out, "... and more: "); more {
			args = append([]string{"scan", "links", "--columns", "seldom", "--limit", "1"}, shellWords(t, strings.TrimSpace(rest))...)
		}
	}
	require.Equal(t, 1, found)
	require.Equal(t, exitOK, ask(t, url, "scan", "links", "--columns", "seldom", "--prefix", "m1").status)
	require.Equal(t, exitNotFound, ask(t, url, "scan", "links", "--columns", "seldm").status)
}

// lasting is what a store holds but for the records of who has it open.
func lasting(t *testing.T, url string) string {
	t.Helper()
	var kept []string
	for line := range strings.Lines(dump(t, url)) {
		if !strings.HasPrefix(line, format.TableCatalog+"|"+format.RowCatalog+"|4|") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestMissingIsNotMade has files that are not there. None is made.
func TestMissingIsNotMade(t *testing.T) {
	t.Parallel()
	url, file := someLinks(t), filepath.Join(t.TempDir(), "values.jsonl")
	require.Equal(t, exitNotFound, ask(t, url, "export", file, "--table", "lnks").status)
	require.NoFileExists(t, file)
	empty := filepath.Join(t.TempDir(), "data")
	require.Equal(t, exitUsage, ask(t, "pebble:"+empty, "restore", "nowhere.backup").status)
	require.NoDirExists(t, empty)
	// Nor is a store made for what is no backup. A backup that was cut off is named.
	require.Equal(t, exitUsage, ask(t, "pebble:"+empty, "restore", t.TempDir()).status)
	other, cutOff := filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "shop.backup")
	require.NoError(t, os.WriteFile(other, []byte("a list of what to buy: milk, bread, a database"), 0o600))
	require.Equal(t, exitFormat, ask(t, "pebble:"+empty, "restore", other).status)
	require.NoError(t, os.WriteFile(cutOff+backup.Incomplete, nil, 0o600))
	a := ask(t, "pebble:"+empty, "restore", cutOff)
	require.NotEqual(t, exitOK, a.status)
	require.Contains(t, a.err, "its backup was cut off")
	require.NoDirExists(t, empty)
	require.Equal(t, exitOK, ask(t, url, "retention", "set", "--table", "queue", "--retention", "2h", "--max-txn-age", "30m", "--new").status)
	require.Contains(t, ask(t, url, "txn", "--decide", "--new", "1", "queues", "a", "to").out, "transaction 1 is ")
}

// TestColumnsOfAScan: a name is typed as it is shown, also with quotes, but for commas. An empty one is not all of them.
func TestColumnsOfAScan(t *testing.T) {
	t.Parallel()
	opened := inMemory(t)
	asked := func(args ...string) answer {
		var out, errs strings.Builder
		status := run(t.Context(), args, strings.NewReader(""), &out, &errs, opened)
		return answer{out.String(), errs.String(), status}
	}
	for _, column := range []string{`a"b`, `"c"`, "d,e", "f"} {
		require.Equal(t, exitOK, asked("set", "--new", "t", "r", column, "v").status)
	}
	for columns, want := range map[string]int{`a"b`: 1, `"c"`: 1, "d%2Ce": 1, `f,a"b`: 2, `f,"c",d%2Ce`: 3} {
		a := asked("scan", "t", "--columns", columns)
		require.Equal(t, exitOK, a.status, "%s: %s", columns, a.err)
		require.Equal(t, 1+want, strings.Count(a.out, "\n"), "%s: %s", columns, a.out)
	}
	require.Equal(t, 3, strings.Count(asked("scan", "t", "--columns", "f", "--columns", `"c"`).out, "\n"))
	for _, columns := range []string{",", "%", "", "f,"} {
		a := asked("scan", "t", "--columns", columns)
		require.Equal(t, exitUsage, a.status, "%s: %s", columns, a.out)
	}
}
