package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The benchmarks compare the store, at the seam, with plain use of the same server
// through pgx. They want real flushes:
//
//	go test -run '^$' -bench . -benchtime 3s ./backends/postgres
//
// The environment sets PERCOLATOR_BENCH_ROWS (default 100000) and, to try parameters of
// the URL, PERCOLATOR_BENCH_PARAMS (&max_in_flight=1). PERCOLATOR_BENCH_POSTGRES names
// a server to use, of which the schema bench and the table account are then left.

var benchServer = sync.OnceValues(func() (*testserver.Server, error) {
	return testserver.StartPostgres(map[string]string{
		"fsync": "on", "shared_buffers": "1GB", "max_wal_size": "8GB", "max_connections": "200", "checkpoint_timeout": "30min",
	})
})

func benchURL(b *testing.B) string {
	b.Helper()
	if url := os.Getenv("PERCOLATOR_BENCH_POSTGRES"); url != "" {
		return url
	}
	s, err := benchServer()
	require.NoError(b, err)
	return s.URL
}

func benchRows() int {
	if n, err := strconv.Atoi(os.Getenv("PERCOLATOR_BENCH_ROWS")); err == nil && n > 0 {
		return n
	}
	return 100_000
}

func benchKey(i int) string { return fmt.Sprintf("account-%07d", i) }

var loaded = map[string]bool{}

// benchStore opens a store with the accounts in it, loaded once.
func benchStore(b *testing.B, params ...string) *Store {
	b.Helper()
	dsn := with(benchURL(b), "schema", "bench")
	if !loaded["bench"] {
		sqlDo(b, benchURL(b), "DROP SCHEMA IF EXISTS bench CASCADE")
	}
	s := openTest(b, with(dsn, params...)+os.Getenv("PERCOLATOR_BENCH_PARAMS"))
	if !loaded["bench"] {
		loaded["bench"] = true
		o, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
		ctx := context.Background()
		for from := 0; from < benchRows(); from += 1000 {
			ts, err := o.Oracle().Draw(ctx, 1)
			require.NoError(b, err)
			var muts []rowstore.Mutation
			for i := from; i < min(from+1000, benchRows()); i++ {
				muts = append(muts, rowstore.Mutation{Table: "accounts", Row: benchKey(i), Edits: []rowstore.Edit{
					rowstore.Put(rowstore.Write, "balance", ts, make([]byte, 18)),
				}})
			}
			_, err = s.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: true})
			require.NoError(b, err)
		}
		sqlDo(b, benchURL(b), "VACUUM ANALYZE")
		sqlDo(b, benchURL(b), "CHECKPOINT")
	}
	return s
}

func nativePool(b *testing.B, conns int) *pgxpool.Pool {
	b.Helper()
	if !loaded["native"] {
		loaded["native"] = true
		sqlDo(b, benchURL(b), fmt.Sprintf(`DROP TABLE IF EXISTS account;
			CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 60);
			INSERT INTO account SELECT 'account-' || lpad(i::text, 7, '0'), 0 FROM generate_series(0, %d) i`, benchRows()-1))
		sqlDo(b, benchURL(b), "VACUUM ANALYZE")
		sqlDo(b, benchURL(b), "CHECKPOINT")
	}
	cfg, err := pgxpool.ParseConfig(benchURL(b))
	require.NoError(b, err)
	cfg.MaxConns = int32(conns) //nolint:gosec // small
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(b, err)
	atend.Do(b, pool.Close)
	return pool
}

