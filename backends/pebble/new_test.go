package pebble

import (
	"bytes"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// database opens a database in memory as a program would, and closes it after the test.
func database(t testing.TB, change func(*engine.Options)) *engine.DB {
	t.Helper()
	eo := &engine.Options{FS: vfs.NewMem(), Logger: quiet{}}
	if change != nil {
		change(eo)
	}
	db, err := engine.Open("db", eo)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close()) })
	return db
}

func mustNew(t testing.TB, db *engine.DB, opts Options) *Store {
	t.Helper()
	s, err := New(t.Context(), db, opts)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// The database has the engine's default options, and keys of the program on both sides of
// the store's. What stands over the store cannot see that: TestConformanceMemory has it.
func TestConformanceNew(t *testing.T) {
	t.Parallel()
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		db := database(t, nil)
		for _, k := range []string{"", "\x00", "\x07", "a", "\xff"} {
			require.NoError(t, db.Set([]byte(k), []byte("the program's"), engine.NoSync))
		}
		return mustNew(t, db, Options{CacheSize: 1 << 20})
	}, conformance.Scale(0.1), conformance.Without(sizesElsewhere, conformance.Sizes))
}

func TestNewSharesADatabase(t *testing.T) {
	t.Parallel()
	db := database(t, nil)
	require.NoError(t, db.Set([]byte("mine"), []byte("1"), engine.Sync))
	_, err := New(t.Context(), db, Options{MustExist: true})
	require.ErrorIs(t, err, fs.ErrNotExist)

	s := mustNew(t, db, Options{})
	writeCell(t, s, "r", "v")
	_, err = New(t.Context(), db, Options{})
	require.ErrorIs(t, err, ErrInUse)
	r, err := s.Report(t.Context())
	require.NoError(t, err)
	require.True(t, r.Features[len(r.Features)-1].Supported, "durable")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())

	v, c, err := db.Get([]byte("mine"))
	require.NoError(t, err, "Close leaves the database open")
	require.Equal(t, "1", string(v))
	require.NoError(t, c.Close())

	s = mustNew(t, db, Options{MustExist: true})
	require.Equal(t, "v", readCell(t, s, "r"))
}

// What was acknowledged is there after the power went, as it is with Open.
func TestNewIsDurable(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	s := mustNew(t, database(t, func(o *engine.Options) { o.FS = mem }), Options{})
	ts := writeCell(t, s, "r", "v")
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	again := mustNew(t, database(t, func(o *engine.Options) { o.FS = after }), Options{MustExist: true})
	require.Equal(t, "v", readCell(t, again, "r"))
	next, err := again.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, next, ts)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	closed, err := engine.Open("db", &engine.Options{FS: vfs.NewMem(), Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	readOnly := vfs.NewMem()
	db, err := engine.Open("db", &engine.Options{FS: readOnly, Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, db.Close())

	backwards := *engine.DefaultComparer
	backwards.Name = "backwards"
	backwards.Compare = func(a, b []byte) int { return bytes.Compare(b, a) }
	backwards.ComparePointSuffixes = func(a, b []byte) int { return bytes.Compare(b, a) }
	backwards.AbbreviatedKey = func([]byte) uint64 { return 0 }
	backwards.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	backwards.Successor = func(dst, a []byte) []byte { return append(dst, a...) }

	taken := database(t, nil)
	require.NoError(t, taken.Set([]byte{spaceHead, 'x'}, nil, engine.Sync))
	newer := database(t, nil)
	require.NoError(t, newer.Set(keyFormat, []byte{0, 0, 0, 0, 0, 0, 0, formatVersion + 1}, engine.Sync))
	bound := database(t, nil)
	require.NoError(t, mustNew(t, bound, Options{}).Close())
	require.NoError(t, bound.Set(keyBound, []byte("abc"), engine.Sync))

	for _, c := range []struct {
		name string
		db   *engine.DB
		opts Options
		is   error
		says string
	}{
		{"nil", nil, Options{}, rowstore.ErrInvalid, "nil"},
		{"closed", closed, Options{}, rowstore.ErrInvalid, "closed"},
		{"read-only", database(t, func(o *engine.Options) { o.FS, o.ReadOnly = readOnly, true }), Options{}, rowstore.ErrInvalid, "read-only"},
		{"no log", database(t, func(o *engine.Options) { o.DisableWAL = true }), Options{}, rowstore.ErrInvalid, "DisableWAL"},
		{"comparer", database(t, func(o *engine.Options) { o.Comparer = &backwards }), Options{}, rowstore.ErrInvalid, "DefaultComparer"},
		{"path", database(t, nil), Options{Path: "x"}, rowstore.ErrInvalid, "Options.Path"},
		{"memtable", database(t, nil), Options{MemTableSize: minMemTable}, rowstore.ErrInvalid, "Options.MemTableSize"},
		{"cache", database(t, nil), Options{CacheSize: -1}, rowstore.ErrInvalid, "size"},
		{"taken", taken, Options{}, rowstore.ErrFormat, "keys of another kind"},
		{"newer", newer, Options{}, rowstore.ErrFormat, "version 3"},
		{"bound", bound, Options{}, rowstore.ErrCorrupt, "bound"},
	} {
		// Twice: a failed New must not keep the database.
		for range 2 {
			_, err := New(t.Context(), c.db, c.opts)
			require.ErrorIs(t, err, c.is, c.name)
			require.ErrorContains(t, err, c.says, c.name)
		}
	}
}

// A store's oracle does not go back when the store is opened over the same database.
func TestNewKeepsTheOracle(t *testing.T) {
	t.Parallel()
	db := database(t, nil)
	var last oracle.Timestamp
	for i := range 3 {
		s, err := New(t.Context(), db, Options{})
		require.NoError(t, err)
		ts := writeCell(t, s, fmt.Sprint(i), "v")
		require.Greater(t, ts, last)
		last = ts
		require.NoError(t, s.Close())
	}
}

// The program may close its database once a Close has returned, be it the second one.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	db, err := engine.Open("db", &engine.Options{FS: vfs.NewMem(), Logger: quiet{}})
	require.NoError(t, err)
	s, err := New(t.Context(), db, Options{})
	require.NoError(t, err)
	hold, inside := make(chan struct{}), make(chan struct{}, 1)
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	ended := make(chan error, 1)
	go func() {
		ended <- s.Listen(t.Context(), func(rowstore.Wake) {
			inside <- struct{}{}
			<-hold
		})
	}()
	await.Value(t.Context(), t, inside, ended)
	closes := make(chan error, 2)
	for range 2 {
		go func() { closes <- s.Close() }()
	}
	select {
	case err := <-closes:
		require.FailNow(t, "a Close returned before the listener had ended", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	require.NoError(t, await.Value(t.Context(), t, closes, nil))
	require.NoError(t, await.Value(t.Context(), t, closes, nil))
	require.NoError(t, db.Close())
}
