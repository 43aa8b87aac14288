package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// smallDisk is a file system in memory that can be full.
type smallDisk struct {
	vfs.FS
	mu      sync.Mutex
	size    int
	used    int
	files   map[string]int
	shown   atomic.Int64 // what it says is free, if not 0
	refused atomic.Int64 // writes for which there was no room
}

func newSmallDisk(size int) *smallDisk {
	return &smallDisk{FS: vfs.NewMem(), size: size, files: map[string]int{}}
}

// take makes room for bytes of a file.
func (d *smallDisk) take(name string, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+n > d.size || n == 0 && d.used >= d.size {
		d.refused.Add(1)
		return &fs.PathError{Op: "write", Path: name, Err: syscall.ENOSPC}
	}
	d.used += n
	d.files[name] += n
	return nil
}

func (d *smallDisk) drop(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used -= d.files[name]
	delete(d.files, name)
}

// resize sets how large the disk is: size is given what is used.
func (d *smallDisk) resize(size func(used int) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size = size(d.used)
}

func (d *smallDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.drop(name)
	if err := d.take(name, 0); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(name, c)
	return &smallDiskFile{f, d, name}, err
}

func (d *smallDisk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Remove(old); err != nil {
		return nil, err
	}
	return d.Create(name, c)
}

func (d *smallDisk) Remove(name string) error {
	d.drop(name)
	return d.FS.Remove(name)
}

func (d *smallDisk) Rename(old, name string) error {
	d.mu.Lock()
	d.used -= d.files[name]
	d.files[name] = d.files[old]
	delete(d.files, old)
	d.mu.Unlock()
	return d.FS.Rename(old, name)
}

func (d *smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if shown := d.shown.Load(); shown != 0 {
		return vfs.DiskUsage{AvailBytes: uint64(shown), TotalBytes: uint64(d.size)}, nil
	}
	return vfs.DiskUsage{AvailBytes: uint64(d.size - d.used), TotalBytes: uint64(d.size), UsedBytes: uint64(d.used)}, nil
}

type smallDiskFile struct {
	vfs.File
	disk *smallDisk
	name string
}

func (f *smallDiskFile) Write(b []byte) (int, error) {
	if err := f.disk.take(f.name, len(b)); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

// random is a value that nobody can make shorter.
func random(seed uint64) []byte {
	var from [32]byte
	binary.BigEndian.PutUint64(from[:], seed)
	b := make([]byte, 100_000)
	_, _ = rand.NewChaCha8(from).Read(b)
	return b
}

func fill(ctx context.Context, s *Store, row string, seed uint64) error {
	out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(row, 0, random(seed))}}})
	if err == nil {
		err = out[0].Err
	}
	return err
}

