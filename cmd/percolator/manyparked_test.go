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

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/internal/stuck"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// parkedIn makes a database in memory whose programs take longer names of rows than the default, with a parked run of the observer o for each row. It returns what asks the
// command, and what writes garbage over a stored cell.
func parkedIn(t *testing.T, rows ...string) (asked func(args ...string) answer, damage func(c format.Cell)) {
	t.Helper()
	ctx, store := t.Context(), memstore.New()
	atend.Do(t, func() { require.NoError(t, store.Close()) })
	db, err := percolator.New(ctx, keptMemory{store}, percolator.WithLimits(percolator.Limits{Row: 4096}), percolator.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for _, r := range rows {
			if err := tx.Set(cell("t", r, "c"), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1, BreakAt: -1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("broken"))
	}}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Close(ctx))
	opened := func(context.Context, bool) (rowstore.Store, error) { return keptMemory{store}, nil }
	asked = func(args ...string) answer {
		var out, errs strings.Builder
		status := run(t.Context(), args, strings.NewReader(""), &out, &errs, opened)
		return answer{out.String(), errs.String(), status}
	}
	damage = func(c format.Cell) {
		at, err := store.Oracle().Draw(ctx, 1)
		require.NoError(t, err)
		garbage := format.Write{Kind: format.KindPut, Start: at - 1, Value: []byte("garbage")}
		outs, err := store.Apply(ctx, []rowstore.Mutation{{Table: c.Table, Row: c.Row, Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, c.Column, 0, at-1), rowstore.Put(rowstore.Write, c.Column, at, garbage.Encode()),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
	}
	return asked, damage
}

// TestNamesLongerThanUsual: what programs with greater limits have written is in reach of the command, too.
func TestNamesLongerThanUsual(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 700)
	asked, _ := parkedIn(t, long, "short", "other")
	require.Equal(t, answer{out: "1 parked runs were released\n"}, asked("parked", "release", "o", "t", long, "c"))
	require.Equal(t, answer{out: "2 parked runs were dropped\n"}, asked("parked", "drop", "--all"))
	require.Equal(t, exitOK, asked("delete", "t", long, "c").status)
}

// TestNamesLongerThanUsualAreNotMade: what the command makes is in reach of programs that have no limits of their own, unless a configuration says that they have.
func TestNamesLongerThanUsualAreNotMade(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3000)
	line := fmt.Sprintf("{\"table\":\"links\",\"row\":%q,\"column\":\"c\",\"value\":\"v\"}\n", long)
	dir := t.TempDir()
	lines, config := filepath.Join(dir, "lines.jsonl"), filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(lines, []byte(line), 0o600))
	for _, args := range [][]string{{"set", "links", long, "c", "v"}, {"import", lines}} {
		url := someLinks(t)
		a := ask(t, url, args...)
		require.Equal(t, exitUsage, a.status, a.err)
		require.Contains(t, a.err, "2048")
		require.Equal(t, exitNotFound, ask(t, url, "get", "links", long, "c").status)

		require.NoError(t, os.WriteFile(config, []byte("stores: {main: {url: \""+url+"\"}}\nlimits: {row: 4000}\n"), 0o600))
		var out, err strings.Builder
		status := run(t.Context(), append(args, "--config", config), strings.NewReader(""), &out, &err, nil)
		require.Equal(t, exitOK, status, err.String())
		require.Equal(t, answer{out: "v\n"}, ask(t, url, "get", "links", long, "c"))
		require.Equal(t, exitOK, ask(t, url, "delete", "links", long, "c").status)
		require.Equal(t, exitUsage, ask(t, url, args...).status, "it is not there any more")
	}
}

// TestNoParkedRunHoldsUpOthers has parked runs for which nothing can be done: the record that says that they failed is damaged, or that which lists them, and with long names
// nothing else says whose they are. All others are released, and the answer names those.
func TestNoParkedRunHoldsUpOthers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 100)
	rows := []string{"failure", "listed", "second", "third", long}
	for _, become := range []string{"release", "drop"} {
		t.Run(become, func(t *testing.T) {
			t.Parallel()
			asked, damage := parkedIn(t, rows...)
			damage(format.Cell{Table: "t", Row: "failure", Column: format.FailureColumn("o", "c")})
			damage(format.ParkedCell("o", format.Cell{Table: "t", Row: "listed", Column: "c"}))
			damage(format.ParkedCell("o", format.Cell{Table: "t", Row: long, Column: "c"}))

			a := asked("parked")
			require.Equal(t, exitOK, a.status, a.err)
			require.Equal(t, 1+len(rows), strings.Count(a.out, "\n"), a.out)
			require.Equal(t, 2, strings.Count(a.out, "its record"), a.out)
			a = asked("parked", "--observer", "o")
			require.Equal(t, len(rows), strings.Count(a.out, "\n"), "nobody knows whose the one with the long name is: %s", a.out)
			require.Equal(t, exitOK, asked("observers").status)
			require.Contains(t, asked("parked", "show", "o", "t", "listed", "c").out, "cannot be read")
			require.Contains(t, asked("parked", "show", "o", "t", long, "c").out, "cannot be read")

			for range 2 {
				a = asked("parked", become, "--all")
				require.Equal(t, exitCorrupt, a.status, a.err)
				require.Contains(t, a.err, "2 parked runs could not be")
				require.Contains(t, a.err, "o t failure c: ")
				require.Contains(t, a.err, "its record", "which says where it is")
			}
			require.Equal(t, 3, strings.Count(asked("parked").out, "\n"), "the others are parked no more")
			require.Equal(t, answer{out: fmt.Sprintf("1 parked runs were %sed\n", strings.Replace(strings.TrimSuffix(become, "e"), "drop", "dropp", 1))}, asked("parked", become, "o", "t", long, "c"))
		})
	}
}

// TestManyFailedRuns: the first few are named, and the others counted.
func TestManyFailedRuns(t *testing.T) {
	t.Parallel()
	var f stuck.RunsError
	for i := range 5 {
		require.NoError(t, f.Take(&admin.Parked{Observer: "o", Cell: admin.Cell{Table: "t", Row: admin.Bytes(fmt.Sprint(i)), Column: "c"}}, percolator.ErrTooLarge))
	}
	require.ErrorIs(t, f.Take(&admin.Parked{}, percolator.ErrUnavailable), percolator.ErrUnavailable, "it is not of the run alone")
	require.Equal(t, 5, f.Len())
	require.ErrorIs(t, &f, percolator.ErrTooLarge)
	require.ErrorContains(t, &f, "o t 2 c: ")
	require.NotContains(t, f.Error(), "o t 3 c: ")
	require.ErrorContains(t, &f, "and 2 others")
	require.Equal(t, exitError, statusOf(t.Context(), begun(&f)), "not that of wrong arguments, with which nothing was done")
}
