package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// version1Key is the key of a notification in version 1 of the layout.
func version1Key(table, row, column string, ts rowstore.Timestamp) []byte {
	key := kit.AppendName(kit.AppendName([]byte{0x05}, table), row)
	return kit.AppendTimestamp(kit.AppendName(key, column), ts)
}

// toVersion1 turns a database with a store into one that a program of version 1 has left, and
// adds notifications of rows with hard names. It returns how many.
func toVersion1(t testing.TB, db *engine.DB, notified int) map[string]string {
	t.Helper()
	require.NoError(t, db.DeleteRange([]byte{0x05}, []byte{0x06}, engine.NoSync))
	want := map[string]string{}
	add := func(table, row string, ts rowstore.Timestamp, value string) {
		require.NoError(t, db.Set(version1Key(table, row, "c", ts), []byte(value), engine.NoSync))
		want[fmt.Sprintf("%q %q %d", table, row, ts)] = value
	}
	for _, table := range []string{"\x00", "\x00\x01", "\x00\xff", "\x01", "t", "\xff", "\xff\xff\x00"} {
		for _, row := range []string{"\x00", "\x00\x01", "a", "a\x00", "\xff", string(make([]byte, maxName))} {
			add(table, row, 5, "")
			add(table, row, 7, "weak")
		}
	}
	for i := range notified {
		add("many", benchKey(i), 3, "x")
	}
	require.NoError(t, db.Set(keyFormat, binary.BigEndian.AppendUint64(nil, 1), engine.Sync))
	return want
}

// notifications lists all of a store by the given scans of its tables.
func notifications(t testing.TB, s *Store, slots []rowstore.SlotRange) map[string]string {
	t.Helper()
	got := map[string]string{}
	for table, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
		for _, r := range scanAll(t, s, rowstore.ScanRange{Table: table, Slots: slots, Selectors: pickNotify()}) {
			for _, v := range r.Versions {
				got[fmt.Sprintf("%q %q %d", r.Table, r.Row, v.TS)] = string(v.Value)
			}
		}
	}
	return got
}

func checkMigrated(t testing.TB, s *Store, want map[string]string) {
	t.Helper()
	v, _, err := getMeta(s.db, keyFormat)
	require.NoError(t, err)
	require.EqualValues(t, 2, v)
	_, moving, err := getMeta(s.db, keyMoving)
	require.NoError(t, err)
	require.False(t, moving)
	require.Equal(t, want, notifications(t, s, nil))
	require.Equal(t, want, notifications(t, s, everySlot()))
	require.Equal(t, engineNotes(t, s), copiedNotes(s))
	dropNotes(s)
	require.Equal(t, want, notifications(t, s, everySlot()))
}

func TestMigrateFromVersion1(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), Options{Path: dir})
	require.NoError(t, err)
	ts := writeCell(t, s, "r", "v")
	notify(t, s, "t", []string{"r"}, notification(5))
	want := toVersion1(t, s.db, 3*moveKeys)
	require.NoError(t, s.Close())

	_, err = Open(t.Context(), Options{Path: dir, AsIs: true})
	require.ErrorIs(t, err, rowstore.ErrFormat)
	s = mustOpen(t, Options{Path: dir, MustExist: true})
	checkMigrated(t, s, want)
	require.Equal(t, "v", readCell(t, s, "r"))
	require.Greater(t, writeCell(t, s, "r", "w"), ts)
	require.NoError(t, s.Close())
	checkMigrated(t, mustOpen(t, Options{Path: dir}), want)
}

// A database of the program's own keeps its keys on both sides of the store's.
func TestMigrateInADatabase(t *testing.T) {
	t.Parallel()
	db := database(t, nil)
	require.NoError(t, mustNew(t, db, Options{}).Close())
	want := toVersion1(t, db, 100)
	for _, k := range []string{"\x00", "\x07", "z"} {
		require.NoError(t, db.Set([]byte(k), []byte("mine"), engine.NoSync))
	}
	checkMigrated(t, mustNew(t, db, Options{}), want)
	for _, k := range []string{"\x00", "\x07", "z"} {
		v, c, err := db.Get([]byte(k))
		require.NoError(t, err)
		require.Equal(t, "mine", string(v))
		require.NoError(t, c.Close())
	}
}

