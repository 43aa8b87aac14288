package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

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
			tx := w.begin(db, percolator.WithAsOfTimestamp(p.commit))
			require.Equal(w, p.commit, startOf(tx))
			require.Equal(w, p.value, w.value(tx, one), "as of a commit timestamp, the commit is included")
			require.Equal(w, p.value, w.value(tx, two))
			require.Equal(w, before, w.value(w.begin(db, percolator.WithAsOfTimestamp(p.commit-1)), one))
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
		}, percolator.WithAsOf(now.Time())))
		// What is not drawn yet is no snapshot.
		for _, opt := range []percolator.TxnOption{percolator.WithAsOf(now.Time().Add(time.Hour)), percolator.WithAsOfTimestamp(now.Add(time.Hour)), percolator.WithAsOfTimestamp(oracle.Max)} {
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
				require.Greater(w, startOf(reader), tx.CommitTimestamp())
				require.Equal(w, v, w.value(reader, one))
				require.Len(w, w.scanned(reader, percolator.Range{}), i+3)
				require.Equal(w, v, w.value(reader, two))
			}
		}
	})
}

// histories are the versions of a cell with their commit timestamps, also those that a
// scan shows, and those that a hold keeps from a collection.
func histories(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		var want []percolator.CellVersion
		for i := range 20 {
			v := percolator.CellVersion{Value: []byte(fmt.Sprint(i)), Deleted: i%6 == 5}
			if i%4 == 3 {
				v.Value = []byte(strings.Repeat("long", 1000) + fmt.Sprint(i))
			}
			at, err := db.UpdateAt(w.ctx, func(tx *percolator.Txn) error {
				if v.Deleted {
					return tx.Delete(one)
				}
				return tx.Set(one, v.Value)
			})
			require.NoError(w, err)
			if v.Commit = at; v.Deleted {
				v.Value = nil
			}
			want = append([]percolator.CellVersion{v}, want...)
		}
		read := func(from, to percolator.Timestamp) (got []percolator.CellVersion) {
			for v, err := range w.db().History(w.ctx, one, from, to) {
				require.NoError(w, err)
				got = append(got, v)
			}
			return got
		}
		require.Equal(w, want, read(0, 0))
		require.Equal(w, want[3:12], read(want[11].Commit, want[3].Commit))
		tx := w.begin(db)
		for row, err := range tx.Scan(w.ctx, percolator.Range{Table: one.Table, Timestamps: true}) {
			require.NoError(w, err)
			require.Equal(w, want[0].Commit, row.Timestamps[one.Column])
		}
		hold, err := db.Hold(w.ctx, "reader", want[9].Commit, time.Hour)
		require.NoError(w, err)
		require.NoError(w, hold.Renew(w.ctx, time.Hour))
		_, err = w.db().Hold(w.ctx, "reader", 0, time.Hour)
		require.ErrorIs(w, err, percolator.ErrInvalid)
		infos, err := w.db().Holds(w.ctx)
		require.NoError(w, err)
		require.Len(w, infos, 1)
		require.Equal(w, want[9].Commit, infos[0].At)
		require.NoError(w, hold.Release(w.ctx))
		require.ErrorIs(w, hold.Renew(w.ctx, time.Hour), percolator.ErrHoldEnded)
	})
}
