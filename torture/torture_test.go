package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

func TestMain(m *testing.M) {
	if c := os.Getenv(childVariable); c != "" {
		if err := childMain(c); err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(ticksVariable); url != "" {
		if err := ticksMain(url); err != nil {
			fmt.Fprintln(os.Stderr, "torture: ticks:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testserver.Main(m)
}

// TestRun runs the whole program for a moment, on the store that needs no server.
// What it says about servers, `make torture` finds out.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	var out bytes.Buffer
	err := execute(t.Context(), []string{
		"-backend", "pebble", "-duration", "6s", "-dir", dir, "-report", path, "-min-rate", "1",
	}, &out, io.Discard)
	t.Log(out.String())
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var rep report
	require.NoError(t, json.Unmarshal(b, &rep))
	require.True(t, rep.Passed)
	require.Empty(t, rep.Violations)
	require.Zero(t, rep.LocksAfter)
	require.NotZero(t, rep.Config.Seed)
	require.Positive(t, rep.Committed)
	require.Positive(t, rep.fired())
	for name, n := range rep.Waste {
		require.Positive(t, n[1], name)
		require.GreaterOrEqual(t, n[0], n[1], name)
	}
	require.Len(t, rep.Waste, len(relaySets()[0]))
	for _, w := range workloads() {
		require.Positive(t, rep.Workloads[w.name], w.name)
	}
	for _, c := range rep.Checks {
		require.Positive(t, c.Looked, c.Name)
	}
	require.Len(t, rep.Checks, 7+len(checkers()))
	require.NoError(t, rep.save(filepath.Join(dir, "report.md")))
	b, err = os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Contains(t, string(b), "| verdict | passed |")
}

// TestTooLittleFails runs the program without faults, and asks for more than it does.
func TestTooLittleFails(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := execute(t.Context(), []string{
		"-backend", "pebble", "-duration", "1s", "-dir", t.TempDir(), "-workload", "bank", "-faults", "none",
		"-min-faults", "1", "-min-rate", "1000000",
	}, &out, io.Discard)
	require.ErrorIs(t, err, errFailed)
	require.Contains(t, out.String(), "needs 1000000")
	require.Contains(t, out.String(), "only 0 faults fired")
}

// TestGoesOnUntilEnough asks for more transactions than are tried in the duration.
func TestGoesOnUntilEnough(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.json")
	var out bytes.Buffer
	err := execute(t.Context(), []string{
		"-backend", "pebble", "-duration", "2s", "-dir", t.TempDir(), "-workload", "bank", "-faults", "none",
		"-rate", "60", "-min-rate", "100", "-report", path,
	}, &out, io.Discard)
	require.NoError(t, err, out.String())
	require.Contains(t, out.String(), "needs 200")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var rep report
	require.NoError(t, json.Unmarshal(b, &rep))
	require.GreaterOrEqual(t, rep.Committed, 200)
	require.Greater(t, rep.Lasted, 4*time.Second)
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-backend mysql", "-duration 0s", "-workload nothing", "-faults nothing", "-backend pebble -faults kill-server",
		"-backend redis-cluster -faults replace-master", "-backend postgres -lossy",
		"-clients 0", "-workers 0 -backend redis", "-threads 0", "-crew -1", "-crew 0", "-rate 0", "-min-rate -1", "-no-such-flag", "what",
	} {
		err := execute(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		var wrong usageError
		require.ErrorAs(t, err, &wrong, args)
	}
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"-list"}, &out, io.Discard))
	for _, w := range workloads() {
		require.Contains(t, out.String(), w.name)
	}
	for _, f := range faults() {
		require.Contains(t, out.String(), f.name)
	}
}

func TestFaultsFitTheirBackends(t *testing.T) {
	t.Parallel()
	names := func(b backend) (all []string) {
		fs, wrong, err := chooseFaults("all", b, false)
		require.NoError(t, err)
		require.True(t, wrong)
		for _, f := range fs {
			all = append(all, f.name)
		}
		return all
	}
	require.Equal(t, []string{"kill-all", "pause-process", "restart-process", "oracle-jump", "stranger"}, names(backendPebble))
	require.Contains(t, names(backendRedis), "flush-scripts")
	require.NotContains(t, names(backendRedis), "crash-backend")
	require.Contains(t, names(backendCluster), "failover")
	require.NotContains(t, names(backendCluster), "replace-master", "it loses acknowledged writes")
	require.Contains(t, names(backendPostgres), "crash-backend")
	fs, wrong, err := chooseFaults("cut,wrong-clock", backendRedis, false)
	require.NoError(t, err)
	require.True(t, wrong)
	require.Len(t, fs, 1)
	fs, wrong, err = chooseFaults("none", backendRedis, false)
	require.NoError(t, err)
	require.False(t, wrong)
	require.Empty(t, fs)
}
