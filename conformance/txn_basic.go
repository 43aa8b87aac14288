package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		require.Greater(w, tx.CommitTimestamp(), tx.StartTimestamp())
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

func ownWritesInScans(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		var pairs []any
		for i := range 10 {
			pairs = append(pairs, at(fmt.Sprintf("r%02d", 2*i)), fmt.Sprint(2*i))
		}
		w.set(db, pairs...)
		tx := w.begin(db)
		model := map[string]string{}
		for i := range 10 {
			model[fmt.Sprintf("r%02d", 2*i)] = fmt.Sprint(2 * i)
		}
		for i := range 20 {
			row := fmt.Sprintf("r%02d", i)
			switch i % 5 {
			case 1:
				w.write(tx, at(row), "new")
				model[row] = "new"
			case 2:
				w.write(tx, at(row), missing)
				delete(model, row)
			}
		}
		w.write(tx, at("a"), "first", at("z"), "last")
		model["a"], model["z"] = "first", "last"
		var want []string
		for row, v := range model {
			want = append(want, row+".v="+v)
		}
		slices.Sort(want)
		require.Equal(w, want, w.scanned(tx, percolator.Range{}))
		backwards := slices.Clone(want)
		slices.Reverse(backwards)
		require.Equal(w, backwards, w.scanned(tx, percolator.Range{Reverse: true}))
		for _, n := range []int{1, 3, 5, 100} {
			require.Equal(w, want[:min(n, len(want))], w.scanned(tx, percolator.Range{Limit: n}))
			require.Equal(w, backwards[:min(n, len(want))], w.scanned(tx, percolator.Range{Limit: n, Reverse: true}))
		}
		within := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s < "r03" || s >= "r12" })
		require.Equal(w, within, w.scanned(tx, percolator.Range{From: "r03", To: "r12"}))
		w.commit(tx)
		require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
			require.Equal(w, want, w.scanned(tx, percolator.Range{}), "what is committed is what was seen")
			return nil
		}))
	})
}

func txnScans(t testing.TB, e *env) {
	w := e.world(t)
	db := w.db()
	cell := func(row, column string) percolator.Cell {
		return percolator.Cell{Table: table, Row: row, Column: column}
	}
	w.set(db, cell("a", "x"), "1", cell("a", "y"), "2", cell("b", "x"), "3", cell("c", "y"), "4", cell("d", "z"), "", cell("a\x00", "x"), "5",
		percolator.Cell{Table: "other", Row: "a", Column: "x"}, "no")
	w.set(db, cell("b", "x"), missing, cell("e", "x"), "6")
	w.set(db, cell("e", "x"), missing)
	tx := w.begin(db)
	all := []string{"a.x=1.y=2", "a\x00.x=5", "c.y=4", "d.z="}
	require.Equal(t, all, w.scanned(tx, percolator.Range{}))
	require.Equal(t, []string{"a.x=1", "a\x00.x=5"}, w.scanned(tx, percolator.Range{Columns: []string{"x"}}))
	require.Equal(t, []string{"a.y=2", "c.y=4", "d.z="}, w.scanned(tx, percolator.Range{Columns: []string{"z", "y", "none"}}))
	require.Empty(t, w.scanned(tx, percolator.Range{Columns: []string{"none"}}))
	require.Equal(t, []string{"c.y=4", "a\x00.x=5"}, w.scanned(tx, percolator.Range{From: "a\x00", To: "d", Reverse: true}))
	require.Equal(t, []string{"a\x00.x=5"}, w.scanned(tx, percolator.Range{From: "a\x00", Limit: 1}))
	require.Empty(t, w.scanned(tx, percolator.Range{From: "c", To: "a"}))
	require.Empty(t, w.scanned(tx, percolator.Range{Table: "none"}))
	require.Equal(t, all[:2], w.scanned(tx, percolator.Range{From: "a", To: percolator.PrefixEnd("a")}))
	// The loop may stop, use the transaction and write.
	for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
		require.NoError(t, err)
		require.NoError(t, tx.Set(cell(row.Key, "seen"), []byte("yes")))
		_, err := tx.GetMany(w.ctx, cell(row.Key, "x"), cell("c", "y"))
		require.NoError(t, err)
		if row.Key == "c" {
			break
		}
	}
	require.Equal(t, []string{"a.seen=yes", "a\x00.seen=yes", "c.seen=yes"}, w.scanned(tx, percolator.Range{Columns: []string{"seen"}}))

	// Many rows, long values among them.
	n := e.n(1000, 400)
	require.NoError(t, db.Update(w.ctx, func(tx *percolator.Txn) error {
		for i := range n {
			v := fmt.Sprint(i)
			if i%50 == 0 {
				v = strings.Repeat("long", 100) + v
			}
			w.write(tx, percolator.Cell{Table: "many", Row: key(i), Column: "v"}, v)
		}
		return nil
	}))
	for _, reverse := range []bool{false, true} {
		i := 0
		for row, err := range w.begin(db).Scan(w.ctx, percolator.Range{Table: "many", Reverse: reverse}) {
			require.NoError(t, err)
			at := i
			if reverse {
				at = n - 1 - i
			}
			require.Equal(t, key(at), row.Key)
			require.True(t, strings.HasSuffix(string(row.Columns["v"]), fmt.Sprint(at)))
			i++
		}
		require.Equal(t, n, i)
	}
}

