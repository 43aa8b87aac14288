package once

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

// Options of Keys.
type Options struct {
	// Keep is how long an answer is kept, from the beginning of the transaction that made it. It must be at least a millisecond, and
	// longer than anybody repeats a call.
	Keep time.Duration
}

// Keys are the keys of one table, with answers of type T. All its methods may be called concurrently.
type Keys[T any] struct {
	db    *percolator.DB
	table string
	codec typed.Codec[T]
	keep  time.Duration

	lookEvery uint64 // constant, but for tests
}

const (
	column    = "answer"
	lookEvery = 16  // of so many calls that write one looks for what has ended
	lookAt    = 128 // rows
)

// New makes Keys for a table that nothing else uses. It neither reads nor writes. A nil db or codec, an empty table and an
// Options.Keep below a millisecond are percolator.ErrInvalid.
func New[T any](db *percolator.DB, table string, codec typed.Codec[T], opt Options) (*Keys[T], error) {
	invalid := ""
	switch {
	case db == nil:
		invalid = "the database is nil"
	case table == "":
		invalid = "the table's name is empty"
	case codec == nil:
		invalid = "the codec is nil"
	case opt.Keep < time.Millisecond:
		invalid = fmt.Sprintf("Options.Keep is %v; it must be at least 1 ms", opt.Keep)
	}
	if invalid != "" {
		return nil, fmt.Errorf("once: New: %w: %s", percolator.ErrInvalid, invalid)
	}
	return &Keys[T]{db: db, table: table, codec: codec, keep: opt.Keep, lookEvery: lookEvery}, nil
}

// Range is the range of the one row of a key, with its answer or claim. It is for percolator.DB.Erase: the key is as one that was never used then, so
// a call that is repeated takes effect again. The rows of several keys lie in no order, so each one must be known. Do not write to it.
func (k *Keys[T]) Range(key string) percolator.Range { return row(key).Range(k.table) }

func (k *Keys[T]) cell(key string) percolator.Cell {
	return percolator.Cell{Table: k.table, Row: string(row(key)), Column: column}
}

// row is that of a key. A hash comes first, so that the rows lie in no order of the keys.
func row(key string) keys.Key {
	return place(mix(hash(key))).Text(key)
}

func hash(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return h.Sum64()
}

// place is where the rows of a hash begin.
func place(hash uint64) keys.Key {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(hash)) //nolint:gosec // the low half is what is wanted
	return keys.Key("").Bytes(b[:])
}

// mix spreads the bits of a number over all of them.
func mix(n uint64) uint64 {
	high, low := bits.Mul64(n, 0x9e3779b97f4a7c15)
	return high ^ low
}

// ErrClaimed is matched by the errors of calls for a key that somebody else has claimed; see ClaimedError.
var ErrClaimed = errors.New("once: the key is claimed")

// ClaimedError says until when a key is claimed, by the oracle's time. It matches ErrClaimed.
type ClaimedError struct {
	Key   string
	Until time.Time
}

func (e *ClaimedError) Error() string {
	return fmt.Sprintf("%v: %q, until %v", ErrClaimed, e.Key, e.Until.UTC().Format(time.RFC3339Nano))
}

// Is makes errors.Is(err, ErrClaimed) hold.
func (e *ClaimedError) Is(target error) bool { return target == ErrClaimed }

// Do returns the answer for key. If there is none, it calls f in a transaction, stores what f returns, and first is true. f may be called
// more than once, as the function of Update, and takes effect once. If f returns an error, nothing is stored, and Do returns that error as
// it is.
//
// Errors: those of Update; ErrClaimed if somebody has claimed the key; those of the codec, which name the cell (an answer that cannot be
// decoded is neither replaced nor taken for none); percolator.ErrInvalid for a nil f, and for the empty key, which callers that have
// forgotten theirs would share. After percolator.ErrUndetermined call Do
// again with the same key.
func (k *Keys[T]) Do(ctx context.Context, key string, f func(ctx context.Context, tx *percolator.Txn) (T, error)) (answer T, first bool, err error) {
	err = k.db.Update(ctx, func(tx *percolator.Txn) (err error) {
		answer, first, err = k.Within(ctx, tx, key, f)
		return err
	})
	if err != nil {
		var none T
		return none, false, err
	}
	return answer, first, nil
}

