// Command mutants breaks the protocol on purpose, one rule at a time, and shows
// which test catches each: a test suite is worth what it finds.
//
//	go run ./internal/mutants [-run regexp] [-list] [-narrow] [-jobs n]
//
// It works on a copy of the tree. A mutant whose text is no longer in the sources,
// or that does not compile, is an error, so that the list cannot rot; one that no
// test catches makes the program end with status 1.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	log := os.Stdout
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, log, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1) //nolint:gocritic // nothing else is deferred
	}
}

func run(ctx context.Context, log io.Writer, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	only := flags.String("run", "", "only mutants whose names match this regular expression")
	list := flags.Bool("list", false, "list the mutants and the rules that they break")
	jobs := flags.Int("jobs", 2, "mutants tested at once")
	narrow := flags.Bool("narrow", false, "only the tests that a mutant names, and without a mutant only those that caught one: a first look, also on a busy machine")
	root := flags.String("root", ".", "the root of the module")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *jobs < 1 {
		return fmt.Errorf("bad arguments %q", args)
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return !match.MatchString(m.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant matches %q", *only)
	}
	if *list {
		for _, m := range chosen {
			fmt.Fprintf(log, "%-36s %s\n", m.name, m.rule)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lab := &lab{tree: filepath.Join(dir, "tree"), tmp: dir, log: log, narrow: *narrow}
	if err := copyTree(*root, lab.tree); err != nil {
		return fmt.Errorf("copying the tree: %w", err)
	}
	return lab.testAll(ctx, chosen, *jobs)
}

// lab is a copy of the tree in which mutants are tried.
type lab struct {
	tree, tmp string
	log       io.Writer
	narrow    bool
	weaving   *weaving
	binaries  *binaries
	catchers  catchers
}

// result is what became of a mutant.
type result struct {
	by   string // the tests that caught it, "" for none
	err  error
	took time.Duration
}

func (l *lab) testAll(ctx context.Context, chosen []mutant, jobs int) error {
	began := time.Now()
	if !l.narrow {
		fmt.Fprintf(l.log, "%d mutants; first the tests as they are\n", len(chosen))
		if by, err := l.sound(ctx); err != nil || by != "" {
			return errors.Join(err, fmt.Errorf("the tests fail without any mutant: %s", cmp.Or(by, "see the error")))
		}
	}
	var err error
	if l.weaving, err = weave(l.tree, chosen); err != nil {
		return err
	}
	if l.binaries, err = newBinaries(ctx, l.weaving, l.tree, l.tmp); err != nil {
		return err
	}
	results := make([]result, len(chosen))
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range jobs {
		wg.Go(func() {
			for i := range next {
				r := l.test(ctx, &chosen[i])
				mu.Lock()
				results[i] = r
				verdict := cmp.Or(r.by, "SURVIVED")
				if r.err != nil {
					verdict = "ERROR: " + r.err.Error()
				}
				fmt.Fprintf(l.log, "%-36s %5.1fs  %s\n", chosen[i].name, r.took.Seconds(), verdict)
				mu.Unlock()
			}
		})
	}
	for i := range chosen {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(l.report(chosen, results, time.Since(began)), l.catchersPass(ctx))
}

func (l *lab) report(chosen []mutant, results []result, took time.Duration) error {
	fmt.Fprintf(l.log, "\n| mutant | rule | caught by |\n|---|---|---|\n")
	survived, failed := 0, 0
	for i, r := range results {
		by := r.by
		switch {
		case r.err != nil:
			failed++
			by = "error"
		case by == "":
			survived++
			by = "**nothing**"
		}
		fmt.Fprintf(l.log, "| %s | %s | %s |\n", chosen[i].name, chosen[i].rule, by)
	}
	fmt.Fprintf(l.log, "\n%d mutants, %d caught, %d survived, %d errors, %v\n", len(chosen), len(chosen)-survived-failed, survived, failed, took.Round(time.Second))
	if survived+failed > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", survived+failed, len(chosen))
	}
	return nil
}

// stage is one go test.
type stage struct {
	pkg, run string
	args     []string
	limit    time.Duration // 0 for the usual one
}

const (
	corePackage    = "./percolator"
	explorePackage = "./internal/explore"
)

// stages are what is tried on a mutant, the narrow first.
func (m *mutant) stages() []stage {
	var all []stage
	if pkg, run, ok := strings.Cut(m.tests, " "); ok {
		return []stage{{pkg: pkg, run: run}, {pkg: pkg}}
	}
	if m.tests != "" {
		all = append(all, stage{pkg: corePackage, run: m.tests})
	}
	return append(all,
		stage{pkg: explorePackage, run: "^TestExplore$", args: []string{"-explore.limit", "400", "-explore.random", "200", "-explore.seed", "1"}},
		stage{pkg: corePackage})
}

// sound runs what the mutants are tried with on the tree as it is.
func (l *lab) sound(ctx context.Context) (failed string, err error) {
	for _, s := range (&mutant{}).stages() {
		if v, err := l.goTest(ctx, s, ""); err != nil || v.failed {
			return v.String(), err
		}
	}
	return "", nil
}

func (l *lab) test(ctx context.Context, m *mutant) (r result) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	stages := m.stages()
	if l.narrow {
		stages = stages[:1]
	}
	number := l.weaving.woven[m.name]
	overlay := ""
	if number == 0 {
		var err error
		if overlay, err = l.overlay(m); err != nil {
			return result{err: err}
		}
	}
	for _, s := range stages {
		v, err := l.try(ctx, s, number, overlay)
		if err != nil {
			return result{err: err}
		}
		if v.failed {
			l.catchers.note(s, number > 0, v)
			return result{by: v.String()}
		}
	}
	return result{}
}

// try runs a stage with a mutant: one that is woven in by its number, another one by its overlay.
func (l *lab) try(ctx context.Context, s stage, number int, overlay string) (verdict, error) {
	if number > 0 {
		return l.binaries.test(ctx, s, number)
	}
	return l.goTest(ctx, s, overlay)
}

// overlay writes the mutant's files beside the tree, and what tells the compiler
// to take them.
func (l *lab) overlay(m *mutant) (path string, err error) {
	dir := filepath.Join(l.tmp, m.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	texts := map[string]string{}
	if err := apply(l.tree, m, texts); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, text := range texts {
		changed := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(l.tree, file)] = changed
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}

// apply fills texts with the files that a mutant changes, as it changes them.
func apply(root string, m *mutant, texts map[string]string) error {
	for _, e := range m.edits {
		text, ok := texts[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file))) //nolint:gosec // a file of the list
			if err != nil {
				return err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return fmt.Errorf("%s: the text to replace is there %d times, not once: %q", e.file, n, e.old)
		}
		texts[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return nil
}

// A mutant that hangs is caught by these limits, which are several times what the
// tests take.
const (
	testTimeout  = 2 * time.Minute  // of those that a mutant names
	wholeTimeout = 15 * time.Minute // of a package
)

func (s stage) timeout() time.Duration {
	switch {
	case s.limit > 0:
		return s.limit
	case s.run == "", s.pkg == explorePackage:
		return wholeTimeout
	}
	return testTimeout
}

// goTest runs tests and says which failed. The error is for tests that could not run.
func (l *lab) goTest(ctx context.Context, s stage, overlay string) (verdict, error) {
	// Compiling takes most of the time, so it does without vet, and without the tables of a debugger.
	args := []string{"test", "-json", "-count=1", "-timeout", s.timeout().String(), "-vet=off", "-ldflags=-s -w"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	args = append(append(args, s.pkg), s.args...)
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // go test, on the copy
	cmd.Dir = l.tree
	return judge(ctx, cmd, s)
}

// copyTree copies the sources of the module.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(dst, 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path) //nolint:gosec // a file of the tree
		if err != nil {
			return err
		}
		return os.WriteFile(dst, b, 0o600) //nolint:gosec // into the copy
	})
}
