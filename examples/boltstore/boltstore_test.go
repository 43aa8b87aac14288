package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path})
	require.NoError(t, err)
	return s
}

// Each change waits for the disk, so the suite repeats what it repeats as seldom as it may.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		return open(t, filepath.Join(t.TempDir(), "db"))
	}, conformance.WithHooks(hooks), conformance.Scale(0.1))
}

// hooks opens a store that the suite may close, crash and open again.
func hooks(t testing.TB) conformance.Hooked {
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path)
	return conformance.Hooked{
		Store: s,
		Reopen: func(ctx context.Context) (rowstore.Store, error) {
			again, err := Open(ctx, Options{Path: path, LockTimeout: 10 * time.Millisecond})
			if err != nil {
				return nil, err
			}
			s = again
			return again, nil
		},
		// What is durable at this moment is what a transaction sees that begins now. All else
		// is lost, such as a change whose flush has not ended.
		Crash: func() {
			path = filepath.Join(t.TempDir(), "after the crash")
			require.NoError(t, s.db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(path, 0o600) }))
		},
	}
}

// TestOpenByURL has an observer work over the store, as in a program that imports it.
func TestOpenByURL(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// A new observer starts after a catalog lease.
	db, err := percolator.Open(ctx, "bolt:"+filepath.Join(t.TempDir(), "db"), percolator.WithSettings(percolator.Settings{CatalogLease: 200 * time.Millisecond}))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	length := func(row string) percolator.Cell { return percolator.Cell{Table: "texts", Row: row, Column: "length"} }
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{
		Name: "length", Table: "texts", Column: "text",
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			text, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			return tx.Set(length(c.Row), fmt.Append(nil, len(text)))
		},
	}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "texts", Row: "1", Column: "text"}, []byte("to be or not to be"))
	}))
	require.NoError(t, w.WaitIdle(ctx))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		got, err := tx.Get(ctx, length("1"))
		require.Equal(t, "18", string(got))
		return err
	}))
	stop()
	require.NoError(t, <-ended)
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	opts, err := ParseURL("bolt:/var/lib/shop.db?lock_timeout=5s")
	require.NoError(t, err)
	require.Equal(t, Options{Path: "/var/lib/shop.db", LockTimeout: 5 * time.Second}, opts)
	for _, bad := range []string{"bolt:", "bolt:?lock_timeout=5s", "pebble:/x", "bolt:/x?lock_timeout=5", "bolt:/x?timeout=5s", "bolt:/x?%zz", "bolt://shop:hunter2@db/shop"} {
		_, err := ParseURL(bad)
		require.ErrorIs(t, err, rowstore.ErrInvalid, bad)
		_, err = OpenURL(t.Context(), bad)
		require.ErrorIs(t, err, rowstore.ErrInvalid, bad)
		_, err = rowstore.Open(t.Context(), bad)
		require.ErrorIs(t, err, rowstore.ErrInvalid, bad)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(gone, Options{Path: filepath.Join(dir, "new")})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Open(t.Context(), Options{Path: filepath.Join(dir, "no folder", "db")})
	require.ErrorIs(t, err, os.ErrNotExist)

	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, make([]byte, 1<<14), 0o600))
	_, err = Open(t.Context(), Options{Path: text})
	require.ErrorIs(t, err, rowstore.ErrFormat)

	for want, damage := range map[error]func(*bbolt.Bucket) error{
		rowstore.ErrFormat:  func(b *bbolt.Bucket) error { return b.Put(formatKey, []byte("3")) },
		rowstore.ErrForeign: func(b *bbolt.Bucket) error { return b.Put(formatKey, []byte("a cart")) },
		rowstore.ErrCorrupt: func(b *bbolt.Bucket) error { return b.Put(boundKey, []byte("x")) },
	} {
		path := filepath.Join(t.TempDir(), "db")
		require.NoError(t, open(t, path).Close())
		db, err := bbolt.Open(path, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return damage(tx.Bucket(bucket)) }))
		require.NoError(t, db.Close())
		_, err = Open(t.Context(), Options{Path: path})
		require.ErrorIs(t, err, want)
		var layout *rowstore.LayoutError
		// What is another application's has no version.
		require.Equal(t, errors.Is(want, rowstore.ErrFormat) && !errors.Is(want, rowstore.ErrForeign), errors.As(err, &layout))
		require.True(t, layout == nil || layout.Newer())
		again, err := bbolt.Open(path, 0o600, nil)
		require.NoError(t, err, "the file was let go")
		require.NoError(t, again.Close())
	}
}

// TestForeignDatabases gives Open and New databases of other applications, which stay as they are.
func TestForeignDatabases(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(tx *bbolt.Tx) error
		open bool // New takes it beside what is there
	}{
		"other buckets": {func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("carts"))
			return err
		}, true},
		"the store's bucket, with keys of another kind": {func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucket)
			return errors.Join(err, b.Put([]byte("cart"), []byte("1, 2, 3")))
		}, false},
		"the store's bucket, with buckets in it": {func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucket)
			_, err2 := b.CreateBucket(formatKey)
			return errors.Join(err, err2)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			db, err := bbolt.Open(path, 0o600, nil)
			require.NoError(t, err)
			require.NoError(t, db.Update(c.make))
			require.NoError(t, db.Close())
			_, err = Open(t.Context(), Options{Path: path})
			require.ErrorIs(t, err, rowstore.ErrForeign)
			require.ErrorContains(t, err, path)
			db, err = bbolt.Open(path, 0o600, nil)
			require.NoError(t, err, "the file was let go")
			defer func() { require.NoError(t, db.Close()) }()
			require.NoError(t, db.View(func(tx *bbolt.Tx) error {
				if b := tx.Bucket(bucket); b != nil {
					require.Nil(t, b.Get(formatKey), "it is left as it is")
				} else {
					require.True(t, c.open, "it is left as it is")
				}
				return nil
			}))
			s, err := New(t.Context(), db, Options{})
			if !c.open {
				require.ErrorIs(t, err, rowstore.ErrForeign)
				return
			}
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, db.Close())
			s, err = Open(t.Context(), Options{Path: path})
			require.NoError(t, err, "it has a store now")
			require.NoError(t, s.Close())
		})
	}
}