// Within is Do as a part of tx: the answer is stored if tx commits. If tx conflicts, run it again. Of calls with the same key
// within one transaction the first one calls f. After an error tx should be rolled back: what f wrote before its error stays in tx, and
// would be committed without an answer, so that the next call with the key does it again.
func (k *Keys[T]) Within(ctx context.Context, tx *percolator.Txn, key string, f func(ctx context.Context, tx *percolator.Txn) (T, error)) (answer T, first bool, err error) {
	var none T
	if f == nil {
		return none, false, fmt.Errorf("once: %w: the function is nil", percolator.ErrInvalid)
	}
	if key == "" {
		return none, false, errNoKey
	}
	now, r, err := k.read(ctx, tx, key)
	if err != nil {
		return none, false, k.failed("looking at", key, err)
	}
	switch {
	case r.until <= now: // there is nothing, or it has ended
	case r.state == stateDone:
		answer, err := k.decode(ctx, key, &r)
		return answer, false, err
	default:
		return none, false, &ClaimedError{Key: key, Until: r.until.Time()}
	}
	if answer, err = f(ctx, tx); err != nil {
		return none, false, err
	}
	if err := k.store(ctx, tx, key, answer, 0); err != nil {
		return none, false, err
	}
	return answer, true, nil
}

var errNoKey = fmt.Errorf("once: %w: the key is empty", percolator.ErrInvalid)

// store writes the answer of a key.
func (k *Keys[T]) store(ctx context.Context, tx *percolator.Txn, key string, answer T, epoch percolator.Timestamp) error {
	now, err := tx.StartTimestamp(ctx)
	if err != nil {
		return k.failed("storing the answer of", key, err)
	}
	encoded, err := k.codec.Encode(ctx, k.cell(key), answer)
	if err != nil {
		return k.failed("encoding the answer of", key, err)
	}
	if err := k.write(tx, key, record{state: stateDone, epoch: epoch, until: now.Add(k.keep), answer: encoded}); err != nil {
		return k.failed("storing the answer of", key, err)
	}
	k.lookSometimes(ctx, tx, now, key, looksFor)
	return nil
}

func (k *Keys[T]) failed(what, key string, err error) error {
	return fmt.Errorf("once: %s key %q of table %q: %w", what, key, k.table, err)
}

// decode returns the answer of a record.
func (k *Keys[T]) decode(ctx context.Context, key string, r *record) (T, error) {
	answer, err := k.codec.Decode(ctx, k.cell(key), r.answer)
	if err != nil {
		var none T
		return none, k.failed("decoding the answer of", key, err)
	}
	return answer, nil
}

// What the cell of a key says.
type record struct {
	state  byte
	until  percolator.Timestamp // it counts as not there from then on
	epoch  percolator.Timestamp // of the claim, 0 for none
	answer []byte
}

// A record is stored as a byte for the format, the state, the two timestamps, and the answer.
const (
	recordFormat = 1
	stateDone    = 1
	stateClaimed = 2
	headBytes    = 18
)

func (k *Keys[T]) write(tx *percolator.Txn, key string, r record) error {
	b := make([]byte, 0, headBytes+len(r.answer))
	b = append(b, recordFormat, r.state)
	b = binary.BigEndian.AppendUint64(b, uint64(r.until))
	b = binary.BigEndian.AppendUint64(b, uint64(r.epoch))
	return tx.Set(k.cell(key), append(b, r.answer...))
}

// read returns the record of a key, and the time of the snapshot. The record of a key that is not there has ended at 0.
func (k *Keys[T]) read(ctx context.Context, tx *percolator.Txn, key string) (now percolator.Timestamp, r record, err error) {
	stored, err := tx.Get(ctx, k.cell(key))
	found := !errors.Is(err, percolator.ErrNotFound)
	if found && err != nil {
		return 0, record{}, err
	}
	if now, err = tx.StartTimestamp(ctx); err == nil && found {
		r, err = parse(stored)
	}
	return now, r, err
}

func parse(stored []byte) (record, error) {
	switch {
	case len(stored) < headBytes:
		return record{}, fmt.Errorf("%w: %d bytes are no record of a key", typed.ErrDecode, len(stored))
	case stored[0] != recordFormat:
		return record{}, fmt.Errorf("%w: the record is of format %d", typed.ErrVersion, stored[0])
	case stored[1] != stateDone && stored[1] != stateClaimed:
		return record{}, fmt.Errorf("%w: the record has the state %d", typed.ErrDecode, stored[1])
	}
	return record{
		state:  stored[1],
		until:  percolator.Timestamp(binary.BigEndian.Uint64(stored[2:])),
		epoch:  percolator.Timestamp(binary.BigEndian.Uint64(stored[10:])),
		answer: stored[headBytes:],
	}, nil
}
