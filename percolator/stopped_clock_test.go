package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// abilities is a store with some of Memory's optional abilities.
type abilities struct {
	*memstore.Store
	groups, snapshotReads, apart, scans bool
}

func (a abilities) Close() error { return nil }

// Abilities implements rowstore.Decorator.
func (a abilities) Abilities() rowstore.Abilities {
	has := rowstore.Abilities{OracleProvider: a.Store}
	if a.groups {
		has.Grouper = a.Store
	}
	if a.snapshotReads {
		has.SnapshotReader = a
	}
	if a.scans {
		has.SnapshotScanner = a.Store
	}
	return has
}

// ReadSnapshot implements rowstore.SnapshotReader.
func (a abilities) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if a.apart {
		return kit.TimestampThenRead(ctx, slowly{a.Store.Oracle(), func() {}}, a.Store, asks)
	}
	return a.Store.ReadSnapshot(ctx, asks)
}

// slowly calls a function after each draw.
type slowly struct {
	oracle.Oracle
	after func()
}

func (s slowly) Draw(ctx context.Context, n int) (Timestamp, error) {
	ts, err := s.Oracle.Draw(ctx, n)
	s.after()
	return ts, err
}

// stoppedClock is that of a machine that is suspended.
type stoppedClock struct{ systemClock }

func (stoppedClock) Now() time.Time { return time.UnixMilli(1_700_000_000_000) }

// suspended is a client whose local clock stands still; everybody else lives on.
func (w *world) suspended(store rowstore.Store) *DB {
	w.t.Helper()
	db, err := New(w.t.Context(), store, WithClock(stoppedClock{}), withSeed(1), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(w.t, err)
	atend.Do(w.t, func() {
		if err := db.Close(context.Background()); err != nil {
			w.t.Errorf("closing a client: %v", err)
		}
	})
	return db
}

// A process is suspended for a day, its clock with it, while another one collects.
// Whatever it reads afterwards at a snapshot from before is right, or refused.
// It is long because it has a list of reads, and each has its own answers that may come.
func TestClockThatStoodStill(t *testing.T) {
	t.Parallel()
	updated, long, deleted, left, never := row("updated"), row("long"), row("deleted"), row("left"), row("never")
	want := map[Cell]string{updated: "old", long: longText, deleted: "old", left: "old"}
	judge := func(t *testing.T, cell Cell, value []byte, err error) {
		t.Helper()
		switch w, there := want[cell]; {
		case errors.Is(err, ErrSnapshotTooOld):
		case errors.Is(err, ErrNotFound):
			require.False(t, there, "%v is lost", cell)
		default:
			require.NoError(t, err)
			require.Equal(t, w, string(value))
		}
	}
	cells := []Cell{updated, long, deleted, left, never}
	reads := map[string]func(t *testing.T, tx *Txn){
		"get": func(t *testing.T, tx *Txn) {
			for _, c := range cells {
				v, err := tx.Get(t.Context(), c)
				judge(t, c, v, err)
			}
			_, err := tx.Get(t.Context(), deleted)
			require.ErrorIs(t, err, ErrSnapshotTooOld)
		},
		"get for update": func(t *testing.T, tx *Txn) {
			for _, c := range cells {
				v, err := tx.GetForUpdate(t.Context(), c)
				judge(t, c, v, err)
			}
		},
		"get many": func(t *testing.T, tx *Txn) {
			_, err := tx.GetMany(t.Context(), cells...)
			require.ErrorIs(t, err, ErrSnapshotTooOld)
			for _, c := range cells {
				got, err := tx.GetMany(t.Context(), c, left)
				if err == nil {
					require.Equal(t, "old", string(got[left]))
					require.Equal(t, want[c], string(got[c]))
				} else {
					require.ErrorIs(t, err, ErrSnapshotTooOld)
				}
			}
		},
		"scan": func(t *testing.T, tx *Txn) {
			for _, reverse := range []bool{false, true} {
				err := scanError(tx.Scan(t.Context(), Range{Table: "t", Reverse: reverse}))
				require.ErrorIs(t, err, ErrSnapshotTooOld)
				err = scanError(tx.Scan(t.Context(), Range{Table: "t", Limit: 1, Reverse: reverse}))
				require.ErrorIs(t, err, ErrSnapshotTooOld)
			}
		},
		"commit": func(t *testing.T, tx *Txn) {
			require.NoError(t, tx.Set(deleted, []byte("lost update")))
			err := tx.Commit(t.Context())
			require.True(t, errors.Is(err, ErrTxnTooOld) || errors.Is(err, ErrUndetermined), "%v", err)
		},
	}
	for _, have := range []abilities{{}, {groups: true}, {snapshotReads: true}, {groups: true, snapshotReads: true}, {snapshotReads: true, apart: true}, {snapshotReads: true, scans: true}} {
		for name, read := range reads {
			t.Run(fmt.Sprintf("%s/groups %v draw reads %v apart %v scans %v", name, have.groups, have.snapshotReads, have.apart, have.scans), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				c := w.client()
				for cell, v := range want {
					set(t, c.DB, cell, v)
				}
				able := have // other subtests run beside this one
				able.Store = w.mem
				r := w.suspended(able)
				tx, err := r.Begin(t.Context())
				require.NoError(t, err)
				for _, cell := range []Cell{updated, long} {
					set(t, c.DB, cell, "new")
				}
				require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(deleted) }))
				w.clock.advance(25 * time.Hour)
				report, err := w.collect(c, 0)
				require.NoError(t, err)
				require.Greater(t, report.SafePoint, startOf(tx))
				require.Len(t, w.versions(rowstore.Write), 3, "there was to be something to collect")
				read(t, tx)
				// And what begins now goes on as ever.
				require.Equal(t, "new", get(t, r, updated))
				set(t, r, updated, "newer")
				require.Equal(t, "newer", get(t, r, updated))
			})
		}
	}
}

