package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
)

// processLease is that of the sessions and locks of the processes here. Their claims end after three times as long. They are suspended for longer.
const processLease = 300 * time.Millisecond

func openProcess(ctx context.Context, url string) (*percolator.DB, *Outbox, error) {
	db, err := percolator.Open(ctx, url, percolator.WithSessionLease(processLease), percolator.WithLockExpiry(processLease),
		percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	if err != nil {
		return nil, nil, err
	}
	o, err := New(db, "outbox")
	return db, o, err
}

// working is a worker that sends items to a URL.
func working(db *percolator.DB, o *Outbox, to string) (*percolator.Worker, error) {
	sends, err := o.Observer("send", HTTP{URL: to}, Options{Batch: 4, Timeout: processLease, MaxAttempts: 1 << 20})
	if err != nil {
		return nil, err
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{
		Backoff: percolator.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}, MemberLease: processLease,
	})
	return w, w.Observe(sends)
}

// sending is a process that puts items, logs them in the same transactions, and sends those of everybody. It says "put" for each.
var sending = everystore.NewRole("export", func(ctx context.Context, url, to string) error {
	within := context.WithoutCancel(ctx)
	db, o, err := openProcess(within, url)
	if err != nil {
		return err
	}
	w, err := working(db, o, to)
	if err != nil {
		return err
	}
	var worker sync.WaitGroup
	works, stop := context.WithCancel(within)
	worker.Go(func() { err = w.Run(works) })
	for i := 0; ctx.Err() == nil; i++ {
		key := strconv.Itoa(i % faultKeys)
		perr := db.Update(within, func(tx *percolator.Txn) error {
			start, err := tx.StartTimestamp(within)
			if err != nil {
				return err
			}
			payload := strconv.FormatUint(uint64(start), 10)
			return errors.Join(appendTo(within, tx, logOf(key), payload), o.Put(within, tx, key, []byte(payload)))
		})
		if perr != nil {
			fmt.Println("failed", perr) // the observer is not registered yet, say
			continue
		}
		fmt.Println("put")
	}
	stop()
	worker.Wait()
	return errors.Join(err, db.Close(within))
})

// receiver is the recorder as a server, which is not suspended.
func receiver(t *testing.T, sink *recorder) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b jsonBatch
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			w.WriteHeader(http.StatusBadRequest) // of a process that was killed
			return
		}
		var items []Item
		for _, i := range b.Items {
			items = append(items, Item{Key: b.Key, Epoch: b.Epoch, Commit: i.Commit, Index: i.Index, Payload: i.Payload})
		}
		switch n, err := sink.Send(r.Context(), b.Key, items); {
		case errors.Is(err, ErrSuperseded):
			w.WriteHeader(http.StatusConflict)
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			_, _ = fmt.Fprintf(w, `{"sent": %d}`, n)
		}
	}))
	atend.Do(t, server.Close)
	return server.URL
}

func (r *recorder) count() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.taken {
		n += len(all)
	}
	return n
}

// TestSuspendedProcesses has processes that put items and send them, and suspends or kills one of them again and again at a random moment. The others go on meanwhile, and so does
// one that was suspended. The sink, which checks epochs, gets every item once and in the order of the commits.
func TestSuspendedProcesses(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	everystore.URLs(t, func(t *testing.T, url string) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // as above
		sink := &recorder{}
		to := receiver(t, sink)
		processes := []*everystore.Process{sending.Start(t, url, to)}
		if !everystore.Embedded(url) { // which has one process
			processes = append(processes, sending.Start(t, url, to))
		}
		for _, p := range processes {
			p.Await(t, "put", 3)
		}
		for round := range 6 {
			victim := random.IntN(len(processes))
			p, other := processes[victim], processes[(victim+1)%len(processes)]
			p.Await(t, "put", len(p.Said("put"))+random.IntN(4))
			if round%3 == 2 {
				p.Kill(t)
				p = sending.Start(t, url, to)
				processes[victim] = p
				p.Await(t, "put", 3)
				continue
			}
			p.Suspend(t)
			begun, sent, atLeast := time.Now(), sink.count(), len(other.Said("put"))+4
			other.Until(t, func() bool {
				return time.Since(begun) > 5*processLease && (other == p || len(other.Said("put")) >= atLeast && sink.count() >= sent+4)
			}, "the other process sends nothing while one is suspended")
			before := len(p.Said("put"))
			p.Resume(t)
			sent = sink.count()
			p.Await(t, "put", before+4)
			p.Until(t, func() bool { return sink.count() >= sent+4 }, "nothing is sent any more")
		}
		for _, p := range processes {
			p.End(t)
			t.Logf("%d put, %d failed", len(p.Said("put")), len(p.Said("failed")))
		}
		requireRestSent(t, url, to, sink)
	})
}

// requireRestSent sends what the processes have left, and compares what the sink took with what was committed.
func requireRestSent(t *testing.T, url, to string, sink *recorder) {
	t.Helper()
	ctx := t.Context()
	db, o, err := openProcess(ctx, url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	w, err := working(db, o, to)
	require.NoError(t, err)
	works, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(works) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Empty(t, parked)
	require.Zero(t, left(t, o))
	t.Logf("%d items, of which %d came again", sink.count(), sink.again)
	for key := range faultKeys {
		var want []string
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) (err error) {
			want, err = readList(ctx, tx, logOf(strconv.Itoa(key)))
			return err
		}))
		require.NotEmpty(t, want)
		require.Equal(t, want, sink.payloads(strconv.Itoa(key)))
	}
}
