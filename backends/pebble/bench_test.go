package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func BenchmarkStore(b *testing.B) {
	conformance.Benchmark(b, func(t testing.TB) rowstore.Store {
		s, err := Open(t.Context(), Options{Path: t.TempDir()})
		require.NoError(t, err)
		return s
	})
}

const benchRows = 100_000

func benchKey(i int) string { return fmt.Sprintf("account%08d", i) }

// fillRows gives each row a balance.
func fillRows(tb testing.TB, s *Store, n int) {
	tb.Helper()
	ctx := context.Background()
	const batch = 1000
	for from := 0; from < n; from += batch {
		ts, err := s.Oracle().Draw(ctx, 1)
		require.NoError(tb, err)
		var muts []rowstore.Mutation
		for i := from; i < min(from+batch, n); i++ {
			muts = append(muts, rowstore.Mutation{Table: "t", Row: benchKey(i), Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, "balance", ts, binary.BigEndian.AppendUint64(nil, 1000)),
			}})
		}
		_, err = s.Apply(ctx, muts, rowstore.ApplyOptions{})
		require.NoError(tb, err)
	}
}

// transfer moves 1 from one row to another in one one-phase commit, as package
// percolator would. It returns false after a conflict.
func transfer(ctx context.Context, s *Store, from, to int) (bool, error) {
	start, err := s.Oracle().Draw(ctx, 1)
	if err != nil {
		return false, err
	}
	rows := [2]string{benchKey(from), benchKey(to)}
	var reads [2]rowstore.RowRead
	for i := range reads {
		reads[i] = rowstore.RowRead{Table: "t", Row: rows[i], Selectors: []rowstore.Selector{
			{Family: rowstore.Lock, Column: "balance", To: start, Limit: 1},
			{Family: rowstore.Write, Column: "balance", To: start, Limit: 1},
		}}
	}
	got, err := s.Read(ctx, reads[:])
	if err != nil {
		return false, err
	}
	var muts [2]rowstore.Mutation
	for i := range muts {
		v := got[i].Newest(rowstore.Write, "balance")
		if v == nil {
			return false, fmt.Errorf("row %q has no balance", rows[i])
		}
		balance := binary.BigEndian.Uint64(v.Value) + uint64(2*i) - 1
		muts[i] = rowstore.Mutation{
			Table: "t", Row: rows[i],
			Conditions: []rowstore.Condition{
				rowstore.Absent(rowstore.Write, "balance", start),
				rowstore.Absent(rowstore.Lock, "balance", 0),
				rowstore.Absent(rowstore.Mark, "balance", start),
			},
			Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "balance", rowstore.AssignedTimestamp, binary.BigEndian.AppendUint64(nil, balance))},
		}
	}
	out, err := s.Group(ctx, []rowstore.Group{{Mutations: muts[:], AssignTimestamp: true}})
	if err != nil {
		return false, err
	}
	return out[0].Applied, out[0].Err
}

func BenchmarkTransfer(b *testing.B) {
	for _, where := range []string{"disk", "memory"} {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/goroutines=%d", where, goroutines), func(b *testing.B) {
				opts := Options{}
				if where == "disk" {
					opts.Path = b.TempDir()
				}
				s, err := Open(b.Context(), opts)
				require.NoError(b, err)
				defer s.Close()
				fillRows(b, s, benchRows)
				var conflicts atomic.Int64
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for g := range goroutines {
					share := b.N / goroutines
					if g < b.N%goroutines {
						share++
					}
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(uint64(g), uint64(b.N)))
						for range share {
							from := rng.IntN(benchRows)
							to := (from + 1 + rng.IntN(benchRows-1)) % benchRows
							for {
								ok, err := transfer(context.Background(), s, from, to)
								if err != nil {
									b.Error(err)
									return
								}
								if ok {
									break
								}
								conflicts.Add(1)
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transfers/s")
				b.ReportMetric(float64(conflicts.Load())/float64(b.N), "conflicts/op")
			})
		}
	}
}

