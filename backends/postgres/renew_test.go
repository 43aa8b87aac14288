package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// readers are the connections of a role whose default forbids writes.
type readers struct {
	s     *Store
	pool  *pgxpool.Pool
	dials atomic.Int64 // connections that were made, also those beside the pool
	away  atomic.Bool  // no connection can be made

	allow func() // lets new sessions write
}

const readersConns = 4

// openReaders opens a store, over a pool of its own or of the program's, that has readersConns connections. Writes are forbidden to them.
func openReaders(ctx context.Context, t *testing.T, owned bool) *readers {
	t.Helper()
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	before := openTest(t, with(direct, "schema", schema))
	_, err := before.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	role := fmt.Sprintf("reader%d", schemas.Add(1))
	sqlDo(t, direct, "CREATE ROLE "+role+" SUPERUSER LOGIN PASSWORD "+literal(testserver.PostgresPassword))
	r := &readers{
		allow: func() { sqlDo(t, direct, "ALTER ROLE "+role+" RESET default_transaction_read_only") },
	}
	sqlDo(t, direct, "ALTER ROLE "+role+" SET default_transaction_read_only = on")
	dsn := strings.Replace(direct, "postgres:"+testserver.PostgresPassword, role+":"+testserver.PostgresPassword, 1)
	r.pool = ownPool(t, dsn, func(cfg *pgxpool.Config) {
		cfg.MaxConns, cfg.MinConns = 2*readersConns, 0
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if r.away.Load() {
				return nil, errors.New("no connection can be made")
			}
			r.dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	s, err := open(ctx, r.pool, Options{Schema: schema, NoCoalesce: true}, false, owned)
	require.NoError(t, err)
	s.plain.renewal.within = time.Minute // however busy the machine is
	r.s = s
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		r.pool.Close() // before the role goes
		sqlDo(t, direct, "DROP ROLE "+role)
	})
	var held []*pgxpool.Conn
	for range readersConns {
		c, err := r.pool.Acquire(ctx)
		require.NoError(t, err)
		held = append(held, c)
	}
	for _, c := range held {
		c.Release()
	}
	return r
}

// eachPool runs a test over readers of a pool of the store's own, and of the program's.
func eachPool(t *testing.T, test func(ctx context.Context, t *testing.T, owned bool, r *readers)) {
	t.Helper()
	for _, owned := range []bool{true, false} {
		t.Run(fmt.Sprintf("owned %v", owned), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			test(ctx, t, owned, openReaders(ctx, t, owned))
		})
	}
}

func (r *readers) write(ctx context.Context) error {
	_, err := r.s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	return err
}

// refused has the server refuse writes, and answer a read after each.
func (r *readers) refused(ctx context.Context, t *testing.T, writes int) {
	t.Helper()
	for range writes {
		require.ErrorIs(t, r.write(ctx), errReadOnly)
		rows, err := r.s.Read(ctx, []rowstore.RowRead{pointOf("a", oracle.Max)})
		require.NoError(t, err)
		require.NoError(t, rows[0].Err)
	}
}

// While new sessions are refused just as well, refused writes keep the connections, for those that read. A new session is asked now and then. Once it may
// write, no old one is used for long.
func TestRefusedWritesKeepConnections(t *testing.T) {
	t.Parallel()
	eachPool(t, func(ctx context.Context, t *testing.T, owned bool, r *readers) {
		r.s.plain.renewal.every = time.Hour
		dials, made := r.dials.Load(), r.pool.Stat().NewConnsCount()
		for asked := range int64(3) {
			r.s.plain.renewal.next = time.Time{} // its time has come
			r.refused(ctx, t, 10)
			require.Equal(t, asked+1, r.dials.Load()-dials, "one session was asked, and no other made")
		}
		require.Equal(t, made, r.pool.Stat().NewConnsCount())
		require.EqualValues(t, readersConns, r.pool.Stat().TotalConns())

		r.allow()
		r.s.plain.renewal.next = time.Time{}
		refused := 0
		for ; r.write(ctx) != nil; refused++ {
			require.Less(t, refused, readersConns)
		}
		if owned {
			require.Equal(t, 1, refused, "all of them were made anew")
		}
		for range 2 * readersConns {
			require.NoError(t, r.write(ctx))
		}
	})
}

// The same while many call, by the time that the store takes itself.
func TestRefusedWritesBesideReaders(t *testing.T) {
	t.Parallel()
	eachPool(t, func(ctx context.Context, t *testing.T, owned bool, r *readers) {
		reading, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer func() {
			stop()
			wg.Wait()
		}()
		for range readersConns {
			wg.Go(func() {
				for reading.Err() == nil {
					if _, err := r.s.Read(ctx, []rowstore.RowRead{pointOf("a", oracle.Max)}); err != nil {
						t.Errorf("a reader: %v", err)
						return
					}
				}
			})
		}
		dials, began := r.dials.Load(), time.Now()
		const writes = 50
		for range writes {
			require.ErrorIs(t, r.write(ctx), errReadOnly)
		}
		// Those beyond are what the pool makes for so many at once.
		require.LessOrEqual(t, r.dials.Load()-dials, int64(time.Since(began)/askEvery)+1+readersConns)
		r.allow()
		eventually(ctx, t, func() error { return r.write(ctx) })
	})
}

// Where no new session can be asked, the connection that was refused is closed alone, and so the pool gets to new ones.
func TestRefusedWriteWhereNobodyConnects(t *testing.T) {
	t.Parallel()
	eachPool(t, func(ctx context.Context, t *testing.T, owned bool, r *readers) {
		r.s.plain.renewal.every = time.Hour
		r.away.Store(true)
		r.refused(ctx, t, 10)
		require.EqualValues(t, readersConns-1, r.pool.Stat().TotalConns())
	})
}

// So it is where the program forbids writes to the sessions of its pool: the one that is asked is like them.
func TestRefusedWritesOfAPoolThatForbidsThem(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	_, err := openTest(t, with(direct, "schema", schema)).Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "SET default_transaction_read_only = on")
			return err
		}
	})
	s, err := open(ctx, pool, Options{Schema: schema, NoCoalesce: true}, false, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.plain.renewal.within = time.Minute // however busy the machine is
	r := &readers{s: s, pool: pool}
	r.refused(ctx, t, 1)
	made := pool.Stat().NewConnsCount()
	for range 5 {
		s.plain.renewal.next = time.Time{} // its time has come
		r.refused(ctx, t, 2)
	}
	require.Equal(t, made, pool.Stat().NewConnsCount())
}
