package combine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// contextAfter is a context for what comes when the test has ended.
func contextAfter(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// TestExactAtEverySnapshot has two processes whose transactions move numbers from one value to another, beside
// readers that find the same sum at each moment. No Add conflicts.
func TestExactAtEverySnapshot(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		const adders, each = 4, 30
		ctx := t.Context()
		var left atomic.Int64
		left.Store(2 * adders)
		var group errgroup.Group
		for _, db := range []*percolator.DB{one, two} {
			c := counter(t, db)
			for range adders {
				group.Go(func() error {
					defer left.Add(-1)
					for i := range each {
						err := db.Update(ctx, func(tx *percolator.Txn) error {
							return errors.Join(c.Add(ctx, tx, "to", 1), c.Add(ctx, tx, "from", -1))
						})
						if err == nil && i%5 == 0 {
							err = c.AddNow(ctx, "alone", 1)
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		c, looks := counter(t, two), 0
		for done := false; !done; looks++ {
			done = left.Load() == 0
			require.NoError(t, two.View(ctx, func(tx *percolator.Txn) error {
				to, err := c.Get(ctx, tx, "to")
				if errors.Is(err, percolator.ErrNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				from, err := c.Get(ctx, tx, "from")
				if err == nil && to+from != 0 {
					err = fmt.Errorf("%d%+d", to, from)
				}
				return err
			}))
		}
		require.NoError(t, group.Wait())
		require.Greater(t, looks, 1)
		require.Equal(t, 2*adders*each, get(t, c, "to"))
		require.Equal(t, -2*adders*each, get(t, c, "from"))
		require.Equal(t, 2*adders*each/5, get(t, c, "alone"))
		require.Zero(t, one.Stats().Conflicts+two.Stats().Conflicts)
		require.LessOrEqual(t, cells(t, c, "to"), 2*2*(adders+1), "the cells do not grow with what is added")
	})
}

func TestAddsDoNotConflict(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	for _, isolation := range []percolator.Isolation{percolator.SnapshotIsolation, percolator.Serializable} {
		var open []*percolator.Txn
		for range 10 {
			tx, err := db.Begin(ctx, percolator.WithIsolation(isolation))
			require.NoError(t, err)
			require.NoError(t, c.Add(ctx, tx, "n", 1))
			open = append(open, tx)
		}
		for _, tx := range open {
			require.NoError(t, tx.Commit(ctx))
		}
	}
	require.Equal(t, 20, get(t, c, "n"))
	require.Equal(t, 10, cells(t, c, "n"), "slots are used again")
}

// Several Combiners of a table, also in one transaction, are as one: what they add later does not conflict.
func TestSeveralCombinersOfATable(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	one, err := New(db, "count", typed.Number[int]{}, Sum[int])
	require.NoError(t, err)
	two, err := New(db, "count", typed.Number[int]{}, Sum[int])
	require.NoError(t, err)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(one.Add(ctx, tx, "n", 1), two.Add(ctx, tx, "n", 1), two.Add(ctx, tx, "m", 1))
	}))
	require.Equal(t, 2, get(t, one, "n"))
	require.Equal(t, 1, cells(t, one, "n"), "the transaction has one slot")
	for range 3 {
		var open []*percolator.Txn
		for _, c := range []*Combiner[int]{one, two, one} {
			tx, err := db.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, c.Add(ctx, tx, "n", 1))
			open = append(open, tx)
		}
		for _, tx := range open {
			require.NoError(t, tx.Commit(ctx))
		}
	}
	require.Equal(t, 11, get(t, two, "n"))
	require.Equal(t, 3, cells(t, one, "n"))
}

// Slots go with the last Combiner that has them, and its DB with that. Other databases and other tables have others.
func TestSlotsAreShared(t *testing.T) {
	t.Parallel()
	db, other := percolatetest.Open(t), percolatetest.Open(t)
	s := shareSlots(db, "t")
	require.Same(t, s, shareSlots(db, "t"))
	require.NotSame(t, s, shareSlots(db, "u"))
	require.NotSame(t, s, shareSlots(other, "t"))
	known := func(table string) bool {
		sharedSlots.mu.Lock()
		defer sharedSlots.mu.Unlock()
		_, found := sharedSlots.of[slotsOf{weak.Make(db), table}]
		return found
	}
	require.Eventually(t, func() bool { runtime.GC(); return !known("u") }, time.Minute, time.Millisecond)
	require.True(t, known("t"))
	runtime.KeepAlive(s)
}

func TestOwnAddsAreSeen(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	failed := errors.New("no")
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		_, err := c.Get(ctx, tx, "n")
		require.ErrorIs(t, err, percolator.ErrNotFound)
		for i := range 3 {
			require.NoError(t, c.Add(ctx, tx, "n", 1))
			n, err := c.Get(ctx, tx, "n")
			require.NoError(t, err)
			require.Equal(t, i+1, n)
		}
		return failed
	})
	require.ErrorIs(t, err, failed)
	require.Zero(t, cells(t, c, "n"))
	add(t, c, "n", 2)
	require.Equal(t, 2, get(t, c, "n"))

	// Keys that are prefixes of each other, and any bytes.
	for i, key := range []string{"", "n\x00", "n\x00\xff", "nn", "\xff"} {
		add(t, c, key, i)
		require.Equal(t, i, get(t, c, key))
	}
	require.Equal(t, 2, get(t, c, "n"))
}

