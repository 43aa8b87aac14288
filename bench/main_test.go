package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

func TestMain(m *testing.M) {
	if child() { // workloads of several processes start this program again
		return
	}
	flushed = false
	testserver.Main(m)
}

// TestEveryWorkloadRuns runs each workload for a moment, on little data. It judges
// no figure. Many wait for leases and for garbage to become old, so a few of a group that need the same server
// run one after the other, and beside the others.
func TestEveryWorkloadRuns(t *testing.T) {
	t.Parallel()
	rows := map[string]string{"embedded": "2000", "redis": "100", "postgres": "100", "workers": "100", "size": "500", "recipes": "100", "paper": "50", "growth": "100", "timers": "50", "page": "2000"}
	sets := map[string][]Workload{}
	for _, w := range workloads() {
		require.Contains(t, rows, w.Group)
		set := w.Group
		for _, kind := range []string{"redis", "postgres"} {
			if strings.HasSuffix(w.Name, "-"+kind) {
				set += "/" + kind
			}
		}
		sets[set] = append(sets[set], w)
	}
	const few = 4
	for name, all := range sets {
		for set := range slices.Chunk(all, few) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				runForAMoment(t, set, rows[set[0].Group], "0")
			})
		}
	}
}

// TestWarmUp runs workloads whose processes do something before they are measured, which TestEveryWorkloadRuns leaves out.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"combine-redis", "workers-live-redis", "redis-processes"} {
		chosen, err := choose(name)
		require.NoError(t, err)
		runForAMoment(t, chosen, "100", "1ms")
	}
}

func runForAMoment(t *testing.T, set []Workload, rows, warmup string) {
	t.Helper()
	var names []string
	for _, w := range set {
		names = append(names, w.Name)
	}
	var out bytes.Buffer
	charts := t.TempDir()
	err := run([]string{
		"-workload", strings.Join(names, ","), "-duration", "20ms", "-warmup", warmup, "-repeats", "1", "-rows", rows,
		"-goroutines", "2", "-dir", t.TempDir(), "-json", "-charts", charts, "-skew", "0.5",
	}, &out, io.Discard)
	require.NoError(t, err)
	var report Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	require.NotEmpty(t, report.Machine.CPU)
	require.Empty(t, report.LeftOut)
	ran := map[string]bool{}
	for _, result := range report.Results {
		ran[result.Workload] = true
		judgeForm(t, set[0].Group, &result)
		if result.Chart == timeChart {
			require.FileExists(t, filepath.Join(charts, result.Workload+".svg"))
		}
	}
	for _, name := range names {
		require.True(t, ran[name], name)
	}
}

func TestGroupsAreChosen(t *testing.T) {
	t.Parallel()
	chosen, err := choose("embedded,redis-write")
	require.NoError(t, err)
	groups := map[string]int{}
	for _, w := range chosen {
		groups[w.Group]++
	}
	require.Greater(t, groups["embedded"], 1)
	require.Equal(t, 1, groups["redis"])
	require.Len(t, groups, 2)
	_, err = choose("nothing")
	require.Error(t, err)
}

// judgeForm looks whether a result has all that one of its group has.
func judgeForm(t *testing.T, group string, result *Result) {
	t.Helper()
	if group == "workers" {
		require.NotEmpty(t, result.Bars, result.Workload)
	}
	for _, bar := range result.Bars {
		if bar.AtMost > 0 { // conflicts, say, of which there may be none
			require.GreaterOrEqual(t, bar.Value, 0.0, bar.What)
			continue
		}
		require.Positive(t, bar.Value, bar.What)
	}
	for _, s := range result.Sides {
		require.Len(t, s.Samples, result.Config.Repeats)
		require.Positive(t, s.Ops, s.Side)
		require.LessOrEqual(t, s.RateMin, s.Rate)
		require.GreaterOrEqual(t, s.RateMax, s.Rate)
		if group == "workers" && s.Series == ours {
			require.NotNil(t, s.Work, s.Side)
			require.GreaterOrEqual(t, s.Work.Calls, 1.0, "%s: a function was called for each change", s.Side)
			require.Positive(t, s.Work.Found, "%s: a scan found each change", s.Side)
			require.Positive(t, s.P50, s.Side)
		}
	}
}

