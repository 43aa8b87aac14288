package export

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// recorder is a sink that checks epochs, as an exact one does, and remembers what it took.
type recorder struct {
	mu     sync.Mutex
	epochs map[string]uint64
	taken  map[string][]Item
	again  int // items that came again, in order and under a higher epoch
	before func(key string, items []Item) (most int, err error)
}

func (r *recorder) Send(_ context.Context, key string, items []Item) (int, error) {
	most := len(items)
	var failure error
	if r.before != nil {
		most, failure = r.before(key, items)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.epochs == nil {
		r.epochs, r.taken = map[string]uint64{}, map[string][]Item{}
	}
	for i, item := range items[:max(0, min(most, len(items)))] {
		if item.Key != key {
			return i, fmt.Errorf("an item of %q came for %q", item.Key, key)
		}
		if item.Epoch < r.epochs[key] {
			return i, ErrSuperseded
		}
		r.epochs[key] = item.Epoch
		if n := len(r.taken[key]); n > 0 && !before(r.taken[key][n-1], item) {
			r.again++
			continue
		}
		r.taken[key] = append(r.taken[key], item)
	}
	return most, failure
}

func before(a, b Item) bool {
	return a.Commit < b.Commit || a.Commit == b.Commit && a.Index < b.Index
}

// payloads are what the sink took of a key.
func (r *recorder) payloads(key string) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range r.taken[key] {
		all = append(all, string(item.Payload))
	}
	return all
}

func newOutbox(t testing.TB, db *percolator.DB) *Outbox {
	t.Helper()
	o, err := New(db, "outbox")
	require.NoError(t, err)
	return o
}

func observer(t testing.TB, o *Outbox, sink Sink, opt Options) percolator.Observer {
	t.Helper()
	observer, err := o.Observer("send", sink, opt)
	require.NoError(t, err)
	return observer
}

// opened is a database whose outbox has an observer that was run.
func opened(t testing.TB) (*percolator.DB, *Outbox) {
	t.Helper()
	db := percolatetest.Open(t)
	o := newOutbox(t, db)
	percolatetest.RunUntilIdle(t, db, observer(t, o, &recorder{}, Options{}))
	return db, o
}

// run runs a worker until stop is called.
func run(t testing.TB, db *percolator.DB, o percolator.Observer) (w *percolator.Worker, stop func()) {
	t.Helper()
	w = percolator.NewWorker(db, percolator.WorkerConfig{Backoff: percolator.Backoff{Min: time.Millisecond, Max: 8 * time.Millisecond}, GCInterval: -1})
	require.NoError(t, w.Observe(o))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return w, func() { cancel(); require.NoError(t, <-ended) }
}