func snapshotsStay(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, other := w.db(), w.db()
		w.set(db, one, "0", two, "0")
		var old []*percolator.Txn
		for i := range 10 {
			old = append(old, w.begin(db))
			w.set(other, one, fmt.Sprint(i+1))
			if i == 5 {
				w.set(other, two, missing)
			}
		}
		for i, tx := range old {
			require.Equal(w, fmt.Sprint(i), w.value(tx, one))
			want := []string{"1.v=" + fmt.Sprint(i), "2.v=0"}
			if i > 5 {
				want = want[:1]
			}
			require.Equal(w, want, w.scanned(tx, percolator.Range{}))
			got, err := tx.GetMany(w.ctx, one, two)
			require.NoError(w, err)
			require.Len(w, got, len(want))
		}
	})
}

func asOf(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		start, err := db.Now(w.ctx)
		require.NoError(w, err)
		type past struct {
			commit percolator.Timestamp
			value  string
		}
		all := []past{{start, missing}}
		for i := range 8 {
			tx := w.begin(db)
			v := fmt.Sprint(i)
			if i == 4 {
				v = missing
			}
			w.write(tx, one, v, two, v)
			w.commit(tx)
			all = append(all, past{tx.CommitTimestamp(), v})
		}
		for i, p := range all {
			before := missing
			if i > 0 {
				before = all[i-1].value
			}
			tx := w.begin(db, percolator.AsOfTimestamp(p.commit))
			require.Equal(w, p.commit, tx.StartTimestamp())
			require.Equal(w, p.value, w.value(tx, one), "as of a commit timestamp, the commit is included")
			require.Equal(w, p.value, w.value(tx, two))
			require.Equal(w, before, w.value(w.begin(db, percolator.AsOfTimestamp(p.commit-1)), one))
			require.Len(w, w.scanned(tx, percolator.Range{}), 2*min(1, len(strings.TrimPrefix(p.value, missing))))
			require.ErrorIs(w, tx.Set(one, nil), percolator.ErrReadOnly)
		}
		// As of a time.
		w.pass(db, 5*time.Millisecond)
		now, err := db.Now(w.ctx)
		require.NoError(w, err)
		w.set(db, one, "later")
		require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
			require.Equal(w, "7", w.value(tx, one))
			return nil
		}, percolator.AsOf(now.Time())))
		// What is not drawn yet is no snapshot.
		for _, opt := range []percolator.TxnOption{percolator.AsOf(now.Time().Add(time.Hour)), percolator.AsOfTimestamp(now.Add(time.Hour)), percolator.AsOfTimestamp(oracle.Max)} {
			_, err := db.Begin(w.ctx, opt)
			require.ErrorIs(w, err, percolator.ErrSnapshotInFuture)
			require.ErrorIs(w, db.View(w.ctx, func(*percolator.Txn) error { return nil }, opt), percolator.ErrSnapshotInFuture)
		}
	})
}

func readersSeeWhatWasCommitted(t testing.TB, e *env) {
	// A transaction that begins after another's commit returned has seen it, in
	// whichever process.
	e.eachWay(t, func(w *world) {
		dbs := []*percolator.DB{w.db(), w.db(), w.db()}
		for i := range e.n(30, 10) {
			v := fmt.Sprint(i)
			tx := w.begin(dbs[i%3])
			w.write(tx, one, v, two, v, at("x"+v), v)
			w.commit(tx)
			for _, db := range dbs {
				reader := w.begin(db)
				require.Greater(w, reader.StartTimestamp(), tx.CommitTimestamp())
				require.Equal(w, v, w.value(reader, one))
				require.Len(w, w.scanned(reader, percolator.Range{}), i+3)
				require.Equal(w, v, w.value(reader, two))
			}
		}
	})
}

