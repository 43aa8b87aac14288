package kit

import (
	"bytes"
	"context"
	"iter"
)

// Cursor walks over keys in byte order, as those of bbolt and LMDB do. Each method moves it
// and returns what is there, or a nil key where nothing is.
type Cursor interface {
	// Seek moves to the first key at or behind the given one.
	Seek(key []byte) (k, v []byte)
	// Next moves to the next key, Prev to the one before, and Last to the last of all.
	Next() (k, v []byte)
	Prev() (k, v []byte)
	Last() (k, v []byte)
}

// CursorReader makes a [Reader] of a function that opens a cursor in a transaction. A
// database whose cursors return errors implements Reader itself.
type CursorReader func() Cursor

// Ascend implements Reader.
func (open CursorReader) Ascend(from, to []byte, visit func(key, value []byte) bool) error {
	c := open()
	k, v := c.Seek(from)
	for k != nil && (to == nil || bytes.Compare(k, to) < 0) && visit(k, v) {
		k, v = c.Next()
	}
	return nil
}

// Descend implements Reader.
func (open CursorReader) Descend(from, to []byte, visit func(key, value []byte) bool) error {
	c := open()
	var k, v []byte
	if to != nil {
		k, _ = c.Seek(to)
	}
	// That is the first key behind the range, or none.
	if k != nil {
		k, v = c.Prev()
	} else {
		k, v = c.Last()
	}
	for k != nil && bytes.Compare(k, from) >= 0 && visit(k, v) {
		k, v = c.Prev()
	}
	return nil
}

// Turn is a lock that one caller has at a time, and for which a caller waits no longer than
// its context lasts: for a database whose transactions wait for each other and know no
// contexts. Make it with NewTurn.
type Turn chan struct{}

// NewTurn returns a Turn that nobody has.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn. The caller calls release once, to hand it on. The error is the
// context's, if that ends first.
func (t Turn) Take(ctx context.Context) (release func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Names makes a rowstore.Store's Tables of a function that lists them all. An error that
// list returns is yielded last.
func Names(list func() ([]string, error)) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := list()
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}
