// Package boltstore is a backend over bbolt, a database in one file, written to be read: a
// whole row-transactional store, with one-phase commits and wakes, in few lines. What is not
// about bbolt comes from rowstore/kit. docs/backends.md walks through it.
//
// Import it, and the scheme is known:
//
//	import _ "github.com/percolate-go/percolate/examples/boltstore"
//	...
//	db, err := percolator.Open(ctx, "bolt:/var/lib/shop.db")
package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func init() {
	rowstore.Register(func(ctx context.Context, url string) (rowstore.Store, error) {
		s, err := OpenURL(ctx, url)
		if err != nil {
			return nil, err // not s: a nil *Store would be a Store that is not nil
		}
		// Calls that come while one is under way are merged, so that they share a flush.
		return coalesce.New(s, coalesce.Options{}), nil
	}, "bolt")
}

// Options are what a store is opened with.
type Options struct {
	// Path is the file, which is the store's own. Open makes it if it is not there; its folder
	// must exist. New takes a database instead, which may hold more: leave Path empty for it.
	Path string
	// LockTimeout is how long Open waits while another process has the file open. Default 1 s.
	LockTimeout time.Duration
}

// ParseURL reads bolt:PATH, with the optional parameter lock_timeout, such as 5s. The error
// matches rowstore.ErrInvalid.
func ParseURL(url string) (Options, error) {
	path, ok := strings.CutPrefix(url, "bolt:")
	path, query, _ := strings.Cut(path, "?")
	if !ok || path == "" || strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///") { // what follows // would be a host
		return Options{}, fmt.Errorf("bolt: %w: the URL is not bolt:PATH", rowstore.ErrInvalid)
	}
	params := kit.ParseParams(query)
	return Options{Path: path, LockTimeout: params.Duration("lock_timeout", 0)}, params.Err()
}

// OpenURL is Open with the options of a URL; see ParseURL.
func OpenURL(ctx context.Context, url string) (*Store, error) {
	opts, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, opts)
}

// Open opens the store in a file. bbolt knows no contexts, so ctx is looked at before the
// file is opened and after. The error matches rowstore.ErrFormat if the file is no database of
// bbolt, or the store is of a later version (a *rowstore.LayoutError), rowstore.ErrForeign if the database is another
// application's, and rowstore.ErrCorrupt if it is damaged.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(opts.Path, 0o600, &bbolt.Options{Timeout: cmp.Or(opts.LockTimeout, time.Second)})
	if err != nil {
		kind := errors.New("opening the file")
		switch {
		case errors.Is(err, bolterrors.ErrTimeout):
			kind = errors.New("it is in use")
		case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch):
			kind = rowstore.ErrFormat
		case errors.Is(err, bolterrors.ErrChecksum):
			kind = rowstore.ErrCorrupt
		}
		return nil, fmt.Errorf("bolt: open %q: %w: %w", opts.Path, kind, err)
	}
	s, err := New(ctx, db, opts)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	leave := s.release
	s.release = func() error { return errors.Join(db.Close(), leave()) }
	return s, nil
}

// Store is a row-transactional store in a bbolt database. Besides the methods of
// rowstore.Store it is a Grouper, an OracleProvider, a SlotScanner, a Waker, a Limiter and a
// Reporter. Make it with [Open], [OpenURL] or [New]. All methods may be called concurrently.
type Store struct {
	db      *bbolt.DB
	release func() error // gives db up, and closes it if Open opened it
	gate    *kit.Gate    // every call goes through it
	oracle  *kit.BoundedOracle
	turn    kit.Turn    // who has it may change rows
	pending kit.Pending // rows whose commit timestamp is being drawn
	hub     kit.Hub     // those who listen for notifications
}

// The store has one bucket. The kit lays out the rows in it, under keys that begin with r or
// s (or n, in version 1); so there is room for two keys of our own.
var (
	bucket, formatKey, boundKey = []byte("percolator"), []byte("format"), []byte("bound")

	layout, databases = kit.Layout{}, new(kit.Claims[*bbolt.DB]) // databases are those that have a store
)

// version is stored in the database, so that a later version of this package can tell. In
// version 1 the notified rows were not in the order of slots.
const version = 2

// limits keep every key below bbolt.MaxKeySize, 32 KiB, even if each byte of each name is a
// zero, which takes two bytes in a key.
var limits = rowstore.Limits{Table: 1000, Row: 7000, Column: 8000, Value: 1 << 30}

