package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watched refuses every change while it is being looked at. Only the Reader has it: a DB may store hints in the background.
type watched struct {
	*memstore.Store
	t       *testing.T
	looking bool
}

func (w *watched) Unwrap() rowstore.Store { return w.Store }

func (w *watched) Apply(ctx context.Context, m []rowstore.Mutation, o rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if w.looking {
		w.t.Errorf("a look has written to %q %q", m[0].Table, m[0].Row)
	}
	return w.Store.Apply(ctx, m, o)
}

func open(t *testing.T, opts ...memstore.Option) (*percolator.DB, *watched, *admin.Reader) {
	t.Helper()
	w := &watched{Store: memstore.New(opts...), t: t}
	db, err := percolator.New(t.Context(), w.Store)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	r, err := admin.New(w)
	require.NoError(t, err)
	return db, w, r
}

func cell(row string) percolator.Cell {
	return percolator.Cell{Table: "t", Row: row, Column: "c"}
}

func set(t *testing.T, db *percolator.DB, c percolator.Cell, value string) percolator.Timestamp {
	t.Helper()
	at, err := db.UpdateAt(t.Context(), func(tx *percolator.Txn) error { return tx.Set(c, []byte(value)) })
	require.NoError(t, err)
	return at
}

// prewrite puts the locks of a transaction, the first cell its primary.
func prewrite(t *testing.T, db *percolator.DB, start percolator.Timestamp, session, value string, cells ...percolator.Cell) {
	t.Helper()
	lock := format.Lock{Kind: format.KindPut, Expiry: start.Add(10 * time.Second), Session: session, Primary: format.Cell(cells[0])}
	long := len(value) > format.ShortValue
	if lock.Long = long; !long {
		lock.Value = []byte(value)
	}
	for _, c := range cells {
		edits := []rowstore.Edit{rowstore.Put(rowstore.Lock, c.Column, start, lock.Encode())}
		if long {
			edits = append(edits, rowstore.Put(rowstore.Data, c.Column, start, []byte(value)))
		}
		apply(t, db, c.Table, c.Row, edits...)
	}
}

func apply(t *testing.T, db *percolator.DB, table, row string, edits ...rowstore.Edit) {
	t.Helper()
	out, err := db.Store().Apply(t.Context(), []rowstore.Mutation{{Table: table, Row: row, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
}

func session(t *testing.T, db *percolator.DB, id string, ends percolator.Timestamp) {
	t.Helper()
	apply(t, db, format.TableSessions, id, rowstore.Put(rowstore.Write, format.ColumnLease, ends, format.Session{}.Encode()))
}

func now(t *testing.T, db *percolator.DB) percolator.Timestamp {
	t.Helper()
	ts, err := db.Now(t.Context())
	require.NoError(t, err)
	return ts
}

func TestBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		s := admin.Bytes(b).String()
		for _, r := range s {
			require.True(t, r >= ' ' && r != 0x7f, "%q", s)
		}
		back, err := admin.ParseBytes(s)
		require.NoError(t, err)
		require.Equal(t, b, back)
		j, err := json.Marshal(admin.Bytes(b))
		require.NoError(t, err)
		var again admin.Bytes
		require.NoError(t, json.Unmarshal(j, &again))
		require.Equal(t, b, string(again))
	})
	for typed, want := range map[string]string{"%": "", "": "", "a b": "a b", "%20": " ", "100%25": "100%", "%c3%a4": "ä", "ä": "ä"} {
		got, err := admin.ParseBytes(typed)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"%x", "%zz", "a%", "%%", "%2"} {
		_, err := admin.ParseBytes(bad)
		require.ErrorIs(t, err, percolator.ErrInvalid, bad)
	}
	require.Equal(t, "%20a%20", admin.Bytes(" a ").String())
}