func rowsAndTablesTogether(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, other := w.db(), w.db()
		var cells []percolator.Cell
		for _, tab := range []string{"t", "u", "v"} {
			for _, row := range []string{"a", "b"} {
				for _, column := range []string{"x", "y", "z"} {
					cells = append(cells, percolator.Cell{Table: tab, Row: row, Column: column})
				}
			}
		}
		for round := range 3 {
			tx := w.begin(db)
			for i, c := range cells {
				v := fmt.Sprintf("%d of round %d", i, round)
				if i%4 == 1 {
					v = strings.Repeat("long ", 100) + v
				}
				if i%5 == 2 && round == 1 {
					v = missing
				}
				w.write(tx, c, v)
			}
			w.commit(tx)
			reader := w.begin(other)
			got, err := reader.GetMany(w.ctx, cells...)
			require.NoError(w, err)
			for i, c := range cells {
				if i%5 == 2 && round == 1 {
					require.NotContains(w, got, c)
					continue
				}
				require.True(w, strings.HasSuffix(string(got[c]), fmt.Sprintf("%d of round %d", i, round)), "%v: %q", c, got[c])
			}
		}
		require.NoError(w, other.Close(w.ctx))
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
		_, err = db.Outcome(w.ctx, tx.StartTimestamp(), c)
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
			require.NotZero(w, tx.StartTimestamp())
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
	tx := w.begin(db, percolator.AsOfTimestamp(ts))
	require.NoError(t, check(tx))
	w.commit(tx)
	require.NoError(t, db.Update(w.ctx, check, percolator.AsOfTimestamp(ts)))
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

func endedContexts(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		w.set(db, one, "10")
		cancelled, cancel := context.WithCancel(w.ctx)
		cancel()
		tx := w.begin(db)
		w.write(tx, one, "11")
		none := func(*percolator.Txn) error { return nil }
		calls := map[string]func(ctx context.Context) error{
			"Begin":  func(ctx context.Context) error { _, err := db.Begin(ctx); return err },
			"Now":    func(ctx context.Context) error { _, err := db.Now(ctx); return err },
			"Update": func(ctx context.Context) error { return db.Update(ctx, none) },
			"View":   func(ctx context.Context) error { return db.View(ctx, none) },
			"Get":    func(ctx context.Context) error { _, err := tx.Get(ctx, two); return err },
			"GetMany": func(ctx context.Context) error {
				_, err := tx.GetMany(ctx, one, two)
				return err
			},
			"GetForUpdate": func(ctx context.Context) error { _, err := tx.GetForUpdate(ctx, two); return err },
			"Scan": func(ctx context.Context) error {
				for _, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
					return err
				}
				return nil
			},
			"Outcome":        func(ctx context.Context) error { _, err := db.Outcome(ctx, tx.StartTimestamp(), two); return err },
			"Observers":      func(ctx context.Context) error { _, err := db.Observers(ctx); return err },
			"RemoveObserver": func(ctx context.Context) error { return db.RemoveObserver(ctx, "none") },
			"Configure":      func(ctx context.Context) error { return db.Configure(ctx, db.Settings()) },
			"CollectGarbage": func(ctx context.Context) error { _, err := db.CollectGarbage(ctx, 0); return err },
			"Parked":         func(ctx context.Context) error { _, err := db.Parked(ctx); return err },
			"New": func(ctx context.Context) error {
				_, err := percolator.New(ctx, newClient(w.inner), slices.Concat(w.e.cfg.db, w.way)...)
				return err
			},
		}
		for name, call := range calls {
			require.ErrorIs(w, call(cancelled), context.Canceled, name)
		}
		err := tx.Commit(cancelled)
		require.ErrorIs(w, err, context.Canceled)
		require.NotErrorIs(w, err, percolator.ErrUndetermined, "nothing was sent")
		require.ErrorIs(w, tx.Commit(w.ctx), percolator.ErrTxnDone)
		require.Equal(w, "10", w.now(db, one)[0])
	})
}

// held is a commit that stopped before the call that makes it visible.
type held struct {
	reached, release chan struct{}
	done             chan error
	tx               *percolator.Txn
}

