package kit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Register is a value in a database that is changed by compare-and-swap, for a [SwapOracle].
type Register interface {
	// Load returns the value, nil if there is none.
	Load(ctx context.Context) ([]byte, error)
	// Swap replaces old, nil for none, by next if the value is old, as one atomic step that
	// is as durable as the database makes anything. It returns the value that it met, and
	// whether it replaced it. An error that matches rowstore.ErrAmbiguous says that the
	// value may have been replaced; after any other it was not.
	Swap(ctx context.Context, old, next []byte) (met []byte, swapped bool, err error)
}

// SwapOracle is an oracle for a database that has no timestamps of its own: it keeps the
// last timestamp in a [Register], and each draw moves it on by one swap. All processes that
// share the register share the timestamps. Put a [BatchOracle] before it, so that one
// process has one draw under way: a SwapOracle serves one draw at a time, and the caller
// sees to that.
type SwapOracle struct {
	register Register
	clock    func() time.Time
	known    []byte // the value as it was met last, nil if that is not known
}

// NewSwapOracle returns an oracle over a register that other SwapOracles may use as well.
// Nil as the clock means time.Now.
func NewSwapOracle(register Register, clock func() time.Time) *SwapOracle {
	if clock == nil {
		clock = time.Now
	}
	return &SwapOracle{register: register, clock: clock}
}

// swapLen is the length of the register's value: a timestamp and a tag.
const swapLen = 16

// Draw implements oracle.Oracle. It returns oracle.ErrExhausted when the range would pass
// oracle.Max, an error that matches rowstore.ErrCorrupt if the register holds something
// else, and errors of the register. A swap whose outcome is unknown is followed by another:
// nobody has the timestamps of the first. It is not called concurrently.
func (o *SwapOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("kit: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	known, loaded := o.known, o.known != nil
	o.known = nil
	for attempt := 0; ; attempt++ {
		// Others draw as well. Who was overtaken a few times waits for a moment.
		if attempt > 2 {
			if err := contexts.Sleep(ctx, time.Millisecond<<min(attempt, 5)); err != nil {
				return 0, err
			}
		}
		if !loaded {
			v, err := o.register.Load(ctx)
			if err != nil {
				return 0, err
			}
			known, loaded = v, true
		}
		var last oracle.Timestamp
		if known != nil {
			if len(known) != swapLen {
				return 0, fmt.Errorf("%w: the last timestamp has %d bytes", rowstore.ErrCorrupt, len(known))
			}
			last = oracle.Timestamp(binary.BigEndian.Uint64(known))
		}
		first := max(last+1, oracle.FromTime(o.clock()))
		if first > oracle.Max || uint64(n-1) > uint64(oracle.Max-first) { //nolint:gosec // n is at least 1
			return 0, oracle.ErrExhausted
		}
		// The tag tells two processes apart that draw the same at once.
		next := make([]byte, swapLen)
		binary.BigEndian.PutUint64(next, uint64(first)+uint64(n-1)) //nolint:gosec // as above
		_, _ = rand.Read(next[8:])                                  // it never fails
		met, swapped, err := o.register.Swap(ctx, known, next)
		switch {
		case errors.Is(err, rowstore.ErrAmbiguous) && ctx.Err() == nil:
			loaded = false
		case err != nil:
			return 0, err
		case swapped || bytes.Equal(met, next):
			o.known = next
			return first, nil
		default:
			known = met
		}
	}
}
