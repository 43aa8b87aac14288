package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// measured is a Memory that notes how large its calls are. It is a Decorator without
// optional abilities but the oracle.
type measured struct {
	*memstore.Store
	limits rowstore.Limits

	mu                     sync.Mutex
	scanned, read, removed int // the most versions of a row, a call and a call
	operations             int // the most of a mutation
}

// note raises what was the most so far.
func (m *measured) note(most *int, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*most = max(*most, n)
}

// reset forgets what was noted.
func (m *measured) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scanned, m.read, m.removed, m.operations = 0, 0, 0, 0
}

func (m *measured) Close() error { return nil }

func (m *measured) Abilities() rowstore.Abilities {
	return rowstore.Abilities{OracleProvider: m.Store, Limiter: m}
}

func (m *measured) Limits() rowstore.Limits { return m.limits }

func (m *measured) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range m.Store.Scan(ctx, s) {
			m.note(&m.scanned, len(row.Versions))
			if !yield(row, err) {
				return
			}
		}
	}
}

func (m *measured) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, err := m.Store.Read(ctx, reads)
	n := 0
	for i := range rows {
		n += len(rows[i].Versions)
	}
	m.note(&m.read, n)
	return rows, err
}

func (m *measured) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	removed := 0
	for i := range muts {
		m.note(&m.operations, len(muts[i].Conditions)+len(muts[i].Edits))
		for _, e := range muts[i].Edits {
			if e.Kind == rowstore.DoPut {
				continue
			}
			to := max(e.To, e.TS)
			rows, err := m.Store.Read(ctx, []rowstore.RowRead{{Table: muts[i].Table, Row: muts[i].Row, Selectors: []rowstore.Selector{{Family: e.Family, Column: e.Column, From: e.TS, To: to}}}})
			if err != nil {
				return nil, err
			}
			removed += len(rows[0].Versions)
		}
	}
	m.note(&m.removed, removed)
	return m.Store.Apply(ctx, muts, opts)
}

// history puts committed versions of a column, as so many transactions would have.
func (w *world) history(cell Cell, n int, long bool) (newest string) {
	w.t.Helper()
	start, err := w.mem.Oracle().Draw(w.t.Context(), 2*n)
	require.NoError(w.t, err)
	edits := make([]rowstore.Edit, 0, 2*n)
	for i := range n {
		wv := format.Write{Kind: format.KindPut, Start: start, Value: []byte(fmt.Sprint(i))}
		newest = string(wv.Value)
		if long {
			wv.Long, wv.Value, newest = true, nil, fmt.Sprint(longText, i)
			edits = append(edits, rowstore.Put(rowstore.Data, cell.Column, start, []byte(newest)))
		}
		edits = append(edits, rowstore.Put(rowstore.Write, cell.Column, start+1, wv.Encode()))
		start += 2
	}
	_, err = w.mem.Apply(w.t.Context(), []rowstore.Mutation{{Table: cell.Table, Row: cell.Row, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
	return newest
}

// Cells with a long history, and rows of many columns, are collected in bounded pieces.
func TestCollectionIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		columns, versions int
		long              bool
		operations        int
	}{
		"deep":                 {columns: 1, versions: 2000},
		"deep and long":        {columns: 1, versions: 1500, long: true},
		"wide":                 {columns: 100, versions: 20},
		"wide and long":        {columns: 100, versions: 12, long: true},
		"shallow":              {columns: 200, versions: 3},
		"exactly a page":       {columns: 2, versions: gcPage + gcShallow},
		"a store of few edits": {columns: 4, versions: 150, long: true, operations: 128},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m := &measured{Store: w.mem, limits: rowstore.Limits{Operations: test.operations}}
			db := open(t, m, WithClock(w.clock))
			hinted := len(name)%2 == 1 // the rest is for a collection of all rows
			want := map[Cell]string{}
			for i := range test.columns {
				cell := Cell{"t", "row", fmt.Sprintf("column %03d", i)}
				want[cell] = w.history(cell, test.versions, test.long)
				db.hint(cell, db.known().asOf)
			}
			w.clock.advance(25 * time.Hour)
			m.reset()
			var report GCReport
			done := async(func() (err error) {
				report, err = db.CollectGarbage(context.Background(), GCOptions{Full: !hinted})
				return err
			})
			require.Eventually(t, func() bool {
				select {
				case err := <-done:
					require.NoError(t, err)
					return true
				default:
					w.clock.advance(time.Second)
					return false
				}
			}, patience, time.Millisecond)
			each := 1 // versions, with long values two
			if test.long {
				each = 2
			}
			require.Equal(t, test.columns*(test.versions-1)*each, report.Versions)
			require.Equal(t, !hinted, report.Full)
			for cell, v := range want {
				require.Equal(t, v, get(t, db, cell))
				row := w.raw(cell)
				require.Len(t, row.All(rowstore.Write, cell.Column), 1)
				if test.long {
					require.Len(t, row.All(rowstore.Data, cell.Column), 1)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			require.LessOrEqual(t, m.scanned, test.columns*(gcShallow+2), "a scan showed too much of a row")
			require.LessOrEqual(t, m.read, gcDeep*gcPage)
			require.LessOrEqual(t, m.removed, 8*gcPage+2*gcPage)
			if test.operations > 0 {
				require.LessOrEqual(t, m.operations, test.operations)
			}
		})
	}
}

// A collection that ends at any of its calls has removed no version of a column above
// one that it left: what a read finds is right, whatever was collected.
func TestCollectionGoesFromTheOldestOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cell := row("deep")
	w.history(cell, 3*gcPage, false)
	before := w.raw(cell)
	all := before.All(rowstore.Write, "v")
	w.clock.advance(25 * time.Hour)
	for n := 0; ; n++ {
		cut := w.client()
		r := cut.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), on(cell)), Skip: 1, Fault: die})
		_, err := w.collect(cut, 0)
		row := w.raw(cell)
		left := row.All(rowstore.Write, "v")
		require.Equal(t, all[:len(left)], left)
		ended := r.Struck() == 0
		if ended {
			require.NoError(t, err)
			require.Len(t, left, 1)
			require.Greater(t, n, 1)
			return
		}
		require.Less(t, len(left), len(all)-n, "the first call was to remove something")
	}
}

