// Command bank moves money between accounts, many transfers at a time, while it
// reads all accounts again and again: every read must find the same total. It is
// the smallest program that shows what snapshot isolation is for.
//
//	go run ./examples/bank -store memory: -duration 5s
//	go run ./examples/bank -store 'tikv://pd1:2379,pd2:2379?prefix=bank'
//	go run ./examples/bank -pool postgres://localhost/shop
//
// With -pool it shows how a program that has a pool of connections to Postgres gives it to
// percolator and goes on to use it for SQL of its own: see pool.go.
//
// Several processes may run on one store that takes several. It ends with a
// report, and with status 1 if a total was ever wrong.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "bank:", err)
	stop()
	if bad := (usageError{}); errors.As(err, &bad) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var store, file, pool string
	var cfg options
	flags := flag.NewFlagSet("bank", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&store, "store", "", "`URL` of the store (default memory:)")
	flags.StringVar(&file, "config", "", "open the database that this `file` describes, instead of -store")
	flags.StringVar(&pool, "pool", "", "`URL` of a Postgres: keep the accounts over the program's own pool of connections, instead of -store,\nand note the runs in the table bank_runs of the same database")
	flags.IntVar(&cfg.accounts, "accounts", 1000, "number of accounts, opened at the first run on a store; 0 takes what is there")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long to run")
	flags.Int64Var(&cfg.transfers, "transfers", 0, "stop after this many transfers (0: only -duration counts)")
	flags.IntVar(&cfg.workers, "workers", 16, "transfers at a time")
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of the choice of accounts (0: a new one, which is printed)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: everything is given by flags, see -help", flags.Arg(0))}
	}
	if err := cfg.check(); err != nil {
		return usageError{err}
	}
	given := 0
	for _, source := range []string{store, file, pool} {
		if source != "" {
			given++
		}
	}
	if given > 1 {
		return usageError{errors.New("-store and -config exclude each other, and -pool excludes both")}
	}
	if pool != "" {
		return playOverPool(ctx, pool, cfg, stdout)
	}
	var db *percolator.DB
	var err error
	if file != "" {
		db, err = config.Open(ctx, file)
	} else {
		db, err = percolator.Open(ctx, cmp.Or(store, "memory:"))
	}
	if err != nil {
		return err
	}
	_, err = playAndClose(ctx, db, cfg, stdout)
	return err
}

// playOverPool plays on a database over a pool that the program has.
func playOverPool(ctx context.Context, url string, cfg options, stdout io.Writer) error {
	l, err := openLedger(ctx, url)
	if err != nil {
		return err
	}
	var r *report
	db, err := l.open(ctx)
	if err == nil {
		r, err = playAndClose(ctx, db, cfg, stdout)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, l.close(closing, r))
}

// playAndClose plays, closes the database and prints the report.
func playAndClose(ctx context.Context, db *percolator.DB, cfg options, stdout io.Writer) (*report, error) {
	r, err := play(ctx, db, cfg)
	// What is still in the background belongs to transfers that were reported:
	// Close waits for it, also when ctx has ended.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if cerr := db.Close(closing); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close the store: %w", cerr))
	}
	if r != nil {
		r.print(stdout)
	}
	return r, err
}
