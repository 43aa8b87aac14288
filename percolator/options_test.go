package percolator

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// plain hides every optional ability of a store.
type plain struct{ rowstore.Store }

func (p plain) Abilities() rowstore.Abilities { return rowstore.Abilities{} }

func TestOpenUnknownScheme(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), "nonsense://host/path")
	require.ErrorContains(t, err, `nonsense`)
	for _, known := range rowstore.Schemes() {
		require.ErrorContains(t, err, known)
	}
	require.Contains(t, rowstore.Schemes(), "memory")
	for _, url := range []string{"", "no scheme", "://"} {
		_, err := Open(t.Context(), url)
		require.Error(t, err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, err := New(ctx, nil)
	require.ErrorIs(t, err, ErrInvalid)
	mem := memstore.New()
	_, err = New(ctx, plain{mem})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "WithOracle")
	_, err = New(ctx, mem, WithOracle("", mem.Oracle()))
	require.ErrorIs(t, err, ErrInvalid)
	for name, o := range map[string]oracle.Oracle{"nil": nil, "nil pointer": (*patientOracle)(nil)} {
		for _, store := range []rowstore.Store{mem, plain{mem}} {
			for _, title := range []string{"", "tso"} {
				_, err = New(ctx, store, WithOracle(title, o))
				require.ErrorIs(t, err, ErrInvalid, name)
				require.ErrorContains(t, err, "nil", name)
			}
		}
	}
	_, err = New(ctx, (*memstore.Store)(nil))
	require.ErrorIs(t, err, ErrInvalid)
	_, err = New(ctx, withoutItsOracle{mem})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "no oracle of its own")
	for _, s := range []Settings{
		{MaxTxnAge: time.Hour, Retention: time.Hour, CatalogLease: time.Second},
		{MaxTxnAge: time.Hour, Retention: time.Hour + time.Second, CatalogLease: time.Second},
		{MaxTxnAge: 25 * time.Hour}, // with the default retention
		{CatalogLease: time.Microsecond},
		{MaxTxnAge: -time.Second},
		{Retention: -time.Second},
	} {
		_, err = New(ctx, mem, WithSettings(s))
		require.ErrorIs(t, err, ErrInvalid, "%+v", s)
	}
	for table, err := range mem.Tables(ctx) {
		t.Fatal("something was written", table, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = New(canceled, mem)
	require.ErrorIs(t, err, context.Canceled)
	// The store was left open each time.
	db := open(t, mem)
	set(t, db, rowA, "1")
}

// withoutItsOracle is a store whose oracle is missing.
type withoutItsOracle struct{ *memstore.Store }

func (withoutItsOracle) Oracle() oracle.Oracle { return nil }

// A nil clock, logger or provider leaves the default, a nil pointer of their type too.
func TestNilOptionsLeaveTheDefault(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{
		"nil":         {WithClock(nil), WithLogger(nil), WithMetrics(nil), WithTracing(nil)},
		"nil pointer": {WithClock((*fakeClock)(nil)), WithMetrics((*sdkmetric.MeterProvider)(nil)), WithTracing((*sdktrace.TracerProvider)(nil))},
	} {
		db := open(t, memstore.New(), opts...)
		set(t, db, rowA, "1")
		require.Equal(t, "1", get(t, db, rowA), name)
		require.NoError(t, db.Close(t.Context()), name)
	}
}

// The oracle is stored with the data: another one later is refused, by name, since
// timestamps of two are in no order.
func TestOracleIsStoredWithTheData(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	named := memstore.New()
	db := open(t, plain{named}, WithOracle("tso", named.Oracle()))
	set(t, db, rowA, "1")
	require.Equal(t, "1", get(t, db, rowA))
	require.EqualValues(t, 1, db.Stats().TwoPhase, "a store without abilities commits in two phases")
	_, err := New(ctx, named)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "tso")
	_, err = New(ctx, named, WithOracle("other", named.Oracle()))
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "tso")
	require.ErrorContains(t, err, "other")
	again := open(t, plain{named}, WithOracle("tso", named.Oracle()))
	require.Equal(t, "1", get(t, again, rowA))
	own := memstore.New()
	open(t, own)
	_, err = New(ctx, own, WithOracle("tso", own.Oracle()))
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "store's own")
}

