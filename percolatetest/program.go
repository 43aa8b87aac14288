package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Program is what Explore runs in every interleaving. Each schedule is a run of the whole
// program over an empty database. So functions must do the same each time: whatever they keep
// outside the database, Setup must reset.
//
// A Program needs a client or an observer. Its other fields may be left out.
type Program struct {
	// Setup makes the data that the clients find. What it changes is given to the observers
	// before the clients begin, without a choice. db is that of the process in which the observers
	// run: Setup may keep it for them. What a function of theirs does with it is explored, if it
	// passes its context on.
	Setup func(ctx context.Context, db *percolator.DB) error
	// Clients run beside each other. They begin in this order, each up to its first transaction.
	Clients []Client
	// Observers run whenever a client, or another observer, has changed a cell of theirs.
	// Concurrency 1 means that runs of the observer never overlap; every other value means
	// that those of different cells may. MaxAttempts is 3 unless it is set. Timeout does
	// nothing, because time stands still while a function runs, and neither does Rate: runs come in every order,
	// however soon after each other.
	Observers []percolator.Observer
	// Workers is in how many processes a run of the same observer on the same cell may be
	// under way at once. Default 1. With 2 Explore also tries what happens when a worker is
	// taken for dead and lives.
	Workers int

	// Always must return nil on a snapshot after every commit, also after one of a transaction that an observer's
	// function makes beside its run.
	Always func(ctx context.Context, tx *percolator.Txn) error
	// Finally must return nil when every client has ended and nothing is left for the
	// observers.
	Finally func(ctx context.Context, tx *percolator.Txn) error
	// EveryOrder means that the order of any two steps may matter. Without it Explore takes one
	// order of two snapshots, and of two commits of different rows. That is not enough if clients
	// tell each other something beside the database, if timestamps are compared, or if somebody
	// reads as of a timestamp. There are far more schedules then.
	EveryOrder bool
	// AllowParked means that an observer may give up on a cell. Without it a run that fails
	// MaxAttempts times is a violation.
	AllowParked bool

	// Faults bounds what goes wrong in a schedule. Nothing does by default.
	Faults Faults
	// Options are those of every process's DB. Explore needs the clock, the settings, the
	// oracle and the waits to be its own.
	Options []percolator.Option

	// Timers is how often, in a schedule, the clock moves on to the time at which the next timer of an observed cell is due
	// (percolator.Txn.NotifyAt). Each time is a choice beside the others, so a timer may be due before, between and after all other steps.
	// Timers after that are never due. Default 10.
	Timers int
	// Retries is how often, in a schedule, a run that has failed or asked for another attempt (percolator.RetryAfter) gets it while a client or
	// another run stands still between two steps: for so long that a lease may end. Each time is a choice. After that, such a run
	// begins again when nobody else has a step left. Default 10; negative for none.
	Retries int
	// Schedules is how many schedules are taken in order, depth first. Default 20,000.
	Schedules int
	// Random is how many schedules are taken at random if those in order were not all.
	// Default 1,000; negative for none.
	Random int
	// Seed is that of the random schedules. 0, the default, takes a random one. The report
	// and the log have it.
	Seed uint64
	// Time is how long Explore goes on with new schedules, by a real clock; half of it
	// belongs to those in order. Default 20 s.
	Time time.Duration
	// Steps is how many choices a schedule may have. A program with a longer one is taken for
	// one that does not end, and fails. Default 1,000.
	Steps int
}

// Client is one process with a database handle of its own.
type Client struct {
	// Name is how schedules call it. Each client has another.
	Name string
	// Run is what it does. An error that Run returns is a violation unless it matches
	// ErrConflict or ErrUndetermined: those are part of what a client must expect.
	Run func(ctx context.Context, db *percolator.DB) error
}

