package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func init() { rowstore.Register(OpenURL, "pebble", "memory") }

// engineFormat fixes the engine's own format, so that an update of the engine does
// not change stores silently.
const engineFormat = engine.FormatValueSeparation

// ErrInUse says that the path, or the database, is open as a store already, in this
// process or another. Open and New return it.
var ErrInUse = errors.New("pebble: the store is in use")

// OpenURL opens the store that a URL names; [ParseURL] has the grammar. ctx is as in
// [Open]. Errors are those of ParseURL and of Open.
func OpenURL(ctx context.Context, url string) (*Store, error) {
	opts, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, opts)
}

// Open opens the store in the directory opts.Path, or a new one in memory. ctx
// covers the opening alone; recovery after a crash is not interrupted by it. A store of an
// older version is migrated. If that is cut short, the next Open goes on with it.
//
// It returns an error that matches
//   - ErrInUse if the path is open already, here or in another process;
//   - rowstore.ErrFormat if the directory holds a store or a database of a version that this
//     program does not know;
//   - rowstore.ErrForeign, and so rowstore.ErrFormat, if it holds something else;
//   - rowstore.ErrCorrupt if what it holds is damaged;
//   - rowstore.ErrInvalid for bad options, and for a path that no directory can have;
//   - rowstore.ErrNoStore if there is no store and opts.AsIs is set;
//   - rowstore.ErrFull if the disk has no room for what the engine has to write; in this process
//     the path may be in use until there is room;
//   - rowstore.ErrDenied if the process may not use the directory (and fs.ErrPermission), or its file system is
//     read-only;
//   - the errors of the file system (fs.ErrNotExist for a missing parent, and where opts.MustExist is set and there is no store, as in memory).
//
// Each names the path.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sized := opts.MemTableSize != 0
	if err := opts.complete(opts.Path == ""); err != nil {
		return nil, err
	}
	if opts.Path == "" {
		if opts.AsIs {
			return nil, fmt.Errorf("pebble: open memory: %w: a store in memory begins empty", rowstore.ErrNoStore)
		}
		if opts.MustExist {
			return nil, fmt.Errorf("pebble: open memory: a store in memory begins empty: %w", fs.ErrNotExist)
		}
		return open(ctx, opts, "", vfs.NewMem(), nil, func() {})
	}
	if opts.AsIs {
		// The claim would leave a file in an empty directory.
		entries, err := os.ReadDir(opts.Path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
			return nil, fmt.Errorf("pebble: open %q: %w", opts.Path, rowstore.ErrNoStore)
		}
	}
	dir, lock, release, err := claim(opts.Path, opts.MustExist || opts.AsIs)
	if opts.AsIs && errors.Is(err, fs.ErrNotExist) {
		err = rowstore.ErrNoStore
	}
	if err != nil {
		return nil, fmt.Errorf("pebble: open %q: %w", opts.Path, withKind(err))
	}
	if !sized {
		opts.MemTableSize = memTableOn(vfs.Default, dir)
	}
	s, err := open(ctx, opts, dir, vfs.Default, lock, release)
	if err != nil {
		if !errors.As(err, new(*openingError)) {
			release()
		}
		return nil, fmt.Errorf("pebble: open %q: %w", opts.Path, withKind(err))
	}
	return s, nil
}

// withKind says of an error of the file system what kind it is, if it is one of a kind.
func withKind(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", rowstore.ErrDenied, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: the store needs a file system that it may write to: %w", rowstore.ErrDenied, err)
	case (vfs.IsNoSpaceError(err) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, rowstore.ErrFull):
		return fmt.Errorf("%w: make room on the disk: %w", rowstore.ErrFull, err)
	}
	return err
}

