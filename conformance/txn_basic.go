package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func txnTests() []test {
	return []test{
		{"OwnWrites", Transactions, ownWrites},
		{"OwnWritesInScans", Transactions, ownWritesInScans},
		{"TxnScans", Transactions, txnScans},
		{"SnapshotsStay", Transactions, snapshotsStay},
		{"AsOf", Transactions, asOf},
		{"History", Transactions, histories},
		{"ReadersSeeWhatWasCommitted", Transactions, readersSeeWhatWasCommitted},
		{"RowsAndTablesTogether", Transactions, rowsAndTablesTogether},
		{"OddCells", Transactions, oddCells},
		{"ValuesOfAllLengths", Transactions, valuesOfAllLengths},
		{"SlicesBelongToTheCaller", Transactions, slicesBelongToTheCaller},
		{"TooLarge", Transactions, tooLarge},
		{"InvalidArguments", Transactions, invalidArguments},
		{"TxnDone", Transactions, txnDone},
		{"ReadOnly", Transactions, readOnly},
		{"TxnTooOld", Transactions, txnTooOld},
		{"EndedContexts", Transactions, endedContexts},
		{"ReaderWaitsForALivingCommit", Transactions, readerWaitsForALivingCommit},
		{"WaitingEndsWithTheContext", Transactions, waitingEndsWithTheContext},
		{"LongCommitIsKeptAlive", Transactions, longCommitIsKeptAlive},
		{"UpdateRunsAgain", Transactions, updateRunsAgain},
		{"OutcomeOfTransactions", Transactions, outcomeOfTransactions},
		{"SessionsComeAndGo", Transactions, sessionsComeAndGo},
		{"SettingsAreStored", Transactions, settingsAreStored},
		{"CloseDrains", Transactions, closeDrains},
	}
}

func ownWrites(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		w.set(db, one, "10", two, "20")
		tx := w.begin(db)
		w.write(tx, one, "11", two, missing, three, "30", four, "")
		require.Equal(w, "11", w.value(tx, one))
		require.Equal(w, missing, w.value(tx, two))
		require.Equal(w, "30", w.value(tx, three))
		require.Equal(w, "", w.value(tx, four))
		got, err := tx.GetMany(w.ctx, one, two, three, four, at("5"), one)
		require.NoError(w, err)
		require.Equal(w, map[percolator.Cell][]byte{one: []byte("11"), three: []byte("30"), four: {}}, got)
		v, err := tx.GetForUpdate(w.ctx, one)
		require.NoError(w, err)
		require.Equal(w, "11", string(v))
		_, err = tx.GetForUpdate(w.ctx, two)
		require.ErrorIs(w, err, percolator.ErrNotFound)
		w.write(tx, one, missing, two, "22", three, missing)
		require.Equal(w, missing, w.value(tx, one))
		require.Equal(w, "22", w.value(tx, two))
		require.Equal(w, []string{"10", "20", missing, missing}, w.now(db, one, two, three, four), "nobody else sees them")
		require.Zero(w, tx.CommitTimestamp())
		w.commit(tx)
		require.Greater(w, tx.CommitTimestamp(), startOf(tx))
		require.Equal(w, []string{missing, "22", missing, ""}, w.now(db, one, two, three, four))

		// Lock only and then set, set and then locked: one write each.
		tx = w.begin(db)
		_, err = tx.GetForUpdate(w.ctx, two)
		require.NoError(w, err)
		w.write(tx, two, "23", one, "12")
		_, err = tx.GetForUpdate(w.ctx, one)
		require.NoError(w, err)
		_, err = tx.GetForUpdate(w.ctx, three)
		require.ErrorIs(w, err, percolator.ErrNotFound, "an absent cell can be locked")
		w.commit(tx)
		require.Equal(w, []string{"12", "23", missing}, w.now(db, one, two, three))

		// Nothing written: nothing to commit.
		tx = w.begin(db)
		_, err = tx.GetForUpdate(w.ctx, one)
		require.NoError(w, err)
		w.commit(tx)
		require.Zero(w, tx.CommitTimestamp())
		require.Empty(w, w.settled(db))
	})
}