// BenchmarkOneCell compares a transaction that reads and writes one cell in memory
// with what the engine needs for a Get and a batch of the same bytes.
func BenchmarkOneCell(b *testing.B) {
	value := make([]byte, 100)
	b.Run("engine", func(b *testing.B) {
		db, err := engine.Open("", &engine.Options{FS: vfs.NewMem(), MemTableSize: defaultMemTable, Logger: quiet{}})
		require.NoError(b, err)
		defer db.Close()
		benchEngine(b, db, value)
	})
	b.Run("engine-nowal", func(b *testing.B) {
		db, err := engine.Open("", &engine.Options{FS: vfs.NewMem(), MemTableSize: defaultMemTable, Logger: quiet{}, DisableWAL: true})
		require.NoError(b, err)
		defer db.Close()
		benchEngine(b, db, value)
	})
	b.Run("store", func(b *testing.B) {
		s, err := Open(b.Context(), Options{})
		require.NoError(b, err)
		defer s.Close()
		fillRows(b, s, benchRows)
		ctx := context.Background()
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			row := benchKey(i * 7919 % benchRows)
			start, err := s.Oracle().Draw(ctx, 1)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
				{Family: rowstore.Lock, Column: "balance", To: start, Limit: 1},
				{Family: rowstore.Write, Column: "balance", To: start, Limit: 1},
			}}}); err != nil {
				b.Fatal(err)
			}
			out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
				Table: "t", Row: row,
				Conditions: []rowstore.Condition{
					rowstore.Absent(rowstore.Write, "balance", start),
					rowstore.Absent(rowstore.Lock, "balance", 0),
					rowstore.Absent(rowstore.Mark, "balance", start),
				},
				Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "balance", rowstore.AssignedTimestamp, value)},
			}}}})
			if err != nil || !out[0].Applied {
				b.Fatal(err, out)
			}
		}
	})
}

func benchEngine(b *testing.B, db *engine.DB, value []byte) {
	for i := range benchRows {
		require.NoError(b, db.Set([]byte("t/"+benchKey(i)+"/balance"), value, engine.NoSync))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		key := []byte("t/" + benchKey(i*7919%benchRows) + "/balance")
		v, c, err := db.Get(key)
		if err != nil {
			b.Fatal(err)
		}
		sink = append(sink[:0], v...)
		c.Close()
		batch := db.NewBatch()
		_ = batch.Set(key, value, nil)
		if err := batch.Commit(engine.NoSync); err != nil {
			b.Fatal(err)
		}
		_ = batch.Close()
	}
}

var sink []byte

// BenchmarkNotifications scans for 1,000 notifications among more and more rows.
func BenchmarkNotifications(b *testing.B) {
	for _, rows := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			s, err := Open(b.Context(), Options{})
			require.NoError(b, err)
			defer s.Close()
			fillRows(b, s, rows)
			ctx := context.Background()
			for i := range 1000 {
				_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: benchKey(i * (rows / 1000)), Edits: []rowstore.Edit{
					rowstore.Put(rowstore.Notify, "balance", 1, nil),
				}}}, rowstore.ApplyOptions{})
				require.NoError(b, err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				n := 0
				for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
				if n != 1000 {
					b.Fatal(n)
				}
			}
		})
	}
}

// BenchmarkNotificationsAfterMany scans for 1,000 notifications in a table that had
// many more, which were acknowledged one after the other.
func BenchmarkNotificationsAfterMany(b *testing.B) {
	for _, gone := range []int{0, 30_000, 300_000} {
		b.Run(fmt.Sprintf("gone=%d", gone), func(b *testing.B) {
			s, err := Open(b.Context(), Options{})
			require.NoError(b, err)
			defer s.Close()
			ctx := context.Background()
			apply := func(row string, e rowstore.Edit) {
				_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{e}}}, rowstore.ApplyOptions{})
				require.NoError(b, err)
			}
			for i := range gone {
				row := benchKey(i * 7919 % benchRows)
				ts := rowstore.Timestamp(i + 2)
				apply(row, rowstore.Put(rowstore.Notify, "balance", ts, nil))
				apply(row, rowstore.Delete(rowstore.Notify, "balance", ts))
			}
			for i := range 1000 {
				apply(benchKey(i*100), rowstore.Put(rowstore.Notify, "balance", 1, nil))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				n := 0
				for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
				if n != 1000 {
					b.Fatal(n)
				}
			}
		})
	}
}
