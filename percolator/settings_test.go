package percolator

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// configured changes the settings and waits until they are in force.
func (w *world) configured(c *client, s Settings) {
	w.t.Helper()
	require.NoError(w.t, c.Configure(w.t.Context(), s))
	w.pass(2*worldLease + time.Second)
}

// A longer MaxTxnAge does not bring back a transaction below the safe point: what
// conflicts with it is gone.
func TestLongerAgeAndTheSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		set(t, c.DB, rowA, "1")
		tx := begin(t, t1)
		_, err := tx.Get(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
		w.clock.advance(worldAge + time.Minute)
		report, err := w.collect(c, 1)
		require.NoError(t, err)
		require.Greater(t, report.SafePoint, startOf(tx))
		require.Empty(t, w.versions(rowstore.Write), "the delete was to be collected")
		w.configured(c, Settings{MaxTxnAge: 3 * worldAge})
		require.NoError(t, tx.Set(rowA, []byte("lost update")))
		require.ErrorIs(t, tx.Commit(t.Context()), ErrTxnTooOld)
		require.Equal(t, "none", value(t, c, rowA))
	})
}

// A transaction that begins below a safe point does not commit, whatever its age: that the ages
// keep it from that is the collection's business, and a collection may err.
func TestNoCommitBelowTheSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		below := writes(t, t1, "below", rowA)
		safe, err := c.draw(t.Context())
		require.NoError(t, err)
		above := writes(t, t1, "above", rowB)
		got, err := c.publishSafePoint(t.Context(), c.known(), safe)
		require.NoError(t, err)
		require.Equal(t, safe, got.safePoint)
		_, err = t1.loadCatalog(t.Context()) // which a lease would do in time
		require.NoError(t, err)
		require.ErrorIs(t, below.Commit(t.Context()), ErrTxnTooOld)
		require.Equal(t, "none", value(t, c, rowA))
		require.NoError(t, above.Commit(t.Context()))
		require.Equal(t, "above", value(t, c, rowB))
	})
}

// The age that binds a transaction is the least that held since it began.
func TestLeastAgeBinds(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		before := writes(t, t1, "before", rowA)
		w.configured(c, Settings{MaxTxnAge: 2 * worldAge})
		between := writes(t, t1, "between", rowB)
		w.configured(c, Settings{MaxTxnAge: 4 * worldAge})
		after := writes(t, t1, "after", rowC)
		w.clock.advance(worldAge)
		require.ErrorIs(t, before.Commit(t.Context()), ErrTxnTooOld)
		w.clock.advance(worldAge)
		require.ErrorIs(t, between.Commit(t.Context()), ErrTxnTooOld)
		w.clock.advance(worldAge)
		require.NoError(t, after.Commit(t.Context()))
		var tooOld *TxnTooOldError
		require.ErrorAs(t, between.commitError(t, c), &tooOld)
		require.Equal(t, 2*worldAge, tooOld.MaxTxnAge)
	})
}

// commitError is what a transaction with the same start is told.
func (tx *Txn) commitError(t *testing.T, c *client) error {
	t.Helper()
	again := begin(t, c)
	again.snapshot = tx.snapshot
	require.NoError(t, again.Set(rowB, nil))
	return again.Commit(t.Context())
}

// A lease that was shortened is outwaited at its old length while anybody may go by it,
// also when the settings have been changed once more.
func TestShorterLeaseThenConfiguredAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		ctx := t.Context()
		const short = 2 * time.Second
		require.NoError(t, c.Configure(ctx, Settings{CatalogLease: short}))
		w.clock.advance(2*worldLease - 500*time.Millisecond)
		_, err := t1.loadCatalog(ctx) // by the old settings, and nearly the new ones
		require.NoError(t, err)
		tx := writes(t, t1, "1", rowA)
		p := t1.hold(t, func(x *call) bool { return x.Kind == faultstore.CallGroup || prewrites(x) })
		done := commit(t1, tx)
		p.wait()
		w.clock.advance(time.Second)
		require.NoError(t, c.Configure(ctx, Settings{MaxTxnAge: worldAge + time.Minute}))
		var s saw
		wk := watching(t, c, s.observer("o"))
		require.NoError(t, wk.publish(ctx))
		swept := async(func() error { return wk.sweepNew(context.Background()) })
		require.Eventually(t, func() bool {
			select {
			case err := <-swept:
				require.NoError(t, err)
				return true
			default:
				w.clock.advance(short / 2) // until it has waited for as long as it wants to
				return false
			}
		}, patience, 10*time.Millisecond)
		p.release(pass)
		if w.finish(done) == nil {
			require.Len(t, w.notified(rowA), 1, "nobody will ever be told of the write")
		}
	})
}