// put puts items of a key by one transaction.
func put(t testing.TB, o *Outbox, key string, payloads ...string) {
	t.Helper()
	require.NoError(t, o.db.Update(t.Context(), func(tx *percolator.Txn) error {
		for _, p := range payloads {
			if err := o.Put(t.Context(), tx, key, []byte(p)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// left counts rows of items.
func left(t testing.TB, o *Outbox) (n int) {
	t.Helper()
	require.NoError(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		n = 0
		for _, err := range tx.Scan(t.Context(), percolator.Range{Table: o.table, Columns: []string{itemColumn}}) {
			if err != nil {
				return err
			}
			n++
		}
		return nil
	}))
	return n
}

// TestEverythingIsSentInOrder has two processes that put items for some keys, and run the exporter. Each key has a counter, so that the order of the
// commits is known.
func TestEverythingIsSentInOrder(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		const keys, putters, each = 3, 3, 5
		ctx, sink := t.Context(), &recorder{}
		waiting, stop := run(t, one, observer(t, newOutbox(t, one), sink, Options{Batch: 5}))
		require.NoError(t, waiting.WaitIdle(ctx))
		_, stopTwo := run(t, two, observer(t, newOutbox(t, two), sink, Options{Batch: 5}))
		var group errgroup.Group
		for i := range keys * putters {
			db := []*percolator.DB{one, two}[i%2]
			o, key := newOutbox(t, db), strconv.Itoa(i%keys)
			group.Go(func() error {
				for range each {
					err := db.Update(ctx, func(tx *percolator.Txn) error {
						n, err := next(ctx, tx, key)
						if err != nil {
							return err
						}
						if err := o.Put(ctx, tx, key, []byte(strconv.Itoa(2*n))); err != nil {
							return err
						}
						return o.Put(ctx, tx, key, []byte(strconv.Itoa(2*n+1)))
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
		require.NoError(t, waiting.WaitIdle(ctx))
		stopTwo()
		stop()
		for key := range keys {
			var want []string
			for n := range 2 * putters * each {
				want = append(want, strconv.Itoa(n))
			}
			require.Equal(t, want, sink.payloads(strconv.Itoa(key)))
		}
		require.Zero(t, sink.again)
		require.Zero(t, left(t, newOutbox(t, one)))
	}, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
}

// next counts by a cell, so its transactions conflict.
func next(ctx context.Context, tx *percolator.Txn, key string) (int, error) {
	c := percolator.Cell{Table: "counter", Row: key, Column: "n"}
	n := 0
	b, err := tx.Get(ctx, c)
	switch {
	case errors.Is(err, percolator.ErrNotFound):
	case err != nil:
		return 0, err
	default:
		if n, err = strconv.Atoi(string(b)); err != nil {
			return 0, err
		}
	}
	return n, tx.Set(c, []byte(strconv.Itoa(n+1)))
}

// TestOrderOfCommits has transactions that commit in another order than they began, and pages that are smaller than that.
func TestOrderOfCommits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	const n = 12
	var open []*percolator.Txn
	for i := range n {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, o.Put(ctx, tx, "k", []byte(strconv.Itoa(n-1-i))))
		open = append(open, tx)
	}
	for _, tx := range slices.Backward(open) {
		require.NoError(t, tx.Commit(ctx))
	}
	for i := range n {
		put(t, o, "k", strconv.Itoa(n+i))
	}
	sink := &recorder{}
	e := newExporter(o, sink, Options{Batch: 3, Timeout: time.Second, MaxAttempts: 1})
	e.page = 2
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	var want []string
	for i := range 2 * n {
		want = append(want, strconv.Itoa(i))
	}
	require.Equal(t, want, sink.payloads("k"))
	require.Zero(t, left(t, o))
	requireForgotten(t, open...)
}

// requireForgotten fails if anything is kept for transactions that have ended.
func requireForgotten(t testing.TB, ended ...*percolator.Txn) {
	t.Helper()
	for _, tx := range ended {
		require.Nil(t, tx.Attached(indexKey{"outbox"}))
	}
}

func TestPutsDoNotConflict(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	var open []*percolator.Txn
	for range 5 {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, o.Put(ctx, tx, "k", nil))
		open = append(open, tx)
	}
	for _, tx := range open {
		require.NoError(t, tx.Commit(ctx))
	}
	require.Equal(t, 5, left(t, o))
	failed := errors.New("no")
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error { return errors.Join(o.Put(ctx, tx, "k", nil), failed) }), failed)
	require.Equal(t, 5, left(t, o))
}

// TestSuspendedExporter has one that stands still in its sink until its claim has ended and a successor has sent everything. What it sends then
// is refused, and it notes nothing.
func TestSuspendedExporter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, o := opened(t)
	put(t, o, "k", "1", "2")
	sink := &recorder{}
	successor := newExporter(o, sink, Options{Batch: 10, Timeout: time.Millisecond, MaxAttempts: 1})
	suspended := newExporter(o, nil, successor.opt)
	calls := 0
	suspended.sink = SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
		calls++
		require.Eventually(t, func() bool { return successor.export(t.Context(), string(rowOf("k"))) == nil }, time.Minute, time.Millisecond)
		put(t, o, "k", "3")
		require.NoError(t, successor.export(t.Context(), string(rowOf("k"))))
		return sink.Send(ctx, key, items)
	})
	require.Error(t, suspended.export(ctx, string(rowOf("k"))), "the run is not acknowledged")
	require.Equal(t, 1, calls)
	require.Equal(t, []string{"1", "2", "3"}, sink.payloads("k"))
	require.Zero(t, sink.again)

	// A sink that does not check takes them again; they are not noted either.
	put(t, o, "k", "4")
	var late []Item
	suspended.sink = SinkFunc(func(_ context.Context, _ string, items []Item) (int, error) {
		require.Eventually(t, func() bool { return successor.export(t.Context(), string(rowOf("k"))) == nil }, time.Minute, time.Millisecond)
		put(t, o, "k", "5")
		late = items
		return len(items), nil
	})
	require.Error(t, suspended.export(ctx, string(rowOf("k"))))
	require.Len(t, late, 1)
	require.Equal(t, 1, left(t, o), "what came later is there")
	require.NoError(t, successor.export(ctx, string(rowOf("k"))))
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, sink.payloads("k"))
	require.Less(t, late[0].Epoch, sink.epochs["k"])
}

