package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// ownPool makes a pool as a program has one, changed by change, which may be nil.
func ownPool(t testing.TB, dsn string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	atend.Do(t, pool.Close)
	return pool
}

// selfish are the habits of programs that have a pool to themselves: whatever a store could
// rely on is something else, and differs from one use of a connection to the next.
func selfish(cfg *pgxpool.Config) {
	cfg.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
		err := exec(ctx, c, `SET search_path = nowhere; SET synchronous_commit = off; SET client_min_messages = error;
			SET enable_indexscan = off; SET plan_cache_mode = force_custom_plan; SET DateStyle = 'German'; SET bytea_output = 'escape';
			SET default_transaction_isolation = 'repeatable read'; SET extra_float_digits = 0; SET TimeZone = 'Asia/Kolkata'`)
		return err == nil, err
	}
	// A few uses in between show what the ones before leave. To throw away at each all that is planned costs the server
	// many times what the calls do.
	var uses atomic.Int64
	cfg.AfterRelease = func(c *pgx.Conn) bool {
		return uses.Add(1)%8 != 0 || exec(context.Background(), c, "DISCARD ALL") == nil
	}
}

// A store over a pool that belongs to the program, of one connection, which others use too. Selfish runs every
// category; OnlyOne those in which a call could need a second connection, or could keep the only one.
func TestConformanceOwnPool(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pgxpool.Config){
		"OnlyOne": func(cfg *pgxpool.Config) { cfg.MaxConns = 1 },
		"Selfish": func(cfg *pgxpool.Config) { selfish(cfg); cfg.MaxConns = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, schemas := recycled(t)
			leave := conformance.Without(sizesElsewhere, conformance.Sizes)
			if name == "OnlyOne" {
				leave = conformance.Without("Selfish has them, or TestConformance", conformance.Sizes, conformance.Conditions, conformance.Edits,
					conformance.Names, conformance.Arguments)
			}
			conformance.RunStore(t, func(t testing.TB) rowstore.Store {
				pool, schema := schemas.pool(t, func() *pgxpool.Config {
					cfg, err := pgxpool.ParseConfig(direct)
					require.NoError(t, err)
					change(cfg)
					return cfg
				})
				s, err := New(context.Background(), pool, Options{Schema: schema})
				require.NoError(t, err)
				return s
			}, conformance.Scale(0.02), leave)
		})
	}
}

// Close leaves the pool as it was: open, with nothing taken out of it.
func TestOwnPoolStaysOpen(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	pool := ownPool(t, direct, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	var stores []*Store
	for range 2 { // and two stores may share it
		s, err := New(ctx, pool, Options{Schema: schema})
		require.NoError(t, err)
		stores = append(stores, s)
	}
	db, err := percolator.New(ctx, stores[0])
	require.NoError(t, err)
	other, err := percolator.New(ctx, stores[1])
	require.NoError(t, err)
	c := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	for i := range 10 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, []byte{byte(i)}) }))
		var n int
		require.NoError(t, pool.QueryRow(ctx, "SELECT 1").Scan(&n))
		require.NoError(t, other.View(ctx, func(tx *percolator.Txn) error {
			got, err := tx.Get(ctx, c)
			require.Equal(t, []byte{byte(i)}, got)
			return err
		}))
	}
	for _, err := range stores[0].Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1 << 62}}}) {
		require.NoError(t, err)
		require.Zero(t, pool.Stat().AcquiredConns(), "a scan holds no connection while its consumer works")
	}
	require.NoError(t, db.Close(ctx))
	require.NoError(t, other.Close(ctx))
	require.Zero(t, pool.Stat().AcquiredConns())
	require.NoError(t, pool.Ping(ctx))

	// The other way round.
	s, err := New(ctx, pool, Options{Schema: schema, NoCoalesce: true})
	require.NoError(t, err)
	pool.Close()
	_, err = s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: 1}}}})
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.ErrorContains(t, err, "the program has closed the pool")
	require.NoError(t, s.Close())
	_, err = New(ctx, pool, Options{Schema: schema})
	require.ErrorIs(t, err, rowstore.ErrClosed)
}

// Pools that would lose something without a word are refused, with what to change.
func TestPoolsRefused(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	several := strings.Replace(direct, "@", "@127.0.0.1:1,", 1)
	_, err := New(ctx, ownPool(t, several, nil), Options{Schema: fresh(t, direct)})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "target_session_attrs=primary")
	s, err := New(ctx, ownPool(t, several+"&target_session_attrs=primary", nil), Options{Schema: fresh(t, direct)})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = New(ctx, ownPool(t, direct, nil), Options{URL: direct})
	require.ErrorIs(t, err, rowstore.ErrInvalid)

	server := testserver.NewPostgres(t, map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
	_, err = New(ctx, ownPool(t, server.URL, nil), Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "postgres.OnNotice")
}

// A hook of the pool that fails is named, in its own words.
func TestHooksThatFail(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	var fail atomic.Bool
	mine := errors.New("the hook's own words")
	pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
		cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if fail.Load() {
				return false, mine
			}
			return true, nil
		}
	})
	s, err := New(ctx, pool, Options{Schema: fresh(t, direct)})
	require.NoError(t, err)
	fail.Store(true)
	_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, mine)
	require.ErrorContains(t, err, "a hook of the pool failed: the hook's own words")
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	fail.Store(false)
	out, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.NoError(t, s.Close())
}

// Options that were read from a URL open the same store as the URL.
func TestParseURL(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	o, err := ParseURL(with(direct, "schema", schema, "max_batch", "7", "pool_max_conns", "3", "listen", direct))
	require.NoError(t, err)
	require.Equal(t, Options{URL: with(direct, "pool_max_conns", "3"), Schema: schema, Listen: direct, Coalesce: &coalesce.Options{MaxBatch: 7}}, o)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.EqualValues(t, 3, s.plain.pool.Config().MaxConns)
	require.NoError(t, s.Close())

	for _, o := range []Options{{}, {URL: "host=127.0.0.1"}, {URL: with(direct, "schema", "s")}, {URL: direct, Schema: strings.Repeat("s", 64)}} {
		_, err := Open(ctx, o)
		require.ErrorIs(t, err, rowstore.ErrInvalid)
	}
	_, err = ParseURL("redis://127.0.0.1")
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// A password may be a word of an error's message by chance. The error keeps its kind, and the message loses the word.
func TestErrorsWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	_, err := OpenURL(t.Context(), "postgres://u:localhost@localhost:1/db?sslmode=disable")
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotContains(t, err.Error(), "localhost")
	layout := &rowstore.LayoutError{Store: "the schema \"word\"", Stored: 1, Known: 2}
	err = scrub(fmt.Errorf("opening: %w", layout), []string{"word"})
	require.NotContains(t, err.Error(), "word")
	require.ErrorIs(t, err, rowstore.ErrFormat)
	var same *rowstore.LayoutError
	require.ErrorAs(t, err, &same)
	require.NoError(t, errors.Unwrap(err), "who prints a chain prints no secret")
}
