package percolator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestConfigure(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	c, other := w.client(), w.client()
	was := Settings{worldAge, worldRetention, worldLease}
	for _, s := range []Settings{
		{MaxTxnAge: worldRetention},
		{Retention: worldAge},
		{Retention: worldAge + worldLease},
		{CatalogLease: worldRetention},
		{MaxTxnAge: -1},
		{Retention: -1},
		{CatalogLease: time.Nanosecond},
	} {
		require.ErrorIs(t, c.Configure(ctx, s), ErrInvalid, "%+v", s)
	}
	require.NoError(t, c.Configure(ctx, Settings{}), "nothing is asked for")
	require.NoError(t, c.Configure(ctx, was), "nothing changes")
	require.Nil(t, c.known().Next)

	wanted := Settings{MaxTxnAge: 2 * worldAge, Retention: worldRetention, CatalogLease: 3 * time.Second}
	require.NoError(t, c.Configure(ctx, Settings{MaxTxnAge: wanted.MaxTxnAge, CatalogLease: wanted.CatalogLease}))
	require.Equal(t, was, c.Settings(), "it takes effect later")
	require.NoError(t, c.Configure(ctx, wanted), "the same again")
	require.ErrorIs(t, c.Configure(ctx, Settings{MaxTxnAge: time.Minute}), ErrInvalid, "another before it took effect")
	require.ErrorIs(t, other.Configure(ctx, Settings{MaxTxnAge: time.Minute}), ErrInvalid, "from elsewhere too")
	w.pass(worldLease)
	require.Equal(t, was, other.Settings())
	// Whoever works meanwhile goes by what is safe either way.
	set(t, other.DB, rowA, "1")
	age, lease := other.known().widest()
	require.Equal(t, wanted.MaxTxnAge, age)
	require.Equal(t, worldLease, lease)
	w.pass(worldLease + time.Second)
	require.Equal(t, wanted, c.Settings())
	set(t, other.DB, rowA, "2")
	_, err := other.loadCatalog(ctx)
	require.NoError(t, err)
	require.Equal(t, wanted, other.Settings())
	require.Equal(t, wanted, w.client().Settings())
	require.NoError(t, c.Configure(ctx, Settings{MaxTxnAge: time.Minute}))
	w.pass(10 * time.Second)
	require.Equal(t, time.Minute, c.Settings().MaxTxnAge)
}

// A change of MaxTxnAge holds for a transaction that goes on while it takes effect:
// a collection can not overtake it.
func TestConfigureShorterAge(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, t1 := w.client(), w.client(opts...)
		tx := writes(t, t1, "1", rowA)
		require.NoError(t, c.Configure(t.Context(), Settings{MaxTxnAge: time.Minute}))
		w.pass(2 * worldLease)
		w.clock.advance(2 * time.Minute)
		require.ErrorIs(t, tx.Commit(t.Context()), ErrTxnTooOld)
	})
}

// Many processes change the catalog at once; nothing of it is lost, also when every
// second reply is.
func TestCatalogUnderContention(t *testing.T) {
	t.Parallel()
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprint("lossy ", lossy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var wg sync.WaitGroup
			const processes = 6
			for p := range processes {
				c := w.client()
				if lossy {
					for i := range 6 {
						v := loseReply
						if i%2 == 1 {
							v = lose
						}
						c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Skip: i, Fault: v})
					}
				}
				wk := NewWorker(c.DB, WorkerConfig{})
				for i := range 3 {
					require.NoError(t, wk.Observe(Observer{Name: fmt.Sprint("o", p, ".", i), Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }}))
				}
				wg.Go(func() {
					if err := wk.publish(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			c := w.client()
			infos, err := c.Observers(t.Context())
			require.NoError(t, err)
			names := map[string]int{}
			for _, o := range infos {
				require.False(t, o.Swept)
				names[o.Name]++
			}
			require.Len(t, names, 3*processes)
			require.Len(t, infos, 3*processes, "one was published twice")
			require.NoError(t, c.RemoveObserver(t.Context(), "o0.0"))
			require.NoError(t, c.RemoveObserver(t.Context(), "nobody"))
			infos, err = c.Observers(t.Context())
			require.NoError(t, err)
			require.Len(t, infos, 3*processes-1)
			rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
			require.NoError(t, err)
			require.Len(t, rows[0].Versions, 1, "old versions of the catalog are left")
		})
	}
}

