package pebble

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// watched is a context that tells when a call begins to wait for it, and when it is asked whether it has ended.
type watched struct {
	context.Context
	waits func() // called before each Done, if not nil
	asked func() // called before each Err, if not nil
}

func (w watched) Done() <-chan struct{} {
	if w.waits != nil {
		w.waits()
	}
	return w.Context.Done()
}

func (w watched) Err() error {
	if w.asked != nil {
		w.asked()
	}
	return w.Context.Err()
}

// waiting returns a context, and a channel that is closed when a call waits for it.
func waiting(ctx context.Context) (context.Context, <-chan struct{}) {
	c := make(chan struct{})
	return watched{Context: ctx, waits: sync.OnceFunc(func() { close(c) })}, c
}

// impatient returns a context that ends as soon as a call waits for it.
func impatient(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return watched{Context: ctx, waits: cancel}
}

// inTime runs what must not hang.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(waitFor):
		t.Fatalf("%s hangs", what)
	}
}

// pickNotified are picks of scans that show a row's notifications.
func pickNotified() []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
}

// scansOf are calls of each kind that walk over what was written to the table t.
func scansOf(s *Store) map[string]func(ctx context.Context) (int, error) {
	scan := func(sr rowstore.ScanRange) func(ctx context.Context) (int, error) {
		sr.Table = "t"
		return func(ctx context.Context) (n int, err error) {
			for _, err := range s.Scan(ctx, sr) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}
	}
	return map[string]func(ctx context.Context) (int, error){
		"scan":               scan(rowstore.ScanRange{Selectors: pickNewest()}),
		"scan of both":       scan(rowstore.ScanRange{Selectors: append(pickNewest(), pickNotified()...)}),
		"notifications":      scan(rowstore.ScanRange{Selectors: pickNotified()}),
		"notifications back": scan(rowstore.ScanRange{Selectors: pickNotified(), Reverse: true}),
		"slots":              scan(rowstore.ScanRange{Selectors: pickNotified(), Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}}),
		"tables": func(ctx context.Context) (n int, err error) {
			for _, err := range s.Tables(ctx) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		},
	}
}

// writeNotified writes a row, and a notification of it.
func writeNotified(ctx context.Context, s *Store) error {
	_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, "c", 5, nil), rowstore.Put(rowstore.Notify, "c", 5, nil),
	}}}, rowstore.ApplyOptions{})
	return err
}

// TestFailedSyncDuringAScan has the disk fail while calls walk over what was written last. None may show it: the disk will never have it.
func TestFailedSyncDuringAScan(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{maxNotes, 0} {
		var gate sync.RWMutex
		var fail atomic.Bool
		s := openFS(t, slowFS{failingFS{vfs.NewMem(), &fail}, &gate})
		s.notes.limit = limit // with the copy in memory, and without
		_, err := s.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		gate.Lock()
		unlock := sync.OnceFunc(gate.Unlock)
		defer unlock() // what waits for the disk ends, whatever comes
		ctx, written := waiting(t.Context())
		write := make(chan error, 1)
		go func() { write <- writeNotified(ctx, s) }()
		await.Value(t.Context(), t, written, write)
		type result struct {
			rows int
			err  error
		}
		results := map[string]chan result{}
		failed := make(chan struct{})
		for name, call := range scansOf(s) {
			// One waits for the disk when it fails, and one begins to look only then.
			ctx, waits := waiting(t.Context())
			early, ended := make(chan result, 1), make(chan error, 1)
			results[name] = early
			go func() {
				n, err := call(ctx)
				early <- result{n, err}
				ended <- errors.Join(fmt.Errorf("%s has ended with %d rows", name, n), err)
			}()
			await.Value(t.Context(), t, waits, ended)

			asked := 0
			entered := make(chan struct{})
			late := make(chan result, 1)
			results[name+" later"] = late
			go func() {
				n, err := call(watched{Context: t.Context(), asked: func() {
					if asked++; asked == 2 { // the first time was where the call began
						close(entered)
						<-failed
					}
				}})
				if asked < 2 {
					close(entered)
				}
				late <- result{n, err}
			}()
			if name == "notifications" || name == "notifications back" || name == "scan of both" {
				await.Value(t.Context(), t, entered, nil) // the others look at once
			}
		}
		fail.Store(true)
		unlock()
		require.ErrorIs(t, await.Value(t.Context(), t, write, nil), rowstore.ErrAmbiguous)
		close(failed)
		for name, c := range results {
			r := await.Value(t.Context(), t, c, nil)
			require.ErrorContains(t, r.err, errDisk.Error(), name)
			require.Zero(t, r.rows, name)
		}
		fail.Store(false)
		require.Error(t, s.Close())
	}
}

