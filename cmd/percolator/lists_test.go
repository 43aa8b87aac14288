package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// allPages goes through a list as its last lines say, and returns its lines without heads. Each must come once.
func allPages(t *testing.T, store string, args ...string) map[string]bool {
	t.Helper()
	seen, from := map[string]bool{}, ""
	for {
		page := append([]string{}, args...)
		if from != "" {
			page = append(page, "--from", from)
		}
		a := ask(t, store, page...)
		require.Equal(t, exitOK, a.status, "%q: %s", page, a.err)
		lines := strings.Split(strings.TrimRight(a.out, "\n"), "\n")
		last := lines[len(lines)-1]
		var list struct {
			Next string
			More bool
		}
		require.NoError(t, json.Unmarshal([]byte(ask(t, store, append(page, "--json")...).out), &list))
		rest, more := strings.CutPrefix(last, "... and more: --from ")
		if more {
			lines = lines[:len(lines)-1]
		}
		for _, line := range lines[1:] {
			name := strings.Join(strings.Fields(line)[:2], " ")
			require.False(t, seen[name], "%q comes again with %q", name, page)
			seen[name] = true
		}
		require.Equal(t, more, list.More)
		if !more {
			require.Empty(t, list.Next)
			return seen
		}
		words := shellWords(t, rest)
		require.Len(t, words, 1)
		// The word for a shell may be typed in another way, with the same bytes: names of timers may have a quote in them.
		inJSON, err := admin.ParseBytes(list.Next)
		require.NoError(t, err)
		typed, err := admin.ParseBytes(words[0])
		require.NoError(t, err)
		require.Equal(t, inJSON, typed)
		require.NotEqual(t, from, words[0], "it does not go on")
		from = words[0]
	}
}

// longLists makes a database with so many parked runs of two observers, sessions and members, and says how many sessions were there before.
func longLists(t *testing.T, cells int) (url string, sessions int) {
	t.Helper()
	ctx := t.Context()
	url = "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(ctx, url, percolator.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1, BreakAt: -1})
	for _, name := range []string{"even", "odd"} {
		require.NoError(t, w.Observe(percolator.Observer{Name: name, Table: "t", Column: "c", Func: func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
			if (c.Row[len(c.Row)-1]%2 == 0) == (name == "even") {
				return percolator.Park(errors.New("no"))
			}
			return nil
		}}))
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range cells {
			if err := tx.Set(cell("t", fmt.Sprintf("row '%02d", i), "c"), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	now, err := db.Now(ctx)
	require.NoError(t, err)
	r, err := admin.Of(db)
	require.NoError(t, err)
	before, _, err := r.Sessions(ctx, "", 0)
	require.NoError(t, err)
	for i := range cells {
		id := fmt.Sprintf("p %02d", i)
		m := format.Member{From: now, Lease: time.Minute, Works: []format.MemberWork{{Observer: "even", Table: "t", Column: "c", Weight: 1}}}
		for table, edits := range map[string][]rowstore.Edit{
			format.TableSessions: {rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), format.Session{}.Encode())},
			format.TableMembers:  {rowstore.Put(rowstore.Lock, format.ColumnMember, now, m.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), nil)},
		} {
			out, err := db.Store().Apply(ctx, []rowstore.Mutation{{Table: table, Row: id, Edits: edits}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.NoError(t, out[0].Err)
		}
	}
	require.NoError(t, db.Close(ctx))
	return url, len(before)
}

// TestListsGoOn goes through the lists that may be long, a few lines at a time.
func TestListsGoOn(t *testing.T) {
	t.Parallel()
	const cells = 23
	url, before := longLists(t, cells)
	require.Len(t, allPages(t, url, "sessions", "--limit", "5"), before+cells)
	require.Len(t, allPages(t, url, "members", "--limit", "5"), cells)
	// Names of rows have blanks: what tells lines apart here is the head of a row.
	all := func(observer ...string) (n int) {
		for from := ""; ; {
			args := append([]string{"parked", "--limit", "4", "--json"}, observer...)
			if from != "" {
				args = append(args, "--from", from)
			}
			a := ask(t, url, args...)
			require.Equal(t, exitOK, a.status, a.err)
			var list struct {
				Items []struct{ Row string }
				Next  string
			}
			require.NoError(t, json.Unmarshal([]byte(a.out), &list))
			n += len(list.Items)
			if from = list.Next; from == "" {
				return n
			}
		}
	}
	require.Equal(t, cells, all())
	require.Equal(t, 12, all("--observer", "even"))
	a := ask(t, url, "parked", "--limit", "4", "--observer", "odd")
	_, from, found := strings.Cut(a.out, "... and more: --from ")
	require.True(t, found, a.out)
	from = shellWords(t, strings.TrimSpace(from))[0]
	require.Equal(t, answer{out: "7 parked runs were released\n"}, ask(t, url, "parked", "release", "--observer", "odd", "--from", from), "those from there on")
	require.Equal(t, 4, all("--observer", "odd"))
	require.Equal(t, answer{out: "0 parked runs were released\n"}, ask(t, url, "parked", "release", "--observer", "odd", "--from", from))
	require.Equal(t, exitUsage, ask(t, url, "parked", "--from", "").status)
	require.Equal(t, exitUsage, ask(t, url, "timers", "t", "--from", "%zz").status)
}

// TestHistoryOfWideValues shows a history whose values are many megabytes. Its last line says how to go on, and each version comes once.
func TestHistoryOfWideValues(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), "pebble:"+filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(ctx, url)
	require.NoError(t, err)
	for i := range 40 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			return tx.Set(cell("t", "r", "c"), []byte(fmt.Sprintf("v%02d ", i)+strings.Repeat("wide", 125_000)))
		}))
	}
	require.NoError(t, db.Close(ctx))
	var versions []string
	args, pages := []string{"history", "t", "r", "c"}, 0
	for more := true; more; pages++ {
		a := ask(t, url, args...)
		require.Equal(t, exitOK, a.status, a.err)
		require.Less(t, len(a.out), 13<<20, "a page of %d megabytes", len(a.out)>>20)
		for _, line := range strings.Split(a.out, "\n") {
			if _, value, found := strings.Cut(line, "  v"); found {
				versions = append(versions, value[:2])
			}
		}
		var rest string
		_, rest, more = strings.Cut(a.out, "... and older ones: ")
		args = append([]string{"history", "t", "r", "c"}, strings.Fields(rest)...)
	}
	require.Equal(t, 3, pages)
	require.Len(t, versions, 40)
	for i, v := range versions {
		require.Equal(t, fmt.Sprintf("%02d", 39-i), v)
	}
}

