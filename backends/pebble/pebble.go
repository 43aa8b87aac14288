package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func init() { rowstore.Register(openURL, "pebble", "memory") }

// formatVersion is the version of the layout of keys and values that this code
// writes. A store with another one is refused.
const formatVersion = 1

// engineFormat fixes the engine's own format, so that an update of the engine does
// not change stores silently.
const engineFormat = engine.FormatValueSeparation

var (
	keyFormat = []byte{spaceMeta, 'f', 'o', 'r', 'm', 'a', 't'}
	keyBound  = []byte{spaceMeta, 'b', 'o', 'u', 'n', 'd'}
)

// Errors of Open.
var (
	// ErrLocked says that the path is open already, in this process or another.
	ErrLocked = errors.New("pebble: the store is in use")
	// ErrFormat says that the directory holds something else than a store that
	// this version can read.
	ErrFormat = errors.New("pebble: not a store of a known format")
)

// Options configure Open. The zero value of each field but Path is its default.
type Options struct {
	// Path is the store's directory. It is created if it does not exist; its
	// parent must exist. "" keeps the store in memory, and Close drops it.
	Path string
	// CacheSize is the memory in bytes for blocks of tables on disk, and the same again
	// at most for the columns that were used last. Neither is taken before there is
	// something to keep in it. Default on disk: 1/16 of the memory that this process
	// may use (the machine's, the container's limit or GOMEMLIMIT, whichever is least),
	// at least 64 MiB and at most 1 GiB. Default in memory: 64 MiB.
	CacheSize int64
	// MemTableSize is the size in bytes of each of the up to four tables in memory
	// that take new data before it is written to sorted files. Default 64 MiB, least
	// 1 MiB, greatest 1 GiB.
	MemTableSize int64
	// MustExist makes Open fail where there is no store yet.
	MustExist bool
	// Clock is the wall clock of the store's oracle. Default time.Now.
	Clock func() time.Time
	// Window is how far ahead the oracle makes its timestamps' bound durable; see
	// oracle.BoundedConfig. Default oracle.DefaultWindow.
	Window time.Duration
}

const (
	defaultMemTable = 64 << 20
	minMemTable     = 1 << 20
	maxMemTable     = 1 << 30
)

// Store is a row-transactional store in this process, on disk or in memory. It
// implements rowstore.Store, Grouper (with Draw), OracleProvider, Splitter,
// Waker, Limiter and Reporter. It is no Deferrer: a client of an embedded store
// dies with it, and a commit is one Group and so one flush already.
//
// Methods honour their context while they wait for the disk to confirm a write.
// The waits for another call on the same row are short, and do not look at it.
type Store struct {
	db   *engine.DB
	path string // "" in memory
	seed maphash.Seed

	// life is held for reading by each call, for writing by Close.
	life   sync.RWMutex
	closed bool
	ending chan struct{} // closed when Close begins, to end Listen
	listen sync.WaitGroup

	stripes   [stripeCount]stripe
	perStripe int // buckets of the cache of heads that each stripe has, a power of two

	// gate orders scans after commits. A group draws its timestamp before its
	// batch is visible, and a batch is visible before it is registered as one that
	// is not durable yet. Each holds the gate for reading from before the first to
	// after the last of these steps; who holds it for writing sees every write below
	// any timestamp that was drawn before, and knows what is not durable.
	gate sync.RWMutex

	syncs *syncer // nil in memory

	oracle *oracle.Bounded
	wakes  wakers
	notes  notes

	release func() // gives the path back
	failure atomic.Pointer[error]
}

var (
	_ rowstore.Store          = (*Store)(nil)
	_ rowstore.Grouper        = (*Store)(nil)
	_ rowstore.OracleProvider = (*Store)(nil)
	_ rowstore.Splitter       = (*Store)(nil)
	_ rowstore.Waker          = (*Store)(nil)
	_ rowstore.Limiter        = (*Store)(nil)
	_ rowstore.Reporter       = (*Store)(nil)
)

// stripeCount is a power of two. Rows share a stripe by the hash of their names.
const stripeCount = 4096

// stripe guards the rows that hash to it.
type stripe struct {
	// mu is held for reading while a row is read, and for writing from before the
	// conditions are judged until the batch is visible. A group draws its timestamp
	// meanwhile, so a reader that has a greater one finds the write or waits.
	mu sync.RWMutex
	// unsynced is the newest batch that changed a row of the stripe; it may be
	// durable by now. Guarded by mu.
	unsynced *commit
	// buckets are the stripe's part of the cache of heads, nil until its first entry.
	buckets atomic.Pointer[[]bucket]
	_       [64 - 24 - 8 - 8]byte
}