// TestManyGiveUp has the disk hang for longer than any number of callers wait for it. Those who come later must be able to give up too, and what
// does not depend on the disk goes on.
func TestManyGiveUp(t *testing.T) {
	t.Parallel()
	var gate sync.RWMutex
	fs := slowFS{vfs.NewCrashableMem(), &gate}
	require.NoError(t, fs.MkdirAll("db", 0o755))
	s, err := open(t.Context(), Options{CacheSize: 1 << 20, MemTableSize: 16 << 20}, "db", fs, nil, func() {})
	require.NoError(t, err)
	for i := range 40 {
		// The engine's tables in memory are small at first, and a new one has to wait for the disk.
		require.NoError(t, fill(t.Context(), s, "filled", uint64(i)))
	}
	gate.Lock()
	unlock := sync.OnceFunc(gate.Unlock)
	defer unlock()
	const many = record.SyncConcurrency + 500 // more than the engine takes
	write := func(i int) {
		edits := []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.Timestamp(i+1), nil)}
		if i == 0 {
			edits = append(edits, rowstore.Put(rowstore.Notify, "c", 1, nil))
		}
		_, err := s.Apply(impatient(t.Context()), []rowstore.Mutation{{Table: "t", Row: "r", Edits: edits}}, rowstore.ApplyOptions{})
		if err == nil {
			t.Error("a write did not wait for the disk")
		}
	}
	scan := func(name string) {
		if _, err := scansOf(s)[name](impatient(t.Context())); err == nil {
			t.Error("it did not wait for the disk:", name)
		}
	}
	// The engine walks over each version of what was written, so most scans come while there is one.
	inTime(t, "a scan that gave up", func() {
		write(0)
		for range many {
			scan("notifications")
		}
		for name := range scansOf(s) {
			scan(name)
		}
	})
	inTime(t, "a write that gave up", func() {
		for i := range many {
			write(i + 1)
		}
		for name := range scansOf(s) {
			scan(name)
		}
	})
	other := "s"
	for s.stripe("t", other) == s.stripe("t", "r") {
		other += "s"
	}
	inTime(t, "a read of another row", func() {
		_, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: other, Selectors: pickNewest()}})
		if err != nil {
			t.Error(err)
		}
	})
	unlock()
	n, err := scansOf(s)["scan"](t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, fill(t.Context(), s, "more", 1))
	require.NoError(t, s.Close())
}

// TestNothingToChange has a call that finds nothing to change because of one whose batch is not durable yet. Its answer depends on that batch.
func TestNothingToChange(t *testing.T) {
	t.Parallel()
	var gate sync.RWMutex
	s := openFS(t, slowFS{vfs.NewCrashableMem(), &gate})
	_, err := s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	writeCell(t, s, "r", "v")
	remove := rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "c", 0, oracle.Max)}}
	calls := map[string]func(ctx context.Context) error{
		"apply": func(ctx context.Context) error {
			_, err := s.Apply(ctx, []rowstore.Mutation{remove}, rowstore.ApplyOptions{})
			return err
		},
		"group": func(ctx context.Context) error {
			_, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{remove}}})
			return err
		},
	}
	gate.Lock()
	unlock := sync.OnceFunc(gate.Unlock)
	defer unlock()
	require.ErrorIs(t, calls["apply"](impatient(t.Context())), context.Canceled)
	for name, call := range calls {
		require.ErrorIs(t, call(impatient(t.Context())), context.Canceled, name)
	}
	unlock()
	for name, call := range calls {
		require.NoError(t, call(t.Context()), name)
	}
	require.NoError(t, s.Close())
}