// Settings are those of the first Open; a later one that asks for others is told.
func TestStoredSettingsHold(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	first := Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: time.Second}
	db := open(t, mem, WithSettings(first))
	require.Equal(t, first, db.Settings())
	var log syncBuffer
	logger := WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	require.Equal(t, first, open(t, mem, logger).Settings())
	require.NotContains(t, log.String(), "stored settings")
	require.Equal(t, first, open(t, mem, logger, WithSettings(first)).Settings())
	require.NotContains(t, log.String(), "stored settings")
	require.Equal(t, first, open(t, mem, logger, WithSettings(Settings{Retention: 2 * time.Hour})).Settings())
	require.Contains(t, log.String(), "stored settings")
	require.Equal(t, Settings{time.Hour, 24 * time.Hour, 10 * time.Second}, open(t, memstore.New()).Settings())
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// After the end of a transaction every call says so, and Rollback is harmless.
func TestEndedTransaction(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		ends := map[string]func(tx *Txn){
			"commit":   func(tx *Txn) { require.NoError(t, tx.Commit(ctx)) },
			"rollback": func(tx *Txn) { require.NoError(t, tx.Rollback(ctx)) },
			"conflict": func(tx *Txn) {
				set(t, db, rowA, "first")
				require.ErrorIs(t, tx.Commit(ctx), ErrConflict)
			},
			"canceled": func(tx *Txn) {
				canceled, cancel := context.WithCancel(ctx)
				cancel()
				require.ErrorIs(t, tx.Commit(canceled), context.Canceled)
			},
		}
		for name, end := range ends {
			tx, err := db.Begin(ctx)
			require.NoError(t, err)
			start := startOf(tx)
			require.NotZero(t, start)
			require.Zero(t, tx.CommitTimestamp())
			require.NoError(t, tx.Set(rowA, []byte(name)))
			end(tx)
			for what, err := range cellCalls(ctx, tx, rowB) {
				require.ErrorIs(t, err, ErrTxnDone, "%s after %s", what, name)
			}
			require.ErrorIs(t, scanError(tx.Scan(ctx, Range{Table: "t"})), ErrTxnDone)
			require.ErrorIs(t, tx.Commit(ctx), ErrTxnDone)
			require.NoError(t, tx.Rollback(ctx))
			require.NoError(t, tx.Rollback(ctx))
			require.Equal(t, start, startOf(tx))
			if name == "commit" {
				require.Greater(t, tx.CommitTimestamp(), start)
				require.Equal(t, "commit", get(t, db, rowA))
			} else {
				require.Zero(t, tx.CommitTimestamp())
				require.NotEqual(t, name, get(t, db, rowA))
			}
		}
		// Also in the middle of a scan.
		set(t, db, rowB, "")
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		rows := 0
		err = nil
		for _, e := range tx.Scan(ctx, Range{Table: "t"}) {
			if err = e; err == nil {
				rows++
				require.NoError(t, tx.Rollback(ctx))
			}
		}
		require.Equal(t, 1, rows)
		require.ErrorIs(t, err, ErrTxnDone)
	})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		set(t, db, rowA, "1")
		check := func(tx *Txn) error {
			for name, err := range cellCalls(ctx, tx, rowA) {
				switch name {
				case "Get", "GetMany":
					require.NoError(t, err)
				default:
					require.ErrorIs(t, err, ErrReadOnly, name)
					require.ErrorContains(t, err, "t/a/v")
				}
			}
			return scanError(tx.Scan(ctx, Range{Table: "t"}))
		}
		require.NoError(t, db.View(ctx, check))
		now, err := db.Now(ctx)
		require.NoError(t, err)
		require.NoError(t, db.View(ctx, check, WithAsOfTimestamp(now)))
		require.NoError(t, db.Update(ctx, check, WithAsOfTimestamp(now)))
		tx, err := db.Begin(ctx, WithAsOf(now.Time().Add(time.Millisecond)))
		if err == nil {
			require.NoError(t, check(tx))
			require.NoError(t, tx.Commit(ctx))
		} else {
			require.ErrorIs(t, err, ErrSnapshotInFuture) // still in the same millisecond
		}
		mine := errors.New("mine")
		require.ErrorIs(t, db.View(ctx, func(*Txn) error { return mine }), mine)
		require.Equal(t, "1", get(t, db, rowA))
	})
}

func TestAsOfOutOfHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	tx := begin(t, c)
	before := startOf(tx)
	require.NoError(t, tx.Rollback(t.Context()))
	set(t, c.DB, rowA, "2")
	require.Equal(t, "1", func() string {
		v, err := begin(t, c, WithAsOfTimestamp(before)).Get(t.Context(), rowA)
		require.NoError(t, err)
		return string(v)
	}())
	_, err := begin(t, c, WithAsOf(time.UnixMilli(1))).Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrNotFound, "before there was anything")
	w.clock.advance(2 * worldRetention)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	for _, opt := range []TxnOption{WithAsOfTimestamp(before), WithAsOf(before.Time()), WithAsOf(time.Unix(1, 0)), WithAsOfTimestamp(0)} {
		tx := begin(t, c, opt)
		for name, err := range map[string]error{
			"get":        func() error { _, err := tx.Get(t.Context(), rowA); return err }(),
			"absent":     func() error { _, err := tx.Get(t.Context(), rowB); return err }(),
			"many":       func() error { _, err := tx.GetMany(t.Context(), rowA, rowB); return err }(),
			"scan":       scanError(tx.Scan(t.Context(), Range{Table: "t"})),
			"empty scan": scanError(tx.Scan(t.Context(), Range{Table: "none"})),
		} {
			require.ErrorIs(t, err, ErrSnapshotTooOld, name)
			var old *SnapshotTooOldError
			require.ErrorAs(t, err, &old)
			require.Equal(t, startOf(tx), old.Snapshot)
			require.Greater(t, old.SafePoint, old.Snapshot)
		}
	}
}

func TestTooOldToCommit(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		tx := writes(t, c, "1", rowA, rowB)
		w.clock.advance(worldAge + time.Second)
		err := tx.Commit(t.Context())
		require.ErrorIs(t, err, ErrTxnTooOld)
		require.NotErrorIs(t, err, ErrConflict)
		var old *TxnTooOldError
		require.ErrorAs(t, err, &old)
		require.Equal(t, worldAge, old.MaxTxnAge)
		require.Equal(t, startOf(tx), old.Start)
		require.NoError(t, c.drained(t.Context()))
		require.Empty(t, w.versions(rowstore.Lock, rowstore.Write))
		// Update does not run such a function again: it would be as slow.
		runs := 0
		err = c.Update(t.Context(), func(tx *Txn) error {
			runs++
			w.clock.advance(worldAge + time.Second)
			return tx.Set(rowA, nil)
		})
		require.ErrorIs(t, err, ErrTxnTooOld)
		require.Equal(t, 1, runs)
		// One that only reads may take as long as history is kept.
		tx = begin(t, c)
		w.clock.advance(worldAge * 2)
		_, err = tx.Get(t.Context(), rowA)
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, tx.Commit(t.Context()))
	})
}

func TestUpdateRunsAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c, other := w.client(opts...), w.client(opts...)
		var starts []Timestamp
		disturb := func(times int) func(tx *Txn) error {
			starts = nil
			return func(tx *Txn) error {
				starts = append(starts, startOf(tx))
				if len(starts) <= times {
					set(t, other.DB, rowA, "other")
				}
				return tx.Set(rowA, []byte("mine"))
			}
		}
		require.NoError(t, c.Update(ctx, disturb(3)))
		require.Len(t, starts, 4)
		require.IsIncreasing(t, starts)
		require.Equal(t, "mine", value(t, c, rowA))
		require.EqualValues(t, 3, c.Stats().Conflicts)
		require.EqualValues(t, 3, c.Stats().Retries)

		err := c.Update(ctx, disturb(1000), WithMaxAttempts(5))
		require.ErrorIs(t, err, ErrConflict)
		require.ErrorContains(t, err, "5 attempts")
		require.Len(t, starts, 5)
		var conflict *ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, rowA, conflict.Cell)
		require.Greater(t, conflict.With, starts[4])
		require.NotEmpty(t, conflict.Reason)

		err = c.Update(ctx, disturb(1000))
		require.ErrorIs(t, err, ErrConflict)
		require.Len(t, starts, 64)

		// The function's own error ends it, unless it is a conflict.
		mine := errors.New("mine")
		runs := 0
		require.ErrorIs(t, c.Update(ctx, func(tx *Txn) error { runs++; require.NoError(t, tx.Set(rowB, nil)); return mine }), mine)
		require.Equal(t, 1, runs)
		require.ErrorIs(t, c.Update(ctx, func(*Txn) error { runs++; return &ConflictError{} }, WithMaxAttempts(2)), ErrConflict)
		require.Equal(t, 3, runs)
		require.Equal(t, "none", value(t, c, rowB))

		canceled, cancel := context.WithCancel(ctx)
		err = c.Update(canceled, func(tx *Txn) error {
			set(t, other.DB, rowA, "other")
			defer cancel()
			return tx.Set(rowA, nil)
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Panics(t, func() { _ = c.Update(ctx, func(*Txn) error { panic("on purpose") }) })
		require.Panics(t, func() { _ = c.View(ctx, func(*Txn) error { panic("on purpose") }) })
		set(t, c.DB, rowA, "fine")
		w.noLocks()
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client(withoutGroups())
	tx := writes(t, c, "1", rowA, rowB)
	over, reads := begin(t, c), begin(t, c)
	p := c.hold(t, secondaries(rowA))
	require.NoError(t, tx.Commit(ctx))
	p.wait()
	closed := async(func() error { return c.Close(context.Background()) })
	require.Eventually(t, func() bool { _, err := c.Now(ctx); return errors.Is(err, ErrClosed) }, patience, time.Millisecond)
	select {
	case err := <-closed:
		t.Fatal("Close did not wait for the secondaries", err)
	default:
	}
	p.release(pass)
	require.NoError(t, w.finish(closed))
	w.noLocks()
	require.True(t, c.wire.isClosed())
	require.NoError(t, c.Close(ctx))
	rows, err := w.mem.Read(ctx, []rowstore.RowRead{sessionRead(c.session.id)})
	require.NoError(t, err)
	require.Empty(t, rows[0].Versions, "the session was not ended")
	_, err = c.Begin(ctx)
	require.ErrorIs(t, err, ErrClosed)
	calls := map[string]error{
		"Update":         c.Update(ctx, func(*Txn) error { t.Error("ran"); return nil }),
		"View":           c.View(ctx, func(*Txn) error { t.Error("ran"); return nil }),
		"Configure":      c.Configure(ctx, Settings{Retention: time.Hour * 30}),
		"Commit":         over.Commit(ctx),
		"RemoveObserver": c.RemoveObserver(ctx, "o"),
		"Release":        c.Release(ctx, ParkedRun{Observer: "o", Cell: rowA}),
		"Run":            NewWorker(c.DB, WorkerConfig{}).Run(ctx),
	}
	for what, err := range cellCalls(ctx, reads, rowB) {
		if what != "Set" && what != "Delete" && what != "Notify" { // those send nothing before Commit
			calls[what] = err
		}
	}
	calls["Scan"] = scanError(reads.Scan(ctx, Range{Table: "t"}))
	_, calls["Now"] = c.Now(ctx)
	_, calls["Outcome"] = c.Outcome(ctx, startOf(tx), rowA)
	_, calls["CollectGarbage"] = c.CollectGarbage(ctx, GCOptions{})
	_, calls["Observers"] = c.Observers(ctx)
	_, calls["Parked"] = c.Parked(ctx)
	for name, err := range calls {
		require.ErrorIs(t, err, ErrClosed, name)
	}
	require.EqualValues(t, 1, c.Stats().TwoPhase)
}

// A Close whose context ends closes all the same, and says that it did not drain.
func TestCloseWithoutPatience(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(withoutGroups())
	p := c.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, c, "1", rowA, rowB).Commit(t.Context()))
	p.wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Close(ctx), context.Canceled)
	require.True(t, c.wire.isClosed())
	require.NoError(t, c.Close(t.Context()))
	p.release(die)
	require.NoError(t, c.drained(t.Context()))
	require.Equal(t, "1", value(t, w.client(), rowB))
}