// Shorter settings are what a collection goes by once nobody can go by the longer ones.
func TestShorterSettingsReachCollection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	w.clock.advance(worldRetention)
	require.NoError(t, c.Configure(t.Context(), Settings{MaxTxnAge: time.Minute}))
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, now.Sub(report.SafePoint), worldAge+worldLease, "the longer one is still in force")
	w.pass(2 * worldLease)
	report, err = w.collect(c, 1)
	require.NoError(t, err)
	now, err = c.Now(t.Context())
	require.NoError(t, err)
	require.Less(t, now.Sub(report.SafePoint), time.Minute+3*worldLease)
}

// A process that is held up in the middle of Configure, for longer than any lease, has
// made nothing unsafe: a view from before its change is outwaited.
func TestConfigureHeldUp(t *testing.T) {
	t.Parallel()
	for _, step := range []int{0, 1} {
		w := newWorld(t)
		c, other := w.client(), w.client()
		// While its request is under way.
		p := &pause{t, c.wire.Hold(faultstore.Rule{Match: op(faultstore.CallApply), Skip: step})}
		done := async(func() error { return c.Configure(context.Background(), Settings{CatalogLease: 2 * time.Second}) })
		p.wait()
		w.clock.advance(time.Hour)
		// It knows nothing of the change, or not of its time.
		v, err := other.loadCatalog(t.Context())
		require.NoError(t, err)
		p.release(pass)
		require.NoError(t, w.finish(done))
		_, err = c.loadCatalog(t.Context())
		require.NoError(t, err)
		_, lease := c.known().widest()
		until := v.asOf.Add(v.lease)
		require.GreaterOrEqual(t, c.known().asOf.Add(lease), until, "step %d", step)
	}
}

// Another change is refused while one is pending, and one that was announced and never
// dated is taken up by the next call.
func TestConfigureTakesUpWhatWasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dies, c := w.client(), w.client()
	dies.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Skip: 1, Fault: die})
	require.Error(t, dies.Configure(t.Context(), Settings{MaxTxnAge: time.Minute}))
	w.pass(3 * worldLease)
	_, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, worldAge, c.Settings().MaxTxnAge, "it has no time yet")
	w.configured(c, Settings{MaxTxnAge: 2 * time.Minute})
	_, err = c.loadCatalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2*time.Minute, c.Settings().MaxTxnAge)
}

// A commit whose calls take longer than the catalog lease succeeds, at its first
// attempt, also where the catalog itself is read that slowly.
func TestCommitSlowerThanTheLease(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		slow := func(context.Context, *call) verdict {
			w.clock.advance(2 * worldLease)
			return pass
		}
		c.wire.AddRule(faultstore.Rule{Match: prewrites, Times: 100, Before: slow})
		c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallGroup), Times: 100, Before: slow})
		c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog }, Times: 100, Before: slow})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, cells := range [][]Cell{{rowA}, {rowA, rowB, rowC}} {
			runs := 0
			require.NoError(t, c.Update(ctx, func(tx *Txn) error {
				runs++
				for _, cell := range cells {
					if err := tx.Set(cell, []byte("1")); err != nil {
						return err
					}
				}
				return nil
			}))
			require.Equal(t, 1, runs)
		}
		require.NoError(t, c.drained(ctx))
		require.Len(t, w.notified(rowC), 1)
	})
}

// MaxTxnAge binds all the same.
func TestSlowCommitIsTooOld(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		slow := func(context.Context, *call) verdict {
			w.clock.advance(worldAge + time.Second)
			return pass
		}
		c.wire.AddRule(faultstore.Rule{Match: prewrites, Before: slow})
		c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallGroup), Before: slow})
		require.ErrorIs(t, writes(t, c, "1", rowA).Commit(t.Context()), ErrTxnTooOld)
		require.Equal(t, "none", value(t, c, rowA))
		w.noLocks()
	})
}

// slowCatalog counts reads of the catalog, each of which takes a second.
type slowCatalog struct {
	*memstore.Store
	reads atomic.Int64
}

func (s *slowCatalog) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if reads[0].Table == format.TableCatalog {
		s.reads.Add(1)
		if err := (systemClock{}).Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	return s.Store.Read(ctx, reads)
}