func TestOldSnapshots(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := eager(counter(t, db), 2)
	var at []percolator.Timestamp
	for range 10 {
		ts, err := db.UpdateAt(ctx, func(tx *percolator.Txn) error { return c.Add(ctx, tx, "n", 1) })
		require.NoError(t, err)
		at = append(at, ts)
		_, err = c.Combine(ctx, "n")
		require.NoError(t, err)
	}
	for i, ts := range at {
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			n, err := c.Get(ctx, tx, "n")
			require.Equal(t, i+1, n)
			return err
		}, percolator.WithAsOfTimestamp(ts)))
	}
}

func TestCombine(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		for i, db := range []*percolator.DB{one, two, one, two} {
			add(t, counter(t, db), "n", i+1)
		}
		c := counter(t, one)
		require.Equal(t, 4, cells(t, c, "n"))
		n, err := c.Combine(t.Context(), "n")
		require.NoError(t, err)
		require.Zero(t, n, "none is idle yet")
		eager(c, 1)
		n, err = c.Combine(t.Context(), "n")
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, 1, cells(t, c, "n"))
		require.Equal(t, 10, get(t, c, "n"))
		n, err = c.Combine(t.Context(), "n")
		require.NoError(t, err)
		require.Zero(t, n)
		add(t, counter(t, two), "n", 5)
		require.Equal(t, 15, get(t, c, "n"))
	})
}

// TestMoreThanATransactionCombines has more idle cells than one transaction takes.
func TestMoreThanATransactionCombines(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	var open []*percolator.Txn
	for range combineMost + 10 {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Add(ctx, tx, "n", 1))
		open = append(open, tx)
	}
	for _, tx := range open {
		require.NoError(t, tx.Commit(ctx))
	}
	n, err := eager(c, 1).Combine(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, combineMost+10, n)
	require.Equal(t, combineMost+10, get(t, c, "n"))
	require.Equal(t, 1, cells(t, c, "n"))
}

// TestPendingIsBounded has many processes, each of which adds once and ends.
func TestPendingIsBounded(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	for i := range 50 {
		c := eager(counter(t, db), 4)
		add(t, c, "n", 1)
		require.LessOrEqual(t, cells(t, c, "n"), 1+4)
		require.Equal(t, i+1, get(t, c, "n"))
	}
}

// TestSuspendedAdder has a transaction that stands still while its cell is combined, before and after what it reads.
func TestSuspendedAdder(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	c.idleAfter = 0 // but the adder writes the cell that was written lately
	add(t, c, "n", 1)
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Add(ctx, tx, "n", 10))
	n, err := c.Combine(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ErrorIs(t, tx.Commit(ctx), percolator.ErrConflict)
	require.Equal(t, 1, get(t, c, "n"))

	// The other way round, the one who combines is late, and leaves it.
	add(t, c, "n", 1)
	tx, err = db.Begin(ctx)
	require.NoError(t, err)
	idle, _, err := c.idleParts(ctx, tx, "n", c.most)
	require.NoError(t, err)
	require.Len(t, idle, 1)
	require.NoError(t, tx.Delete(idle[0].cell))
	add(t, c, "n", 1)
	require.ErrorIs(t, tx.Commit(ctx), percolator.ErrConflict)
	require.Equal(t, 3, get(t, c, "n"))
}

// TestAdderAvoidsWhoCombines has an adder whose cell is idle: it takes the other one, and meets nobody who combines.
func TestAdderAvoidsWhoCombines(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	c.freshFor, c.idleAfter = 0, 0
	add(t, c, "n", 1)
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Add(ctx, tx, "n", 10))
	n, err := c.Combine(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, 11, get(t, c, "n"))
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	number := typed.Number[int]{}
	for _, f := range []func() (*Combiner[int], error){
		func() (*Combiner[int], error) { return New(nil, "t", number, Sum[int]) },
		func() (*Combiner[int], error) { return New(db, "", number, Sum[int]) },
		func() (*Combiner[int], error) { return New[int](db, "t", nil, Sum[int]) },
		func() (*Combiner[int], error) { return New(db, "t", number, nil) },
		func() (*Combiner[int], error) {
			return NewWithOptions(db, "t", number, Sum[int], Options{Idle: -1})
		},
	} {
		_, err := f()
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	c := counter(t, db)
	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error { return c.Add(ctx, tx, "n", 1) }), percolator.ErrReadOnly)
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(ctx))
	require.ErrorIs(t, c.Add(ctx, tx, "n", 1), percolator.ErrTxnDone)
	_, err = c.Get(ctx, tx, "n")
	require.ErrorIs(t, err, percolator.ErrTxnDone)
	long := string(make([]byte, 4096))
	require.ErrorIs(t, c.AddNow(ctx, long, 1), percolator.ErrTooLarge)
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error { return c.Add(ctx, tx, long, 1) }), percolator.ErrTooLarge)
	require.Empty(t, c.slots.free, "nobody has written in a slot")
}

