package conformance

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Benchmark measures the store calls that transactions are made of, the same way for
// every backend. Each call is a sub-benchmark. Those named Parallel run in many
// goroutines. Benchmarks of abilities that the store does not have are skipped.
func Benchmark(b *testing.B, open Open) {
	for _, bm := range []struct {
		name string
		run  func(b *testing.B, h *harness)
	}{
		{"Read", benchRead(1, false)},
		{"ReadParallel", benchRead(1, true)},
		{"Read64", benchRead(64, false)},
		{"Prewrite", benchPrewrite(1, false)},
		{"PrewriteParallel", benchPrewrite(1, true)},
		{"Prewrite64", benchPrewrite(64, false)},
		{"Deferred64", benchDeferred},
		{"OnePhase", benchOnePhase(false)},
		{"OnePhaseParallel", benchOnePhase(true)},
		{"Draw", benchDraw(false)},
		{"DrawParallel", benchDraw(true)},
		{"Scan1000", benchScan},
		{"ScanNotifications", benchScanNotifications},
	} {
		b.Run(bm.name, func(b *testing.B) {
			h := newEnv(open, nil).harness(b)
			b.ReportAllocs()
			bm.run(b, h)
		})
	}
}

const benchRows = 10_000

func benchFill(h *harness) {
	fill(h, "t", benchRows, func(int) []rowstore.Edit {
		return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "a value of some forty bytes, or about that"))}
	})
}

// each runs do b.N times, in one goroutine or in many, with a number that counts
// the calls.
func each(b *testing.B, parallel bool, do func(n int) error) {
	b.Helper()
	b.ResetTimer()
	if !parallel {
		for n := 0; b.Loop(); n++ {
			if err := do(n); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	var calls atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := do(int(calls.Add(1))); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchRead(batch int, parallel bool) func(b *testing.B, h *harness) {
	return func(b *testing.B, h *harness) {
		benchFill(h)
		picks := []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: oracle.Max, Limit: 1}, {Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}
		each(b, parallel, func(n int) error {
			reads := make([]rowstore.RowRead, batch)
			for i := range reads {
				reads[i] = rowstore.RowRead{Table: "t", Row: key((n*7919 + i*101) % benchRows), Selectors: picks}
			}
			rows, err := h.s.Read(h.ctx, reads)
			for i := 0; err == nil && i < len(rows); i++ {
				if err = rows[i].Err; err == nil && len(rows[i].Versions) != 1 {
					err = fmt.Errorf("row %q: %v", rows[i].Row, rows[i].Versions)
				}
			}
			return err
		})
	}
}

// benchLock is a prewrite, benchCommit its commit.
func benchLock(row string, ts rowstore.Timestamp) rowstore.Mutation {
	return mut(row, when(rowstore.Absent(rowstore.Write, "c", ts), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", ts)),
		rowstore.Put(rowstore.Lock, "c", ts, []byte("primary, kind, expiry, session and a short value")))
}

func benchCommit(row string, ts rowstore.Timestamp) rowstore.Mutation {
	return mut(row, when(rowstore.Present("c", ts)), rowstore.Delete(rowstore.Lock, "c", ts), rowstore.Put(rowstore.Write, "c", ts+1, []byte("a short value")))
}

func benchBatch(h *harness, muts []rowstore.Mutation, opts rowstore.ApplyOptions) error {
	out, err := h.s.Apply(h.ctx, muts, opts)
	for i := 0; err == nil && i < len(out); i++ {
		if err = out[i].Err; err == nil && !out[i].Applied {
			err = fmt.Errorf("row %q broke on %v", muts[i].Row, out[i].Broke)
		}
	}
	return err
}

// benchPrewrite locks and commits rows that nobody else touches: two calls.
func benchPrewrite(batch int, parallel bool) func(b *testing.B, h *harness) {
	return func(b *testing.B, h *harness) {
		each(b, parallel, func(n int) error {
			locks, commits := make([]rowstore.Mutation, batch), make([]rowstore.Mutation, batch)
			for i := range batch {
				// A number of its own for each call, so that rows in use never collide.
				row, ts := fmt.Sprintf("%d-%d", n%benchRows, i), rowstore.Timestamp(10+10*(n/benchRows)) //nolint:gosec // positive
				locks[i], commits[i] = benchLock(row, ts), benchCommit(row, ts)
			}
			if err := benchBatch(h, locks, rowstore.ApplyOptions{}); err != nil {
				return err
			}
			return benchBatch(h, commits, rowstore.ApplyOptions{})
		})
	}
}

// benchDeferred is Prewrite64 with a deferred first half.
func benchDeferred(b *testing.B, h *harness) {
	ability[rowstore.Deferrer](b, h.s, "Deferrer")
	each(b, false, func(n int) error {
		const batch = 64
		locks, commits := make([]rowstore.Mutation, batch), make([]rowstore.Mutation, batch)
		for i := range batch {
			row, ts := fmt.Sprintf("%d-%d", n%benchRows, i), rowstore.Timestamp(10+10*(n/benchRows)) //nolint:gosec // positive
			locks[i], commits[i] = benchLock(row, ts), benchCommit(row, ts)
		}
		if err := benchBatch(h, locks, rowstore.ApplyOptions{Deferred: true}); err != nil {
			return err
		}
		return benchBatch(h, commits, rowstore.ApplyOptions{})
	})
}

func benchOnePhase(parallel bool) func(b *testing.B, h *harness) {
	return func(b *testing.B, h *harness) {
		g := ability[rowstore.Grouper](b, h.s, "Grouper")
		if !g.AssignsTimestamps(g.GroupKey("t", key(0))) {
			b.Skip("the store draws no timestamps in groups")
		}
		each(b, parallel, func(n int) error {
			row := key(n % benchRows)
			out, err := g.Group(h.ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{
				mut(row, when(rowstore.Absent(rowstore.Write, "c", oracle.Max), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", oracle.Max)),
					rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("a short value"))),
			}}})
			if err == nil {
				if err = out[0].Err; err == nil && !out[0].Applied {
					err = fmt.Errorf("row %q: %+v", row, out[0])
				}
			}
			return err
		})
	}
}

func benchDraw(parallel bool) func(b *testing.B, h *harness) {
	return func(b *testing.B, h *harness) {
		o := ability[rowstore.OracleProvider](b, h.s, "OracleProvider").Oracle()
		each(b, parallel, func(int) error {
			_, err := o.Draw(h.ctx, 1)
			return err
		})
	}
}

func benchScan(b *testing.B, h *harness) {
	benchFill(h)
	each(b, false, func(n int) error {
		return benchScanned(h, rowstore.ScanRange{
			Table: "t", From: key(n * 37 % (benchRows - 1000)), Limit: 1000,
			Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max, Limit: 1}, {Family: rowstore.Write, To: oracle.Max, Limit: 1}},
		}, 1000)
	})
}

// benchScanNotifications finds 100 notifications among all rows.
func benchScanNotifications(b *testing.B, h *harness) {
	benchFill(h)
	for i := range 100 {
		h.put(key(i*benchRows/100), write(ver(rowstore.Notify, "c", 7, "")))
	}
	each(b, false, func(int) error {
		return benchScanned(h, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Notify)}}, 100)
	})
}

func benchScanned(h *harness, s rowstore.ScanRange, want int) error {
	n := 0
	for _, err := range h.s.Scan(h.ctx, s) {
		if err != nil {
			return err
		}
		n++
	}
	if n != want {
		return fmt.Errorf("the scan visited %d rows of %d", n, want)
	}
	return nil
}
