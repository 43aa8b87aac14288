package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Grade tells how bad a finding is.
type Grade string

// Grades of findings.
const (
	Wrong Grade = "wrong" // something does not work, or stops working if it is left alone
	Risky Grade = "risky" // it works, and a crash, a failover or the load may show that it does not
	Note  Grade = "note"  // nothing is wrong, and you should know of it
)

// Finding is something that is wrong or risky, or worth knowing, in words.
type Finding struct {
	// Code names the kind of finding, for programs. It stays the same from version to version.
	Code  string `json:"code"`
	Grade Grade  `json:"grade"`
	What  string `json:"what"`
	// Change says what to do about it. It is empty where What says that too: what stores say of themselves does.
	Change string `json:"change,omitempty"`
}

// Diagnosis is what Doctor has found.
type Diagnosis struct {
	Backend string `json:"backend,omitempty"` // "" where the store does not say
	Version string `json:"version,omitempty"` // of the server or the engine
	// RoundTrip is how long the store takes to read one row, the median of several reads.
	RoundTrip Span `json:"round_trip,omitzero"`
	// Ahead is by how much the oracle's time is ahead of this machine's clock; less than 0 if it is behind.
	Ahead Span `json:"ahead,omitzero"`
	// Findings are in an order that stays the same: those that are wrong first, notes last. It is empty if nothing was found.
	Findings []Finding `json:"findings"`
	// Load is what a load has measured, if one was asked for. Doctor asks for none.
	Load *Load `json:"load,omitempty"`
}

// DoctorOptions bound what is still right. The zero value has defaults that suit most databases. Negative values
// are ErrInvalid.
type DoctorOptions struct {
	// MaxSkew is how far the oracle's time may be from this machine's clock, beside the time of the call. Default 10 s: some oracles
	// are up to 5 s ahead after a crash or a failover of the server, and stand still until then.
	MaxSkew time.Duration
	// Waiting is for how long a change may wait for an observer that no worker runs, a timer may be overdue, and a dead process's
	// lock may stand. Default 1 min.
	Waiting time.Duration
	// Behind is for how long a change may wait for an observer that workers run. Default 15 min.
	Behind time.Duration
	// Forgotten is for how long a change may wait for an observer that is paused, and how long a process may go by
	// an older catalog. Default 24 h.
	Forgotten time.Duration
	// Parked is from how many parked runs of an observer on they are many. Default 100, at most 1,000,000.
	Parked int
	// Rows is how many rows of each table are looked at for locks. Default 1,000, at most 1,000,000.
	Rows int
	// Clock is this machine's clock. Default time.Now.
	Clock func() time.Time
}

