package percolatetest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Open returns a database in this process's memory, which is empty and closed when the test
// ends. Nobody waits for its leases: the catalog's lease is 10 ms. Its log is the test's. An
// option in opts counts more than what Open sets itself.
//
// Open works in a bubble of package testing/synctest, with the bubble's t. The database then
// takes its time from the bubble.
func Open(t testing.TB, opts ...percolator.Option) *percolator.DB {
	t.Helper()
	all := append([]percolator.Option{
		percolator.WithSettings(percolator.Settings{CatalogLease: 10 * time.Millisecond}),
		percolator.WithLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}, opts...)
	// The cleanup comes after the end of t.Context.
	ctx := context.WithoutCancel(t.Context())
	store := memstore.New()
	db, err := percolator.New(ctx, store, all...)
	if err != nil {
		_ = store.Close()
		t.Fatalf("percolatetest: opening a database in memory: %v", err)
	}
	atend.Do(t, func() {
		if err := db.Close(ctx); err != nil {
			t.Errorf("percolatetest: closing the database: %v", err)
		}
	})
	return db
}

// RunUntilIdle runs observers over db until nothing is left for them to do, and stops them. The
// first call for an observer also lets it see the data that is there already.
//
// A run that fails is repeated after some milliseconds. The test fails if a run was parked,
// that is, if it failed as often as its observer's MaxAttempts allows, by default three times.
// It also fails if the observers are not idle shortly before the test's deadline; a test in a bubble
// has none.
func RunUntilIdle(t testing.TB, db *percolator.DB, observers ...percolator.Observer) {
	t.Helper()
	if db == nil {
		t.Fatal("percolatetest: RunUntilIdle: the database is nil")
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{
		MaxAttempts: mostAttempts, Backoff: percolator.Backoff{Min: time.Millisecond, Max: 8 * time.Millisecond},
		MemberLease: 100 * time.Millisecond, GCInterval: -1,
	})
	for _, o := range observers {
		if err := w.Observe(o); err != nil {
			t.Fatalf("percolatetest: %v", err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	if at, ok := deadline(t); ok {
		stop()
		ctx, stop = context.WithDeadlineCause(t.Context(), at, errNotIdle)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	err := w.WaitIdle(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	stop()
	if rerr := <-ended; rerr != nil {
		err = rerr
	}
	if err != nil {
		t.Fatalf("percolatetest: running observers until they are idle: %v", err)
	}
	parked, err := db.Parked(t.Context())
	if err != nil {
		t.Fatalf("percolatetest: looking for parked runs: %v", err)
	}
	infos, err := db.Observers(t.Context())
	if err != nil {
		t.Fatalf("percolatetest: looking for the names of observers: %v", err)
	}
	for _, p := range parked {
		if slices.ContainsFunc(observers, func(o percolator.Observer) bool {
			return o.Table == p.Cell.Table && o.Column == p.Cell.Column && isOf(infos, p, o.Name)
		}) {
			t.Errorf("percolatetest: a run of observer %q on %v was parked after %d attempts: %s", p.Observer, p.Cell, p.Attempts, p.Error)
		}
	}
}

// isOf tells whether a parked run is one of the observer that goes by a name. An observer may go by several, and its parked runs
// have the one that it is called now.
func isOf(infos []percolator.ObserverInfo, p percolator.ParkedRun, name string) bool {
	return p.Observer == name || slices.ContainsFunc(infos, func(o percolator.ObserverInfo) bool {
		return o.Name == p.Observer && o.Table == p.Cell.Table && o.Column == p.Cell.Column && slices.Contains(o.Aliases, name)
	})
}

var errNotIdle = errors.New("the test has little time left; does an observer run because of itself?")

// deadline is a little before that of a test, to tell why it failed.
func deadline(t testing.TB) (at time.Time, ok bool) {
	d, has := t.(interface{ Deadline() (time.Time, bool) })
	if !has {
		return at, false
	}
	defer func() {
		if recover() != nil {
			ok = false // a bubble's
		}
	}()
	at, ok = d.Deadline()
	return at.Add(-time.Until(at) / 20), ok
}

// mostAttempts is the default of Observer.MaxAttempts here. Who tests wants to see a failure
// soon.
const mostAttempts = 3