func (s *Store) stripe(table, row string) uint32 {
	h := maphash.String(s.seed, row) + 31*maphash.String(s.seed, table)
	return uint32(h) & (stripeCount - 1)
}

// Open opens the store in the directory opts.Path, or a new one in memory. ctx
// covers the opening alone; recovery after a crash is not interrupted by it.
//
// It returns an error that matches ErrLocked when the path is open already, here
// or in another process, ErrFormat when the directory holds something else or a
// newer format, ErrCorrupt when what it holds is damaged, rowstore.ErrInvalid for
// bad options, and the errors of the file system (fs.ErrNotExist for a missing
// parent, fs.ErrPermission). Each names the path.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts.CacheSize < 0 || opts.MemTableSize < 0 {
		return nil, fmt.Errorf("%w: pebble: a size below zero", rowstore.ErrInvalid)
	}
	if opts.CacheSize == 0 {
		opts.CacheSize = leastCache
		if opts.Path != "" {
			opts.CacheSize = defaultCache(usableMemory())
		}
	}
	if opts.MemTableSize == 0 {
		opts.MemTableSize = defaultMemTable
	}
	if opts.MemTableSize < minMemTable || opts.MemTableSize > maxMemTable {
		return nil, fmt.Errorf("%w: pebble: memtable size %d is not between %d and %d",
			rowstore.ErrInvalid, opts.MemTableSize, minMemTable, maxMemTable)
	}
	if opts.Path == "" {
		return open(opts, "", vfs.NewMem(), nil, func() {})
	}
	dir, lock, release, err := claim(opts.Path, opts.MustExist)
	if err != nil {
		return nil, fmt.Errorf("pebble: open %q: %w", opts.Path, err)
	}
	s, err := open(opts, dir, vfs.Default, lock, release)
	if err != nil {
		release()
		return nil, fmt.Errorf("pebble: open %q: %w", opts.Path, err)
	}
	return s, nil
}

func open(opts Options, dir string, fsys vfs.FS, lock *engine.Lock, release func()) (_ *Store, err error) {
	cache := engine.NewCache(opts.CacheSize)
	defer cache.Unref()
	eo := &engine.Options{
		Cache:                       cache,
		FS:                          fsys,
		Lock:                        lock,
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
	if err := refuseForeign(dir, *eo); err != nil {
		return nil, err
	}
	db, err := openEngine(dir, eo)
	if err != nil {
		return nil, err
	}
	s := &Store{
		db:        db,
		path:      dir,
		seed:      maphash.MakeSeed(),
		perStripe: cacheBuckets(opts.CacheSize),
		ending:    make(chan struct{}),
		release:   release,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	bound, err := s.readMeta()
	if err != nil {
		return nil, err
	}
	if err := s.loadNotes(); err != nil {
		return nil, err
	}
	cfg := oracle.BoundedConfig{Bound: bound, Clock: opts.Clock, Window: opts.Window}
	if dir != "" {
		cfg.Persist = s.persistBound
		s.syncs = newSyncer(s.fail)
	}
	s.oracle = oracle.NewBounded(cfg)
	s.wakes.init()
	return s, nil
}

// openEngine opens the engine. A panic over damaged files is an error too.
func openEngine(dir string, eo *engine.Options) (db *engine.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, p)
		}
	}()
	db, err = engine.Open(dir, eo)
	return db, sortError(err)
}

// refuseForeign refuses the database of another program before anything is changed in it: the engine
// raises the format of what it opens, and the other program might not know the new one.
func refuseForeign(dir string, eo engine.Options) error {
	if dir == "" {
		return nil
	}
	desc, err := engine.Peek(dir, eo.FS)
	if err != nil || !desc.Exists || desc.FormatMajorVersion >= eo.FormatMajorVersion {
		return nil //nolint:nilerr // what is wrong with it is found when it is opened
	}
	eo.ReadOnly, eo.FormatMajorVersion = true, desc.FormatMajorVersion
	db, err := openEngine(dir, &eo)
	if err != nil {
		return err
	}
	s := &Store{db: db}
	_, ours, err := s.getMeta(keyFormat)
	some := false
	if it, ierr := db.NewIter(nil); ierr != nil {
		err = errors.Join(err, ierr)
	} else {
		some = it.First()
		err = errors.Join(err, it.Error(), it.Close())
	}
	if err = errors.Join(err, db.Close()); err == nil && some && !ours {
		err = errForeign
	}
	return err
}