// The same with the process suspended inside its first read, between the timestamp and
// the rows, where they are two requests.
func TestSuspendedWithinTheFirstRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "old")
	set(t, c.DB, rowB, longText)
	for _, cell := range []Cell{rowA, rowB} {
		r := w.suspended(interrupted{abilities{Store: w.mem, snapshotReads: true}, func() {
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(cell) }))
			w.clock.advance(25 * time.Hour)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
		}})
		err := r.View(t.Context(), func(tx *Txn) error {
			_, err := tx.Get(t.Context(), cell)
			return err
		})
		require.ErrorIs(t, err, ErrSnapshotTooOld)
	}
}

// interrupted calls a function in the middle of a ReadSnapshot.
type interrupted struct {
	abilities
	middle func()
}

func (i interrupted) Abilities() rowstore.Abilities {
	has := i.abilities.Abilities()
	has.SnapshotReader = i
	return has
}

func (i interrupted) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	return kit.TimestampThenRead(ctx, slowly{i.Store.Oracle(), i.middle}, i.Store, asks)
}

// A commit whose reply was lost is not declared rolled back after its trace was
// collected.
func TestOutcomeByAClockThatStoodStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	r := w.suspended(abilities{Store: w.mem, groups: true})
	tx, err := r.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.Set(rowA, []byte("1")))
	require.NoError(t, tx.Commit(t.Context()))
	set(t, c.DB, rowA, "2")
	got, err := r.Outcome(t.Context(), startOf(tx), rowA)
	require.NoError(t, err)
	require.Equal(t, Outcome{OutcomeCommitted, tx.CommitTimestamp()}, got)
	w.clock.advance(25 * time.Hour)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	_, err = r.Outcome(t.Context(), startOf(tx), rowA)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
}

// An observer that was registered meanwhile is known.
func TestNotifyByAClockThatStoodStill(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		r := w.client(append([]Option{WithClock(stoppedClock{})}, opts...)...)
		w.observed("t", "v", "o")
		require.ErrorIs(t, r.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }), ErrNotObserved, "one lease late")
		w.clock.advance(25 * time.Hour)
		require.NoError(t, r.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
		require.Len(t, w.notified(rowA), 1)
		set(t, r.DB, rowB, "1")
		require.Len(t, w.notified(rowB), 1)
	})
}
