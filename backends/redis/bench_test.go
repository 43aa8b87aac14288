package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// BenchmarkSeam runs the suite's benchmarks of the store's calls.
func BenchmarkSeam(b *testing.B) {
	b.Run("Coalesced", func(b *testing.B) {
		conformance.Benchmark(b, func(t testing.TB) rowstore.Store { return openURL(t, with(t, testserver.Redis(t))) })
	})
	b.Run("Bare", func(b *testing.B) {
		conformance.Benchmark(b, func(t testing.TB) rowstore.Store {
			return openURL(t, with(t, testserver.Redis(t), "coalesce", "off"))
		})
	})
}

const (
	benchRows       = 100_000
	benchGoroutines = 64
)

// BenchmarkShape compares the calls of a transaction with what go-redis users do
// without one: 64 goroutines, 100,000 rows, values of 8 bytes.
func BenchmarkShape(b *testing.B) {
	url := with(b, testserver.NewRedis(b, map[string]string{"appendonly": "no"}).URL)
	st := openURL(b, url)
	o, err := ParseURL(url)
	require.NoError(b, err)
	o.PoolSize = benchGoroutines
	plain := newClient(&o, o.Addrs[0], nil)
	defer plain.Close()
	ctx := context.Background()
	g, ok := rowstore.Unwrap[rowstore.Grouper](st)
	require.True(b, ok)
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](st)
	require.True(b, ok)
	draw := kit.NewBatchOracle(p.Oracle())
	fill(b, st, plain)

	read := func(ctx context.Context, rows ...string) error {
		start, err := draw.Draw(ctx, 1)
		if err != nil {
			return err
		}
		_, err = st.Read(ctx, reads(start, rows))
		return err
	}
	write := func(ctx context.Context, readFirst bool, rows ...string) error {
		start, err := draw.Draw(ctx, 1)
		if err != nil {
			return err
		}
		if readFirst {
			if _, err = st.Read(ctx, reads(start, rows)); err != nil {
				return err
			}
		}
		gr := rowstore.Group{AssignTimestamp: true}
		for _, r := range rows {
			gr.Mutations = append(gr.Mutations, onePhase(r, start))
		}
		out, err := g.Group(ctx, []rowstore.Group{gr})
		if err == nil {
			err = out[0].Err
		}
		return err
	}
	for _, bm := range []struct {
		name string
		f    func(ctx context.Context, a, b string) error
	}{
		{"Transfer/Store", func(ctx context.Context, x, y string) error { return write(ctx, true, x, y) }},
		{"Transfer/Watch", func(ctx context.Context, x, y string) error { return watch(ctx, plain, x, y) }},
		{"ReadCell/Store", func(ctx context.Context, x, _ string) error { return read(ctx, x) }},
		{"ReadCell/Get", func(ctx context.Context, x, _ string) error { return plain.Get(ctx, x).Err() }},
		{"WriteCell/Store", func(ctx context.Context, x, _ string) error { return write(ctx, false, x) }},
		{"WriteCell/Set", func(ctx context.Context, x, _ string) error { return plain.Set(ctx, x, "12345678", 0).Err() }},
	} {
		b.Run(bm.name, func(b *testing.B) { parallel(ctx, b, plain, bm.f) })
	}
}

// parallel also prints the processor time that a call takes here and on the
// server, which other load on the machine disturbs less than the rate.
func parallel(ctx context.Context, b *testing.B, server *goredis.Client, f func(ctx context.Context, x, y string) error) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	mine, theirs := ownCPU(b), serverCPU(ctx, b, server)
	start := time.Now()
	for range benchGoroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				x := rand.IntN(benchRows)
				y := (x + 1 + rand.IntN(benchRows-1)) % benchRows
				if err := f(ctx, "row"+strconv.Itoa(x), "row"+strconv.Itoa(y)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
	b.ReportMetric(float64((ownCPU(b)-mine).Nanoseconds())/1e3/float64(b.N), "client-us/op")
	b.ReportMetric(float64((serverCPU(ctx, b, server)-theirs).Nanoseconds())/1e3/float64(b.N), "server-us/op")
}

