package admin_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// patient is a database whose time is moved, so that mistakes become old at once.
type patient struct {
	*testing.T
	store *hampered
	db    *percolator.DB
	ahead atomic.Int64
	opts  admin.DoctorOptions
}

// hampered is a store with faults of its own. It counts the bytes of hints that are read.
type hampered struct {
	*watched
	slow     time.Duration
	scan     error
	warnings []string
	hints    int
}

func (h *hampered) Unwrap() rowstore.Store { return h.watched }

func (h *hampered) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	time.Sleep(h.slow)
	return h.watched.Read(ctx, reads)
}

func (h *hampered) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if h.scan != nil && s.Table == format.TableMembers {
		return func(yield func(rowstore.Row, error) bool) { yield(rowstore.Row{}, h.scan) }
	}
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range h.watched.Scan(ctx, s) {
			if err == nil && s.Table == format.TableHints {
				h.hints += len(row.Versions[0].Value)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func (h *hampered) Report(ctx context.Context) (rowstore.Report, error) {
	r, err := h.watched.Report(ctx)
	r.Warnings = h.warnings
	return r, err
}

func newPatient(t *testing.T, opts ...percolator.Option) *patient {
	t.Helper()
	p := &patient{T: t}
	p.opts.Clock = p.now
	p.store = &hampered{watched: &watched{Store: memstore.New(memstore.WithClock(p.now)), t: t}}
	p.open(opts...)
	return p
}

func (p *patient) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

func (p *patient) open(opts ...percolator.Option) {
	db, err := percolator.New(p.Context(), &unclosed{p.store}, append(opts, percolator.WithLogger(slog.New(slog.DiscardHandler)))...)
	require.NoError(p, err)
	p.db = db
	p.Cleanup(p.close)
}

func (p *patient) close() { require.NoError(p, p.db.Close(context.WithoutCancel(p.Context()))) }

// later lets time pass, after the DB has ended: a DB has better things to do than to jump.
func (p *patient) later(d time.Duration) {
	p.close()
	p.ahead.Add(int64(d))
}

// unclosed goes on to be used when the DB is closed.
type unclosed struct{ *hampered }

func (*unclosed) Close() error             { return nil }
func (u *unclosed) Unwrap() rowstore.Store { return u.hampered }

// unwritten lets nobody write through it.
type unwritten struct {
	*hampered
	t *testing.T
}

func (u *unwritten) Unwrap() rowstore.Store { return u.hampered }

func (u *unwritten) Apply(_ context.Context, m []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	u.t.Errorf("a look has written to %q %q", m[0].Table, m[0].Row)
	return nil, rowstore.ErrInvalid
}

// observed registers an observer, and lets it see what is there.
func (p *patient) observed(f func(context.Context, *percolator.Txn, percolator.Cell) error) {
	p.Helper()
	p.observers(f, "o")
}

// observers registers some, and runs them until nothing waits.
func (p *patient) observers(f func(context.Context, *percolator.Txn, percolator.Cell) error, names ...string) {
	p.Helper()
	w := percolator.NewWorker(p.db, percolator.WorkerConfig{})
	for _, name := range names {
		require.NoError(p, w.Observe(percolator.Observer{Name: name, Table: "t", Column: "c", Func: f}))
	}
	ctx, stop := context.WithCancel(p.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	require.NoError(p, w.WaitIdle(p.Context()))
	stop()
	require.NoError(p, <-ended)
}

func fine(context.Context, *percolator.Txn, percolator.Cell) error { return nil }

func (p *patient) apply(table, row string, edits ...rowstore.Edit) {
	p.Helper()
	out, err := p.store.Apply(p.Context(), []rowstore.Mutation{{Table: table, Row: row, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(p, err)
	require.NoError(p, out[0].Err)
}

func (p *patient) draw() percolator.Timestamp {
	p.Helper()
	ts, err := p.store.Oracle().Draw(p.Context(), 1)
	require.NoError(p, err)
	return ts
}

// member puts the record of a worker whose lease ends after left, with a place for observer o or, with weight 0, without.
func (p *patient) member(id string, lease, left time.Duration, weight int) {
	p.Helper()
	at := p.draw()
	m := format.Member{From: at, Lease: lease, Works: []format.MemberWork{{Observer: "o", Table: "t", Column: "c", Weight: weight}}}
	p.apply(format.TableMembers, id, rowstore.Put(rowstore.Lock, format.ColumnMember, at, m.Encode()),
		rowstore.Put(rowstore.Write, format.ColumnLease, at.Add(left), nil))
}

// recatalog changes the stored catalog behind everybody's back.
func (p *patient) recatalog(change func(c *format.Catalog)) {
	p.Helper()
	rows, err := p.store.Read(p.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
	}}})
	require.NoError(p, err)
	c, err := format.DecodeCatalog(rows[0].Versions[0].Value)
	require.NoError(p, err)
	change(&c)
	b, err := c.Encode()
	require.NoError(p, err)
	p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnConfig, p.draw(), b))
}

func (p *patient) lock(session string, age time.Duration) {
	start := p.draw().Add(-age)
	l := format.Lock{Kind: format.KindPut, Expiry: start.Add(24 * time.Hour), Session: session, Primary: format.Cell(cell("locked")), Value: []byte("v")}
	p.apply("t", "locked", rowstore.Put(rowstore.Lock, "c", start, l.Encode()))
}

func (p *patient) set(row string) {
	p.Helper()
	set(p.T, p.db, cell(row), "v")
}

// sets sets n cells, a hundred in a transaction, which is faster than set.
func (p *patient) sets(prefix string, n int) {
	p.Helper()
	for from := 0; from < n; from += 100 {
		require.NoError(p, p.db.Update(p.Context(), func(tx *percolator.Txn) error {
			for i := from; i < min(from+100, n); i++ {
				if err := tx.Set(cell(fmt.Sprintf("%s%05d", prefix, i)), []byte("v")); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

func (p *patient) diagnose() admin.Diagnosis {
	p.Helper()
	r, err := admin.New(&unwritten{p.store, p.T})
	require.NoError(p, err)
	d, err := r.Doctor(p.Context(), p.opts)
	require.NoError(p, err)
	return d
}

// mistakes are planted one by one. Each must be found by its code, with words about it.
var mistakes = []struct {
	name   string
	opts   []percolator.Option
	plant  func(p *patient)
	code   string
	grade  admin.Grade
	words  string // in what is said, and change in what to do
	change string
}{
	{name: "the store warns", code: "store", grade: admin.Risky, words: "the disk is on fire", plant: func(p *patient) { p.store.warnings = []string{"the disk is on fire"} }},
	{name: "the oracle is ahead", code: "clock-ahead", grade: admin.Risky, words: "ahead of this machine's clock", plant: func(p *patient) {
		p.opts.Clock = func() time.Time { return p.now().Add(-time.Minute) }
	}},
	{name: "the oracle is behind", code: "clock-behind", grade: admin.Risky, words: "behind this machine's clock", plant: func(p *patient) {
		p.opts.Clock = func() time.Time { return p.now().Add(time.Minute) }
	}},
	{name: "the oracle stands still", code: "clock-stands", grade: admin.Wrong, words: "stands still", plant: func(p *patient) {
		// The oracle does not go back, so it waits at what was drawn while the clock was ahead.
		p.ahead.Add(int64(time.Minute))
		p.draw()
		p.ahead.Add(-int64(time.Minute))
	}},
	{name: "round trips are long", code: "slow", grade: admin.Risky, words: "a read of one row takes", plant: func(p *patient) { p.store.slow = 101 * time.Millisecond }},
	{name: "a lease is shorter than round trips", code: "lease-short", grade: admin.Wrong, words: "take each other for dead", plant: func(p *patient) {
		p.member("w", time.Microsecond, time.Hour, 1)
	}},
	{name: "a worker is stuck", code: "worker-stuck", grade: admin.Wrong, words: `cannot begin any run of "o"`, plant: func(p *patient) { p.member("w", time.Minute, time.Hour, 0) }},
	{name: "workers were killed", code: "worker-gone", grade: admin.Risky, words: "2 workers have left records", plant: func(p *patient) {
		p.member("w", time.Second, time.Second, 1)
		p.member("x", time.Second, time.Second, 1)
		p.later(10 * time.Minute)
	}},
	{name: "leases differ", code: "worker-leases", grade: admin.Risky, words: "from 1s to 1m", plant: func(p *patient) {
		p.member("w", time.Second, time.Hour, 1)
		p.member("x", time.Minute, time.Hour, 1)
	}},
	{name: "a process died with locks", code: "locks-dead", grade: admin.Risky, words: "of process corpse, which is gone", plant: func(p *patient) { p.lock("corpse", 10*time.Minute) }},
	{name: "a transaction is too old", code: "locks-late", grade: admin.Wrong, words: "they cannot commit any more", plant: func(p *patient) {
		session(p.T, p.db, "slow", p.draw().Add(time.Hour))
		p.lock("slow", 2*time.Hour)
	}},
	{name: "a hold keeps the safe point", code: "hold-far", grade: admin.Risky, words: "the hold nightly backup keeps history", change: "release 'nightly backup'", plant: func(p *patient) {
		_, err := p.db.Hold(p.Context(), "nightly backup", 0, 96*time.Hour)
		require.NoError(p, err)
		p.later(50 * time.Hour)
	}},
	{name: "nothing is collected any more", code: "gc-late", grade: admin.Wrong, words: "the data grows", plant: func(p *patient) {
		p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnSafePoint, p.draw(), nil))
		p.later(50 * time.Hour)
	}},
	{name: "nothing was ever collected", code: "gc-late", grade: admin.Wrong, words: "garbage was never collected", plant: func(p *patient) {
		p.set("r")
		p.set("r")
		p.later(50 * time.Hour)
	}},
	{name: "a queue is not collected", code: "gc-late", grade: admin.Wrong, words: "garbage of table t", plant: func(p *patient) {
		p.recatalog(func(c *format.Catalog) {
			c.ByTable = true
			c.Current.Tables = []format.Table{{Name: []byte("t"), MaxTxnAgeMs: 30_000, RetentionMs: 60_000}}
		})
		points := format.TableSafePoints{Tables: []format.TableSafePoint{{Name: []byte("t"), SafePoint: p.draw()}}}
		b, err := points.Encode()
		require.NoError(p, err)
		p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnOfTables, p.draw(), b))
		p.later(time.Hour)
	}},
	{name: "settings at odds", code: "settings", grade: admin.Risky, words: "the retention of the database is 3h", opts: []percolator.Option{
		percolator.WithSettings(percolator.Settings{MaxTxnAge: 2 * time.Hour, Retention: 3 * time.Hour}),
	}, plant: func(*patient) {}},
	{name: "settings so short that collections read all", code: "settings", grade: admin.Risky, words: "look for locks in every row", opts: []percolator.Option{
		percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Second, CatalogLease: time.Second}),
	}, plant: func(*patient) {}},
	{name: "a change of settings without its time", code: "settings-undated", grade: admin.Wrong, words: "never got its time", plant: func(p *patient) {
		p.recatalog(func(c *format.Catalog) {
			next := c.Current
			next.RetentionMs *= 2
			c.Next = &next
		})
		p.later(10 * time.Minute)
	}},
	{name: "nobody runs an observer", code: "observer-alone", grade: admin.Wrong, words: "no worker runs observer o of t c: 1 changes wait", plant: func(p *patient) {
		p.observed(fine)
		p.set("r")
		p.later(10 * time.Minute)
	}},
	{name: "a paused observer is forgotten", code: "observer-paused", grade: admin.Risky, words: "perhaps forgotten", plant: func(p *patient) {
		p.observed(fine)
		require.NoError(p, p.db.PauseObserver(p.Context(), "o"))
		p.set("r")
		p.later(25 * time.Hour)
	}},
	{name: "workers are behind", code: "observer-behind", grade: admin.Wrong, words: "although 1 workers run it", plant: func(p *patient) {
		p.observed(fine)
		p.set("r")
		p.later(time.Hour)
		p.member("w", time.Minute, time.Hour, 1)
	}},
	{name: "cascades are not tracked", code: "cascades-untracked", grade: admin.Note, words: "there are 2 observers", change: "percolator cascades track", plant: func(p *patient) {
		p.observers(fine, "o", "other")
	}},
	{name: "some runs are parked", code: "parked", grade: admin.Risky, words: "has 1 parked runs", plant: func(p *patient) { p.parkRuns("a") }},
	{name: "many runs are parked", code: "parked-many", grade: admin.Wrong, words: "something that all of them need is broken", plant: func(p *patient) {
		p.opts.Parked = 3
		p.parkRuns("a", "b", "c")
	}},
	{name: "a timer is overdue", code: "timer-overdue", grade: admin.Wrong, words: "has been due for", plant: func(p *patient) {
		p.observed(fine)
		require.NoError(p, p.db.Update(p.Context(), func(tx *percolator.Txn) error { return tx.NotifyAfter(p.Context(), cell("r"), 10*time.Minute) }))
		p.later(20 * time.Minute)
	}},
	{name: "the catalog is old", code: "catalog-old", grade: admin.Risky, words: "the catalog has version", plant: func(p *patient) {
		p.close()
		p.recatalog(func(c *format.Catalog) { c.Hinted, c.HintsFrom = false, 0 })
	}},
	{name: "a process goes by an older catalog", code: "process-behind", grade: admin.Risky, words: "1 of 1 processes go by a catalog that was replaced", plant: func(p *patient) {
		p.close()
		p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Mark, format.UsePrefix+"idle", p.draw(), format.Use{Revision: p.draw().Add(-48 * time.Hour)}.Encode()))
		p.later(25 * time.Hour)
	}},
	{name: "an old program runs", code: "program-old", grade: admin.Risky, words: "1 processes run a program that knows no catalog", plant: func(p *patient) {
		p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Mark, "ancient", p.draw(), format.Use{Revision: p.draw()}.Encode()))
	}},
	{name: "the members cannot be read", code: "cannot-look", grade: admin.Wrong, words: "looking at the workers failed", plant: func(p *patient) { p.store.scan = errors.New("permission denied") }},
	{name: "the server goes away", code: "unavailable", grade: admin.Wrong, words: "looking at the workers failed", plant: func(p *patient) { p.store.scan = rowstore.ErrUnavailable }},
}

