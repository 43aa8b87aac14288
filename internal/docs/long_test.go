package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	longestFunction = 70
	longestFile     = 600
	// longReason stands in the comment that says why a function or a file is longer.
	longReason = "is long because"
)

// TestNothingIsLongWithoutAReason holds every function to 70 lines, from "func" to the last
// brace, and every file of code to 600, unless its first comment has the words of
// longReason, and says why it reads best in one piece.
func TestNothingIsLongWithoutAReason(t *testing.T) {
	t.Parallel()
	files, functions := 0, 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".lua", ".sql", ".sh"}, filepath.Ext(path)) {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if filepath.Ext(path) != ".go" {
			if n := strings.Count(string(source), "\n"); n > longestFile {
				t.Errorf("%s has %d lines, more than %d: divide it", name, n, longestFile)
			}
			return nil
		}
		n, over, err := longParts(name, source)
		functions += n
		for _, p := range over {
			t.Errorf("%s: %s has %d lines, more than %d: divide it, or write in its first comment that it %s ...", p.at, p.name, p.lines, p.most, longReason)
		}
		return err
	}))
	require.Greater(t, files, 100)
	require.Greater(t, functions, 1000)
}

// long is a function or a file with more lines than it may have without a reason.
type long struct {
	name, at    string
	lines, most int
}

// longParts counts the functions of a file, and finds those that are long without a reason,
// and the file itself if it is.
func longParts(name string, source []byte) (functions int, over []long, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return 0, nil, err
	}
	lines := strings.Count(string(source), "\n")
	if lines > longestFile && (len(file.Comments) == 0 || !givesReason(file.Comments[0])) {
		over = append(over, long{name: name, at: name + ":1", lines: lines, most: longestFile})
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		functions++
		begin, end := set.Position(f.Pos()), set.Position(f.End())
		lines := end.Line - begin.Line + 1
		if lines > longestFunction && !givesReason(f.Doc) {
			over = append(over, long{
				name: name + " " + f.Name.Name, at: fmt.Sprintf("%s:%d", name, begin.Line),
				lines: lines, most: longestFunction,
			})
		}
	}
	return functions, over, nil
}

// givesReason tells whether a comment says why something is long.
func givesReason(c *ast.CommentGroup) bool {
	return strings.Contains(strings.Join(strings.Fields(c.Text()), " "), longReason)
}

// TestLongPartsAreFound shows that the gate sees a long function and a long file, and lets
// those pass that give their reason.
func TestLongPartsAreFound(t *testing.T) {
	t.Parallel()
	function := func(comment string, lines int) string {
		return comment + "func f() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n"
	}
	for what, c := range map[string]struct {
		source string
		at     []string
	}{
		"short":             {function("", 70), nil},
		"long":              {function("", 71), []string{"f.go:3"}},
		"long, a comment":   {function("// f calls g.\n", 71), []string{"f.go:4"}},
		"long, a reason":    {function("// f calls g. It is long\n// because it is a list.\n", 71), nil},
		"a reason too late": {function("", 71) + "\n// f is long because it is a list.\n", []string{"f.go:3"}},
		"file":              {strings.Repeat("// A line.\n", 600), []string{"f.go:1"}},
		"file, a reason":    {"// This file is long because it is a list.\n" + strings.Repeat("\nvar _ = 1\n", 300), nil},
	} {
		_, over, err := longParts("f.go", []byte("package p\n\n"+c.source))
		require.NoError(t, err)
		var at []string
		for _, p := range over {
			at = append(at, p.at)
		}
		require.Equal(t, c.at, at, what)
	}
}