// TestFullDisk writes until the store refuses. The engine never meets the end of the disk; what was acknowledged is there, reads and draws go on, and
// so do writes once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const writers = 4
	disk := newSmallDisk(24 << 20)
	s := openFS(t, disk)
	require.EqualValues(t, leastKept, s.room.keep)
	report, err := s.Report(t.Context())
	require.NoError(t, err)
	require.Empty(t, report.Warnings)

	var wg sync.WaitGroup
	var wrote [writers]int
	var errs [writers]error
	for w := range writers {
		wg.Go(func() {
			for ; errs[w] == nil && wrote[w] < 1000; wrote[w]++ {
				errs[w] = fill(t.Context(), s, fmt.Sprint(w, " ", wrote[w]), uint64(w*1000+wrote[w]))
			}
			wrote[w]--
		})
	}
	wg.Wait()
	for w, err := range errs {
		require.ErrorIs(t, err, rowstore.ErrFull)
		require.ErrorContains(t, err, "make room")
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
		require.Greater(t, wrote[w], 10)
	}
	all := func() {
		t.Helper()
		for w := range writers {
			for i := range wrote[w] {
				require.Equal(t, string(random(uint64(w*1000+i))), readCell(t, s, fmt.Sprint(w, " ", i)))
			}
			require.Empty(t, readCell(t, s, fmt.Sprint(w, " ", wrote[w])), "a part of what was refused is there")
		}
		_, err := s.Oracle().Draw(t.Context(), 100_000_000) // makes a bound durable
		require.NoError(t, err)
	}
	all()
	// What follows does not depend on how much room the engine has made meanwhile.
	disk.shown.Store(leastKept - 1)
	s.room.measured.Store(0)
	outs, err := s.Apply(t.Context(), []rowstore.Mutation{
		{Table: "t", Row: "0 0", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}},
		{Table: "t", Row: "x", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, random(1))}},
	}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, outs[0].Applied, "a look is no write")
	require.ErrorIs(t, outs[1].Err, rowstore.ErrFull)
	report, err = s.Report(t.Context())
	require.NoError(t, err)
	require.Len(t, report.Warnings, 1)
	require.Contains(t, report.Warnings[0], "refuses writes")
	disk.shown.Store(0)
	require.Zero(t, disk.refused.Load(), "the engine met the end of the disk")

	require.NoError(t, s.Close())
	s = openFS(t, disk)
	all()
	for err, i := error(nil), uint64(0); !errors.Is(err, rowstore.ErrFull); i++ { // opening has made some room
		require.NoError(t, err)
		err = fill(t.Context(), s, fmt.Sprint("again ", i), i)
	}
	require.Zero(t, disk.refused.Load(), "the engine met the end of the disk")
	disk.resize(func(int) int { return 200 << 20 })
	require.NoError(t, fill(t.Context(), s, "more", 1))
	all()
	require.NoError(t, s.Close())
}

// TestOpenOnAFullDisk opens a store whose log cannot be brought to tables. The opening says so, where the engine would go on trying without end. When
// there is room again, nothing was lost.
func TestOpenOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := newSmallDisk(40 << 20)
	s := openFS(t, disk)
	for i := range 5 {
		require.NoError(t, fill(t.Context(), s, fmt.Sprint(i), uint64(i)))
	}
	disk.resize(func(used int) int { return used }) // another program has filled it
	s.room.measured.Store(0)                        // some time ago
	require.ErrorIs(t, fill(t.Context(), s, "more", 1), rowstore.ErrFull)
	require.Equal(t, string(random(0)), readCell(t, s, "0"))
	_ = s.Close() // which would write a little too
	released := make(chan struct{})
	_, err := open(t.Context(), Options{CacheSize: 1 << 20, MemTableSize: minMemTable}, "db", disk, nil, func() { close(released) })
	require.ErrorIs(t, err, rowstore.ErrFull)
	require.ErrorContains(t, err, "make room")
	disk.resize(func(used int) int { return used + 40<<20 })
	if errors.As(err, new(*openingError)) {
		await.Value(t.Context(), t, released, nil)
	}
	s = openFS(t, disk)
	for i := range 5 {
		require.Equal(t, string(random(uint64(i))), readCell(t, s, fmt.Sprint(i)))
	}
	require.NoError(t, fill(t.Context(), s, "more", 1))
	require.NoError(t, s.Close())
}

// TestRoomOfManyAtOnce has batches ask for room before those that passed are on the disk. No measure shows them yet, but there is no room for all.
func TestRoomOfManyAtOnce(t *testing.T) {
	t.Parallel()
	const each, fit = 4 << 20, 3
	disk := newSmallDisk(1 << 30)
	r := newRoom(disk, "db", leastKept, minMemTable)
	disk.shown.Store(leastKept + fit*costOf(each))
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := r.take(each); err == nil {
				passed.Add(1)
			} else if !errors.Is(err, rowstore.ErrFull) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, passed.Load(), int64(fit))
	for range passed.Load() {
		r.give(each)
	}
	// One after the other, exactly so many pass. What is refused takes no room, and what is done none any more.
	for range 2 {
		for range fit {
			require.NoError(t, r.take(each))
		}
		require.ErrorIs(t, r.take(each), rowstore.ErrFull)
		r.give(each)
		require.NoError(t, r.take(each))
		for range fit {
			r.give(each)
		}
	}
	require.Zero(t, r.flying.Load())
}

