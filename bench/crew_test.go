package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/require"
)

// TestCrewAddsUp reads what two members say, as they say it.
func TestCrewAddsUp(t *testing.T) {
	t.Parallel()
	c := &crew{each: make([]deeds, 2)}
	require.NoError(t, c.read(0, strings.NewReader("0\n3\n3\n7\n{\"Calls\":8,\"Conflicts\":1}\n")))
	require.EqualValues(t, 7, c.handled.Load(), "each says how much it has handled in all")
	require.NoError(t, c.read(1, strings.NewReader("2\n5\n{\"Calls\":5}\n")))
	require.EqualValues(t, 12, c.handled.Load())
	require.Equal(t, []int64{8, 5, 1, 0}, []int64{c.each[0].Calls, c.each[1].Calls, c.each[0].Conflicts, c.each[1].Conflicts})
	for said, want := range map[string]string{"": "ended early", "1\n2\n": "ended early", "what?\n": "what?", "{": "unexpected end"} {
		require.ErrorContains(t, (&crew{each: make([]deeds, 1)}).read(0, strings.NewReader(said)), want, "%q", said)
	}
}

func TestCrewEnds(t *testing.T) {
	t.Parallel()
	took := func(all ...time.Duration) []byte {
		l := newLatencies()
		for _, d := range all {
			l.record(d)
		}
		b, err := l.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		require.NoError(t, err)
		return b
	}
	c := &crew{each: []deeds{
		{Calls: 1, Conflicts: 2, Scans: 3, Found: 4, CPU: 5, Took: took(time.Millisecond, time.Millisecond)},
		{Calls: 10, Conflicts: 20, Scans: 30, Found: 40, CPU: 50, Took: took(time.Second)},
	}}
	sum, err := c.end()
	require.NoError(t, err)
	require.EqualValues(t, 3, sum.took.h.TotalCount(), "of both")
	sum.Took, sum.took = nil, latencies{}
	require.Equal(t, deeds{Calls: 11, Conflicts: 22, Scans: 33, Found: 44, CPU: 55}, sum)
	_, err = (&crew{each: []deeds{{Took: []byte("none")}}}).end()
	require.ErrorContains(t, err, "latencies")
}

// TestCrewThatHandlesNothing wants the run to fail, not to wait for ever, and not to be
// taken for done.
func TestCrewThatHandlesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &crew{}
		began := time.Now()
		require.ErrorContains(t, c.await(t.Context(), 1), "0 of 1")
		require.GreaterOrEqual(t, time.Since(began), crewPatience)

		done := make(chan error, 1)
		go func() { done <- c.await(t.Context(), 3) }()
		for range 3 {
			synctest.Wait()
			require.Empty(t, done)
			time.Sleep(crewPatience / 2) // slow, but it gets on
			c.handled.Add(1)
		}
		require.NoError(t, <-done)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.await(ctx, 4), context.Canceled)
	})
}

// TestBarsOfWorkers judges figures that are good, and then each of them made bad.
func TestBarsOfWorkers(t *testing.T) {
	t.Parallel()
	for _, w := range workersWorkloads() {
		if strings.HasPrefix(w.Name, "workers-waiting") {
			continue // TestBarsOfWaiting
		}
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			peer := "asynq"
			if strings.HasSuffix(w.Name, "postgres") {
				peer = "river"
			}
			judged := func(change func(own, peer *Summary)) []Bar {
				side := func(series string, x float64) Summary {
					return Summary{Series: series, X: x, Sample: Sample{Ops: 1, Rate: 100, P50: 1, P99: 2, CPU: 10, ServerCPU: 10, Work: &Work{Calls: 1}}}
				}
				all := []Summary{side(ours, 1), side(ours, 8), side(peer, 1), side(peer, 8)}
				change(&all[1], &all[3])
				if strings.Contains(w.About, "whose functions take") {
					change(&all[0], &all[2])
				}
				return w.Bars(all)
			}
			missed := func(bars []Bar) (n int) {
				for _, b := range bars {
					if !b.Reached {
						n++
					}
				}
				return n
			}
			good := judged(func(*Summary, *Summary) {})
			require.NotEmpty(t, good)
			require.Zero(t, missed(good), "%v", good)
			worse := map[string]func(own, peer *Summary){
				"calls": func(own, _ *Summary) { own.Work.Calls = 2 },
			}
			switch {
			case strings.HasPrefix(w.Name, "workers-drain"):
				worse = map[string]func(own, peer *Summary){
					"rate": func(own, _ *Summary) { own.Rate = 50 },
					"peer": func(_, peer *Summary) { peer.Rate = 200 },
				}
			case strings.HasPrefix(w.Name, "workers-live"):
				worse = map[string]func(own, peer *Summary){
					"conflicts": func(own, _ *Summary) { own.Work.Conflicts = 0.5 },
					"CPU":       func(own, _ *Summary) { own.CPU = 100 },
					"p99":       func(own, _ *Summary) { own.P99 = 10 },
					"peer p50":  func(_, peer *Summary) { peer.P50 = 0.5 },
					"peer p99":  func(_, peer *Summary) { peer.P99 = 1 },
					"peer CPU":  func(_, peer *Summary) { peer.CPU = 1 },
				}
			}
			for name, change := range worse {
				require.Positive(t, missed(judged(change)), name)
			}
		})
	}
}

// TestBarsOfWaiting judges figures that are good, and then each of them made bad.
func TestBarsOfWaiting(t *testing.T) {
	t.Parallel()
	w := waitingWorkload("redis", 100)
	for name, x := range map[string]struct {
		change func(s *Summary)
		missed int
	}{
		"good":   {func(*Summary) {}, 0},
		"p99":    {func(s *Summary) { s.P99 = 3 }, 1},
		"memory": {func(s *Summary) { s.Waiting.Memory = 100 }, 1},
		"reads":  {func(s *Summary) { s.Waiting.HandoverReads = 50 }, 1},
		"all":    {func(s *Summary) { s.P99, s.Waiting = 3, &Waiting{Cells: 1, Memory: 100, HandoverReads: 1} }, 3},
	} {
		all := make([]Summary, 4)
		for i := range all {
			all[i] = Summary{Side: "a side", Sample: Sample{P99: 1, Waiting: &Waiting{Cells: 100, Memory: 30}}}
		}
		x.change(&all[2])
		missed := 0
		for _, b := range w.Bars(all) {
			if !b.Reached {
				missed++
			}
		}
		require.Equal(t, x.missed, missed, name)
		require.Len(t, w.Notes(Config{}, all), 4)
	}
	require.Empty(t, w.Notes(Config{}, make([]Summary, 1)), "nothing is known of it")
}
