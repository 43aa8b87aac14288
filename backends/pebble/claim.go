package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// The directories and the databases that have a store open in this process: the lock of a
// file does not keep a process from locking it twice.
var (
	claimedDirs      directories
	claimedDatabases kit.Claims[*engine.DB]
)

// directories are told apart by what they are, not by their names: one directory may have several, through links and mounts, in letters of either case,
// and another one once it is moved. Whoever opens the file of the lock a second time, by whatever name, and closes it, takes the lock from the process.
type directories struct {
	mu    sync.Mutex
	taken []fs.FileInfo
}

// claim takes a directory for one store. ok is false while another one has it.
func (d *directories) claim(dir fs.FileInfo) (release func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.taken, func(t fs.FileInfo) bool { return os.SameFile(t, dir) }) {
		return nil, false
	}
	d.taken = append(d.taken, dir)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.taken = slices.DeleteFunc(d.taken, func(t fs.FileInfo) bool { return os.SameFile(t, dir) })
	}, true
}

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
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		return "", nil, nil, fmt.Errorf("%w: no directory can have this path: %w", rowstore.ErrInvalid, err)
	case err != nil:
		return "", nil, nil, err
	case !st.IsDir():
		return "", nil, nil, fmt.Errorf("%w: it is a file, not a directory", rowstore.ErrForeign)
	}
	// The engine goes by names: it is given the one that no link changes.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", nil, nil, err
	}
	if st, err = os.Stat(dir); err != nil {
		return "", nil, nil, err
	}
	leave, ok := claimedDirs.claim(st)
	if !ok {
		return "", nil, nil, fmt.Errorf("%w by this process", ErrInUse)
	}
	lock, err = lockDir(dir, mustExist)
	if err != nil {
		leave()
		return "", nil, nil, err
	}
	return dir, lock, sync.OnceFunc(func() { _ = lock.Close(); leave() }), nil
}

// lockDir locks a directory that this process has claimed, unless it has a reason to refuse it.
func lockDir(dir string, mustExist bool) (lock *engine.Lock, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !engineFile(e.Name()) {
			return nil, fmt.Errorf("%w: the directory has other files, such as %q", rowstore.ErrForeign, e.Name())
		}
	}
	if lock, err = engine.LockDirectory(dir, vfs.Default); err != nil {
		if isBusy(err) {
			return nil, fmt.Errorf("%w by another process (%w)", ErrInUse, err)
		}
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	desc, err := engine.Peek(dir, vfs.Default)
	err = sortError(err)
	if err == nil && mustExist && !desc.Exists {
		err = fmt.Errorf("there is no store in the directory: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
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

// claimDatabase takes a database for one store, after it has checked that a store can
// be in it.
func claimDatabase(db *engine.DB) (release func(), err error) {
	if db == nil {
		return nil, fmt.Errorf("%w: the database is nil", rowstore.ErrInvalid)
	}
	leave, ok := claimedDatabases.Claim(db)
	if !ok {
		return nil, fmt.Errorf("%w: the database has a store open already", ErrInUse)
	}
	if err := checkDatabase(db); err != nil {
		return nil, errors.Join(err, leave())
	}
	return func() { _ = leave() }, nil
}

// checkDatabase refuses a database with options that a store cannot have. It writes no
// key.
func checkDatabase(db *engine.DB) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if e, ok := p.(error); ok && errors.Is(e, engine.ErrClosed) {
			err = fmt.Errorf("%w: the database is closed", rowstore.ErrInvalid)
			return
		}
		// A comparer may panic over keys that are not of its own kind.
		err = fmt.Errorf("%w: the database does not take the store's keys; open it with pebble.DefaultComparer: %v", rowstore.ErrInvalid, p)
	}()
	// The engine refuses a synced write where it has no log; this one adds only to the log.
	switch err := db.LogData(nil, engine.Sync); {
	case errors.Is(err, engine.ErrReadOnly):
		return fmt.Errorf("%w: the database is read-only", rowstore.ErrInvalid)
	case err != nil:
		return fmt.Errorf("%w: the database cannot make a write durable; open it without DisableWAL: %w", rowstore.ErrInvalid, err)
	}
	return checkOrder(db)
}

// checkOrder tries whether the database orders keys of the store by their bytes.
func checkOrder(db *engine.DB) (err error) {
	names := []string{"\x00", "\x00\xff", "\x01", "A", "a", "a\x00", "a\x00b", "aa", "b@1", "b@2", "b/10", "\xff"}
	var keys [][]byte
	for space := byte(spaceMeta); space <= spaceSample; space++ {
		for i, a := range names {
			b := names[len(names)-1-i]
			keys = append(keys, append(appendRow(nil, space, a, b), a...))
			for _, ts := range []rowstore.Timestamp{1, 255, 1 << 40} {
				keys = append(keys, kit.AppendTimestamp(appendColumn(nil, space, b, a, a), ts))
			}
		}
	}
	batch := db.NewIndexedBatch()
	defer func() { err = errors.Join(err, batch.Close()) }()
	for _, k := range keys {
		if err := batch.Set(k, nil, nil); err != nil {
			return err
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	it, err := batch.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	at := 0
	for ok := it.First(); ok; ok = it.Next() {
		if at == len(keys) || !bytes.Equal(it.Key(), keys[at]) {
			break
		}
		at++
	}
	if err := it.Error(); err != nil {
		return err
	}
	if at != len(keys) || it.Valid() {
		return fmt.Errorf("%w: the database does not order keys by their bytes; open it with pebble.DefaultComparer", rowstore.ErrInvalid)
	}
	return nil
}

// refuseForeign refuses the database of another program before anything is changed in it: the engine
// raises the format of what it opens, and writes some of its files anew.
func refuseForeign(dir string, eo engine.Options) error {
	if dir == "" {
		return nil
	}
	desc, err := engine.Peek(dir, eo.FS)
	if err != nil || !desc.Exists {
		return nil //nolint:nilerr // what is wrong with it is found when it is opened
	}
	older := desc.FormatMajorVersion < eo.FormatMajorVersion
	if !older && hasOurOptions(eo.FS, desc.OptionsFilename) {
		return nil // this look reads the whole log, so a store that we have opened before is spared it
	}
	eo.ReadOnly, eo.FormatMajorVersion = true, desc.FormatMajorVersion
	db, err := openEngine(dir, &eo)
	if err != nil {
		if older || errors.Is(err, rowstore.ErrForeign) {
			return err
		}
		return nil // the opening that follows may repair it, or else says the same
	}
	_, ours, err := getMeta(db, keyFormat)
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

// hasOurOptions tells whether a file of options looks like one of engineOptions. Another program may have the same ones by chance.
func hasOurOptions(fsys vfs.FS, path string) bool {
	f, err := fsys.Open(path)
	if err != nil {
		return false
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err = errors.Join(err, f.Close()); err != nil {
		return false
	}
	return bytes.Contains(b, []byte("l0_stop_writes_threshold=1000\n")) && bytes.Contains(b, []byte("index_block_size=262144\n"))
}

// errForeign is for a directory with a database that this package did not make.
var errForeign = fmt.Errorf("%w: a pebble database of another program; take another directory", rowstore.ErrForeign)
