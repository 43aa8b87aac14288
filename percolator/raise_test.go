package percolator

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
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

// raisedBeyond has a newer program raise the catalog.
func raisedBeyond(t testing.TB, mem *memstore.Store) {
	t.Helper()
	ctx := t.Context()
	read := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}
	rows, err := mem.Read(ctx, []rowstore.RowRead{read})
	require.NoError(t, err)
	later := append([]byte{format.CatalogVersion + 1}, rows[0].Versions[0].Value[1:]...)
	ts, err := mem.Oracle().Draw(ctx, 1)
	require.NoError(t, err)
	_, err = mem.Apply(ctx, []rowstore.Mutation{{Table: read.Table, Row: read.Row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnConfig, ts, later),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
}

// Whatever the worker is at, it ends.
func TestWorkerOfAnOlderProgramEnds(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"idle", "before Run", "sweep"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			mem := memstore.New()
			wire := faultstore.New(mem, faultstore.Options{Seed: 1})
			db, err := New(ctx, wire, WithStorePatience(time.Millisecond), WithSettings(Settings{CatalogLease: 50 * time.Millisecond, MaxTxnAge: time.Minute}), WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
			w := NewWorker(db, WorkerConfig{})
			require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "c", Func: nothing}))
			run := func() <-chan error { return async(func() error { return w.Run(ctx) }) }
			var running <-chan error
			switch when {
			case "idle":
				running = run()
				require.NoError(t, w.WaitIdle(ctx))
				raisedBeyond(t, mem)
			case "before Run":
				raisedBeyond(t, mem)
				running = run()
			case "sweep": // whose table is away
				away := wire.AddRule(faultstore.Rule{Match: scansOfT, Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}, Times: -1})
				running = run()
				require.Eventually(t, func() bool { return away.Struck() > 10 }, patience, time.Millisecond)
				raisedBeyond(t, mem)
			}
			require.ErrorIs(t, result(t, running), ErrFormat)
			for row, err := range mem.Scan(ctx, rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{everything(rowstore.Lock, format.ColumnMember)}}) {
				require.NoError(t, err)
				require.Equal(t, format.RowGeneration, row.Row, "the worker is still a member")
			}
		})
	}
}

// The same for what is before that.
func TestPeriodicsOfAnOlderProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	worker := NewWorker(c.DB, WorkerConfig{})
	require.NoError(t, worker.Every(Periodic{Name: "p", Schedule: Interval(time.Minute), Func: func(context.Context, *Txn, time.Time) error { return nil }}))
	require.NoError(t, worker.publish(t.Context()))
	raisedBeyond(t, w.mem)
	w.clock.advance(worldLease)
	require.ErrorIs(t, w.finish(async(func() error { return worker.startPeriodics(t.Context()) })), ErrFormat)
}