// New opens the store in a database that the caller has open, and leaves open until the
// store is closed. It has a bucket of its own in there. The errors are those of Open; the error
// matches rowstore.ErrForeign if the bucket of that name holds something else.
//
// New refuses nil, a database that has a store open already, for two would hand out the
// same timestamps, and one with NoSync, where a crash loses what was acknowledged. The error
// matches rowstore.ErrInvalid. While the program has a write transaction of its own, the
// store's writes wait for it, whatever their contexts say.
func New(ctx context.Context, db *bbolt.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, fmt.Errorf("bolt: %w: no database", rowstore.ErrInvalid)
	}
	leave, free := databases.Claim(db)
	var bound oracle.Timestamp
	err := db.Update(func(tx *bbolt.Tx) error {
		if theirs, _ := tx.Cursor().First(); opts.Path != "" && theirs != nil && tx.Bucket(bucket) == nil {
			return fmt.Errorf("%w: it has other buckets and no store", rowstore.ErrForeign)
		}
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		first, _ := b.Cursor().First()
		switch made, _ := strconv.Atoi(string(b.Get(formatKey))); { // 0 if it is no number
		case !free:
			return fmt.Errorf("%w: the database has a store open", rowstore.ErrInvalid)
		case db.NoSync:
			return fmt.Errorf("%w: the database has NoSync set: a crash would lose commits", rowstore.ErrInvalid)
		case made < 1 && first != nil:
			return fmt.Errorf("%w: the bucket %q holds something else", rowstore.ErrForeign, bucket)
		case made > version:
			return &rowstore.LayoutError{Store: "the store", Stored: made, Known: version}
		}
		bound, err = kit.DecodeBound(b.Get(boundKey))
		// A program of version 1 must not open the database any more once keys have moved.
		return errors.Join(err, ctx.Err(), b.Put(formatKey, strconv.AppendInt(nil, version, 10)))
	})
	if err == nil {
		err = layout.Upgrade(ctx, func(move func(t kit.Txn) error) error {
			return db.Update(func(tx *bbolt.Tx) error { return move(show(tx)) })
		})
	}
	if err != nil {
		return nil, fmt.Errorf("bolt: open %q: %w", db.Path(), errors.Join(err, leave()))
	}
	s := &Store{db: db, release: leave, gate: kit.NewGate("bolt"), turn: kit.NewTurn()}
	s.oracle = kit.NewBoundedOracle(kit.BoundedConfig{Bound: bound, Persist: s.persist})
	return s, nil
}

// persist stores the bound of the oracle.
func (s *Store) persist(_ context.Context, bound oracle.Timestamp) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(boundKey, kit.EncodeBound(bound)) })
}

// txn shows the rows of a bbolt transaction to the kit: cursors to read by, and the Put and
// Delete of the bucket. bbolt copies the keys that it is given, and needs a value no longer
// than the transaction lasts.
type txn struct {
	kit.CursorReader
	*bbolt.Bucket
}

func show(tx *bbolt.Tx) txn {
	rows := tx.Bucket(bucket)
	return txn{func() kit.Cursor { return rows.Cursor() }, rows}
}

// view runs a read in a transaction, which shows one moment. It must be short and must not
// call strangers' code: a bbolt database that has to grow waits for its readers.
func (s *Store) view(read func(r kit.Reader) error) error {
	return s.db.View(func(tx *bbolt.Tx) error { return read(show(tx)) })
}