func oddCells(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		var cells []percolator.Cell
		for i, n := range oddNames {
			cells = append(cells, percolator.Cell{Table: n, Row: oddNames[(i+3)%len(oddNames)], Column: oddNames[(i+11)%len(oddNames)]},
				percolator.Cell{Table: "t", Row: n, Column: n})
		}
		for chunk := range slices.Chunk(cells, 40) {
			tx := w.begin(db)
			for _, c := range chunk {
				w.write(tx, c, c.String())
			}
			w.commit(tx)
		}
		reader := w.begin(db)
		got, err := reader.GetMany(w.ctx, cells...)
		require.NoError(w, err)
		for _, c := range cells {
			require.Equal(w, c.String(), string(got[c]))
		}
		sorted := slices.Clone(oddNames)
		slices.Sort(sorted)
		var keys []string
		for row, err := range reader.Scan(w.ctx, percolator.Range{Table: "t"}) {
			require.NoError(w, err)
			keys = append(keys, row.Key)
			require.Contains(w, row.Columns, row.Key, "a column has the name that it was given")
			require.Len(w, row.Columns, 1)
		}
		require.Equal(w, sorted, keys)
	})
}

func valuesOfAllLengths(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		most := min(1<<20, db.Limits().Value)
		for i, n := range []int{0, 1, 254, 255, 256, 257, 1000, 65_536, most} {
			v := strings.Repeat("v", n)
			row := fmt.Sprint("r", i)
			for _, next := range []string{v, "short", v} {
				w.set(db, at(row), next)
				require.Equal(w, next, w.now(db, at(row))[0], "%d bytes", n)
			}
			require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
				for r, err := range tx.Scan(w.ctx, percolator.Range{Table: table, From: row, Limit: 1}) {
					require.NoError(w, err)
					require.Equal(w, v, string(r.Columns["v"]))
					require.NotNil(w, r.Columns["v"])
				}
				got, err := tx.Get(w.ctx, at(row))
				require.NotNil(w, got, "an empty value is an empty slice")
				return err
			}))
		}
	})
}

func slicesBelongToTheCaller(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		for _, n := range []int{5, 1000} {
			value := []byte(strings.Repeat("v", n))
			tx := w.begin(db)
			require.NoError(w, tx.Set(one, value))
			value[0] = 'X'
			got, err := tx.Get(w.ctx, one)
			require.NoError(w, err)
			got[1] = 'X'
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				require.NoError(w, err)
				row.Columns["v"][2] = 'X'
			}
			w.commit(tx)
			got = []byte(w.now(db, one)[0])
			require.Equal(w, strings.Repeat("v", n), string(got))
		}
	})
}

func tooLarge(t testing.TB, e *env) {
	w := e.world(t)
	db := w.db(percolator.WithLimits(percolator.Limits{Table: 20, Row: 30, Column: 40, Value: 1000, Cells: 10, Bytes: 5000}))
	l := db.Limits()
	x := func(n int) string { return strings.Repeat("x", n) }
	tx := w.begin(db)
	for _, c := range []percolator.Cell{{Table: x(l.Table + 1), Row: "r", Column: "c"}, {Table: "t", Row: x(l.Row + 1), Column: "c"}, {Table: "t", Row: "r", Column: x(l.Column + 1)}} {
		require.ErrorIs(t, tx.Set(c, nil), percolator.ErrTooLarge)
		require.ErrorIs(t, tx.Delete(c), percolator.ErrTooLarge)
		_, err := tx.Get(w.ctx, c)
		require.ErrorIs(t, err, percolator.ErrTooLarge)
		_, err = tx.GetMany(w.ctx, one, c)
		require.ErrorIs(t, err, percolator.ErrTooLarge)
		_, err = tx.GetForUpdate(w.ctx, c)
		require.ErrorIs(t, err, percolator.ErrTooLarge)
	}
	require.ErrorIs(t, tx.Set(one, make([]byte, l.Value+1)), percolator.ErrTooLarge)
	require.NoError(t, tx.Set(one, make([]byte, l.Value)), "exactly the limit")
	for i := 1; i < l.Cells; i++ {
		require.NoError(t, tx.Set(at(fmt.Sprint("cell", i)), nil))
	}
	require.ErrorIs(t, tx.Set(at("one too many"), nil), percolator.ErrTooLarge)
	require.NoError(t, tx.Set(one, []byte("again")), "a cell that is there already is no other")
	// What was refused does not spoil the rest.
	w.commit(tx)
	require.Equal(t, []string{"again", missing}, w.now(db, one, at("one too many")))
	tx = w.begin(db)
	var err error
	for i := 0; err == nil && i < l.Cells; i++ {
		err = tx.Set(at(fmt.Sprint("big", i)), make([]byte, l.Value))
	}
	require.ErrorIs(t, err, percolator.ErrTooLarge, "the bytes of the whole transaction")
}

