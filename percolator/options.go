package percolator

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/internal/coretest/hook"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// Isolation is what a transaction is protected from.
type Isolation int

const (
	// DefaultIsolation is the zero value: the level that WithDefaultIsolation gave the DB, and SnapshotIsolation without it.
	DefaultIsolation Isolation = iota
	// SnapshotIsolation is the paper's: a transaction reads from one
	// snapshot, and no two transactions that overlap write the same cell. Write
	// skew is possible: two transactions that each read what the other writes may
	// both commit.
	SnapshotIsolation
	// Serializable also checks at commit that nothing that the transaction read was
	// changed meanwhile, neither a cell nor a scanned range. The promise holds among
	// Serializable transactions: one under SnapshotIsolation may still form a write skew with one
	// under Serializable.
	Serializable
)

func (i Isolation) String() string {
	switch i {
	case DefaultIsolation:
		return "default"
	case SnapshotIsolation:
		return "snapshot"
	case Serializable:
		return "serializable"
	}
	return fmt.Sprintf("Isolation(%d)", int(i))
}

// check returns an error for what is no level.
func (i Isolation) check() error {
	if i < DefaultIsolation || i > Serializable {
		return fmt.Errorf("%w: %v is no level of isolation; take DefaultIsolation, SnapshotIsolation or Serializable", ErrInvalid, i)
	}
	return nil
}

// Limits bound a transaction. A field that is zero or negative takes its default. The limits of the store
// apply as well. What the library itself keeps of a run of an observer has no room to find within them. A transaction keeps what it writes in memory until it has ended, about 500
// bytes for each cell beside names and values.
type Limits struct {
	Table  int // bytes of a table's name; default 512
	Row    int // bytes of a row's key; default 2048
	Column int // bytes of a column's name; default 512
	Value  int // bytes of a value; default 16 MiB
	Cells  int // cells that a transaction writes, locks or notifies; default 100,000
	Bytes  int // names and values that a transaction writes; default 64 MiB
}

func (l *Limits) setDefaults() {
	for _, f := range []struct {
		p *int
		v int
	}{{&l.Table, 512}, {&l.Row, 2048}, {&l.Column, 512}, {&l.Value, 16 << 20}, {&l.Cells, 100_000}, {&l.Bytes, 64 << 20}} {
		if *f.p <= 0 {
			*f.p = f.v
		}
	}
}

// Settings are stored with the data at the first Open. Safety needs every process to
// agree on them, so a later process uses the stored ones. See DB.Settings and
// DB.Configure.
type Settings struct {
	// MaxTxnAge is the longest time from the beginning of a transaction that writes to
	// its commit. If it was changed since the transaction began, the least value that
	// was in force counts. Default 1 h.
	MaxTxnAge time.Duration
	// Retention is the least time for which history is kept: snapshots that old can be
	// read. Default 24 h. It must be greater than MaxTxnAge + CatalogLease. A table may have a
	// shorter one, see DB.ConfigureTable.
	Retention time.Duration
	// CatalogLease is how long a process may use what it knows about observers and the
	// safe point. So a new observer waits that long before it sweeps the existing data,
	// unless all processes say that they know of it, and a garbage collection before it
	// removes anything. No request to the store may
	// be applied later than this after it was sent. Default 10 s.
	CatalogLease time.Duration
}

func (s *Settings) setDefaults() {
	if s.MaxTxnAge == 0 {
		s.MaxTxnAge = time.Hour
	}
	if s.Retention == 0 {
		s.Retention = 24 * time.Hour
	}
	if s.CatalogLease == 0 {
		s.CatalogLease = 10 * time.Second
	}
}

// representable returns an error for what no store of settings can hold.
func (s Settings) representable() error {
	const most = time.Duration(format.MostMs) * time.Millisecond
	for _, d := range []time.Duration{s.MaxTxnAge, s.Retention, s.CatalogLease} {
		if d < 0 || d > most {
			return fmt.Errorf("%w: Settings: MaxTxnAge %v, Retention %v and CatalogLease %v may not be negative or longer than %v", ErrInvalid, s.MaxTxnAge, s.Retention, s.CatalogLease, most)
		}
	}
	return nil
}

