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
		"stall":  {func(s *Summary) { s.P50 = 0.001 }, 0}, // only that of the side without cells makes a ratio worthless
		"all":    {func(s *Summary) { s.P99, s.Waiting = 3, &Waiting{Cells: 1, Memory: 100, HandoverReads: 1} }, 3},
	} {
		all := make([]Summary, 4)
		for i := range all {
			all[i] = Summary{Side: "a side", Sample: Sample{P50: 1, P99: 1, Waiting: &Waiting{Cells: 100, Memory: 30}}}
		}
		x.change(&all[2])
		require.Contains(t, w.Bars(all)[0].What, "100 cells a side: ", "a bar of a million says how many there were")
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

// A p99 that a disk has made is nothing to compare others with, however good these look.
func TestRatioToAStalledSide(t *testing.T) {
	t.Parallel()
	base := Summary{Side: "without", Sample: Sample{P50: 4000, P99: 1_050_000}}
	b := atMostP99("p99 / without", Summary{Sample: Sample{P50: 4000, P99: 137_000}}, base, 2)
	require.False(t, b.Reached)
	require.Equal(t, "p99 / without: 0.1305 (bar: at most 2): NOT MEASURED, because the p99 that it is compared with, 1.05 s, is 262 times its median", b.String())
	require.False(t, Report{Results: []Result{{Bars: []Bar{b}}}}.reached())
	base.P99 = mostSpread * base.P50
	b = atMostP99("p99 / without", Summary{Sample: Sample{P50: 4000, P99: 137_000}}, base, 2)
	require.True(t, b.Reached)
	require.Equal(t, "reached", b.verdict())
}

// TestBarsOfDeployed judges figures that are good, and then each of them made bad.
func TestBarsOfDeployed(t *testing.T) {
	t.Parallel()
	sides := func(rates ...float64) (all []Summary) {
		for i, r := range rates {
			all = append(all, Summary{Side: "a side", X: float64(i), Sample: Sample{Rate: r, Bytes: 100, P50: 1000, Takeover: &Takeover{Waited: []float64{0, 5}}}})
		}
		return all
	}
	missed := func(w *Workload, all []Summary) (n int) {
		for _, b := range w.Bars(all) {
			if !b.Reached {
				n++
			}
		}
		return n
	}
	idle, listening, kill := idleWorkload("redis"), listeningWorkload("redis"), killWorkload("redis")
	all := sides(1.9, 1.9)
	require.Zero(t, missed(&idle, all))
	require.Len(t, idle.Notes(Config{}, all), 2)
	all[1].Bytes = 1100
	require.Equal(t, 1, missed(&idle, all), "2.09 kB in a second")
	require.Equal(t, 1, missed(&idle, sides(1, 2.1)))
	require.Zero(t, missed(&listening, sides(100, 80, 95)))
	require.Equal(t, 1, missed(&listening, sides(100, 100, 94)))
	all = sides(100, 100, 3000)
	all[0].RateMin, all[0].RateMax = 9, 110
	require.Equal(t, 1, missed(&listening, all), "what it is compared with had a disk that stalled")
	all = sides(100)
	require.Zero(t, missed(&kill, all))
	require.Len(t, kill.Notes(Config{}, all), 1)
	all[0].P50 = 300_000
	require.Equal(t, 1, missed(&kill, all), "all were late")
	all = sides(100)
	all[0].Takeover.Waited = []float64{0, 0}
	require.Equal(t, 1, missed(&kill, all), "nothing was measured")
	all[0].Takeover.Waited[0] = 6.1
	require.Equal(t, 1, missed(&kill, all))
}

// TestTakeover tells the changes of the dead from others.
func TestTakeover(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	deaths := []time.Time{at(5), at(21)}
	k := Takeover{Waited: make([]float64, 2)}
	k.note(deaths, at(4), at(4.01))  // in time
	k.note(deaths, at(4), at(8))     // committed before the death
	k.note(deaths, at(6), at(9.5))   // and after it
	k.note(deaths, at(22), at(25))   // of the second death
	k.note(deaths, at(15), at(15.3)) // late, long after the first death and before the second
	require.Equal(t, Takeover{Late: 4, Waited: []float64{4.5, 4}}, k)
}

// TestRateIsBack finds when a rate is back, however the steps lie.
func TestRateIsBack(t *testing.T) {
	t.Parallel()
	var steps []float64
	add := func(seconds, rate float64) {
		for range int(seconds / timelineStep) {
			steps = append(steps, rate)
		}
	}
	add(5, 100)
	add(0.5, 95) // it takes its time to show
	add(4, 10)
	add(5, 100)
	after, until, ok := rateBack(steps, 5, 90)
	require.True(t, ok)
	require.InDelta(t, 4.5, after, timelineStep)
	require.InDelta(t, 20, until, 5, "the mean of the outage")
	after, _, ok = rateBack(steps, 11, 90)
	require.True(t, ok)
	require.Zero(t, after, "it was not away")
	_, _, ok = rateBack(steps, 5, 110)
	require.False(t, ok, "it never is back")
	_, _, ok = rateBack(steps, 14.4, 90)
	require.False(t, ok, "too late to tell")

	s := Sample{Timeline: steps, Events: []Event{{At: 5, What: "2 of 6 killed"}, {At: 12, What: "back"}}}
	notes := outageNotes(&s)
	require.Len(t, notes, 3)
	require.Contains(t, notes[1], "2 of 6 killed, at 5.0 s: the rate is back")
}
