package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A transaction, a run of an observer and one of a periodic have the level that they name, and the DB's if they name none.
func TestDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, of := range []Isolation{DefaultIsolation, SnapshotIsolation, Serializable} {
		for _, named := range []Isolation{DefaultIsolation, SnapshotIsolation, Serializable} {
			t.Run(fmt.Sprint(of, " ", named), func(t *testing.T) {
				t.Parallel()
				want := named
				if want == DefaultIsolation {
					want = of
				}
				if want == DefaultIsolation {
					want = SnapshotIsolation
				}
				db := open(t, memstore.New(), WithDefaultIsolation(of), WithSettings(Settings{CatalogLease: 20 * time.Millisecond}))
				tx, err := db.Begin(t.Context(), WithIsolation(named))
				require.NoError(t, err)
				require.Equal(t, want, tx.opt.isolation)
				ran := make(chan Isolation, 2)
				tell := func(tx *Txn) error {
					select {
					case ran <- tx.opt.isolation:
					default: // it ticks on
					}
					return nil
				}
				wk := NewWorker(db, WorkerConfig{})
				require.NoError(t, wk.Observe(Observer{
					Name: "o", Table: "t", Column: "v", Isolation: named, Func: func(_ context.Context, tx *Txn, _ Cell) error { return tell(tx) },
				}))
				require.NoError(t, wk.Every(Periodic{
					Name: "p", Schedule: Interval(time.Millisecond), Isolation: named,
					Func: func(_ context.Context, tx *Txn, _ time.Time) error { return tell(tx) },
				}))
				for _, q := range wk.list {
					require.Equal(t, named, q.o.Isolation)
				}
				set(t, db, rowA, "1")
				ctx, stop := context.WithCancel(t.Context())
				done := async(func() error { return wk.Run(ctx) })
				for range 2 {
					require.Equal(t, want, <-ran)
				}
				stop()
				require.NoError(t, result(t, done))
			})
		}
	}
}

func TestNoSuchIsolation(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := open(t, memstore.New())
	for _, i := range []Isolation{-1, Serializable + 1} {
		mem := memstore.New()
		_, err := New(ctx, mem, WithDefaultIsolation(i))
		require.ErrorIs(t, err, ErrInvalid)
		for table, err := range mem.Tables(ctx) {
			t.Fatal("something was written", table, err)
		}
		_, err = db.Begin(ctx, WithIsolation(i))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, db.Update(ctx, func(*Txn) error { return nil }, WithIsolation(i)), ErrInvalid)
		require.ErrorIs(t, db.View(ctx, func(*Txn) error { return nil }, WithIsolation(i)), ErrInvalid)
		wk := NewWorker(db, WorkerConfig{})
		require.ErrorIs(t, wk.Observe(Observer{Name: "o", Table: "t", Column: "v", Isolation: i, Func: func(context.Context, *Txn, Cell) error { return nil }}), ErrInvalid)
		require.ErrorIs(t, wk.Every(Periodic{Name: "p", Schedule: Interval(time.Minute), Isolation: i, Func: func(context.Context, *Txn, time.Time) error { return nil }}), ErrInvalid)
	}
	require.Equal(t, "default snapshot serializable Isolation(7)", fmt.Sprint(DefaultIsolation, " ", SnapshotIsolation, " ", Serializable, " ", Isolation(7)))
}