func invalidArguments(t testing.TB, e *env) {
	w := e.world(t)
	db := w.db()
	tx := w.begin(db)
	for _, c := range []percolator.Cell{{}, {Row: "r", Column: "c"}, {Table: "t", Column: "c"}, {Table: "t", Row: "r"}} {
		require.ErrorIs(t, tx.Set(c, nil), percolator.ErrInvalid)
		require.ErrorIs(t, tx.Delete(c), percolator.ErrInvalid)
		require.ErrorIs(t, tx.Notify(c), percolator.ErrInvalid)
		_, err := tx.Get(w.ctx, c)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = tx.GetMany(w.ctx, c)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = tx.GetForUpdate(w.ctx, c)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = db.Outcome(w.ctx, startOf(tx), c)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	for _, r := range []percolator.Range{{}, {Table: "t", Limit: -1}, {Table: "t", Columns: []string{"a", ""}}} {
		n := 0
		for _, err := range tx.Scan(w.ctx, r) {
			require.ErrorIs(t, err, percolator.ErrInvalid)
			n++
		}
		require.Equal(t, 1, n)
	}
	for _, ts := range []percolator.Timestamp{0, oracle.Max + 1} {
		_, err := db.Outcome(w.ctx, ts, one)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	require.NoError(t, tx.Rollback(w.ctx))
	require.Empty(t, w.scanned(w.begin(db), percolator.Range{}))
}

func txnDone(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		w.set(db, one, "10")
		committed, rolledBack, empty, failed := w.begin(db), w.begin(db), w.begin(db), w.begin(db)
		w.write(committed, one, "11")
		w.commit(committed)
		w.write(rolledBack, two, "22")
		require.NoError(w, rolledBack.Rollback(w.ctx))
		w.commit(empty)
		w.write(failed, one, "12")
		w.conflicts(failed)
		for i, tx := range []*percolator.Txn{committed, rolledBack, empty, failed} {
			require.ErrorIs(w, tx.Commit(w.ctx), percolator.ErrTxnDone, "transaction %d", i)
			require.ErrorIs(w, tx.Set(one, nil), percolator.ErrTxnDone)
			require.ErrorIs(w, tx.Delete(one), percolator.ErrTxnDone)
			require.ErrorIs(w, tx.Notify(one), percolator.ErrTxnDone)
			_, err := tx.Get(w.ctx, one)
			require.ErrorIs(w, err, percolator.ErrTxnDone)
			_, err = tx.GetMany(w.ctx, one)
			require.ErrorIs(w, err, percolator.ErrTxnDone)
			_, err = tx.GetForUpdate(w.ctx, one)
			require.ErrorIs(w, err, percolator.ErrTxnDone)
			n := 0
			for _, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				require.ErrorIs(w, err, percolator.ErrTxnDone)
				n++
			}
			require.Equal(w, 1, n)
			require.NoError(w, tx.Rollback(w.ctx), "Rollback is always harmless")
			require.NoError(w, tx.Rollback(w.ctx))
			require.NotZero(w, startOf(tx))
		}
		require.Equal(w, []string{"11", missing}, w.now(db, one, two))
	})
}

