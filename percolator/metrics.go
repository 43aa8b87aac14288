package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Backlog says what is left to do for the observers of all processes.
type Backlog struct {
	Cells int // with notifications, counted up to the limit that was asked for
	// Oldest is the age of the oldest notification that was looked at, 0 without any.
	Oldest time.Duration
	Parked int // parked runs
}

// Backlog counts the notified cells of all observed columns, up to limit of them
// (0 means all), and the parked runs, also those of removed observers. Notifications of
// commits that are under way count; those of columns that nobody observes any more do
// not, and are left to garbage collection. It looks at up to limit cells of each observed table, and a
// row more, and Oldest is that of all which it has looked at: so a table with many cells hides no old one of another. What waits for observers that
// are paused counts. A negative limit is ErrInvalid; other errors are ErrClosed, those of the context and of the store.
func (db *DB) Backlog(ctx context.Context, limit int) (Backlog, error) {
	var b Backlog
	if limit < 0 {
		return b, fmt.Errorf("percolator: Backlog: %w: the limit is %d; it may not be negative", ErrInvalid, limit)
	}
	err := db.during(ctx, func(ctx context.Context) error {
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return fmt.Errorf("percolator: measuring the backlog: %w", err)
		}
		// Each table has a limit of its own. With one for all, a table that reaches it would hide the others, and which ones would be chance.
		columns := v.observedColumns()
		for _, table := range slices.Sorted(maps.Keys(columns)) {
			of, err := db.measureTable(ctx, v, table, columns[table], limit)
			if err != nil {
				return fmt.Errorf("percolator: measuring the backlog: %w", err)
			}
			b.add(of, limit)
		}
		if b.Parked, err = db.countParked(ctx, 0); err != nil {
			return fmt.Errorf("percolator: counting the parked runs: %w", err)
		}
		return nil
	})
	return b, err
}

// add adds what waits in a table.
func (b *Backlog) add(columns []columnBacklog, limit int) {
	for i := range columns {
		b.Cells += columns[i].cells
		b.Oldest = max(b.Oldest, columns[i].oldest)
	}
	if limit > 0 {
		b.Cells = min(b.Cells, limit)
	}
}

// columnBacklog is what waits for the observers of a column.
type columnBacklog struct {
	columnName
	cells  int
	oldest time.Duration
}

// observedColumns lists the observed columns, by their tables.
func (v *catalogView) observedColumns() map[string][]string {
	columns := map[string][]string{}
	for k := range v.observed {
		columns[k.table] = append(columns[k.table], k.column)
	}
	return columns
}

// measureTable measures what waits in an observed table. It looks at up to limit cells, and a row more.
func (db *DB) measureTable(ctx context.Context, v *catalogView, table string, columns []string, limit int) ([]columnBacklog, error) {
	found := make([]columnBacklog, len(columns))
	picks := make([]rowstore.Selector, len(columns))
	for i, column := range columns {
		found[i].columnName = columnName{table, column}
		picks[i] = rowstore.Selector{Family: rowstore.Notify, Column: column, To: oracle.Max}
	}
	cells := 0
	for row, err := range db.notifiedRows(ctx, table, picks) {
		if err != nil {
			return nil, err
		}
		for column, versions := range notifiedColumns(&row) {
			cells++
			of := &found[slices.Index(columns, column)]
			of.cells++
			for i := range versions {
				of.oldest = max(of.oldest, v.asOf.Sub(versions[i].TS))
			}
		}
		if limit > 0 && cells >= limit {
			break
		}
	}
	return found, nil
}

// registerMetrics does what WithMetrics says.
func (db *DB) registerMetrics(meters metric.MeterProvider) error {
	meter := meters.Meter("github.com/percolate-go/percolate/percolator")
	var errs []error
	var all []metric.Observable
	type counter struct {
		instrument metric.Int64ObservableCounter
		value      func(*Stats) uint64
	}
	var counters []counter
	for _, c := range statCounters {
		i, err := meter.Int64ObservableCounter("percolator."+c.name, metric.WithDescription(c.what))
		errs = append(errs, err)
		counters, all = append(counters, counter{i, c.value}), append(all, i)
	}
	gauges, observed, err := db.gauges(meter)
	errs = append(errs, err)
	db.runTimes, err = meter.Float64Histogram("percolator.observer.duration", metric.WithUnit("s"), metric.WithDescription("Runs of an observer, with their commits."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300))
	errs = append(errs, err)
	db.lateness, err = meter.Float64Histogram("percolator.timers.lateness", metric.WithUnit("s"), metric.WithDescription("From when a timer was due to the beginning of the first run for it."),
		metric.WithExplicitBucketBoundaries(.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("percolator: registering metrics: %w", err)
	}
	r, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		s := db.Stats()
		for _, c := range counters {
			o.ObserveInt64(c.instrument, int64(c.value(&s))) //nolint:gosec // counts
		}
		// With an error some readers would drop all metrics of the process, also those that were told.
		err := db.during(ctx, func(ctx context.Context) error { return gauges.observe(ctx, o, db) })
		if err != nil && !errors.Is(err, ErrClosed) {
			db.log.Warn("not everything that waits could be measured", "err", err)
		}
		return nil
	}, append(all, observed...)...)
	if err != nil {
		return fmt.Errorf("percolator: registering metrics: %w", err)
	}
	db.metrics = r
	return nil
}

