package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSkipsAreInTheTable holds the tables of docs/development.md to the code: each function
// that skips a test is in a row with its file, and each row still skips. So a test that
// somebody begins to skip is noticed, and where it runs instead must be said.
func TestSkipsAreInTheTable(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+\\.go)` \\| ([^|]+) \\|([^|]+)\\|([^|]+)\\|$").FindAllStringSubmatch(read(t, "docs/development.md"), -1) {
		require.NotEmpty(t, strings.TrimSpace(row[3]), "why does %s skip?", row[1])
		require.NotEmpty(t, strings.TrimSpace(row[4]), "where does %s run?", row[1])
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			described[row[1]+" "+name[1]] = true
		}
	}
	require.Equal(t, described, skips(t))
}

// skips finds the functions of the repository that skip a test, each with its file.
func skips(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(source), ".Skip") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && skipping(t, path, f) {
				found[filepath.ToSlash(path)+" "+f.Name.Name] = true
			}
		}
		return err
	}))
	return found
}

// skipping tells whether a function skips a test, and fails if it does so without a reason.
func skipping(t *testing.T, path string, f *ast.FuncDecl) bool {
	t.Helper()
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || method.Sel.Name != "Skip" && method.Sel.Name != "Skipf" && method.Sel.Name != "SkipNow" {
			return true
		}
		found = true
		require.NotEmpty(t, call.Args, "%s: %s skips a test without a reason", path, f.Name.Name)
		return true
	})
	return found
}