// TestLateExporterSendsNothing has an exporter that stands still between its claim and its first call of the sink, for longer than the claim lasts.
func TestLateExporterSendsNothing(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", "1")
	exporting := func(sink Sink, timeout time.Duration) *exporter {
		return newExporter(o, sink, Options{Batch: 1, Timeout: timeout, MaxAttempts: 1})
	}
	late := exporting(SinkFunc(func(context.Context, string, []Item) (int, error) {
		t.Error("the late exporter has called the sink")
		return 0, ErrSuperseded
	}), time.Millisecond)
	turn, _, err := late.take(t.Context(), "k")
	require.NoError(t, err)
	require.NotNil(t, turn)
	sink := &recorder{}
	require.Eventually(t, func() bool {
		return exporting(sink, time.Minute).export(t.Context(), string(rowOf("k"))) == nil
	}, 20*time.Second, time.Millisecond)
	require.Equal(t, []string{"1"}, sink.payloads("k"))
	require.ErrorIs(t, late.sendAll(t.Context(), turn), errLost)
}

// TestClaimedKeyWaits has a key that somebody else has claimed.
func TestClaimedKeyWaits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, o := opened(t)
	put(t, o, "k", "1")
	sink := &recorder{}
	e := newExporter(o, sink, Options{Batch: 10, Timeout: time.Minute, MaxAttempts: 1})
	mine, wait, err := e.take(ctx, "k")
	require.NoError(t, err)
	require.Zero(t, wait)
	_, wait, err = e.take(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, claimedPause, wait)
	require.Error(t, e.export(ctx, string(rowOf("k"))), "RetryAfter")
	require.Empty(t, sink.payloads("k"))
	e.leave(ctx, mine)
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	require.Equal(t, []string{"1"}, sink.payloads("k"))
}

// TestRunWithoutItems has a run for items that the run before it has sent. It claims nothing, and so writes nothing.
func TestRunWithoutItems(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	put(t, o, "k", "1")
	sink := &recorder{}
	e := newExporter(o, sink, Options{Batch: 10, Timeout: time.Minute, MaxAttempts: 1})
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	before := db.Stats().OnePhase
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	require.Equal(t, before, db.Stats().OnePhase)
	require.Equal(t, []string{"1"}, sink.payloads("k"))
}

// appendTo and readList keep texts in a cell, each of one line.
func appendTo(ctx context.Context, tx *percolator.Txn, c percolator.Cell, text string) error {
	all, err := readList(ctx, tx, c)
	if err != nil {
		return err
	}
	return tx.Set(c, []byte(strings.Join(append(all, text), "\n")))
}

func readList(ctx context.Context, tx *percolator.Txn, c percolator.Cell) ([]string, error) {
	b, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(string(b), "\n"), nil
}