// TestRangesGoOn follows the last lines of scan and of locks, for each way to name a range. No row comes twice, and none from outside the range.
func TestRangesGoOn(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for _, row := range []string{"abe", "ann 's/1", "ann 's/2", "ann 's/3", "bob", "cay"} {
			if err := tx.Set(cell("order", row, "c"), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.Close(t.Context()))
	for _, c := range []struct {
		command []string
		limit   string
		flags   []string
		pages   int
	}{
		{[]string{"scan", "order"}, "--limit", []string{"--prefix", "ann 's/"}, 3},
		{[]string{"scan", "order"}, "--limit", []string{"--from", "ann", "--to", "bob"}, 3},
		{[]string{"scan", "order"}, "--limit", []string{"--to", "b"}, 4},
		{[]string{"scan", "order"}, "--limit", nil, 6},
		{[]string{"locks", "order"}, "--rows", []string{"--prefix", "ann 's/"}, 4},
		{[]string{"locks", "order"}, "--rows", []string{"--from", "ann", "--to", "bob"}, 4},
	} {
		flags, pages := c.flags, 0
		for more := true; more; {
			a := ask(t, url, append(append(append([]string{}, c.command...), c.limit, "1"), flags...)...)
			require.Equal(t, exitOK, a.status, "%v %q: %s", c.command, flags, a.err)
			pages++
			require.LessOrEqual(t, pages, c.pages, "%v %q: %s", c.command, c.flags, a.out)
			lines := strings.Split(strings.TrimRight(a.out, "\n"), "\n")
			var rest string
			if _, rest, more = strings.Cut(lines[len(lines)-1], ": "); more {
				flags = shellWords(t, rest)
			}
		}
		require.Equal(t, c.pages, pages, "%v %q", c.command, c.flags)
	}
}
