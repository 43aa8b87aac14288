package checker_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/percolate-go/percolate/checker"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// benchmarked is a correct history, about as a run of torture makes it: 64 processes,
// a few unknown outcomes.
func benchmarked(txns, keys int, lists bool) checker.History {
	return simulation{
		Seed: 1, Txns: txns, Processes: 64, Keys: keys, Ops: 6, Lists: lists,
		Serializable: 0.2, Unknown: 0.001, Aborted: 0.01, Lock: 0.05, ReadAll: true,
	}.run()
}

func perTxn(b *testing.B, h checker.History) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(h)), "ns/txn")
}

// The bar: 1,000,000 transactions in under 10 seconds.
func BenchmarkTimestamps(b *testing.B) {
	for _, lists := range []bool{false, true} {
		h := benchmarked(1_000_000, 50_000, lists)
		b.Run(fmt.Sprintf("txns=%d/lists=%t", len(h), lists), func(b *testing.B) {
			for b.Loop() {
				r, err := checker.CheckTimestamps(h, checker.TimestampOptions{})
				if err != nil || !r.OK() {
					b.Fatal(err, r.Err())
				}
			}
			perTxn(b, h)
		})
	}
}

// The time of an operation does not grow with the number of runs of one key, nor with the length of a transaction that reads what others write.
func BenchmarkTimestampsOfOneKey(b *testing.B) {
	o := checker.TimestampOptions{Idle: true, Observers: []checker.Observer{{Name: "o", Observes: func(key string) bool { return key == "x" }}}}
	for _, n := range []int{10_000, 100_000} {
		var runs checker.History
		reads := checker.Txn{Start: 1, Outcome: checker.Committed}
		long := checker.History{{}}
		for i := range n {
			at := oracle.Timestamp(4*i + 2)
			write := func(key string) checker.Txn {
				return checker.Txn{Process: 1, Invoke: int64(at), Complete: int64(at) + 1, Start: at, Commit: at + 1, Outcome: checker.Committed, Ops: []checker.Op{{Kind: checker.Write, Key: key, Value: int64(i)}}}
			}
			run := write("seen")
			run.Start, run.Commit, run.Run = at+2, at+3, &checker.Run{Observer: "o", Key: "x"}
			run.Invoke, run.Complete = run.Invoke+2, run.Complete+2
			runs = append(runs, write("x"), run)
			long = append(long, write(fmt.Sprint(i)))
			reads.Ops = append(reads.Ops, checker.Op{Kind: checker.Read, Key: fmt.Sprint(i), Absent: true})
		}
		long[0] = reads
		for name, h := range map[string]checker.History{"runs": runs, "reads": long} {
			b.Run(fmt.Sprintf("%s=%d", name, n), func(b *testing.B) {
				for b.Loop() {
					r, err := checker.CheckTimestamps(h, o)
					if err != nil || !r.OK() {
						b.Fatal(err, r.Err())
					}
				}
				perTxn(b, h)
			})
		}
	}
}

// The bar: 100,000 transactions in under 30 seconds. Few keys make many dependencies,
// and long lists.
func BenchmarkValues(b *testing.B) {
	for _, keys := range []int{100, 10_000} {
		for _, lists := range []bool{false, true} {
			for _, judge := range []checker.Judge{checker.AsSnapshotIsolation, checker.AsSerializable} {
				h := benchmarked(100_000, keys, lists)
				b.Run(fmt.Sprintf("txns=%d/keys=%d/lists=%t/as=%s", len(h), keys, lists, judge), func(b *testing.B) {
					for b.Loop() {
						r, err := checker.CheckValues(h, checker.ValueOptions{Judge: judge})
						if err != nil {
							b.Fatal(err)
						}
						if judge == checker.AsSnapshotIsolation && !r.OK() {
							b.Fatal(r.Err())
						}
					}
					perTxn(b, h)
				})
			}
		}
	}
}

// A history of chaos, where everything depends on everything.
func BenchmarkValuesOfChaos(b *testing.B) {
	h := benchmarked(100_000, 1000, true)
	for i := range h {
		// Each transaction claims the times of another.
		j := (i * 7919) % len(h)
		h[i].Invoke, h[j].Invoke = h[j].Invoke, h[i].Invoke
		h[i].Complete, h[j].Complete = h[j].Complete, h[i].Complete
	}
	for b.Loop() {
		r, err := checker.CheckValues(h, checker.ValueOptions{})
		if err != nil || r.OK() {
			b.Fatal(err, "nothing was found")
		}
	}
	perTxn(b, h)
}

func BenchmarkReadHistory(b *testing.B) {
	h := benchmarked(200_000, 50_000, false)
	var text bytes.Buffer
	if err := checker.WriteHistory(&text, h); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, err := checker.ReadHistory(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
	perTxn(b, h)
}
