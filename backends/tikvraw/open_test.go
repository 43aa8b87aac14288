package tikvraw_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	childTask = "TIKVRAW_TEST_CHILD"
	childURL  = "TIKVRAW_TEST_URL"
)

// child runs this test again in a process of its own, where it finds its task, and
// returns what that wrote.
func child(t *testing.T, task, url string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$") //nolint:gosec // itself
	// The clients' log is on, as it is in a program.
	cmd.Env = append(os.Environ(), childTask+"="+task, childURL+"="+url, "PERCOLATOR_TEST_TIKV_LOG=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	require.NoError(t, err, "%s\n%s", out.String(), errs.String())
	return out.String(), errs.String()
}

// TestChild is what child runs.
func TestChild(t *testing.T) {
	url := os.Getenv(childURL)
	var err error
	switch os.Getenv(childTask) {
	case "":
		t.Skip("it is the child process of other tests, which run it, and tests nothing alone")
	case "print":
		err = childPrints(t.Context(), url)
	case "leak":
		err = childFails(t.Context(), url)
	case "slog":
		err = childLogs(t.Context(), url)
	case "zap":
		err = childKeepsItsLogger(t.Context(), url)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func childPrints(ctx context.Context, url string) error {
	s, err := rowstore.Open(ctx, url)
	if err != nil {
		return err
	}
	if _, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: 9}}}}); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode("the program's own")
}

// childFails opens in every way that fails and looks for what is left.
func childFails(ctx context.Context, url string) error {
	before := goleak.IgnoreCurrent()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for i := range 3 {
		short, cancel := context.WithTimeout(ctx, time.Duration(i+1)*time.Millisecond)
		brief, cancelBrief := context.WithTimeout(ctx, time.Duration(i+1)*300*time.Millisecond)
		for _, try := range []struct {
			ctx context.Context //nolint:containedctx // a case
			url string
		}{
			{ended, url},
			{short, url},
			{brief, url + "?prefix=another"},
			{ctx, url + "?api=v2&keyspace=unknown"},
			{ctx, url + "?api=v2"},
			{brief, strings.Replace(os.Getenv(childURL), "127.0.0.1", "127.0.0.1:1,127.0.0.1", 1)},
		} {
			s, err := rowstore.Open(try.ctx, try.url)
			if err == nil {
				err = s.Close()
			}
			fmt.Fprintf(os.Stderr, "%s: %v\n", try.url, err)
		}
		cancel()
		cancelBrief()
	}
	return goleak.Find(before)
}

// TestQuiet: what a program prints is its own. The clients of TiKV and PD would tell on
// standard output what they do.
func TestQuiet(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	stdout, stderr := child(t, "print", c.URL()+"?prefix="+prefix())
	require.Equal(t, "\"the program's own\"\n", stdout)
	require.NotContains(t, stderr, "INFO")
	require.NotContains(t, stderr, "create pd client")
}

// TestOpenEnded opens with contexts that have ended.
func TestOpenEnded(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rowstore.Open(ended, c.URL())
	require.ErrorIs(t, err, context.Canceled)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = rowstore.Open(late, c.URL())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for i := range 8 {
		soon, cancel := context.WithTimeout(t.Context(), time.Duration(i)*3*time.Millisecond)
		s, err := rowstore.Open(soon, c.URL()+"?prefix="+prefix())
		cancel()
		if err == nil {
			require.NoError(t, s.Close())
			continue
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	// A PD that takes connections and says nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, l.Close()) })
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = rowstore.Open(soon, "tikv://"+l.Addr().String())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = rowstore.Open(t.Context(), "tikv://"+l.Addr().String()+"?request_timeout=100ms")
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
}

// TestFailedOpens leave nothing behind.
func TestFailedOpens(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	_, stderr := child(t, "leak", c.URL())
	t.Log(stderr)
}
