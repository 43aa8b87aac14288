package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/dgraph-io/badger/v4"
	"go.etcd.io/bbolt"
)

// badgerTransfer is the transfer as a transaction of badger, which has snapshots
// and conflict detection of its own.
type badgerTransfer struct {
	db   *badger.DB
	rows int
	size int
}

func (s *badgerTransfer) Name() string { return "badger v4, SyncWrites" }
func (s *badgerTransfer) Peer() string { return "badger" }

func (s *badgerTransfer) Prepare(_ context.Context, cfg Config) error {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	options := badger.DefaultOptions(filepath.Join(cfg.Dir, "transfer-badger")).WithSyncWrites(true).WithLogger(nil)
	db, err := badger.Open(options)
	if err != nil {
		return err
	}
	s.db = db
	batch := db.NewWriteBatch()
	defer batch.Cancel()
	for i := range cfg.Rows {
		if err := batch.Set([]byte(rowName(i)), value(1000, s.size)); err != nil {
			return err
		}
	}
	return batch.Flush()
}

func (s *badgerTransfer) Op(ctx context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	from, to := []byte(rowName(a)), []byte(rowName(b))
	for {
		err := s.db.Update(func(tx *badger.Txn) error {
			x, err := badgerNumber(tx, from)
			if err != nil {
				return err
			}
			y, err := badgerNumber(tx, to)
			if err != nil {
				return err
			}
			if err := tx.Set(from, value(x-1, s.size)); err != nil {
				return err
			}
			return tx.Set(to, value(y+1, s.size))
		})
		if !errors.Is(err, badger.ErrConflict) {
			return err
		}
		w.Conflicts++
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func badgerNumber(tx *badger.Txn, key []byte) (n int64, err error) {
	item, err := tx.Get(key)
	if err != nil {
		return 0, err
	}
	err = item.Value(func(b []byte) (err error) {
		n, err = number(b)
		return err
	})
	return n, err
}

func (s *badgerTransfer) Close() error {
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// bboltTransfer is the transfer as a transaction of bbolt, which has one writer
// at a time. Batch merges the transactions of concurrent callers, as its users do
// when they write much.
type bboltTransfer struct {
	db   *bbolt.DB
	rows int
	size int
}

var bboltBucket = []byte("bench")

func (s *bboltTransfer) Name() string { return "bbolt, Batch" }
func (s *bboltTransfer) Peer() string { return "bbolt" }

func (s *bboltTransfer) Prepare(_ context.Context, cfg Config) error {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	db, err := bbolt.Open(filepath.Join(cfg.Dir, "transfer-bbolt"), 0o600, nil)
	if err != nil {
		return err
	}
	s.db = db
	// With 10 ms, the default, few callers wait longer for company than for the disk.
	db.MaxBatchDelay = time.Millisecond
	for from := 0; from < s.rows; from += 20 * fillBatch {
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bboltBucket)
			if err != nil {
				return err
			}
			for i := from; i < min(s.rows, from+20*fillBatch); i++ {
				if err := b.Put([]byte(rowName(i)), value(1000, s.size)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *bboltTransfer) Op(_ context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	from, to := []byte(rowName(a)), []byte(rowName(b))
	return s.db.Batch(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bboltBucket)
		x, err := number(bucket.Get(from))
		if err != nil {
			return err
		}
		y, err := number(bucket.Get(to))
		if err != nil {
			return err
		}
		if err := bucket.Put(from, value(x-1, s.size)); err != nil {
			return err
		}
		return bucket.Put(to, value(y+1, s.size))
	})
}

func (s *bboltTransfer) Close() error {
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// barePebble reads a key and writes it in a batch, without any protocol: the least
// that an in-memory pebble can do for the same bytes.
type barePebble struct {
	db   *pebble.DB
	rows int
	size int
}

func (s *barePebble) Name() string { return "pebble, Get and batch commit" }
func (s *barePebble) Peer() string { return "pebble" }

func (s *barePebble) Prepare(_ context.Context, cfg Config) error {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}})
	if err != nil {
		return err
	}
	s.db = db
	for i := range cfg.Rows {
		if err := db.Set(bareKey(i), value(1000, s.size), pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}

// bareKey holds the same names as the cell that percolator writes.
func bareKey(i int) []byte {
	c := cell(i)
	return fmt.Appendf(nil, "%s/%s/%s", c.Table, c.Row, c.Column)
}

func (s *barePebble) Op(_ context.Context, w *Caller) error {
	key := bareKey(w.row(s.rows))
	b, closer, err := s.db.Get(key)
	if err != nil {
		return err
	}
	n, err := number(b)
	if err := errors.Join(err, closer.Close()); err != nil {
		return err
	}
	batch := s.db.NewBatch()
	if err := batch.Set(key, value(n+1, s.size), nil); err != nil {
		return err
	}
	// In memory a sync makes nothing more durable: not to wait for one is the
	// harder peer.
	if err := batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	return batch.Close()
}

func (s *barePebble) Close() error {
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// quiet keeps pebble's own log out of the report.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
