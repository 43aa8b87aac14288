package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// storeOracle hands out the store's timestamps (section 2.3 of the paper): the
// server's time, or the next number where that is not ahead of the last one. A
// server that started, or took over, goes on above everything that was handed out
// before: scripts/oracle_part.lua.
type storeOracle struct{ s *direct }

// maxDraw bounds one draw to the timestamps of about a second. If the server loses the write of a draw, the oracle goes on at the bound, which lies
// three seconds above the last draw before: the timestamps of this one must lie below it.
const maxDraw = 1 << 28

// Draw returns the first of n new timestamps. A draw that failed may have used
// some up.
func (o storeOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	s := o.s
	if n < 1 || n > maxDraw {
		return 0, fmt.Errorf("redis: %w: draw of %d timestamps", rowstore.ErrInvalid, n)
	}
	c := &call{script: drawScript, keys: []string{s.okey}}
	c.arg.b = strconv.AppendInt(nil, int64(n), 10)
	err := s.wait(ctx, c)
	if err == nil {
		err = c.err
	}
	switch {
	case err != nil && s.closed.Load():
		return 0, fmt.Errorf("%w: %w", oracle.ErrClosed, err)
	case err != nil:
		return 0, fmt.Errorf("redis: draw: %w", err)
	}
	u := unpacker{s: c.answer}
	if u.list() != 2 {
		return 0, fmt.Errorf("redis: draw: %w", errAnswer)
	}
	first := u.timestamp()
	if err := u.done(); err != nil {
		return 0, fmt.Errorf("redis: draw: %w", err)
	}
	return first, nil
}

// timestamp reads one as the scripts answer it: its milliseconds, and its counter.
func (u *unpacker) timestamp() oracle.Timestamp {
	ms := oracle.Timestamp(u.number())
	return ms<<oracle.LogicalBits + oracle.Timestamp(u.number())
}