func readOnly(t testing.TB, e *env) {
	w := e.world(t)
	db := w.db()
	ts := w.set(db, one, "10")
	check := func(tx *percolator.Txn) error {
		require.ErrorIs(t, tx.Set(one, nil), percolator.ErrReadOnly)
		require.ErrorIs(t, tx.Delete(one), percolator.ErrReadOnly)
		require.ErrorIs(t, tx.Notify(one), percolator.ErrReadOnly)
		_, err := tx.GetForUpdate(w.ctx, one)
		require.ErrorIs(t, err, percolator.ErrReadOnly)
		require.Equal(t, "10", w.value(tx, one))
		return nil
	}
	require.NoError(t, db.View(w.ctx, check))
	require.NoError(t, db.View(w.ctx, check, percolator.WithIsolation(percolator.Serializable)))
	tx := w.begin(db, percolator.WithAsOfTimestamp(ts))
	require.NoError(t, check(tx))
	w.commit(tx)
	require.NoError(t, db.Update(w.ctx, check, percolator.WithAsOfTimestamp(ts)))
	boom := fmt.Errorf("boom")
	require.ErrorIs(t, db.View(w.ctx, func(*percolator.Txn) error { return boom }), boom)
	require.Equal(t, "10", w.now(db, one)[0])
}

func txnTooOld(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		age := 400 * time.Millisecond
		db := w.db(percolator.WithSettings(percolator.Settings{MaxTxnAge: age, Retention: time.Hour, CatalogLease: 10 * time.Second}))
		tx, weakless := w.begin(db), w.begin(db)
		w.write(tx, one, "1", two, "2", at("long"), strings.Repeat("long", 100))
		require.Equal(w, missing, w.value(weakless, one))
		w.pass(db, age+20*time.Millisecond)
		err := tx.Commit(w.ctx)
		require.ErrorIs(w, err, percolator.ErrTxnTooOld)
		require.NotErrorIs(w, err, percolator.ErrConflict)
		require.Equal(w, []string{missing, missing, missing}, w.now(db, one, two, at("long")))
		w.commit(weakless) // without writes there is nothing to be too old for
		require.Empty(w, w.settled(db), "nothing is left behind")
	})
}

func updateRunsAgain(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, other := w.db(), w.db()
		w.set(db, one, "0")
		runs := 0
		require.NoError(w, db.Update(w.ctx, func(tx *percolator.Txn) error {
			runs++
			v := w.value(tx, one)
			if runs <= 3 {
				w.set(other, one, fmt.Sprint(runs))
			}
			return tx.Set(one, []byte(v+"+"))
		}))
		require.Equal(w, 4, runs)
		require.Equal(w, "3+", w.now(db, one)[0], "a retry reads again")
		require.Equal(w, uint64(3), db.Stats().Retries)

		runs = 0
		err := db.Update(w.ctx, func(tx *percolator.Txn) error {
			runs++
			_ = w.value(tx, one)
			w.set(other, one, fmt.Sprint(runs))
			return tx.Set(one, nil)
		}, percolator.WithMaxAttempts(5))
		require.ErrorIs(w, err, percolator.ErrConflict)
		require.Equal(w, 5, runs)

		boom := fmt.Errorf("boom")
		runs = 0
		require.ErrorIs(w, db.Update(w.ctx, func(tx *percolator.Txn) error {
			runs++
			w.write(tx, one, "never")
			return boom
		}), boom)
		require.Equal(w, 1, runs, "an error of the function ends it")
		require.Equal(w, "5", w.now(db, one)[0])
		require.Panics(w, func() { _ = db.Update(w.ctx, func(*percolator.Txn) error { panic("boom") }) })
		w.set(db, one, "works on")
	})
}

