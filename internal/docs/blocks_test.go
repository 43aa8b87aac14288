package docs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/config"
)

// notCode are the languages of blocks that are not code, with the reason.
var notCode = map[string]string{
	"text":    "output, a formula or a form of addresses",
	"mermaid": "a picture, which the code host draws",
}

// outside are commands of other programs: only the syntax of the line is checked, because
// the program, or the server that it talks to, need not be here.
var outside = []string{
	"git", "docker", "pg_dump", "pg_restore", "psql", "createdb", "redis-cli", "curl", "systemctl", "kubectl",
	"tar", "cp", "mv", "rm", "mkdir", "export", "kill", "tiup", "bin/percolator-check",
	"percolator", // the tests of cmd/percolator run these
}

// documents calls visit for every document of the repository.
func documents(t *testing.T, visit func(path, text string)) {
	t.Helper()
	n := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && d.Name() != ".github" {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		n++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		visit(path, string(text))
		return err
	}))
	require.Greater(t, n, 20)
}

// TestBlocksOfTheDocuments checks all code of all documents; doc.go says how.
func TestBlocksOfTheDocuments(t *testing.T) {
	t.Parallel()
	var programs []string
	dir := t.TempDir()
	checked := map[string]int{}
	documents(t, func(path, text string) {
		blocks, err := Blocks(text)
		require.NoError(t, err, path)
		for _, b := range blocks {
			t.Run(fmt.Sprintf("%s:%d", path, b.Line), func(t *testing.T) {
				checked[kind(b)]++
				if program := checkBlock(t, b); program != "" {
					file := filepath.Join(dir, fmt.Sprint(len(programs)), "main.go")
					require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
					require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
					programs = append(programs, file)
				}
			})
		}
	})
	for _, file := range programs {
		out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
		require.NoError(t, err, "%s: %s", file, out)
	}
	t.Log(checked)
	for _, language := range []string{"go", "code", "yaml", "json", "sh", "indented"} {
		require.NotZero(t, checked[language], language)
	}
}

// kind is how a block is checked.
func kind(b Block) string {
	switch {
	case b.Unchecked != "":
		return "unchecked"
	case b.Code != "":
		return "code"
	}
	return b.Language
}

// checkBlock checks a block. What it returns is a Go program, which is yet to be
// compiled.
func checkBlock(t *testing.T, b Block) (program string) {
	t.Helper()
	switch kind(b) {
	case "unchecked":
		require.Greater(t, len(strings.Fields(b.Unchecked)), 2, "this is no reason")
	case "code":
		require.True(t, Contains(read(t, b.Code), b.Text), "this is not in %s, or differs", b.Code)
	case "go":
		require.Contains(t, b.Text, "\nfunc main() {", "neither a program nor named by <!-- code: PATH -->")
		return b.Text
	case "yaml":
		checkYAML(t, b.Text)
	case "json":
		for line := range strings.Lines(b.Text) {
			if !json.Valid([]byte(line)) {
				require.True(t, json.Valid([]byte(b.Text)), "not JSON")
				break
			}
		}
	case "sh", "indented":
		checkShell(t, b.Text)
	default:
		require.Contains(t, notCode, b.Language, "a block of a language that nothing checks")
	}
	return ""
}

// checkYAML checks a percolator.yaml by its schema, and anything else as YAML.
func checkYAML(t *testing.T, text string) {
	t.Helper()
	var top map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &top), "not YAML")
	if _, ok := top["stores"]; !ok {
		return
	}
	_, err := config.Parse([]byte(text), func(string) (string, bool) { return "set", true })
	require.NoError(t, err, "not a configuration")
}

// checkShell checks the syntax of commands, and that what they name is there.
func checkShell(t *testing.T, text string) {
	t.Helper()
	syntax := exec.CommandContext(t.Context(), "bash", "-n")
	syntax.Stdin = strings.NewReader(text)
	out, err := syntax.CombinedOutput()
	require.NoError(t, err, string(out))
	text = strings.ReplaceAll(text, "\\\n", " ")
	at := root // where a "cd" has gone
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " #")
		back := at
		for command := range strings.SplitSeq(line, "&&") {
			words := strings.Fields(command)
			for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) == 0 || strings.HasPrefix(words[0], "#") {
				continue
			}
			switch {
			case words[0] == "cd" && len(words) == 2:
				// A folder that the reader has just made, or cloned, is this one.
				if dir := filepath.Join(at, words[1]); words[1] != "notes" && words[1] != "percolate" {
					require.DirExists(t, dir, command)
					at = dir
				}
			case words[0] == "make":
				checkMake(t, words[1:])
			case words[0] == "go":
				checkGo(t, at, words[1:])
			case strings.HasPrefix(words[0], ".") || strings.HasPrefix(words[0], "scripts/"):
				require.FileExists(t, filepath.Join(at, words[0]), command)
			default:
				require.True(t, slices.Contains(outside, words[0]), "a command that nothing checks: %s", command)
			}
		}
		if strings.Contains(line, "&&") {
			at = back // each line that goes to a folder begins where the block begins
		}
	}
}