// parallel runs f with so many goroutines.
func parallel(b *testing.B, goroutines int, f func(r *rand.Rand) error) {
	b.Helper()
	var wg sync.WaitGroup
	work := make(chan struct{}, 1024)
	fails := make(chan error, goroutines)
	b.ResetTimer()
	for g := range goroutines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(g), 1)) //nolint:gosec // repeatable
			for range work {
				if err := f(r); err != nil {
					fails <- err
					for range work { //nolint:revive // lets the producer end
					}
					return
				}
			}
		}()
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	select {
	case err := <-fails:
		b.Fatal(err)
	default:
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

var benchGoroutines = []int{1, 64, 256}

func BenchmarkTransferStore(b *testing.B) {
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s := benchStore(b)
			parallel(b, n, func(r *rand.Rand) error { return storeTransfer(s, r) })
		})
	}
}

func BenchmarkTransferNative(b *testing.B) {
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			pool := nativePool(b, min(n, 64))
			parallel(b, n, func(r *rand.Rand) error { return nativeTransfer(pool, r) })
		})
	}
}

func twoAccounts(r *rand.Rand) (string, string) {
	x, y := r.IntN(benchRows()), r.IntN(benchRows()-1)
	if y >= x {
		y++
	}
	return benchKey(x), benchKey(y)
}

var errBusy = errors.New("busy")

// storeTransfer is what a transaction of package percolator asks of the store.
func storeTransfer(s rowstore.Store, r *rand.Rand) error {
	x, y := twoAccounts(r)
	for {
		err := tryTransfer(s, x, y)
		if !errors.Is(err, errBusy) {
			return err
		}
	}
}

func tryTransfer(s rowstore.Store, x, y string) error {
	ctx := context.Background()
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
	o := p.Oracle()
	start, err := o.Draw(ctx, 1)
	if err != nil {
		return err
	}
	picks := []rowstore.Selector{
		{Family: rowstore.Lock, Column: "balance", From: 0, To: start, Limit: 1},
		{Family: rowstore.Write, Column: "balance", From: 0, To: start, Limit: 1},
	}
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "accounts", Row: x, Selectors: picks}, {Table: "accounts", Row: y, Selectors: picks}})
	if err != nil {
		return err
	}
	for i := range rows {
		if rows[i].Newest(rowstore.Lock, "balance") != nil {
			return errBusy
		}
	}
	vx, vy := moved(&rows[0], ^uint64(0)), moved(&rows[1], 1)
	lock := func(row string, v []byte) rowstore.Mutation {
		return rowstore.Mutation{Table: "accounts", Row: row, Conditions: []rowstore.Condition{
			rowstore.Absent(rowstore.Write, "balance", start),
			rowstore.Absent(rowstore.Lock, "balance", 0),
			rowstore.Absent(rowstore.Mark, "balance", start),
		}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "balance", start, append(make([]byte, 60), v...))}}
	}
	out, err := s.Apply(ctx, []rowstore.Mutation{lock(x, vx), lock(y, vy)}, rowstore.ApplyOptions{Deferred: true})
	if err != nil {
		return err
	}
	if !out[0].Applied || !out[1].Applied {
		for i, row := range []string{x, y} {
			if out[i].Applied {
				if err := unlock(ctx, s, row, start); err != nil {
					return err
				}
			}
		}
		return errBusy
	}
	commit, err := o.Draw(ctx, 1)
	if err != nil {
		return err
	}
	done := func(row string, v []byte, more ...rowstore.Condition) rowstore.Mutation {
		return rowstore.Mutation{
			Table: "accounts", Row: row, Conditions: append(more, rowstore.Present("balance", start)),
			Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "balance", commit, v), rowstore.Delete(rowstore.Lock, "balance", start)},
		}
	}
	g, _ := rowstore.Unwrap[rowstore.Grouper](s)
	res, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{
		done(x, vx, rowstore.SameIncarnation(out[0].Incarnation)), done(y, vy),
	}}})
	if err != nil {
		return err
	}
	if !res[0].Applied {
		return fmt.Errorf("the commit was refused: %+v", res[0])
	}
	return nil
}

// moved is the balance of a row, changed by an amount.
func moved(row *rowstore.Row, by uint64) []byte {
	v := make([]byte, 18)
	copy(v, row.Newest(rowstore.Write, "balance").Value)
	binary.BigEndian.PutUint64(v, binary.BigEndian.Uint64(v)+by)
	return v
}