var statCounters = []struct {
	name, what string
	value      func(*Stats) uint64
}{
	{"transactions", "Transactions begun.", func(s *Stats) uint64 { return s.Transactions }},
	{"read_only", "Transactions that ended with nothing to write.", func(s *Stats) uint64 { return s.ReadOnly }},
	{"commits.one_phase", "Commits in one call.", func(s *Stats) uint64 { return s.OnePhase }},
	{"commits.group", "Commits whose rows went together after the prewrites.", func(s *Stats) uint64 { return s.Group }},
	{"commits.two_phase", "Commits whose secondaries followed the primary.", func(s *Stats) uint64 { return s.TwoPhase }},
	{"conflicts", "Commits that ended with a conflict.", func(s *Stats) uint64 { return s.Conflicts }},
	{"retries", "Functions that were run again.", func(s *Stats) uint64 { return s.Retries }},
	{"undetermined", "Commits whose outcome was not found out.", func(s *Stats) uint64 { return s.Undetermined }},
	{"ambiguous", "Replies lost at a commit point.", func(s *Stats) uint64 { return s.Ambiguous }},
	{"locks_met", "Locks of others that stood in the way.", func(s *Stats) uint64 { return s.LocksMet }},
	{"rolled_forward", "Cells of others rolled forward.", func(s *Stats) uint64 { return s.RolledForward }},
	{"rolled_back", "Cells of others rolled back.", func(s *Stats) uint64 { return s.RolledBack }},
	{"rolled_back.session_gone", "Transactions rolled back because their session was gone.", func(s *Stats) uint64 { return s.RolledBackSessionGone }},
	{"rolled_back.expired", "Transactions rolled back because their lock had expired.", func(s *Stats) uint64 { return s.RolledBackExpired }},
	{"observer.runs", "Runs of observers that committed.", func(s *Stats) uint64 { return s.ObserverRuns }},
	{"observer.conflicts", "Runs of observers that ended with a conflict.", func(s *Stats) uint64 { return s.ObserverConflicts }},
	{"observer.failures", "Errors and panics of observers.", func(s *Stats) uint64 { return s.ObserverFailures }},
	{"observer.cleared", "Notifications cleared with nothing to do.", func(s *Stats) uint64 { return s.ObserverCleared }},
	{"observer.parked", "Runs that were parked.", func(s *Stats) uint64 { return s.ObserverParked }},
	{"observer.broken", "Times that a worker left an observer alone, because nearly all its runs failed.", func(s *Stats) uint64 { return s.ObserverBroken }},
	{"observer.views", "Observed cells that were read to see what is to be done.", func(s *Stats) uint64 { return s.ObserverViews }},
	{"notify.scans", "Looks for notifications.", func(s *Stats) uint64 { return s.NotifyScans }},
	{"notify.found", "Notified cells found.", func(s *Stats) uint64 { return s.NotifyFound }},
	{"timers.fired", "Timers of the index that were due, and whose cells were notified.", func(s *Stats) uint64 { return s.TimersFired }},
	{"timers.dropped", "Timers that were removed because nobody observes their columns.", func(s *Stats) uint64 { return s.TimersDropped }},
	{"gc.runs", "Garbage collections of all tables.", func(s *Stats) uint64 { return s.GCRuns }},
	{"gc.failures", "Garbage collections of all tables that failed.", func(s *Stats) uint64 { return s.GCFailures }},
	{"gc.versions", "Versions removed.", func(s *Stats) uint64 { return s.GCVersions }},
	{"gc.read", "Rows that collections have looked at.", func(s *Stats) uint64 { return s.GCRead }},
	{"gc.searches", "Collections that looked for locks in all rows.", func(s *Stats) uint64 { return s.GCSearches }},
	{"gc.damaged", "Rows that collections could not read.", func(s *Stats) uint64 { return s.GCDamaged }},
	{"gc.hints_lost", "Hints of garbage that were lost.", func(s *Stats) uint64 { return s.GCHintsLost }},
}
