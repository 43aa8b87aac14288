package ui_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// counted counts the calls, the rows that are read, and the bytes of their values.
type counted struct {
	*watched
	calls, rows, bytes atomic.Int64
}

func (c *counted) Unwrap() rowstore.Store { return c.watched }

func (c *counted) add(row *rowstore.Row) {
	c.rows.Add(1)
	for i := range row.Versions {
		c.bytes.Add(int64(len(row.Versions[i].Value)))
	}
}

func (c *counted) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	c.calls.Add(1)
	rows, err := c.watched.Read(ctx, reads)
	for i := range rows {
		c.add(&rows[i])
	}
	return rows, err
}

func (c *counted) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	c.calls.Add(1)
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range c.watched.Scan(ctx, s) {
			c.add(&row)
			if !yield(row, err) {
				return
			}
		}
	}
}

func (c *counted) Tables(ctx context.Context) iter.Seq2[string, error] {
	c.calls.Add(1)
	return func(yield func(string, error) bool) {
		for name, err := range c.watched.Tables(ctx) {
			c.rows.Add(1)
			if !yield(name, err) {
				return
			}
		}
	}
}

// cost is what a view takes of the store.
type cost struct{ calls, rows, bytes int64 }

// bounds are all views with what each may cost, over any number of rows.
var bounds = map[string]cost{
	"/":                                 {40, 2600, 2 << 20},
	"/observers":                        {10, 2200, 100 << 10},
	"/backlog?table=t":                  {3, 60, 10 << 10},
	"/parked":                           {5, 50, 20 << 10},
	"/parked?observer=another":          {5, 2100, 100 << 10},
	"/timers?table=t":                   {8, 300, 50 << 10},
	"/tables":                           {3, 20, 10 << 10},
	"/locks":                            {3, 20, 10 << 10},
	"/locks?table=t":                    {60, 150, 50 << 10},
	"/locks?table=plain":                {5, 510, 100 << 10},
	"/cell?table=t&row=r00007&column=c": {12, 20, 10 << 10},
	"/cell?table=t&row=deep&column=c":   {12, 20, 10 << 10},
	"/cell?table=t&row=deep&column=c&values=show": {12, 30, 50 << 10},
	"/processes":                         {5, 300, 20 << 10},
	"/replays":                           {4, 80, 20 << 10},
	"/confirm?do=release-all&observer=o": {0, 0, 0},
}

// TestBounded makes each view over a thousand rows, five thousand and fifty thousand, all of which have notifications, locks, timers, parked
// runs and a history. Each view keeps a bound, and what it reads of ten times as many rows is the same.
func TestBounded(t *testing.T) {
	t.Parallel()
	costs := map[int]map[string]cost{}
	for _, rows := range []int{1000, 5000, 50_000} {
		costs[rows] = costOfViews(t, rows)
	}
	for view, most := range bounds {
		small, some, many := costs[1000][view], costs[5000][view], costs[50_000][view]
		t.Logf("%-45s %+v %+v %+v", view, small, some, many)
		for _, c := range []cost{small, some, many} {
			require.LessOrEqual(t, c.calls, most.calls, view)
			require.LessOrEqual(t, c.rows, most.rows, view)
			require.LessOrEqual(t, c.bytes, most.bytes, view)
		}
		require.Equal(t, some.calls, many.calls, view)
		require.Equal(t, some.rows, many.rows, view)
	}
}

func costOfViews(t *testing.T, rows int) map[string]cost {
	t.Helper()
	db, mem := open(t)
	store := &counted{watched: mem}
	crowd(t, db, mem, rows)
	over, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, over.Close(context.Background())) })
	h, err := ui.New(over, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann", Values: true, Actions: true}, nil }, ui.Options{Timeout: time.Minute})
	require.NoError(t, err)
	costs := map[string]cost{}
	mem.looking.Store(true)
	for view := range bounds {
		store.calls.Store(0)
		store.rows.Store(0)
		store.bytes.Store(0)
		a := ask(t, h, http.MethodGet, view, nil)
		require.Equal(t, http.StatusOK, a.Code, a.Body)
		require.Less(t, a.Body.Len(), 200<<10, view)
		require.False(t, mem.written.Load(), "the view %q has written", view)
		costs[view] = cost{store.calls.Load(), store.rows.Load(), store.bytes.Load()}
	}
	mem.looking.Store(false)
	require.Contains(t, ask(t, h, http.MethodGet, "/observers", nil).Body.String(), ">500&#43;<")
	return costs
}