// New opens a store in a database that the program has opened, and makes it if the
// database has none. Close leaves the database open. The store takes the keys that
// begin with the bytes 0x01 to 0x06; see the package's documentation for what holds
// for them. It takes Path and MemTableSize from the database, and does not look at the
// room on its disk, so these options and MinFree must be left out; CacheSize is for
// columns alone.
//
// What the store needs of the database's pebble.Options:
//   - Comparer is pebble.DefaultComparer, which is the default. New tries whether the
//     store's keys are in order.
//   - DisableWAL is off and ReadOnly too. New checks both.
//   - The file system keeps what it confirmed that it synced, else a crash can lose
//     what the store acknowledged. New cannot check this.
//   - Logger.Fatalf ends the process or panics, as the default does. The engine calls
//     it when it cannot write its log. New cannot check this.
//
// Any Merger, cache, event listener and format version will do. A bloom filter
// (bloom.FilterPolicy(10) in each of Levels) makes reads of absent cells cheaper.
//
// Close the store before the database: a call of a store whose database is closed
// panics, as every call of a closed database does.
//
// It returns an error that matches
//   - rowstore.ErrInvalid if the database is nil, closed, read-only, without a log, or
//     orders keys differently, and for bad options;
//   - ErrInUse if the database has a store open already;
//   - rowstore.ErrFormat if the database has a store of a version that this program does not know;
//   - rowstore.ErrForeign, and so rowstore.ErrFormat, if keys of the store's range hold something else;
//   - rowstore.ErrCorrupt if what the store holds is damaged;
//   - fs.ErrNotExist if the database has no store and opts.MustExist is set;
//   - rowstore.ErrNoStore if it has none and opts.AsIs is set.
//
// ctx covers the opening alone. A store of an older version is migrated as by Open.
func New(ctx context.Context, db *engine.DB, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts.Path != "" || opts.MemTableSize != 0 || opts.MinFree != 0 {
		return nil, fmt.Errorf("%w: pebble: New takes the path and the size of the memtables from the database; leave Options.Path, Options.MemTableSize and Options.MinFree out",
			rowstore.ErrInvalid)
	}
	if err := opts.complete(false); err != nil {
		return nil, err
	}
	release, err := claimDatabase(db)
	if err != nil {
		return nil, fmt.Errorf("pebble: open a store in a database: %w", err)
	}
	s, err := openIn(ctx, db, opts, home{name: "the store in the program's database", durable: true, borrows: true, release: release})
	if err != nil {
		release()
		return nil, fmt.Errorf("pebble: open a store in a database: %w", err)
	}
	return s, nil
}

