package combine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// What a caller may do that nobody who wrote the package does.

// TestValueIsTheCallersAgain has a caller that gives up while its value is being merged, and then changes the value. Another
// caller of the same batch waits on, so it is committed.
func TestValueIsTheCallersAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no batch is overdue
		type set = map[string]bool
		ctx := t.Context()
		entered, goOn := make(chan struct{}), make(chan struct{})
		var gated atomic.Bool
		c, err := New(percolatetest.Open(t), "set", typed.JSON[set]{}, func(into, more set) (set, error) {
			if gated.Load() {
				entered <- struct{}{}
				<-goOn
			}
			maps.Copy(into, more)
			return into, nil
		})
		require.NoError(t, err)
		add(t, c, "k", set{"first": true})
		gated.Store(true)
		others := make(chan error, 2)
		waiting := func(n int) {
			require.Eventually(t, func() bool {
				c.batches.mu.Lock()
				defer c.batches.mu.Unlock()
				return len(c.batches.common.waiting) == n
			}, waitLong, waitTick)
		}
		go func() { others <- c.AddNow(ctx, "k", set{"second": true}) }()
		<-entered
		leaving, leave := context.WithCancel(ctx)
		value, left := set{"before": true}, make(chan error)
		go func() { left <- c.AddNow(leaving, "k", value) }()
		waiting(1)
		go func() { others <- c.AddNow(ctx, "k", set{"third": true}) }()
		waiting(2)
		goOn <- struct{}{}
		<-entered
		leave()
		require.ErrorIs(t, <-left, percolator.ErrUndetermined)
		value["after"] = true
		gated.Store(false)
		goOn <- struct{}{}
		require.NoError(t, <-others)
		require.NoError(t, <-others)
		require.Equal(t, set{"first": true, "second": true, "before": true, "third": true}, get(t, c, "k"))
	})
}

type contextKey struct{}

// seesContext is a codec that counts the calls in which it sees the value of a caller's context.
type seesContext struct {
	typed.Number[int]
	seen *atomic.Int64
}

func (c seesContext) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (int, error) {
	if ctx.Value(contextKey{}) != nil {
		c.seen.Add(1)
	}
	return c.Number.Decode(ctx, cell, stored)
}

// TestCallsKeepTheirContexts: a transaction of many callers has nothing of the context of one of them, such as a trace, or the name of a customer.
func TestCallsKeepTheirContexts(t *testing.T) {
	t.Parallel()
	c := counter(t, percolatetest.Open(t))
	var seen atomic.Int64
	c.codec = seesContext{seen: &seen}
	ctx := context.WithValue(t.Context(), contextKey{}, "of the first")
	for range 3 {
		require.NoError(t, c.AddNow(ctx, "n", 1))
	}
	require.Zero(t, seen.Load())
	require.Equal(t, 3, get(t, c, "n"))
}

// TestFewTransactionsForARefusedValue has one of many calls refused, with as many transactions as it takes to find it.
func TestFewTransactionsForARefusedValue(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	c := counter(t, db)
	const calls, bad = 256, 77
	all := make([]*addition[int], calls)
	for i := range all {
		delta := 1
		if i == bad {
			delta = math.MaxInt
		}
		var err error
		all[i], err = c.addition(t.Context(), "n", delta)
		require.NoError(t, err)
	}
	before := db.Stats().Transactions
	c.addTogether(t.Context(), &c.batches.common, batched(all))
	require.LessOrEqual(t, db.Stats().Transactions-before, uint64(2*9), "the halves without it are one transaction each")
	for i, a := range all {
		<-a.done
		require.Equal(t, i == bad, a.err != nil, "%d: %v", i, a.err)
	}
	require.ErrorIs(t, all[bad].err, ErrMerge)
	require.Equal(t, calls-1, get(t, c, "n"))
}

// batched makes a batch of additions.
func batched[T any](all []*addition[T]) []*addition[T] {
	one := &batch{callers: len(all), cancel: func() {}}
	for _, a := range all {
		a.batch = one
	}
	return all
}

// TestBatchOverTheLimits has calls whose values fit into a transaction each, and not together.
func TestBatchOverTheLimits(t *testing.T) {
	t.Parallel()
	db, err := percolator.New(t.Context(), memstore.New(), percolator.WithLimits(percolator.Limits{Bytes: 20_000}))
	require.NoError(t, err)
	atend.Do(t, func() { _ = db.Close(contextAfter(t.Context())) })
	c, err := New(db, "text", typed.Text[string]{}, Max[string])
	require.NoError(t, err)
	all := make([]*addition[string], 10)
	for i := range all {
		all[i], err = c.addition(t.Context(), fmt.Sprint(i), strings.Repeat("x", 9_000))
		require.NoError(t, err)
	}
	c.addTogether(t.Context(), &c.batches.common, batched(all))
	for i, a := range all {
		<-a.done
		require.NoError(t, a.err)
		require.Len(t, get(t, c, fmt.Sprint(i)), 9_000)
	}
}

// TestMoreIdleThanATransactionTakes: adders combine, though Options.Idle is more than one transaction combines.
func TestMoreIdleThanATransactionTakes(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	for i := range 30 {
		c := eager(counter(t, db), 10)
		c.most = 4
		add(t, c, "n", 1)
		require.LessOrEqual(t, cells(t, c, "n"), 1+10)
		require.Equal(t, i+1, get(t, c, "n"))
	}
}

