package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// formatVersion is the version of the layout of keys and values that this code
// writes. A store of version 1 is migrated (migrate.go), and one of another is refused.
const formatVersion = 2

var (
	keyFormat = []byte{spaceMeta, 'f', 'o', 'r', 'm', 'a', 't'}
	keyBound  = []byte{spaceMeta, 'b', 'o', 'u', 'n', 'd'}
)

// readMeta checks the format, or writes it into a new store, and returns the
// oracle's durable bound. It migrates a store of an older format. With asIs it does
// neither.
func (s *Store) readMeta(ctx context.Context, mustExist, asIs bool) (oracle.Timestamp, error) {
	v, ok, err := getMeta(s.db, keyFormat)
	switch {
	case err != nil:
		return 0, err
	case !ok:
		err := s.writeFormat(mustExist || asIs)
		if asIs && errors.Is(err, fs.ErrNotExist) {
			err = rowstore.ErrNoStore
		}
		return 0, err
	case v == 0 || v > formatVersion:
		return 0, errVersion(v)
	case asIs && v != formatVersion:
		return 0, layoutError(v)
	case asIs:
		// To go on with a migration would change the store, and without it notifications are missing.
		if from, moving, err := getMeta(s.db, keyMoving); err != nil || moving {
			return 0, errors.Join(err, halfDone(from, moving))
		}
	}
	bound, _, err := getMeta(s.db, keyBound)
	if err == nil && oracle.Timestamp(bound) > oracle.Max {
		err = fmt.Errorf("%w: the stored bound of the timestamps is %d", rowstore.ErrCorrupt, bound)
	}
	if err == nil {
		// A store that is refused is left as it is, so this comes last.
		err = s.migrate(ctx, v)
	}
	return oracle.Timestamp(bound), err
}

// writeFormat makes a new store, unless its keys hold something else.
func (s *Store) writeFormat(mustExist bool) error {
	var bounds *engine.IterOptions // a database of the store's own has no other keys at all
	if s.borrows {
		bounds = &engine.IterOptions{LowerBound: []byte{spaceMeta}, UpperBound: []byte{spaceSample + 1}}
	}
	it, err := s.db.NewIter(bounds)
	if err != nil {
		return err
	}
	some := it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return err
	}
	switch {
	case some && s.borrows:
		return fmt.Errorf("%w: the database has keys of another kind that begin with the bytes 0x%02x to 0x%02x, which the store would take",
			rowstore.ErrForeign, spaceMeta, spaceSample)
	case some:
		return errForeign
	case mustExist:
		return fmt.Errorf("there is no store in the database: %w", fs.ErrNotExist)
	}
	return s.db.Set(keyFormat, binary.BigEndian.AppendUint64(nil, formatVersion), s.synced())
}

// getMeta reads the number under a key of the meta space.
func getMeta(db *engine.DB, key []byte) (uint64, bool, error) {
	v, c, err := db.Get(key)
	if errors.Is(err, engine.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer c.Close()
	if len(v) != 8 {
		return 0, false, fmt.Errorf("%w: the value of %q has %d bytes", rowstore.ErrCorrupt, key[1:], len(v))
	}
	return binary.BigEndian.Uint64(v), true, nil
}

// persistBound stores the oracle's bound.
func (s *Store) persistBound(ctx context.Context, bound oracle.Timestamp) error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	if err := s.syncs.turn(ctx); err != nil {
		return err
	}
	batch := s.db.NewBatch()
	err := batch.Set(keyBound, binary.BigEndian.AppendUint64(nil, uint64(bound)), nil)
	if err == nil {
		err = s.room.takeBound(batch.Len())
	}
	if err != nil {
		_ = batch.Close()
		s.syncs.over()
		return err
	}
	return s.commit(batch).wait(ctx)
}