// cutFS takes a picture of the disk, as a crash would leave it, after so many writes to files.
type cutFS struct {
	vfs.FS
	left *atomic.Int64
	cut  func()
}

func (f cutFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return cutFile{file, f}, err
}

func (f cutFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, c)
	return cutFile{file, f}, err
}

type cutFile struct {
	vfs.File
	fs cutFS
}

func (f cutFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if f.fs.left.Add(-1) == 0 {
		f.fs.cut()
	}
	return n, err
}

// TestMigrationIsCutShort cuts the power at every so many writes of a migration, and again of
// the one that goes on with it. What the disk has kept is refused by a program of version 1,
// unless nothing was changed yet, and no notification is lost.
func TestMigrationIsCutShort(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	s := openFS(t, mem)
	want := toVersion1(t, s.db, 6*moveKeys+50)
	require.NoError(t, s.Close())
	// A busy machine puts many changes into one write.
	const many = 1 << 40
	var left atomic.Int64
	left.Store(many)
	require.NoError(t, openFS(t, cutFS{mem.CrashClone(vfs.CrashCloneCfg{}), &left, nil}).Close())
	writes := many - int(left.Load())
	t.Logf("a migration takes %d writes", writes)
	halfway := 0
	for run := 0; run < 6 || halfway == 0 && run < 20; run++ {
		disk := mem.CrashClone(vfs.CrashCloneCfg{})
		for crash := range 3 {
			var kept *vfs.MemFS
			left.Store(1 + int64(rng.IntN(writes)))
			unsynced := rng.IntN(3) * 50
			cut := func() { kept = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rng}) }
			require.NoError(t, openFS(t, cutFS{disk, &left, cut}).Close())
			if kept == nil {
				break
			}
			disk = kept
			version, moving := storedVersion(t, disk)
			if moving {
				require.EqualValues(t, 2, version, "run %d, crash %d", run, crash)
				halfway++
			}
		}
		s := openFS(t, disk)
		checkMigrated(t, s, want)
		require.NoError(t, s.Close())
	}
	require.Positive(t, halfway, "no crash came in the middle of a migration")
	t.Logf("%d crashes came in the middle", halfway)
}

// storedVersion reads the version of a store, and whether its migration is under way.
func storedVersion(t testing.TB, fs *vfs.MemFS) (version uint64, moving bool) {
	t.Helper()
	db, err := engine.Open("db", &engine.Options{FS: fs.CrashClone(vfs.CrashCloneCfg{}), Logger: quiet{}, FormatMajorVersion: engineFormat})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	version, _, err = getMeta(db, keyFormat)
	require.NoError(t, err)
	_, moving, err = getMeta(db, keyMoving)
	require.NoError(t, err)
	return version, moving
}

// endsAfter is a context that ends when it was asked so many times.
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

// An Open whose context ends leaves the migration to the next one, and the path free.
func TestMigrationHonoursTheContext(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), Options{Path: dir})
	require.NoError(t, err)
	want := toVersion1(t, s.db, 3*moveKeys)
	require.NoError(t, s.Close())
	cut := 0
	for asks := int64(1); ; asks++ {
		ctx := &endsAfter{Context: t.Context()}
		ctx.asks.Store(asks)
		s, err = Open(ctx, Options{Path: dir})
		if err == nil {
			break
		}
		cut++
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, dir)
	}
	require.Greater(t, cut, 1)
	checkMigrated(t, s, want)
	require.NoError(t, s.Close())
}

// A store whose migration was cut short is refused by who takes it as it is, which changes nothing.
func TestHalfMigratedAsIs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), Options{Path: dir})
	require.NoError(t, err)
	want := toVersion1(t, s.db, 3*moveKeys)
	require.NoError(t, s.Close())
	asIs := func() *rowstore.LayoutError {
		t.Helper()
		_, err := Open(t.Context(), Options{Path: dir, AsIs: true})
		require.ErrorIs(t, err, rowstore.ErrFormat)
		var layout *rowstore.LayoutError
		require.ErrorAs(t, err, &layout)
		require.Equal(t, 1, layout.Stored)
		require.False(t, layout.Newer())
		return layout
	}
	require.False(t, asIs().HalfDone)
	halfDone := 0
	for asks := int64(1); ; asks++ {
		ctx := &endsAfter{Context: t.Context()}
		ctx.asks.Store(asks)
		s, err = Open(ctx, Options{Path: dir})
		if err == nil {
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		if !asIs().HalfDone {
			continue
		}
		halfDone++
		again := asIs()
		require.True(t, again.HalfDone, "a look has gone on with the migration")
		require.ErrorContains(t, again, "half migrated from format version 1 to version 2")
	}
	require.Positive(t, halfDone)
	checkMigrated(t, s, want)
	require.NoError(t, s.Close())
	s, err = Open(t.Context(), Options{Path: dir, AsIs: true})
	require.NoError(t, err)
	checkMigrated(t, s, want)
	require.NoError(t, s.Close())
}

