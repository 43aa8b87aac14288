package pebble

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestWithKind says of what kind an error of the file system is.
func TestWithKind(t *testing.T) {
	t.Parallel()
	for from, want := range map[syscall.Errno]error{
		syscall.EACCES: rowstore.ErrDenied, syscall.EPERM: rowstore.ErrDenied, syscall.EROFS: rowstore.ErrDenied,
		syscall.ENOSPC: rowstore.ErrFull, syscall.EDQUOT: rowstore.ErrFull, syscall.EIO: nil,
		syscall.ENOTDIR: nil, syscall.ENAMETOOLONG: nil, syscall.ELOOP: nil, // of a file in the directory: it is damaged
	} {
		err := withKind(&fs.PathError{Op: "open", Path: "x", Err: from})
		require.ErrorIs(t, err, from)
		for _, kind := range []error{rowstore.ErrDenied, rowstore.ErrFull, rowstore.ErrInvalid} {
			require.Equal(t, errors.Is(want, kind), errors.Is(err, kind), "%v", err)
		}
	}
}

func TestSortError(t *testing.T) {
	t.Parallel()
	require.NoError(t, sortError(nil))
	path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}
	link := &os.LinkError{Op: "link", Old: "x", New: "y", Err: fs.ErrExist}
	call := os.NewSyscallError("flock", fs.ErrPermission)
	for name, c := range map[string]struct{ err, want error }{
		"damaged":                  {engine.ErrCorruption, rowstore.ErrCorrupt},
		"damaged, in a file":       {errors.Join(engine.ErrCorruption, path), rowstore.ErrCorrupt},
		"path":                     {path, fs.ErrPermission},
		"link":                     {link, fs.ErrExist},
		"call":                     {call, fs.ErrPermission},
		"a later engine":           {errors.New("database at format major version 99"), rowstore.ErrFormat},
		"other keys":               {errors.New("comparer name from file != comparer name from options"), rowstore.ErrFormat},
		"other values":             {errors.New("merger name from file != merger name from options"), rowstore.ErrFormat},
		"it does not say anything": {errors.New("strange"), rowstore.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := sortError(c.err)
			require.ErrorIs(t, got, c.want)
			require.ErrorIs(t, got, c.err)
			for _, other := range []error{rowstore.ErrCorrupt, rowstore.ErrFormat} {
				require.Equal(t, errors.Is(c.want, other), errors.Is(got, other), "%v", other)
			}
		})
	}
}

// panicking is a file system on which the engine panics.
type panicking struct{ vfs.FS }

func (panicking) List(string) ([]string, error) { panic("what is this?") }

func TestPanicOfTheEngineIsAnError(t *testing.T) {
	t.Parallel()
	_, err := openEngine("db", &engine.Options{FS: panicking{vfs.NewMem()}, Logger: quiet{}})
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.ErrorContains(t, err, "what is this?")
}

func TestOpenHonoursItsContext(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "new")
	_, err := Open(gone, Options{Path: dir})
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, dir)
	db := database(t, nil)
	_, err = New(gone, db, Options{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = New(t.Context(), db, Options{MustExist: true})
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing was made")
}

func TestOptionsBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts Options
		fine bool
	}{
		"least memtable":        {Options{MemTableSize: minMemTable}, true},
		"a smaller memtable":    {Options{MemTableSize: minMemTable - 1}, false},
		"greatest memtable":     {Options{MemTableSize: maxMemTable}, true},
		"a larger memtable":     {Options{MemTableSize: maxMemTable + 1}, false},
		"a memtable below zero": {Options{MemTableSize: -1}, false},
		"a cache below zero":    {Options{CacheSize: -1}, false},
		"greatest cache":        {Options{CacheSize: maxCache}, true},
		"a larger cache":        {Options{CacheSize: maxCache + 1}, false},
		"any cache":             {Options{CacheSize: math.MaxInt64}, false},
		"greatest room left":    {Options{MinFree: maxMinFree}, true},
		"more room left":        {Options{MinFree: maxMinFree + 1}, false},
		"any room left":         {Options{MinFree: math.MaxInt64}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.opts.complete(true)
			if c.fine {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, rowstore.ErrInvalid)
			}
		})
	}
	for size, want := range map[int64]int{0: 1, 8 << 20: 2, 8<<20 - 1: 1, 64 << 20: 16, maxCache: 1 << 18, math.MaxInt64: 1 << 40} {
		require.Equal(t, want, cacheBuckets(size), "%d bytes", size)
	}
	o, err := ParseURL("pebble:/x?cache=5MB&memtable=6MB&mustexist=true")
	require.NoError(t, err)
	require.Equal(t, Options{Path: "/x", CacheSize: 5 << 20, MemTableSize: 6 << 20, MustExist: true}, o)
	var memory Options
	require.NoError(t, memory.complete(true))
	require.EqualValues(t, leastCache, memory.CacheSize)
}

// TestClockAndWindowOfTheOracle sets both, and looks at what is drawn and at what is stored.
func TestClockAndWindowOfTheOracle(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1 << 40)
	db := database(t, nil)
	s := mustNew(t, db, Options{Clock: func() time.Time { return now }, Window: time.Hour})
	ts, err := s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, oracle.FromTime(now), ts)
	bound, _, err := getMeta(db, keyBound)
	require.NoError(t, err)
	require.True(t, now.Add(time.Hour).Equal(oracle.Timestamp(bound).Time()))
}

// TestKeysOfAnotherProgram puts a key at each end of the range that the store takes.
func TestKeysOfAnotherProgram(t *testing.T) {
	t.Parallel()
	for space := byte(spaceMeta); space <= spaceSample; space++ {
		db := database(t, nil)
		require.NoError(t, db.Set([]byte{space, 0xFF, 0xFF}, nil, engine.Sync))
		_, err := New(t.Context(), db, Options{})
		require.ErrorIs(t, err, rowstore.ErrFormat, "0x%02x", space)
	}
	db := database(t, nil)
	require.NoError(t, mustNew(t, db, Options{}).Close())
	require.NoError(t, db.Set(keyBound, []byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, engine.Sync))
	_, err := New(t.Context(), db, Options{})
	require.ErrorIs(t, err, rowstore.ErrCorrupt, "a bound of %d", uint64(math.MaxUint64))
	require.NoError(t, db.Set(keyFormat, make([]byte, 8), engine.Sync))
	_, err = New(t.Context(), db, Options{})
	require.ErrorIs(t, err, rowstore.ErrFormat, "version 0")
}