func (p *patient) parkRuns(rows ...string) {
	p.Helper()
	for _, r := range rows {
		p.set(r)
	}
	p.observed(func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("broken"))
	})
}

// TestDoctorFindsEachMistake plants one mistake after the other in databases that are right otherwise.
func TestDoctorFindsEachMistake(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, len(mistakes), 20)
	for i := range mistakes {
		m := &mistakes[i]
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, m.opts...)
			m.plant(p)
			d := p.diagnose()
			at := slices.IndexFunc(d.Findings, func(f admin.Finding) bool { return f.Code == m.code })
			require.GreaterOrEqual(t, at, 0, "%+v", d.Findings)
			f := d.Findings[at]
			require.Equal(t, m.grade, f.Grade)
			require.Contains(t, f.What, m.words)
			require.Contains(t, f.Change, m.change)
			require.Equal(t, m.grade != admin.Note, d.Amiss())
			require.True(t, f.Change != "" || f.Code == "store", "nothing says what to change: %+v", f)
			for _, other := range d.Findings {
				// A mistake may show in two ways, but not as one of those that others are about.
				require.Contains(t, allowed(m.code), other.Code, "%+v", d.Findings)
			}
		})
	}
}

// allowed are the findings that may come with one: a killed worker has left what waits, members that cannot be read are asked for twice.
func allowed(code string) []string {
	return append(map[string][]string{
		"cannot-look": {"cannot-look"}, "clock-stands": {"clock-ahead"}, "hold-far": {}, "lease-short": {}, "slow": {},
	}[code], code)
}

