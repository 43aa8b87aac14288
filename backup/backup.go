package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/coreaccess"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Incomplete is what the name of a file has at its end until the backup in it is complete.
const Incomplete = ".incomplete"

// DefaultHold is how long the history of a backup that was cut off is kept, unless Options say otherwise.
const DefaultHold = time.Hour

// Options of Write. The zero value works.
type Options struct {
	// Progress is told how far the backup is, about four times a second and at its end, by one goroutine at a time. Nil
	// tells nobody. It must not block. While a backup that goes on reads what it has written so far, Done is 0.
	Progress func(Progress)
	// Hold is for how long history is kept after a backup was cut off, so for how long it can be resumed. The hold is
	// renewed three times in that time. At least a second; 0 means DefaultHold.
	Hold time.Duration
	// blockBytes is about how long a block is, before it is compressed; 0 means a mebibyte. mostBlock is how long one may be; 0 means the constant.
	// syncEvery is after how many bytes the file is synced; 0 means the constant. disk opens the file.
	blockBytes int
	mostBlock  int
	syncEvery  int64
	disk       func(path string) (diskFile, error)
}

// Progress says how far a backup or a restore is.
type Progress struct {
	Rows, Cells int64 // so far; a cell is a value, an acknowledgment and the like
	Bytes       int64 // of the file so far
	// Done is the part that is done, from 0 to 1, as far as it is known.
	Done  float64
	Ended bool
}

// Result is what a backup or a restore has done.
type Result struct {
	ID          string
	Snapshot    percolator.Timestamp
	Rows, Cells int64
	Bytes       int64 // of the whole file
	Resumed     bool  // it went on where an earlier one was cut off
}