// TestRoomIsGivenBack counts what is under way: nothing, after calls of all kinds have returned.
func TestRoomIsGivenBack(t *testing.T) {
	t.Parallel()
	disk := newSmallDisk(200 << 20)
	s := openFS(t, disk)
	for i := range 10 {
		require.NoError(t, fill(t.Context(), s, fmt.Sprint(i), uint64(i)))
		outs, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "x", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.Timestamp(i+1), random(1))}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.True(t, outs[0].Applied)
	}
	disk.shown.Store(1)
	s.room.measured.Store(0)
	require.ErrorIs(t, fill(t.Context(), s, "more", 1), rowstore.ErrFull)
	disk.shown.Store(0)
	// The engine keeps a batch that is large next to a table in memory as a table of its own, and leaves nothing in the batch.
	large := bytes.Repeat(random(2), 2*minMemTable/len(random(2)))
	outs, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "y", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, large)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, outs[0].Applied)
	grouped, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put("z", 0, large)}}})
	require.NoError(t, err)
	require.True(t, grouped[0].Applied)
	require.NoError(t, s.Close())
	require.Zero(t, s.room.flying.Load())
}

// TestAwaitOpening has the engine find the disk full while it opens its files. If somebody makes room meanwhile, the opening takes as long as it takes.
func TestAwaitOpening(t *testing.T) {
	t.Parallel()
	noRoom := errors.New("no room")
	type opening struct {
		opened chan int
		full   chan error
		later  chan time.Time
		ended  chan error
	}
	start := func() *opening {
		o := &opening{make(chan int), make(chan error), make(chan time.Time), make(chan error, 1)}
		go func() {
			r, err := awaitOpening(o.opened, o.full, func() <-chan time.Time { return o.later })
			if err == nil && r != 1 {
				err = errors.New("another answer")
			}
			o.ended <- err
		}()
		return o
	}
	fail := func(o *opening) {
		t.Helper()
		select {
		case o.full <- noRoom:
		case err := <-o.ended:
			t.Fatalf("it did not wait: %v", err)
		}
	}
	open := func(o *opening) {
		t.Helper()
		select {
		case o.opened <- 1:
			require.NoError(t, await.Value(t.Context(), t, o.ended, nil))
		case err := <-o.ended:
			t.Fatalf("it did not wait: %v", err)
		}
	}
	pass := func(o *opening) {
		t.Helper()
		select {
		case o.later <- time.Time{}:
		case err := <-o.ended:
			t.Fatalf("it did not wait: %v", err)
		}
	}
	o := start()
	fail(o)
	pass(o) // there is room now; failures that waited, or are of an attempt that began before, say nothing
	fail(o)
	fail(o)
	open(o)

	o = start()
	fail(o)
	open(o)

	o = start()
	fail(o)
	pass(o)
	for range 3 {
		fail(o)
	}
	require.ErrorIs(t, await.Value(t.Context(), t, o.ended, nil), noRoom)
}

// TestMemTableOn sizes tables in memory by the disk.
func TestMemTableOn(t *testing.T) {
	t.Parallel()
	for disk, want := range map[int]int64{1 << 20: minMemTable, 320 << 20: 10 << 20, 2 << 30: defaultMemTable, 1 << 40: defaultMemTable} {
		require.Equal(t, want, memTableOn(newSmallDisk(disk), "db"))
	}
	require.EqualValues(t, defaultMemTable, memTableOn(vfs.NewMem(), "db"), "it does not say how large it is")
}

// TestMinFree has a store leave as much room as the options say.
func TestMinFree(t *testing.T) {
	t.Parallel()
	o, err := ParseURL("pebble:" + t.TempDir() + "?minfree=9999GB")
	require.NoError(t, err)
	s := mustOpen(t, o)
	require.ErrorIs(t, fill(t.Context(), s, "r", 1), rowstore.ErrFull)
	require.Empty(t, readCell(t, s, "r"))
	require.NoError(t, s.Close())
	o.MinFree = 1
	require.NoError(t, fill(t.Context(), mustOpen(t, o), "r", 1))
	_, err = Open(t.Context(), Options{MinFree: -1})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	_, err = New(t.Context(), database(t, nil), Options{MinFree: 1})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}
