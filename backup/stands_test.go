package backup

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// countingStore counts calls, and lets a hook answer one that writes rows.
type countingStore struct {
	rowstore.Store
	reads, rows atomic.Int64
	hook        func(n int64) error // of the n-th call that writes rows, before it does
}

func (s *countingStore) Oracle() oracle.Oracle { return (&cutStore{Store: s.Store}).Oracle() }

func (s *countingStore) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, reads)
}

func (s *countingStore) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if muts[0].Table != format.TableCatalog {
		n := s.rows.Add(1)
		if s.hook != nil {
			if err := s.hook(n); err != nil {
				return nil, err
			}
		}
	}
	return s.Store.Apply(ctx, muts, opts)
}

// orders is a backup, in small blocks, of a database with nothing but many orders.
func orders(t *testing.T) (path string) {
	t.Helper()
	_, path, _, _ = cutOff(t, memstore.New(), time.Minute)
	return path + ".whole"
}

// endAndErase ends a restore, and erases all orders.
func endAndErase(t *testing.T, store rowstore.Store, path string) *percolator.DB {
	t.Helper()
	_, err := Restore(t.Context(), store, path, RestoreOptions{})
	require.NoError(t, err)
	db := everystore.Over(t, store)
	_, err = db.Erase(t.Context(), percolator.Range{Table: "order"})
	require.NoError(t, err)
	return db
}

// noOrders makes sure that what was erased is not there.
func noOrders(t *testing.T, db *percolator.DB) {
	t.Helper()
	for c := range everyValue(t, db) {
		require.NotEqual(t, "order", c.Table)
	}
	require.ErrorIs(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), at("order", "ann/199", "v"))
		return err
	}), percolator.ErrNotFound)
}

// TestLateRestoreOfErasedRows: a restore that was thought dead wakes up between two blocks, and between two attempts of one call, after another call has ended and rows
// were erased. It does not put them back.
func TestLateRestoreOfErasedRows(t *testing.T) {
	t.Parallel()
	path := orders(t)
	t.Run("blocks", func(t *testing.T) {
		t.Parallel()
		store := memstore.New()
		var db *percolator.DB
		_, err := Restore(t.Context(), store, path, RestoreOptions{Progress: func(p Progress) {
			if p.Done > 0.1 && db == nil {
				db = endAndErase(t, store, path)
			}
		}})
		require.NotNil(t, db)
		require.ErrorIs(t, err, ErrNotEmpty)
		noOrders(t, db)
	})
	t.Run("attempts", func(t *testing.T) {
		t.Parallel()
		store := memstore.New()
		var db *percolator.DB
		_, err := Restore(t.Context(), &countingStore{Store: store, hook: func(n int64) error {
			if n != 2 {
				return nil
			}
			db = endAndErase(t, store, path)
			return rowstore.ErrUnavailable
		}}, path, RestoreOptions{})
		require.NotNil(t, db)
		require.ErrorIs(t, err, ErrNotEmpty)
		require.NotContains(t, err.Error(), "again to go on")
		noOrders(t, db)
	})
}

// TestNoRowsOnAnOldLook: a restore that slept since it looked at its marker looks again before it sends rows.
func TestNoRowsOnAnOldLook(t *testing.T) {
	t.Parallel()
	store := &countingStore{Store: memstore.New()}
	defer func() { _ = store.Close() }()
	r := &restorer{store: store, marker: format.Restoring{Backup: "b", Began: 5}}
	require.NoError(t, r.mark(t.Context(), rowstore.Absent(rowstore.Write, format.ColumnConfig, 0)))
	muts := []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 3, nil)}}}
	now := time.Now()
	for _, looked := range []time.Time{{}, now.Add(-time.Minute), now.Round(0).Add(-time.Minute)} {
		reads := store.reads.Load()
		r.stood.at.Store(&looked)
		require.NoError(t, r.applyRows(t.Context(), muts))
		require.Equal(t, reads+1, store.reads.Load())
		future := time.Now().Add(time.Minute)
		r.stood.at.Store(&future)
		require.NoError(t, r.applyRows(t.Context(), muts))
		require.Equal(t, reads+1, store.reads.Load(), "a look of just now will do")
	}
	other := &restorer{store: store, marker: format.Restoring{Backup: "b", Began: 4}}
	require.ErrorIs(t, other.applyRows(t.Context(), muts), ErrNotEmpty)
}

