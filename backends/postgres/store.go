package postgres

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Store is a row-transactional store in Postgres. Make it with [Open], [OpenURL] or [New].
// It merges the calls that are made at the same time, as package coalesce does, unless
// Options.NoCoalesce says otherwise.
//
// It is a [rowstore.Grouper], a [rowstore.SnapshotReader], a [rowstore.Deferrer], an
// [rowstore.OracleProvider], a [rowstore.Splitter], a [rowstore.SlotScanner], a
// [rowstore.Limiter] and a [rowstore.Reporter]. If it can reach the server directly for LISTEN (see Options.Listen),
// it has a [rowstore.Waker] too, which rowstore.Unwrap finds. All methods may be called
// concurrently.
type Store struct {
	plain *plainStore
	outer rowstore.Store // merges calls of plain, or is plain

	// The abilities of outer.
	grouper  rowstore.Grouper
	drawer   rowstore.SnapshotReader
	oracle   rowstore.OracleProvider
	reporter rowstore.Reporter
}

// newStore gives the store those abilities that it has here, and merges calls.
func newStore(plain *plainStore, opts Options) *Store {
	s := &Store{plain: plain, outer: plain}
	if plain.listen != nil {
		s.outer = &wakingStore{plain}
	}
	if !opts.NoCoalesce {
		var co coalesce.Options
		if opts.Coalesce != nil {
			co = *opts.Coalesce
		}
		if co.MaxInFlight <= 0 {
			co.MaxInFlight = defaultInFlight
		}
		s.outer = coalesce.New(s.outer, co)
	}
	s.grouper, _ = rowstore.Unwrap[rowstore.Grouper](s.outer)
	s.drawer, _ = rowstore.Unwrap[rowstore.SnapshotReader](s.outer)
	s.oracle, _ = rowstore.Unwrap[rowstore.OracleProvider](s.outer)
	s.reporter, _ = rowstore.Unwrap[rowstore.Reporter](s.outer)
	return s
}

// Read implements rowstore.Store.
func (s *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return s.outer.Read(ctx, reads)
}

// Apply implements rowstore.Store.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	return s.outer.Apply(ctx, muts, opts)
}

// Scan implements rowstore.Store. No connection is held between its pages.
func (s *Store) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return s.outer.Scan(ctx, r)
}

// Tables implements rowstore.Store.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] { return s.outer.Tables(ctx) }

// Close implements rowstore.Store. It ends the calls under way and leaves a pool that
// was given to [New] open.
func (s *Store) Close() error { return s.outer.Close() }

// GroupKey implements rowstore.Grouper: any rows may share a group.
func (s *Store) GroupKey(table, row string) string { return s.grouper.GroupKey(table, row) }

// AssignsTimestamps implements rowstore.Grouper: groups of up to 512 rows draw timestamps.
func (s *Store) AssignsTimestamps(key string) bool { return s.grouper.AssignsTimestamps(key) }

// Group implements rowstore.Grouper.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return s.grouper.Group(ctx, groups)
}

// ReadSnapshot implements rowstore.SnapshotReader.
func (s *Store) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	return s.drawer.ReadSnapshot(ctx, asks)
}

// Flush implements rowstore.Deferrer.
func (s *Store) Flush(ctx context.Context) error { return s.plain.Flush(ctx) }

// Oracle implements rowstore.OracleProvider: a sequence in the store's schema.
func (s *Store) Oracle() oracle.Oracle { return s.oracle.Oracle() }

// Split implements rowstore.Splitter, by a sample of the table's pages.
func (s *Store) Split(ctx context.Context, table string, n int) ([]string, error) {
	return s.plain.Split(ctx, table, n)
}

// ScansSlots implements rowstore.SlotScanner: the key of the table of notifications begins with
// table and slot.
func (s *Store) ScansSlots() {}

// ScansSnapshots implements rowstore.SnapshotScanner: scan_point draws the timestamp, and tells the last one that was drawn.
func (s *Store) ScansSnapshots() {}

// Limits implements rowstore.Limiter.
func (s *Store) Limits() rowstore.Limits { return s.plain.Limits() }

// Report implements rowstore.Reporter. It asks the server anew.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) { return s.reporter.Report(ctx) }

// Unwrap implements rowstore.Wrapper, for the abilities that a store has in some
// places only.
func (s *Store) Unwrap() rowstore.Store { return s.outer }

// The longest names. A table's, a row's and a column's together have to fit into an
// entry of an index, which is a third of a page.
const (
	maxTable  = 512
	maxRow    = 1536
	maxColumn = 512
	maxValue  = 64 << 20
)

// plainStore is the store without the merging of calls.
type plainStore struct {
	pool   *pgxpool.Pool
	owned  bool // Close closes the pool
	schema string
	names  names
	q      queries
	server string // the version, for people
	number int    // the version, as server_version_num has it

	// unprepared: prepared statements do not work here. explicit: transactions have to
	// be begun with what they need, because the defaults are something else. Both are
	// found out from the server's answers, and never taken back.
	unprepared, explicit atomic.Bool
	pooler               bool // there is something between us and the server
	listen               *pgx.ConnConfig
	listensApart         bool // by an address of its own
	pusher               *pusher
	deaf                 bool          // the server's warnings do not arrive: see OnNotice
	openlyHears          atomic.Bool   // the last connection of Listen was plain text, to another machine
	unconfirmed          atomic.Uint64 // commits that the server did not wait for to the end
	mostKeys             int           // that a scan in the order of rows holds; only tests set it
	hearWithin           time.Duration // as the constant; only tests set another

	renewal renewal

	gate *kit.Gate // every call goes through it
}

// Close implements rowstore.Store. Calls under way are ended.
func (s *plainStore) Close() error {
	return s.gate.Close(func() error {
		s.pusher.stop()
		if s.owned {
			s.pool.Close()
		}
		return nil
	})
}

// ScansSlots implements rowstore.SlotScanner.
func (s *plainStore) ScansSlots() {}

// ScansSnapshots implements rowstore.SnapshotScanner.
func (s *plainStore) ScansSnapshots() {}

// Limits implements rowstore.Limiter.
func (s *plainStore) Limits() rowstore.Limits {
	return rowstore.Limits{Table: maxTable, Row: maxRow, Column: maxColumn, Value: maxValue}
}

// Oracle implements rowstore.OracleProvider.
func (s *plainStore) Oracle() oracle.Oracle { return s.gate.Oracle(serverOracle{s}) }

var (
	_ rowstore.Store           = (*Store)(nil)
	_ rowstore.Wrapper         = (*Store)(nil)
	_ rowstore.Grouper         = (*Store)(nil)
	_ rowstore.SnapshotReader  = (*Store)(nil)
	_ rowstore.Deferrer        = (*Store)(nil)
	_ rowstore.OracleProvider  = (*Store)(nil)
	_ rowstore.Splitter        = (*Store)(nil)
	_ rowstore.SlotScanner     = (*Store)(nil)
	_ rowstore.SnapshotScanner = (*Store)(nil)
	_ rowstore.Limiter         = (*Store)(nil)
	_ rowstore.Reporter        = (*Store)(nil)
	_ rowstore.Waker           = (*wakingStore)(nil)
)
