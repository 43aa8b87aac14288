package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/percolate-go/percolate/internal/format"
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

// spanOf finds the ended span of a name, the n-th of them.
func spanOf(t testing.TB, r *tracetest.SpanRecorder, name string, n int) sdktrace.ReadOnlySpan {
	t.Helper()
	for _, s := range r.Ended() {
		if s.Name() == name {
			if n == 0 {
				return s
			}
			n--
		}
	}
	require.FailNow(t, "there is no such span", name)
	return nil
}

// A cascade is one trace, also over processes: each run is the child of the transaction that set it off, and links to it.
func TestTracingOfACascade(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		w.tracked()
		r := tracetest.NewSpanRecorder()
		opts = append(opts, WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))))
		c := w.client(opts...)
		first, second := newChain(t, c, 0, writesNext(rowA, rowB)), newChain(t, w.client(opts...), 0, writesNext())
		set(t, c.DB, rowA, "1")
		runs(t, first.w, rowA)
		require.NoError(t, c.drained(t.Context()))
		runs(t, second.w, rowB)
		require.Equal(t, []int{1}, second.hops)
		last := spanOf(t, r, "percolator.update", 0)
		for n := range 2 {
			run := spanOf(t, r, "percolator.run", n)
			require.Equal(t, last.SpanContext().TraceID(), run.SpanContext().TraceID())
			require.Equal(t, last.SpanContext().SpanID(), run.Parent().SpanID())
			require.True(t, run.Parent().IsRemote())
			require.Len(t, run.Links(), 1)
			require.Equal(t, last.SpanContext().SpanID(), run.Links()[0].SpanContext.SpanID())
			last = run
		}
	})
}

// recordOnly has spans recorded and not sampled.
type recordOnly struct{}

func (recordOnly) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: sdktrace.RecordOnly}
}

func (recordOnly) Description() string { return "record only" }

// A run for several changes links to those that it has yet to see and that were sampled, and is the child of the newest one alone.
func TestTracingOfSeveralChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "other")
	w.tracked()
	r := tracetest.NewSpanRecorder()
	traced := WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)))
	c := w.client(traced)
	ch := newChain(t, c, 0, writesNext())
	set(t, c.DB, rowA, "seen by o alone, so its notification stays")
	runs(t, ch.w, rowA)
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	for _, sampler := range []sdktrace.Sampler{sdktrace.NeverSample(), recordOnly{}} {
		other := w.client(WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler))))
		set(t, other.DB, rowA, "not sampled")
		require.Zero(t, w.carried(rowA)[0])
	}
	require.Len(t, w.notified(rowA), 5)
	runs(t, ch.w, rowA)
	run := spanOf(t, r, "percolator.run", 1)
	require.False(t, run.Parent().IsValid())
	require.Len(t, run.Links(), 2)
	for n, i := range []int{2, 1} {
		require.Equal(t, spanOf(t, r, "percolator.update", i).SpanContext().SpanID(), run.Links()[n].SpanContext.SpanID())
	}
	for i := range 2 * mostLinks {
		set(t, c.DB, rowA, fmt.Sprint(i))
	}
	runs(t, ch.w, rowA)
	run = spanOf(t, r, "percolator.run", 2)
	require.Len(t, run.Links(), mostLinks)
	require.Equal(t, run.Links()[0].SpanContext.SpanID(), run.Parent().SpanID())
}

// Without tracking a sampled transaction leaves nothing.
func TestTracingIsStoredWhereTracked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	r := tracetest.NewSpanRecorder()
	c := w.client(WithTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))))
	set(t, c.DB, rowA, "1")
	require.Equal(t, []format.Cascade{{}}, w.carried(rowA))
	runs(t, newChain(t, c, 0, writesNext()).w, rowA)
	require.Empty(t, spanOf(t, r, "percolator.run", 0).Links())
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