// Faults says how many faults a schedule may have at most, each kind by itself. Each fault
// is a choice: Explore tries it at every commit, of clients, of observers' runs, and of the
// transactions that an observer's function makes beside its run.
type Faults struct {
	// Conflicts are commits that are refused as if another transaction had written the first
	// cell. Update runs its function again.
	Conflicts int
	// Undetermined are commits of which the client learns only ErrUndetermined. They took
	// effect or not: both are tried. The error's cause matches ErrClosed.
	Undetermined int
	// Deaths are processes that die at a commit, which took effect or not. The function of a
	// client ends there; a run of an observer begins anew in another process.
	Deaths int
}

// Report says what Explore did.
type Report struct {
	// Schedules is how many schedules were run to their end, no two of them the same.
	// Random ones may repeat others, and are counted in Random.
	Schedules int
	// Random is how many schedules were taken at random.
	Random int
	// Steps is the number of choices in all of them.
	Steps int
	// Complete says that there are no other schedules, but for those that differ in the
	// order of steps which cannot matter to each other.
	Complete bool
	// Seed is that of the random schedules.
	Seed uint64
	// Elapsed is the real time that it took.
	Elapsed time.Duration
	// Violation is nil if none was found.
	Violation *ViolationError
}

func (r Report) String() string {
	if r.Complete {
		return fmt.Sprintf("complete: %d schedules, %d steps, %v", r.Schedules, r.Steps, r.Elapsed.Round(time.Millisecond))
	}
	return fmt.Sprintf("bounded: %d schedules in order and %d at random (seed %d), %d steps, %v",
		r.Schedules, r.Random, r.Seed, r.Steps, r.Elapsed.Round(time.Millisecond))
}

// ViolationError is a schedule that a program fails.
type ViolationError struct {
	// Err says what is wrong at its end.
	Err error
	// Schedule has a line for each choice, and after it, behind a "#", what came of it.
	// Replay takes it. It is empty if the program failed before the first choice.
	Schedule string
	// Deterministic says that the same schedule came to the same again.
	Deterministic bool
}

func (v *ViolationError) Error() string {
	if v.Schedule == "" {
		return v.Err.Error()
	}
	return fmt.Sprintf("%v\nschedule:\n%s", v.Err, v.Schedule)
}

// Unwrap returns Err.
func (v *ViolationError) Unwrap() error { return v.Err }

// errProgram is a Program that cannot be run.
var errProgram = errors.New("percolatetest: the program is invalid")

// withDefaults returns the program to run, or what is wrong with p.
func (p Program) withDefaults() (Program, error) {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", errProgram, fmt.Sprintf(format, args...))
	}
	if len(p.Clients)+len(p.Observers) == 0 {
		return p, invalid("it has neither clients nor observers")
	}
	seen := map[string]bool{}
	for i, c := range p.Clients {
		switch {
		case c.Run == nil:
			return p, invalid("client %d (%q) has no function Run", i, c.Name)
		case strings.TrimSpace(c.Name) != c.Name || c.Name == "" || strings.ContainsAny(c.Name, "\n#:"):
			return p, invalid("client %d is named %q; a name must not be empty, begin or end with space, or have a line break, a '#' or a ':'", i, c.Name)
		case seen[c.Name]:
			return p, invalid("two clients are named %q", c.Name)
		}
		seen[c.Name] = true
	}
	for _, n := range []struct {
		what string
		n    int
	}{
		{"Workers", p.Workers},
		{"Schedules", p.Schedules},
		{"Steps", p.Steps},
		{"Timers", p.Timers},
		{"Faults.Conflicts", p.Faults.Conflicts},
		{"Faults.Undetermined", p.Faults.Undetermined},
		{"Faults.Deaths", p.Faults.Deaths},
		{"Time", int(p.Time)},
	} {
		if n.n < 0 {
			return p, invalid("%s is negative", n.what)
		}
	}
	orDefault(&p.Workers, 1)
	orDefault(&p.Schedules, 20_000)
	orDefault(&p.Random, 1_000)
	orDefault(&p.Time, 20*time.Second)
	orDefault(&p.Steps, 1_000)
	orDefault(&p.Timers, 10)
	orDefault(&p.Retries, 10)
	return p, nil
}

func orDefault[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