// errForeign is for a directory with a database that this package did not make.
var errForeign = fmt.Errorf("%w: a pebble database of another program", ErrFormat)

// sortError tells apart the engine's errors about a directory: those of the file
// system stay as they are, the others say that it does not understand what it read.
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
	case strings.Contains(err.Error(), "format major version"), strings.Contains(err.Error(), "comparer name"):
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// readMeta checks the format, or writes it into a new store, and returns the
// oracle's durable bound.
func (s *Store) readMeta() (oracle.Timestamp, error) {
	v, ok, err := s.getMeta(keyFormat)
	switch {
	case err != nil:
		return 0, err
	case !ok:
		it, err := s.db.NewIter(nil)
		if err != nil {
			return 0, err
		}
		some := it.First()
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			return 0, err
		}
		if some {
			return 0, errForeign
		}
		o := engine.Sync
		if s.path == "" {
			o = engine.NoSync
		}
		return 0, s.db.Set(keyFormat, binary.BigEndian.AppendUint64(nil, formatVersion), o)
	case v != formatVersion:
		return 0, fmt.Errorf("%w: it has version %d and this program knows %d", ErrFormat, v, formatVersion)
	}
	v, _, err = s.getMeta(keyBound)
	if err == nil && oracle.Timestamp(v) > oracle.Max {
		err = fmt.Errorf("%w: the stored bound of the timestamps is %d", ErrCorrupt, v)
	}
	return oracle.Timestamp(v), err
}

func (s *Store) getMeta(key []byte) (uint64, bool, error) {
	v, c, err := s.db.Get(key)
	if errors.Is(err, engine.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer c.Close()
	if len(v) != 8 {
		return 0, false, fmt.Errorf("%w: the value of %q has %d bytes", ErrCorrupt, key[1:], len(v))
	}
	return binary.BigEndian.Uint64(v), true, nil
}

// persistBound stores the oracle's bound.
func (s *Store) persistBound(ctx context.Context, bound oracle.Timestamp) error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	batch := s.db.NewBatch()
	if err := batch.Set(keyBound, binary.BigEndian.AppendUint64(nil, uint64(bound)), nil); err != nil {
		return err
	}
	return s.commit(batch).wait(ctx)
}

// claimed holds the directories that are open in this process, because the lock of
// a file does not keep a process from locking it twice.
var claimed = struct {
	sync.Mutex
	dirs map[string]bool
}{dirs: map[string]bool{}}

// claim makes sure that path is a directory that a store is or may be in, and
// takes it for this process. The lock and the release belong together.
func claim(path string, mustExist bool) (dir string, lock *engine.Lock, release func(), err error) {
	if dir, err = filepath.Abs(path); err != nil {
		return "", nil, nil, err
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && mustExist:
		return "", nil, nil, fmt.Errorf("there is no store: %w", err)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			return "", nil, nil, fmt.Errorf("its parent directory: %w", err)
		}
		if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", nil, nil, err
		}
	case err != nil:
		return "", nil, nil, err
	case !st.IsDir():
		return "", nil, nil, fmt.Errorf("%w: it is a file, not a directory", ErrFormat)
	}
	// One directory has one name among those claimed, whatever links lead there.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", nil, nil, err
	}
	claimed.Lock()
	defer claimed.Unlock()
	if claimed.dirs[dir] {
		return "", nil, nil, fmt.Errorf("%w by this process", ErrLocked)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, nil, err
	}
	for _, e := range entries {
		if !engineFile(e.Name()) {
			return "", nil, nil, fmt.Errorf("%w: the directory has other files, such as %q", ErrFormat, e.Name())
		}
	}
	if lock, err = engine.LockDirectory(dir, vfs.Default); err != nil {
		if isBusy(err) {
			return "", nil, nil, fmt.Errorf("%w by another process (%w)", ErrLocked, err)
		}
		return "", nil, nil, fmt.Errorf("lock the directory: %w", err)
	}
	desc, err := engine.Peek(dir, vfs.Default)
	err = sortError(err)
	if err == nil && mustExist && !desc.Exists {
		err = fmt.Errorf("there is no store in the directory: %w", fs.ErrNotExist)
	}
	if err != nil {
		return "", nil, nil, errors.Join(err, lock.Close())
	}
	claimed.dirs[dir] = true
	var once sync.Once
	return dir, lock, func() {
		once.Do(func() {
			claimed.Lock()
			defer claimed.Unlock()
			_ = lock.Close()
			delete(claimed.dirs, dir)
		})
	}, nil
}

