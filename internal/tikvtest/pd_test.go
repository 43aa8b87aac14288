package tikvtest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/rawkv"
	pd "github.com/tikv/pd/client"
)

func TestClockOfPD(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *Cluster, kv *rawkv.Client) {
		var last atomic.Int64
		draw := func() int64 {
			t.Helper()
			ms, counter, err := kv.GetPDClient().GetTS(t.Context())
			require.NoError(t, err)
			ts := ms<<counterBits | counter
			require.Greater(t, ts, last.Swap(ts), "timestamps go on")
			return ms
		}
		before := draw()
		c.StepClock(time.Hour)
		ahead := draw()
		require.GreaterOrEqual(t, ahead, before+time.Hour.Milliseconds()-clockStep)
		c.StepClock(-2 * time.Hour)
		require.Equal(t, ahead, draw(), "they stay where they were")
		for range 100 {
			draw()
		}
		var wg sync.WaitGroup
		seen := make([]sync.Map, 1)
		for range 8 {
			wg.Go(func() {
				for range 50 {
					ms, counter, err := kv.GetPDClient().GetTSAsync(t.Context()).Wait()
					if err != nil {
						t.Error(err)
						return
					}
					if _, twice := seen[0].LoadOrStore(ms<<counterBits|counter, true); twice {
						t.Error("a timestamp was handed out twice")
					}
				}
			})
		}
		wg.Wait()
	})
	var o tso
	ms, counter := o.draw(1<<counterBits - 1)
	require.EqualValues(t, 1<<counterBits-2, counter)
	next, counter := o.draw(5)
	require.Greater(t, next, ms, "a full millisecond ends")
	require.EqualValues(t, 4, counter)
}

func TestStoppedPD(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kv := c.NewClient(t)
	c.StopPD()
	_, _, err := kv.GetPDClient().GetTS(t.Context())
	require.ErrorIs(t, err, errPDStopped)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = kv.Get(short, []byte("k"))
	require.Error(t, err)
	c.StartPD()
	_, err = kv.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
}

func TestPDWithoutStores(t *testing.T) {
	t.Parallel()
	c := New(t, Options{NoStores: true})
	p, err := pd.NewClientWithContext(t.Context(), []string{c.PDAddr()}, pd.SecurityOption{})
	require.NoError(t, err)
	defer p.Close()
	_, _, err = p.GetTS(t.Context())
	require.NoError(t, err)
	_, err = p.GetRegion(t.Context(), []byte("k"))
	require.ErrorContains(t, err, "NOT_BOOTSTRAPPED")
	_, err = p.GetAllStores(t.Context())
	require.ErrorContains(t, err, "NOT_BOOTSTRAPPED")
}