// TestReadsAsTheDB compares what a Reader reads with what the DB reads, at many snapshots of random histories.
func TestReadsAsTheDB(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	db, store, r := open(t)
	var snapshots []percolator.Timestamp
	for range 60 {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			for range 3 {
				c := cell(fmt.Sprint(random.IntN(5)))
				if random.IntN(4) == 0 {
					if err := tx.Delete(c); err != nil {
						return err
					}
				} else if err := tx.Set(c, []byte(strings.Repeat("x", random.IntN(600)))); err != nil {
					return err
				}
			}
			return nil
		}))
		snapshots = append(snapshots, now(t, db))
	}
	store.looking = true
	defer func() { store.looking = false }()
	for _, at := range snapshots {
		page, err := r.Scan(t.Context(), percolator.Range{Table: "t"}, at)
		require.NoError(t, err)
		require.False(t, page.More)
		got := map[string]string{}
		for _, v := range page.Values {
			got[string(v.Row)] = string(v.Value)
		}
		want := map[string]string{}
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(t.Context(), percolator.Range{Table: "t"}) {
				if err != nil {
					return err
				}
				want[row.Key] = string(row.Columns["c"])
			}
			return nil
		}, percolator.WithAsOfTimestamp(at)))
		require.Equal(t, want, got)
		for row := range 5 {
			v, err := r.Get(t.Context(), cell(fmt.Sprint(row)), at)
			require.NoError(t, err)
			value, found := want[fmt.Sprint(row)]
			require.Equal(t, found, v.Found)
			require.Equal(t, value, string(v.Value))
		}
	}
	for row := range 5 {
		var got []percolator.Timestamp
		for to, more := percolator.Timestamp(0), true; more; {
			h, err := r.History(t.Context(), cell(fmt.Sprint(row)), to, 3)
			require.NoError(t, err)
			for _, v := range h.Versions {
				got = append(got, percolator.Timestamp(v.Commit))
			}
			more, to = h.More, percolator.Timestamp(h.Next)
		}
		var want []percolator.Timestamp
		for v, err := range db.History(t.Context(), cell(fmt.Sprint(row)), 0, 0) {
			require.NoError(t, err)
			want = append(want, v.Commit)
		}
		require.Equal(t, want, got)
	}
}

// TestTxnAgreesWithOutcome looks at transactions in each state, and then has the DB decide them: the look must never
// have said what turns out wrong, and must have changed nothing.
func TestTxnAgreesWithOutcome(t *testing.T) {
	t.Parallel()
	db, store, r := open(t)
	a, b := cell("a"), cell("b")
	session(t, db, "alive", now(t, db).Add(time.Hour))
	session(t, db, "late", now(t, db))
	committed := set(t, db, a, "one")
	old := now(t, db)
	for _, c := range []struct {
		name  string
		make  func(start percolator.Timestamp)
		ask   percolator.Cell
		state admin.State
		want  percolator.OutcomeStatus
	}{
		{"alive", func(s percolator.Timestamp) { prewrite(t, db, s, "alive", "x", a, b) }, b, admin.Committing, percolator.OutcomePending},
		{"gone", func(s percolator.Timestamp) { prewrite(t, db, s, "gone", "x", a, b) }, b, admin.Abandoned, percolator.OutcomeRolledBack},
		{"late", func(s percolator.Timestamp) { prewrite(t, db, s, "late", "x", a, b) }, a, admin.Abandoned, percolator.OutcomeRolledBack},
		{"no trace", func(percolator.Timestamp) {}, a, admin.NoTrace, percolator.OutcomeRolledBack},
		{"fenced", func(s percolator.Timestamp) {
			_, err := db.Outcome(t.Context(), s, a)
			require.NoError(t, err)
		}, a, admin.RolledBack, percolator.OutcomeRolledBack},
		{"primary committed", func(s percolator.Timestamp) {
			prewrite(t, db, s, "gone", "x", a, b)
			w := format.Write{Kind: format.KindPut, Start: s, Value: []byte("x")}
			apply(t, db, a.Table, a.Row, rowstore.Delete(rowstore.Lock, a.Column, s), rowstore.Put(rowstore.Write, a.Column, now(t, db), w.Encode()))
		}, b, admin.Committed, percolator.OutcomeCommitted},
	} {
		start := now(t, db)
		c.make(start)
		store.looking = true
		got, err := r.Txn(t.Context(), start, c.ask)
		require.NoError(t, err, c.name)
		locks, err := r.Locks(t.Context(), percolator.Range{Table: "t"}, 0)
		require.NoError(t, err)
		store.looking = false
		require.Equal(t, c.state, got.State, c.name)
		require.NotEmpty(t, got.Lines)
		for _, l := range locks.Locks {
			require.Equal(t, got.State, l.Txn.State, c.name)
		}
		out, err := db.Outcome(t.Context(), start, c.ask)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, out.Status, c.name)
		require.Equal(t, out.Commit, percolator.Timestamp(got.Commit), c.name)
		// The next one begins without locks.
		for _, x := range []percolator.Cell{a, b} {
			apply(t, db, x.Table, x.Row, rowstore.DeleteRange(rowstore.Lock, x.Column, 0, oracle.Max))
		}
	}
	// Many newer versions hide none that is the transaction's.
	for range 100 {
		set(t, db, a, "again")
	}
	got, err := r.Txn(t.Context(), startOf(t, r, a, committed), a)
	require.NoError(t, err)
	require.Equal(t, admin.Committed, got.State)
	require.Equal(t, committed, percolator.Timestamp(got.Commit))
	got, err = r.Txn(t.Context(), old, a)
	require.NoError(t, err)
	require.NotEqual(t, admin.Committed, got.State)
	_, err = r.Txn(t.Context(), now(t, db).Add(time.Hour), a)
	require.ErrorIs(t, err, percolator.ErrInvalid)
}

