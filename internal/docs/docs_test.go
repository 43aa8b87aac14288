package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(b)
}

func TestProgramOfTheREADMERuns(t *testing.T) {
	t.Parallel()
	_, rest, found := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, found, "the README has no program")
	program, _, found := strings.Cut(rest, "```")
	require.True(t, found, "the program has no end")
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "note 1 has 6 words\n", string(out))
}

// TestEverySchemeIsDescribed holds the lists of backends to what is registered.
func TestEverySchemeIsDescribed(t *testing.T) {
	t.Parallel()
	same := map[string]string{"postgresql": "postgres", "rediss": "redis", "unix": "redis"} // spellings of one backend
	for _, path := range []string{"README.md", "docs/backends.md"} {
		described := map[string]bool{}
		for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+):[^`]*` \\|").FindAllStringSubmatch(read(t, path), -1) {
			described[m[1]] = true
		}
		registered := map[string]bool{}
		for _, scheme := range rowstore.Schemes() {
			scheme, _, _ = strings.Cut(scheme, "+")
			if s, ok := same[scheme]; ok {
				scheme = s
			}
			registered[scheme] = true
		}
		require.Equal(t, registered, described, path)
	}
}

// TestBackendStepByStepIsTheExample holds the code in the walk through a backend to the file
// that it is taken from.
func TestBackendStepByStepIsTheExample(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(read(t, "docs/backends.md"), "\n## A backend, step by step\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n## ")
	source := read(t, "examples/boltstore/boltstore.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(text, -1)
	require.Greater(t, len(blocks), 10)
	for _, b := range blocks {
		require.Contains(t, source, b[1])
	}
	// The text says that it is short.
	code := 0
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			code++
		}
	}
	require.Less(t, code, 250)
}

var (
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// TestLinksLeadSomewhere follows the links between files. Those to other sites are
// not followed: a test must not need the network.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	documents(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(root, filepath.Dir(path), to))
			require.NoError(t, err, "a link of %s", path)
		}
	})
}

// TestTestsOfTheDocumentsExist looks for each test that the documents name, whole or by its beginning and a star: a proof that is not there proves nothing.
func TestTestsOfTheDocumentsExist(t *testing.T) {
	t.Parallel()
	var all []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		return err
	}))
	documents(t, func(path, text string) {
		for _, m := range regexp.MustCompile("`(Test[A-Z0-9]\\w*)([*]?)").FindAllStringSubmatch(text, -1) {
			require.True(t, slices.ContainsFunc(all, func(name string) bool {
				return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1])
			}), "%s names %s", path, m[0][1:])
		}
	})
}

// TestCommandsOfTheDocumentsExist looks for each `make target` of the prose in the
// Makefile. Commands in blocks are TestBlocksOfTheDocuments' part.
func TestCommandsOfTheDocumentsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	documents(t, func(path, text string) {
		for _, m := range regexp.MustCompile("`make ([a-z]+)").FindAllStringSubmatch(text, -1) {
			require.Contains(t, makefile, "\n"+m[1]+":", path)
		}
	})
}
