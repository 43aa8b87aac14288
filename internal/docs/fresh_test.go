package docs

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const modulePath = "github.com/percolate-go/percolate"

// TestProgramsBuildInAFreshModule does what a new user does: it makes a module, runs the
// "go get" commands of a document, and has the go command load the document's first
// program. A "go get" of the module's path alone is not enough for that: it leaves the
// sums of the packages' own dependencies out of go.sum.
func TestProgramsBuildInAFreshModule(t *testing.T) {
	t.Parallel()
	settings, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	modules, elsewhere, _ := strings.Cut(strings.TrimSpace(string(settings)), "\n")
	fetched := filepath.Join(modules, "cache", "download")
	proxy := publish(t)
	// A new module loads more of the graph than this one does. What this one never fetched
	// comes from where it would.
	env := append(os.Environ(), "GOPROXY=file://"+proxy+",file://"+fetched+","+elsewhere, "GOSUMDB=off", "GONOSUMDB=*", "GONOPROXY=none", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw", "GOWORK=off")
	for _, document := range []string{"README.md", "docs/tutorial.md"} {
		text := read(t, document)
		_, rest, found := strings.Cut(text, "```go\n")
		require.True(t, found)
		program, _, _ := strings.Cut(rest, "```")
		gets := regexp.MustCompile(`(?m)^ *go (get .*)$`).FindAllStringSubmatch(text, -1)
		require.NotEmpty(t, gets, document)

		dir := t.TempDir()
		run := func(args ...string) {
			cmd := exec.CommandContext(t.Context(), "go", args...)
			cmd.Dir, cmd.Env = dir, env
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s\n%s", document, cmd, out)
		}
		run("mod", "init", "notes")
		for _, g := range gets {
			command, _, _ := strings.Cut(g[1], " #")
			run(strings.Fields(command)...)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
		run("list", "-deps", ".")
	}
}

// publish makes a module proxy, in a directory, that has this module at the branch main.
func publish(t *testing.T) (dir string) {
	t.Helper()
	const version = "v0.0.0-20260101000000-000000000000"
	dir = t.TempDir()
	at := filepath.Join(dir, filepath.FromSlash(modulePath), "@v")
	require.NoError(t, os.MkdirAll(at, 0o750))
	info := `{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`
	for name, text := range map[string]string{"list": version + "\n", "main.info": info, version + ".info": info, version + ".mod": read(t, "go.mod")} {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
	}
	file, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	z := zip.NewWriter(file)
	tree := os.DirFS(root)
	require.NoError(t, fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := fs.Stat(tree, path+"/go.mod")
			if path != "." && (strings.HasPrefix(d.Name(), ".") || err == nil) { // a module of its own
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") && path != "go.mod" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		w, err := z.Create(modulePath + "@" + version + "/" + path)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}))
	require.NoError(t, z.Close())
	require.NoError(t, file.Close())
	return dir
}
