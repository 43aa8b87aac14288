package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../.."

// The list rots unless every change of the protocol's sources keeps it up to date.
func TestEveryMutantApplies(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, len(mutants), 30)
	names := map[string]bool{}
	for _, m := range mutants {
		require.Regexp(t, regexp.MustCompile(`^[a-z-]+$`), m.name)
		require.False(t, names[m.name], "two mutants are called %s", m.name)
		names[m.name] = true
		require.NotEmpty(t, m.rule)
		require.NotEmpty(t, m.edits)
		for _, e := range m.edits {
			require.NotEqual(t, e.old, e.new, m.name)
		}
		// All that rot at once, for who has changed much.
		if err := apply(root, &m, map[string]string{}); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// A rule that cites a section cites one that is there.
func TestEveryRuleHasItsSection(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	sections := map[string]bool{"stores": true}
	for _, m := range regexp.MustCompile(`(?m)^## ([^:\n]+)`).FindAllStringSubmatch(string(text), -1) {
		sections[m[1]] = true
	}
	for _, m := range mutants {
		section, rule, _ := strings.Cut(m.rule, ": ")
		require.NotEmpty(t, rule, m.name)
		require.True(t, sections[section], "%s: no section %q", m.name, section)
	}
}

// A mutant that names a test which is not there is caught by nothing, in a narrow run, though the others of its tests may hide that.
func TestEveryMutantNamesTests(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{} // by directory
	for _, m := range mutants {
		dir, run, ok := strings.Cut(m.tests, " ")
		if !ok {
			dir, run = corePackage, m.tests
		}
		if run == "" {
			continue
		}
		if tests[dir] == nil {
			files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
			require.NoError(t, err)
			require.NotEmpty(t, files, "%s: no tests in %s", m.name, dir)
			for _, file := range files {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				for _, f := range regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+|Example\w*)\(`).FindAllStringSubmatch(string(text), -1) {
					tests[dir] = append(tests[dir], f[1])
				}
			}
		}
		for name := range strings.SplitSeq(run, "|") {
			name, _, _ = strings.Cut(name, "/")
			if !slices.ContainsFunc(tests[dir], regexp.MustCompile(name).MatchString) {
				t.Errorf("%s: no test of %s matches %q", m.name, dir, name)
			}
		}
	}
}

func TestApplyRefusesWhatIsNotThereOnce(t *testing.T) {
	t.Parallel()
	for _, old := range []string{"no such text", "err != nil", ""} {
		m := mutant{edits: []edit{{file: "internal/mutants/main.go", old: old, new: "x"}}}
		require.ErrorContains(t, apply(root, &m, map[string]string{}), "not once")
	}
	m := mutant{edits: []edit{{file: "no/such/file.go", old: "a", new: "b"}}}
	require.Error(t, apply(root, &m, map[string]string{}))
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]verdict{
		"":                        {},
		"TestA/x":                 {failed: true, names: []string{"TestA", "TestA/x"}},
		"TestA, TestB and 1 more": {failed: true, names: []string{"TestC", "TestB", "TestA", "TestA"}, hung: true},
		"a test that hangs":       {failed: true, hung: true, panicked: true},
		"a test that panics":      {failed: true, panicked: true},
		"a test program that fails, though none of its tests does": {failed: true},
	} {
		require.Equal(t, want, v.String())
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, []string{"-list", "-run", "^no-fence$"}))
	require.Contains(t, out.String(), "fence the primary first")
	require.ErrorContains(t, run(t.Context(), &out, []string{"-run", "no such mutant"}), "no mutant matches")
	require.ErrorContains(t, run(t.Context(), &out, []string{"-run", "("}), "-run")
	require.ErrorContains(t, run(t.Context(), &out, []string{"stray"}), "bad arguments")
}

// A survivor and an error both end the program with a failure.
func TestReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lab{log: &out}
	two := mutants[:2]
	require.NoError(t, l.report(two, []result{{by: "TestA"}, {by: "TestB"}}, 0))
	require.ErrorContains(t, l.report(two, []result{{by: "TestA"}, {}}, 0), "1 of 2")
	require.ErrorContains(t, l.report(two, []result{{by: "TestA"}, {err: bytes.ErrTooLarge}}, 0), "1 of 2")
	require.Contains(t, out.String(), "**nothing**")
}
