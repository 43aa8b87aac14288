package conformance_test

import (
	"context"
	"flag"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The stores that are broken on purpose fail property tests all the time, and
	// nobody reads what rapid shrinks them to. What is asked for is obeyed.
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.shrinktime": "100ms", "rapid.nofailfile": "true"} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	goleak.VerifyTestMain(m)
}

// Some stores draw timestamps in an Apply, and others do not: this one does, and those of the other tests here do not.
func TestMemory(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(testing.TB) rowstore.Store { return memstore.New(memstore.WithApplyTimestamps()) }, conformance.Patience(2*time.Minute), conformance.Scale(0.25))
}

// The other parts run in package coalesce.
func TestCoalescedMemory(t *testing.T) {
	t.Parallel()
	conformance.RunObservers(t, func(testing.TB) rowstore.Store {
		return coalesce.New(memstore.New(), coalesce.Options{MaxBatch: 8, MaxInFlight: 1})
	}, conformance.Patience(2*time.Minute), conformance.Scale(0.15))
}

// plain hides every optional ability of a store.
type plain struct{ inner rowstore.Store }

func (p plain) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return p.inner.Read(ctx, reads)
}

func (p plain) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	// The incarnation is always "", whatever that of the store beneath.
	muts = slices.Clone(muts)
	for i := range muts {
		muts[i].Conditions = slices.Clone(muts[i].Conditions)
		for j, c := range muts[i].Conditions {
			switch {
			case c.Kind == rowstore.IfIncarnation && c.Incarnation == "":
				muts[i].Conditions[j] = rowstore.AbsentAt("any", 0) // holds
			case c.Kind == rowstore.IfIncarnation:
				muts[i].Conditions[j] = rowstore.Present("any", 0) // does not
			}
		}
	}
	out, err := p.inner.Apply(ctx, muts, rowstore.ApplyOptions{})
	for i := range out {
		out[i].Incarnation = ""
	}
	return out, err
}

func (p plain) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return p.inner.Scan(ctx, s)
}

func (p plain) Tables(ctx context.Context) iter.Seq2[string, error] { return p.inner.Tables(ctx) }

func (p plain) Close() error { return p.inner.Close() }

// TestPlainStore runs on the fallbacks of every optional ability.
func TestPlainStore(t *testing.T) {
	t.Parallel()
	oracle := memstore.New()
	t.Cleanup(func() { require.NoError(t, oracle.Close()) })
	conformance.Run(t, func(testing.TB) rowstore.Store { return plain{memstore.New()} },
		conformance.Patience(2*time.Minute), conformance.Scale(0.15), conformance.DBOptions(percolator.WithOracle("memory", oracle.Oracle())))
}

func BenchmarkMemory(b *testing.B) {
	conformance.Benchmark(b, func(testing.TB) rowstore.Store { return memstore.New() })
}

func TestMemoryWithHooks(t *testing.T) {
	t.Parallel()
	conformance.RunHooks(t, func(testing.TB) rowstore.Store { return memstore.New() },
		conformance.WithHooks(conformance.MemoryHooks), conformance.Patience(2*time.Minute))
}

// TestMemoryLikeEtcd runs over a store that takes few operations in one step.
func TestMemoryLikeEtcd(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) rowstore.Store {
		return memstore.New(memstore.WithLimits(rowstore.Limits{Operations: 128, Bytes: 3 << 19}))
	}
	conformance.RunStore(t, open, conformance.Patience(2*time.Minute), conformance.Scale(0.15))
	conformance.RunTransactions(t, open, conformance.Patience(2*time.Minute), conformance.Scale(0.15))
}

// TestMemoryWithSmallLimits runs over stores with the smallest limits that the suite takes for sane.
func TestMemoryWithSmallLimits(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]rowstore.Limits{
		"names and values": {Table: 64, Row: 64, Column: 64, Value: 1 << 10},
		"one step":         {Table: 64, Row: 64, Column: 64, Value: 1 << 10, Operations: 128, Bytes: 32 << 10},
		"bytes of a step":  {Bytes: 32 << 10},
		// Of each two, the second is never reached.
		"operations before bytes": {Value: 1 << 10, Operations: 128, Bytes: 1 << 20},
		"bytes before operations": {Operations: 10_000, Bytes: 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := []conformance.Option{conformance.Patience(2 * time.Minute), conformance.Scale(0.15)}
			if name != "one step" {
				opts = append(opts, conformance.Without("its tests take small steps, and run in \"one step\"", conformance.Concurrency,
					conformance.Closing, conformance.Contexts, conformance.Oracles, conformance.Deferring, conformance.Waking))
			}
			conformance.RunStore(t, func(testing.TB) rowstore.Store { return memstore.New(memstore.WithLimits(limits)) }, opts...)
		})
	}
}
