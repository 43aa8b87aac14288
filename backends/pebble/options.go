package pebble

import (
	"fmt"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Options configure Open and New. The zero value of each field is its default.
type Options struct {
	// Path is the store's directory. It is created if it does not exist; its
	// parent must exist. "" keeps the store in memory, and Close drops it. New takes
	// a database instead of a path.
	Path string
	// CacheSize is the memory in bytes for blocks of tables on disk, and the same again
	// at most for the columns that were used last. Neither is taken before there is
	// something to keep in it. Default on disk, and for New: 1/16 of the memory that
	// this process may use (the machine's, the container's limit or GOMEMLIMIT,
	// whichever is least), at least 64 MiB and at most 1 GiB. Default in memory: 64 MiB.
	// For New it is the memory for columns alone: the blocks have the database's cache.
	// Greatest 1 TiB.
	CacheSize int64
	// MemTableSize is the size in bytes of each of the up to four tables in memory
	// that take new data before it is written to sorted files. Default 64 MiB, or a 32nd of
	// the disk if that is less; least 1 MiB, greatest 1 GiB. New takes it from the database.
	MemTableSize int64
	// MinFree is how many bytes a store on disk leaves free for its engine, which would end the
	// process on a full disk. With less left, writes give an error that matches rowstore.ErrFull,
	// and reads go on. Default MemTableSize and 16 MiB more, but at most an eighth of the disk,
	// and at least 8 MiB; greatest 1 PiB. New takes none, since it does not know where the database is.
	MinFree int64
	// MustExist makes Open and New fail where there is no store yet.
	MustExist bool
	// AsIs takes a store as it is: Open and New make none, which is an error that matches
	// rowstore.ErrNoStore, and migrate none, so that one of an older version, or whose migration was cut short, gives an error that
	// matches rowstore.ErrFormat. It is for programs that only look. The engine's own
	// files change as with any opening.
	AsIs bool
	// Clock is the wall clock of the store's oracle. Default time.Now.
	Clock func() time.Time
	// Window is how far ahead the oracle makes its timestamps' bound durable; see
	// kit.BoundedConfig. Default kit.DefaultWindow.
	Window time.Duration
}

const (
	defaultMemTable = 64 << 20
	minMemTable     = 1 << 20
	maxMemTable     = 1 << 30
	maxCache        = 1 << 40
	maxMinFree      = 1 << 50
)

// complete checks the options and fills in the defaults of a store that is on disk or
// in memory.
func (o *Options) complete(inMemory bool) error {
	if strings.ContainsRune(o.Path, 0) {
		return fmt.Errorf("%w: pebble: the path %q has a zero byte", rowstore.ErrInvalid, o.Path)
	}
	if o.CacheSize < 0 || o.MemTableSize < 0 || o.MinFree < 0 {
		return fmt.Errorf("%w: pebble: a size below zero", rowstore.ErrInvalid)
	}
	if o.CacheSize > maxCache || o.MinFree > maxMinFree {
		return fmt.Errorf("%w: pebble: cache size %d is more than %d, or minfree %d is more than %d", rowstore.ErrInvalid, o.CacheSize, int64(maxCache), o.MinFree, int64(maxMinFree))
	}
	if o.CacheSize == 0 {
		o.CacheSize = leastCache
		if !inMemory {
			o.CacheSize = defaultCache(usableMemory())
		}
	}
	if o.MemTableSize == 0 {
		o.MemTableSize = defaultMemTable
	}
	if o.MemTableSize < minMemTable || o.MemTableSize > maxMemTable {
		return fmt.Errorf("%w: pebble: memtable size %d is not between %d and %d",
			rowstore.ErrInvalid, o.MemTableSize, minMemTable, maxMemTable)
	}
	return nil
}

// ParseURL reads the URL of a store:
//
//	pebble:PATH[?parameters]    on disk, in the directory PATH
//	memory:[?parameters]        in memory; each Open makes a store of its own
//
// PATH is taken literally up to the first question mark; pebble:///abs is /abs. The
// parameters:
//
//	cache       Options.CacheSize: bytes, or a number with KB, MB or GB
//	memtable    Options.MemTableSize, the same
//	minfree     Options.MinFree, the same
//	mustexist   Options.MustExist: true or false
//	asis        Options.AsIs: true or false
//
// An error matches rowstore.ErrInvalid and says what is wrong. It quotes nothing of the URL: what was meant
// for another store may have a password in it.
func ParseURL(raw string) (Options, error) {
	var opts Options
	scheme, rest, _ := strings.Cut(raw, ":")
	path, query, _ := strings.Cut(rest, "?")
	bad := func(what string) (Options, error) {
		return Options{}, fmt.Errorf("pebble: the URL: %w: %s", rowstore.ErrInvalid, what)
	}
	switch {
	case scheme != "memory" && scheme != "pebble":
		return bad("the scheme is neither pebble nor memory")
	case scheme == "memory" && strings.Trim(path, "/") != "":
		return bad("memory: takes no name, each Open makes a store of its own")
	case scheme == "memory":
	case path == "":
		return bad("the path is missing; write pebble:PATH")
	case strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///"):
		return bad("what follows // would be a host, but the store is on this machine; write pebble:PATH")
	default:
		opts.Path = strings.TrimPrefix(path, "//")
	}
	p := kit.ParseParams(query)
	opts.CacheSize = p.Size("cache", 0)
	opts.MemTableSize = p.Size("memtable", 0)
	opts.MinFree = p.Size("minfree", 0)
	opts.MustExist = p.Bool("mustexist", false)
	opts.AsIs = p.Bool("asis", false)
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("pebble: the URL: %w", err)
	}
	return opts, nil
}
