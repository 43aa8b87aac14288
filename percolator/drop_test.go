package percolator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// runIdle runs a worker with one observer until nothing is left, and stops it.
func runIdle(t *testing.T, db *DB, o Observer) {
	t.Helper()
	w := NewWorker(db, WorkerConfig{MaxAttempts: 1})
	require.NoError(t, w.Observe(o))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	idle(t, w)
	stop()
	require.NoError(t, <-ended)
}

func onChange(f func(Change) error) Observer {
	return Observer{Name: "o", Table: "t", Column: "v", OnChange: func(_ context.Context, _ *Txn, c Change) error { return f(c) }}
}

func failing(Change) error { return errors.New("on purpose") }

// TestDropOfAnEarlierChange has somebody who looked at a parked run drop it when it is parked for the next change.
func TestDropOfAnEarlierChange(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	c := Cell{"t", "r", "v"}
	var seen []ParkedRun
	for _, v := range []string{"1", "2"} {
		set(t, db, c, v)
		runIdle(t, db, onChange(failing))
		parked, err := db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 1)
		seen = append(seen, parked...)
	}
	for i, left := range []int{1, 0} {
		require.NoError(t, db.DropParked(t.Context(), seen[i]))
		parked, err := db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, left)
	}
}

// TestDropParked drops a run: it does not run any more, and the next change begins at what it was for.
func TestDropParked(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	c := Cell{"t", "r", "v"}
	set(t, db, c, "1")
	runIdle(t, db, onChange(failing))
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	at, err := db.Now(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, db.WaitObserved(t.Context(), at, "o", c), ErrParked)
	require.NoError(t, db.DropParked(t.Context(), parked...))
	require.NoError(t, db.DropParked(t.Context(), parked...), "it is dropped already")
	require.NoError(t, db.WaitObserved(t.Context(), at, "o", c))
	parked, err = db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
	var runs []Change
	note := func(c Change) error { runs = append(runs, c); return nil }
	runIdle(t, db, onChange(note))
	require.Empty(t, runs)
	set(t, db, c, "2")
	runIdle(t, db, onChange(note))
	require.Len(t, runs, 1)
	require.Equal(t, "1", string(runs[0].Old))
	require.Equal(t, "2", string(runs[0].New))
}

// TestDropParkedLeavesANewerChange drops a run whose cell has changed since: that change must be seen.
func TestDropParkedLeavesANewerChange(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	c := Cell{"t", "r", "v"}
	set(t, db, c, "1")
	runIdle(t, db, onChange(failing))
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	set(t, db, c, "2")
	require.NoError(t, db.DropParked(t.Context(), parked...))
	var runs []Change
	runIdle(t, db, onChange(func(c Change) error { runs = append(runs, c); return nil }))
	require.Len(t, runs, 1)
	require.Equal(t, "2", string(runs[0].New))
	require.True(t, runs[0].First)
}

// TestDropParkedOfATimer drops a run for a timer: the timer is gone.
func TestDropParkedOfATimer(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	c := Cell{"t", "r", "v"}
	runIdle(t, db, onChange(failing))
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.NotifyAt(c, time.Unix(1, 0)) }))
	runIdle(t, db, onChange(failing))
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.NoError(t, db.DropParked(t.Context(), parked...))
	runIdle(t, db, onChange(func(Change) error { t.Error("the timer was dropped"); return nil }))
	at, err := db.parkedSnapshot(t.Context())
	require.NoError(t, err)
	_, found, err := db.getCell(t.Context(), timerOf(c.stored()), at)
	require.NoError(t, err)
	require.False(t, found)
}

func TestDropParkedOfARemovedObserver(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	set(t, db, Cell{"t", "r", "v"}, "1")
	runIdle(t, db, onChange(failing))
	require.NoError(t, db.RemoveObserver(t.Context(), "o"))
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.NoError(t, db.DropParked(t.Context(), parked...))
	parked, err = db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
	for _, name := range []string{"", strings.Repeat("x", format.MaxObserverName+1)} {
		require.ErrorIs(t, db.DropParked(t.Context(), ParkedRun{Observer: name, Cell: Cell{"t", "r", "v"}}), ErrInvalid)
	}
	require.ErrorIs(t, db.DropParked(t.Context(), ParkedRun{Observer: "o"}), ErrInvalid)
}

// TestExisting opens a store in which there is no database, and one of an older version: neither is changed.
func TestExisting(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	_, err := New(t.Context(), store, quick, WithExisting())
	require.ErrorIs(t, err, ErrNoStore)
	for table, err := range store.Tables(t.Context()) {
		require.NoError(t, err)
		t.Errorf("the table %q was made", table)
	}
	db, err := New(t.Context(), store, quick)
	require.NoError(t, err)
	set(t, db, Cell{"t", "r", "v"}, "1")
	again, err := New(t.Context(), store, quick, WithExisting())
	require.NoError(t, err)
	require.Equal(t, "1", get(t, again, Cell{"t", "r", "v"}))
	require.NoError(t, again.Close(t.Context()))
}