// Of two that open a store at once, one migrates it, and the other is told that it is in use.
func TestTwoMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), Options{Path: dir})
	require.NoError(t, err)
	want := toVersion1(t, s.db, moveKeys)
	require.NoError(t, s.Close())
	type opened struct {
		s   *Store
		err error
	}
	results := make(chan opened, 2)
	for range 2 {
		go func() {
			s, err := Open(t.Context(), Options{Path: dir})
			results <- opened{s, err}
		}()
	}
	open := 0
	for range 2 {
		if r := <-results; r.err == nil {
			open++
			defer func() { require.NoError(t, r.s.Close()) }()
			checkMigrated(t, r.s, want)
		} else {
			require.ErrorIs(t, r.err, ErrInUse)
		}
	}
	require.Equal(t, 1, open)
}

// What cannot be migrated is left as it is.
func TestMigrationRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value []byte
		is         error
	}{
		"version 0":          {keyFormat, make([]byte, 8), rowstore.ErrFormat},
		"version 3":          {keyFormat, binary.BigEndian.AppendUint64(nil, 3), rowstore.ErrFormat},
		"bound":              {keyBound, []byte("abc"), rowstore.ErrCorrupt},
		"garbage":            {[]byte{0x05, 't'}, nil, rowstore.ErrCorrupt},
		"no row":             {[]byte("\x05t\x00\x01\x00\x01c\x00\x01\xff\xff\xff\xff\xff\xff\xff\xf0"), nil, rowstore.ErrCorrupt},
		"a bad timestamp":    {version1Key("t", "r", "c", 0), nil, rowstore.ErrCorrupt},
		"bytes left over":    {append(version1Key("t", "r", "c", 5), 0), nil, rowstore.ErrCorrupt},
		"a bad note of work": {keyMoving, []byte("abc"), nil}, // of a store that is not moving: nobody reads it
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, nil)
			require.NoError(t, mustNew(t, db, Options{}).Close())
			want := toVersion1(t, db, 10)
			require.NoError(t, db.Set(c.key, c.value, engine.Sync))
			for range 2 {
				s, err := New(t.Context(), db, Options{})
				if c.is == nil {
					require.NoError(t, err)
					checkMigrated(t, s, want)
					require.NoError(t, s.Close())
					continue
				}
				require.ErrorIs(t, err, c.is)
			}
			if errors.Is(c.is, rowstore.ErrFormat) {
				it, err := db.NewIter(&engine.IterOptions{LowerBound: bySlot, UpperBound: kit.PrefixEnd(bySlot)})
				require.NoError(t, err)
				require.False(t, it.First())
				require.NoError(t, it.Close())
			}
			if name == "garbage" {
				// Without it the migration goes on.
				require.NoError(t, db.Delete(c.key, engine.Sync))
				checkMigrated(t, mustNew(t, db, Options{}), want)
			}
		})
	}
}

// The bytes of the keys of both versions are pinned: stores have them.
func TestNotificationKeysStay(t *testing.T) {
	t.Parallel()
	v1 := version1Key("t", "r\x00", "c", 5)
	v2, err := keyOfVersion2(v1)
	require.NoError(t, err)
	require.Equal(t, []byte("\x05t\x00\x01r\x00\xff\x00\x01c\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfa"), v1)
	slot := rowstore.Slot("t", "r\x00")
	require.Equal(t, fmt.Appendf(nil, "\x05\x00\x01t\x00\x01%c%cr\x00\xff\x00\x01c\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfa", 'S', 'T'),
		bytes.Replace(v2, binary.BigEndian.AppendUint16(nil, slot), []byte("ST"), 1))
	require.Equal(t, kit.AppendTimestamp(appendColumn(nil, spaceNotify, "t", "r\x00", "c"), 5), v2)
}