// unlock takes back the lock of a transfer that met another one.
func unlock(ctx context.Context, s rowstore.Store, row string, start rowstore.Timestamp) error {
	_, err := s.Apply(ctx, []rowstore.Mutation{{
		Table: "accounts", Row: row, Conditions: []rowstore.Condition{rowstore.Present("balance", start)},
		Edits: []rowstore.Edit{rowstore.Delete(rowstore.Lock, "balance", start)},
	}}, rowstore.ApplyOptions{})
	return err
}

func nativeTransfer(pool *pgxpool.Pool, r *rand.Rand) error {
	x, y := twoAccounts(r)
	ctx := context.Background()
	for {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			var bx, by int64
			if err := tx.QueryRow(ctx, "SELECT balance FROM account WHERE id = $1", x).Scan(&bx); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, "SELECT balance FROM account WHERE id = $1", y).Scan(&by); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE account SET balance = $2 WHERE id = $1", x, bx-1); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE account SET balance = $2 WHERE id = $1", y, by+1)
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == serialization || pg.Code == deadlock) {
			continue
		}
		return err
	}
}

func BenchmarkReadStore(b *testing.B) {
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s := benchStore(b)
			p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
			parallel(b, n, func(r *rand.Rand) error {
				ctx := context.Background()
				at, err := p.Oracle().Draw(ctx, 1)
				if err != nil {
					return err
				}
				return readOne(s, benchKey(r.IntN(benchRows())), at)
			})
		})
	}
}

// BenchmarkReadStoreNoDraw leaves the timestamp out: the cost of the read alone.
func BenchmarkReadStoreNoDraw(b *testing.B) {
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s := benchStore(b)
			parallel(b, n, func(r *rand.Rand) error { return readOne(s, benchKey(r.IntN(benchRows())), oracle.Max) })
		})
	}
}

func readOne(s rowstore.Store, key string, at rowstore.Timestamp) error {
	rows, err := s.Read(context.Background(), []rowstore.RowRead{{Table: "accounts", Row: key, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: "balance", From: 0, To: at, Limit: 1},
		{Family: rowstore.Write, Column: "balance", From: 0, To: at, Limit: 1},
	}}})
	if err == nil && rows[0].Newest(rowstore.Write, "balance") == nil {
		err = fmt.Errorf("row %s has no balance", key)
	}
	return err
}

func BenchmarkReadNative(b *testing.B) {
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			pool := nativePool(b, min(n, 64))
			parallel(b, n, func(r *rand.Rand) error {
				var v int64
				return pool.QueryRow(context.Background(), "SELECT balance FROM account WHERE id = $1", benchKey(r.IntN(benchRows()))).Scan(&v)
			})
		})
	}
}

// BenchmarkScan scans rows of one column: as a snapshot, with more of history, which scan_page answers, and natively.
func BenchmarkScan(b *testing.B) {
	s, pool := benchStore(b), nativePool(b, 1)
	for _, n := range []int{1, 64, 1000} {
		picks := []rowstore.Selector{{Family: rowstore.Lock, Column: "balance", To: oracle.Max, Limit: 1}, {Family: rowstore.Write, Column: "balance", To: oracle.Max, Limit: 1}}
		scan := func(b *testing.B, picks []rowstore.Selector) {
			b.Helper()
			r := rand.New(rand.NewPCG(1, 0))
			for b.Loop() {
				found := 0
				for _, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: "accounts", From: benchKey(r.IntN(benchRows() - n)), Selectors: picks, Limit: n}) {
					require.NoError(b, err)
					found++
				}
				require.Equal(b, n, found)
			}
		}
		b.Run(fmt.Sprint("Snapshot/", n), func(b *testing.B) { scan(b, picks) })
		b.Run(fmt.Sprint("More/", n), func(b *testing.B) {
			more := slices.Clone(picks)
			more[1].Limit = 2
			scan(b, more)
		})
		b.Run(fmt.Sprint("Native/", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 0))
			for b.Loop() {
				rows, err := pool.Query(context.Background(), "SELECT id, balance FROM account WHERE id >= $1 ORDER BY id LIMIT $2", benchKey(r.IntN(benchRows()-n)), n)
				require.NoError(b, err)
				found := 0
				for rows.Next() {
					var id string
					var balance int64
					require.NoError(b, rows.Scan(&id, &balance))
					found++
				}
				require.NoError(b, rows.Err())
				require.Equal(b, n, found)
			}
		})
	}
}

