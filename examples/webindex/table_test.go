package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessTable(t *testing.T) {
	t.Parallel()
	all := []processReport{
		{Process: 1, PID: 4711, State: stateRunning, Rate: 12.34, figures: figures{Pages: 100, Runs: 400, Conflicts: 3, Failures: 1}},
		{Process: 2, PID: 99, State: stateDead, figures: figures{Pages: 5, Runs: 100}},
		{Process: 3, PID: 100, State: stateStarting},
	}
	require.Equal(t, []string{
		"  process   pid     state  pages  pages/s  functions run  conflicts  calls for each run",
		"        1  4711   running    100     12.3            400          3                1.01",
		"        2    99      dead      5      0.0            100          0                1.00",
		"        3   100  starting      0      0.0              0          0                   -",
		"      all                    105     12.3            500          3                1.01",
	}, processTable(all))
	require.Equal(t, "1 starting, 1 running, 1 dead", statesText(all))
}

// display is a terminal, as far as the screen needs one.
type display struct {
	lines []string // the last one is where the cursor is
	width int
	t     testing.TB
}

func (d *display) Write(b []byte) (int, error) {
	text := string(b)
	if rest, ok := strings.CutPrefix(text, "\033["); ok {
		var up int
		_, err := fmt.Sscanf(rest, "%dA\r\033[J", &up)
		require.NoError(d.t, err)
		require.Less(d.t, up, len(d.lines), "above the terminal")
		d.lines = append(d.lines[:len(d.lines)-1-up], "")
		return len(b), nil
	}
	for _, r := range text {
		last := &d.lines[len(d.lines)-1]
		switch {
		case r == '\n':
			d.lines = append(d.lines, "")
		case len(*last) == d.width:
			d.lines = append(d.lines, string(r))
		default:
			*last += string(r)
		}
	}
	return len(b), nil
}

// Lines are painted in one place, what is written stands above them, and what is too long or
// too much for the terminal is left out.
func TestScreen(t *testing.T) {
	t.Parallel()
	d := &display{lines: []string{""}, width: 10, t: t}
	height := 6
	var failed error
	s := &screen{to: d, size: func() (int, int, error) { return d.width, height, failed }}
	require.True(t, s.live())
	shows := func(want ...string) {
		t.Helper()
		require.Equal(t, append(want, ""), d.lines)
	}
	s.print("first\n")
	shows("first")
	s.paint([]string{"a", "b"})
	s.paint([]string{"c", "d", "0123456789abcdef"})
	shows("first", "c", "d", "012345678")
	s.print("second %d\n", 2)
	shows("first", "second 2", "c", "d", "012345678")
	s.paint([]string{"1", "2", "3", "4", "5", "6", "7", "8"})
	d.width = 20
	s.paint([]string{"1", "2", "3", "4", "5", "6", "7", "8"})
	shows("first", "second 2", "1", "2", "3", "... and 4 more", "8")
	height = 2
	s.paint([]string{"1", "2", "3"})
	shows("first", "second 2", "3")
	height = 0 // nobody knows
	s.paint([]string{"1", "2", "3"})
	shows("first", "second 2", "1", "2", "3")
	failed = errors.New("no size")
	s.paint([]string{"1"})
	shows("first", "second 2", "1")
	s.paint(nil)
	shows("first", "second 2")

	var plain bytes.Buffer
	s = newScreen(&plain, time.Second)
	require.False(t, s.live())
	s.paint([]string{"nothing"})
	s.print("a line\n")
	s.paint(nil)
	require.Equal(t, "a line\n", plain.String())
}
