package combine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// ErrMerge is matched by the errors of values that cannot be merged: the merge function has returned an error, which these match
// too, or has panicked. Nothing was written.
var ErrMerge = errors.New("combine: the values cannot be merged")

// Merge puts two values together. It may change and return its first argument; it must neither change nor keep the
// second one. It must be commutative and associative. It is called concurrently, and may be called more than once for the same
// values. An error, or a panic, fails the call that needs the values, with ErrMerge.
type Merge[T any] func(into, more T) (T, error)

// Sum is the Merge of numbers that are added up. A sum that its type cannot hold is an error, also one of some of a value's parts when that of all would fit: parts are
// merged in any order. Of positive and negative numbers such a sum may be far from the value. So take a type that holds the sum of all that is ever added, and of all that is
// ever taken off, each for itself: int64, mostly.
func Sum[T typed.Integer](into, more T) (T, error) {
	sum := into + more
	if (more > 0 && sum < into) || (more < 0 && sum > into) {
		return 0, fmt.Errorf("the sum does not fit into %T", sum) // it does not tell the values: errors go into logs
	}
	return sum, nil
}

// Max is the Merge that keeps the greatest.
func Max[T typed.Integer | ~string | ~float64](into, more T) (T, error) { return max(into, more), nil }

// Min is the Merge that keeps the least.
func Min[T typed.Integer | ~string | ~float64](into, more T) (T, error) { return min(into, more), nil }

// Options change a Combiner. The zero value is what most need.
type Options struct {
	// Idle is how many idle cells a value may have before an Add combines them. Default 16. More make combining
	// cheaper, and Get read more rows. 1,024 cells, or 8 MiB of them, are combined in any case. A negative number is percolator.ErrInvalid.
	Idle int
}

const (
	// A cell that was written within freshFor is written again; one that was not within idleAfter may be combined. What lies
	// between is the longest transaction that meets nobody who combines.
	freshFor  = 5 * time.Second
	idleAfter = 10 * time.Second
	// looksFor: of so many transactions that make a cell one looks for idle ones.
	looksFor = 8
	// combinesFor is how long the looks of a transaction that adds may hold it up, all together.
	combinesFor = time.Second
	// combineMost cells, or combineBytes of their values, are what one transaction combines at most.
	combineMost  = 1024
	combineBytes = 8 << 20
)

// ownLevel is the isolation of transactions that combine, whatever the DB's default is. Each of them writes all that it has gone by: the base and the cells that it removes. Serializable
// would let every addition end it, so that a busy value is never combined.
var ownLevel = percolator.WithIsolation(percolator.SnapshotIsolation)

// Combiner is the values of one table, named by strings. All its methods may be called concurrently, though those of one transaction only one after the
// other, since a percolator.Txn is for one goroutine at a time. Combiners of one DB and table share what
// they need to stay out of each other's way, so a program may make several, also with different options.
type Combiner[T any] struct {
	db    *percolator.DB
	table string
	codec typed.Codec[T]
	merge Merge[T]
	idle  int

	freshFor, idleAfter time.Duration // constant, but for tests
	looksFor            uint64
	most, mostBytes     int

	slots   *slots
	batches batches[T]
}

// New makes a Combiner for a table that nothing else uses. It neither reads nor writes. The codec stores the parts of
// values; one that stores versions (typed.Versions) may change while programs run. A nil db, codec or merge and
// an empty table are percolator.ErrInvalid.
func New[T any](db *percolator.DB, table string, codec typed.Codec[T], merge Merge[T]) (*Combiner[T], error) {
	return NewWithOptions(db, table, codec, merge, Options{})
}

// NewWithOptions is New with options.
func NewWithOptions[T any](db *percolator.DB, table string, codec typed.Codec[T], merge Merge[T], opt Options) (*Combiner[T], error) {
	invalid := ""
	switch {
	case db == nil:
		invalid = "the database is nil"
	case table == "":
		invalid = "the table's name is empty"
	case codec == nil:
		invalid = "the codec is nil"
	case merge == nil:
		invalid = "the merge function is nil"
	case opt.Idle < 0:
		invalid = fmt.Sprintf("Options.Idle is %d; it may not be negative", opt.Idle)
	}
	if invalid != "" {
		return nil, fmt.Errorf("combine: New: %w: %s", percolator.ErrInvalid, invalid)
	}
	if opt.Idle == 0 {
		opt.Idle = 16
	}
	return &Combiner[T]{
		db: db, table: table, codec: codec, merge: merge, idle: opt.Idle, slots: shareSlots(db, table),
		freshFor: freshFor, idleAfter: idleAfter, looksFor: looksFor, most: combineMost, mostBytes: combineBytes,
	}, nil
}