// startOf finds the start of the transaction that committed a version.
func startOf(t *testing.T, r *admin.Reader, c percolator.Cell, commit percolator.Timestamp) percolator.Timestamp {
	t.Helper()
	h, err := r.History(t.Context(), c, commit, 1)
	require.NoError(t, err)
	require.Equal(t, commit, percolator.Timestamp(h.Versions[0].Commit))
	return percolator.Timestamp(h.Versions[0].Start)
}

// TestGetUnderALock reads a cell that a transaction has locked: whose primary is committed, and one that is not decided.
func TestGetUnderALock(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"new", strings.Repeat("long", 100)} {
		opened := time.Now()
		db, store, r := open(t, memstore.WithClock(func() time.Time { return opened })) // no time passes, however slow the test is
		a, b := cell("a"), cell("b")
		set(t, db, b, "old")
		session(t, db, "alive", now(t, db).Add(time.Hour))
		start := now(t, db)
		prewrite(t, db, start, "alive", value, a, b)
		store.looking = true
		v, err := r.Get(t.Context(), b, 0)
		require.NoError(t, err)
		require.Equal(t, "old", string(v.Value))
		require.NotNil(t, v.Pending)
		require.Equal(t, admin.Committing, v.Pending.State)
		w, err := r.Why(t.Context(), b)
		require.NoError(t, err)
		require.False(t, w.Free)
		require.Contains(t, strings.Join(w.Lines, "\n"), fmt.Sprintf("the cell is locked (put) by transaction %d of process alive, alive, since", start))
		require.Contains(t, strings.Join(w.Lines, "\n"), "its lock ends in 10s, unless the process renews it")
		store.looking = false

		commit := now(t, db)
		before := now(t, db)
		write := format.Write{Kind: format.KindPut, Start: start, Long: len(value) > format.ShortValue}
		if !write.Long {
			write.Value = []byte(value)
		}
		apply(t, db, a.Table, a.Row, rowstore.Delete(rowstore.Lock, a.Column, start), rowstore.Put(rowstore.Write, a.Column, commit, write.Encode()))
		store.looking = true
		for at, want := range map[percolator.Timestamp]string{0: value, before: value, commit: value, commit - 1: "old"} {
			v, err = r.Get(t.Context(), b, at)
			require.NoError(t, err)
			require.Nil(t, v.Pending)
			require.Equal(t, want, string(v.Value))
		}
		store.looking = false
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			got, err := tx.Get(t.Context(), b)
			require.Equal(t, value, string(got))
			return err
		}))
	}
}

// What is no table hides none: the tables come with the error, and doctor looks for locks in them.
func TestTablesBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	db, w, _ := open(t)
	start := now(t, db).Add(-10 * time.Minute)
	prewrite(t, db, start, "gone", "x", cell("a"))
	strange := faultstore.New(w, faultstore.Options{})
	strange.AddRule(faultstore.Rule{
		Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallTables },
		Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrCorrupt, Rows: math.MaxInt}, Times: -1,
	})
	r, err := admin.New(strange)
	require.NoError(t, err)
	tables, _, err := r.Tables(t.Context(), false, 0)
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.Len(t, tables, 1)
	require.EqualValues(t, "t", tables[0].Name)
	require.False(t, tables[0].Empty)
	d, err := r.Doctor(t.Context(), admin.DoctorOptions{})
	require.NoError(t, err)
	codes := make([]string, 0, len(d.Findings))
	for _, f := range d.Findings {
		codes = append(codes, f.Code)
	}
	require.Contains(t, codes, "locks-dead")
	require.Contains(t, fmt.Sprint(d.Findings), "looking at the locks failed")
}

