package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// abilities is a store with some of Memory's optional abilities.
type abilities struct {
	*rowstore.Memory
	groups, drawReads, apart bool
}

func (a abilities) Close() error { return nil }

// Offer implements rowstore.Decorator.
func (a abilities) Offer(target any) bool {
	switch p := target.(type) {
	case *rowstore.OracleProvider:
		*p = a.Memory
	case *rowstore.Grouper:
		if !a.groups {
			return false
		}
		*p = a.Memory
	case *rowstore.DrawReader:
		if !a.drawReads {
			return false
		}
		*p = a
	default:
		return false
	}
	return true
}

// DrawRead implements rowstore.DrawReader.
func (a abilities) DrawRead(ctx context.Context, asks []rowstore.DrawRead) ([]rowstore.DrawnRows, error) {
	if a.apart {
		return rowstore.DrawThenRead(ctx, slowly{a.Memory.Oracle(), func() {}}, a.Memory, asks)
	}
	return a.Memory.DrawRead(ctx, asks)
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
	db, err := New(w.t.Context(), store, WithClock(stoppedClock{}), WithSeed(1), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		if err := db.Close(context.Background()); err != nil {
			w.t.Errorf("closing a client: %v", err)
		}
	})
	return db
}

// A process is suspended for a day, its clock with it, while another one collects.
// Whatever it reads afterwards at a snapshot from before is right, or refused.
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
	for _, have := range []abilities{{}, {groups: true}, {drawReads: true}, {groups: true, drawReads: true}, {drawReads: true, apart: true}} {
		for name, read := range reads {
			t.Run(fmt.Sprintf("%s/groups %v draw reads %v apart %v", name, have.groups, have.drawReads, have.apart), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				c := w.client()
				for cell, v := range want {
					set(t, c.DB, cell, v)
				}
				able := have // other subtests run beside this one
				able.Memory = w.mem
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
				require.Greater(t, report.SafePoint, tx.StartTimestamp())
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
		r := w.suspended(interrupted{abilities{Memory: w.mem, drawReads: true}, func() {
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

// interrupted calls a function in the middle of a DrawRead.
type interrupted struct {
	abilities
	middle func()
}

func (i interrupted) Offer(target any) bool {
	if p, ok := target.(*rowstore.DrawReader); ok {
		*p = i
		return true
	}
	return i.abilities.Offer(target)
}

func (i interrupted) DrawRead(ctx context.Context, asks []rowstore.DrawRead) ([]rowstore.DrawnRows, error) {
	return rowstore.DrawThenRead(ctx, slowly{i.Memory.Oracle(), i.middle}, i.Memory, asks)
}

// A commit whose reply was lost is not declared rolled back after its trace was
// collected.
func TestOutcomeByAClockThatStoodStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	r := w.suspended(abilities{Memory: w.mem, groups: true})
	tx, err := r.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.Set(rowA, []byte("1")))
	require.NoError(t, tx.Commit(t.Context()))
	set(t, c.DB, rowA, "2")
	got, err := r.Outcome(t.Context(), tx.StartTimestamp(), rowA)
	require.NoError(t, err)
	require.Equal(t, Outcome{Committed, tx.CommitTimestamp()}, got)
	w.clock.advance(25 * time.Hour)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	_, err = r.Outcome(t.Context(), tx.StartTimestamp(), rowA)
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