// Many who need the catalog at once share a read of it, and none takes one that began
// before it asked. One whose context ends leaves the others alone.
func TestCatalogReadsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowCatalog{Store: memstore.New()}
		db, err := New(t.Context(), store)
		require.NoError(t, err)
		store.reads.Store(0)
		time.Sleep(time.Hour)
		const callers = 300
		var wg sync.WaitGroup
		first, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			_, err := db.loadCatalog(first)
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range callers {
			wg.Go(func() {
				asked, err := db.Now(t.Context())
				require.NoError(t, err)
				v, err := db.loadCatalog(t.Context())
				require.NoError(t, err)
				require.Greater(t, v.asOf, asked)
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		require.EqualValues(t, 2, store.reads.Load())
		require.NoError(t, db.Close(t.Context()))
	})
}

// rewound is an oracle that can lose what it knew.
type rewound struct {
	oracle.Oracle
	back atomic.Int64 // timestamps are so much lower
}

func (r *rewound) Draw(ctx context.Context, n int) (Timestamp, error) {
	ts, err := r.Oracle.Draw(ctx, n)
	return ts.Add(-time.Duration(r.back.Load())), err
}

// An oracle that hands out timestamps again is noticed, by a process that runs and by
// one that starts.
func TestOracleThatWentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	r := &rewound{Oracle: w.mem.Oracle()}
	named := WithOracle("rewound", r)
	store := unclosed{newWire(w.mem)}
	db := open(t, store, named, WithClock(w.clock), WithSettings(Settings{worldAge, worldRetention, worldLease}))
	set(t, db, rowA, "1")
	_, err := db.SafePoint(ctx)
	require.NoError(t, err)
	r.back.Store(int64(time.Hour))
	_, err = db.SafePoint(ctx)
	require.ErrorIs(t, err, ErrOracleWentBack)
	_, err = New(ctx, store, named)
	require.ErrorIs(t, err, ErrOracleWentBack, "below the revision")
	w.clock.advance(2 * time.Hour)
	again := open(t, store, named, WithClock(w.clock))
	require.Equal(t, "1", get(t, again, rowA), "it is above again")
	// Below the safe point alone.
	w.clock.advance(48 * time.Hour)
	_, err = w.collect(&client{DB: again}, 0)
	require.NoError(t, err)
	safe, err := again.SafePoint(ctx)
	require.NoError(t, err)
	require.Positive(t, safe)
	r.back.Add(int64(40 * time.Hour))
	_, err = New(ctx, store, named)
	require.ErrorIs(t, err, ErrOracleWentBack, "below the safe point")
}

var (
	anyName = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bytes")) })
	anyTS   = rapid.Custom(func(t *rapid.T) Timestamp { return Timestamp(rapid.Uint64Max(uint64(oracle.Max)).Draw(t, "ts")) })
)

func drawCatalog(t *rapid.T) catalog {
	settings := func() format.Settings {
		age := rapid.Int64Range(1, 1<<40).Draw(t, "age")
		lease := rapid.Int64Range(1, 1<<40).Draw(t, "lease")
		return format.Settings{MaxTxnAgeMs: age, RetentionMs: age + lease + rapid.Int64Range(1, 1<<40).Draw(t, "more"), CatalogLeaseMs: lease}
	}
	c := catalog{Oracle: rapid.String().Draw(t, "oracle"), Current: settings()}
	if rapid.Bool().Draw(t, "next") {
		next := settings()
		c.Next, c.NextFrom = &next, anyTS.Draw(t, "from")
		if rapid.Bool().Draw(t, "announced") {
			c.NextFrom = 0
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "past") {
		c.Past = append(c.Past, format.PastAge{MaxTxnAgeMs: rapid.Int64Range(1, c.Current.MaxTxnAgeMs).Draw(t, "past age"), Until: anyTS.Draw(t, "until")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "observers") {
		c.Observers = append(c.Observers, format.Observer{
			Name: []byte(anyName.Draw(t, "name")), Table: []byte(anyName.Draw(t, "table")), Column: []byte(anyName.Draw(t, "column")),
			Swept: anyTS.Draw(t, "swept"),
		})
	}
	return c
}

func TestCatalogRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawCatalog(t)
		b, err := c.encode()
		require.NoError(t, err)
		got, err := decodeCatalog(b)
		require.NoError(t, err)
		require.Equal(t, c, got)
		ts := anyTS.Draw(t, "at")
		s := got.at(ts)
		age, lease := got.outlasting(ts)
		require.LessOrEqual(t, s.MaxTxnAge, age)
		require.LessOrEqual(t, s.CatalogLease, lease)
		require.GreaterOrEqual(t, s.CatalogLease, got.leaseAt(ts))
		require.LessOrEqual(t, got.lastCommit(ts).Sub(ts), age)
		want := c.Current
		if c.Next != nil && c.NextFrom > 0 && ts >= c.NextFrom {
			want = *c.Next
		}
		require.Equal(t, settingsOf(want), s)
	})
}
