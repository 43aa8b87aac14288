package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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
	mu   sync.Mutex
	// caught are the outermost tests that failed with some mutant. They must pass without any.
	caught map[string]bool
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
		p = &binary{path: filepath.Join(b.dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "__")+".test"), caught: map[string]bool{}}
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

// test runs a stage with a mutant that is on, and names the tests that failed.
func (b *binaries) test(ctx context.Context, s stage, mutant int) (by string, err error) {
	p, err := b.of(ctx, s.pkg)
	if err != nil {
		return "", err
	}
	names, hung, err := judge(ctx, b.command(ctx, p, s, mutant, s.timeout()), s)
	if err != nil || names == nil {
		return "", err
	}
	p.mu.Lock()
	for _, n := range names {
		outermost, _, _ := strings.Cut(n, "/")
		p.caught[outermost] = true
	}
	p.mu.Unlock()
	return summary(names, hung), nil
}

func (b *binaries) command(ctx context.Context, p *binary, s stage, mutant int, limit time.Duration) *exec.Cmd {
	args := []string{"tool", "test2json", "-t", p.path, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + limit.String()}
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, s.args...)...) //nolint:gosec // a test of the copy
	cmd.Dir = filepath.Join(b.tree, filepath.FromSlash(s.pkg))
	cmd.Env = append(os.Environ(), mutantVariable+"="+strconv.Itoa(mutant))
	return cmd
}

// sound says whether the tests that caught mutants pass where none is on. Else they prove nothing.
func (b *binaries) sound(ctx context.Context) error {
	for _, pkg := range slices.Sorted(maps.Keys(b.built)) {
		p := b.built[pkg]
		if p.err != nil || len(p.caught) == 0 {
			continue
		}
		tests := slices.Sorted(maps.Keys(p.caught))
		for i := range tests {
			tests[i] = regexp.QuoteMeta(tests[i])
		}
		s := stage{pkg: pkg, run: "^(" + strings.Join(tests, "|") + ")$"}
		for _, e := range (&mutant{}).stages() {
			if e.pkg == pkg && e.args != nil {
				s.args = e.args
			}
		}
		names, hung, err := judge(ctx, b.command(ctx, p, s, 0, wholeTimeout), s)
		if err != nil {
			return fmt.Errorf("running the tests of %s without a mutant: %w", pkg, err)
		}
		if names != nil {
			return fmt.Errorf("tests of %s fail without a mutant too: %s", pkg, summary(names, hung))
		}
	}
	return nil
}