// TestGroupWaitsForABound has a group wait until its oracle's bound is on the disk. It holds nobody up meanwhile.
func TestGroupWaitsForABound(t *testing.T) {
	t.Parallel()
	var gate sync.RWMutex
	var ahead atomic.Int64
	fs := slowFS{vfs.NewCrashableMem(), &gate}
	require.NoError(t, fs.MkdirAll("db", 0o755))
	clock := func() time.Time { return time.UnixMilli(1 << 40).Add(time.Duration(ahead.Load())) }
	s, err := open(t.Context(), Options{CacheSize: 1 << 20, MemTableSize: minMemTable, Clock: clock}, "db", fs, nil, func() {})
	require.NoError(t, err)
	writeCell(t, s, "r", "v")
	_, err = s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	gate.Lock()
	unlock := sync.OnceFunc(gate.Unlock)
	defer unlock()
	ahead.Store(int64(time.Hour)) // beyond the bound
	ctx, waits := waiting(t.Context())
	ended := make(chan error, 1)
	go func() {
		outs, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put("r", 0, []byte("w"))}}})
		if err == nil {
			err = outs[0].Err
		}
		ended <- err
	}()
	await.Value(t.Context(), t, waits, ended)
	inTime(t, "a read of the group's row", func() {
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r", Selectors: pickNewest()}})
		if err != nil || len(rows[0].Versions) != 1 {
			t.Error(rows, err)
		}
	})
	inTime(t, "a scan", func() { _, _ = scansOf(s)["scan"](impatient(t.Context())) })
	require.Empty(t, ended)
	unlock()
	require.NoError(t, await.Value(t.Context(), t, ended, nil))
	require.Equal(t, "w", readCell(t, s, "r"))
	require.NoError(t, s.Close())
}

// TestBoundHasATurn has a group wait for a durable bound where only one further batch may be under way: the bound's.
func TestBoundHasATurn(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	fs := vfs.NewCrashableMem()
	require.NoError(t, fs.MkdirAll("db", 0o755))
	clock := func() time.Time { return time.UnixMilli(1 << 40).Add(time.Duration(ahead.Load())) }
	s, err := open(t.Context(), Options{CacheSize: 1 << 20, MemTableSize: minMemTable, Clock: clock}, "db", fs, nil, func() {})
	require.NoError(t, err)
	writeCell(t, s, "r", "v")
	for range mostUnsynced - 1 {
		require.NoError(t, s.syncs.turn(t.Context()))
	}
	ahead.Store(int64(time.Hour)) // beyond the bound
	inTime(t, "a group", func() {
		outs, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put("r", 0, []byte("w"))}}})
		if err != nil || outs[0].Err != nil {
			t.Error(outs, err)
		}
	})
	for range mostUnsynced - 1 {
		s.syncs.over()
	}
	require.Equal(t, "w", readCell(t, s, "r"))
	require.NoError(t, s.Close())
}

// slowTables is a file system whose tables are begun only while nobody holds the gate for writing.
type slowTables struct {
	vfs.FS
	gate *sync.RWMutex
}

func (f slowTables) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		f.gate.RLock()
		defer f.gate.RUnlock()
	}
	return f.FS.Create(name, c)
}

// TestCloseEndsCompact closes a store that writes its files anew, which may take very long.
func TestCloseEndsCompact(t *testing.T) {
	t.Parallel()
	var gate sync.RWMutex
	s := openFS(t, slowTables{vfs.NewMem(), &gate})
	writeCell(t, s, "r", "v")
	gate.Lock()
	unlock := sync.OnceFunc(gate.Unlock)
	defer unlock()
	ctx, waits := waiting(t.Context())
	compacted, closed := make(chan error, 1), make(chan error, 1)
	go func() { compacted <- s.Compact(ctx) }()
	await.Value(t.Context(), t, waits, compacted)
	go func() { closed <- s.Close() }()
	inTime(t, "Compact", func() {
		if err := <-compacted; !errors.Is(err, rowstore.ErrClosed) {
			t.Error(err)
		}
	})
	unlock()
	require.NoError(t, await.Value(t.Context(), t, closed, nil))
	require.ErrorIs(t, s.Compact(t.Context()), rowstore.ErrClosed)
}