// Columns. A value's base is a cell of its own row, and each of its slots has two cells in a row.
const baseColumn = "base"

var slotColumns = [2]string{"a", "b"}

// value is how all rows of a value begin; it is the row of its base.
func value(key string) keys.Key { return keys.Key("").Text(key) }

// Range is the range of all rows of the value of a key. It is for percolator.DB.Erase: the key has no value then, as if nobody had ever added to it. Do not
// write to these rows.
func (c *Combiner[T]) Range(key string) percolator.Range { return value(key).Range(c.table) }

func (c *Combiner[T]) baseCell(key string) percolator.Cell {
	return percolator.Cell{Table: c.table, Row: string(value(key)), Column: baseColumn}
}

// Add merges delta into the value of key, as a part of tx: it takes effect if tx commits. Adds of different transactions never conflict,
// however many add to the same value, and however old their snapshots are. A transaction that lasts for 5 seconds may conflict with one that combines. Errors: those of tx's reads and of Set, percolator.ErrReadOnly in a View; ErrMerge; those of the
// codec. After an error nothing was added, and tx may go on without it.
func (c *Combiner[T]) Add(ctx context.Context, tx *percolator.Txn, key string, delta T) error {
	if err := c.add(ctx, tx, key, delta); err != nil {
		return fmt.Errorf("combine: adding to %q of table %q: %w", key, c.table, err)
	}
	return nil
}

func (c *Combiner[T]) add(ctx context.Context, tx *percolator.Txn, key string, delta T) error {
	found, err := c.look(ctx, tx, key)
	if err != nil {
		return err
	}
	return c.addTo(ctx, tx, key, found, []T{delta})
}

// found is what a transaction finds in its slot.
type found struct {
	start  percolator.Timestamp // of the transaction
	cell   percolator.Cell      // where it adds
	made   bool                 // the cell is not there
	stored []byte
}

// look reads the slot of a transaction. It is all that an addition reads.
func (c *Combiner[T]) look(ctx context.Context, tx *percolator.Txn, key string) (f found, err error) {
	slot, err := c.slots.of(ctx, tx)
	if err != nil {
		return f, err
	}
	var cells [len(slotColumns)]percolator.Cell
	for i, column := range slotColumns {
		cells[i] = percolator.Cell{Table: c.table, Row: string(value(key).Uint(uint64(slot))), Column: column}
	}
	stored, err := tx.GetMany(ctx, cells[:]...)
	if err != nil {
		return f, err
	}
	if f.start, err = tx.StartTimestamp(ctx); err != nil {
		return f, err
	}
	f.cell, f.made, err = c.choose(cells, stored, f.start)
	f.stored = stored[f.cell]
	return f, err
}

// addTo merges deltas into what was found.
func (c *Combiner[T]) addTo(ctx context.Context, tx *percolator.Txn, key string, f found, deltas []T) (err error) {
	b, cell, start := f.stored, f.cell, f.start
	if f.made {
		// The first one is decoded again if there are others: merge may change its first argument, which is the caller's.
		if b, err = c.encode(ctx, cell, start, deltas[0]); err != nil {
			return err
		}
		deltas = deltas[1:]
	}
	if len(deltas) > 0 {
		sum, err := c.decode(ctx, cell, b)
		if err != nil {
			return err
		}
		for _, delta := range deltas {
			if sum, err = c.merged(sum, delta); err != nil {
				return err
			}
		}
		if b, err = c.encode(ctx, cell, start, sum); err != nil {
			return err
		}
	}
	if err := tx.Set(cell, b); err != nil {
		return err
	}
	if f.made && looks(start, key)%c.looksFor == 0 {
		// It may fail for what is no fault of this transaction's, or take too long: it reads rows of other servers. Get and Combine tell of it.
		c.slots.look(ctx, tx, func(ctx context.Context) { _, _ = c.combine(ctx, key, c.idle) })
	}
	return nil
}

