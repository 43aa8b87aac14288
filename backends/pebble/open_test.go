package pebble

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func mustOpen(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), opts)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// writeCell commits one version of a cell.
func writeCell(t testing.TB, s *Store, row string, value string) rowstore.Timestamp {
	t.Helper()
	out, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(row, 0, []byte(value))}}})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	return out[0].Commit
}

func readCell(t testing.TB, s *Store, row string) string {
	t.Helper()
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: pickNewest()}})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	if len(rows[0].Versions) == 0 {
		return ""
	}
	return string(rows[0].Versions[0].Value)
}

func TestReopen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := rowstore.Open(t.Context(), "pebble:"+dir+"?cache=16MB&memtable=4MB")
	require.NoError(t, err)
	ts := writeCell(t, s.(*Store), "r", "v")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "a second Close does nothing")
	s2 := mustOpen(t, Options{Path: dir, MustExist: true})
	require.Equal(t, "v", readCell(t, s2, "r"))
	next, err := s2.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, next, ts)
	require.Greater(t, ts.Add(kit.DefaultWindow), next, "a clean end leaves no gap")
}

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, Options{Path: dir})
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, path := range []string{dir, dir + "/", filepath.Join(dir, "..", filepath.Base(dir)), link} {
		_, err := Open(t.Context(), Options{Path: path})
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "this process")
	}
	writeCell(t, s, "r", "v")
	require.NoError(t, s.Close())
	require.Equal(t, "v", readCell(t, mustOpen(t, Options{Path: link}), "r"))
}

// A directory that is moved while a store is open in it has another name, and is the same one. The store keeps it, and its lock.
func TestOpenTwiceOfAMovedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, after := filepath.Join(dir, "before"), filepath.Join(dir, "after")
	s := mustOpen(t, Options{Path: before})
	writeCell(t, s, "r", "1")
	require.NoError(t, os.Rename(before, after))
	_, err := Open(t.Context(), Options{Path: after})
	require.ErrorIs(t, err, ErrInUse)
	writeCell(t, s, "r", "2")
	require.NoError(t, os.Rename(after, before)) // for the end of the store
	require.NoError(t, s.Close())
	require.Equal(t, "2", readCell(t, mustOpen(t, Options{Path: before}), "r"))
}

// The database of another program is refused and left as it is, also where the engine would raise
// its format.
func TestForeignDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	require.Less(t, engine.FormatMinSupported, engineFormat)
	for _, format := range []engine.FormatMajorVersion{engine.FormatMinSupported, engineFormat} {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			foreignIsLeftAlone(t, format)
		})
	}
}

func foreignIsLeftAlone(t *testing.T, format engine.FormatMajorVersion) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "other")
	old := &engine.Options{Logger: quiet{}, FormatMajorVersion: format}
	db, err := engine.Open(dir, old)
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte("k"), []byte("v"), engine.Sync))
	require.NoError(t, db.Close())
	files := func() (names []string) {
		found, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range found {
			names = append(names, f.Name())
		}
		return names
	}
	before := files()
	_, err = Open(t.Context(), Options{Path: dir})
	require.ErrorIs(t, err, rowstore.ErrForeign)
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.Equal(t, before, files())
	desc, err := engine.Peek(dir, vfs.Default)
	require.NoError(t, err)
	require.Equal(t, old.FormatMajorVersion, desc.FormatMajorVersion)
}

// A store that was opened before is known by its options, so that its log is read once alone.
func TestOurOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, mustOpen(t, Options{Path: dir}).Close())
	desc, err := engine.Peek(dir, vfs.Default)
	require.NoError(t, err)
	require.True(t, hasOurOptions(vfs.Default, desc.OptionsFilename))
	other := filepath.Join(t.TempDir(), "other")
	db, err := engine.Open(other, &engine.Options{Logger: quiet{}, FormatMajorVersion: engineFormat})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	desc, err = engine.Peek(other, vfs.Default)
	require.NoError(t, err)
	require.False(t, hasOurOptions(vfs.Default, desc.OptionsFilename))
	require.False(t, hasOurOptions(vfs.Default, filepath.Join(other, "none")))
}