func BenchmarkDraw(b *testing.B) {
	s := benchStore(b, "coalesce", "off")
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
	parallel(b, 1, func(*rand.Rand) error {
		_, err := p.Oracle().Draw(context.Background(), 1)
		return err
	})
}

// BenchmarkBatch measures single statements of one caller by their number of rows.
func BenchmarkBatch(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			s := benchStore(b, "coalesce", "off")
			p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
			g, _ := rowstore.Unwrap[rowstore.Grouper](s)
			r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
			var times [3]float64
			b.ResetTimer()
			for range b.N {
				start, err := p.Oracle().Draw(ctx, 1)
				require.NoError(b, err)
				keys := map[int]bool{}
				for len(keys) < n {
					keys[r.IntN(benchRows())] = true
				}
				var reads []rowstore.RowRead
				var locks []rowstore.Mutation
				var groups []rowstore.Group
				for k := range keys {
					reads = append(reads, rowstore.RowRead{Table: "accounts", Row: benchKey(k), Selectors: []rowstore.Selector{
						{Family: rowstore.Lock, Column: "balance", From: 0, To: start, Limit: 1},
						{Family: rowstore.Write, Column: "balance", From: 0, To: start, Limit: 1},
					}})
					locks = append(locks, rowstore.Mutation{Table: "accounts", Row: benchKey(k), Conditions: []rowstore.Condition{
						rowstore.Absent(rowstore.Write, "balance", start),
						rowstore.Absent(rowstore.Lock, "balance", 0),
						rowstore.Absent(rowstore.Mark, "balance", start),
					}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "balance", start, make([]byte, 78))}})
				}
				commit, err := p.Oracle().Draw(ctx, 1)
				require.NoError(b, err)
				for i := 0; i < len(locks); i += 2 {
					var gr rowstore.Group
					for _, l := range locks[i:min(i+2, len(locks))] {
						gr.Mutations = append(gr.Mutations, rowstore.Mutation{
							Table: "accounts", Row: l.Row, Conditions: []rowstore.Condition{rowstore.Present("balance", start)},
							Edits: []rowstore.Edit{
								rowstore.Put(rowstore.Write, "balance", commit, make([]byte, 18)),
								rowstore.Delete(rowstore.Lock, "balance", start),
							},
						})
					}
					groups = append(groups, gr)
				}
				t0 := b.Elapsed()
				_, err = s.Read(ctx, reads)
				require.NoError(b, err)
				t1 := b.Elapsed()
				out, err := s.Apply(ctx, locks, rowstore.ApplyOptions{Deferred: true})
				require.NoError(b, err)
				require.True(b, out[0].Applied)
				t2 := b.Elapsed()
				res, err := g.Group(ctx, groups)
				require.NoError(b, err)
				require.True(b, res[0].Applied)
				t3 := b.Elapsed()
				times[0] += float64((t1 - t0).Nanoseconds())
				times[1] += float64((t2 - t1).Nanoseconds())
				times[2] += float64((t3 - t2).Nanoseconds())
			}
			for i, name := range []string{"read", "prewrite", "commit"} {
				b.ReportMetric(times[i]/1000/float64(b.N), name+"-us")
			}
		})
	}
}
