package main

import (
	"os"
	"path/filepath"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
)

// TestAnotherApplication has each command meet what is another application's. It says so by the exit status of that kind, advises no migration, and
// changes nothing.
func TestAnotherApplication(t *testing.T) {
	t.Parallel()
	whole := filepath.Join(t.TempDir(), "whole.backup")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", whole).status)
	for name, make := range map[string]func(t *testing.T, dir string){
		"a file": func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "letter.txt"), []byte("x"), 0o600))
		},
		"a database": func(t *testing.T, dir string) { t.Helper(); otherDatabase(t, dir, &engine.Options{}) },
		"a new database": func(t *testing.T, dir string) {
			t.Helper()
			otherDatabase(t, dir, &engine.Options{FormatMajorVersion: engine.FormatNewest})
		},
		"a database with values of its own": func(t *testing.T, dir string) {
			t.Helper()
			merger := *engine.DefaultMerger
			merger.Name = "another.merger"
			otherDatabase(t, dir, &engine.Options{Merger: &merger})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			make(t, dir)
			before := contents(t, dir)
			for _, args := range [][]string{
				{"doctor"},
				{"doctor", "--load"},
				{"tables"},
				{"set", "--new", "t", "r", "c", "v"},
				{"migrate"},
				{"migrate", "check"},
				{"migrate", "run", "--make"},
				{"restore", whole},
			} {
				a := ask(t, "pebble:"+dir, args...)
				require.Equal(t, exitFormat, a.status, "%q: %s%s", args, a.out, a.err)
				require.Contains(t, a.err, "it is another application's", "%q", args)
				require.NotContains(t, a.out+a.err, "migrat", "%q", args)
			}
			require.Equal(t, before, contents(t, dir))
		})
	}
}

// otherDatabase makes a database of another application that uses the same engine.
func otherDatabase(t *testing.T, dir string, opts *engine.Options) {
	t.Helper()
	opts.Logger = silent{t}
	db, err := engine.Open(dir, opts)
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte("k"), []byte("v"), engine.Sync))
	require.NoError(t, db.Close())
}

// silent is a logger of the engine.
type silent struct{ t *testing.T }

func (silent) Infof(string, ...any)                {}
func (silent) Errorf(string, ...any)               {}
func (s silent) Fatalf(format string, args ...any) { s.t.Errorf(format, args...) }

// contents is what each file of a directory holds.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[e.Name()] = string(b)
	}
	return all
}