// Of a column with very many long versions, few pages are in memory: the others are read again when they are removed, and what an observer
// saw there is kept.
func TestCollectionOfAVeryDeepColumn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	const pages = 3 * gcKept
	w.history(rowA, (pages-1)*gcPage, true)
	set(t, c.DB, rowA, longText+"seen")
	require.True(t, o.run(rowA))
	for i := range gcPage / 2 {
		set(t, c.DB, rowA, fmt.Sprint(longText, i))
	}
	w.clock.advance(2 * worldAge)
	c.wire.forget()
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Greater(t, report.Versions, 2*(pages-1)*gcPage)
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1)
	require.Len(t, row.All(rowstore.Data, "v"), 2)
	read := map[Timestamp]int{}
	for _, x := range c.wire.sent(op(faultstore.CallRead)) {
		if s := x.Reads[0].Selectors[0]; x.Reads[0].Row == rowA.Row && s.Family == rowstore.Write && s.Limit == gcPage {
			read[s.To]++
		}
	}
	require.Len(t, read, pages)
	twice := 0
	for _, n := range read {
		twice += n - 1
	}
	require.GreaterOrEqual(t, twice, pages-gcKept)
	require.LessOrEqual(t, twice, pages-gcKept+1)
	require.True(t, o.run(rowA))
	require.Equal(t, longText+"seen", string(o.changes[len(o.changes)-1].Old))
}

// Workers that live shorter than the interval collect too, and in all not more often
// than it says.
func TestShortLivedWorkersCollect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		settings := WithSettings(Settings{MaxTxnAge: time.Second, Retention: 10 * time.Second, CatalogLease: 100 * time.Millisecond})
		runs := uint64(0)
		const lives = 40
		for range lives {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			var dbs []*DB
			ended := make(chan error, 2)
			for range 2 {
				db, err := New(ctx, unclosedMemory{mem}, settings)
				require.NoError(t, err)
				dbs = append(dbs, db)
				go func() { ended <- NewWorker(db, WorkerConfig{GCInterval: time.Minute}).Run(ctx) }()
			}
			for _, db := range dbs {
				require.NoError(t, <-ended)
				runs += db.Stats().GCRuns
				require.NoError(t, db.Close(t.Context()))
			}
			cancel()
		}
		// Ten minutes.
		require.GreaterOrEqual(t, runs, uint64(8))
		require.LessOrEqual(t, runs, uint64(14))
	})
}

// Workers that end before the lease is over which a collection waits collect all the same: one publishes the safe point, another goes on from there. Until
// then the gauge tells that history is kept.
func TestWorkersThatEndWithinTheLeaseCollect(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]TableSettings{"all tables": {}, "a short table": {MaxTxnAge: 10 * time.Second, Retention: time.Minute}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New()
				opt := WithSettings(Settings{MaxTxnAge: time.Minute, Retention: 10 * time.Minute, CatalogLease: 10 * time.Second})
				db, err := New(t.Context(), unclosedMemory{mem}, opt)
				require.NoError(t, err)
				if settings != (TableSettings{}) {
					require.NoError(t, db.ConfigureTable(t.Context(), "t", settings))
				}
				set(t, db, rowA, "1")
				set(t, db, rowA, "2")
				require.NoError(t, db.storeHints(t.Context()))
				time.Sleep(11 * time.Minute)
				overdue := func() time.Duration {
					v, err := db.loadCatalog(t.Context())
					require.NoError(t, err)
					late, err := db.overdue(t.Context(), v)
					require.NoError(t, err)
					return late
				}
				versions := func() int {
					rows, err := mem.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{everything(rowstore.Write, "v")}}})
					require.NoError(t, err)
					return len(rows[0].Versions)
				}
				lives := 0
				for late := overdue(); versions() == 2; lives++ {
					require.Less(t, lives, 20, "nothing was collected")
					now := overdue()
					require.GreaterOrEqual(t, now, late, "history is kept still")
					late = now
					liveFor(t, mem, opt, 8*time.Second)
					time.Sleep(52 * time.Second)
				}
				t.Log("lives", lives)
				require.Positive(t, lives)
				// A worker begins at a moment of its own, which it may not live to see, several in a row now and then.
				const further = 40
				kept := 0
				for range further {
					liveFor(t, mem, opt, 8*time.Second)
					time.Sleep(52 * time.Second)
					if overdue() < 5*time.Minute {
						kept++
					}
				}
				t.Log("history was kept for less than 5 minutes too long after", kept, "of", further, "lives")
				require.Greater(t, kept, further/2)
				require.NoError(t, db.Close(t.Context()))
			})
		})
	}
}

