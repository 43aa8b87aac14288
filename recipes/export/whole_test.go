package export

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// wholeSink takes all items of a call or none, as a Kafka transaction and many an HTTP server do, and does not say what it is about.
type wholeSink struct {
	recorder
	refuses func(call int, payloads []string) bool

	mu    sync.Mutex
	calls [][]string
}

func (s *wholeSink) Send(ctx context.Context, key string, items []Item) (int, error) {
	var payloads []string
	for _, item := range items {
		payloads = append(payloads, string(item.Payload))
	}
	s.mu.Lock()
	s.calls = append(s.calls, payloads)
	call := len(s.calls)
	s.mu.Unlock()
	if s.refuses(call, payloads) {
		return 0, errRefused
	}
	return s.recorder.Send(ctx, key, items)
}

// alone counts the calls that had this item and no other one.
func (s *wholeSink) alone(payload string) (n int) {
	for _, call := range s.calls {
		if slices.Equal(call, []string{payload}) {
			n++
		}
	}
	return n
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// TestBadItemAmongGoodOnes has a sink that refuses a batch as a whole because of one item, the sixth. That one alone is tried until it has no
// attempts left, and set aside or in the way; those before it are taken.
func TestBadItemAmongGoodOnes(t *testing.T) {
	t.Parallel()
	for _, skip := range []bool{true, false} {
		t.Run(strconv.FormatBool(skip), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, o := opened(t)
				sink := &wholeSink{refuses: func(_ int, payloads []string) bool { return slices.Contains(payloads, "5") }}
				const attempts = 4
				put(t, o, "k", numbers(40)...)
				w, stop := run(t, db, observer(t, o, sink, Options{Skip: skip, MaxAttempts: attempts}))
				defer stop()
				require.NoError(t, w.WaitIdle(t.Context()))
				require.Equal(t, attempts, sink.alone("5"))
				parked, err := db.Parked(t.Context())
				require.NoError(t, err)
				want := numbers(40)
				if skip {
					require.Empty(t, parked)
					require.Equal(t, slices.Delete(want, 5, 6), sink.payloads("k"))
					require.Equal(t, 1, dead(t, o))
					require.Zero(t, claims(t, o))
				} else {
					require.Len(t, parked, 1)
					require.Equal(t, want[:5], sink.payloads("k"))
					require.Equal(t, 35, left(t, o))
				}
				require.Zero(t, sink.again)
				require.Less(t, len(sink.calls), 30)
			})
		})
	}
}

// TestBatchTooLargeAsAWhole goes through in smaller ones, and no item is blamed.
func TestBatchTooLargeAsAWhole(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", numbers(200)...)
	sink := &wholeSink{refuses: func(_ int, payloads []string) bool { return len(payloads) > 50 }}
	e := newExporter(o, sink, Options{Skip: true, MaxAttempts: 1})
	require.NoError(t, e.export(t.Context(), string(rowOf("k"))))
	require.Equal(t, numbers(200), sink.payloads("k"))
	require.Zero(t, dead(t, o))
	require.Zero(t, claims(t, o))
	require.Less(t, len(sink.calls), 60)
}

// TestOneFailureSlowsNothingDown: after one failure, of the network say, batches are soon as large as before.
func TestOneFailureSlowsNothingDown(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", numbers(1000)...)
	sink := &wholeSink{refuses: func(call int, _ []string) bool { return call == 1 }}
	require.NoError(t, newExporter(o, sink, Options{}).export(t.Context(), string(rowOf("k"))))
	require.Equal(t, numbers(1000), sink.payloads("k"))
	var sizes []int
	for _, call := range sink.calls {
		sizes = append(sizes, len(call))
	}
	require.Equal(t, []int{256, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 233}, sizes)
}

// TestRefusalOutlastsItsExporter has an exporter that dies once a batch was refused. The next one begins with the first item alone, and counts that.
func TestRefusalOutlastsItsExporter(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", "bad", "good", "good too")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := &wholeSink{refuses: func(call int, _ []string) bool {
		if call == 2 {
			cancel()
		}
		return true
	}}
	require.ErrorIs(t, newExporter(o, first, Options{Skip: true, MaxAttempts: 1}).export(ctx, string(rowOf("k"))), context.Canceled)
	require.Zero(t, dead(t, o))
	second := &wholeSink{refuses: func(_ int, payloads []string) bool { return slices.Contains(payloads, "bad") }}
	require.NoError(t, newExporter(o, second, Options{Skip: true, MaxAttempts: 1}).export(t.Context(), string(rowOf("k"))))
	require.Equal(t, []string{"bad"}, second.calls[0])
	require.Equal(t, []string{"good", "good too"}, second.payloads("k"))
	require.Equal(t, 1, dead(t, o))
}

// TestSinkThatHangs fails each call only when most of the time of a turn is over. The attempts of the first item count all the same, and its run is parked.
func TestSinkThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db, o := opened(t)
		require.NoError(t, db.ConfigureTable(ctx, "outbox", percolator.TableSettings{MaxTxnAge: 6 * time.Second, Retention: 12 * time.Second}))
		time.Sleep(time.Minute)
		put(t, o, "k", numbers(10)...)
		sink := SinkFunc(func(ctx context.Context, _ string, _ []Item) (int, error) {
			<-ctx.Done()
			return 0, errors.New("no answer")
		})
		w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 3, Timeout: 4 * time.Second}))
		defer stop()
		within, cancel := context.WithTimeout(ctx, 12*time.Minute)
		defer cancel()
		require.NoError(t, w.WaitIdle(within))
		parked, err := db.Parked(ctx)
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.Equal(t, 10, left(t, o))
	})
}