// crowd registers an observer, and fills the database: each row is locked and has a notification, a timer, a parked run and a process. There
// are as many versions of one cell, as many rows that have nothing but a value, and long hints of garbage.
func crowd(t testing.TB, db *percolator.DB, store rowstore.Store, rows int) {
	t.Helper()
	ctx := t.Context()
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return errors.New("no") }}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		c := percolator.Cell{Table: "t", Row: "first", Column: "c"}
		return errors.Join(tx.Set(c, nil), tx.NotifyAfter(ctx, c, time.Hour)) // so the catalog knows timers
	}))
	now, err := db.Now(ctx)
	require.NoError(t, err)
	table, column := format.Escape("t"), format.Escape("c")
	edit := func(table, row string, edits ...rowstore.Edit) rowstore.Mutation {
		return rowstore.Mutation{Table: table, Row: row, Edits: edits}
	}
	l := format.Lock{Kind: format.KindPut, Expiry: now.Add(time.Hour), Session: "s00001", Primary: format.Cell{Table: table, Row: "r00000", Column: column}}
	short, long := format.Write{Kind: format.KindPut, Start: now - 2}, format.Write{Kind: format.KindPut, Start: now - 2, Long: true}
	lock, write, apart := l.Encode(), short.Encode(), long.Encode()
	names := format.Hint{}
	for i := range 1000 {
		names.Rows = append(names.Rows, fmt.Sprintf("the name of row %05d", i))
	}
	hint := names.Encode()
	var all []rowstore.Mutation
	var deep []rowstore.Edit
	for i := range rows {
		row := fmt.Sprintf("r%05d", i)
		p := format.NewParked("o", format.Cell{Table: table, Row: row, Column: column}, format.Failure{Change: 1, Attempts: 1}, errors.New("no"), now)
		parked, err := p.Encode()
		require.NoError(t, err)
		old := format.Write{Kind: format.KindPut, Start: now - percolator.Timestamp(2*i) - 2, Long: true}
		at := format.ParkedCell("o", format.Cell{Table: table, Row: row, Column: column})
		all = append(all,
			edit(table, row, rowstore.Put(rowstore.Write, column, now-1, write), rowstore.Put(rowstore.Lock, column, now-percolator.Timestamp(i%1000), lock), rowstore.Put(rowstore.Notify, column, now-1, format.WeakNotification)),
			edit(at.Table, at.Row, rowstore.Put(rowstore.Data, at.Column, now-2, parked), rowstore.Put(rowstore.Write, at.Column, now-1, apart)),
			edit(format.TimersTable(table), format.TimerRow(byte(i%format.TimerShards), now.Add(time.Duration(i)*time.Second), now, i), rowstore.Put(rowstore.Write, format.ColumnTimer, now, format.TimerHint{Row: row, Column: column}.Encode())),
			edit(format.TableSessions, fmt.Sprintf("s%05d", i), rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), format.Session{}.Encode())),
			edit(format.Escape("plain"), row, rowstore.Put(rowstore.Write, column, now-1, write)))
		deep = append(deep, rowstore.Put(rowstore.Write, column, old.Start+1, old.Encode()), rowstore.Put(rowstore.Data, column, old.Start, parked))
		if i%50 == 0 {
			all = append(all, edit(format.TableHints, format.HintRow(table, now-percolator.Timestamp(i), "p"), rowstore.Put(rowstore.Write, format.ColumnHint, now, hint)))
		}
	}
	apply := func(some []rowstore.Mutation) {
		out, err := store.Apply(ctx, some, rowstore.ApplyOptions{})
		require.NoError(t, err)
		for i := range out {
			require.NoError(t, out[i].Err)
		}
	}
	for some := range slices.Chunk(all, 1000) {
		apply(some)
	}
	for some := range slices.Chunk(deep, 2000) {
		apply([]rowstore.Mutation{edit(table, "deep", some...)})
	}
}

// TestHistoryOfWideValues shows versions of four megabytes. A page reads some megabytes and shows the beginnings, and the link to older ones
// leads through all of them.
func TestHistoryOfWideValues(t *testing.T) {
	t.Parallel()
	db, mem := open(t)
	store := &counted{watched: mem}
	over, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, over.Close(context.Background())) })
	wide := bytes.Repeat([]byte("w"), 4<<20)
	for i := range 7 {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return tx.Set(percolator.Cell{Table: "t", Row: "r", Column: "c"}, append(fmt.Appendf(nil, "version %d ", i), wide...))
		}))
	}
	h, err := ui.New(over, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann", Values: true}, nil }, ui.Options{Timeout: time.Minute})
	require.NoError(t, err)
	var seen []string
	older := regexp.MustCompile(`<a href="([^"]*)">older</a>`)
	for link := "/cell?table=t&row=r&column=c&values=show"; link != ""; {
		store.bytes.Store(0)
		a := ask(t, h, http.MethodGet, link, nil)
		require.Equal(t, http.StatusOK, a.Code, a.Body)
		require.Less(t, a.Body.Len(), 200<<10)
		require.Less(t, store.bytes.Load(), int64(13<<20))
		seen = append(seen, regexp.MustCompile(`version \d`).FindAllString(a.Body.String(), -1)...)
		link = ""
		if m := older.FindStringSubmatch(a.Body.String()); m != nil {
			link = html.UnescapeString(m[1])
			if !strings.HasPrefix(link, "/") {
				link = "/" + link
			}
			link += "&values=show"
		}
	}
	require.Equal(t, []string{"version 6", "version 5", "version 4", "version 3", "version 2", "version 1", "version 0"}, seen)
}