// diskFile is what is asked of a file.
type diskFile interface {
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
	Seek(offset int64, whence int) (int64, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

func openDisk(path string) (diskFile, error) {
	f, _, err := openRegular(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Write backs a database up into the file path, at one snapshot, which is the time when the backup began. Transactions and
// workers go on meanwhile; history is kept for the backup by a hold of the name "backup " and the backup's ID, which is released at the end. One that cannot be
// released then ends by itself, Options.Hold later.
//
// Until it is complete the file is named path with Incomplete behind it. It is synced before it gets its name. If Write is cut off, or fails, call it again with the same
// database and path: it goes on where it was, at the snapshot that it began with, as long as the hold stands. After that it
// returns an error that matches ErrLapsed. No other error but percolator.ErrTooLarge says that the incomplete file is worth nothing. A call that fails before it has written
// anything leaves no file.
//
// Other errors: ErrExists if the file path is there; ErrInUse if another Write of it runs; ErrDamaged if an incomplete file is not as it was written;
// percolator.ErrTooLarge if a row has more than about a GiB, which no backup can hold: then make it smaller, remove the incomplete file and begin anew; percolator.ErrInvalid for bad options, and where the incomplete file is no regular one, as a pipe; those of the file, as of a full disk; those of the database and of ctx.
// One Write of a file may run at a time: a second one is ErrInUse where the file system has locks, as on Linux, macOS and BSD. Of a database, any number may.
// On a share of SMB that Linux mounts, locks keep Write itself out, by an error, unless the share was mounted with nobrl.
func Write(ctx context.Context, db *percolator.DB, path string, opts Options) (Result, error) {
	if db == nil || path == "" {
		return Result{}, invalid("Write needs a database and a path")
	}
	if opts.Hold == 0 {
		opts.Hold = DefaultHold
	}
	if opts.Hold < time.Second || opts.blockBytes < 0 {
		return Result{}, invalid("Hold is %v; it must be at least a second", opts.Hold)
	}
	if opts.blockBytes == 0 {
		opts.blockBytes = 1 << 20
	}
	if opts.mostBlock == 0 {
		opts.mostBlock = mostBlock
	}
	if opts.syncEvery == 0 {
		opts.syncEvery = syncEvery
	}
	if opts.disk == nil {
		opts.disk = openDisk
	}
	if err := free(path); err != nil {
		return Result{}, err
	}
	lock, err := lockFile(path + Incomplete)
	if err != nil {
		return Result{}, err
	}
	defer lock.release()               // when the file has its name
	if err := free(path); err != nil { // the call that had the lock has completed it
		lock.drop()
		return Result{}, err
	}
	f, err := opts.disk(path + Incomplete)
	if err != nil {
		lock.drop()
		return Result{}, err
	}
	w := &writer{db: db, opts: opts, file: f, path: path}
	err = w.run(ctx)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("backup: closing the file: %w", cerr)
	}
	if err == nil {
		err = w.complete(lock)
	}
	if err != nil {
		lock.drop()
		return w.result(), err
	}
	// The name comes first: a call that is cut off in between leaves a hold that ends by itself, and not a file that nobody may name any more.
	_ = w.release(ctx)
	w.tell.end(w.rows, w.cells, w.out.at)
	return w.result(), nil
}

// free returns an error unless no file has the name.
func free(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return fmt.Errorf("%w: %s", ErrExists, path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("backup: looking for the file: %w", err)
	}
	return nil
}

// complete gives the file its name. It must have been synced.
func (w *writer) complete(lock *fileLock) error {
	switch named, err := lock.named(); {
	case err != nil:
		return err
	case !named:
		return fmt.Errorf("backup: somebody has removed the incomplete file: %s", lock.path)
	}
	// A link fails if the name is taken, a rename would replace what has it.
	if err := os.Link(w.path+Incomplete, w.path); err == nil {
		err = os.Remove(w.path + Incomplete)
		if err != nil {
			return fmt.Errorf("backup: removing the name of the incomplete file: %w", err)
		}
	} else if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s; the backup is complete in %s", ErrExists, w.path, w.path+Incomplete)
	} else if err := os.Rename(w.path+Incomplete, w.path); err != nil {
		return fmt.Errorf("backup: naming the file: %w", err)
	}
	d, err := os.Open(filepath.Dir(w.path))
	if err != nil {
		return nil //nolint:nilerr // the name is there; what a folder that cannot be read needs is up to the system
	}
	defer func() { _ = d.Close() }()
	_ = d.Sync() // not every file system has it
	return nil
}

// writer is a Write under way.
type writer struct {
	db   *percolator.DB
	opts Options
	file diskFile
	path string

	head    head
	catalog format.Catalog
	hold    *percolator.Hold // nil if it does not stand any more
	keeper  *keeper
	out     *frames
	old     *reader   // of an incomplete file, behind its head
	lapsed  error     // why old cannot go on, unless it is complete
	resume  blockHead // where to go on: phase 0 for the beginning
	after   string    // in resume.table, the last row that is in the file
	grace   percolator.Timestamp
	rows    int64
	cells   int64
	tables  []string
	tell    teller
	resumed bool
	ended   bool // the file is complete already

	lasting  lastingPlace
	unsynced bool // a sync has failed
	void     bool // the file was cut to nothing, so no other call goes on from it
}

// run makes the file complete. It may leave the hold, which is to be released when the file has its name.
func (w *writer) run(ctx context.Context) error {
	defer w.close()
	if err := w.begin(ctx); err != nil {
		return err
	}
	holding, stop := ctx, func() {}
	if w.lapsed == nil {
		holding, stop = renewing(ctx, w.hold, w.opts.Hold, ErrLapsed, w.erasedSince)
	}
	err := w.goOn(ctx, holding)
	stop()
	if w.void || errors.Is(err, ErrLapsed) || errors.Is(err, errWideRow) { // then no call goes on with it
		err = errors.Join(err, w.release(ctx))
	}
	return err
}

// goOn writes what is left, as long as the hold stands: holding ends with it. A file that is complete already needs none.
func (w *writer) goOn(ctx, holding context.Context) error {
	if w.old != nil {
		if err := w.findResume(ctx); err != nil {
			return err
		}
	}
	if w.ended {
		return nil
	}
	if err := w.write(holding); err != nil {
		if cause := context.Cause(holding); cause != nil && ctx.Err() == nil {
			err = cause
		}
		// What has been written is worth keeping: the next call goes on from there.
		if serr := w.sync(); serr != nil {
			err = fmt.Errorf("%w; %w", err, serr)
		}
		return err
	}
	return nil
}

// close ends what begin has made.
func (w *writer) close() {
	if w.out != nil {
		_ = w.out.zstd.Close()
	}
	if w.old != nil {
		w.old.close()
	}
}

// release releases the hold, although the caller may have been told to stop. A backup that an earlier call has completed may have none any more.
func (w *writer) release(ctx context.Context) error {
	if w.hold == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseFor)
	defer cancel()
	if err := w.hold.Release(ctx); err != nil {
		return fmt.Errorf("its hold %q was not released, and ends by itself: %w", holdName(w.head.ID), err)
	}
	return nil
}

func (w *writer) result() Result {
	r := Result{ID: w.head.ID, Snapshot: w.head.Snapshot, Rows: w.rows, Cells: w.cells, Resumed: w.resumed}
	if w.out != nil {
		r.Bytes = w.out.at
	}
	return r
}

// newID returns random digits.
func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails, by its documentation
	return hex.EncodeToString(id[:])
}