// TestObserverLatencyIsOfAnIdleSystem asks for many callers, of whom each would take
// the others' changes for its own.
func TestObserverLatencyIsOfAnIdleSystem(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run([]string{
		"-workload", "observe", "-duration", "200ms", "-warmup", "0", "-repeats", "1", "-rows", "100", "-goroutines", "8", "-dir", t.TempDir(), "-json",
	}, &out, io.Discard)
	require.NoError(t, err)
	var report Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	require.Positive(t, report.Results[0].Sides[0].Ops)
}

// TestCostsOfAServerAreSeen checks that CPU, bytes and round trips are measured
// where there is a server.
func TestCostsOfAServerAreSeen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run([]string{
		// The connections open while it warms up: what they say then is no cost of a SET.
		"-workload", "redis-write", "-duration", "300ms", "-warmup", "300ms", "-repeats", "1", "-rows", "100", "-goroutines", "4", "-json",
	}, &out, io.Discard)
	require.NoError(t, err)
	var report Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	for _, s := range report.Results[0].Sides {
		require.Positive(t, s.CPU, s.Side)
		require.GreaterOrEqual(t, s.ServerCPU, 0.0, "the server runs on this machine")
		require.Greater(t, s.Bytes, 64.0, "the value alone is that long")
		require.Positive(t, s.Trips, s.Side)
	}
	for _, s := range report.Results[0].Sides {
		if s.Side == "SET" {
			require.InDelta(t, 1, s.Trips, 0.1, "a SET is one round trip")
		}
	}
}

// What was measured before a workload fails is printed, and the error is returned.
func TestMeasuredBeforeAnError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	// Package typed has no workload on Redis, and says so.
	err := run([]string{"-json", "-workload", "keys,typed", "-store", "redis://127.0.0.1:1/0", "-duration", "10ms", "-warmup", "1ms", "-repeats", "1"}, &out, io.Discard)
	require.ErrorContains(t, err, "typed")
	var report Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	require.Len(t, report.Results, 1)
	require.Equal(t, "keys", report.Results[0].Workload)
}

// TestReportsAreReadBack prints, draws and checks what an earlier run has written.
func TestReportsAreReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, r Report) string {
		path := filepath.Join(dir, name)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	result := func(name string, rate float64, bars ...Bar) Result {
		s := Summary{Side: "a", Series: "a", X: 1, Sample: Sample{Ops: 1, Rate: rate}}
		t := s
		t.X, t.Rate = 1000, 2*rate
		return Result{Workload: name, Sides: []Summary{s, t}, Bars: bars, XAxis: "things", Chart: rateChart}
	}
	old := write("old", Report{Results: []Result{result("one", 1, atLeast("it", 1, 2, "")), result("two", 7)}})
	repeated := write("new", Report{Results: []Result{result("one", 1234, atLeast("it", 3, 2, ""))}})
	charts := filepath.Join(dir, "charts")

	var out bytes.Buffer
	require.NoError(t, run([]string{"-from", old + "," + repeated, "-markdown", "-charts", charts, "-check"}, &out, io.Discard))
	require.Contains(t, out.String(), "| 1234 |")
	require.Contains(t, out.String(), "reached")
	require.NotContains(t, out.String(), "MISSED")
	for _, name := range []string{"one.svg", "one-latency.svg", "two.svg"} {
		text, err := os.ReadFile(filepath.Join(charts, name))
		require.NoError(t, err)
		require.Contains(t, string(text), "things")
	}
	require.ErrorIs(t, run([]string{"-from", old, "-check"}, io.Discard, io.Discard), errMissed)
	require.ErrorContains(t, run([]string{"-from", charts}, io.Discard, io.Discard), "charts")
}

// TestPages writes the documents of a run, and tells that every workload has one.
func TestPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	known := map[string]bool{}
	for _, p := range pages {
		known[p.group] = true
	}
	for _, w := range workloads() {
		require.True(t, known[w.Group], "%s: no page for its group %q", w.Name, w.Group)
	}
	require.Equal(t, "postgres", pageGroup("river-chain-paced"))
	require.Equal(t, "paper", pageGroup("oracle-pebble"))
	require.Equal(t, "embedded", pageGroup("oracle"))

	side := []Summary{{Side: "a", Series: "a", X: 1, Sample: Sample{Ops: 1, Rate: 1}}, {Side: "a", Series: "a", X: 2, Sample: Sample{Ops: 1, Rate: 2}}}
	r := Report{Results: []Result{
		{Workload: "transfer", Sides: side, Bars: []Bar{atLeast("it", 1, 2, "")}},
		{Workload: "postgres-callers", Sides: side, XAxis: "things", Chart: rateChart},
	}}
	require.NoError(t, r.writePages(dir))
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	require.Contains(t, page("bars.md"), "| transfer | it | 1 | at least 2 | MISSED |")
	require.Contains(t, page("embedded.md"), "### transfer")
	require.Contains(t, page("growth.md"), "](postgres-callers.svg)")
	require.FileExists(t, filepath.Join(dir, "postgres-callers.svg"))
	require.NoFileExists(t, filepath.Join(dir, "redis.md"))
	r.Results[0].Workload = "unheard-of"
	require.ErrorContains(t, r.writePages(dir), "unheard-of")
}