// liveFor runs a worker for so long.
func liveFor(t *testing.T, mem *memstore.Store, opt Option, life time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), life)
	defer cancel()
	db, err := New(t.Context(), unclosedMemory{mem}, opt)
	require.NoError(t, err)
	require.NoError(t, NewWorker(db, WorkerConfig{GCInterval: time.Minute}).Run(ctx))
	require.NoError(t, db.Close(t.Context()))
}

type unclosedMemory struct{ *memstore.Store }

func (unclosedMemory) Close() error { return nil }

// slowTables takes some time to list the tables, and then fails: a stand-in for a collection that reads all rows and finds a damaged one.
type slowTables struct {
	unclosedMemory
	calls *atomic.Int64
	takes time.Duration
}

func (s slowTables) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.calls.Add(1)
		time.Sleep(s.takes)
		yield("", errors.New("damaged"))
	}
}

// A collection that fails after it has read for long is repeated, but not all the time.
func TestFailingCollectionTakesLittleTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		takes         time.Duration
		atLeast, most int64
	}{
		{time.Minute, 20, 30},
		// It pauses for no more than half the interval.
		{10 * time.Minute, 7, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Hour)
			defer cancel()
			var calls atomic.Int64
			db, err := New(ctx, slowTables{unclosedMemory{memstore.New()}, &calls, c.takes}, WithSettings(Settings{MaxTxnAge: time.Minute, Retention: time.Hour}))
			require.NoError(t, err)
			require.NoError(t, NewWorker(db, WorkerConfig{GCInterval: time.Hour}).Run(ctx))
			require.NoError(t, db.Close(t.Context()))
			require.GreaterOrEqual(t, calls.Load(), c.atLeast)
			require.LessOrEqual(t, calls.Load(), c.most)
		})
	}
}

// damagedMarkers cannot read the notified rows of table t.
type damagedMarkers struct{ *memstore.Store }

func (s damagedMarkers) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if r.Table == "t" && len(r.Selectors) > 0 && r.Selectors[0].Family == rowstore.Notify {
		return func(yield func(rowstore.Row, error) bool) {
			yield(rowstore.Row{}, fmt.Errorf("%w: a row of a test", ErrCorrupt))
		}
	}
	return s.Store.Scan(ctx, r)
}

// A notified row that cannot be read fails the collection, and keeps the history of no other row. What fails is counted.
func TestCollectionBesideADamagedNotification(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.clientOver(newWireTo(damagedMarkers{w.mem}, w.mem))
	set(t, c.DB, rowA, "1")
	other := Cell{"t", "z", "kept"}
	for range 5 {
		set(t, c.DB, other, longText)
	}
	w.clock.advance(2 * worldRetention)
	_, err := w.collect(c, 0)
	require.ErrorIs(t, err, ErrCorrupt)
	row := w.raw(other)
	require.Len(t, row.All(rowstore.Write, "kept"), 1)
	require.Len(t, row.All(rowstore.Data, "kept"), 1)
	require.EqualValues(t, 1, c.Stats().GCFailures)
	require.Zero(t, c.Stats().GCRuns)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.CollectGarbage(ended, GCOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, c.Stats().GCFailures, "it was not let to")
}

// Something in the store that is no table fails a collection of all rows, and keeps the history of no table.
func TestCollectionBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wire := newWireTo(w.mem, w.mem)
	wire.AddRule(faultstore.Rule{Match: op(faultstore.CallTables), Fault: faultstore.Fault{Kind: faultstore.Fail, Err: ErrCorrupt, Rows: math.MaxInt}, Times: -1})
	c := w.clientOver(wire)
	for _, value := range []string{"1", "2", "3"} {
		set(t, c.DB, rowA, value)
	}
	c.hints.forgetAll()
	w.clock.advance(2 * worldRetention)
	report, err := w.collectBy(c, GCOptions{Full: true})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "listing the tables")
	require.True(t, report.Full)
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1)
	require.EqualValues(t, 1, c.Stats().GCFailures)
}

// The safe point is what a collection has published.
func TestSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	safe, err := other.SafePoint(t.Context())
	require.NoError(t, err)
	require.Zero(t, safe)
	set(t, c.DB, rowA, "1")
	w.clock.advance(worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	safe, err = other.SafePoint(t.Context())
	require.NoError(t, err)
	require.Equal(t, report.SafePoint, safe)
	_, err = begin(t, other, WithAsOfTimestamp(safe-1)).Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
	_, err = begin(t, other, WithAsOfTimestamp(safe)).Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrNotFound)
}
