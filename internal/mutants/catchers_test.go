package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const judged = `package judged

const limit = 1

func Limit() int { return limit }

func Half(n int) int { return n / 2 }
`

// TestCatchersPass has mutants that are caught by tests which fail with them alone, and by what fails always: that proves nothing, whichever way the
// mutant was tried, and whether a test failed or only its program.
func TestCatchersPass(t *testing.T) {
	t.Parallel()
	const begin = "package judged\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\nfunc TestOther(t *testing.T) { t.Fatal(\"it catches nothing\") }\n\n"
	for name, c := range map[string]struct{ tests, fails string }{
		"a test that notices":  {"func TestIt(t *testing.T) { if Limit() != 1 || Half(4) != 2 { t.Fatal() } }\n", ""},
		"a program that does":  {"func TestIt(*testing.T) {}\n\nfunc TestMain(m *testing.M) { m.Run(); if Limit() != 1 || Half(4) != 2 { os.Exit(1) } }\n", ""},
		"a test that fails":    {"func TestIt(t *testing.T) { t.Fatal() }\n", "tests of ./p fail without a mutant too: TestIt"},
		"a program that fails": {"func TestIt(*testing.T) {}\n\nfunc TestMain(m *testing.M) { m.Run(); os.Exit(1) }\n", "tests of ./p fail without a mutant too: a test program that fails"},
		"a test that panics":   {"func TestIt(*testing.T) { done := make(chan bool); go func() { panic(done) }(); <-done }\n", "tests of ./p fail without a mutant too"},
	} {
		for kind, m := range map[string]mutant{
			"woven":     {name: "half", rule: "x: y", edits: one("p/p.go", "n / 2", "n / 3"), tests: "./p ^TestIt$"},
			"not woven": {name: "limit", rule: "x: y", edits: one("p/p.go", "limit = 1", "limit = 2"), tests: "./p ^TestIt$"},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				root := t.TempDir()
				for file, text := range map[string]string{"go.mod": "module lab\n\ngo 1.26\n", "p/p.go": judged, "p/p_test.go": begin + c.tests} {
					path := filepath.Join(root, filepath.FromSlash(file))
					require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
					require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
				}
				var log bytes.Buffer
				l := &lab{tree: root, tmp: t.TempDir(), log: &log, narrow: true}
				err := l.testAll(t.Context(), []mutant{m}, 1)
				require.Contains(t, log.String(), "1 mutants, 1 caught")
				require.Equal(t, kind == "woven", l.weaving.woven[m.name] > 0)
				if c.fails == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.fails)
				}
			})
		}
	}
}

// What caught mutants is run once, with the arguments that it had: tests by their names, and all of a stage if no name is known.
func TestCatchersAreRunOnce(t *testing.T) {
	t.Parallel()
	var c catchers
	require.Empty(t, c.all())
	a := stage{pkg: "./a", run: "TestA"}
	explored := stage{pkg: "./a", run: "TestE", args: []string{"-explore.limit", "4"}}
	for range 2 {
		c.note(a, true, verdict{failed: true, names: []string{"TestB/x", "TestB", "TestA"}})
		c.note(stage{pkg: "./a"}, false, verdict{failed: true, names: []string{"TestA"}})
		c.note(a, true, verdict{failed: true, hung: true})
		c.note(explored, true, verdict{failed: true, names: []string{"TestE"}})
	}
	require.Equal(t, []catcher{
		{a, true},
		{stage{pkg: "./a", run: "^(TestA)$", args: []string{}, limit: wholeTimeout}, false},
		{stage{pkg: "./a", run: "^(TestA|TestB)$", args: []string{}, limit: wholeTimeout}, true},
		{stage{pkg: "./a", run: "^(TestE)$", args: explored.args, limit: wholeTimeout}, true},
	}, c.all())
}
