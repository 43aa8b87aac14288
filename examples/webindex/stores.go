package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A plain build has no backend but memstore.Store, so that "go run ./examples/webindex"
// compiles in a fraction of the time. The build tag everystore adds all backends
// (everystore.go). A plain build that is asked for another store compiles that build,
// and runs it in its place.

const (
	modulePath = "github.com/percolate-go/percolate/examples/webindex"
	storesTag  = "everystore"
)

// plainBuild tells whether this program has no backend compiled in.
func plainBuild() bool { return len(rowstore.Schemes()) == 0 }

// needsStores tells whether the store that the flags name is not in this program.
func (s *settings) needsStores() bool {
	return plainBuild() && (s.config != "" || s.store != "memory:")
}

// openStore opens the store that -store names.
func openStore(ctx context.Context, url string, opts ...percolator.Option) (*percolator.DB, error) {
	if plainBuild() && url == "memory:" {
		return percolator.New(ctx, memstore.New(), opts...)
	}
	return percolator.Open(ctx, url, opts...)
}

// runWithStores compiles this program with every backend, if that has not been done yet,
// and runs it with the same arguments. It returns its exit status.
func runWithStores(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program, err := buildWithStores(ctx, stderr)
	if err != nil {
		if ctx.Err() != nil {
			_, _ = fmt.Fprintln(stderr, "webindex: interrupted")
			return 130
		}
		_, _ = fmt.Fprintf(stderr, "webindex: this program was built with no store but memory:, and building it with the others failed: %v\n"+
			"Run this in the repository, with the flags that you gave:\n\n  go run -tags %s ./examples/webindex\n\n", err, storesTag)
		return 1
	}
	if stdout == os.Stdout && stderr == os.Stderr {
		// A child would go on working on the store, unseen, if this process were killed.
		if err := become(program, args); !errors.Is(err, errors.ErrUnsupported) {
			_, _ = fmt.Fprintln(stderr, "webindex:", err)
			return 1
		}
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the program was just built
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	// The program ends by itself when it is interrupted: it finishes its commits.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err = cmd.Run()
	var status *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status) && status.ExitCode() > 0:
		return status.ExitCode()
	case ctx.Err() != nil:
		return 130
	default:
		_, _ = fmt.Fprintln(stderr, "webindex:", err)
		return 1
	}
}

// buildWithStores returns the path of the program with every backend. It lies in the
// user's cache, where the go command leaves it as it is while it is up to date.
func buildWithStores(ctx context.Context, stderr io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(cache, "percolate", "webindex-"+storesTag)
	if err := os.MkdirAll(filepath.Dir(program), 0o750); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-tags", storesTag, "-o", program, modulePath) //nolint:gosec // of constants
	out, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	said := followBuild(lines, stderr)
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, strings.Join(said, "\n"))
	}
	return program, nil
}

// followBuild reads what "go build -v" says: the packages that it compiles. After two
// seconds, and then every ten, it shows how far the build is. It returns the last lines.
func followBuild(lines <-chan string, stderr io.Writer) (last []string) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	began, packages := time.Now(), 0
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return last
			}
			packages++
			if last = append(last, line); len(last) > 10 {
				last = last[1:]
			}
		case <-tick.C:
			tick.Reset(10 * time.Second)
			if packages == 0 {
				_, _ = fmt.Fprintf(stderr, "webindex: building with every backend (once): linking, %.0f s\n", time.Since(began).Seconds())
				continue
			}
			_, _ = fmt.Fprintf(stderr, "webindex: building with every backend (once): %d packages of about 500, %.0f s\n", packages, time.Since(began).Seconds())
		}
	}
}
