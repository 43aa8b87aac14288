package coalesce_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// distant is a store of no contents, each call of which takes latency. The wait is
// the thread's, as in a system call: timers of this length would wait a
// millisecond.
type distant struct {
	rs.Store
	latency time.Duration
	calls   atomic.Int64
	rows    atomic.Int64
}

func (d *distant) wait(rows int) {
	d.calls.Add(1)
	d.rows.Add(int64(rows))
	if d.latency > 0 {
		ts := syscall.NsecToTimespec(int64(d.latency))
		_ = syscall.Nanosleep(&ts, nil)
	}
}

func (d *distant) Read(_ context.Context, reads []rs.RowRead) ([]rs.Row, error) {
	d.wait(len(reads))
	return make([]rs.Row, len(reads)), nil
}

func (d *distant) Apply(_ context.Context, muts []rs.Mutation, _ rs.ApplyOptions) ([]rs.Outcome, error) {
	d.wait(len(muts))
	return make([]rs.Outcome, len(muts)), nil
}

func (d *distant) Group(_ context.Context, groups []rs.Group) ([]rs.GroupOutcome, error) {
	d.wait(len(groups))
	return make([]rs.GroupOutcome, len(groups)), nil
}

func (d *distant) GroupKey(string, string) string { return "all" }
func (d *distant) AssignsTimestamps(string) bool  { return true }

// BenchmarkCoalesce measures calls of one row each by many goroutines, through a
// coalesce over a store with the latency of a near server, and without one.
func BenchmarkCoalesce(b *testing.B) {
	value := make([]byte, 64)
	kinds := []struct {
		name string
		run  func(ctx context.Context, s rs.Store, g rs.Grouper, row string) error
	}{
		{"read", func(ctx context.Context, s rs.Store, _ rs.Grouper, row string) error {
			_, err := s.Read(ctx, []rs.RowRead{{Table: "t", Row: row, Selectors: storetest.Everything}})
			return err
		}},
		{"apply", func(ctx context.Context, s rs.Store, _ rs.Grouper, row string) error {
			_, err := s.Apply(ctx, []rs.Mutation{{
				Table: "t", Row: row,
				Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 5), rs.Absent(rs.Lock, "c", 0), rs.Absent(rs.Mark, "c", 5)},
				Edits:      []rs.Edit{rs.Put(rs.Lock, "c", 5, value)},
			}}, rs.ApplyOptions{})
			return err
		}},
		{"group", func(ctx context.Context, _ rs.Store, g rs.Grouper, row string) error {
			conditions := []rs.Condition{rs.Absent(rs.Write, "c", 5), rs.Absent(rs.Lock, "c", 0), rs.Absent(rs.Mark, "c", 5)}
			edits := []rs.Edit{rs.Put(rs.Write, "c", rs.AssignedTimestamp, value)}
			_, err := g.Group(ctx, []rs.Group{{AssignTimestamp: true, Mutations: []rs.Mutation{
				{Table: "t", Row: row, Conditions: conditions, Edits: edits},
				{Table: "u", Row: row, Conditions: conditions, Edits: edits},
			}}})
			return err
		}},
	}
	for _, k := range kinds {
		for _, goroutines := range []int{1, 64, 256} {
			for _, in := range []struct {
				name    string
				latency time.Duration
				wrap    func(rs.Store) rs.Store
			}{
				{"alone", 50 * time.Microsecond, func(s rs.Store) rs.Store { return s }},
				{"flight=1", 50 * time.Microsecond, func(s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{MaxInFlight: 1}) }},
				{"flight=2", 50 * time.Microsecond, func(s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{}) }},
				{"flight=4", 50 * time.Microsecond, func(s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{MaxInFlight: 4}) }},
				{"no-latency-alone", 0, func(s rs.Store) rs.Store { return s }},
				{"no-latency", 0, func(s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{}) }},
			} {
				b.Run(fmt.Sprintf("%s/goroutines=%d/%s", k.name, goroutines, in.name), func(b *testing.B) {
					inner := &distant{Store: memstore.New(), latency: in.latency}
					benchOneRow(b, inner, in.wrap(inner), goroutines, k.run)
				})
			}
		}
	}
}

// benchOneRow measures calls of one row each on s, and how many rows came to each call of
// inner, which is below it.
func benchOneRow(b *testing.B, inner *distant, s rs.Store, goroutines int, run func(context.Context, rs.Store, rs.Grouper, string) error) {
	b.Helper()
	g, _ := rs.Unwrap[rs.Grouper](s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range goroutines {
		rows := make([]string, 16)
		for i := range rows {
			rows[i] = fmt.Sprint(w, ".", i)
		}
		wg.Go(func() {
			for i := 0; left.Add(-1) >= 0; i++ {
				if err := run(ctx, s, g, rows[i%len(rows)]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(inner.rows.Load())/float64(inner.calls.Load()), "asks/call")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
