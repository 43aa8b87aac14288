package export

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

const (
	faultKeys  = 3
	shortLease = 50 * time.Millisecond
)

func logOf(key string) percolator.Cell {
	return percolator.Cell{Table: "log", Row: key, Column: "items"}
}

// TestKilledAndSuspended has processes that put items and export them, whose calls fail, get lost, arrive late or twice, that die at any call, and that
// stand still in the sink for longer than their claims last. The sink checks epochs: it takes each item once, in the order of the commits.
func TestKilledAndSuspended(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	sink := &recorder{}
	// The outbox has an observer from the beginning on.
	first := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	w, stop := run(t, first, observer(t, newOutbox(t, first), sink, Options{}))
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()

	var refused, suspended, faults, deaths, items atomic.Int64
	var processes sync.WaitGroup
	for process := range 3 {
		random := rand.New(rand.NewPCG(seed, uint64(process))) //nolint:gosec // as above
		processes.Go(func() {
			for life := range 3 {
				store := faultstore.New(inner, faultstore.Options{KeepOpen: true, Seed: random.Uint64() | 1})
				pauses := rand.New(rand.NewPCG(seed, uint64(process*100+life))) //nolint:gosec // as above
				var mu sync.Mutex
				var calls atomic.Int64
				slow := SinkFunc(func(ctx context.Context, key string, given []Item) (int, error) {
					calls.Add(1)
					mu.Lock()
					pause, deaf := time.Duration(pauses.IntN(60))*time.Millisecond, pauses.IntN(8)
					mu.Unlock()
					if deaf == 0 { // it stands still, whatever its context says
						suspended.Add(1)
						<-time.After(pause)
					}
					n, err := sink.Send(ctx, key, given)
					if errors.Is(err, ErrSuperseded) {
						refused.Add(1)
					}
					return n, err
				})
				if died := live(t, store, slow, random, &calls, &items); died {
					deaths.Add(1)
				}
				for kind := faultstore.Fail; kind <= faultstore.Twice; kind++ {
					faults.Add(int64(store.Count(kind)))
				}
			}
		})
	}
	processes.Wait()
	t.Logf("%d items, %d faults, %d deaths, %d calls stood still, %d were refused, %d items came again",
		items.Load(), faults.Load(), deaths.Load(), suspended.Load(), refused.Load(), sink.again)
	require.Positive(t, faults.Load())
	require.Positive(t, suspended.Load())
	require.Positive(t, refused.Load()+int64(sink.again))
	require.Positive(t, items.Load())

	requireAllSent(t, inner, sink)
}

// requireAllSent drains the outbox, and compares what the sink took with what was committed.
func requireAllSent(t *testing.T, inner rowstore.Store, sink *recorder) {
	t.Helper()
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	o := newOutbox(t, db)
	w, stop := run(t, db, observer(t, o, sink, Options{Timeout: 10 * time.Millisecond, MaxAttempts: 1000}))
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
	require.Zero(t, left(t, o))
	for key := range faultKeys {
		var want []string
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
			want, err = readList(t.Context(), tx, logOf(strconv.Itoa(key)))
			return err
		}))
		require.NotEmpty(t, want)
		require.Equal(t, want, sink.payloads(strconv.Itoa(key)))
	}
}

// live is the life of a process. It tells whether the process died before it had done all.
func live(t *testing.T, store *faultstore.Store, sink Sink, random *rand.Rand, calls, items *atomic.Int64) (died bool) {
	db, err := percolator.New(t.Context(), store, percolator.WithSessionLease(shortLease), percolator.WithLockExpiry(shortLease), percolator.WithStorePatience(0))
	if err != nil {
		t.Error(err)
		return false
	}
	o := newOutbox(t, db)
	sends, err := o.Observer("send", sink, Options{Batch: 4, Timeout: 5 * time.Millisecond, MaxAttempts: 1000})
	if err != nil {
		t.Error(err)
		return false
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{
		Backoff: percolator.Backoff{Min: time.Millisecond, Max: 8 * time.Millisecond}, GCInterval: -1, MemberLease: 100 * time.Millisecond,
	})
	if err := w.Observe(sends); err != nil {
		t.Error(err)
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	store.SetRates(faultstore.Rates{LoseReply: 0.01, Fail: 0.005, Late: 0.005, Twice: 0.01, CrashClient: 0.0003})
	dead := func() bool {
		_, err := store.Read(t.Context(), []rowstore.RowRead{})
		return errors.Is(err, percolator.ErrClosed)
	}
	const enough = 30 // calls of the sink
	var putters sync.WaitGroup
	// A worker that others take for dead goes on with what it has begun: this one exports all the time, whoever has the key.
	putters.Go(func() {
		rival := newExporter(o, sink, Options{Batch: 4, Timeout: 5 * time.Millisecond, MaxAttempts: 1000})
		for key := 0; calls.Load() < enough && !dead(); key++ {
			_ = rival.export(t.Context(), string(rowOf(strconv.Itoa(key%faultKeys))))
		}
	})
	for range 3 {
		key := strconv.Itoa(random.IntN(faultKeys))
		putters.Go(func() {
			for i := 0; calls.Load() < enough && i < 200 && !dead(); i++ {
				err := db.Update(t.Context(), func(tx *percolator.Txn) error {
					start, err := tx.StartTimestamp(t.Context())
					if err != nil {
						return err
					}
					payload := strconv.FormatUint(uint64(start), 10) + "." + strconv.Itoa(i)
					if err := appendTo(t.Context(), tx, logOf(key), payload); err != nil {
						return err
					}
					return o.Put(t.Context(), tx, key, []byte(payload))
				})
				if err == nil {
					items.Add(1)
				}
			}
		})
	}
	putters.Wait()
	cancel()
	<-ended // with an error if the process died
	died = dead()
	store.SetRates(faultstore.Rates{})
	store.DeliverLate()
	_ = db.Close(t.Context())
	return died
}

// TestNoteBetweenSnapshotAndClaim has an exporter whose claim has ended. It notes what it has sent after its successor has looked, and before the
// successor's claim is there. The successor must not send that once more.
func TestNoteBetweenSnapshotAndClaim(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	first := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	w, stop := run(t, first, observer(t, newOutbox(t, first), &recorder{}, Options{}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	put(t, newOutbox(t, first), "k", "1", "2")

	sink, opt := &recorder{}, Options{Batch: 10, Timeout: time.Millisecond, MaxAttempts: 1}
	late := newExporter(newOutbox(t, first), sink, opt)
	held, _, err := late.take(ctx, "k")
	require.NoError(t, err)
	items, complete := sendable(held, held.first, held.cut)
	require.Len(t, items, 2)
	require.True(t, complete)

	var notes atomic.Int64
	second := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if c.Kind == faultstore.CallGroup && notes.Add(1) == 1 { // the commit of the claim
			_, err := sink.Send(ctx, "k", []Item{items[0].Item, items[1].Item})
			require.NoError(t, errors.Join(err, late.note(ctx, held, items, true)))
		}
		return faultstore.Fault{}
	}}))
	successor := newExporter(newOutbox(t, second), sink, opt)
	require.Eventually(t, func() bool { return successor.export(ctx, string(rowOf("k"))) == nil }, time.Minute, time.Millisecond)
	require.Positive(t, notes.Load())
	require.Equal(t, []string{"1", "2"}, sink.payloads("k"))
	require.Zero(t, sink.again, "what was noted does not come again")
	require.Zero(t, left(t, successor.Outbox))
}
