package kit_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// register is a value in memory, whose swaps fail as the test says.
type register struct {
	mu    sync.Mutex
	value []byte
	fail  func() (before, after error)
	swaps int
}

func (r *register) Load(context.Context) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.value), nil
}

func (r *register) Swap(_ context.Context, old, next []byte) ([]byte, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.swaps++
	var before, after error
	if r.fail != nil {
		before, after = r.fail()
	}
	if before != nil {
		return nil, false, before
	}
	met := bytes.Clone(r.value)
	swapped := bytes.Equal(met, old) && (met == nil) == (old == nil)
	if swapped {
		r.value = bytes.Clone(next)
	}
	return met, swapped, after
}

func TestSwapOracleFollowsTheClock(t *testing.T) {
	t.Parallel()
	r, c := &register{}, newClock(1000)
	a, b := kit.NewSwapOracle(r, c.now), kit.NewSwapOracle(r, c.now)
	require.Equal(t, ms(1000), draw(t, a, 1))
	require.Equal(t, ms(1000)+1, draw(t, b, 3))
	require.Equal(t, ms(1000)+4, draw(t, a, 1), "what the other drew is known by the swap that failed")
	require.Equal(t, 4, r.swaps)
	c.ms.Store(900)
	require.Equal(t, ms(1000)+5, draw(t, a, 1))
	c.ms.Store(1001)
	require.Equal(t, ms(1001), draw(t, b, 1))
	require.Equal(t, ms(1001)+1, draw(t, kit.NewSwapOracle(r, c.now), 1), "another process goes on from there")
}

func TestSwapOracleErrors(t *testing.T) {
	t.Parallel()
	r, c := &register{}, newClock(1000)
	o := kit.NewSwapOracle(r, c.now)
	_, err := o.Draw(t.Context(), 0)
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	broken := errors.New("broken")
	r.fail = func() (before, after error) { return broken, nil }
	_, err = o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, broken)
	// A swap that may have happened is followed by another.
	lost := 0
	r.fail = func() (before, after error) {
		if lost++; lost%2 == 1 {
			return nil, rowstore.ErrAmbiguous
		}
		return nil, nil
	}
	require.Equal(t, ms(1000)+2, draw(t, o, 2), "those of the first swap are lost")
	gone, cancel := context.WithCancel(t.Context())
	r.fail = func() (before, after error) { cancel(); return nil, rowstore.ErrAmbiguous }
	_, err = o.Draw(gone, 1)
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	r.fail = nil
	_, err = o.Draw(t.Context(), math.MaxInt)
	require.ErrorIs(t, err, oracle.ErrExhausted)
	require.Greater(t, draw(t, o, 1), ms(1000)+3)
	r.value = []byte("short")
	_, err = kit.NewSwapOracle(r, nil).Draw(t.Context(), 1)
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	// Others are quicker, without end.
	r.value = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r.fail = func() (before, after error) { r.value = append(make([]byte, 15), byte(r.swaps)); return nil, nil }
	_, err = o.Draw(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestSwapOracleConcurrent(t *testing.T) {
	t.Parallel()
	r := &register{}
	concurrent(t, several{
		newBatch(t, kit.NewSwapOracle(r, nil)), newBatch(t, kit.NewSwapOracle(r, nil)), newBatch(t, kit.NewSwapOracle(r, nil)),
	}, 200)
}

// several are oracles that share their timestamps.
type several []oracle.Oracle

// Draw implements oracle.Oracle.
func (s several) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	return s[time.Now().UnixNano()%int64(len(s))].Draw(ctx, n)
}