// open opens the database in a directory, "" in memory, and the store in it. It needs
// complete options. release is not called if it fails, but for an openingError, which calls it in the end.
func open(ctx context.Context, opts Options, dir string, fsys vfs.FS, lock *engine.Lock, release func()) (*Store, error) {
	cache := engine.NewCache(opts.CacheSize)
	defer cache.Unref()
	eo := engineOptions(opts, dir)
	eo.Cache, eo.FS, eo.Lock = cache, fsys, lock
	if err := refuseForeign(dir, *eo); err != nil {
		return nil, err
	}
	h := home{name: "the store in memory", release: release}
	if dir != "" {
		h.name, h.durable = fmt.Sprintf("%q", dir), true
		if h.room = newRoom(fsys, dir, opts.MinFree, opts.MemTableSize); h.room != nil {
			eo.FS = roomFS{fsys, h.room}
		}
	}
	db, err := openUnlessFull(dir, eo, release)
	if err != nil {
		return nil, err
	}
	s, err := openIn(ctx, db, opts, h)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// engineOptions are the engine's options for a database that Open opens.
func engineOptions(opts Options, dir string) *engine.Options {
	eo := &engine.Options{
		FormatMajorVersion:          engineFormat,
		Logger:                      quiet{dir},
		MemTableSize:                uint64(opts.MemTableSize),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                1000,
		// Nothing in memory outlives the process, so there is nothing to log for.
		DisableWAL: dir == "",
		CompactionConcurrencyRange: func() (int, int) {
			return 1, max(1, min(4, runtime.GOMAXPROCS(0)))
		},
	}
	if dir == "" {
		// Nothing is written to a disk that compression would save.
		eo.ApplyCompressionSettings(func() engine.DBCompressionSettings { return engine.DBCompressionNone })
	}
	for i := range eo.Levels {
		eo.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		// The index of a file in one block: with the engine's 4 KiB, a Get in a large
		// store goes through two levels of index blocks in each file.
		eo.Levels[i].IndexBlockSize = 256 << 10
	}
	return eo
}

// openIn opens the store in a database. It leaves the database open if it fails.
func openIn(ctx context.Context, db *engine.DB, opts Options, h home) (*Store, error) {
	s := &Store{
		db:        db,
		home:      h,
		seed:      maphash.MakeSeed(),
		perStripe: cacheBuckets(opts.CacheSize),
		life:      kit.NewGate("pebble"),
		aheadRows: aheadRows,
	}
	bound, err := s.readMeta(ctx, opts.MustExist && s.borrows, opts.AsIs)
	if err != nil {
		return nil, err
	}
	if err := s.loadNotes(); err != nil {
		return nil, err
	}
	cfg := kit.BoundedConfig{Bound: bound, Clock: opts.Clock, Window: opts.Window}
	if s.durable {
		cfg.Persist = s.persistBound
		s.syncs = newSyncer(s.fail, s.room)
	}
	s.oracle = kit.NewBoundedOracle(cfg)
	return s, nil
}

// openingError says that the disk is full, and that the engine goes on opening its files as soon as there is room. Then they are closed.
type openingError struct{ error }

func (e *openingError) Unwrap() error { return e.error }

// fullFor is for how long the engine may find the disk full until openUnlessFull looks whether it still does.
const fullFor = 2 * time.Second

// openUnlessFull opens the engine. With no room to write down what its log has, the engine tries without end, and nothing
// can stop it.
func openUnlessFull(dir string, eo *engine.Options, release func()) (*engine.DB, error) {
	type result struct {
		db  *engine.DB
		err error
	}
	full, opened := make(chan error, 1), make(chan result, 1)
	eo.EventListener = &engine.EventListener{BackgroundError: func(err error) {
		if vfs.IsNoSpaceError(err) {
			select {
			case full <- err:
			default:
			}
		}
	}}
	go func() {
		db, err := openEngine(dir, eo)
		opened <- result{db, err}
	}()
	r, err := awaitOpening(opened, full, func() <-chan time.Time { return time.After(fullFor) })
	if err == nil {
		return r.db, r.err
	}
	go func() {
		if r := <-opened; r.err == nil {
			_ = r.db.Close()
		}
		release()
	}()
	return nil, &openingError{fmt.Errorf("%w: nothing is lost; make room on the disk: %w", rowstore.ErrFull, err)}
}

// awaitOpening waits until the files are open, or the engine finds the disk full after it did so for a while. full gets each time that it does.
func awaitOpening[T any](opened <-chan T, full <-chan error, later func() <-chan time.Time) (r T, err error) {
	select {
	case r = <-opened:
		return r, nil
	case <-full:
	}
	select {
	case r = <-opened:
		return r, nil
	case <-later():
	}
	// Somebody may have made room meanwhile. Only an attempt that began from now on shows that nobody did: one failure may have waited
	// in the channel, and the next may be of an attempt that was under way.
	for range 3 {
		select {
		case r = <-opened:
			return r, nil
		case err = <-full:
		}
	}
	return r, err
}

// openEngine opens the engine. A panic over damaged files, or over a full disk, is an error too.
func openEngine(dir string, eo *engine.Options) (db *engine.DB, err error) {
	defer func() {
		p := recover()
		switch {
		case p == nil:
		case strings.Contains(fmt.Sprint(p), syscall.ENOSPC.Error()):
			err = fmt.Errorf("%w: make room on the disk: %v", rowstore.ErrFull, p)
		default:
			err = fmt.Errorf("%w: %v", rowstore.ErrCorrupt, p)
		}
	}()
	db, err = engine.Open(dir, eo)
	return db, sortError(err)
}

// sortError tells apart the engine's errors about a directory: those of the file system
// stay as they are, and the others mean that it does not understand what it read.
func sortError(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	var call *os.SyscallError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrCorruption):
	case errors.As(err, &path), errors.As(err, &link), errors.As(err, &call):
		return err
	case strings.Contains(err.Error(), "comparer name"), strings.Contains(err.Error(), "merger name"):
		// Each store has the engine's own.
		return fmt.Errorf("%w (%w)", errForeign, err)
	case strings.Contains(err.Error(), "format major version"):
		return fmt.Errorf("%w: %w", rowstore.ErrFormat, err)
	}
	return fmt.Errorf("%w: %w", rowstore.ErrCorrupt, err)
}

// quiet is the engine's logger. It drops the engine's notes, which say nothing to a program
// that embeds the store, and panics where the engine asks for the end of the process.
type quiet struct{ dir string }

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (q quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("pebble: the store %q cannot go on: %s", q.dir, fmt.Sprintf(format, args...)))
}
