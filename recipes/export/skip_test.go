package export

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// dead counts the dead letters.
func dead(t testing.TB, o *Outbox) (n int) {
	t.Helper()
	require.NoError(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		n = 0
		for _, err := range o.Dead(t.Context(), tx) {
			if err != nil {
				return err
			}
			n++
		}
		return nil
	}))
	return n
}

// TestOutageSetsNothingAside has a sink that is away for five seconds. The attempts of an item are spread over more than that, also if further
// items of its key come all the time, and the key is paused meanwhile.
func TestOutageSetsNothingAside(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint(busy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, o := opened(t)
				began := time.Now()
				var failures atomic.Int64
				good := &recorder{}
				sink := SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
					time.Sleep(5 * time.Millisecond)
					if time.Since(began) < 5*time.Second {
						failures.Add(1)
						return 0, errors.New("away")
					}
					return good.Send(ctx, key, items)
				})
				w, stop := run(t, db, observer(t, o, sink, Options{Skip: true}))
				defer stop()
				puts := 1
				if busy {
					puts = 200
				}
				pauses := 0
				for i := range puts {
					put(t, o, "k", fmt.Sprint(i))
					time.Sleep(50 * time.Millisecond)
					pauses += len(paused(t, o))
				}
				time.Sleep(time.Minute)
				require.NoError(t, w.WaitIdle(t.Context()))
				require.Zero(t, dead(t, o), "set aside in an outage of 5 s")
				require.Len(t, good.payloads("k"), puts)
				require.LessOrEqual(t, failures.Load(), int64(6), "of 0.2, 0.4, 0.8, 1.6 and 3.2 s")
				require.Positive(t, pauses)
				require.Zero(t, claims(t, o))
			})
		})
	}
}

// TestResumeAfterAFailure ends the pause after a refusal before its time.
func TestResumeAfterAFailure(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", "1")
	sink := &recorder{before: refuse("1")}
	e := newExporter(o, sink, Options{Skip: true})
	require.Error(t, e.export(t.Context(), string(rowOf("k"))))
	sink.before = nil
	require.NoError(t, resume(t, o, "k"))
	require.NoError(t, e.export(t.Context(), string(rowOf("k"))))
	require.Equal(t, []string{"1"}, sink.payloads("k"))
	require.Zero(t, claims(t, o))
}

// TestWrongCountIsParked has a sink that says it has taken more than it was given, or less than nothing. That is a defect of the sink and not of an
// item, so nothing is set aside, also with Skip: the run is parked after its attempts.
func TestWrongCountIsParked(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(given int) (int, error){
		"more":             func(given int) (int, error) { return given + 1, nil },
		"less":             func(int) (int, error) { return -1, errors.New("why") },
		"less, later":      func(int) (int, error) { return -1, Later(time.Second, nil) },
		"more, superseded": func(given int) (int, error) { return given + 1, ErrSuperseded },
	} {
		for _, skip := range []bool{false, true} {
			t.Run(fmt.Sprint(name, skip), func(t *testing.T) {
				t.Parallel()
				db, o := opened(t)
				var calls atomic.Int64
				sink := SinkFunc(func(_ context.Context, _ string, items []Item) (int, error) {
					calls.Add(1)
					return wrong(len(items))
				})
				w, stop := run(t, db, observer(t, o, sink, Options{Skip: skip, MaxAttempts: 5}))
				defer stop()
				put(t, o, "k", "1")
				within, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				require.NoError(t, w.WaitIdle(within))
				parked, err := db.Parked(t.Context())
				require.NoError(t, err)
				require.Len(t, parked, 1)
				require.Contains(t, parked[0].Error, "of 1 items")
				require.EqualValues(t, 5, calls.Load())
				require.Zero(t, dead(t, o))
				require.Equal(t, 1, left(t, o))
			})
		}
	}
}
