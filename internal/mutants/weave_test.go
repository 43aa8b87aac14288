package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

const wovenProgram = `package main

import "fmt"

type pair[K comparable, V any] struct {
	k K
	v V
}

func (p *pair[K, V]) swap(v V) { p.v = v }

func total[N int | float64](first N, more ...N) (sum N) {
	sum = first
	for _, m := range more {
		sum += m
	}
	return sum
}

func unnamed(int) string { return "unnamed" }

const constant = "constant"

func main() {
	p := pair[string, int]{"a", 1}
	p.swap(2)
	fmt.Print(total(1, 2, 3), p.v, unnamed(0), constant)
}
`

// Each mutant is on by itself, none is on by default, and those that change more than bodies stay out, as do those that do not compile.
func TestWeave(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	put("go.mod", "module woven\n\ngo 1.26\n")
	put("main.go", wovenProgram)
	change := func(name, from, to string) mutant { return mutant{name: name, edits: one("main.go", from, to)} }
	all := []mutant{
		change("more", "sum += m", "sum += m + 1"),
		change("less", "sum += m", "sum -= m"),
		change("not-compiled", "sum += m", `sum += "m"`),
		change("method", "p.v = v", "_ = v"),
		change("no-name", `return "unnamed"`, `return "named"`),
		change("constant", `"constant"`, `"variable"`),
		change("signature", "(sum N)", "(sum N /* */)"),
		change("declaration", "type pair", "type other int\n\ntype pair"),
		change("not-parsed", "p.v = v", "p.v = = v"),
	}
	w, err := weave(root, all)
	require.NoError(t, err)
	_, err = newBinaries(t.Context(), w, root, out)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"more": 1, "less": 2, "method": 4}, w.woven)

	program := filepath.Join(out, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(out, "woven", "overlay.json"), "-o", program, ".") //nolint:gosec // its own program
	build.Dir = root
	b, err := build.CombinedOutput()
	require.NoError(t, err, string(b))
	for number, want := range map[int]string{0: "6 2unnamedconstant", 1: "8 2unnamedconstant", 2: "-4 2unnamedconstant", 4: "6 1unnamedconstant"} {
		cmd := exec.CommandContext(t.Context(), program) //nolint:gosec // its own program
		cmd.Env = append(os.Environ(), mutantVariable+"="+strconv.Itoa(number))
		got, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, string(got), number)
	}
}

// Nearly all mutants share a build. One that need not be alone makes the whole run longer.
func TestNearlyEveryMutantIsWoven(t *testing.T) {
	t.Parallel()
	w, err := weave(root, mutants)
	require.NoError(t, err)
	require.Greater(t, len(w.woven), len(mutants)*9/10)
	_, err = weave(root, []mutant{{name: "rotten", edits: one(commitGo, "no such text", "x")}})
	require.ErrorContains(t, err, "rotten")
}