func outcomeOfTransactions(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, other := w.db(), w.db()
		tx := w.begin(db)
		w.write(tx, one, "1")
		w.commit(tx)
		// Overwritten many times since: the record is still found.
		for i := range 5 {
			w.set(other, one, fmt.Sprint("again", i))
		}
		o, err := other.Outcome(w.ctx, startOf(tx), one)
		require.NoError(w, err)
		require.Equal(w, percolator.Outcome{Status: percolator.OutcomeCommitted, Commit: tx.CommitTimestamp()}, o)

		lost := w.begin(db)
		w.write(lost, one, "2")
		w.set(other, one, "3")
		w.conflicts(lost)
		o, err = other.Outcome(w.ctx, startOf(lost), one)
		require.NoError(w, err)
		require.Equal(w, percolator.OutcomeRolledBack, o.Status)

		// Asking about one that has not begun to commit prevents it.
		asked := w.begin(db)
		w.write(asked, two, "2")
		o, err = other.Outcome(w.ctx, startOf(asked), two)
		require.NoError(w, err)
		require.Equal(w, percolator.OutcomeRolledBack, o.Status)
		w.conflicts(asked)
		require.Equal(w, missing, w.now(db, two)[0])

		future, err := db.Now(w.ctx)
		require.NoError(w, err)
		_, err = db.Outcome(w.ctx, future.Add(time.Hour), one)
		require.ErrorIs(w, err, percolator.ErrInvalid)
	})
}

func sessionsComeAndGo(t testing.TB, e *env) {
	w := e.world(t, coretest.WithoutGroups())
	sessions := func() int {
		n := 0
		for name, err := range w.inner.Tables(w.ctx) {
			require.NoError(t, err)
			if name != format.TableSessions {
				continue
			}
			rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: name, Selectors: everything()})
			require.NoError(t, err)
			n += len(rows)
		}
		return n
	}
	lease := 200 * time.Millisecond
	idle := w.db(percolator.WithSessionLease(lease))
	require.Empty(t, w.scanned(w.begin(idle), percolator.Range{}))
	require.Zero(t, sessions(), "a process that only reads has none")
	db := w.db(percolator.WithSessionLease(lease))
	w.set(db, one, "1", two, "2")
	require.Equal(t, 1, sessions())
	w.pass(db, 3*lease)
	w.set(db, one, "2", two, "3") // over a lease that was renewed
	require.Equal(t, 1, sessions(), "a renewal leaves nothing behind")
	require.NoError(t, db.Close(w.ctx))
	require.Zero(t, sessions(), "a clean exit removes it")
}

func settingsAreStored(t testing.TB, e *env) {
	w := e.world(t)
	first := percolator.Settings{MaxTxnAge: 10 * time.Second, Retention: time.Hour, CatalogLease: 50 * time.Millisecond}
	db := w.db(percolator.WithSettings(first))
	require.Equal(t, first, db.Settings())
	other := w.db(percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: 2 * time.Hour, CatalogLease: time.Second}))
	require.Equal(t, first, other.Settings(), "what is stored holds")
	for _, bad := range []percolator.Settings{
		{MaxTxnAge: time.Hour, Retention: time.Hour, CatalogLease: time.Second},
		{MaxTxnAge: time.Hour - time.Second, Retention: time.Hour, CatalogLease: time.Second},
	} {
		require.ErrorIs(t, db.Configure(w.ctx, bad), percolator.ErrInvalid)
		_, err := percolator.New(w.ctx, newClient(e.store(t)), append(slices.Clone(e.cfg.db), percolator.WithSettings(bad), percolator.WithLogger(quiet))...)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	next := percolator.Settings{MaxTxnAge: 20 * time.Second, Retention: 2 * time.Hour, CatalogLease: 60 * time.Millisecond}
	require.NoError(t, db.Configure(w.ctx, next))
	w.until("the settings to take effect everywhere", func() bool {
		w.set(db, one, "1")
		w.set(other, one, "2")
		return db.Settings() == next && other.Settings() == next
	})
}

func closeDrains(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		for i := range 5 {
			db := w.db()
			tx := w.begin(db)
			for j := range 20 {
				w.write(tx, percolator.Cell{Table: table, Row: fmt.Sprint("r", j), Column: "v"}, fmt.Sprint(i))
			}
			w.commit(tx)
			require.NoError(w, db.Close(w.ctx))
			require.Empty(w, w.locks(), "Close waits for what goes on in the background")
			require.NoError(w, db.Close(w.ctx), "a second Close does nothing")
			_, err := db.Begin(w.ctx)
			require.ErrorIs(w, err, percolator.ErrClosed)
			require.ErrorIs(w, db.Update(w.ctx, func(*percolator.Txn) error { return nil }), percolator.ErrClosed)
		}
	})
}