// releaseFor is for how long a hold is tried to be released.
const releaseFor = 10 * time.Second

func holdName(id string) string { return "backup " + id }

// begin places the hold and writes the head, or takes the hold of an earlier call that was cut off.
func (w *writer) begin(ctx context.Context) error {
	w.tell.to = w.opts.Progress
	var err error
	if w.out, err = newFrames(w.file); err != nil {
		return err
	}
	size, err := w.file.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("backup: looking at the file: %w", err)
	}
	if size > 0 {
		err = w.reopen(ctx)
	}
	if err == nil && w.head.ID == "" {
		err = w.beginAnew(ctx)
	}
	if err != nil {
		return err
	}
	if w.catalog, err = format.DecodeCatalog(w.head.Catalog); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	w.keeper = newKeeper(w.db, w.head.Snapshot, &w.catalog)
	return nil
}

func (w *writer) beginAnew(ctx context.Context) error {
	if err := w.rewind(0, sum{}); err != nil {
		return err
	}
	if err := w.snapshot(ctx); err != nil {
		return err
	}
	err := w.out.begin(w.head)
	if err != nil {
		err = w.cannotWrite(err)
	} else {
		err = w.sync()
	}
	if err != nil {
		// Without a whole head no other call goes on from here: it would place a hold of its own, and this one would keep history for nobody.
		return errors.Join(err, w.release(ctx))
	}
	return nil
}

// snapshot places a hold at the present, and finds the catalog as it was then.
func (w *writer) snapshot(ctx context.Context) error {
	w.head.ID = newID()
	for {
		before, err := readCatalog(ctx, w.db)
		if err != nil {
			return err
		}
		if w.hold, err = w.db.Hold(ctx, holdName(w.head.ID), 0, w.opts.Hold); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		after, err := readCatalog(ctx, w.db)
		if err == nil && before.TS == after.TS && after.TS < w.hold.At() {
			c, err := format.DecodeCatalog(after.Value)
			w.head.Snapshot, w.head.Catalog, w.head.Revision, w.head.Oracle = w.hold.At(), after.Value, after.TS, c.Oracle
			if err != nil {
				err = errors.Join(fmt.Errorf("backup: %w", err), w.release(ctx))
			}
			return err
		}
		// The catalog was changed at about the time of the snapshot.
		if err := errors.Join(err, w.release(ctx)); err != nil {
			return err
		}
	}
}

