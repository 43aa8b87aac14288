package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
)

// On a server so busy that each write takes longer than a lease of the catalog, transactions
// commit at their first attempt, and a worker comes to an end of its work.
func TestWritesSlowerThanTheCatalogLease(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]percolator.Option{"Groups": nil, "TwoPhase": {coretest.WithoutGroups()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writesSlowerThanTheLease(t, opts)
		})
	}
}

func writesSlowerThanTheLease(t *testing.T, opts []percolator.Option) {
	t.Helper()
	const (
		lease   = 2 * time.Millisecond
		takes   = 30 * time.Millisecond // a statement that writes cells, at least; timestamps may be 20 behind the clock
		writers = 4
		rounds  = 3
	)
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema))
	db, err := percolator.New(ctx, s, append([]percolator.Option{
		percolator.WithSettings(percolator.Settings{MaxTxnAge: 10 * time.Minute, Retention: time.Hour, CatalogLease: lease}),
		percolator.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	cell := func(row int, column string) percolator.Cell {
		return percolator.Cell{Table: "t", Row: fmt.Sprint(row), Column: column}
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "copy", Table: "t", Column: "a", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		v, err := tx.Get(ctx, c)
		c.Column = "b"
		return errors.Join(err, tx.Set(c, v))
	}}))
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(working) }()
	require.NoError(t, w.WaitIdle(ctx))

	makeBusy(t, direct, schema, takes)
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			for i := range rounds {
				var began percolator.Timestamp
				attempts := 0
				err := db.Update(ctx, func(tx *percolator.Txn) error {
					attempts++
					var err error
					began, err = tx.StartTimestamp(ctx)
					return errors.Join(err, tx.Set(cell(2*n, "a"), fmt.Append(nil, i)), tx.Set(cell(2*n+1, "a"), fmt.Append(nil, i)))
				})
				if err != nil || attempts != 1 {
					t.Errorf("writer %d, update %d: %d attempts, %v", n, i, attempts, err)
					return
				}
				if now, err := db.Now(ctx); err != nil || now.Sub(began) <= lease {
					t.Errorf("writer %d, update %d took %v, which is no longer than the lease (%v)", n, i, now.Sub(began), err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for row := range 2 * writers {
			v, err := tx.Get(ctx, cell(row, "b"))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(rounds-1), string(v))
		}
		return nil
	}))
	require.Zero(t, db.Stats().ObserverConflicts)
}

// makeBusy makes each statement that writes cells of a schema take at least so long.
func makeBusy(t *testing.T, direct, schema string, takes time.Duration) {
	t.Helper()
	in := pgx.Identifier{schema}.Sanitize()
	sqlDo(t, direct, fmt.Sprintf(`CREATE FUNCTION %[1]s.busy() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM pg_sleep(%[2]f); RETURN NULL; END $f$;
				CREATE TRIGGER busy AFTER INSERT OR UPDATE ON %[1]s.cell FOR EACH STATEMENT EXECUTE FUNCTION %[1]s.busy()`, in, takes.Seconds()))
}