// TestDoctorFindsNothing looks at a database that is used, and right.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.observed(fine)
	p.set("r")
	p.set("r")
	require.NoError(t, p.db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.NotifyAfter(t.Context(), cell("r"), time.Hour) }))
	_, err := p.db.Hold(t.Context(), "backup", 0, time.Hour)
	require.NoError(t, err)
	// As after a failover: the oracle waits for the clock for a moment.
	p.ahead.Add(int64(5 * time.Second))
	p.draw()
	p.ahead.Add(-int64(5 * time.Second))
	d := p.diagnose()
	require.Empty(t, d.Findings)
	require.False(t, d.Amiss())
	require.Equal(t, "memory", d.Backend)
	require.Positive(t, d.RoundTrip)
}

// TestDoctorOfTrackedCascades has nothing to say of loops where they end.
func TestDoctorOfTrackedCascades(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.observers(fine, "o", "other")
	p.recatalog(func(c *format.Catalog) { c.Cascades = true })
	require.Empty(t, p.diagnose().Findings)
}

// TestDoctorReadsFewBytesOfHints has hints that are long, and were never collected: the doctor reads a part of them, and once.
func TestDoctorReadsFewBytesOfHints(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	long := format.Hint{Rows: []string{strings.Repeat("r", 1<<20)}}
	value := long.Encode()
	for i := range 40 {
		at := p.draw()
		p.apply(format.TableHints, format.HintRow("t", at, fmt.Sprint(i)), rowstore.Put(rowstore.Write, format.ColumnHint, at, value))
	}
	p.later(50 * time.Hour)
	p.store.hints = 0
	d := p.diagnose()
	require.Len(t, d.Findings, 1)
	require.Equal(t, "gc-late", d.Findings[0].Code)
	require.Less(t, p.store.hints, 21<<20)
}