// TestRefusedValues has values that cannot be merged, among others that can.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	merge := c.merge
	c.merge = func(into, more int) (int, error) {
		if more == 13 {
			panic("thirteen")
		}
		return merge(into, more)
	}
	add(t, c, "n", 1)
	for _, delta := range []int{13, math.MaxInt} {
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			if err := c.Add(ctx, tx, "other", 1); err != nil {
				return err
			}
			return c.Add(ctx, tx, "n", delta)
		})
		require.ErrorIs(t, err, ErrMerge)
		require.ErrorContains(t, err, `"n" of table "count"`)
	}
	require.Zero(t, cells(t, c, "other"))

	// Of calls that share a transaction only those fail whose values are refused.
	c.codec = below1000{}
	var group sync.WaitGroup
	var refused atomic.Int64
	for i := range 40 {
		group.Go(func() {
			delta := 1
			if i%10 == 0 {
				delta = 1000
			}
			switch err := c.AddNow(ctx, "many", delta); {
			case errors.Is(err, errLarge):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 4, refused.Load())
	require.Equal(t, 36, get(t, c, "many"))
	require.ErrorContains(t, c.AddNow(ctx, "others", -1), "panicked: negative")
	require.Equal(t, 1, get(t, c, "n"))
}

var errLarge = errors.New("too large")

// below1000 is a codec that refuses numbers.
type below1000 struct{ typed.Number[int] }

func (c below1000) Encode(ctx context.Context, cell percolator.Cell, n int) ([]byte, error) {
	switch {
	case n >= 1000:
		return nil, errLarge
	case n < 0:
		panic("negative")
	}
	return c.Number.Encode(ctx, cell, n)
}

// TestDamagedPart has stored bytes that the codec does not know: what is there is left as it is.
func TestDamagedPart(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := eager(counter(t, db), 1)
	c.looksFor = math.MaxUint64
	add(t, c, "n", 1)
	for i, stored := range []string{"", "\x01", "\x02\x00\x00\x00\x00\x00\x00\x00\x011", "\x01\x00\x00\x00\x00\x00\x00\x00\x01one"} {
		cell := percolator.Cell{Table: "count", Row: string(value("n").Uint(uint64(i + 1))), Column: "a"}
		set := func(value []byte) {
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				if value == nil {
					return tx.Delete(cell)
				}
				return tx.Set(cell, value)
			}))
		}
		set([]byte(stored))
		err := db.View(ctx, func(tx *percolator.Txn) error { _, err := c.Get(ctx, tx, "n"); return err })
		require.ErrorIs(t, err, typed.ErrDecode, strconv.Quote(stored))
		require.ErrorContains(t, err, cell.String())
		before := cells(t, c, "n")
		_, err = c.Combine(ctx, "n")
		require.ErrorIs(t, err, typed.ErrDecode)
		require.Equal(t, before, cells(t, c, "n"), "nothing was removed")
		c.looksFor = 1
		add(t, eager(counter(t, db), 1), "n", 1) // an Add that looks goes on
		c.looksFor = math.MaxUint64
		set(nil)
		require.Equal(t, 2+i, get(t, c, "n"))
	}
}

// TestYoungerCellIsWritten: the older one of two may be combined at this moment.
func TestYoungerCellIsWritten(t *testing.T) {
	t.Parallel()
	c, err := New(new(percolator.DB), "count", typed.Number[int]{}, Sum[int])
	require.NoError(t, err)
	cells := [len(slotColumns)]percolator.Cell{{Row: "1", Column: "a"}, {Row: "1", Column: "b"}}
	for younger := range cells {
		stored := map[percolator.Cell][]byte{}
		for i, cell := range cells {
			at := percolator.Timestamp(10)
			if i == younger {
				at = 20
			}
			stored[cell], err = c.encode(t.Context(), cell, at, 1)
			require.NoError(t, err)
		}
		cell, made, err := c.choose(cells, stored, percolator.Timestamp(30).Add(idleAfter))
		require.NoError(t, err)
		require.False(t, made)
		require.Equal(t, cells[younger], cell)
	}
}

// Max and Min keep one of the values, whatever is merged first.
func TestMaxAndMin(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	for table, x := range map[string]struct {
		merge Merge[int]
		want  int
	}{"max": {Max[int], 7}, "min": {Min[int], -3}} {
		c, err := New(db, table, typed.Number[int]{}, x.merge)
		require.NoError(t, err)
		for key, deltas := range map[string][]int{"up": {-3, 2, 7}, "down": {7, 2, -3}} {
			for _, delta := range deltas {
				add(t, apart(c), key, delta)
			}
			require.Equal(t, 3, cells(t, c, key))
			require.Equal(t, x.want, get(t, c, key))
		}
	}
}