func (s Settings) check() error {
	if err := s.representable(); err != nil {
		return err
	}
	if s.MaxTxnAge < time.Millisecond || s.Retention < time.Millisecond || s.CatalogLease < time.Millisecond {
		return fmt.Errorf("%w: Settings: MaxTxnAge %v, Retention %v and CatalogLease %v must each be at least 1 ms", ErrInvalid, s.MaxTxnAge, s.Retention, s.CatalogLease)
	}
	if s.MaxTxnAge.Milliseconds()+s.CatalogLease.Milliseconds() >= s.Retention.Milliseconds() {
		return fmt.Errorf("%w: Settings: MaxTxnAge %v + CatalogLease %v must be less than Retention %v", ErrInvalid, s.MaxTxnAge, s.CatalogLease, s.Retention)
	}
	return nil
}

type options struct {
	oracle       oracle.Oracle
	oracleName   string
	withOracle   bool // the store's own is not used
	log          *slog.Logger
	clock        Clock
	seed         uint64
	settings     Settings
	existing     bool
	limits       Limits
	isolation    Isolation
	sessionLease time.Duration
	lockExpiry   time.Duration
	lockWait     Backoff
	retryWait    Backoff
	// storePatience is 0 or less for none.
	storePatience time.Duration
	onePhase      bool
	groups        bool
	deferred      bool
	meters        metric.MeterProvider
	traces        trace.TracerProvider
	owns          hook.Owns                 // nil but in tests, see withOwnership
	begins        func(ctx context.Context) // nil but in tests, see withBegin
	noHints       bool                      // in tests alone, see withoutHints
	ids           func() string             // nil but in tests, see withIDs
	probes        int                       // see mostProbes
}

func defaultOptions() options {
	return options{
		log:          slog.Default(),
		clock:        systemClock{},
		sessionLease: 5 * time.Second,
		lockExpiry:   10 * time.Second,
		lockWait:     Backoff{Min: 200 * time.Microsecond, Max: 50 * time.Millisecond},
		retryWait:    Backoff{Min: 100 * time.Microsecond, Max: 250 * time.Millisecond},

		storePatience: 20 * time.Second,
		probes:        mostProbes,

		onePhase: true,
		groups:   true,
		deferred: true,
	}
}

// Option changes a DB; see Open and New.
type Option func(*options)

// WithOracle names the oracle to use instead of the store's own. The name is
// stored at the first Open; opening the data later with an oracle of another name
// is refused, because timestamps of two oracles are in no order. A nil oracle and an empty
// name are ErrInvalid.
func WithOracle(name string, o oracle.Oracle) Option {
	return func(opt *options) { opt.oracleName, opt.oracle, opt.withOracle = name, o, true }
}

// isNil tells whether an interface is nil, or holds a nil pointer or function, which its caller takes for nil.
func isNil(of any) bool {
	switch v := reflect.ValueOf(of); v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return v.IsNil()
	}
	return false
}

// WithLogger sets where warnings and failures in the background are written.
// Default slog.Default(), also for nil. Values of cells are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) {
		if l != nil {
			o.log = l
		}
	}
}

// WithClock replaces the local clock. A nil clock leaves it.
func WithClock(c Clock) Option {
	return func(o *options) {
		if !isNil(c) {
			o.clock = c
		}
	}
}

// WithSettings sets what the first Open stores. A field of 0 takes its default. If the
// data has settings already, those stay in force, and a difference is logged.
func WithSettings(s Settings) Option { return func(o *options) { o.settings = s } }

// WithExisting makes Open and New take a database as it is: where there is none they fail with
// ErrNoStore, and with ErrFormat where an older program has left one that they would
// raise to a newer format, and change nothing. A store makes and migrates itself when it is opened, so Open and
// whoever opens a store for New say asis=true in its URL besides. The default makes, and
// raises, what is needed.
func WithExisting() Option { return func(o *options) { o.existing = true } }

// WithLimits bounds names, values and transactions of this process.
func WithLimits(l Limits) Option { return func(o *options) { o.limits = l } }

// WithDefaultIsolation sets the isolation of transactions, of runs of observers and of periodics that do not name one. It holds for
// this DB alone: other processes have their own. DefaultIsolation stands for SnapshotIsolation here. What is no level makes New return ErrInvalid.
func WithDefaultIsolation(i Isolation) Option { return func(o *options) { o.isolation = i } }

// WithSessionLease sets how long others wait, at most, for the locks of a process that
// died. A live process renews its lease three times as often. If its calls to the store
// were slow in the last minute or two, the lease lasts eight times the slowest of them,
// but at most 24 times what is set here. Default 5 s, also for 0 or less.
func WithSessionLease(d time.Duration) Option {
	return func(o *options) {
		if d > 0 {
			o.sessionLease = d
		}
	}
}

