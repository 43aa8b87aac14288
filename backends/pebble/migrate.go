package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Version 1 of the layout had the notifications in the order of rows: its keys of the notify
// space are
//
//	notify   table row column timestamp
//
// and no such key begins like those of version 2 (bySlot), because no table's name is empty.
//
// The migration first raises the version and notes that keys are left to be moved, in one
// batch. From then on a program that knows version 1 alone refuses the store. Then it moves
// keys, each batch whole or not at all. The batch that finds none left removes the note. So
// it can end anywhere, and the next Open goes on.

// keyMoving is there while notifications may have keys of version 1.
var keyMoving = []byte{spaceMeta, 'm', 'o', 'v', 'i', 'n', 'g'}

// moveKeys is how many keys a batch of the migration moves at most. Tests have smaller batches.
var moveKeys = 4096

// moveBytes is the size of a batch of the migration, about.
const moveBytes = 1 << 20

// migrate brings a store of version from to formatVersion, if it is not there yet.
func (s *Store) migrate(ctx context.Context, from uint64) error {
	if from == 1 {
		b := s.db.NewBatch()
		if err := errors.Join(
			b.Set(keyFormat, binary.BigEndian.AppendUint64(nil, formatVersion), nil),
			b.Set(keyMoving, binary.BigEndian.AppendUint64(nil, from), nil),
			b.Commit(s.synced()),
		); err != nil {
			return err
		}
	} else if _, moving, err := getMeta(s.db, keyMoving); err != nil || !moving {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("moving the notifications of version 1 to version %d, which the next Open goes on with: %w", formatVersion, err)
		}
		if moved, err := s.moveNotes(); err != nil || moved == 0 {
			return err
		}
	}
}

// synced is how a write is made durable that the store must not lose.
func (s *Store) synced() *engine.WriteOptions {
	if s.durable {
		return engine.Sync
	}
	return engine.NoSync
}

// moveNotes gives some notifications the keys of version 2, and returns how many.
func (s *Store) moveNotes() (moved int, err error) {
	// Behind the keys of version 2, and before those of a table whose name begins with a
	// zero byte.
	old := &engine.IterOptions{LowerBound: kit.PrefixEnd(bySlot), UpperBound: []byte{spaceNotify + 1}}
	it, err := s.db.NewIter(old)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	b := s.db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	var first, last []byte
	for ok := it.First(); ok && moved < moveKeys && b.Len() < moveBytes; ok = it.Next() {
		if moved++; moved == 1 {
			first = bytes.Clone(it.Key())
		}
		last = append(last[:0], it.Key()...)
		key, err := keyOfVersion2(last)
		if err != nil {
			return 0, err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return 0, err
		}
		if err := b.Set(key, value, nil); err != nil {
			return 0, err
		}
	}
	if err := it.Error(); err != nil {
		return 0, err
	}
	if moved == 0 {
		// The log keeps the order of batches: with this one all others are durable.
		return 0, errors.Join(b.Delete(keyMoving, nil), b.Commit(s.synced()))
	}
	if err := s.room.take(b.Len()); err != nil {
		return 0, err
	}
	defer s.room.give(b.Len())
	return moved, errors.Join(b.DeleteRange(first, append(last, 0), nil), b.Commit(engine.NoSync))
}

// keyOfVersion2 returns the key that a notification has now, for one of version 1.
func keyOfVersion2(key []byte) ([]byte, error) {
	table, rest, err := kit.CutRaw(key[1:])
	var row []byte
	if err == nil {
		row, rest, err = kit.CutRaw(rest)
	}
	if err != nil || len(table) == 0 || len(row) == 0 {
		return nil, corruptKey(key)
	}
	if _, _, err := splitVersion(key, len(key)-len(rest)); err != nil {
		return nil, err
	}
	return append(appendRow(nil, spaceNotify, kit.NameOf(table), kit.NameOf(row)), rest...), nil
}

// errVersion refuses a store of a version that this program does not know.
func errVersion(v uint64) error {
	if v == 0 || v > math.MaxInt32 {
		return fmt.Errorf("%w: it has version %d and this program knows versions 1 to %d", rowstore.ErrFormat, v, formatVersion)
	}
	return layoutError(v)
}

func layoutError(v uint64) error {
	return &rowstore.LayoutError{Store: "the store", Stored: int(v), Known: formatVersion} //nolint:gosec // the caller has looked how great it is
}

// halfDone refuses a store whose migration was cut short.
func halfDone(from uint64, moving bool) error {
	if !moving {
		return nil
	}
	return &rowstore.LayoutError{Store: "the store", Stored: int(from), Known: formatVersion, HalfDone: true} //nolint:gosec // a version
}
