package redis

import (
	"context"
	"iter"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// Store is a row-transactional store in Redis. It merges the calls that are made at
// the same time, as package coalesce does, unless Options.NoCoalesce says otherwise.
//
// It is a [rowstore.Grouper], a [rowstore.SnapshotReader], a [rowstore.SnapshotScanner], an
// [rowstore.OracleProvider], a [rowstore.Splitter], a [rowstore.SlotScanner], a [rowstore.Waker], a
// [rowstore.Limiter], a [rowstore.Sharder] and a [rowstore.Reporter]. All methods may be called concurrently.
type Store struct {
	direct *direct
	// The calls that may be merged; the others go to direct.
	calls  rowstore.Store
	groups rowstore.Grouper
	begins rowstore.SnapshotReader
	oracle rowstore.OracleProvider
	report rowstore.Reporter
}

var (
	_ rowstore.Store           = (*Store)(nil)
	_ rowstore.Grouper         = (*Store)(nil)
	_ rowstore.SnapshotReader  = (*Store)(nil)
	_ rowstore.OracleProvider  = (*Store)(nil)
	_ rowstore.Splitter        = (*Store)(nil)
	_ rowstore.SlotScanner     = (*Store)(nil)
	_ rowstore.SnapshotScanner = (*Store)(nil)
	_ rowstore.Waker           = (*Store)(nil)
	_ rowstore.Limiter         = (*Store)(nil)
	_ rowstore.Sharder         = (*Store)(nil)
	_ rowstore.Reporter        = (*Store)(nil)
)

// newStore puts a Store over a direct one.
func newStore(d *direct) *Store {
	s := &Store{direct: d, calls: d, groups: d, begins: d, oracle: d, report: d}
	if !d.opts.NoCoalesce {
		s.calls = coalesce.New(d, coalesce.Options{Together: d.mergesKinds()})
		s.groups = ability[rowstore.Grouper](s.calls)
		s.begins = ability[rowstore.SnapshotReader](s.calls)
		s.oracle = ability[rowstore.OracleProvider](s.calls)
		s.report = ability[rowstore.Reporter](s.calls)
	}
	return s
}

// ability is the optional ability T of a merged direct store, which has each that the
// direct store has.
func ability[T any](merged rowstore.Store) T {
	t, ok := rowstore.Unwrap[T](merged)
	if !ok {
		panic("redis: a merged store without an ability of the store under it")
	}
	return t
}

// Read implements rowstore.Store.
func (s *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return s.calls.Read(ctx, reads)
}

// Apply implements rowstore.Store.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	return s.calls.Apply(ctx, muts, opts)
}

// Scan implements rowstore.Store: a page from each partition at a time, merged. A scan
// of slots reads the index of notifications, and costs nothing for other slots nor for rows
// that have none. A scan for notifications alone without slots goes through all
// notifications of the table, because their index has the order of the slots; it costs
// nothing for rows that have none either.
func (s *Store) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return s.calls.Scan(ctx, r)
}

// Tables implements rowstore.Store.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] { return s.calls.Tables(ctx) }

// Close implements rowstore.Store. It closes the connections, so that calls under way
// end with an error. The client of [New] stays open: then calls under way finish
// first, for which Close waits, at most about as long as their timeouts. A second
// Close waits for the first one, and returns nil.
func (s *Store) Close() error { return s.calls.Close() }

// GroupKey implements rowstore.Grouper: on a server outside cluster mode any rows may
// share a group, in a Cluster those of one partition.
func (s *Store) GroupKey(table, row string) string { return s.direct.GroupKey(table, row) }

// AssignsTimestamps implements rowstore.Grouper: a group may draw its timestamp if the oracle is on
// its server, in a Cluster in its slot.
func (s *Store) AssignsTimestamps(key string) bool { return s.direct.AssignsTimestamps(key) }

// Group implements rowstore.Grouper.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return s.groups.Group(ctx, groups)
}

// ReadSnapshot implements rowstore.SnapshotReader: on one server in the same run of a script.
// In a Cluster, and for reads that are not those of a snapshot, it draws first and
// reads then.
func (s *Store) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	return s.begins.ReadSnapshot(ctx, asks)
}

// Oracle implements rowstore.OracleProvider: the server's time, made monotonic by a
// state that the server keeps.
func (s *Store) Oracle() oracle.Oracle { return s.oracle.Oracle() }

// Split implements rowstore.Splitter, by the ranks of the table's rows.
func (s *Store) Split(ctx context.Context, table string, n int) ([]string, error) {
	return s.direct.Split(ctx, table, n)
}

// ScansSlots implements rowstore.SlotScanner.
func (s *Store) ScansSlots() {}

// ScansSnapshots implements rowstore.SnapshotScanner: in a store of one partition, the script that reads a page draws. In others it is
// a call of its own, as without this ability.
func (s *Store) ScansSnapshots() {}

// Listen implements rowstore.Waker, by a subscription. It returns an error as soon as
// the connection is lost, or does not answer for ten seconds, and within about five seconds of the
// moment when another server takes over: wake-ups may have been missed then.
func (s *Store) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	return s.direct.Listen(ctx, wake)
}

// Limits implements rowstore.Limiter.
func (s *Store) Limits() rowstore.Limits { return s.direct.Limits() }

// Shard implements rowstore.Sharder: in a Cluster the address of the server that has
// the row, as of the last call that went there, else "".
func (s *Store) Shard(table, row string) string { return s.direct.Shard(table, row) }

// Report implements rowstore.Reporter. It asks every primary anew.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) { return s.report.Report(ctx) }
