package postgres

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A full disk refuses transactions for certain and whole, leaves reads alone, and is
// forgotten once there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	srv := testserver.NewPostgres(t, nil)
	if srv.SmallDisk == "" {
		t.Skip("only a server in a container has a small disk")
	}
	// The log stays on the large disk: a server that cannot write that ends itself.
	dir := srv.SmallDisk + "/tables"
	sqlDo(t, srv.URL, "COPY (SELECT) TO PROGRAM 'mkdir "+dir+"'")
	sqlDo(t, srv.URL, "CREATE TABLESPACE small LOCATION '"+dir+"'")
	sqlDo(t, srv.URL, "CREATE TABLE filler TABLESPACE small AS SELECT repeat('x', 1000) FROM generate_series(1, 6000)")
	ctx := testContext(t)
	s := openTest(t, with(srv.URL, "schema", "full", "default_tablespace", "small"))
	db, err := percolator.New(ctx, s)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(ctx)) }()

	random := func() []byte { // which the server cannot make shorter
		v := make([]byte, 100_000)
		_, err := rand.Read(v)
		require.NoError(t, err)
		return v
	}
	cell := func(row string) percolator.Cell { return percolator.Cell{Table: "t", Row: row, Column: "v"} }
	put := func(rows ...string) error {
		return db.Update(ctx, func(tx *percolator.Txn) error {
			var errs []error
			for _, row := range rows {
				errs = append(errs, tx.Set(cell(row), random()))
			}
			return errors.Join(errs...)
		})
	}
	has := func(row string) bool {
		var found bool
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			_, err := tx.Get(ctx, cell(row))
			found = err == nil
			if errors.Is(err, percolator.ErrNotFound) {
				return nil
			}
			return err
		}), "a full disk keeps nobody from reading")
		return found
	}
	wrote := 0
	for ; err == nil && wrote < 1000; wrote++ {
		err = put(fmt.Sprint("a", wrote), fmt.Sprint("b", wrote))
	}
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "after %d transactions", wrote)
	require.Equal(t, diskFull, pg.Code)
	require.ErrorIs(t, err, percolator.ErrFull)
	require.NotErrorIs(t, err, percolator.ErrUndetermined)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	require.Greater(t, wrote, 1)
	last := fmt.Sprint(wrote - 1)
	require.False(t, has("a"+last) || has("b"+last), "nothing of what was refused is there")
	require.True(t, has("a0") && has("b0"))

	sqlDo(t, srv.URL, "DROP TABLE filler")
	sqlDo(t, srv.URL, "CHECKPOINT") // after which its files are gone
	require.NoError(t, put("a"+last, "b"+last))
	require.True(t, has("a"+last) && has("b"+last))
}