// update runs a change in a transaction, with a timestamp for each of the groups, if there
// are any. Unless change says that it changed something, there is nothing to write, and so
// nothing to wait for. When update returns nil, the disk has the change.
func (s *Store) update(ctx context.Context, groups []rowstore.Group, change func(t kit.Txn, first rowstore.Timestamp) (changed bool, err error)) error {
	// The order matters. Once it is our turn, nobody else writes. Readers of the groups' rows
	// wait from before the draw until the change is visible, so that none with a greater
	// timestamp misses it. And the draw comes before the transaction: the oracle may have to
	// store its bound, in a transaction of its own, and bbolt has one at a time.
	release, err := s.turn.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	var first rowstore.Timestamp
	if len(groups) > 0 {
		defer s.pending.Hold(groups...)()
		if first, err = s.oracle.Draw(ctx, len(groups)); err != nil {
			return err
		}
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if changed, err := change(show(tx), first); err != nil || !changed {
		return err
	}
	if err := tx.Commit(); err != nil {
		// It failed before or after the write that counts: only here the outcome is unknown.
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
	}
	return nil
}

// Read implements rowstore.Store.
func (s *Store) Read(ctx context.Context, reads []rowstore.RowRead) (rows []rowstore.Row, err error) {
	err = s.gate.Call(ctx, "read", func(ctx context.Context) error {
		// A group may have its timestamp and not be visible yet: see update.
		if err := s.pending.Rows(ctx, reads); err != nil {
			return err
		}
		return s.view(func(r kit.Reader) error {
			for _, ask := range reads {
				versions, err := layout.Read(r, ask.Table, ask.Row, ask.Selectors)
				rows = append(rows, rowstore.Row{Table: ask.Table, Row: ask.Row, Versions: versions, Err: s.gate.Fail("read", err)})
			}
			return nil
		})
	})
	return rows, err
}

// Apply implements rowstore.Store. The mutations share a transaction, and so a flush; each
// is judged by itself.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) (outs []rowstore.Outcome, err error) {
	err = s.gate.Call(ctx, "apply", func(ctx context.Context) error {
		if err := kit.CheckApply(limits, muts); err != nil {
			return err
		}
		return s.update(ctx, nil, func(t kit.Txn, _ rowstore.Timestamp) (changed bool, err error) {
			outs, changed, err = layout.Apply(t, muts, "")
			return changed, err
		})
	})
	s.hub.Applied(muts, outs) // once too often, if the commit failed, harms nobody
	return outs, err
}

// GroupKey implements rowstore.Grouper: a transaction may change any rows.
func (s *Store) GroupKey(string, string) string { return "bolt" }

// AssignsTimestamps implements rowstore.Grouper. It may be true because readers wait for
// rows that are pending.
func (s *Store) AssignsTimestamps(key string) bool { return key == "bolt" }

// Group implements rowstore.Grouper.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) (outs []rowstore.GroupOutcome, err error) {
	err = s.gate.Call(ctx, "group", func(ctx context.Context) error {
		if err := kit.CheckGroup(s, limits, groups); err != nil {
			return err
		}
		return s.update(ctx, groups, func(t kit.Txn, first rowstore.Timestamp) (changed bool, err error) {
			outs, changed, err = layout.Groups(t, groups, first, "")
			return changed, err
		})
	})
	s.hub.Committed(groups, outs)
	return outs, err
}

// Scan implements rowstore.Store. Each page has a transaction of its own, so that none is
// open while the caller's loop runs.
func (s *Store) Scan(ctx context.Context, whole rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return kit.Pages(ctx, whole, func(ctx context.Context, left rowstore.ScanRange) (rows []rowstore.Row, rest *rowstore.ScanRange, err error) {
		err = s.gate.Call(ctx, "scan", func(ctx context.Context) error {
			if err := s.pending.Range(ctx, left); err != nil {
				return err
			}
			return s.view(func(r kit.Reader) (err error) {
				rows, rest, err = layout.Page(r, left, 256)
				return err
			})
		})
		return rows, rest, err
	})
}

// ScansSlots implements rowstore.SlotScanner: a page of such a scan is one of the kit's, as any.
func (s *Store) ScansSlots() {}

// Tables implements rowstore.Store.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return kit.Names(func() (names []string, err error) {
		err = s.gate.Call(ctx, "tables", func(context.Context) error {
			return s.view(func(r kit.Reader) (err error) {
				names, err = layout.Tables(r)
				return err
			})
		})
		return names, err
	})
}

// Oracle implements rowstore.OracleProvider: timestamps of this process, below a bound that
// the database has.
func (s *Store) Oracle() oracle.Oracle { return s.gate.Oracle(s.oracle) }

// Listen implements rowstore.Waker. One process has the database open, so its own hub knows
// of every notification.
func (s *Store) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	return s.gate.Call(ctx, "listen", func(ctx context.Context) error { return s.hub.Listen(ctx, wake) })
}

// Limits implements rowstore.Limiter.
func (s *Store) Limits() rowstore.Limits { return limits }

// Report implements rowstore.Reporter.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) {
	return rowstore.Report{Backend: "bolt", Layout: version, Features: kit.Features(s, map[string]string{
		rowstore.FeatureDeferred: "bbolt flushes with every transaction",
		rowstore.FeatureSplit:    "bbolt does not know where the middle of a table is",
	})}, s.gate.Call(ctx, "report", func(context.Context) error { return nil })
}

// Close implements rowstore.Store. Calls under way end with an error or finish first. It
// leaves a database open that was given to New.
func (s *Store) Close() error {
	return s.gate.Close(func() error { return errors.Join(s.oracle.Close(context.Background()), s.release()) })
}