// TestBounded gives limits that are reached, and bad ones.
func TestBounded(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	for i := range 50 {
		set(t, db, cell(fmt.Sprintf("%02d", i)), "x")
	}
	start := now(t, db)
	prewrite(t, db, start, "gone", "x", cell("40"), cell("41"))
	l, err := r.Locks(t.Context(), percolator.Range{Table: "t"}, 10)
	require.NoError(t, err)
	require.Equal(t, 10, l.Looked)
	require.True(t, l.More)
	require.Empty(t, l.Locks)
	for l.More {
		l, err = r.Locks(t.Context(), percolator.Range{Table: "t", From: string(l.Next)}, 45)
		require.NoError(t, err)
	}
	require.Len(t, l.Locks, 2)
	rows := 0
	for next, more := "", true; more; {
		page, err := r.Scan(t.Context(), percolator.Range{Table: "t", From: next, Limit: 7}, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, page.Rows, 7)
		rows, next, more = rows+page.Rows, string(page.Next), page.More
	}
	require.Equal(t, 50, rows)
	s, _, err := r.Sizes(t.Context(), false, 20)
	require.NoError(t, err)
	require.Equal(t, 20, s[0].Rows)
	require.True(t, s[0].AtLeast)
	s, _, err = r.Sizes(t.Context(), false, 0)
	require.NoError(t, err)
	require.Equal(t, 50, s[0].Rows)
	require.False(t, s[0].AtLeast)
	_, _, err = r.Tables(t.Context(), false, -1)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = r.Get(t.Context(), percolator.Cell{Table: "t"}, 0)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = r.Get(t.Context(), cell("a"), now(t, db).Add(time.Hour))
	require.ErrorIs(t, err, percolator.ErrSnapshotInFuture)
	_, err = r.Scan(t.Context(), percolator.Range{Table: "t", Columns: []string{"c", ""}}, 0)
	require.ErrorIs(t, err, percolator.ErrInvalid, "an empty name of a column is not all columns")
	_, err = admin.New(nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = admin.Of(nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
}

// TestScanIsBoundedInBytes scans rows with long values. A page ends before there are many megabytes of them, and the next one goes on.
func TestScanIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const rows, length = 30, 1 << 20
	db, _, r := open(t)
	for i := range rows {
		set(t, db, cell(fmt.Sprintf("%02d", i)), strings.Repeat("v", length))
	}
	seen, pages, next := 0, 0, ""
	for more := true; more; pages++ {
		page, err := r.Scan(t.Context(), percolator.Range{Table: "t", From: next}, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, page.Rows, 8)
		seen, next, more = seen+page.Rows, string(page.Next), page.More
	}
	require.Equal(t, rows, seen)
	require.Equal(t, 4, pages)
}

// TestWhyOfAParkedNotification asks for a cell that was never written, whose observer was parked for a notification.
func TestWhyOfAParkedNotification(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("no"))
	}}))
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(t.Context())) // the observer is known
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Notify(cell("never")) }))
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	require.NoError(t, <-ended)
	_, found, err := r.ParkedRun(t.Context(), "o", cell("never"))
	require.NoError(t, err)
	require.True(t, found)
	why, err := r.Why(t.Context(), cell("never"))
	require.NoError(t, err)
	require.Len(t, why.Observers, 1)
	require.Equal(t, admin.WaitsParked, why.Observers[0].What, why.Lines)
	require.Equal(t, 1, why.Observers[0].Attempts)
	require.False(t, why.Free)
}

// TestNoDatabase looks into a store in which no program has made a database.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	store := &watched{Store: memstore.New(), t: t, looking: true}
	defer func() { require.NoError(t, store.Close()) }()
	r, err := admin.New(store)
	require.NoError(t, err)
	_, err = r.Overview(t.Context())
	require.ErrorIs(t, err, percolator.ErrNoStore)
	_, err = r.Why(t.Context(), cell("a"))
	require.ErrorIs(t, err, percolator.ErrNoStore)
	_, err = percolator.New(t.Context(), store, percolator.WithExisting())
	require.ErrorIs(t, err, percolator.ErrNoStore)
}