// A store whose engine's format is older is raised, and keeps what it has.
func TestOlderEngineFormat(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "older")
	db, err := engine.Open(dir, &engine.Options{Logger: quiet{}, FormatMajorVersion: engine.FormatMinSupported})
	require.NoError(t, err)
	require.NoError(t, db.Set(keyFormat, binary.BigEndian.AppendUint64(nil, formatVersion), engine.Sync))
	require.NoError(t, db.Close())
	s := mustOpen(t, Options{Path: dir})
	writeCell(t, s, "r", "v")
	require.Equal(t, "v", readCell(t, s, "r"))
	require.Equal(t, engineFormat, s.db.FormatMajorVersion())
}

// unusableStores makes stores that no Open can use, in directories of their names, and
// returns their paths.
func unusableStores(t *testing.T, dir string) map[string]string {
	t.Helper()
	at := map[string]string{}
	made := func(name string) string { // by Open
		at[name] = filepath.Join(dir, name)
		require.NoError(t, mustOpen(t, Options{Path: at[name]}).Close())
		return at[name]
	}
	set := func(path string, opts *engine.Options, key, value []byte) {
		opts.Logger = quiet{}
		db, err := engine.Open(path, opts)
		require.NoError(t, err)
		require.NoError(t, db.Set(key, value, engine.Sync))
		require.NoError(t, db.Close())
	}
	merger, comparer := *engine.DefaultMerger, *engine.DefaultComparer
	merger.Name, comparer.Name = "another.merger", "another.comparer"
	for name, opts := range map[string]*engine.Options{"other": {}, "merger": {Merger: &merger}, "comparer": {Comparer: &comparer}} {
		at[name] = filepath.Join(dir, name)
		set(at[name], opts, []byte("k"), []byte("v"))
	}
	set(made("newer"), &engine.Options{FormatMajorVersion: engineFormat}, keyFormat, binary.BigEndian.AppendUint64(nil, formatVersion+1))
	set(made("bound"), &engine.Options{FormatMajorVersion: engineFormat}, keyBound, []byte("abc"))

	found, err := filepath.Glob(filepath.Join(made("manifest"), "MANIFEST-*"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, f := range found {
		require.NoError(t, os.WriteFile(f, []byte(strings.Repeat("garbage", 100)), 0o600))
	}

	future := made("future")
	found, err = filepath.Glob(filepath.Join(future, "marker.format-version.*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, os.Rename(found[0], filepath.Join(future, "marker.format-version.000100.999")))
	return at
}

func TestOpenBadPaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	foreign := filepath.Join(dir, "foreign")
	require.NoError(t, os.Mkdir(foreign, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "letter.txt"), []byte("x"), 0o600))
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.Mkdir(empty, 0o700))
	loop := filepath.Join(dir, "loop")
	require.NoError(t, os.Symlink(loop, loop))
	unusable := unusableStores(t, dir)

	for _, c := range []struct {
		name string
		opts Options
		is   error
		says string
	}{
		{"file", Options{Path: file}, rowstore.ErrForeign, "not a directory"},
		{"below a file", Options{Path: filepath.Join(file, "x")}, rowstore.ErrInvalid, "not a directory"},
		{"a long name", Options{Path: filepath.Join(dir, strings.Repeat("x", 5000))}, rowstore.ErrInvalid, "too long"},
		{"a link to itself", Options{Path: loop}, rowstore.ErrInvalid, "too many levels"},
		{"a zero byte", Options{Path: filepath.Join(dir, "a\x00b")}, rowstore.ErrInvalid, "zero byte"},
		{"no parent", Options{Path: filepath.Join(dir, "no", "store")}, fs.ErrNotExist, "parent"},
		{"must exist", Options{Path: filepath.Join(dir, "no"), MustExist: true}, fs.ErrNotExist, "there is no store"},
		{"must exist in it", Options{Path: empty, MustExist: true}, fs.ErrNotExist, "there is no store"},
		{"must exist in memory", Options{MustExist: true}, fs.ErrNotExist, "begins empty"},
		{"other files", Options{Path: foreign}, rowstore.ErrForeign, "letter.txt"},
		{"another program's", Options{Path: unusable["other"]}, rowstore.ErrForeign, "another program; take another directory"},
		{"another program's merger", Options{Path: unusable["merger"]}, rowstore.ErrForeign, "another program"},
		{"another program's comparer", Options{Path: unusable["comparer"]}, rowstore.ErrForeign, "another program"},
		{"newer", Options{Path: unusable["newer"]}, rowstore.ErrFormat, "version 3"},
		{"manifest", Options{Path: unusable["manifest"]}, rowstore.ErrCorrupt, ""},
		{"a future engine's", Options{Path: unusable["future"]}, rowstore.ErrFormat, "999"},
		{"bound", Options{Path: unusable["bound"]}, rowstore.ErrCorrupt, "bound"},
		{"memtable", Options{Path: empty, MemTableSize: 1}, rowstore.ErrInvalid, "memtable"},
		{"cache", Options{CacheSize: -1}, rowstore.ErrInvalid, "size"},
	} {
		// Twice: a failed Open must not keep the path.
		for range 2 {
			_, err := Open(t.Context(), c.opts)
			require.Error(t, err, c.name)
			require.NotErrorIs(t, err, ErrInUse, c.name)
			if c.is != nil {
				require.ErrorIs(t, err, c.is, c.name)
			}
			require.ErrorContains(t, err, c.says, c.name)
			if c.opts.Path != "" && c.opts.MemTableSize == 0 {
				require.ErrorContains(t, err, strconv.Quote(c.opts.Path), c.name)
			}
		}
	}
	left, err := os.ReadDir(foreign)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing was written into a foreign directory")
}

// TestDamagedFileIsNoBadPath: a file of the store that cannot be opened says nothing of the path that the caller gave.
func TestDamagedFileIsNoBadPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Path: dir})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	manifests, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	require.NoError(t, err)
	require.NotEmpty(t, manifests)
	for _, m := range manifests {
		require.NoError(t, os.Remove(m))
		require.NoError(t, os.Symlink(m, m))
	}
	_, err = Open(t.Context(), Options{Path: dir})
	require.ErrorContains(t, err, "too many levels")
	require.NotErrorIs(t, err, rowstore.ErrInvalid)
}

func TestOpenWithoutPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("the superuser may open everything")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500)) //nolint:gosec // a directory
	_, err := Open(t.Context(), Options{Path: dir})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.ErrorContains(t, err, dir)
	_, err = Open(t.Context(), Options{Path: filepath.Join(dir, "x")})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorIs(t, err, rowstore.ErrDenied)
}

func TestOpenURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]Options{
		"pebble:data":                               {Path: "data"},
		"pebble:./data?memtable=8MB":                {Path: "./data", MemTableSize: 8 << 20},
		"pebble:/var/data":                          {Path: "/var/data"},
		"pebble:///var/data?mustexist=true":         {Path: "/var/data", MustExist: true},
		"pebble:a b%20c?cache=1g&memtable=2097152b": {Path: "a b%20c", CacheSize: 1 << 30, MemTableSize: 2 << 20},
		"memory:":             {},
		"memory://":           {},
		"memory:?cache=64KiB": {CacheSize: 64 << 10},
	} {
		got, err := ParseURL(url)
		require.NoError(t, err, url)
		require.Equal(t, want, got, url)
	}
	for url, says := range map[string]string{
		"pebble:":                        "path is missing",
		"pebble:?cache=1":                "path is missing",
		"pebble://host/data":             "host",
		"pebble:x?cach=1":                "unknown parameter",
		"pebble:x?cache=":                "size",
		"pebble:x?cache=1.5GB":           "size",
		"pebble:x?cache=-1":              "size",
		"pebble:x?cache=0":               "size",
		"pebble:x?cache=1PB":             "size",
		"pebble:x?memtable=9999999999GB": "size",
		"pebble:x?mustexist=maybe":       "mustexist",
		"pebble:x?%zz=1":                 "not well encoded",
		"memory:name":                    "no name",
		"pebble://shop:hunter2@db/shop":  "host",
		"memory://u:hunter2@h":           "no name",
		"pebble:x?password=hunter2":      "unknown parameter",
		"pebble:x?cache=hunter2":         "size",
	} {
		_, err := rowstore.Open(t.Context(), url)
		require.ErrorIs(t, err, rowstore.ErrInvalid, url)
		require.ErrorContains(t, err, says, url)
		require.NotContains(t, err.Error(), "hunter2", url)
	}
}

