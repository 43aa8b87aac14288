package percolator

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A catalog is raised on request when no older program lives: one that has died counts for a lease.
func TestRaiseCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, c := w.client(withoutHints()), w.client()
	w.lowerTo(format.ControlledVersion)
	stored := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Newest(rowstore.Write, format.ColumnConfig).Value[0]
	}
	raise := func(lives bool) error {
		done := async(func() error { return c.RaiseCatalog(t.Context()) })
		_, ended := w.clock.sleeps(t, worldLease, done)
		require.False(t, ended, "it did not wait for what may have died")
		require.EqualValues(t, format.ControlledVersion, stored())
		if lives {
			_, err := old.loadCatalog(t.Context())
			require.NoError(t, err)
		}
		w.pass(worldLease)
		return w.finish(done)
	}
	err := raise(true)
	require.ErrorIs(t, err, ErrOlderProgram)
	require.EqualValues(t, format.ControlledVersion, stored(), "nothing has changed")

	before := mustNow(t, c)
	require.NoError(t, raise(false))
	require.EqualValues(t, format.HintedVersion, stored())
	require.GreaterOrEqual(t, c.known().HintsFrom, before.Add(worldLease))

	revision := c.known().revision
	require.NoError(t, c.RaiseCatalog(t.Context()))
	require.Equal(t, revision, c.known().revision, "a catalog that is raised is left alone")
}

// Nothing is to be waited for where no older program has left a record.
func TestRaiseCatalogAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.lowerTo(format.PlainCatalogVersion)
	require.NoError(t, c.RaiseCatalog(t.Context()))
	require.True(t, c.known().Hinted)
	require.NotZero(t, c.known().HintsFrom)
	require.NoError(t, c.Close(t.Context()))
	w.without(c)
	require.ErrorIs(t, c.RaiseCatalog(t.Context()), ErrClosed)
}

// A worker whose program is too old for the catalog ends, and leaves its share to others.
func TestWorkerOfAnOlderProgramEnds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	mem := memstore.New()
	db, err := New(ctx, mem, WithSettings(Settings{CatalogLease: 50 * time.Millisecond, MaxTxnAge: time.Minute}), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "c", Func: func(context.Context, *Txn, Cell) error { return nil }}))
	running := async(func() error { return w.Run(ctx) })
	require.NoError(t, w.WaitIdle(ctx))

	read := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}
	rows, err := mem.Read(ctx, []rowstore.RowRead{read})
	require.NoError(t, err)
	later := append([]byte{format.CatalogVersion + 1}, rows[0].Versions[0].Value[1:]...)
	ts, err := db.Now(ctx)
	require.NoError(t, err)
	_, err = mem.Apply(ctx, []rowstore.Mutation{{Table: read.Table, Row: read.Row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnConfig, ts, later),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, result(t, running), ErrFormat)
	for row, err := range mem.Scan(ctx, rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{everything(rowstore.Lock, format.ColumnMember)}}) {
		require.NoError(t, err)
		require.Equal(t, format.RowGeneration, row.Row, "the worker is still a member")
	}
}
