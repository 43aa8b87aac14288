// Command torture finds out whether the promises hold when everything dies. It
// starts servers, and processes that run transactions and observers on them. It kills,
// pauses and cuts off both all the time. Then it judges what the processes saw: by the
// timestamps, by the values alone, and by what each workload must keep true.
//
//	go run . -list
//	go run . -backend redis -duration 10m
//	go run . -backend postgres -workload bank,ledger -faults kill-server,cut -seed 7
//
// Processes log each transaction before they commit it and after. So the log knows of
// everything that can be in the store, even if processes are killed. If the two lines
// do not tell how a transaction ended, it counts as unknown.
//
// The exit status is 0 if nothing was wrong and enough was done, 1 if not, and 2 if
// the flags are wrong.
//
// It is a module of its own, so that toxiproxy never enters the library's go.mod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	// Those that the URLs of runs name.
	_ "github.com/percolate-go/percolate/backends/pebble"
	_ "github.com/percolate-go/percolate/backends/postgres"
	_ "github.com/percolate-go/percolate/backends/redis"
)

func main() {
	if c := os.Getenv(childVariable); c != "" {
		if err := childMain(c); err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var usage usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// usageError is a mistake in the flags.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errFailed says that a run ended and found violations.
var errFailed = errors.New("the run failed")

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c config
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	name := flags.String("backend", "pebble", "pebble, redis, redis-cluster, postgres, or multi: tables in Postgres and in Redis")
	flags.DurationVar(&c.Duration, "duration", time.Minute, fmt.Sprintf("how long faults fire; up to %d times as long where a slow machine did too little to prove anything", mostRounds))
	flags.Uint64Var(&c.Seed, "seed", 0, "of all random choices, 0 for a new one; what the machine makes of them differs from run to run")
	flags.StringVar(&c.Faults, "faults", "all", "kinds of faults, separated by commas, or none")
	flags.StringVar(&c.Workloads, "workload", "all", "workloads, separated by commas")
	flags.IntVar(&c.Clients, "clients", 3, "processes that run transactions")
	flags.IntVar(&c.Workers, "workers", 2, "processes that run observers")
	flags.IntVar(&c.Crew, "crew", 3, "workers of the relay, which come and go all the time")
	flags.IntVar(&c.Threads, "threads", 6, "transactions that a client runs at once")
	flags.Float64Var(&c.Rate, "rate", 600, "transactions a second that all clients try together")
	flags.Float64Var(&c.MinRate, "min-rate", 5, "committed transactions, for each second of -duration, below which the run proves nothing, and fails")
	flags.IntVar(&c.MinFaults, "min-faults", -1, "faults below which the run proves nothing, and fails; -1 for one in 12 s, and at least one")
	flags.BoolVar(&c.Lossy, "lossy", false, "run servers that lose what they acknowledged: a Redis without a log, a cluster whose replicas replace killed masters; violations are reported, and not judged")
	flags.StringVar(&c.Dir, "dir", "", "directory for logs and embedded stores; it is kept (default: a temporary one, kept if the run fails)")
	reportPath := flags.String("report", "", "files for the report, separated by commas: in Markdown where one ends with .md, else JSON")
	rejudge := flags.String("check", "", "judge the history in this file by both checkers, and stop")
	list := flags.Bool("list", false, "list workloads and faults, and stop")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	c.Backend = backend(*name)
	if flags.NArg() > 0 {
		return usage("what is %q? (arguments are given as flags; -help lists them)", flags.Arg(0))
	}
	if err := c.check(); err != nil {
		return err
	}
	if *list {
		printList(stdout)
		return nil
	}
	if *rejudge != "" {
		return judgeFile(*rejudge, stdout)
	}
	if err := c.complete(); err != nil {
		return err
	}
	return runAndReport(ctx, c, *reportPath, stdout)
}

// check finds mistakes in single flags.
func (c *config) check() error {
	switch {
	case !slices.Contains(backends(), c.Backend):
		return usage("there is no backend %q: there are %v", c.Backend, backends())
	case c.Duration <= 0:
		return usage("-duration %v is not positive", c.Duration)
	case c.Clients < 1 || c.Workers < 0 || c.Threads < 1:
		return usage("-clients %d, -workers %d, -threads %d: there must be clients and threads", c.Clients, c.Workers, c.Threads)
	case c.Crew < 0:
		return usage("-crew %d is negative", c.Crew)
	case c.Lossy && !c.Backend.lossy():
		return usage("-lossy: %s loses nothing", c.Backend)
	case !(c.Rate > 0) || c.MinRate < 0:
		return usage("-rate %v must be positive and -min-rate %v not negative", c.Rate, c.MinRate)
	}
	return nil
}

// complete finds mistakes in workloads and faults, and sets what no flag says.
func (c *config) complete() error {
	chosen, err := chooseWorkloads(c.Workloads)
	if err != nil {
		return usageError{err}
	}
	if len(observers(nil, chosen)) > 0 && c.Workers == 0 {
		return usage("-workers 0: the workloads have observers")
	}
	if has(chosen, relayName) && c.Crew == 0 {
		return usage("-crew 0: the workload %s needs one", relayName)
	}
	if _, _, err := chooseFaults(c.Faults, c.Backend, c.Lossy); err != nil {
		return usageError{err}
	}
	if c.MinFaults < 0 {
		c.MinFaults = max(1, int(c.Duration/(12*time.Second)))
		if c.Faults == "none" {
			c.MinFaults = 0
		}
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	return nil
}

// runAndReport runs, prints and saves the report, and keeps the logs of a run that failed.
func runAndReport(ctx context.Context, c config, reportPath string, stdout io.Writer) (err error) {
	temporary := c.Dir == ""
	if temporary {
		if c.Dir, err = os.MkdirTemp("", "percolator-torture-"); err != nil {
			return err
		}
	}
	r := &run{config: c, out: stdout, report: newReport(c)}
	err = r.execute(ctx)
	rep := r.report
	if err != nil {
		rep.Error = err.Error()
	}
	rep.Passed = err == nil && (c.Lossy || len(rep.Violations) == 0)
	rep.print(stdout)
	for path := range strings.SplitSeq(reportPath, ",") {
		if path != "" {
			err = errors.Join(err, rep.save(path))
		}
	}
	if temporary && rep.Passed && !c.Lossy {
		err = errors.Join(err, os.RemoveAll(c.Dir))
	} else {
		fmt.Fprintf(stdout, "logs are in %s\n", c.Dir)
	}
	if err == nil && !rep.Passed {
		err = errFailed
	}
	return err
}

func printList(w io.Writer) {
	fmt.Fprintln(w, "workloads:")
	for _, l := range workloads() {
		fmt.Fprintf(w, "  %-18s %s\n", l.name, l.about)
	}
	fmt.Fprintln(w, "faults:")
	for _, f := range faults() {
		on := "every server"
		if f.on != nil {
			on = fmt.Sprint(f.on)
		}
		fmt.Fprintf(w, "  %-18s %s: %s\n", f.name, on, f.about)
	}
	fmt.Fprintf(w, "  %-18s %v: processes whose clocks are wrong by up to 12 hours\n", faultWrongClock, backends())
}