func TestOutcome(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c, t1 := w.client(), w.client(opts...)
		tx := writes(t, t1, "1", rowA, rowB)
		start := startOf(tx)
		require.NoError(t, tx.Commit(ctx))
		set(t, c.DB, rowA, "2")
		out, err := c.Outcome(ctx, start, rowA)
		require.NoError(t, err)
		require.Equal(t, Outcome{Status: OutcomeCommitted, Commit: tx.CommitTimestamp()}, out)

		p := t1.hold(t, commitPoint(rowA))
		tx = writes(t, t1, "3", rowA, rowB)
		start = startOf(tx)
		done := commit(t1, tx)
		p.wait()
		out, err = c.Outcome(ctx, start, rowA)
		require.NoError(t, err)
		require.Equal(t, Outcome{Status: OutcomePending}, out)
		w.takeForDead(t1)
		out, err = c.Outcome(ctx, start, rowA)
		require.NoError(t, err)
		require.Equal(t, Outcome{Status: OutcomeRolledBack}, out)
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)

		// Without a trace it is fenced.
		tx = writes(t, c, "4", rowC)
		out, err = c.Outcome(ctx, startOf(tx), rowC)
		require.NoError(t, err)
		require.Equal(t, OutcomeRolledBack, out.Status)
		require.ErrorIs(t, tx.Commit(ctx), ErrConflict)

		now, err := c.Now(ctx)
		require.NoError(t, err)
		for _, ts := range []Timestamp{0, oracle.Max + 1, now + 100} {
			_, err = c.Outcome(ctx, ts, rowA)
			require.ErrorIs(t, err, ErrInvalid, "%d", ts)
		}
		set(t, c.DB, rowA, "5") // no mark was left in the future
		w.clock.advance(2 * worldRetention)
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		_, err = c.Outcome(ctx, start, rowA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		require.Equal(t, []string{"committed", "rolled back", "pending", "OutcomeStatus(9)"},
			[]string{OutcomeCommitted.String(), OutcomeRolledBack.String(), OutcomePending.String(), OutcomeStatus(9).String()})
	})
}

// unclosed stays open when a DB over it is closed.
type unclosed struct{ *wire }

func (unclosed) Close() error { return nil }

func TestNilOptions(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), memstore.New(), nil)
	require.ErrorIs(t, err, ErrInvalid)
	db := open(t, memstore.New())
	_, err = db.Begin(t.Context(), nil)
	require.ErrorIs(t, err, ErrInvalid)
	nothing := func(*Txn) error { return nil }
	require.ErrorIs(t, db.Update(t.Context(), nothing, nil), ErrInvalid)
	require.ErrorIs(t, db.View(t.Context(), nothing, nil), ErrInvalid)
}

// What users of this package see does not name one that they do not import.
func TestErrorsNameNoPackageOfTheirs(t *testing.T) {
	t.Parallel()
	for _, err := range []error{ErrInvalid, ErrTooLarge, ErrClosed, ErrCorrupt, ErrFormat, ErrForeign, ErrDenied, ErrFull, ErrUnavailable, ErrNoStore, rowstore.ErrAmbiguous} {
		require.NotContains(t, err.Error(), "rowstore")
	}
	require.ErrorIs(t, rowstore.ErrUnavailable, ErrUnavailable)
}