// The first Opens of many processes at once agree on one catalog.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	var wg sync.WaitGroup
	settings := make([]Settings, 8)
	for i := range settings {
		wg.Go(func() {
			db, err := New(context.Background(), unclosed{newWire(mem)}, WithLogger(slog.New(slog.DiscardHandler)), WithSettings(Settings{MaxTxnAge: time.Hour + time.Duration(i)*time.Minute}))
			if err != nil {
				t.Error(err)
				return
			}
			settings[i] = db.Settings()
			if err := db.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range settings {
		require.Equal(t, settings[0], s)
	}
}

// A catalog of a later version, or a broken one, is refused at Open, with nothing
// changed.
func TestOpenCorruptCatalog(t *testing.T) {
	t.Parallel()
	for value, is := range map[string]error{string(rune(format.CatalogVersion+1)) + "{}": ErrFormat, "\x0a{": ErrCorrupt, "\x09{": ErrCorrupt, "\x08{": ErrCorrupt, "\x07{": ErrCorrupt, "\x06{": ErrCorrupt, "\x05{": ErrCorrupt, "\x04{": ErrCorrupt, "\x03{": ErrCorrupt, "\x01{": ErrCorrupt, "\x02{": ErrCorrupt, "": ErrCorrupt} {
		mem := memstore.New()
		put := rowstore.Put(rowstore.Write, format.ColumnConfig, 5, []byte(value))
		_, err := mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{put}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		_, err = New(t.Context(), mem)
		require.ErrorIs(t, err, is)
		require.ErrorContains(t, err, "catalog")
	}
}

// A process that lives goes by no catalog that its store has lost. A change would store one
// without settings, which nobody could read any more, and a collection would keep nothing.
func TestCatalogThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, format.ColumnConfig, 0, oracle.Max),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	versions := w.versions(rowstore.Write)
	collected := async(func() error {
		_, err := c.CollectGarbage(context.Background(), GCOptions{})
		return err
	})
	require.ErrorIs(t, w.finish(collected), ErrCorrupt)
	require.Equal(t, versions, w.versions(rowstore.Write))
	_, err = c.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
		v.Observers = append(v.Observers, format.Observer{Name: []byte("o"), Table: []byte("t"), Column: []byte("v"), Since: v.asOf})
		return true, nil
	})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "gone")
	// Whoever opens it begins anew.
	again := w.client()
	reads(t, again)
	reads(t, c)
	set(t, c.DB, rowA, "3")
}

// Stored values that can not be decoded are errors that name the place, and never
// taken for something else.
func TestCorruptValues(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		put := func(cell Cell, family rowstore.Family, value string) {
			now, err := db.Now(ctx)
			require.NoError(t, err)
			_, err = db.Store().Apply(ctx, []rowstore.Mutation{{Table: cell.Table, Row: cell.Row, Edits: []rowstore.Edit{
				rowstore.Put(family, cell.Column, now, []byte(value)),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		put(rowA, rowstore.Write, "garbage")
		put(rowB, rowstore.Lock, "garbage")
		missing := format.Write{Kind: format.KindPut, Long: true, Start: 3}
		put(rowC, rowstore.Write, string(missing.Encode()))
		for _, cell := range []Cell{rowA, rowB, rowC} {
			tx, err := db.Begin(ctx)
			require.NoError(t, err)
			_, err = tx.Get(ctx, cell)
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, cell.Row)
			_, err = tx.GetMany(ctx, cell)
			require.ErrorIs(t, err, ErrCorrupt)
			err = scanError(tx.Scan(ctx, Range{Table: "t", From: cell.Row, To: cell.Row + "\x00"}))
			require.ErrorIs(t, err, ErrCorrupt)
		}
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowB, nil))
		require.ErrorIs(t, tx.Commit(ctx), ErrCorrupt)
	})
}

// Callers that share a read of the catalog do not share the end of its reader's context. A
// driver may notice a deadline before the context itself does.
func TestSharedCatalogReadWhoseReaderGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := faultstore.New(memstore.New(), faultstore.Options{})
		db, err := New(t.Context(), f, WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(t.Context())) }()
		load := func() <-chan error { return async(func() error { _, err := db.loadCatalog(t.Context()); return err }) }

		draws := func(c *faultstore.Call) bool { return c.Kind == faultstore.CallDraw }
		held := f.Hold(faultstore.Rule{Match: draws})
		first := load()
		<-held.Reached()
		late := f.Hold(faultstore.Rule{Match: draws})
		second, third := load(), load()
		synctest.Wait() // both wait for the next read, which one of them will make
		held.Release(faultstore.Fault{})
		require.NoError(t, <-first)
		<-late.Reached()
		synctest.Wait() // the other one shares it
		late.Release(faultstore.Fault{Kind: faultstore.Fail, Err: context.DeadlineExceeded})
		gaveUp := 0
		for _, done := range []<-chan error{second, third} {
			if err := <-done; err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				gaveUp++
			}
		}
		require.Equal(t, 1, gaveUp)
	})
}
