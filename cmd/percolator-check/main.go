// Percolator-check judges recorded histories of transactions: it tells whether they
// are possible under snapshot isolation, or serializable.
//
// usage: percolator-check [flags] [FILE...]
//
// It reads JSON lines, as package checker writes them, or a history for elle-cli. It
// reads the files, or its standard input if there are none. Then it runs two checkers:
// one trusts the timestamps, if the history has any; the other looks at values alone.
// The exit status is 0 if neither found a violation, 1 if one did, and 2 if the history
// could not be read or judged, or if a flag is wrong. Flags are judged before anything is
// read, and one that could find nothing is wrong: -idle looks for changes that no run of an
// observer saw, so it needs -observe, and that needs the timestamps.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/percolate-go/percolate/checker"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

const (
	exitOK        = 0
	exitViolation = 1
	exitError     = 2
)

// config holds the values of the flags.
type config struct {
	model      string
	isolation  string
	judge      checker.Judge
	timestamps string
	observers  []checker.Observer
	idle       bool
	noRealTime bool
	examples   int
	export     string
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet("percolator-check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: percolator-check [flags] [FILE...]\n\nJudges histories of transactions (JSON lines, or a history for elle-cli). Exit status: 0 no violation, 1 violation, 2 error.\n\n")
		flags.PrintDefaults()
	}
	flags.StringVar(&c.model, "model", "", "what the history must consist of: list-append or register (default: either, or both)")
	flags.StringVar(&c.isolation, "isolation", "", "level to judge by: si or serializable (default: what each transaction asked for)")
	flags.StringVar(&c.timestamps, "timestamps", "auto", "also judge by timestamps: yes, no, or auto (if the history has any)")
	flags.BoolVar(&c.idle, "idle", false, "the history ends with no work left for the observers (with -observe)")
	flags.BoolVar(&c.noRealTime, "no-realtime", false, "leave the times out of account")
	flags.IntVar(&c.examples, "examples", 5, "how many anomalies of each kind to explain")
	flags.StringVar(&c.export, "export", "", "write the history for elle-cli, as edn or json, instead of judging it")
	flags.Func("observe", "NAME=GLOB: judge the runs of an observer of these keys (path.Match; repeatable)", func(s string) error {
		name, glob, ok := strings.Cut(s, "=")
		if _, err := path.Match(glob, ""); err != nil || !ok || name == "" {
			return errors.New("NAME=GLOB expected")
		}
		c.observers = append(c.observers, checker.Observer{Name: name, Observes: func(key string) bool {
			match, err := path.Match(glob, key)
			return err == nil && match
		}})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitError
	}
	if err := c.judgeFlags(); err != nil {
		fmt.Fprintln(stderr, "percolator-check:", err)
		return exitError
	}
	ok, err := c.check(flags.Args(), stdin, stdout)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "percolator-check:", err)
		return exitError
	case !ok:
		return exitViolation
	}
	return exitOK
}

// judgeFlags refuses flags that are wrong, or that could find nothing: without that a history with a violation would pass.
func (c *config) judgeFlags() error {
	switch c.model {
	case "", "list-append", "register":
	default:
		return fmt.Errorf("-model is %q, not list-append or register", c.model)
	}
	switch c.isolation {
	case "":
	case "si":
		c.judge = checker.AsSnapshotIsolation
	case "serializable":
		c.judge = checker.AsSerializable
	default:
		return fmt.Errorf("-isolation is %q, not si or serializable", c.isolation)
	}
	switch c.timestamps {
	case "yes", "no", "auto":
	default:
		return fmt.Errorf("-timestamps is %q, not yes, no or auto", c.timestamps)
	}
	switch c.export {
	case "", "edn", "json":
	default:
		return fmt.Errorf("-export is %q, not edn or json", c.export)
	}
	switch {
	case c.examples < 0:
		return fmt.Errorf("-examples is %d: it must be 0 or more", c.examples)
	case c.idle && len(c.observers) == 0:
		return errors.New("-idle judges observers: name them with -observe")
	case len(c.observers) > 0 && c.timestamps == "no":
		return errNoTimestamps
	}
	return nil
}

var errNoTimestamps = errors.New("-observe needs timestamps")

// check reads and judges the history. ok is false if there was a violation.
func (c *config) check(paths []string, stdin io.Reader, stdout io.Writer) (ok bool, err error) {
	var h checker.History
	if len(paths) == 0 {
		h, err = checker.ReadHistory(stdin)
	} else {
		h, err = checker.ReadFiles(paths...)
	}
	if err != nil {
		return false, err
	}
	if err := c.checkModel(h); err != nil {
		return false, err
	}
	switch c.export {
	case "edn":
		return true, checker.Export(stdout, h, checker.EDN)
	case "json":
		return true, checker.Export(stdout, h, checker.JSON)
	}
	if len(h) == 0 {
		return false, errors.New("the history is empty")
	}
	byTimestamps := c.timestamps == "yes"
	if c.timestamps == "auto" {
		for i := range h {
			byTimestamps = byTimestamps || h[i].Start != 0
		}
	}
	if c.judge != checker.ByRecord {
		level := checker.SnapshotIsolation
		if c.judge == checker.AsSerializable {
			level = checker.Serializable
		}
		for i := range h {
			h[i].Isolation = level
		}
	}
	ok = true
	if byTimestamps {
		r, err := checker.CheckTimestamps(h, checker.TimestampOptions{Observers: c.observers, Idle: c.idle, NoRealTime: c.noRealTime, Examples: c.examples})
		if err != nil {
			return false, err
		}
		if err := r.Write(stdout); err != nil {
			return false, err
		}
		fmt.Fprintln(stdout)
		ok = r.OK()
	} else if len(c.observers) > 0 {
		return false, errNoTimestamps
	}
	r, err := checker.CheckValues(h, checker.ValueOptions{Judge: c.judge, NoRealTime: c.noRealTime, Examples: c.examples})
	if err != nil {
		return false, err
	}
	return ok && r.OK(), r.Write(stdout)
}

// checkModel makes sure that the history is of the model that was asked for.
func (c *config) checkModel(h checker.History) error {
	if c.model == "" {
		return nil
	}
	for i := range h {
		for _, op := range h[i].Ops {
			isList := op.Kind == checker.ReadList || op.Kind == checker.Append
			// A read of nothing occurs in both models.
			if isList != (c.model == "list-append") && !(op.Kind == checker.Read && op.Absent) {
				return fmt.Errorf("transaction %d has %s, which model %s has not", i+1, op, c.model)
			}
		}
	}
	return nil
}