func TestSkew(t *testing.T) {
	t.Parallel()
	const n, draws = 1000, 100_000
	r := rand.New(rand.NewPCG(1, 2))
	for _, theta := range []float64{0, 0.99, 2} {
		s := newSkew(theta)
		counts := make([]int, n)
		for range draws {
			counts[s.pick(r, n)]++
		}
		sum := 0.0
		for k := 1; k <= n; k++ {
			sum += math.Pow(float64(k), -theta)
		}
		for _, k := range []int{1, 2, 10} {
			want := draws * math.Pow(float64(k), -theta) / sum
			require.InDelta(t, want, counts[k-1], 6*math.Sqrt(want)+1, "theta %g, row %d", theta, k)
		}
	}
}

func TestPeersCanBeLeftOut(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run([]string{
		"-workload", "lone", "-peer", "none", "-duration", "50ms", "-warmup", "0", "-rows", "100", "-dir", t.TempDir(), "-markdown",
	}, &out, io.Discard)
	require.NoError(t, err)
	require.Contains(t, out.String(), "| percolator on memory |")
	require.NotContains(t, out.String(), "pebble, Get")
	require.NotContains(t, out.String(), "bar:", "a ratio needs both sides")
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown workload": {[]string{"-workload", "dance"}, `no workload "dance" (there are: transfer`},
		"argument":         {[]string{"transfer"}, `what is "transfer"?`},
		"goroutines":       {[]string{"-goroutines", "-1"}, "-goroutines -1"},
		"rows":             {[]string{"-rows", "-1"}, "-rows -1"},
		"one row":          {[]string{"-rows", "1", "-workload", "lone"}, "too few"},
		"value":            {[]string{"-value", "7"}, "-value 7"},
		"repeats":          {[]string{"-repeats", "0"}, "-repeats 0"},
		"duration":         {[]string{"-duration", "-1s"}, "-duration -1s"},
		"skew":             {[]string{"-skew", "-1"}, "-skew -1"},
		"file":             {[]string{"-from", "/nonexistent"}, "/nonexistent"},
		"warmup":           {[]string{"-warmup", "-1s"}, "-warmup -1s"},
		"two formats":      {[]string{"-json", "-markdown"}, "exclude each other"},
		"store":            {[]string{"-workload", "lone", "-store", "nonsense://u:secret@h"}, `"nonsense"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(c.args, io.Discard, io.Discard)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://user:secret@h1:1,h2:2/0?prefix=a@b": "redis://user@h1:1,h2:2/0?prefix=a@b",
		"redis://:secret@h/0":                        "redis://@h/0",
		"postgres://h/db":                            "postgres://h/db",
		"pebble:/a@b":                                "pebble:/a@b",
	} {
		require.Equal(t, want, withoutPassword(url))
	}
}

func TestMedianAndSpread(t *testing.T) {
	t.Parallel()
	s := Summary{Samples: []Sample{{Ops: 1, Rate: 30}, {Ops: 2, Rate: 10}, {Ops: 3, Rate: 20}, {Ops: 4, Rate: 100}}}
	s.summarize()
	require.InDelta(t, 25, s.Rate, 0)
	require.InDelta(t, 10, s.RateMin, 0)
	require.InDelta(t, 100, s.RateMax, 0)
	require.EqualValues(t, 10, s.Ops)
}

func TestBars(t *testing.T) {
	t.Parallel()
	require.True(t, atLeast("", 1, 1, "").Reached)
	require.False(t, atLeast("", 0.99, 1, "").Reached)
	require.True(t, atMost("", 5, 5, "").Reached)
	require.False(t, atMost("", 5.01, 5, "").Reached)
	require.Equal(t, "rate: 0.5 x (bar: at least 1 x): MISSED", atLeast("rate", 0.5, 1, "x").String())
}