func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func serverCPU(ctx context.Context, b *testing.B, c *goredis.Client) time.Duration {
	text, err := c.Info(ctx, "cpu").Result()
	require.NoError(b, err)
	sum := 0.0
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		if k == "used_cpu_sys" || k == "used_cpu_user" {
			f, err := strconv.ParseFloat(v, 64)
			require.NoError(b, err)
			sum += f
		}
	}
	return time.Duration(sum * 1e9)
}

func reads(start rowstore.Timestamp, rows []string) []rowstore.RowRead {
	all := make([]rowstore.RowRead, len(rows))
	for i, r := range rows {
		all[i] = rowstore.RowRead{Table: "accounts", Row: r, Selectors: []rowstore.Selector{
			{Family: rowstore.Lock, Column: "balance", To: start, Limit: 1},
			{Family: rowstore.Write, Column: "balance", To: start, Limit: 1},
		}}
	}
	return all
}

func onePhase(row string, start rowstore.Timestamp) rowstore.Mutation {
	return rowstore.Mutation{
		Table: "accounts", Row: row,
		Conditions: []rowstore.Condition{
			rowstore.Absent(rowstore.Write, "balance", start),
			rowstore.Absent(rowstore.Lock, "balance", 0),
			rowstore.Absent(rowstore.Mark, "balance", start),
		},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "balance", rowstore.AssignedTimestamp, []byte("0123456712345678"))},
	}
}

func fill(b *testing.B, st rowstore.Store, plain *goredis.Client) {
	ctx := context.Background()
	for i := 0; i < benchRows; i += 500 {
		var muts []rowstore.Mutation
		pipe := plain.Pipeline()
		for j := i; j < i+500; j++ {
			r := "row" + strconv.Itoa(j)
			muts = append(muts, rowstore.Mutation{Table: "accounts", Row: r, Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, "balance", 1, []byte("0123456712345678")),
			}})
			pipe.Set(ctx, r, "12345678", 0)
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		_, err = st.Apply(ctx, muts, rowstore.ApplyOptions{})
		require.NoError(b, err)
	}
}

func watch(ctx context.Context, c *goredis.Client, x, y string) error {
	for {
		err := c.Watch(ctx, func(tx *goredis.Tx) error {
			v, err := tx.MGet(ctx, x, y).Result()
			if err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
				p.Set(ctx, x, fmt.Sprint(v[0]), 0)
				p.Set(ctx, y, fmt.Sprint(v[1]), 0)
				return nil
			})
			return err
		}, x, y)
		if !errors.Is(err, goredis.TxFailedErr) {
			return err
		}
	}
}

// BenchmarkBatch measures single calls of one transfer and of many, one after the other: what a
// row costs without the cost of a call, and what a run of a script costs the server.
func BenchmarkBatch(b *testing.B) {
	url := with(b, testserver.NewRedis(b, map[string]string{"appendonly": "no"}).URL)
	st := bare(b, url)
	plain := admin(b, url)
	ctx := context.Background()
	fill(b, st, plain)
	for _, bm := range []struct {
		name string
		f    func(start rowstore.Timestamp, rows []string) error
	}{
		{"Begin", func(_ rowstore.Timestamp, rows []string) error {
			asks := make([]rowstore.SnapshotRead, 0, len(rows)/2)
			for i := 0; i < len(rows); i += 2 {
				asks = append(asks, rowstore.SnapshotRead{Reads: reads(rowstore.AssignedTimestamp, rows[i:i+2])})
			}
			_, err := st.ReadSnapshot(ctx, asks)
			return err
		}},
		{"Read", func(start rowstore.Timestamp, rows []string) error {
			_, err := st.Read(ctx, reads(start, rows))
			return err
		}},
		{"OnePhase", func(start rowstore.Timestamp, rows []string) error {
			groups := make([]rowstore.Group, 0, len(rows)/2)
			for i := 0; i < len(rows); i += 2 {
				groups = append(groups, rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{onePhase(rows[i], start), onePhase(rows[i+1], start)}})
			}
			_, err := st.Group(ctx, groups)
			return err
		}},
		{"Draw", func(_ rowstore.Timestamp, rows []string) error {
			_, err := st.Oracle().Draw(ctx, len(rows))
			return err
		}},
	} {
		for _, batch := range []int{2, 64} {
			b.Run(fmt.Sprint(bm.name, "/", batch), func(b *testing.B) {
				start, err := st.Oracle().Draw(ctx, 1)
				require.NoError(b, err)
				mine, theirs, scripts := ownCPU(b), serverCPU(ctx, b, plain), scriptTime(ctx, b, plain)
				rows := make([]string, batch)
				for range b.N {
					x := rand.IntN(benchRows)
					for i := range rows {
						rows[i] = "row" + strconv.Itoa((x+7919*i)%benchRows)
					}
					if err := bm.f(start, rows); err != nil {
						b.Fatal(err)
					}
				}
				n := float64(b.N * batch)
				b.ReportMetric(float64((ownCPU(b)-mine).Nanoseconds())/1e3/n, "client-us/row")
				b.ReportMetric(float64((serverCPU(ctx, b, plain)-theirs).Nanoseconds())/1e3/n, "server-us/row")
				b.ReportMetric(float64((scriptTime(ctx, b, plain)-scripts).Nanoseconds())/1e3/float64(b.N), "script-us/call")
			})
		}
	}
}

