// Package oracle hands out the timestamps that order transactions: the
// timestamp oracle of Percolator (Peng and Dabek, OSDI 2010, section 2.3).
//
// A timestamp is a hybrid of wall time and a counter, so that history can be
// addressed by time and the age of a lock needs no client's clock. The order
// comes from the oracle alone: a clock that jumps makes timestamps run ahead of
// wall time or stand still against it, never go back.
package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Timestamp is the number of milliseconds since 1970 (UTC) shifted left by
// LogicalBits, plus a counter: the layout of PD's timestamp oracle. The zero
// value lies before every timestamp that an oracle hands out.
type Timestamp uint64

const (
	// LogicalBits is the width of the counter below the milliseconds.
	LogicalBits = 18

	// Max is the greatest timestamp that an oracle may hand out. It leaves the
	// sign bit of a 64-bit integer free, because most databases have no
	// unsigned type.
	Max Timestamp = 1<<63 - 1
)

var (
	// ErrClosed is returned by an oracle that was closed.
	ErrClosed = errors.New("oracle: closed")
	// ErrExhausted is returned when the timestamps asked for would lie above Max. An
	// oracle that has returned it never recovers, but a smaller request may still succeed.
	ErrExhausted = errors.New("oracle: no timestamps left below the greatest one")
)

// Oracle hands out timestamps. All methods may be called concurrently.
type Oracle interface {
	// Draw returns the first of n consecutive timestamps (n >= 1), each greater
	// than every timestamp that anybody drew before. The draw must happen
	// between the call and its return: a range may be shared among requests
	// that are waiting at that moment, and never kept for later ones, because a
	// transaction that begins after another's commit returned must see it.
	//
	// An error means that the caller got none; timestamps may have been used
	// up. A store's oracle may refuse more than 1000 at once, with an error that
	// matches rowstore.ErrTooLarge. Draw honours ctx.
	Draw(ctx context.Context, n int) (Timestamp, error)
}

// FromTime returns the smallest timestamp of the millisecond that holds t. A
// time before 1970 gives 0, one after the year 3084 gives Max.
func FromTime(t time.Time) Timestamp {
	switch seconds := t.Unix(); { // the milliseconds of a distant time overflow
	case seconds < 0:
		return 0
	case seconds > int64(Max>>LogicalBits)/1000:
		return Max
	}
	return min(Max, Timestamp(t.Unix()*1000+int64(t.Nanosecond()/1e6))<<LogicalBits) //nolint:gosec // not negative
}

// Time returns the wall time that t carries, in UTC, to the millisecond.
func (t Timestamp) Time() time.Time {
	return time.UnixMilli(int64(t >> LogicalBits)).UTC()
}

// Logical returns the counter within t's millisecond.
func (t Timestamp) Logical() uint32 {
	return uint32(t & (1<<LogicalBits - 1))
}

// Add returns t moved by d, which is rounded towards zero to milliseconds. The
// result is clamped to the range from 0 to Max.
func (t Timestamp) Add(d time.Duration) Timestamp {
	ms := d.Milliseconds()
	if ms < 0 {
		back := Timestamp(-ms) << LogicalBits
		if uint64(-ms) > uint64(Max>>LogicalBits) || back > t {
			return 0
		}
		return t - back
	}
	if uint64(ms) > uint64(Max>>LogicalBits) {
		return Max
	}
	forward := Timestamp(ms) << LogicalBits
	if t > Max-forward {
		return Max
	}
	return t + forward
}

// Sub returns the wall time from u to t, to the millisecond.
func (t Timestamp) Sub(u Timestamp) time.Duration {
	return time.Duration(int64(t>>LogicalBits)-int64(u>>LogicalBits)) * time.Millisecond
}

// String writes t as its wall time and counter, for people.
func (t Timestamp) String() string {
	return fmt.Sprintf("%s+%d", t.Time().Format("2006-01-02T15:04:05.000Z"), t.Logical())
}