// TestReportAfterClose asks a store that is closed, and one with a context that has ended.
func TestReportAfterClose(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "db"))
	r, err := s.Report(t.Context())
	require.Equal(t, 2, r.Layout)
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Report(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.Report(t.Context())
	require.ErrorIs(t, err, rowstore.ErrClosed)
}

// TestDamagedRowFailsAlone damages one of two rows that are read and changed together.
func TestDamagedRowFailsAlone(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "db"))
	require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
		column := kit.AppendName(append(kit.AppendName(kit.AppendName([]byte("r"), "t"), "bad"), byte(rowstore.Write)), "c")
		return tx.Bucket(bucket).Put(append(kit.AppendTimestamp(column, 5), "more"...), nil)
	}))
	var muts []rowstore.Mutation
	var groups []rowstore.Group
	var reads []rowstore.RowRead
	for _, row := range []string{"bad", "good"} {
		muts = append(muts, rowstore.Mutation{
			Table: "t", Row: row, Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)},
			Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)},
		})
		groups = append(groups, rowstore.Group{Mutations: muts[len(muts)-1:]})
		reads = append(reads, rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 9}, {Family: rowstore.Notify, To: 9}}})
	}
	outs, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, outs[0].Err, rowstore.ErrCorrupt)
	require.True(t, outs[1].Applied)
	both, err := s.Group(t.Context(), groups)
	require.NoError(t, err)
	require.ErrorIs(t, both[0].Err, rowstore.ErrCorrupt)
	require.True(t, both[1].Applied)
	rows, err := s.Read(t.Context(), reads)
	require.NoError(t, err)
	require.ErrorIs(t, rows[0].Err, rowstore.ErrCorrupt)
	require.NoError(t, rows[1].Err)
	require.Len(t, rows[1].Versions, 1)
	require.NoError(t, s.Close())
}

// TestNewLeavesTheDatabaseOpen puts a store beside the buckets of a program.
func TestNewLeavesTheDatabaseOpen(t *testing.T) {
	t.Parallel()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("somebody else's"))
		return err
	}))
	for range 2 {
		s, err := New(t.Context(), db, Options{})
		require.NoError(t, err)
		_, err = s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, nil)}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
	require.NoError(t, db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket([]byte("somebody else's")) == nil {
			return errors.New("a bucket is gone")
		}
		return nil
	}))
}

// TestDatabasesRefused gives New databases in which a store would not keep what it promises.
func TestDatabasesRefused(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), nil, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	unsafe, err := bbolt.Open(filepath.Join(t.TempDir(), "unsafe"), 0o600, &bbolt.Options{NoSync: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, unsafe.Close()) }()
	_, err = New(t.Context(), unsafe, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "NoSync")
	unsafe.NoSync = false
	s, err := New(t.Context(), unsafe, Options{})
	require.NoError(t, err, "the refusal has let it go")
	require.NoError(t, s.Close())

	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	first, err := New(t.Context(), db, Options{})
	require.NoError(t, err)
	for range 2 { // a refusal does not take away what the first one has
		_, err = New(t.Context(), db, Options{})
		require.ErrorIs(t, err, rowstore.ErrInvalid)
		require.ErrorContains(t, err, "has a store open")
	}
	require.NoError(t, first.Close())
	second, err := New(t.Context(), db, Options{})
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

// TestWritesHonourTheirContexts has a call wait for another one's turn.
func TestWritesHonourTheirContexts(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "db"))
	release, err := s.turn.Take(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	muts := []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, nil)}}}
	ended := make(chan error, 2)
	go func() {
		_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
		ended <- err
	}()
	cancel()
	err = <-ended
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	release()
	require.NoError(t, s.Close())
}

// TestUpgrade opens a store that a program of version 1 has left, also one whose upgrade was
// cut short.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path)
	const rows = 3000
	var muts []rowstore.Mutation
	for i := range rows {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprint(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}})
	}
	_, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		for i := range rows {
			slot := binary.BigEndian.AppendUint16([]byte("st\x00\x01"), rowstore.Slot("t", fmt.Sprint(i)))
			require.NoError(t, b.Delete(kit.AppendName(slot, fmt.Sprint(i))))
			require.NoError(t, b.Put(kit.AppendName([]byte("nt\x00\x01"), fmt.Sprint(i)), nil))
		}
		return b.Put(formatKey, []byte("1"))
	}))
	require.NoError(t, s.Close())
	for asks := int64(2); ; asks++ {
		db, err := bbolt.Open(path, 0o600, nil)
		require.NoError(t, err)
		ctx := &endsAfter{Context: t.Context()}
		ctx.asks.Store(asks)
		s, err := New(ctx, db, Options{})
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, db.Close())
			continue
		}
		require.Greater(t, asks, int64(3), "it was cut short")
		for _, slots := range [][]rowstore.SlotRange{nil, {{Last: rowstore.Slots - 1}}} {
			n := 0
			for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Slots: slots, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 5}}}) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, rows, n)
		}
		require.NoError(t, s.Close())
		require.NoError(t, db.Close())
		return
	}
}

// endsAfter is a context that has ended once it was asked so many times.
type endsAfter struct {
	context.Context
	asks atomic.Int64
}

func (c *endsAfter) Err() error {
	if c.asks.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}