// TestDoctorWaitsForTheFirstCollection has a table whose retention has just been made shorter. Its first collection comes when no transaction from before can run any
// more; if none comes then, the doctor says so.
func TestDoctorWaitsForTheFirstCollection(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnSafePoint, p.draw(), nil))
	p.later(20 * time.Hour)
	shorten := func(since percolator.Timestamp) {
		p.recatalog(func(c *format.Catalog) {
			c.ByTable = true
			c.Current.Tables = []format.Table{{Name: []byte("t"), MaxTxnAgeMs: 30_000, RetentionMs: 60_000, Since: since}}
		})
	}
	shorten(0)
	require.Empty(t, p.diagnose().Findings)
	shorten(p.draw())
	p.later(time.Hour)
	require.Empty(t, p.diagnose().Findings)
	p.later(10 * time.Minute)
	d := p.diagnose()
	require.Len(t, d.Findings, 1)
	require.Contains(t, d.Findings[0].What, "garbage of table t")
}

// TestDoctorOfAHeldTable has a hold that is younger than the retention of the database, and keeps the history of a table whose retention is shorter. That is no fault
// of whoever collects.
func TestDoctorOfAHeldTable(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	h, err := p.db.Hold(t.Context(), "nightly backup", 0, 20*time.Hour)
	require.NoError(t, err)
	p.recatalog(func(c *format.Catalog) {
		c.ByTable = true
		c.Current.Tables = []format.Table{{Name: []byte("t"), MaxTxnAgeMs: 30_000, RetentionMs: 60_000}}
	})
	points := format.TableSafePoints{Tables: []format.TableSafePoint{{Name: []byte("t"), SafePoint: h.At()}}}
	b, err := points.Encode()
	require.NoError(t, err)
	p.apply(format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnOfTables, p.draw(), b))
	p.later(time.Hour)
	require.Empty(t, p.diagnose().Findings)
	p.open()
	require.NoError(t, p.db.ReleaseHold(t.Context(), "nightly backup"))
	d := p.diagnose()
	require.Len(t, d.Findings, 1)
	require.Equal(t, "gc-late", d.Findings[0].Code)
}