func TestMemoryStoresAreApart(t *testing.T) {
	t.Parallel()
	a, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	b, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	writeCell(t, a.(*Store), "r", "v")
	require.Empty(t, readCell(t, b.(*Store), "r"))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

func TestReport(t *testing.T) {
	t.Parallel()
	r, err := mustOpen(t, Options{}).Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, "pebble", r.Backend)
	require.Empty(t, r.Warnings)
	require.Contains(t, r.Features, rowstore.Feature{Name: "durable", Reason: "the store is in memory"})
	r, err = mustOpen(t, Options{Path: t.TempDir()}).Report(t.Context())
	require.NoError(t, err)
	require.Empty(t, r.Warnings)
	require.True(t, r.Features[len(r.Features)-1].Supported)
}

// TestCorruptRows reads and scans over rows whose stored bytes are garbage.
func TestCorruptRows(t *testing.T) {
	t.Parallel()
	headOf := func(row string) []byte { return append(appendRow(nil, spaceHead, "t", row), 'c') }
	all := []rowstore.Selector{
		{Family: rowstore.Write, To: oracle.Max}, {Family: rowstore.Data, To: oracle.Max}, {Family: rowstore.Notify, To: oracle.Max},
	}
	for name, kv := range map[string][2][]byte{
		"head":         {headOf("r"), []byte{0xE0}},
		"empty head":   {headOf("r"), {}},
		"notification": {append(appendRow(nil, spaceNotify, "t", "r"), "xyz"...), {}},
		"data":         {append(appendColumn(nil, spaceData, "t", "r", "c"), 1, 2, 3), {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Options{})
			writeCell(t, s, "other", "fine")
			require.NoError(t, s.db.Set(kv[0], kv[1], engine.NoSync))
			dropNotes(s) // which has not seen it come
			rows, err := s.Read(t.Context(), []rowstore.RowRead{
				{Table: "t", Row: "other", Selectors: all}, {Table: "t", Row: "r", Selectors: all},
			})
			require.NoError(t, err)
			require.NoError(t, rows[0].Err, "another row is not concerned")
			require.Len(t, rows[0].Versions, 1)
			require.ErrorIs(t, rows[1].Err, rowstore.ErrCorrupt)
			require.ErrorContains(t, rows[1].Err, `"r"`)
			var last error
			for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: all}) {
				last = err
			}
			require.ErrorIs(t, last, rowstore.ErrCorrupt)
			if strings.Contains(name, "head") {
				out, err := s.Apply(t.Context(), []rowstore.Mutation{
					{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "c", 1, nil)}},
				}, rowstore.ApplyOptions{})
				require.NoError(t, err)
				require.ErrorIs(t, out[0].Err, rowstore.ErrCorrupt)
				require.NotErrorIs(t, out[0].Err, rowstore.ErrAmbiguous)
			}
		})
	}
	t.Run("tables", func(t *testing.T) {
		t.Parallel()
		s := mustOpen(t, Options{})
		// It hides no table, on whatever page of the list.
		var want, names []string
		for i := range 150 {
			name := fmt.Sprintf("t%03d", i)
			want = append(want, name)
			out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: name, Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.NoError(t, out[0].Err)
		}
		for i := range 600 {
			require.NoError(t, s.db.Set(fmt.Appendf([]byte{spaceHead}, "t%03d/theirs", i/4*2), nil, engine.NoSync))
		}
		first := []byte{spaceHead, 'a'}
		require.NoError(t, s.db.Set(first, nil, engine.NoSync))
		var last error
		for name, err := range s.Tables(t.Context()) {
			require.NoError(t, last, "nothing follows an error")
			if last = err; err == nil {
				names = append(names, name)
			}
		}
		require.ErrorIs(t, last, rowstore.ErrCorrupt)
		require.ErrorContains(t, last, fmt.Sprintf("%q", first))
		require.Equal(t, want, names)
	})
}
