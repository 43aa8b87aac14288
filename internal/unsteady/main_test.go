package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2030, 1, 10, 12, 0, 0, 0, time.UTC)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestUnsteadyTooOften(t *testing.T) {
	t.Parallel()
	const report = "example.org/m/pkg.TestA/part: 2 runs, 1 failures\nexample.org/m/pkg.TestB: 3 runs, 3 failures\n"
	const again, other = "2030-01-09 example.org/m/pkg.TestB example.org/m/pkg.TestA/part\n", "2030-01-09 example.org/m/pkg.TestA\n"
	six := ""
	for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
		six += "example.org/m/pkg.Test" + name + ": 2 runs, 1 failures\n"
	}
	for name, c := range map[string]struct{ record, report, want string }{
		"nothing failed":           {"", "", ""},
		"for the first time":       {"", report, ""},
		"for the second time":      {"# what this is\n\n" + again, report, ""},
		"for the third time":       {again + other + again, report, "to be mended: example.org/m/pkg.TestA/part"},
		"third, and steady again":  {again + again, "", ""},
		"third, in eleven runs":    {again + again + strings.Repeat("2030-01-09\n", 8), report, ""},
		"third, in ten runs":       {again + again + strings.Repeat("2030-01-09\n", 7), report, "to be mended"},
		"always failed":            {"", "example.org/m/pkg.TestB: 3 runs, 3 failures\n", ""},
		"a leak, beside its tests": {"", "example.org/m/pkg.TestMain: 0 runs, 0 failures\n", ""},
		"many at once":             {"", six, "6 tests were unsteady"},
		"six, of which four are":   {"", strings.ReplaceAll(strings.ReplaceAll(six, "TestE:", "TestA/part/of:"), "TestF:", "TestA/part:"), ""},
		"no day":                   {"soon example.org/m/pkg.TestA", "", "soon"},
		"strange report":           {"", "DATA RACE\n", "not a line of a report"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(&out, []string{"-record", file(t, c.record), file(t, c.report), filepath.Join(t.TempDir(), "none")}, now)
			if c.want == "" {
				require.NoError(t, err, out.String())
				require.Contains(t, out.String(), "\n2030-01-10")
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
	require.Error(t, run(io.Discard, []string{"-record", "/nonexistent"}, now))
	require.Error(t, run(io.Discard, []string{"-nonsense"}, now))
}

// The line that is printed is one that can be read.
func TestLineOfARun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(&out, []string{"-record", file(t, ""), file(t, "example.org/m/pkg.TestA: 2 runs, 1 failures\n")}, now))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	record, err := readRecord(file(t, lines[len(lines)-1]))
	require.NoError(t, err)
	require.Equal(t, [][]string{{"example.org/m/pkg.TestA"}}, record)
}

// The record of this repository is one that can be read.
func TestRecordOfThisRepository(t *testing.T) {
	t.Parallel()
	_, err := readRecord("../../.ci/unsteady")
	require.NoError(t, err)
}