func TestDoctorRefuses(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.opts.Parked = 1_000_000
	require.Empty(t, p.diagnose().Findings, "that many are not too many to count")
	r, err := admin.New(p.store)
	require.NoError(t, err)
	for _, o := range []admin.DoctorOptions{{MaxSkew: -1}, {Waiting: -1}, {Behind: -1}, {Forgotten: -1}, {Parked: -1}, {Rows: 1_000_001}} {
		_, err := r.Doctor(t.Context(), o)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	empty, err := admin.New(memstore.New())
	require.NoError(t, err)
	_, err = empty.Doctor(t.Context(), admin.DoctorOptions{})
	require.ErrorIs(t, err, percolator.ErrNoStore)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = r.Doctor(ended, admin.DoctorOptions{})
	require.ErrorIs(t, err, context.Canceled)
	for _, o := range []admin.LoadOptions{{Commits: -1}, {Commits: 100_001}, {Clients: 257}, {For: -1}} {
		_, err := admin.MeasureLoad(t.Context(), p.db, o)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	_, err = admin.MeasureLoad(t.Context(), nil, admin.LoadOptions{})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	for _, err := range []error{nil, percolator.ErrNoStore, percolator.ErrInvalid, percolator.ErrForeign, context.Canceled} {
		_, ok := admin.CannotOpen(err)
		require.False(t, ok)
	}
}

// TestLoadLeavesNothing measures a load, and looks for its rows, and for those of one that was killed.
func TestLoadLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	killed := percolator.Cell{Table: admin.LoadTable, Row: "00000000000000000001 x", Column: "load"}
	set(t, p.db, killed, "left")
	killed.Column = "another"
	set(t, p.db, killed, "left")
	l, err := admin.MeasureLoad(t.Context(), p.db, admin.LoadOptions{Commits: 300})
	require.NoError(t, err)
	require.Equal(t, 300, l.Commits)
	require.Equal(t, 4, l.Clients)
	require.Positive(t, l.Rate)
	require.LessOrEqual(t, l.Median, l.P99)
	require.LessOrEqual(t, l.P99, l.Longest)
	require.Empty(t, l.Findings())
	brief, err := admin.MeasureLoad(t.Context(), p.db, admin.LoadOptions{For: 1})
	require.NoError(t, err)
	require.Equal(t, 1, brief.Commits, "one at least")
	require.NotEmpty(t, (&admin.Load{P99: admin.Span(2 * time.Second)}).Findings())
	for table, err := range p.store.Tables(t.Context()) {
		require.NoError(t, err)
		require.NotEqual(t, format.Escape(admin.LoadTable), table)
	}
	require.Empty(t, p.diagnose().Findings)
}
