package pebble

import (
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The engine ends the process when it cannot write its log or its list of files: it panics with locks that it holds, or asks its logger to, on
// goroutines of its own. Nobody can take that back. So a store refuses writes while there is still some room, and lets the engine's
// flushes and compactions, which fail without harm, take no more than a part of that.

const (
	// Where nobody chose how much room a store leaves, it is enough to write a table in memory to disk and extraKept more, but no more than a
	// part of the whole disk, diskShare as a divisor, and no less than leastKept.
	extraKept = 16 << 20
	leastKept = 8 << 20
	diskShare = 8
	// measureBytes and measureAfter are after how many bytes, and how long, the room is measured again. That costs about a microsecond.
	measureBytes = 1 << 20
	measureAfter = 100 * time.Millisecond
	// What is kept from tables too, for the log and the list of files, is a part of the room, tableShare as a divisor, and at most
	// tableKept. Bounds of timestamps leave boundKept of that.
	tableShare = 4
	tableKept  = 16 << 20
	boundKept  = 1 << 20
	// tablePause slows down the engine, which begins a flush that failed again at once.
	tablePause = 500 * time.Millisecond
)

// room is what the disk of a store has left. Of nil there is enough.
type room struct {
	fs   vfs.FS
	dir  string
	keep int64 // bytes that writes leave

	flying   atomic.Int64 // bytes that were let through, and may not be on the disk yet: no measure has them
	left     atomic.Int64 // bytes that may be written before the room is measured again
	measured atomic.Int64 // when it was, in nanoseconds
	pause    time.Duration
}

// newRoom measures a disk. It returns nil where the file system does not say how much room it has.
func newRoom(fsys vfs.FS, dir string, keep, memTable int64) *room {
	disk, err := fsys.GetDiskUsage(dir)
	if err != nil {
		return nil
	}
	if keep == 0 {
		keep = min(memTable+extraKept, int64(disk.TotalBytes/diskShare)) //nolint:gosec // no disk has so much
		keep = max(keep, leastKept)
	}
	return &room{fs: fsys, dir: dir, keep: keep, pause: tablePause}
}

// tablesOnDisk is the part of a disk, as a divisor, that a table in memory has at most where nobody chose its size. Its log takes as much room on the
// disk from the beginning, and the engine keeps up to nine of those.
const tablesOnDisk = 32

// memTableOn is the size of the tables in memory for a store on a disk where nobody chose one.
func memTableOn(fsys vfs.FS, dir string) int64 {
	disk, err := fsys.GetDiskUsage(dir)
	if err != nil {
		return defaultMemTable
	}
	return max(minMemTable, min(defaultMemTable, int64(disk.TotalBytes/tablesOnDisk))) //nolint:gosec // no disk has so much
}

// free measures what is left.
func (r *room) free() (bytes int64, known bool) {
	disk, err := r.fs.GetDiskUsage(r.dir)
	return int64(disk.AvailBytes), err == nil //nolint:gosec // no disk has so much
}

// costOf is how much room a batch of so many bytes takes.
func costOf(n int) int64 {
	cost := int64(n)
	if cost > measureBytes {
		cost *= 2 // in the log, and in a table before that is removed
	}
	return cost
}

// give says that a batch of so many bytes, for which there was room, is on the disk, or will never be.
func (r *room) give(n int) {
	if r != nil {
		r.flying.Add(-costOf(n))
	}
}

// take asks for room for a batch of so many bytes. If there is some, give must follow.
func (r *room) take(n int) (err error) {
	if r == nil {
		return nil
	}
	cost := costOf(n)
	// Batches that ask at once must not all pass on the same measure, so each counts before it measures.
	flying := r.flying.Add(cost)
	defer func() {
		if err != nil {
			r.give(n)
		}
	}()
	now := time.Now().UnixNano()
	if r.left.Add(-cost) >= 0 && now-r.measured.Load() < int64(measureAfter) {
		return nil
	}
	free, known := r.free()
	if !known {
		return nil
	}
	if free-flying < r.keep {
		r.left.Store(0)
		return r.full(free)
	}
	r.left.Store(min(free-flying-r.keep, measureBytes))
	r.measured.Store(now)
	return nil
}

// full says that a write was refused.
func (r *room) full(free int64) error {
	return fmt.Errorf("%w: the disk of %q has %d MiB left, of which the store leaves %d MiB to its engine (minfree); make room on it", rowstore.ErrFull, r.dir, free>>20, r.keep>>20)
}

// warning says that writes will be refused soon.
func (r *room) warning() []string {
	if r == nil {
		return nil
	}
	free, known := r.free()
	if !known || free >= 2*r.keep {
		return nil
	}
	return []string{fmt.Sprintf("the disk of %q has %d MiB left: with less than %d MiB (minfree) the store refuses writes; make room on it", r.dir, free>>20, r.keep>>20)}
}

// takeBound asks for room for a bound of timestamps. Readers draw those too, so it may take what all else leaves.
// The batch has so many bytes, and give must follow.
func (r *room) takeBound(n int) error {
	if r == nil {
		return nil
	}
	if free, known := r.free(); known && free < min(r.keep/tableShare, boundKept) {
		return r.full(free)
	}
	r.flying.Add(costOf(n))
	return nil
}

// roomFS keeps the engine's tables from taking the last room on a disk.
type roomFS struct {
	vfs.FS
	room *room
}

// Create implements vfs.FS.
func (f roomFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") {
		return f.FS.Create(name, category)
	}
	if err := f.room.table(name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	return &roomFile{File: file, room: f.room, name: name}, nil
}

// Unwrap implements vfs.FS.
func (f roomFS) Unwrap() vfs.FS { return f.FS }

// roomFile is a table that is being written.
type roomFile struct {
	vfs.File
	room *room
	name string
	left int // bytes until the room is measured again
}

// Write implements io.Writer.
func (f *roomFile) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		if err := f.room.table(f.name); err != nil {
			return 0, err
		}
		f.left = measureBytes / 4
	}
	return f.File.Write(b)
}

// table refuses to write on with a table when the disk is nearly full.
func (r *room) table(name string) error {
	if free, known := r.free(); !known || free >= min(r.keep/tableShare, tableKept) {
		return nil
	}
	time.Sleep(r.pause)
	return &fs.PathError{Op: "write", Path: name, Err: syscall.ENOSPC}
}