// hold begins to commit tx, of a DB over c, and returns once the commit has its
// timestamp and all its locks, and is about to pass the commit point.
func (w *world) hold(c *client, tx *percolator.Txn) *held {
	w.Helper()
	h, err := w.tryHold(c, tx)
	if err != nil {
		w.Fatalf("the commit ended before its commit point: %v", err)
	}
	return h
}

// tryHold is hold for a client with a short lease, which a stall of the machine can
// end before the commit point: then it returns the conflict.
func (w *world) tryHold(c *client, tx *percolator.Txn) (*held, error) {
	w.Helper()
	h := &held{reached: make(chan struct{}), release: make(chan struct{}), done: make(chan error, 1), tx: tx}
	var first atomic.Bool
	c.on(func(ctx context.Context, cl *call) fate {
		if cl.commits(tx) && first.CompareAndSwap(false, true) {
			close(h.reached)
			select {
			case <-h.release:
			case <-ctx.Done():
			case <-c.died:
			}
		}
		return goesThrough
	})
	go func() { h.done <- tx.Commit(w.ctx) }()
	select {
	case <-h.reached:
	case err := <-h.done:
		if !errors.Is(err, percolator.ErrConflict) {
			w.Fatalf("the commit ended before its commit point: %v", err)
		}
		return nil, err
	case <-w.ctx.Done():
		w.Fatalf("the commit did not come to its commit point")
	}
	return h, nil
}

// finish lets the commit go on, and returns its error.
func (w *world) finish(h *held) error {
	w.Helper()
	close(h.release)
	select {
	case err := <-h.done:
		return err
	case <-w.ctx.Done():
		w.Fatalf("the commit did not end")
		return nil
	}
}

func readerWaitsForALivingCommit(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		db, c := w.client()
		other := w.db()
		w.set(db, one, "10", two, "20")
		tx := w.begin(db)
		w.write(tx, one, "11", two, "21")
		h := w.hold(c, tx)
		// The commit timestamp is drawn: a snapshot that is taken now lies above it,
		// and must have the new values, though no write is there yet.
		type reader struct {
			what string
			got  chan []string
		}
		var readers []reader
		read := func(what string, f func(tx *percolator.Txn) []string) {
			rtx := w.begin(other)
			r := reader{what, make(chan []string, 1)}
			readers = append(readers, r)
			go func() { r.got <- f(rtx) }()
		}
		get := func(tx *percolator.Txn, c percolator.Cell) string {
			v, err := tx.Get(w.ctx, c)
			if err != nil {
				return err.Error()
			}
			return string(v)
		}
		read("Get", func(tx *percolator.Txn) []string { return []string{get(tx, one), get(tx, two)} })
		read("GetMany", func(tx *percolator.Txn) []string {
			m, err := tx.GetMany(w.ctx, two, one)
			if err != nil {
				return []string{err.Error()}
			}
			return []string{string(m[one]), string(m[two])}
		})
		read("Scan", func(tx *percolator.Txn) []string {
			var all []string
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				if err != nil {
					return []string{err.Error()}
				}
				all = append(all, string(row.Columns["v"]))
			}
			return all
		})
		// An older snapshot waits for nobody.
		require.Equal(w, []string{"10", "20"}, []string{
			w.value(w.begin(other, percolator.AsOfTimestamp(tx.StartTimestamp()-1)), one),
			w.value(w.begin(other, percolator.AsOfTimestamp(tx.StartTimestamp()-1)), two),
		})
		w.until("the readers to meet the locks", func() bool { return other.Stats().LocksMet >= 3 })
		for _, r := range readers {
			select {
			case got := <-r.got:
				w.Fatalf("%s did not wait for a commit under way: %v", r.what, got)
			default:
			}
		}
		o, err := other.Outcome(w.ctx, tx.StartTimestamp(), one)
		require.NoError(w, err)
		require.Equal(w, percolator.Pending, o.Status)
		require.NoError(w, w.finish(h))
		for _, r := range readers {
			select {
			case got := <-r.got:
				require.Equal(w, []string{"11", "21"}, got, r.what)
			case <-w.ctx.Done():
				w.Fatalf("%s never returned", r.what)
			}
		}
		require.Zero(w, other.Stats().RolledBack)
	})
}

