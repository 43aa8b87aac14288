package checker_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/checker"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// histories gives the hand-made histories of a directory: path, the kind of anomaly
// that the name begins with, and whether it is the bad one of its pair.
func histories(t *testing.T, dir string, f func(t *testing.T, path string, kind checker.Kind, bad bool)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		kind, rest, _ := strings.Cut(name, ".")
		bad := strings.HasSuffix(rest, "bad")
		require.True(t, bad || strings.HasSuffix(rest, "good"), path)
		pair := strings.TrimSuffix(strings.TrimSuffix(path, "bad.jsonl"), "good.jsonl")
		for _, other := range []string{"bad", "good"} {
			require.FileExists(t, pair+other+".jsonl")
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, path, checker.Kind(kind), bad)
		})
	}
}

func golden(t *testing.T, path string, reports ...*checker.Report) {
	t.Helper()
	var b strings.Builder
	for i, r := range reports {
		if i > 0 {
			b.WriteString("\n----\n")
		}
		require.NoError(t, r.Write(&b))
	}
	path = strings.TrimSuffix(path, ".jsonl") + ".golden"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./checker -update writes it")
	require.Equal(t, string(want), b.String())
}

// kinds sorts the anomalies by what forbids them.
var permittedBySnapshotIsolation = map[checker.Kind]bool{checker.KindG2Item: true}

func TestValueHistories(t *testing.T) {
	t.Parallel()
	histories(t, "values", func(t *testing.T, path string, kind checker.Kind, bad bool) {
		h, err := checker.ReadFiles(path)
		require.NoError(t, err)
		si := checkValues(t, h, checker.ValueOptions{Judge: checker.AsSnapshotIsolation})
		ser := checkValues(t, h, checker.ValueOptions{Judge: checker.AsSerializable})
		recorded := checkValues(t, h, checker.ValueOptions{})
		require.Equal(t, si.Counts, recorded.Counts, "no transaction asked for more than snapshot isolation")
		switch {
		case !bad:
			require.NoError(t, si.Err())
			require.NoError(t, ser.Err())
		case permittedBySnapshotIsolation[kind]:
			require.NoError(t, si.Err())
			require.Len(t, si.Permitted, 1)
			require.Equal(t, kind, si.Permitted[0].Kind)
			require.True(t, ser.Has(kind), ser.Err())
		default:
			require.True(t, si.Has(kind), si.Err())
			require.True(t, ser.Has(kind), ser.Err())
		}
		for i := range h {
			h[i].Isolation = checker.Serializable
		}
		require.Equal(t, ser.Counts, checkValues(t, h, checker.ValueOptions{}).Counts)
		golden(t, path, si, ser)
	})
}

func TestTimestampHistories(t *testing.T) {
	t.Parallel()
	histories(t, "timestamps", func(t *testing.T, path string, kind checker.Kind, bad bool) {
		h, err := checker.ReadFiles(path)
		require.NoError(t, err)
		o := checker.TimestampOptions{}
		if kind == checker.KindUnneededRun || kind == checker.KindMissedChange {
			o.Idle = true
			o.Observers = []checker.Observer{{Name: "o", Observes: func(key string) bool { return key == "x" }}}
		}
		r := checkTimestamps(t, h, o)
		if bad {
			require.True(t, r.Has(kind), "%v", r.Err())
		} else {
			require.NoError(t, r.Err())
		}
		golden(t, path, r)
	})
}

func checkValues(t require.TestingT, h checker.History, o checker.ValueOptions) *checker.Report {
	r, err := checker.CheckValues(h, o)
	require.NoError(t, err)
	return r
}
