package backup

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// platter is what a disk has of a file after a power failure: what was written before the last sync. A sync that fails forgets what was written since the one before, which
// the next one does not write, as on Linux.
type platter struct {
	path  string
	fails func(sync int) bool
	syncs int
	dirty map[int64]bool
	lasts map[int64]byte
}

func newPlatter(path string) *platter {
	return &platter{path: path, dirty: map[int64]bool{}, lasts: map[int64]byte{}}
}

// wrote notes that bytes were written.
func (p *platter) wrote(from int64, n int) {
	for i := range int64(n) {
		p.dirty[from+i] = true
	}
}

func (p *platter) sync() error {
	if p.syncs++; p.fails != nil && p.fails(p.syncs) {
		clear(p.dirty)
		return syscall.EIO
	}
	b, err := os.ReadFile(p.path)
	for at := range p.dirty {
		p.lasts[at] = b[at]
	}
	clear(p.dirty)
	return err
}

// left is the file as far as it lasts, with zeros in place of what does not.
func (p *platter) left(size int) []byte {
	b := make([]byte, size)
	for at, c := range p.lasts {
		if at < int64(size) {
			b[at] = c
		}
	}
	return b
}

func (p *platter) open(path string) (diskFile, error) {
	f, err := openDisk(path)
	return &platterDisk{diskFile: f, p: p}, err
}

// platterDisk is an open file on a platter.
type platterDisk struct {
	diskFile
	p  *platter
	at int64
}

func (d *platterDisk) Read(b []byte) (int, error) {
	n, err := d.diskFile.Read(b)
	d.at += int64(n)
	return n, err
}

func (d *platterDisk) Write(b []byte) (int, error) {
	n, err := d.diskFile.Write(b)
	d.p.wrote(d.at, n)
	d.at += int64(n)
	return n, err
}

func (d *platterDisk) Seek(offset int64, whence int) (at int64, err error) {
	d.at, err = d.diskFile.Seek(offset, whence)
	return d.at, err
}

func (d *platterDisk) Truncate(size int64) error {
	for at := range d.p.dirty {
		if at >= size {
			delete(d.p.dirty, at)
		}
	}
	for at := range d.p.lasts {
		if at >= size {
			delete(d.p.lasts, at)
		}
	}
	return d.diskFile.Truncate(size)
}

func (d *platterDisk) Sync() error { return d.p.sync() }

// lastsWhole makes sure that the file is what a power failure would leave.
func lastsWhole(t *testing.T, p *platter, path string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, got, p.left(len(got)))
	_, err = Verify(t.Context(), path, nil)
	require.NoError(t, err)
}

// TestEachSyncFails fails each sync of a backup. The file gets no name, and goes on from what is known to last.
func TestEachSyncFails(t *testing.T) {
	t.Parallel()
	s, whole, _, _ := filled(t)
	want := contents(t, whole)
	for failing := 1; ; failing++ {
		path := filepath.Join(t.TempDir(), "backup")
		p := newPlatter(path + Incomplete)
		p.fails = func(n int) bool { return n == failing }
		opts := Options{blockBytes: small, syncEvery: 1000, disk: p.open}
		first, err := Write(t.Context(), s.db, path, opts)
		if err == nil {
			require.Greater(t, failing, 4, "syncs")
			lastsWhole(t, p, path)
			return
		}
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorContains(t, err, path+Incomplete)
		require.NoFileExists(t, path)
		b, err := os.ReadFile(path + Incomplete)
		if failing == 1 { // that of the head, which has nothing before it
			require.ErrorIs(t, err, os.ErrNotExist)
		} else {
			require.NoError(t, err)
			require.NotEmpty(t, b)
			require.Equal(t, b, p.left(len(b)))
		}
		holds, err := s.db.Holds(t.Context())
		require.NoError(t, err)
		require.Equal(t, failing == 1, len(holds) == 0)
		again, err := Write(t.Context(), s.db, path, opts)
		require.NoError(t, err)
		require.Equal(t, failing > 1, again.Resumed)
		require.Equal(t, failing > 1, first.ID == again.ID)
		lastsWhole(t, p, path)
		if failing > 1 {
			require.Len(t, contents(t, path), len(want))
		}
	}
}

