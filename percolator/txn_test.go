package percolator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// ways are the ways that a transaction commits.
var ways = map[string][]Option{
	"one phase": nil,
	"group":     {withoutOnePhase()},
	"two phase": {withoutGroups()},
}

func open(t testing.TB, store rowstore.Store, opts ...Option) *DB {
	t.Helper()
	db, err := New(t.Context(), store, opts...)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.Background())) })
	return db
}

func eachWay(t *testing.T, test func(t *testing.T, db *DB)) {
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, memstore.New(), opts...))
		})
	}
}

func TestOwnWritesAndSnapshot(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		a, b := Cell{"t", "a", "v"}, Cell{"t", "b", "v"}
		long := []byte(strings.Repeat("x", 1000))
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			if err := tx.Set(a, []byte("1")); err != nil {
				return err
			}
			return tx.Set(b, long)
		}))
		old, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			v, err := tx.Get(ctx, b)
			require.NoError(t, err)
			require.Equal(t, long, v)
			require.NoError(t, tx.Delete(b))
			_, err = tx.Get(ctx, b)
			require.ErrorIs(t, err, ErrNotFound)
			require.NoError(t, tx.Set(Cell{"t", "c", "v"}, nil))
			var keys []string
			for row, err := range tx.Scan(ctx, Range{Table: "t"}) {
				require.NoError(t, err)
				keys = append(keys, row.Key)
			}
			require.Equal(t, []string{"a", "c"}, keys)
			return nil
		}))
		v, err := old.Get(ctx, b)
		require.NoError(t, err)
		require.Equal(t, long, v)
		got, err := old.GetMany(ctx, a, b, Cell{"t", "c", "v"})
		require.NoError(t, err)
		require.Equal(t, map[Cell][]byte{a: []byte("1"), b: long}, got)
		require.NoError(t, old.Set(a, nil))
		require.NoError(t, old.Set(b, nil))
		require.ErrorIs(t, old.Commit(ctx), ErrConflict)
		require.ErrorIs(t, old.Commit(ctx), ErrTxnDone)
		require.NoError(t, db.View(ctx, func(tx *Txn) error {
			v, err := tx.Get(ctx, a)
			require.NoError(t, err)
			require.Equal(t, "1", string(v))
			return nil
		}))
	})
}

func TestBank(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		const accounts, workers, transfers = 8, 8, 60
		ctx := t.Context()
		cell := func(i int) Cell { return Cell{"bank", fmt.Sprintf("%02d", i), "balance"} }
		num := func(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }
		enc := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			for i := range accounts {
				if err := tx.Set(cell(i), enc(100)); err != nil {
					return err
				}
			}
			return nil
		}))
		total := func() {
			require.NoError(t, db.View(ctx, func(tx *Txn) error {
				var sum int64
				for row, err := range tx.Scan(ctx, Range{Table: "bank"}) {
					if err != nil {
						return err
					}
					sum += num(row.Columns["balance"])
				}
				require.EqualValues(t, accounts*100, sum)
				return nil
			}))
		}
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 1))
				for range transfers {
					i, j := r.IntN(accounts), r.IntN(accounts-1)
					if j >= i {
						j++
					}
					err := db.Update(ctx, func(tx *Txn) error {
						got, err := tx.GetMany(ctx, cell(i), cell(j))
						if err != nil {
							return err
						}
						if err := tx.Set(cell(i), enc(num(got[cell(i)])-1)); err != nil {
							return err
						}
						return tx.Set(cell(j), enc(num(got[cell(j)])+1))
					}, WithMaxAttempts(100000))
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 20 {
			total()
		}
		wg.Wait()
		total()
		s := db.Stats()
		require.GreaterOrEqual(t, s.OnePhase+s.Group+s.TwoPhase, uint64(workers*transfers+1))
		t.Logf("%+v", s)
	})
}

func TestWriteSkew(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		for _, iso := range []Isolation{SnapshotIsolation, Serializable} {
			for _, scanned := range []bool{false, true} {
				ctx := t.Context()
				table := fmt.Sprintf("t%v%v", iso, scanned)
				a, b := Cell{table, "a", "v"}, Cell{table, "b", "v"}
				require.NoError(t, db.Update(ctx, func(tx *Txn) error {
					_ = tx.Set(a, []byte("1"))
					return tx.Set(b, []byte("1"))
				}))
				read := func(tx *Txn) {
					if !scanned {
						_, err := tx.GetMany(ctx, a, b)
						require.NoError(t, err)
						return
					}
					for _, err := range tx.Scan(ctx, Range{Table: table}) {
						require.NoError(t, err)
					}
				}
				t1, err := db.Begin(ctx, WithIsolation(iso))
				require.NoError(t, err)
				t2, err := db.Begin(ctx, WithIsolation(iso))
				require.NoError(t, err)
				read(t1)
				read(t2)
				require.NoError(t, t1.Set(a, []byte("0")))
				require.NoError(t, t2.Set(b, []byte("0")))
				require.NoError(t, t1.Commit(ctx))
				err = t2.Commit(ctx)
				if iso == Serializable {
					require.ErrorIs(t, err, ErrConflict)
				} else {
					require.NoError(t, err)
				}
			}
		}
	})
}

