package ui_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// counted counts the rows that are read, and the calls.
type counted struct {
	*watched
	rows, calls atomic.Int64
}

func (c *counted) Unwrap() rowstore.Store { return c.watched }

func (c *counted) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	c.calls.Add(1)
	c.rows.Add(int64(len(reads)))
	return c.watched.Read(ctx, reads)
}

func (c *counted) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	c.calls.Add(1)
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range c.watched.Scan(ctx, s) {
			c.rows.Add(1)
			if !yield(row, err) {
				return
			}
		}
	}
}

// TestBounded makes each view over twenty thousand rows, all of which have notifications, locks, timers, parked runs. No view
// reads more than a few thousand, or makes many calls, so none depends on how many there are.
func TestBounded(t *testing.T) {
	t.Parallel()
	db, mem := open(t)
	store := &counted{watched: mem}
	crowd(t, db, mem, 20_000)
	over, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, over.Close(context.Background())) })
	h, err := ui.New(over, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann", Values: true}, nil }, ui.Options{Timeout: time.Minute})
	require.NoError(t, err)
	for view, most := range map[string]struct{ rows, calls int64 }{
		"/": {4000, 40}, "/observers": {4000, 20}, "/backlog?table=t": {200, 10}, "/parked": {300, 10}, "/parked?observer=another": {4200, 100}, "/timers?table=t": {500, 20},
		"/tables": {50, 10}, "/locks?table=t": {700, 60}, "/cell?table=t&row=r00007&column=c": {500, 20}, "/processes": {800, 10}, "/replays": {100, 10},
	} {
		store.rows.Store(0)
		store.calls.Store(0)
		a := ask(t, h, http.MethodGet, view, nil)
		require.Equal(t, http.StatusOK, a.Code, a.Body)
		require.LessOrEqual(t, store.rows.Load(), most.rows, view)
		require.LessOrEqual(t, store.calls.Load(), most.calls, view)
		require.Less(t, a.Body.Len(), 200<<10, view)
	}
	require.Contains(t, ask(t, h, http.MethodGet, "/observers", nil).Body.String(), ">500&#43;<")
}

// crowd registers an observer, and fills the database: each row is locked and has a notification, a timer, a parked run and a process.
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
	var all []rowstore.Mutation
	for i := range rows {
		row := fmt.Sprintf("r%05d", i)
		p := format.NewParked("o", format.Cell{Table: table, Row: row, Column: column}, format.Failure{Change: 1, Attempts: 1}, errors.New("no"), now)
		parked, err := p.Encode()
		require.NoError(t, err)
		at := format.ParkedCell("o", format.Cell{Table: table, Row: row, Column: column})
		all = append(all,
			edit(table, row, rowstore.Put(rowstore.Write, column, now-1, write), rowstore.Put(rowstore.Lock, column, now-percolator.Timestamp(i%1000), lock), rowstore.Put(rowstore.Notify, column, now-1, format.WeakNotification)),
			edit(at.Table, at.Row, rowstore.Put(rowstore.Data, at.Column, now-2, parked), rowstore.Put(rowstore.Write, at.Column, now-1, apart)),
			edit(format.TimersTable(table), format.TimerRow(byte(i%format.TimerShards), now.Add(time.Duration(i)*time.Second), now, i), rowstore.Put(rowstore.Write, format.ColumnTimer, now, format.TimerHint{Row: row, Column: column}.Encode())),
			edit(format.TableSessions, fmt.Sprintf("s%05d", i), rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), format.Session{}.Encode())))
	}
	for some := range slices.Chunk(all, 1000) {
		out, err := store.Apply(ctx, some, rowstore.ApplyOptions{})
		require.NoError(t, err)
		for i := range out {
			require.NoError(t, out[i].Err)
		}
	}
}