// TestCombineOverTheLimits has more idle cells than the program lets a transaction write: Combine takes some at a time, and so does an Add that looks.
func TestCombineOverTheLimits(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t, percolator.WithLimits(percolator.Limits{Cells: 40}))
	another := func(looks bool) *Combiner[int] {
		c := eager(counter(t, db), 16)
		if !looks {
			c.looksFor = math.MaxUint64
		}
		return c
	}
	for range 50 {
		add(t, another(false), "n", 1)
	}
	require.Equal(t, 50, cells(t, another(false), "n"))
	add(t, another(true), "n", 1)
	require.Less(t, cells(t, another(false), "n"), 50, "it has combined some")
	n, err := another(false).Combine(ctx, "n")
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 25)
	require.Equal(t, 1, cells(t, another(false), "n"))
	require.Equal(t, 51, get(t, another(false), "n"))

	// A value that no cell can hold is an error still.
	db = percolatetest.Open(t, percolator.WithLimits(percolator.Limits{Value: 100}))
	var texts *Combiner[string]
	for range 4 {
		texts, err = New(db, "text", typed.Text[string]{}, func(into, more string) (string, error) { return into + more, nil })
		require.NoError(t, err)
		add(t, apart(texts), "n", strings.Repeat("x", 80))
	}
	_, err = eager(texts, 1).Combine(ctx, "n")
	require.ErrorIs(t, err, percolator.ErrTooLarge)
	require.Len(t, get(t, texts, "n"), 320)
}

// TestWideParts has parts of which few fit into what a transaction combines at once.
func TestWideParts(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	var c *Combiner[string]
	for i := range 20 {
		var err error
		c, err = New(db, "text", typed.Text[string]{}, Max[string])
		require.NoError(t, err)
		eager(apart(c), math.MaxInt).looksFor = math.MaxUint64
		add(t, c, "t", fmt.Sprint(i+10)+strings.Repeat("x", 10_000))
	}
	c.mostBytes = 50_000
	require.Equal(t, 20, cells(t, c, "t"))
	n, err := c.combine(t.Context(), "t", 15)
	require.NoError(t, err)
	require.Equal(t, 5, n.removed, "these are as much as one takes at once")
	require.True(t, n.more)
	removed, err := c.Combine(t.Context(), "t")
	require.NoError(t, err)
	require.Equal(t, 15, removed)
	require.Equal(t, 1, cells(t, c, "t"))
	require.Equal(t, "29", get(t, c, "t")[:2])
}

// TestViewCombinesNothing: who looks does not write, not even for others.
func TestViewCombinesNothing(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	for range 5 {
		c := counter(t, db)
		c.looksFor = math.MaxUint64
		add(t, c, "n", 1)
	}
	c := eager(counter(t, db), 1)
	err := db.View(t.Context(), func(tx *percolator.Txn) error { return c.Add(t.Context(), tx, "n", 1) })
	require.ErrorIs(t, err, percolator.ErrReadOnly)
	require.Equal(t, 5, cells(t, c, "n"))
}

// TestCodecFails has a codec that fails once for each call that it serves: nothing is added for certain, and others are not harmed.
func TestCodecFails(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := counter(t, percolatetest.Open(t))
	add(t, c, "n", 1)
	away := errors.New("the keys are away")
	c.codec = failing{err: away}
	require.ErrorIs(t, c.AddNow(ctx, "n", 1), away)
	require.NotErrorIs(t, c.AddNow(ctx, "n", 1), percolator.ErrUndetermined)
	_, err := eager(c, 1).Combine(ctx, "n")
	require.ErrorIs(t, err, away)
	c.codec = typed.Number[int]{}
	require.Equal(t, 1, get(t, c, "n"))
	require.Equal(t, 1, cells(t, c, "n"))
}

type failing struct {
	typed.Number[int]
	err error
}

func (f failing) Encode(context.Context, percolator.Cell, int) ([]byte, error) { return nil, f.err }
func (f failing) Decode(context.Context, percolator.Cell, []byte) (int, error) { return 0, f.err }

// inPlace is a codec that decodes in place, as typed.Codec allows: the bytes that it gets are others afterwards.
type inPlace struct{ typed.Number[int] }

func (c inPlace) flip(b []byte) []byte {
	for i := range b {
		b[i] ^= 1 // makes a digit another digit
	}
	return b
}

func (c inPlace) Encode(ctx context.Context, cell percolator.Cell, n int) ([]byte, error) {
	b, err := c.Number.Encode(ctx, cell, n)
	return c.flip(b), err
}

func (c inPlace) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (int, error) {
	return c.Number.Decode(ctx, cell, c.flip(stored))
}

// TestDecodingInPlace has a batch that runs again because one of its values is refused, and everything else that decodes, with a codec that
// decodes in place: each value is decoded from bytes that nobody has decoded before.
func TestDecodingInPlace(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c, err := New(db, "count", inPlace{}, Sum[int])
	require.NoError(t, err)
	all := make([]*addition[int], 4)
	for i, delta := range []int{2, 2, 2, math.MaxInt} {
		all[i], err = c.addition(ctx, "n", delta)
		require.NoError(t, err)
	}
	c.addTogether(ctx, &c.batches.common, batched(all))
	for i, a := range all {
		<-a.done
		require.Equal(t, i == 3, a.err != nil, "%d: %v", i, a.err)
	}
	require.Equal(t, 6, get(t, c, "n"))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range 3 {
			require.NoError(t, c.Add(ctx, tx, "n", 10))
			n, err := c.Get(ctx, tx, "n")
			require.NoError(t, err)
			require.Equal(t, 6+10*(i+1), n)
		}
		return nil
	}))
	_, err = eager(c, 1).Combine(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, 36, get(t, c, "n"))
}