func waitingEndsWithTheContext(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		db, c := w.client()
		other := w.db()
		tx := w.begin(db)
		w.write(tx, one, "11")
		h := w.hold(c, tx)
		younger := w.begin(other)
		w.write(younger, one, "12")
		for name, call := range map[string]func(ctx context.Context) error{
			"Get":     func(ctx context.Context) error { _, err := w.begin(other).Get(ctx, one); return err },
			"GetMany": func(ctx context.Context) error { _, err := w.begin(other).GetMany(ctx, one, two); return err },
			"Scan": func(ctx context.Context) error {
				for _, err := range w.begin(other).Scan(ctx, percolator.Range{Table: table}) {
					return err
				}
				return nil
			},
			"Commit": func(ctx context.Context) error { return younger.Commit(ctx) },
		} {
			ctx, cancel := context.WithTimeout(w.ctx, 30*time.Millisecond)
			err := call(ctx)
			cancel()
			require.ErrorIs(w, err, context.DeadlineExceeded, name)
			require.NotErrorIs(w, err, percolator.ErrUndetermined, name)
		}
		require.NoError(w, w.finish(h))
		require.Equal(w, "11", w.now(other, one)[0])
	})
}

// longCommitIsKeptAlive holds a commit for longer than its leases: heartbeats keep
// its locks from being taken for a dead one's. A machine that stalls makes them late;
// then the test is done again, with longer leases.
func longCommitIsKeptAlive(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		for expiry := 400 * time.Millisecond; ; expiry *= 2 {
			stalled, err := holdLong(w, expiry, fmt.Sprint("held for ", expiry))
			if err == nil {
				return
			}
			if !stalled {
				require.NoError(w, err, "a living client's commit is not rolled back")
			}
		}
	})
}

func holdLong(w *world, expiry time.Duration, v string) (stalled bool, err error) {
	w.Helper()
	lease := []percolator.Option{percolator.WithLockExpiry(expiry), percolator.WithSessionLease(expiry)}
	db, c := w.client(lease...)
	other := w.db()
	tx := w.begin(db)
	w.write(tx, one, v, two, v)
	last, err := other.Now(w.ctx)
	require.NoError(w, err)
	from := last
	h, err := w.tryHold(c, tx)
	if err != nil {
		return true, err
	}
	reader := w.begin(other)
	got := make(chan error, 1)
	go func() {
		_, err := reader.Get(w.ctx, one)
		got <- err
	}()
	for last.Sub(from) < 3*expiry {
		now, err := other.Now(w.ctx)
		require.NoError(w, err)
		stalled = stalled || now.Sub(last) > expiry/4
		last = now
		pause(w.ctx)
	}
	err = w.finish(h)
	if readErr := <-got; err == nil {
		require.NoError(w, readErr)
		require.Zero(w, other.Stats().RolledBack)
		require.Equal(w, []string{v, v}, w.now(other, one, two))
	}
	return stalled, err
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
		}, percolator.MaxAttempts(5))
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
		o, err := other.Outcome(w.ctx, tx.StartTimestamp(), one)
		require.NoError(w, err)
		require.Equal(w, percolator.Outcome{Status: percolator.Committed, Commit: tx.CommitTimestamp()}, o)

		lost := w.begin(db)
		w.write(lost, one, "2")
		w.set(other, one, "3")
		w.conflicts(lost)
		o, err = other.Outcome(w.ctx, lost.StartTimestamp(), one)
		require.NoError(w, err)
		require.Equal(w, percolator.RolledBack, o.Status)

		// Asking about one that has not begun to commit prevents it.
		asked := w.begin(db)
		w.write(asked, two, "2")
		o, err = other.Outcome(w.ctx, asked.StartTimestamp(), two)
		require.NoError(w, err)
		require.Equal(w, percolator.RolledBack, o.Status)
		w.conflicts(asked)
		require.Equal(w, missing, w.now(db, two)[0])

		future, err := db.Now(w.ctx)
		require.NoError(w, err)
		_, err = db.Outcome(w.ctx, future.Add(time.Hour), one)
		require.ErrorIs(w, err, percolator.ErrInvalid)
	})
}

func sessionsComeAndGo(t testing.TB, e *env) {
	w := e.world(t, percolator.WithoutGroups())
	sessions := func() int {
		n := 0
		for name, err := range w.inner.Tables(w.ctx) {
			require.NoError(t, err)
			if name != "\x00sessions" {
				continue
			}
			rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: name, Picks: everything()})
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
