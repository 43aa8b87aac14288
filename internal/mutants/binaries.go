package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// binaries are the test programs of packages into which mutants were woven. Each is built when it is needed first.
type binaries struct {
	tree, dir, overlay string

	mu    sync.Mutex
	built map[string]*binary // by package
}

type binary struct {
	once sync.Once
	path string
	err  error
}

// newBinaries compiles what was woven. Mutants that spoil it are dropped from the weaving.
func newBinaries(ctx context.Context, w *weaving, tree, tmp string) (*binaries, error) {
	dir := filepath.Join(tmp, "woven")
	for {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			return nil, err
		}
		overlay, packages, err := w.write(tree, dir)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-overlay", overlay}, packages...)...) //nolint:gosec // of the copy
		cmd.Dir = tree
		out, err := cmd.CombinedOutput()
		switch {
		case err == nil || len(packages) == 0:
			return &binaries{tree: tree, dir: dir, overlay: overlay, built: map[string]*binary{}}, nil
		case w.drop(string(out)) == 0:
			return nil, fmt.Errorf("the mutants together do not compile: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
}

func (b *binaries) of(ctx context.Context, pkg string) (*binary, error) {
	b.mu.Lock()
	p := b.built[pkg]
	if p == nil {
		p = &binary{path: filepath.Join(b.dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "__")+".test")}
		b.built[pkg] = p
	}
	b.mu.Unlock()
	p.once.Do(func() {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", b.overlay, "-o", p.path, pkg) //nolint:gosec // of the copy
		cmd.Dir = b.tree
		if out, err := cmd.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("the mutants of %s together do not compile: %w: %s", pkg, err, strings.TrimSpace(string(out)))
		}
	})
	return p, p.err
}

// test runs a stage with the mutant of a number that is on, or none for 0, and says which tests failed.
func (b *binaries) test(ctx context.Context, s stage, mutant int) (verdict, error) {
	p, err := b.of(ctx, s.pkg)
	if err != nil {
		return verdict{}, err
	}
	return judge(ctx, b.command(ctx, p, s, mutant), s)
}

func (b *binaries) command(ctx context.Context, p *binary, s stage, mutant int) *exec.Cmd {
	args := []string{"tool", "test2json", "-t", p.path, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + s.timeout().String()}
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, s.args...)...) //nolint:gosec // a test of the copy
	cmd.Dir = filepath.Join(b.tree, filepath.FromSlash(s.pkg))
	cmd.Env = append(os.Environ(), mutantVariable+"="+strconv.Itoa(mutant))
	return cmd
}
