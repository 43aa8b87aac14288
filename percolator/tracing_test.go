package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// spans are the ended spans, as text.
func spans(r *tracetest.SpanRecorder) (all []string) {
	for _, s := range r.Ended() {
		text := s.Name()
		for _, a := range s.Attributes() {
			text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
		}
		all = append(all, text)
	}
	return all
}

func TestTracing(t *testing.T) {
	t.Parallel()
	r := tracetest.NewSpanRecorder()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client(WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))))
	const secret = "a secret value"
	fail := errors.New(secret)
	require.ErrorIs(t, c.Update(t.Context(), func(*Txn) error { return fail }), fail)
	set(t, c.DB, rowA, secret)
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error { _, err := tx.Get(t.Context(), rowA); return err }))
	tx, other := begin(t, c), begin(t, c)
	require.NoError(t, tx.Set(rowB, []byte(secret)))
	require.NoError(t, other.Set(rowB, []byte(secret)))
	require.NoError(t, tx.Commit(t.Context()))
	require.ErrorIs(t, other.Commit(t.Context()), ErrConflict)
	require.NoError(t, other.Rollback(t.Context()))
	require.NoError(t, begin(t, c).Rollback(t.Context()))
	calls := 0
	wk := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
		if calls++; calls == 1 {
			panic(secret)
		}
		return c.View(ctx, func(*Txn) error { return nil }) // beneath the span of the run
	}})
	require.Equal(t, runAgain, look(t, wk, rowA))
	w.pass(wk.config.Backoff.Max)
	runs(t, wk, rowA)
	all := spans(r)
	for _, want := range []string{
		"percolator.update percolator.outcome=error percolator.attempts=1",
		"percolator.update percolator.outcome=committed percolator.attempts=1 percolator.way=one phase",
		"percolator.view percolator.outcome=nothing to commit",
		"percolator.begin percolator.outcome=committed percolator.way=one phase",
		"percolator.begin percolator.outcome=conflict",
		"percolator.begin percolator.outcome=rolled back",
		"percolator.run percolator.observer=o percolator.table=t percolator.column=v percolator.outcome=error percolator.attempts=1",
		"percolator.run percolator.observer=o percolator.table=t percolator.column=v percolator.outcome=committed percolator.attempts=2 percolator.way=one phase",
	} {
		require.Contains(t, all, want)
	}
	nested := false
	for _, s := range r.Ended() {
		text := fmt.Sprintf("%+v", tracetest.SpanStubFromReadOnlySpan(s))
		require.NotContains(t, text, secret)
		nested = nested || s.Name() == "percolator.view" && s.Parent().IsValid()
	}
	require.True(t, nested)
	require.Len(t, r.Started(), len(r.Ended()), "every span has ended")
}

// A run that conflicts, and is made again, is no failure of the function.
func TestTracingOfARunThatConflicts(t *testing.T) {
	t.Parallel()
	r := tracetest.NewSpanRecorder()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c, other := w.client(WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)))), w.client()
	set(t, other.DB, rowA, "1")
	result := Cell{"u", "r", "v"}
	wk := watching(t, c, Observer{Name: "o", Func: func(_ context.Context, tx *Txn, _ Cell) error {
		set(t, other.DB, result, "theirs")
		return tx.Set(result, []byte("ours"))
	}})
	require.Equal(t, runConflict, look(t, wk, rowA))
	require.Equal(t, []string{
		"percolator.run percolator.observer=o percolator.table=t percolator.column=v percolator.outcome=conflict percolator.attempts=1",
	}, spans(r))
}

// BenchmarkUntraced measures what transactions cost without spans, and with a provider that records none.
func BenchmarkUntraced(b *testing.B) {
	for name, opts := range map[string][]Option{"off": nil, "not sampled": {WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())))}} {
		b.Run(name, func(b *testing.B) {
			db, err := New(b.Context(), memstore.New(), opts...)
			require.NoError(b, err)
			defer func() { require.NoError(b, db.Close(context.Background())) }()
			b.ReportAllocs()
			for b.Loop() {
				if err := db.View(b.Context(), func(*Txn) error { return nil }); err != nil {
					b.Fatal(err)
				}
				if err := db.Update(b.Context(), func(tx *Txn) error { return tx.Set(rowA, nil) }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Without a provider a transaction allocates nothing for spans.
func TestUntracedAllocatesNothing(t *testing.T) {
	c := newWorld(t).client()
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, tr := c.trace(ctx, "percolator.update")
		tr.tries()
		tr.goes("one phase")
		tr.end(nil, true)
	}))
}