// choose returns which of a slot's cells a transaction writes that began at start: the one that was written lately; else one that is not
// there, so that it is made; else the younger one.
func (c *Combiner[T]) choose(cells [len(slotColumns)]percolator.Cell, stored map[percolator.Cell][]byte, start percolator.Timestamp) (cell percolator.Cell, made bool, err error) {
	var youngest percolator.Timestamp
	absent := -1
	for i := range cells {
		b, found := stored[cells[i]]
		if !found {
			absent = i
			continue
		}
		at, _, err := split(cells[i], b)
		if err != nil {
			return cell, false, err
		}
		if at >= youngest {
			youngest, cell = at, cells[i]
		}
	}
	if absent >= 0 && (youngest == 0 || start.Sub(youngest) >= c.freshFor) {
		return cells[absent], true, nil
	}
	return cell, false, nil
}

// Get returns the value of key at the snapshot of tx, with what tx itself has added. If nobody has added anything, the error
// matches percolator.ErrNotFound. It is one scan, of all parts of the value. Errors: those of tx's scans; ErrMerge; those of
// the codec, which name the cell.
func (c *Combiner[T]) Get(ctx context.Context, tx *percolator.Txn, key string) (T, error) {
	var sum T
	found := false
	for p, err := range c.parts(ctx, tx, key) {
		if err == nil {
			var v T
			if v, err = c.decode(ctx, p.cell, p.stored); err == nil && found {
				v, err = c.merged(sum, v)
			}
			sum, found = v, true
		}
		if err != nil {
			var none T
			return none, fmt.Errorf("combine: reading %q of table %q: %w", key, c.table, err)
		}
	}
	if !found {
		return sum, fmt.Errorf("combine: %w: %q of table %q", percolator.ErrNotFound, key, c.table)
	}
	return sum, nil
}

// Combine merges the idle cells of key into its base, in transactions of its own, so that Get reads fewer rows. Nothing changes for
// readers. It is not needed: Add does it now and then. It returns how many cells it has removed. If somebody else combines
// the same value, it returns without an error. Errors: those of Update; ErrMerge; those of the codec. What was not combined is
// left as it was.
func (c *Combiner[T]) Combine(ctx context.Context, key string) (removed int, err error) {
	for {
		n, err := c.combine(ctx, key, 1)
		removed += n.removed
		if err != nil {
			return removed, fmt.Errorf("combine: combining %q of table %q: %w", key, c.table, err)
		}
		if !n.more {
			return removed, nil
		}
	}
}

// combined is what a transaction has combined.
type combined struct {
	removed int
	more    bool // it took as much as one may, so others may be left
}

// combine merges idle cells into the base if there are at least least, or more than one transaction takes. If they are more than the program lets
// a transaction write (percolator.Limits), it tries again with half of them.
func (c *Combiner[T]) combine(ctx context.Context, key string, least int) (combined, error) {
	for most := c.most; ; {
		n, taken, err := c.combineMost(ctx, key, least, most)
		if !errors.Is(err, percolator.ErrTooLarge) || taken <= 1 {
			return n, err
		}
		most = taken / 2
	}
}

// combineMost is combine of so many cells at most. taken is how many there were, also if it failed.
func (c *Combiner[T]) combineMost(ctx context.Context, key string, least, most int) (n combined, taken int, err error) {
	err = c.db.Update(ctx, func(tx *percolator.Txn) error {
		n = combined{}
		idle, full, err := c.idleParts(ctx, tx, key, most)
		taken = len(idle)
		if err != nil || len(idle) < least && !full {
			return err
		}
		base := c.baseCell(key)
		var sum T
		first := true
		switch b, err := tx.Get(ctx, base); {
		case errors.Is(err, percolator.ErrNotFound):
		case err != nil:
			return err
		default:
			if sum, err = c.decode(ctx, base, b); err != nil {
				return err
			}
			first = false
		}
		for _, p := range idle {
			v, err := c.decode(ctx, p.cell, p.stored)
			if err == nil && !first {
				v, err = c.merged(sum, v)
			}
			if err == nil {
				err = tx.Delete(p.cell)
			}
			if err != nil {
				return err
			}
			sum, first = v, false
		}
		start, err := tx.StartTimestamp(ctx)
		if err != nil {
			return err
		}
		b, err := c.encode(ctx, base, start, sum)
		if err != nil {
			return err
		}
		n = combined{len(idle), full}
		return tx.Set(base, b)
	}, ownLevel, percolator.WithMaxAttempts(1))
	switch {
	case errors.Is(err, percolator.ErrConflict):
		return combined{}, taken, nil // somebody else combines, or adds to one of the cells
	case err != nil:
		return combined{}, taken, err
	}
	return n, taken, nil
}