func TestAsOf(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		c := Cell{"t", "a", "v"}
		var at []Timestamp
		for i := range 3 {
			tx, err := db.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, tx.Set(c, []byte{byte('0' + i)}))
			require.NoError(t, tx.Commit(ctx))
			at = append(at, tx.CommitTimestamp())
		}
		for i, ts := range at {
			tx, err := db.Begin(ctx, WithAsOfTimestamp(ts))
			require.NoError(t, err)
			v, err := tx.Get(ctx, c)
			require.NoError(t, err)
			require.Equal(t, []byte{byte('0' + i)}, v)
			require.ErrorIs(t, tx.Set(c, nil), ErrReadOnly)
		}
		_, err := db.Begin(ctx, WithAsOf(time.Now().Add(time.Hour)))
		require.ErrorIs(t, err, ErrSnapshotInFuture)
	})
}

// WithAsOf shows what was committed before its time, and nothing of that time itself.
func TestAsOfIsBeforeItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "before")
	w.clock.advance(time.Second)
	noon := w.clock.Now()
	// The oracle's first timestamp of that millisecond may be a commit timestamp.
	at := oracle.FromTime(noon)
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, "v", at, (&format.Write{Kind: format.KindPut, Start: at - 1, Value: []byte("at")}).Encode()),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	w.clock.advance(time.Second)
	for _, test := range []struct {
		opt  TxnOption
		want string
	}{{WithAsOf(noon), "before"}, {WithAsOf(noon.Add(time.Millisecond)), "at"}, {WithAsOfTimestamp(at), "at"}, {WithAsOfTimestamp(at - 1), "before"}} {
		v, err := begin(t, c, test.opt).Get(t.Context(), rowA)
		require.NoError(t, err)
		require.Equal(t, test.want, string(v))
	}
	_, err = begin(t, c, WithAsOf(time.Time{})).Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrNotFound)
	for _, far := range []time.Time{time.Unix(1<<45/1000, 1e9-1), time.Unix(1<<55, 0), time.Unix(1<<63-1, 0)} {
		require.Equal(t, oracle.Max, oracle.FromTime(far))
		_, err = c.Begin(t.Context(), WithAsOf(far))
		require.ErrorIs(t, err, ErrSnapshotInFuture)
	}
	for _, long := range []time.Time{time.Unix(-1, 1), time.Unix(-1<<55, 0)} {
		require.Zero(t, oracle.FromTime(long))
	}
}

// The caller of Update learns the commit timestamp, of the attempt that committed.
func TestWithCommitTimestamp(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		var ts Timestamp
		attempts := 0
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			if attempts++; attempts == 1 {
				set(t, db, rowA, "first")
				startOf(tx)
			}
			_, err := tx.Get(ctx, rowA)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if attempts == 1 {
				set(t, db, rowA, "first again")
			}
			return tx.Set(rowA, []byte("mine"))
		}, WithCommitTimestamp(&ts)))
		require.Equal(t, 2, attempts)
		tx, err := db.Begin(ctx, WithAsOfTimestamp(ts))
		require.NoError(t, err)
		v, err := tx.Get(ctx, rowA)
		require.NoError(t, err)
		require.Equal(t, "mine", string(v))
		tx, err = db.Begin(ctx, WithAsOfTimestamp(ts-1))
		require.NoError(t, err)
		v, err = tx.Get(ctx, rowA)
		require.NoError(t, err)
		require.Equal(t, "first again", string(v))
		was := ts
		require.ErrorIs(t, db.Update(ctx, func(tx *Txn) error { return errTest }, WithCommitTimestamp(&ts)), errTest)
		require.Equal(t, was, ts)
		require.NoError(t, db.Update(ctx, func(tx *Txn) error { return nil }, WithCommitTimestamp(&ts)))
		require.Zero(t, ts, "nothing was written")
	})
}

// After Close no read answers, not even of the transaction's own writes.
func TestOwnWritesAfterClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	tx := begin(t, c)
	require.NoError(t, errors.Join(tx.Set(rowA, []byte("1")), tx.Delete(rowB)))
	require.NoError(t, c.Close(t.Context()))
	_, err := tx.Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrClosed)
	_, err = tx.Get(t.Context(), rowB)
	require.ErrorIs(t, err, ErrClosed)
	_, err = tx.GetMany(t.Context(), rowA, rowB)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, scanError(tx.Scan(t.Context(), Range{Table: "t"})), ErrClosed)
	require.ErrorIs(t, tx.Commit(t.Context()), ErrClosed)
}