// readCatalog returns the newest version of the catalog.
func readCatalog(ctx context.Context, db *percolator.DB) (*rowstore.Version, error) {
	rows, err := coreaccess.Stored.Store(db).Read(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
	}}})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return nil, fmt.Errorf("backup: reading the catalog: %w", err)
	}
	v := rows[0].Newest(rowstore.Write, format.ColumnConfig)
	if v == nil {
		return nil, fmt.Errorf("backup: reading the catalog: %w: it is gone", percolator.ErrCorrupt)
	}
	v.Value, _ = format.RaiseCatalog(v.Value)
	return v, nil
}

// renewing renews a hold three times in its ttl, until stop is called. The context that it returns ends when the hold does, for a cause that matches lapsed, and when
// still, which is asked at each renewal and may be nil, returns an error that matches lapsed.
func renewing(ctx context.Context, hold *percolator.Hold, ttl time.Duration, lapsed error, still func(context.Context) error) (holding context.Context, stop func()) {
	holding, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		every := time.NewTicker(ttl / 3)
		defer every.Stop()
		for {
			select {
			case <-holding.Done():
				return
			case <-every.C:
			}
			// After another error the next renewal may come in time.
			if err := hold.Renew(holding, ttl); errors.Is(err, percolator.ErrHoldEnded) {
				cancel(fmt.Errorf("%w: %w", lapsed, err))
				return
			}
			if still == nil {
				continue
			}
			if err := still(holding); errors.Is(err, lapsed) {
				cancel(err)
				return
			}
		}
	}()
	return holding, func() {
		cancel(nil)
		<-done
	}
}

// changed lists the observers of the snapshot that are not registered any more.
func (w *writer) changed(ctx context.Context) ([]percolator.Timestamp, error) {
	now, err := readCatalog(ctx, w.db)
	if err != nil {
		return nil, err
	}
	c, err := format.DecodeCatalog(now.Value)
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	var gone []percolator.Timestamp
	for _, o := range w.catalog.Observers {
		if !slices.ContainsFunc(c.Observers, func(n format.Observer) bool {
			return n.Since == o.Since && n.Is(string(o.Name), string(o.Table), string(o.Column))
		}) {
			gone = append(gone, o.Since)
		}
	}
	return gone, nil
}

// erasedSince returns an error if a range was erased since the snapshot: some of its rows may be missing in what was read. What tells is the
// call when everything was read, or when something was missing; those before it, when a backup goes on and at each renewal of the hold, spare the work that would be for nothing. The hold keeps the safe points of tables below the snapshot, so the range is still listed.
func (w *writer) erasedSince(ctx context.Context) error {
	rows, err := coreaccess.Stored.Store(w.db).Read(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnErased, To: oracle.Max, Limit: 1},
	}}})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return fmt.Errorf("backup: reading the erased ranges: %w", err)
	}
	v := rows[0].Newest(rowstore.Write, format.ColumnErased)
	if v == nil {
		return nil
	}
	erased, err := format.DecodeErased(v.Value)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	for i := range erased.Ranges {
		if r := &erased.Ranges[i]; r.SafePoint > w.head.Snapshot {
			table, _ := format.Unescape(string(r.Table))
			return fmt.Errorf("%w: rows of table %q were erased meanwhile", ErrLapsed, table)
		}
	}
	return nil
}

// teller tells of progress, but not all the time.
type teller struct {
	to   func(Progress)
	last time.Time
}

func (t *teller) progress(rows, cells, bytes int64, done float64) {
	if t.to == nil || time.Since(t.last) < 250*time.Millisecond {
		return
	}
	t.last = time.Now()
	t.to(Progress{Rows: rows, Cells: cells, Bytes: bytes, Done: min(max(done, 0), 1)})
}

func (t *teller) end(rows, cells, bytes int64) {
	if t.to != nil {
		t.to(Progress{Rows: rows, Cells: cells, Bytes: bytes, Done: 1, Ended: true})
	}
}