// idleParts are cells of slots that nobody has written lately, so many at most. full tells that they are as much as one transaction combines.
func (c *Combiner[T]) idleParts(ctx context.Context, tx *percolator.Txn, key string, most int) (idle []part, full bool, err error) {
	bytes := 0
	for p, err := range c.parts(ctx, tx, key) {
		if err != nil {
			return nil, false, err
		}
		start, err := tx.StartTimestamp(ctx) // the scan has drawn it
		if err != nil {
			return nil, false, err
		}
		at, _, err := split(p.cell, p.stored)
		if err != nil {
			return nil, false, err
		}
		if p.cell.Column != baseColumn && start.Sub(at) >= c.idleAfter {
			idle = append(idle, p)
			bytes += len(p.stored)
		}
		if len(idle) == most || bytes >= c.mostBytes {
			return idle, true, nil
		}
	}
	return idle, false, nil
}

// part is a cell of a value, as stored.
type part struct {
	cell   percolator.Cell
	stored []byte
}

// parts visits the cells of a value, its base first.
func (c *Combiner[T]) parts(ctx context.Context, tx *percolator.Txn, key string) func(yield func(part, error) bool) {
	return func(yield func(part, error) bool) {
		for row, err := range tx.Scan(ctx, value(key).Range(c.table)) {
			if err != nil {
				yield(part{}, err)
				return
			}
			for _, column := range [...]string{baseColumn, slotColumns[0], slotColumns[1]} {
				b, found := row.Columns[column]
				if !found {
					continue
				}
				if !yield(part{percolator.Cell{Table: c.table, Row: row.Key, Column: column}, b}, nil) {
					return
				}
			}
		}
	}
}

// valueError is an error of the codec or of the merge function.
type valueError struct{ err error }

func (e *valueError) Error() string { return e.err.Error() }
func (e *valueError) Unwrap() error { return e.err }

// What is stored is a byte for the format, the start timestamp of the transaction that wrote it, and what the codec made.
const (
	storedFormat = 1
	headBytes    = 9
)

func split(cell percolator.Cell, stored []byte) (at percolator.Timestamp, encoded []byte, err error) {
	switch {
	case len(stored) < headBytes:
		return 0, nil, &valueError{fmt.Errorf("%v: %w: %d bytes are no part of a value", cell, typed.ErrDecode, len(stored))}
	case stored[0] != storedFormat:
		return 0, nil, &valueError{fmt.Errorf("%v: %w: the part is of format %d", cell, typed.ErrVersion, stored[0])}
	}
	return percolator.Timestamp(binary.BigEndian.Uint64(stored[1:])), stored[headBytes:], nil
}

func (c *Combiner[T]) decode(ctx context.Context, cell percolator.Cell, stored []byte) (T, error) {
	_, encoded, err := split(cell, stored)
	if err != nil {
		var none T
		return none, err
	}
	v, err := guarded("the codec", func() (T, error) { return c.codec.Decode(ctx, cell, encoded) })
	if err != nil {
		return v, &valueError{fmt.Errorf("decoding %v: %w", cell, err)}
	}
	return v, nil
}

func (c *Combiner[T]) encode(ctx context.Context, cell percolator.Cell, at percolator.Timestamp, v T) ([]byte, error) {
	encoded, err := guarded("the codec", func() ([]byte, error) { return c.codec.Encode(ctx, cell, v) })
	if err != nil {
		return nil, &valueError{fmt.Errorf("encoding for %v: %w", cell, err)}
	}
	b := make([]byte, 0, headBytes+len(encoded))
	b = append(b, storedFormat)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	return append(b, encoded...), nil
}

// merged calls the merge function.
func (c *Combiner[T]) merged(into, more T) (T, error) {
	v, err := guarded("the merge function", func() (T, error) { return c.merge(into, more) })
	if err != nil {
		return v, &valueError{fmt.Errorf("%w: %w", ErrMerge, err)}
	}
	return v, nil
}

// guarded calls a function of the user's. A panic becomes an error: AddNow must not end the program for the value of one caller.
func guarded[V any](whose string, f func() (V, error)) (v V, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", whose, p)
		}
	}()
	return f()
}

// looks decides whether an addition looks for idle cells. The key has a part in it, so that of a transaction's keys neither all are looked at nor none. The bits are mixed, most
// of which stay the same for a while.
func looks(start percolator.Timestamp, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	high, low := bits.Mul64(uint64(start)^h.Sum64(), 0x9e3779b97f4a7c15)
	return high ^ low
}