// WithLockExpiry sets how long a lock of a live process is respected after its last
// heartbeat. While a commit lasts, heartbeats come three times as often. Slow calls
// make the expiry longer, as they do a session's lease, within the same bound. Default
// 10 s, also for 0 or less.
func WithLockExpiry(d time.Duration) Option {
	return func(o *options) {
		if d > 0 {
			o.lockExpiry = d
		}
	}
}

// WithLockWait sets the waits between two checks of a lock of a live transaction.
// Default 0.2 to 50 ms; a half that is 0 takes its default.
func WithLockWait(b Backoff) Option {
	b.fill(defaultOptions().lockWait)
	return func(o *options) { o.lockWait = b }
}

// WithRetryWait sets the waits of Update before it runs its function again.
// Default 0.1 to 250 ms; a half that is 0 takes its default.
func WithRetryWait(b Backoff) Option {
	b.fill(defaultOptions().retryWait)
	return func(o *options) { o.retryWait = b }
}

// WithStorePatience sets for how long a call to the store, or a draw of a timestamp, is
// repeated while its server is away for a moment (ErrUnavailable): the server
// restarts, or another one takes over. Such a call certainly had no effect. After that
// time, or when the context ends before, the error is returned. Default 20 s; 0 or less
// repeats nothing.
func WithStorePatience(d time.Duration) Option { return func(o *options) { o.storePatience = d } }

// WithMetrics reports the DB's counts and the backlog of its observers through the
// OpenTelemetry API, until Close: each field of Stats as a counter, whose name Stats tells, and the gauges percolator.backlog (at most 10,000),
// percolator.backlog.oldest in seconds, percolator.parked (at most 10,000) and others, which docs/operations.md lists. The gauges cost a scan
// of up to 10,000 cells with notifications, with all of these, in each observed table, and of the parked runs, each time that they are read. That takes 5 s at most: what the
// store does not tell by then is left out, and logged. An observer is named as it is called now (see RenameObserver). nil, the default, reports nothing and costs nothing.
//
// Nothing in what is reported names the DB. Two DBs on one provider share each series: counters are added up, and of the gauges one DB's hide the
// other's. Give each DB a provider of its own with a resource that names it, or one that adds an attribute to the scope of its meters (metric.WithInstrumentationAttributes).
func WithMetrics(meters metric.MeterProvider) Option {
	return func(o *options) {
		if o.meters = meters; isNil(meters) {
			o.meters = nil
		}
	}
}

type txnOptions struct {
	isolation   Isolation
	asOf        *Timestamp // nil for now
	maxAttempts int
	committedAt *Timestamp
	upkeepOf    *IndexInfo
}

// TxnOption changes one transaction. A nil one is ErrInvalid.
type TxnOption func(*txnOptions)

// WithIsolation sets the transaction's isolation. Serializable is a promise among
// Serializable transactions; see there. DefaultIsolation leaves it to the DB. What is no level is ErrInvalid.
func WithIsolation(i Isolation) TxnOption { return func(o *txnOptions) { o.isolation = i } }

// WithAsOf makes the transaction read only, at the snapshot of t: it sees what was
// committed before the millisecond of t. t may not lie in the oracle's future
// (ErrSnapshotInFuture) nor below the safe point (ErrSnapshotTooOld, from reads).
//
// Commit timestamps follow the oracle's time, which may run ahead of this process's
// clock. So WithAsOf(time.Now()) may miss a transaction that has just been committed,
// even one of your own. To see everything that was committed so far, use an ordinary
// transaction. To see what a certain transaction committed, give its commit timestamp
// to WithAsOfTimestamp. For a snapshot that several transactions share, use DB.Now.
func WithAsOf(t time.Time) TxnOption { return WithAsOfTimestamp(max(oracle.FromTime(t), 1) - 1) }

// WithAsOfTimestamp is WithAsOf with a timestamp: the snapshot includes what was
// committed at ts.
func WithAsOfTimestamp(ts Timestamp) TxnOption {
	return func(o *txnOptions) { o.asOf = &ts }
}

// WithMaxAttempts bounds how often Update runs its function. Default 64; 0 or less
// means the default.
func WithMaxAttempts(n int) TxnOption { return func(o *txnOptions) { o.maxAttempts = n } }

// WithCommitTimestamp makes Commit store the transaction's commit timestamp in ts when
// it returns nil, so that the caller of Update learns it. Txn.CommitTimestamp says when
// that is 0. If Commit returns an error, ts stays as it is. A nil ts does nothing.
func WithCommitTimestamp(ts *Timestamp) TxnOption {
	return func(o *txnOptions) { o.committedAt = ts }
}