// TestRestoreGoesOnWithinItsContext: a restore that goes on reads over the blocks that are there. It tells how far it is, and can be stopped.
func TestRestoreGoesOnWithinItsContext(t *testing.T) {
	t.Parallel()
	path := orders(t)
	v, err := Verify(t.Context(), path, nil)
	require.NoError(t, err)
	store := &countingStore{Store: memstore.New()}
	store.hook = func(n int64) error {
		if n > markEvery+2 {
			return errCut
		}
		return nil
	}
	_, err = Restore(t.Context(), store, path, RestoreOptions{Verified: v})
	require.ErrorIs(t, err, errCut)
	wrote := store.rows.Load()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = Restore(ctx, store, path, RestoreOptions{Verified: v, Progress: func(p Progress) {
		require.Positive(t, p.Bytes)
		require.Less(t, p.Done, 0.5)
		cancel()
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, wrote, store.rows.Load())
	store.hook = nil
	r, err := Restore(t.Context(), store, path, RestoreOptions{Verified: v})
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.NoError(t, store.Close())
}

// TestNoCallIsLeftUnderWay: a row in the middle of a block does not decode. The calls that write those before it have ended when the error is returned.
func TestNoCallIsLeftUnderWay(t *testing.T) {
	t.Parallel()
	var begun, ended atomic.Int64
	store := &countingStore{Store: memstore.New()}
	defer func() { _ = store.Close() }()
	r := &restorer{marker: format.Restoring{Backup: "b", Began: 5}}
	late := make(chan struct{})
	store.hook = func(int64) error {
		begun.Add(1)
		<-late
		ended.Add(1)
		return nil
	}
	r.store = store
	require.NoError(t, r.mark(t.Context(), rowstore.Absent(rowstore.Write, format.ColumnConfig, 0)))
	var rows []rowstore.Row
	for i := range batchRows + 1 {
		rows = append(rows, rowstore.Row{Table: "t", Row: string(amount(i)), Versions: []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: 3}}})
	}
	bad := rowstore.Version{Family: rowstore.Write, Column: format.TimerColumn("c"), TS: 3, Value: []byte("no write")}
	rows = append(rows, rowstore.Row{Table: "t", Row: "z", Versions: []rowstore.Version{bad}})
	returned := make(chan error, 1)
	go func() { returned <- r.fill(t.Context(), rows) }()
	require.Eventually(t, func() bool { return begun.Load() > 0 }, 20*time.Second, time.Millisecond)
	close(late)
	require.ErrorIs(t, <-returned, percolator.ErrCorrupt)
	require.Equal(t, begun.Load(), ended.Load())
	require.EqualValues(t, 2, ended.Load(), "what came before it was written")
}

// TestBatchesOfTimers: the index of the timers of one row goes by the bounds of batches too.
func TestBatchesOfTimers(t *testing.T) {
	t.Parallel()
	row := rowstore.Row{Table: "t", Row: "r"}
	const timers = 2*batchRows + 10
	for i := range timers {
		w := format.Write{Kind: format.KindPut, Start: 4, Value: format.Timer{Due: 100, Indexed: true}.Encode()}
		row.Versions = append(row.Versions, rowstore.Version{Family: rowstore.Write, Column: format.TimerColumn(string(amount(i))), TS: 5, Value: w.Encode()})
	}
	sent := 0
	b := &batch{restorer: &restorer{}, send: func(muts []rowstore.Mutation) {
		require.LessOrEqual(t, len(muts), batchRows)
		sent += len(muts)
	}}
	require.NoError(t, b.row(&row))
	b.flush()
	require.Equal(t, 1+timers, sent)
}

// TestMadeUpHead: a head with a snapshot that no oracle hands out is damaged.
func TestMadeUpHead(t *testing.T) {
	t.Parallel()
	_, path, _, _ := cutOff(t, memstore.New(), time.Minute)
	for _, snapshot := range []percolator.Timestamp{1<<64 - 1, 1<<63 - 1} {
		made := filepath.Join(t.TempDir(), "made")
		f, err := openDisk(made)
		require.NoError(t, err)
		out, err := newFrames(f)
		require.NoError(t, err)
		require.NoError(t, out.begin(head{ID: "made", Snapshot: snapshot, Catalog: catalogOf(t, path+".whole")}))
		require.NoError(t, out.end(ending{}))
		require.NoError(t, out.zstd.Close())
		require.NoError(t, f.Close())
		_, err = Peek(made)
		require.ErrorIs(t, err, ErrDamaged)
		store := memstore.New()
		_, err = Restore(t.Context(), store, made, RestoreOptions{})
		require.ErrorIs(t, err, ErrDamaged)
		require.NoError(t, store.Close())
	}
}

// catalogOf returns the catalog of a backup.
func catalogOf(t *testing.T, path string) []byte {
	t.Helper()
	f, err := openDisk(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	r, err := newReader(f)
	require.NoError(t, err)
	defer r.close()
	h, err := r.begin()
	require.NoError(t, err)
	return h.Catalog
}
