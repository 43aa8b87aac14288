package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Several workers over one store, each with a client and a wire of its own, in a bubble of
// fake time.

// crew is such a store with its workers.
type crew struct {
	t      testing.TB
	mem    *memstore.Store
	source *DB          // that commits, and runs no observer
	quiet  bool         // the store has no push for those who are hired
	rows   bool         // those who are hired read all notifications in row order
	log    slog.Handler // of those who are hired; nil for none
}

// eachCrew runs a test in a bubble.
func eachCrew(t *testing.T, test func(t *testing.T, c *crew)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newCrew(t)) })
}

// eachCrewNamed is eachCrew for one of several cases.
func eachCrewNamed(t *testing.T, name string, test func(t *testing.T, c *crew)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { eachCrew(t, test) })
}

func newCrew(t testing.TB) *crew {
	t.Helper()
	c := &crew{t: t, mem: memstore.New()}
	c.source = c.open(faultstore.New(c.mem, faultstore.Options{KeepOpen: true, Seed: 1}))
	return c
}

func (c *crew) open(s rowstore.Store) *DB {
	c.t.Helper()
	settings := WithSettings(Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: time.Second})
	log := c.log
	if log == nil {
		log = slog.DiscardHandler
	}
	db, err := New(c.t.Context(), s, settings, withSeed(1), WithLogger(slog.New(log)))
	require.NoError(c.t, err)
	atend.Do(c.t, func() { _ = db.Close(context.Background()) }) // one that was killed cannot say goodbye
	return db
}

// mate is one worker of a crew.
type mate struct {
	*Worker
	t    testing.TB
	wire *faultstore.Store

	mu    sync.Mutex
	calls []string // observer/row of each call of a function, in order

	cancel context.CancelFunc
	ended  chan struct{}
	ranErr error
}

// hire makes a worker that does not run yet. work is what the functions do, besides being counted.
func (c *crew) hire(config WorkerConfig, work func(ctx context.Context, cell Cell) error, observers ...string) *mate {
	c.t.Helper()
	m := &mate{t: c.t, ended: make(chan struct{})}
	m.wire = faultstore.New(&tapped{Store: c.mem, quiet: c.quiet}, faultstore.Options{KeepOpen: true, Seed: 1})
	if !c.quiet {
		m.wire = faultstore.New(c.mem, faultstore.Options{KeepOpen: true, Seed: 1})
	}
	if config.GCInterval == 0 {
		config.GCInterval = -1
	}
	m.Worker = NewWorker(c.open(m.wire), config)
	m.db.slots = !c.rows
	for _, name := range observers {
		require.NoError(c.t, m.Observe(Observer{Name: name, Table: "t", Column: "v", Func: func(ctx context.Context, _ *Txn, cell Cell) error {
			m.mu.Lock()
			m.calls = append(m.calls, name+"/"+cell.Row)
			m.mu.Unlock()
			if work == nil {
				return nil
			}
			return work(ctx, cell)
		}}))
	}
	return m
}

// start lets it run.
func (m *mate) start() *mate {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.ended)
		m.ranErr = m.Run(ctx)
	}()
	atend.Do(m.t, func() {
		m.wire.SetRules()
		m.stop()
	})
	return m
}

// stop ends it in order.
func (m *mate) stop() {
	m.cancel()
	<-m.ended
}

// kill ends its process.
func (m *mate) kill() {
	m.wire.CrashClient()
	m.stop()
}

// dismiss closes the clients of workers that have ended, for a test that hires very many.
func (c *crew) dismiss(all ...*mate) {
	for _, m := range all {
		_ = m.db.Close(context.Background()) // as for open
	}
}

// called tells whether a function was called, by "observer/row".
func (m *mate) called(what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.calls, what)
}

// count tells how many functions were called.
func (m *mate) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.calls)
}

// change sets rows in one transaction.
func (c *crew) change(rows ...string) {
	c.t.Helper()
	require.NoError(c.t, c.source.Update(c.t.Context(), func(tx *Txn) error {
		var err error
		for _, r := range rows {
			err = errors.Join(err, tx.Set(row(r), []byte("x")))
		}
		return err
	}))
}

// rows are n names.
func rows(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return names
}

// handledIn tells whether no notification is left after some time, and when that was.
func (c *crew) handledIn(d time.Duration) (time.Duration, bool) {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		synctest.Wait()
		if len(c.left(1)) == 0 { // one is enough to see that it is not done, and a test looks thousands of times
			return time.Since(began), true
		} else if time.Since(began) >= d {
			return d, false
		}
	}
}

// handles requires that everything is handled within some time.
func (c *crew) handles(d time.Duration, msg ...any) {
	c.t.Helper()
	if _, ok := c.handledIn(d); !ok {
		require.FailNow(c.t, "changes wait", "%d after %v: %v %v", len(c.left(0)), d, c.left(0), fmt.Sprint(msg...))
	}
}

// left are the rows that have notifications, at most so many of them if most is not 0.
func (c *crew) left(most int) (names []string) {
	c.t.Helper()
	for r, err := range c.mem.Scan(c.t.Context(), rowstore.ScanRange{Table: "t", Limit: most, Selectors: []rowstore.Selector{everything(rowstore.Notify, "v")}}) {
		require.NoError(c.t, err)
		names = append(names, r.Row)
	}
	return names
}

// members are the ids that have a record.
func (c *crew) members() (ids []string) {
	c.t.Helper()
	for r, err := range c.mem.Scan(c.t.Context(), rowstore.ScanRange{Table: format.TableMembers, Selectors: []rowstore.Selector{everything(rowstore.Lock, format.ColumnMember)}}) {
		require.NoError(c.t, err)
		ids = append(ids, r.Row)
	}
	return ids
}

// settle lets all workers know each other.
func settle() {
	time.Sleep(12 * time.Second)
	synctest.Wait()
}

// touches are calls that change a row of the members' table: the generation or any other.
func touches(generation bool) matcher {
	return func(c *call) bool {
		return slices.ContainsFunc(c.Mutations(), func(m rowstore.Mutation) bool {
			return m.Table == format.TableMembers && (m.Row == format.RowGeneration) == generation
		})
	}
}

// scansMembers are calls that read the list of the members.
func scansMembers(c *call) bool {
	return c.Kind == faultstore.CallScan && c.Range.Table == format.TableMembers
}

// sleeps is a function that takes some time.
func sleeps(d time.Duration) func(context.Context, Cell) error {
	return func(ctx context.Context, _ Cell) error { return systemClock{}.Sleep(ctx, d) }
}

// concernsMembers are calls that read or change the table of the members.
func concernsMembers(c *call) bool {
	in := func(r rowstore.RowRead) bool { return r.Table == format.TableMembers }
	return scansMembers(c) || touches(true)(c) || touches(false)(c) || slices.ContainsFunc(c.Reads, in) ||
		slices.ContainsFunc(c.Asks, func(a rowstore.SnapshotRead) bool { return slices.ContainsFunc(a.Reads, in) })
}