// TestSyncOfACallThatFails: a disk without room cannot sync either. Both errors are told, and the file has what lasts.
func TestSyncOfACallThatFails(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	p := newPlatter(path + Incomplete)
	p.fails = func(n int) bool { return n == 2 } // the first one is that of the head
	_, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
		f, err := p.open(path)
		return &smallDisk{f, 5000}, err
	}})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, err, syscall.EIO)
	b, err := os.ReadFile(path + Incomplete)
	require.NoError(t, err)
	require.Equal(t, b, p.left(len(b)))
	again, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: p.open})
	require.NoError(t, err)
	require.True(t, again.Resumed)
	lastsWhole(t, p, path)
}

// TestKilledBeforeTheSync: a process was killed when it had written a part of its backup, or all of it, and not synced it. The next one does before the file gets its name; if it cannot,
// it begins anew.
func TestKilledBeforeTheSync(t *testing.T) {
	t.Parallel()
	s, _, file, r := filled(t)
	for _, size := range []int{len(file) / 2, len(file)} {
		for _, fails := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "backup")
			require.NoError(t, os.WriteFile(path+Incomplete, file[:size], 0o600))
			p := newPlatter(path + Incomplete)
			p.wrote(0, size)
			p.fails = func(n int) bool { return fails && n == 1 }
			_, err := s.db.Hold(t.Context(), holdName(r.ID), r.Snapshot, time.Minute)
			require.NoError(t, err)
			opts := Options{blockBytes: small, disk: p.open}
			got, err := Write(t.Context(), s.db, path, opts)
			holds, herr := s.db.Holds(t.Context())
			require.NoError(t, herr)
			require.Empty(t, holds)
			if fails {
				require.ErrorIs(t, err, syscall.EIO)
				require.NoFileExists(t, path)
				got, err = Write(t.Context(), s.db, path, opts)
			}
			require.NoError(t, err)
			require.Equal(t, !fails, got.Resumed)
			require.Equal(t, !fails, got.ID == r.ID)
			lastsWhole(t, p, path)
		}
	}
}

// unclosedDisk fails when it is closed.
type unclosedDisk struct{ diskFile }

func (d unclosedDisk) Close() error {
	_ = d.diskFile.Close()
	return syscall.EIO
}

// TestNamedBeforeTheHoldEnds: a call was cut off when its backup was complete, and before the file had its name. The hold stands still, so the next call names the
// file, however long the backup took.
func TestNamedBeforeTheHoldEnds(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	first, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
		f, err := openDisk(path)
		return unclosedDisk{f}, err
	}})
	require.ErrorIs(t, err, syscall.EIO)
	require.NoFileExists(t, path)
	require.Eventually(t, func() bool {
		now, err := s.db.Now(t.Context())
		return err == nil && now.Sub(first.Snapshot) > time.Second // older than the shortest hold
	}, time.Minute, 10*time.Millisecond)
	var told []Progress
	again, err := Write(t.Context(), s.db, path, Options{blockBytes: small, Hold: time.Second, Progress: func(p Progress) { told = append(told, p) }})
	require.NoError(t, err)
	require.Equal(t, first.ID, again.ID)
	require.FileExists(t, path)
	require.NoFileExists(t, path+Incomplete)
	require.Greater(t, len(told), 1)
	require.Zero(t, told[0].Done, "it reads what is there")
	require.Positive(t, told[0].Bytes)
	require.Equal(t, Progress{Rows: first.Rows, Cells: first.Cells, Bytes: first.Bytes, Done: 1, Ended: true}, told[len(told)-1])
	holds, err := s.db.Holds(t.Context())
	require.NoError(t, err)
	require.Empty(t, holds)
}