func checkMake(t *testing.T, words []string) {
	t.Helper()
	makefile := read(t, "Makefile")
	for _, w := range words {
		if name, _, set := strings.Cut(w, "="); set {
			require.Regexp(t, `(?m)\$\(`+regexp.QuoteMeta(name)+`\)`, makefile, "no variable of the Makefile: %s", name)
			if strings.ContainsAny(w, `"'`) {
				return // the words of a value follow
			}
		} else {
			require.Contains(t, makefile, "\n"+w+":", "no target of the Makefile: %s", w)
		}
	}
}

// checkGo checks the packages, and the flags of programs, that a go command names.
func checkGo(t *testing.T, at string, words []string) {
	t.Helper()
	verb := words[0]
	require.True(t, slices.Contains([]string{"run", "test", "build", "get", "mod", "install", "vet"}, verb), "go %s", verb)
	if verb == "get" || verb == "mod" {
		return
	}
	for i, w := range words[1:] {
		if w != "." && !strings.HasPrefix(w, "./") {
			continue
		}
		dir := filepath.Join(at, strings.TrimSuffix(w, "..."))
		require.DirExists(t, dir, "no such package: %s", w)
		if verb != "run" || w == "." && at == root { // "go run ." in the reader's own module
			return
		}
		source := ""
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, "no program in %s", w)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			source += string(b)
		}
		for _, flag := range words[i+2:] {
			if name, isFlag := strings.CutPrefix(flag, "-"); isFlag {
				name, _, _ = strings.Cut(name, "=")
				require.Contains(t, source, `"`+name+`"`, "no flag of %s", w+": "+flag)
			}
		}
		return
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	blocks, err := Blocks("text\n\n```go\na\n\tb\n```\n\n    make x\n\n    make y\n\nmore\n\n- item\n\n      not a block\n  ```sh\n  ls\n  ```\n\n" +
		"<!-- code: a/b.go -->\n```go\nx\n```\n<!-- unchecked: it is so -->\n\n    z\n")
	require.NoError(t, err)
	require.Equal(t, []Block{
		{Line: 4, Language: "go", Text: "a\n\tb\n"},
		{Line: 8, Language: "indented", Text: "make x\n\nmake y\n"},
		{Line: 18, Language: "sh", Text: "ls\n"},
		{Line: 23, Language: "go", Text: "x\n", Code: "a/b.go"},
		{Line: 27, Language: "indented", Text: "z\n", Unchecked: "it is so"},
	}, blocks)
	// A list ends at the next paragraph; a comment may stand right before its block.
	blocks, err = Blocks("- item\n\nmore\n\n    make x\n\ntext\n<!-- unchecked: it is so -->\n    make y\n\n<!-- unchecked: not this one -->\n```go\nx\n```\n```sh\nls\n```\n")
	require.NoError(t, err)
	require.Equal(t, []Block{
		{Line: 5, Language: "indented", Text: "make x\n"},
		{Line: 9, Language: "indented", Text: "make y\n", Unchecked: "it is so"},
		{Line: 13, Language: "go", Text: "x\n", Unchecked: "not this one"},
		{Line: 16, Language: "sh", Text: "ls\n"},
	}, blocks)
	for _, bad := range []string{"```go\n", "~~~go\nx\n~~~\n", "text\n\n\tmake x\n", "\t```go\n\tx\n\t```\n", "> ```go\n> x\n> ```\n", "<!-- code: x -->\ntext\n", "<!-- code: x -->\n<!-- code: y -->\n```go\n```\n", "<!-- code: x -->\n"} {
		_, err := Blocks(bad)
		require.Error(t, err, bad)
	}
}

func TestContains(t *testing.T) {
	t.Parallel()
	file := "func f() {\n\tif x {\n\t\treturn 1\n\t}\n\n\treturn 2\n}\n"
	for block, want := range map[string]bool{
		file:                                    true,
		"if x {\n\treturn 1\n}\n\nreturn 2\n":   true,
		"return 2\n":                            true,
		"if x {\n\t\treturn 1\n}\n":             false,
		"if x {\n\treturn 1\n}\nreturn 2\n":     false,
		"return 3\n":                            false,
		"if x {\n\treturn\n":                    false,
		"if x {\n\treturn 1\n}\n\nreturn":       false,
		"1\n":                                   false, // a line, not its end
		"x {\n\treturn 1\n}\n":                  false,
		"if x {\n\treturn 1\n}\n\n\nreturn 2\n": false,
		"return 1\n\n\n":                        true, // blank lines at the end do not count
		"func f() {\n\n":                        true,
		"if x {\n\n}\n":                         false,
		"if x {\n\treturn 1\n}\n\nreturn 22\n":  false,
	} {
		require.Equal(t, want, Contains(file, block), block)
	}
}