func (o *DoctorOptions) fill() error {
	for _, d := range []struct {
		name string
		to   *time.Duration
		def  time.Duration
	}{
		{"MaxSkew", &o.MaxSkew, 10 * time.Second},
		{"Waiting", &o.Waiting, time.Minute},
		{"Behind", &o.Behind, 15 * time.Minute},
		{"Forgotten", &o.Forgotten, 24 * time.Hour},
	} {
		if *d.to < 0 {
			return fmt.Errorf("%w: %s is %v; it may not be negative", percolator.ErrInvalid, d.name, *d.to)
		}
		if *d.to == 0 {
			*d.to = d.def
		}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	var errs [2]error
	o.Parked, errs[0] = limited("parked runs", o.Parked, 100)
	o.Rows, errs[1] = limited("rows", o.Rows, 1000)
	return errors.Join(errs[0], errs[1])
}

// doctor is one look at everything.
type doctor struct {
	r   *Reader
	o   DoctorOptions
	cat *catalog
	d   Diagnosis
	// all are the observers of the database.
	all []observed
	// until is when the searches of a look end that may go on for long.
	until time.Time
}

func (d *doctor) wrong(code, change, what string, args ...any) {
	d.add(Wrong, code, change, what, args)
}

func (d *doctor) risky(code, change, what string, args ...any) {
	d.add(Risky, code, change, what, args)
}

func (d *doctor) note(code, change, what string, args ...any) {
	d.add(Note, code, change, what, args)
}

func (d *doctor) add(g Grade, code, change, what string, args []any) {
	d.d.Findings = append(d.d.Findings, Finding{Code: code, Grade: g, What: fmt.Sprintf(what, args...), Change: change})
}

// Doctor looks at everything that an operator would look at, and says what is wrong or risky and what to change: what the server
// says of its settings, clocks, round trips, settings of the database, processes, locks that dead processes have left, holds, collection,
// observers and what waits for them, timers. It is a bounded look at samples, so it may miss a lock, and takes some hundred
// milliseconds over a database of any size; some seconds where it has to look behind thousands of changes that wait for other observers, or of timers that
// were cancelled, and says so if it cannot tell what is behind them. It writes nothing.
//
// A look that fails is a finding as well, so an error comes only for options out of range, where there is no database,
// and if the context ends.
func (r *Reader) Doctor(ctx context.Context, o DoctorOptions) (Diagnosis, error) {
	if err := o.fill(); err != nil {
		return Diagnosis{}, called("Doctor", err)
	}
	d := &doctor{r: r, o: o, d: Diagnosis{Findings: []Finding{}}}
	looks := []struct {
		at   string
		look func(context.Context) error
	}{
		{"the store's settings", d.store},
		{"the catalog", d.catalog},
		{"the clocks", d.clocks},
		{"the round trips", d.roundTrips},
		{"the settings", d.settings},
		{"the processes", d.processes},
		{"the workers", d.workers},
		{"the locks", d.locks},
		{"the holds", d.holds},
		{"the collection", d.collection},
		{"the observers", d.observers},
		{"the timers", d.timers},
	}
	for _, l := range looks {
		err := l.look(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil || errors.Is(err, percolator.ErrNoStore) || errors.Is(err, percolator.ErrClosed):
			return Diagnosis{}, called("Doctor", fmt.Errorf("looking at %s: %w", l.at, err))
		default:
			d.d.Findings = append(d.d.Findings, failing("looking at "+l.at+" failed", err))
		}
		if err != nil && d.cat == nil && l.at == "the catalog" {
			break // nothing can be said without it
		}
	}
	slices.SortStableFunc(d.d.Findings, func(a, b Finding) int { return gradeOrder(a.Grade) - gradeOrder(b.Grade) })
	return d.d, nil
}

func gradeOrder(g Grade) int {
	switch g {
	case Wrong:
		return 0
	case Risky:
		return 1
	}
	return 2
}

// Amiss tells whether anything is wrong or risky. Notes are not.
func (d *Diagnosis) Amiss() bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Grade != Note })
}

// CannotOpen is the finding that a store or a database cannot be opened, with what to change, by the error of that. Where nothing was found
// that an operator could mend in the store, ok is false: the arguments are wrong, there is no store, what is there is another application's,
// the context has ended.
func CannotOpen(err error) (f Finding, ok bool) {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, percolator.ErrNoStore):
		return Finding{}, false
	case errors.Is(err, percolator.ErrInvalid), errors.Is(err, percolator.ErrForeign):
		return Finding{}, false
	}
	return failing("the store cannot be opened", err), true
}