// isBusy tells whether the lock was refused because another process has it. Else
// the file could not be opened, and the error says with which path.
func isBusy(err error) bool {
	var p *fs.PathError
	return !errors.As(err, &p)
}

// engineFile tells whether a file can be the engine's, which may have left some
// behind when its first start was cut short.
func engineFile(name string) bool {
	for _, p := range []string{"LOCK", "CURRENT", "MANIFEST-", "OPTIONS-", "marker.", "lost+found", "REMOTE-OBJ-CATALOG"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	for _, p := range []string{".log", ".sst", ".blob", ".dbtmp", ".tmp"} {
		if strings.HasSuffix(name, p) {
			return true
		}
	}
	return false
}

// quiet is the engine's logger: the engine's notes are of no use to a program that
// embeds it. It ends the process only where the engine demands it.
type quiet struct{ dir string }

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (q quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("pebble: the store %q cannot go on: %s", q.dir, fmt.Sprintf(format, args...)))
}

// openURL opens pebble:PATH?parameters and memory:?parameters. The README lists
// the parameters.
func openURL(ctx context.Context, raw string) (rowstore.Store, error) {
	opts, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func parseURL(raw string) (Options, error) {
	var opts Options
	scheme, rest, _ := strings.Cut(raw, ":")
	path, query, _ := strings.Cut(rest, "?")
	bad := func(format string, args ...any) (Options, error) {
		return Options{}, fmt.Errorf("%w: URL %q: %s", rowstore.ErrInvalid, raw, fmt.Sprintf(format, args...))
	}
	switch {
	case scheme == "memory" && strings.Trim(path, "/") != "":
		return bad("memory: takes no name, each Open makes a store of its own")
	case scheme == "memory":
	case path == "":
		return bad("the path is missing; it is pebble:PATH")
	case strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///"):
		return bad("after // comes the name of a host, and the store is on this one; it is pebble:PATH")
	default:
		opts.Path = strings.TrimPrefix(path, "//")
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return bad("%v", err)
	}
	for name, values := range params {
		value := values[len(values)-1]
		var err error
		switch name {
		case "cache":
			opts.CacheSize, err = parseSize(value)
		case "memtable":
			opts.MemTableSize, err = parseSize(value)
		case "mustexist":
			opts.MustExist, err = strconv.ParseBool(value)
		default:
			return bad("unknown parameter %q (known: cache, memtable, mustexist)", name)
		}
		if err != nil {
			return bad("parameter %s: %v", name, err)
		}
	}
	return opts, nil
}

// parseSize reads a number of bytes with an optional unit: KB, MB and GB are
// powers of 1024.
func parseSize(s string) (int64, error) {
	// Its length may change: bytes that are no UTF-8 grow.
	upper := strings.ToUpper(s)
	digits := strings.TrimRight(upper, "KMGIB")
	shift, ok := map[string]uint{
		"": 0, "B": 0, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30,
	}[upper[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size such as 64MB", s)
	}
	return n << shift, nil
}

// enter begins a call; leave ends it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return rowstore.ErrClosed
	}
	if p := s.failure.Load(); p != nil {
		s.life.RUnlock()
		return *p
	}
	return nil
}

func (s *Store) leave() { s.life.RUnlock() }

// fail ends the service of the store: after a write could not be made durable,
// what is in memory may show more than the disk will ever have.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("pebble: %q: a write failed, open the store again: %w", s.path, err)
	s.failure.CompareAndSwap(nil, &err)
	return err
}

// Oracle implements rowstore.OracleProvider: an oracle in this process whose
// bound is stored along with the rows.
func (s *Store) Oracle() oracle.Oracle { return s.oracle }

// Close implements rowstore.Store. Calls under way finish first, but for Listen,
// which ends. Everything was durable already, so a process may end without it.
func (s *Store) Close() error {
	s.life.Lock()
	if s.closed {
		s.life.Unlock()
		return nil
	}
	s.closed = true
	close(s.ending)
	s.life.Unlock()
	s.listen.Wait()
	err := s.oracle.Close(context.Background())
	if s.syncs != nil {
		s.syncs.close()
	}
	err = errors.Join(err, s.db.Close())
	s.release()
	if err != nil {
		return fmt.Errorf("pebble: close %q: %w", s.path, err)
	}
	return nil
}
