// Percolator looks into a database of package percolator and mends it: tables and cells, observers and what waits for
// them, locks and why a cell waits, processes, holds, garbage collection.
//
//	percolator --store pebble:/var/lib/shop tables
//	percolator --store postgres://shop@db/shop why order 17 state
//
// percolator help is the manual; docs/command.md has it with examples. Commands that only look write
// nothing. The exit status tells errors apart: percolator help exit.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/percolate-go/percolate/backends/all"
)

func main() {
	// Libraries may log to the default logger: the standard error is for errors, and with --json for JSON alone.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// What does not heed the first signal is killed by the second: a write to a pipe that nobody reads, say.
	context.AfterFunc(ctx, stop)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, nil)
	stop()
	os.Exit(status)
}

// run runs the command and returns its exit status. opened, if not nil, opens the store in place of --store and
// --config.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, opened opener) int {
	a := &app{stdin: stdin, out: stdout, err: stderr, opened: opened}
	root := a.root()
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if arg == "-json" { // as programs of Go have it
			args[i] = "--json"
		}
		a.jsonAsked = a.jsonAsked || args[i] == "--json"
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.writeErr
	}
	return a.exit(ctx, err)
}
