package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run whose standard error is no terminal says by lines what is under way.
func TestLinesSayWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	stderr := &watched{}
	s, err := parseFlags([]string{"-dir", linked(t, "site", 40), "-check", "-json"}, stderr)
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, s.every)
	s.every = time.Millisecond
	var out bytes.Buffer
	require.NoError(t, s.execute(t.Context(), &out, stderr), "%s", stderr)
	require.Regexp(t, `(?m)^(loading|indexing), \d+ of 40 pages: 0 s$`, stderr.String())
	require.NotContains(t, stderr.String(), "\033[", "this is no terminal")
}

// What takes less than a while is not told, and nothing is written once it has ended.
func TestSaying(t *testing.T) {
	t.Parallel()
	stderr := &watched{}
	slow := newScreen(stderr, time.Hour)
	slow.doing("quick")()
	require.Empty(t, stderr.String())
	lines := make(chan string, 1)
	stderr.line = func(line string) {
		select {
		case lines <- line:
		default:
		}
	}
	stop := newScreen(stderr, time.Millisecond).doing("reading the pages")
	require.Regexp(t, `^reading the pages: \d+ s$`, <-lines)
	stop()
	stop()
	said := stderr.String()
	time.Sleep(10 * time.Millisecond)
	require.Equal(t, said, stderr.String())
}
