package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
)

// errFindings ends the command after the findings were shown.
var errFindings = errors.New("something was found")

const doctorHelp = `Looks for what is wrong or risky: server settings, permissions (on Redis only with --load), clocks, round trips, settings of the database, processes,
locks of dead processes, holds, garbage collection, observers and what waits for them, parked runs, timers. Each finding says what to
change. A store that cannot be opened is a finding too.

It writes nothing, unless --load is given: that commits for a moment in the table percolator.doctor, and removes the rows afterwards.

The exit status is 0 if nothing was found that is wrong or risky, and 10 otherwise. A note does not count.`

func (a *app) doctorCommand() *cobra.Command {
	var o admin.DoctorOptions
	var l admin.LoadOptions
	var load bool
	c := &cobra.Command{
		Use: "doctor", Short: "Find what is wrong or risky", Long: doctorHelp, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.ran = true
			ctx, cancel := a.within(cmd.Context())
			defer cancel()
			d, err := a.diagnose(ctx, o)
			if err == nil && load {
				err = a.measure(ctx, &d, l)
			}
			if err == nil {
				err = show(a, d, diagnosis)
			}
			if err == nil && d.Amiss() {
				return errFindings
			}
			return err
		},
	}
	f := c.Flags()
	f.DurationVar(&o.MaxSkew, "max-skew", 0, "how far the oracle's time may be from this machine's clock (default 10s)")
	f.DurationVar(&o.Waiting, "waiting", 0, "how long a change may wait without a worker, a timer be overdue, a dead lock stand (default 1m)")
	f.DurationVar(&o.Behind, "behind", 0, "how long a change may wait for workers (default 15m)")
	f.DurationVar(&o.Forgotten, "forgotten", 0, "how long a change may wait for a paused observer (default 24h)")
	f.IntVar(&o.Parked, "parked", 0, "how many parked runs of an observer are many (default 100)")
	f.IntVar(&o.Rows, "rows", 0, "how many rows of each table to look at for locks (default 1000)")
	f.BoolVar(&load, "load", false, "measure commits too: writes to the table percolator.doctor, and removes the rows")
	f.IntVar(&l.Commits, "commits", 0, "with --load, how many commits (default 200, for 5s at most)")
	f.IntVar(&l.Clients, "clients", 0, "with --load, how many commit at the same time (default 4)")
	return c
}

// diagnose looks. A store that cannot be opened is a finding.
func (a *app) diagnose(ctx context.Context, o admin.DoctorOptions) (admin.Diagnosis, error) {
	store, _, err := a.openStore(ctx, true)
	if err != nil {
		return a.unopened(err)
	}
	defer func() { _ = store.Close() }()
	r, err := admin.New(store)
	if err != nil {
		return admin.Diagnosis{}, err
	}
	return r.Doctor(ctx, o)
}

// unopened makes a finding of an error, if it is about the store and not about how the command was called.
func (a *app) unopened(err error) (admin.Diagnosis, error) {
	f, ok := admin.CannotOpen(err)
	if !ok || errors.As(err, &usageError{}) || errors.Is(err, config.ErrInvalid) || errors.Is(err, pebble.ErrInUse) {
		return admin.Diagnosis{}, err
	}
	return admin.Diagnosis{Findings: []admin.Finding{f}}, nil
}

// measure adds what a load shows. A database that cannot be opened for writing is a finding.
func (a *app) measure(ctx context.Context, d *admin.Diagnosis, l admin.LoadOptions) error {
	db, err := a.openDB(ctx)
	if err != nil {
		unopened, err := a.unopened(err)
		d.Findings = append(d.Findings, unopened.Findings...)
		return err
	}
	load, err := admin.MeasureLoad(ctx, db, l)
	if cerr := closeDB(ctx, db); err == nil {
		err = cerr
	}
	if err != nil {
		if errors.Is(err, percolator.ErrInvalid) {
			return err
		}
		return fmt.Errorf("the load: %w", err)
	}
	d.Load = &load
	d.Findings = append(d.Findings, load.Findings()...)
	return nil
}

func diagnosis(w *page, d admin.Diagnosis) {
	if d.Backend != "" {
		w.line("%s %s; a read of a row takes %v; its time is %v", d.Backend, d.Version, quick(d.RoundTrip), skew(d.Ahead))
	}
	if l := d.Load; l != nil {
		w.line("%d commits of %d clients: %v, one of a hundred %v, the longest %v; %.0f/s", l.Commits, l.Clients, l.Median, l.P99, l.Longest, l.Rate)
	}
	for _, f := range d.Findings {
		w.line("%s (%s): %s", f.Grade, f.Code, f.What)
		if f.Change != "" {
			w.line("    -> %s", f.Change)
		}
	}
	switch n := len(d.Findings); n {
	case 0:
		w.line("nothing was found")
	case 1:
		w.line("1 finding")
	default:
		w.line("%d findings", n)
	}
}

// quick shows a round trip, which takes less than a millisecond where the store is near.
func quick(s admin.Span) string {
	if d := time.Duration(s); d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return s.String()
}

func skew(ahead admin.Span) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind this machine's clock", -ahead)
	}
	return fmt.Sprintf("%v ahead of this machine's clock", ahead)
}