// scriptTime is what the server has spent in scripts.
func scriptTime(ctx context.Context, b *testing.B, c *goredis.Client) time.Duration {
	text, err := c.Info(ctx, "commandstats").Result()
	require.NoError(b, err)
	_, rest, _ := strings.Cut(text, "cmdstat_evalsha:")
	_, rest, _ = strings.Cut(rest, "usec=")
	rest, _, _ = strings.Cut(rest, ",")
	us, err := strconv.ParseInt(rest, 10, 64)
	require.NoError(b, err)
	return time.Duration(us) * time.Microsecond
}

// BenchmarkNotify measures what notifications cost, and writes that draw no timestamp, in
// calls of one row and of many. Each round notifies rows and then removes that.
func BenchmarkNotify(b *testing.B) {
	url := with(b, testserver.NewRedis(b, map[string]string{"appendonly": "no"}).URL)
	st := bare(b, url)
	plain := admin(b, url)
	ctx := context.Background()
	fill(b, st, plain)
	for _, batch := range []int{1, 64} {
		rows := make([]string, batch)
		commit := func(edit rowstore.Edit) error {
			start, err := st.Oracle().Draw(ctx, 1)
			if err != nil {
				return err
			}
			groups := make([]rowstore.Group, batch)
			for i, row := range rows {
				m := onePhase(row, start)
				m.Edits = append(m.Edits, edit)
				groups[i] = rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{m}}
			}
			_, err = st.Group(ctx, groups)
			return err
		}
		change := func(edit rowstore.Edit) error {
			muts := make([]rowstore.Mutation, batch)
			for i, row := range rows {
				muts[i] = rowstore.Mutation{Table: "accounts", Row: row, Edits: []rowstore.Edit{edit}}
			}
			_, err := st.Apply(ctx, muts, rowstore.ApplyOptions{})
			return err
		}
		for _, bm := range []struct {
			name string
			f    func() error
		}{
			{"Commit", func() error {
				if err := commit(rowstore.Put(rowstore.Notify, "balance", rowstore.AssignedTimestamp, nil)); err != nil {
					return err
				}
				return commit(rowstore.DeleteRange(rowstore.Notify, "balance", 0, maxTS))
			}},
			{"Lock", func() error {
				if err := change(rowstore.Put(rowstore.Lock, "balance", 1, []byte("0123456712345678"))); err != nil {
					return err
				}
				return change(rowstore.Delete(rowstore.Lock, "balance", 1))
			}},
		} {
			b.Run(fmt.Sprint(bm.name, "/", batch), func(b *testing.B) {
				mine, theirs := ownCPU(b), serverCPU(ctx, b, plain)
				for range b.N {
					x := rand.IntN(benchRows)
					for i := range rows {
						rows[i] = "row" + strconv.Itoa((x+7919*i)%benchRows)
					}
					if err := bm.f(); err != nil {
						b.Fatal(err)
					}
				}
				n := float64(2 * b.N * batch)
				b.ReportMetric(float64((ownCPU(b)-mine).Nanoseconds())/1e3/n, "client-us/row")
				b.ReportMetric(float64((serverCPU(ctx, b, plain)-theirs).Nanoseconds())/1e3/n, "server-us/row")
			})
		}
	}
}