// failing is the finding that something failed.
func failing(what string, err error) Finding {
	f := Finding{Code: "cannot-look", Grade: Wrong, What: what + ": " + err.Error(), Change: "see what the error says, and mend that"}
	switch {
	case errors.Is(err, rowstore.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Change = "unavailable", "start the server, or lead the address to the one that is the primary now; docs/runbooks.md has the steps of a failover"
	case errors.Is(err, percolator.ErrFull):
		f.Change = "make room on the store's disk, or in its memory; docs/runbooks.md has the steps"
	case errors.Is(err, percolator.ErrDenied):
		f.Change = "give the user the right password and certificate, and the permissions that it lacks; docs/howto/security.md says where they are listed"
	case errors.Is(err, percolator.ErrForeign):
		f.Code, f.Change = "foreign", "see which other application writes there, and give one of the two another directory, prefix or schema"
	case errors.Is(err, format.ErrRestoring):
		f.Code, f.Change = "restoring", "restore the same backup again, which goes on where it was, or begin with an empty store"
	case errors.Is(err, percolator.ErrFormat):
		f.Code, f.Change = "format", "open the store once with a program of the newest version, with the rights to migrate it, or let percolator migrate run do so; if a newer program wrote the data, update this one"
	case errors.Is(err, percolator.ErrCorrupt), errors.Is(err, percolator.ErrOracleWentBack):
		f.Code, f.Change = "damaged", "stop the programs, and restore the store"
	}
	return f
}

// store asks the store what it says of itself.
func (d *doctor) store(ctx context.Context) error {
	if d.r.report == nil {
		return nil
	}
	report, err := d.r.report(ctx)
	if err != nil {
		return err
	}
	d.d.Backend, d.d.Version = report.Backend, report.Version
	for _, w := range report.Warnings {
		d.risky("store", "", "%s", w)
	}
	return nil
}

// oldestHinted is the version of a catalog that every new database has.
const oldestHinted = 5

func (d *doctor) catalog(ctx context.Context) (err error) {
	if d.cat, err = d.r.load(ctx); err != nil {
		return err
	}
	if !d.cat.Hinted {
		d.risky("catalog-old", "let no older program run any more: the next collection after that raises the catalog by itself",
			"the catalog has version %d, and programs of this version go by %d: until then each collection looks at every row", d.cat.version, oldestHinted)
	}
	return nil
}

// standing is for how long the oracle is watched.
const standing = 200 * time.Millisecond

// clocks compares the oracle's time with this machine's, and looks whether it goes on.
func (d *doctor) clocks(ctx context.Context) error {
	if d.cat == nil || d.r.ownOracle && d.cat.Oracle != "" {
		return nil // timestamps come from elsewhere
	}
	before, local := time.Now(), d.o.Clock()
	first, err := d.r.now(ctx)
	if err != nil {
		return err
	}
	took := time.Since(before)
	ahead := first.Time().Sub(local.Add(took / 2))
	d.d.Ahead = Span(ahead)
	const change = "compare the clock of the machine that the timestamps come from (the server's, PD's, for Pebble this one's) with others, and set the wrong one; " +
		"an oracle that is ahead stays ahead until real time has caught up"
	if bound := d.o.MaxSkew + took/2; ahead > bound {
		d.risky("clock-ahead", change, "the oracle's time is %v ahead of this machine's clock: timers fire that much too early, and history is kept that much shorter, or this clock is wrong", Span(ahead))
	} else if -ahead > bound {
		d.risky("clock-behind", change, "the oracle's time is %v behind this machine's clock: timers fire that much too late, or this clock is wrong", Span(-ahead))
	}
	seen := before.Add(took)
	if err := contexts.Sleep(ctx, standing); err != nil {
		return err
	}
	elapsed := time.Since(seen)
	second, err := d.r.now(ctx)
	if err != nil {
		return err
	}
	if moved := second.Sub(first); moved < elapsed/2 && (ahead < 0 || ahead > d.o.MaxSkew) {
		d.wrong("clock-stands", "see the clock of the server: it was set back, perhaps; docs/runbooks.md says what to do meanwhile",
			"the oracle's time stands still: it has moved by %v in %v, so leases and locks of dead processes do not end, and no timer fires", Span(moved), Span(elapsed))
	}
	return nil
}

// Round trips that are worth a finding: a worker renews a lease of 3 s in half of that, with several calls.
const (
	slowTrip   = 100 * time.Millisecond
	leaseTrips = 20 // how many round trips a lease should last
)

func (d *doctor) roundTrips(ctx context.Context) error {
	var took []time.Duration
	for range 5 {
		began := time.Now()
		if _, err := d.r.rows(ctx, []rowstore.RowRead{catalogRead()}); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	d.d.RoundTrip = Span(took[len(took)/2])
	if trip := took[len(took)/2]; trip > slowTrip {
		d.risky("slow", "run the programs near the store; see whether the server is overloaded, or short of memory",
			"a read of one row takes %v: leases are made for round trips of some milliseconds, so processes may be taken for dead", Span(trip))
	}
	return nil
}

// settings looks for those that fit together badly. Ones that cannot be are never stored.
func (d *doctor) settings(context.Context) error {
	c := d.cat
	if c == nil {
		return nil
	}
	for i := -1; i < len(c.current.Tables); i++ {
		of, whose := c.current.Of(""), "the database"
		if i >= 0 {
			name := string(c.current.Tables[i].Name)
			of, whose = c.current.Of(name), fmt.Sprintf("table %v", public(name))
		}
		if of.RetentionMs < 2*of.MaxTxnAgeMs {
			d.risky("settings", "make the retention at least twice as long as the longest transaction: percolator retention set",
				"the retention of %s is %v, and a transaction may take %v: snapshots and new observers have little time before history is gone", whose, ms(of.RetentionMs), ms(of.MaxTxnAgeMs))
		}
	}
	if ms(c.current.MaxTxnAgeMs+c.current.CatalogLeaseMs) <= Span(2500*time.Millisecond) {
		d.risky("settings", "make one of them longer: percolator retention set", "the longest transaction and the catalog lease together are %v: "+
			"each collection has to look for locks in every row", ms(c.current.MaxTxnAgeMs+c.current.CatalogLeaseMs))
	}
	if age := since(c.now, c.revision); c.Next != nil && c.NextFrom == 0 && age > Span(d.o.Waiting) {
		d.wrong("settings-undated", "ask for the same change again: percolator retention set", "a change of the settings was announced %v ago and never got its time, so it is not in force", age)
	}
	return nil
}
