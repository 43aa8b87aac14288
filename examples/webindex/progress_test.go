package main

import (
	"bytes"
	"testing"
	"testing/synctest"
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
	synctest.Test(t, func(t *testing.T) {
		stderr := &watched{}
		s := newScreen(stderr, 2*time.Second)
		quick := s.doing("quick")
		time.Sleep(time.Second)
		quick()
		require.Empty(t, stderr.String())
		stop := s.doing("reading the pages")
		time.Sleep(5 * time.Second)
		stop()
		stop()
		time.Sleep(time.Minute)
		require.Equal(t, "reading the pages: 2 s\nreading the pages: 4 s\n", stderr.String())
	})
}
