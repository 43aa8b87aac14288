package index

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestBusyRowUnderASerializableDefault has a row that somebody writes before each write of the transactions that build, repair and drop an index. Its entries stay the same, so it
// is no conflict, whatever level the DB has for transactions that name none.
func TestBusyRowUnderASerializableDefault(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	other := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	wordIndex(t, other, Options{})
	var writes atomic.Int64
	var armed, busy atomic.Bool
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if (c.Kind == faultstore.CallGroup || c.Kind == faultstore.CallApply) && armed.Load() && busy.CompareAndSwap(false, true) {
			defer busy.Store(false)
			if writes.Add(1) < 50 { // else a builder that it does hold up would go on for ever
				require.NoError(t, put(context.WithoutCancel(ctx), other, "hot", "a b"))
			}
		}
		return faultstore.Fault{}
	}}), settings, percolator.WithDefaultIsolation(percolator.Serializable))
	o := observedWords(t, db)
	worker := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	wordIndex(t, worker, Options{})
	w, stop, _ := keeping(t, worker, observedWords(t, worker).Observer())
	for i := range 40 {
		require.NoError(t, put(ctx, db, strconv.Itoa(i), "a "+strconv.Itoa(i)))
	}
	require.NoError(t, put(ctx, db, "hot", "a b"))
	require.NoError(t, w.WaitIdle(ctx))
	ix := wordIndex(t, db, Options{})
	edit := func(f func(tx *percolator.Txn) error) { require.NoError(t, other.Update(ctx, f)) }
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"Observed.Build", func() error {
			edit(func(tx *percolator.Txn) error { return tx.Delete(o.ix.entry(key("1"), "1")) })
			return o.Build(ctx, Pace{})
		}},
		{"Observed.Repair", func() error {
			edit(func(tx *percolator.Txn) error { return tx.Set(o.ix.entry(key("c"), "1"), []byte("1")) })
			_, err := o.Repair(ctx, Pace{})
			return err
		}},
		{"Build", func() error { _, err := ix.Build(ctx, Pace{}); return err }},
		{"Repair", func() error {
			require.NoError(t, stale(ctx, other, ix, "c", "1"))
			_, err := ix.Repair(ctx, Pace{})
			return err
		}},
		{"Drop", func() error { return Drop(ctx, db, "word", Pace{}) }},
	} {
		conflicts := db.Stats().Conflicts
		writes.Store(0)
		armed.Store(true)
		err := step.do()
		armed.Store(false)
		require.NoError(t, err, step.name)
		require.Positive(t, writes.Load(), step.name)
		assert.Equal(t, conflicts, db.Stats().Conflicts, step.name)
	}
	require.NoError(t, stop())
}
