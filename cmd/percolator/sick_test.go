package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) { everystore.Main(m) }

var rewrite = flag.Bool("rewrite", false, "write the expected answers anew")

// answer is what the command has said.
type answer struct {
	out, err string
	status   int
}

func ask(t *testing.T, url string, args ...string) answer {
	t.Helper()
	var out, err strings.Builder
	status := run(t.Context(), append([]string{"--store", url}, args...), strings.NewReader("from the input\n"), &out, &err, nil)
	return answer{out.String(), err.String(), status}
}

func cell(table, row, column string) percolator.Cell {
	return percolator.Cell{Table: table, Row: row, Column: column}
}

// orders are the cells that the dead transaction has locked, its primary first.
var orders = []percolator.Cell{cell("order", "16", "state"), cell("order", "17", "state")}

// makeSick makes a database in which things are wrong: a dead process has locked two orders, a run is parked, an observer is
// paused and another one has no worker, and a hold keeps history. It returns the start of the dead transaction.
func makeSick(t *testing.T, url string) percolator.Timestamp {
	t.Helper()
	ctx := t.Context()
	db, err := percolator.Open(ctx, url, percolator.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	require.NoError(t, err)
	set := func(c percolator.Cell, value string) {
		t.Helper()
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, []byte(value)) }))
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	fine := func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }
	require.NoError(t, w.Observe(percolator.Observer{Name: "links", Table: "page", Column: "body", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("the page has no end tag"))
	}}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "mail", Table: "account", Column: "balance", Func: fine}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "ship", Table: "order", Column: "state", Func: fine}))
	set(cell("page", "home", "body"), "<p>")
	set(cell("account", "ann", "balance"), "100")
	for _, c := range orders {
		set(c, "new")
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.PauseObserver(ctx, "mail"))
	set(cell("account", "ann", "balance"), "90")
	set(cell("order", "18", "state"), "new")
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.NotifyAfter(ctx, cell("order", "18", "state"), time.Hour) }))
	_, err = db.Hold(ctx, "backup", 0, time.Hour)
	require.NoError(t, err)
	start, err := db.Now(ctx)
	require.NoError(t, err)
	lock := format.Lock{Kind: format.KindPut, Expiry: start.Add(10 * time.Second), Session: "dead", Primary: format.Cell(orders[0]), Value: []byte("paid")}
	for _, c := range orders {
		out, err := db.Store().Apply(ctx, []rowstore.Mutation{{Table: c.Table, Row: c.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, c.Column, start, lock.Encode())}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, out[0].Err)
	}
	require.NoError(t, db.Close(ctx))
	return start
}

// TestTenQuestions asks a sick store ten questions that an operator has, of the command alone.
func TestTenQuestions(t *testing.T) {
	t.Parallel()
	everystore.URLs(t, func(t *testing.T, url string) {
		start := makeSick(t, url)
		began := dump(t, url)
		txn := percolator.Timestamp(start)
		var said strings.Builder
		for _, q := range []struct {
			question string
			args     []string
		}{
			{"What is there?", []string{"tables"}},
			{"Who observes, and what waits?", []string{"observers"}},
			{"Which runs have failed for good, and why?", []string{"parked", "show", "links", "page", "home", "body"}},
			{"Why does order 17 not move?", []string{"why", "order", "17", "state"}},
			{"Whose are the locks?", []string{"locks", "order"}},
			{"What became of that transaction?", []string{"txn", decimal(txn), "order", "17", "state"}},
			{"What is in order 17, as long as that is open?", []string{"get", "order", "17", "state"}},
			{"Why did ann get no mail?", []string{"why", "account", "ann", "balance"}},
			{"What was her balance before?", []string{"history", "account", "ann", "balance"}},
			{"When is order 18 looked at again?", []string{"timers", "order"}},
			{"Who keeps the history?", []string{"holds"}},
			{"Is garbage collected?", []string{"gc"}},
		} {
			a := ask(t, url, q.args...)
			said.WriteString("# " + q.question + "\n$ percolator " + strings.Join(q.args, " ") + "\n" + a.out + a.err + "\n")
			require.Equal(t, exitOK, a.status, "%s: %s", q.question, a.err)
		}
		require.Equal(t, began, dump(t, url), "looking has written")
		golden(t, "questions.txt", said.String())

		// And it is mended by the command alone.
		a := ask(t, url, "txn", "--decide", decimal(txn), "order", "17", "state")
		require.Equal(t, exitOK, a.status, a.err)
		require.Contains(t, a.out, "rolled back")
		require.Equal(t, exitOK, ask(t, url, "parked", "release", "--all").status)
		require.Equal(t, exitOK, ask(t, url, "observers", "resume", "mail").status)
		require.Equal(t, exitOK, ask(t, url, "holds", "release", "backup").status)
		require.Equal(t, exitOK, ask(t, url, "set", "order", "17", "state", "paid").status)
		require.Equal(t, "paid\n", ask(t, url, "get", "order", "17", "state").out)
		require.NotContains(t, ask(t, url, "why", "order", "17", "state").out, "lock")
		require.NotContains(t, ask(t, url, "observers").out, "paused")
		require.NotContains(t, ask(t, url, "holds").out, "backup")
		require.Equal(t, exitNotFound, ask(t, url, "parked", "release", "--all").status)
	})
}

func decimal(ts percolator.Timestamp) string { return oracleNumber(uint64(ts)) }

// dump returns all that a store holds but where its oracle is.
func dump(t *testing.T, url string) string {
	t.Helper()
	s, err := rowstore.Open(t.Context(), everystore.With(url, "asis=true"))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var out strings.Builder
	for table, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
		var all []rowstore.Selector
		for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark} {
			all = append(all, rowstore.Selector{Family: f, To: 1<<63 - 1})
		}
		for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: table, Selectors: all}) {
			require.NoError(t, err)
			for _, v := range row.Versions {
				out.WriteString(strings.Join([]string{table, row.Row, oracleNumber(uint64(v.Family)), v.Column, oracleNumber(uint64(v.TS)), string(v.Value)}, "|") + "\n")
			}
		}
	}
	require.NotEmpty(t, out.String())
	return out.String()
}

// golden compares an answer with what is in a file, but for times, timestamps, ids and the number of hints.
func golden(t *testing.T, name, said string) {
	t.Helper()
	for _, r := range []struct{ find, put string }{
		{`[0-9]{15,20}`, "TIMESTAMP"},
		{`[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+ UTC`, "TIME"},
		{`\b[0-9][0-9.hms]*(h|m|s)\b`, "SPAN"},
		{`[0-9]+ hints of garbage`, "SOME hints of garbage"}, // a process on a busy machine stores its hints in more parts
		{` +`, " "},
		{` \n`, "\n"},
	} {
		said = regexp.MustCompile(r.find).ReplaceAllString(said, r.put)
	}
	path := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(said), 0o600))
	}
	want, err := os.ReadFile(path) //nolint:gosec // of the test
	require.NoError(t, err)
	require.Equal(t, string(want), said)
}
