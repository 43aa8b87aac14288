package index

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestBuiltWhileWritten builds over data that two processes write, in every backend.
func TestBuiltWhileWritten(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		const data, writers = 80, 3
		require.NoError(t, one.Update(ctx, func(tx *percolator.Txn) error {
			for i := range data {
				if err := tx.Set(words.Cell(fmt.Sprint(i)), fmt.Appendf(nil, "w%d all", i%7)); err != nil {
					return err
				}
			}
			return nil
		}))
		ix, other := wordIndex(t, one, Options{}), wordIndex(t, two, Options{})
		writing, stop := context.WithCancel(ctx)
		defer stop()
		var writes atomic.Int64
		var group errgroup.Group
		for i := range writers {
			random := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // as above
			group.Go(func() error {
				for writing.Err() == nil {
					db, row := []*percolator.DB{one, two}[i%2], fmt.Sprint(random.IntN(data*2))
					var err error
					if random.IntN(3) == 0 {
						err = remove(ctx, db, row)
					} else {
						err = put(ctx, db, row, fmt.Sprintf("w%d w%d", random.IntN(7), random.IntN(7)))
					}
					if err != nil {
						return err
					}
					writes.Add(1)
					_ = contexts.Sleep(writing, time.Millisecond) // a build waits for leases, too
				}
				return nil
			})
		}
		_, err := ix.Build(ctx, Pace{Rows: 8})
		require.NoError(t, err)
		matches(t, other)
		stop()
		require.NoError(t, group.Wait())
		require.Positive(t, writes.Load())
		r := matches(t, other)
		require.GreaterOrEqual(t, r.Entries, r.Rows)
	}, settings)
}

// TestBuildGoesOn ends builds at each step, and others go on, also two at once.
func TestBuildGoesOn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	first := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
	const data = 40
	for i := range data {
		require.NoError(t, put(ctx, first, fmt.Sprint(i), fmt.Sprintf("w%d all", i)))
	}
	writes := func(x *faultstore.Call) bool { return x.Kind == faultstore.CallApply || x.Kind == faultstore.CallGroup }
	deaths := 0
	for call := 1; ; call++ {
		store := faultstore.New(inner, faultstore.Options{KeepOpen: true})
		db, err := percolator.New(ctx, store, settings, percolator.WithSessionLease(50*time.Millisecond), percolator.WithLockExpiry(50*time.Millisecond), percolator.WithStorePatience(0))
		require.NoError(t, err)
		ix := wordIndex(t, db, Options{})
		store.AddRule(faultstore.Rule{Skip: call / 2, Match: writes, Fault: faultstore.Fault{Kind: faultstore.CrashClient, Applied: call%2 == 0}})
		_, err = ix.Build(ctx, Pace{Rows: 8})
		store.SetRules()
		_ = db.Close(ctx)
		if err == nil {
			break
		}
		deaths++
		require.Less(t, call, 200)
	}
	require.Greater(t, deaths, 3)
	ix := wordIndex(t, first, Options{})
	require.Equal(t, 2*data, matches(t, ix).Entries)
	require.NoError(t, Drop(ctx, first, "word", Pace{}))
	var group errgroup.Group
	for range 2 {
		db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
		group.Go(func() error {
			ix, err := New(db, "word", words, eachWord, Options{})
			if err == nil {
				_, err = ix.Build(ctx, Pace{Rows: 4, Pause: time.Millisecond})
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, 2*data, matches(t, ix).Entries)
}

// TestBuiltByAnotherMeanwhile has one who stands still while it builds, until another one has built the index to the end, and one more until it is dropped.
func TestBuiltByAnotherMeanwhile(t *testing.T) {
	t.Parallel()
	for _, drops := range []bool{false, true} {
		ctx := t.Context()
		inner := memstore.New()
		atend.Do(t, func() { _ = inner.Close() })
		one := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
		two := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
		require.NoError(t, put(ctx, one, "1", "a"))
		stands, hold := make(chan struct{}), make(chan struct{})
		goOn := sync.OnceFunc(func() { close(hold) })
		defer goOn() // before the databases are closed
		var once sync.Once
		slow, err := New(one, "word", words, func(row, text string) ([]keys.Key, error) {
			once.Do(func() { close(stands); <-hold })
			return eachWord(row, text)
		}, Options{})
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() {
			_, err := slow.Build(ctx, Pace{Rows: 1})
			result <- err
		}()
		select {
		case <-stands:
		case err := <-result:
			require.FailNow(t, "it has ended before", "%v", err)
		}
		ix := built(t, two, Options{})
		if drops {
			require.NoError(t, Drop(ctx, two, "word", Pace{}))
		}
		goOn()
		if drops {
			require.ErrorIs(t, <-result, percolator.ErrIndexChanged)
			info, err := infoOf(ctx, two, "word")
			require.NoError(t, err)
			require.Equal(t, percolator.IndexAbsent, info.State)
			continue
		}
		require.NoError(t, <-result, "it is built")
		require.Equal(t, 1, matches(t, ix).Entries)
	}
}

// TestBuildOfDuplicates finds values that several rows have, and goes on when they are gone.
func TestBuildOfDuplicates(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	for row, text := range map[string]string{"1": "a", "2": "a", "3": "b", "5": "e", "6": "e"} {
		require.NoError(t, put(ctx, db, row, text))
	}
	ix := wordIndex(t, db, Options{Unique: true})
	r, err := ix.Build(ctx, Pace{})
	var not *NotUniqueError
	require.ErrorAs(t, err, &not)
	require.ErrorIs(t, err, ErrNotUnique)
	require.Equal(t, NotUniqueError{Index: "word", Value: key("a"), Row: "1", Other: "2"}, *not)
	require.Equal(t, 2, r.Duplicated)
	require.NoError(t, put(ctx, db, "6", "f"), "it need not have the entry to lose the value")
	r, err = ix.Check(ctx, Pace{})
	require.NoError(t, err)
	require.Zero(t, r.Missing, "the entry is still the other row's")
	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error { _, err := ix.Find(ctx, tx, key("a")); return err }), ErrNotReadable)
	require.ErrorIs(t, put(ctx, db, "4", "a"), ErrNotUnique)
	require.NoError(t, put(ctx, db, "1", "c"))
	r, err = ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.Zero(t, r.Duplicated)
	require.Equal(t, []string{"2"}, has(t, db, ix, "a"))
	matches(t, ix)
}

// TestRepair has entries that are missing, stale, damaged, and of another row.
func TestRepair(t *testing.T) {
	t.Parallel()
	for _, unique := range []bool{false, true} {
		ctx, db := t.Context(), percolatetest.Open(t)
		ix := built(t, db, Options{Unique: unique})
		for row, text := range map[string]string{"1": "a", "2": "b", "3": "c"} {
			require.NoError(t, put(ctx, db, row, text))
		}
		info, err := infoOf(ctx, db, "word")
		require.NoError(t, err)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			return errors.Join(tx.Delete(ix.entry(key("a"), "1")),
				tx.Set(ix.entry(key("b"), "2"), []byte("1")),
				tx.Set(ix.entry(key("x"), "9"), []byte("9")),
				tx.Set(ix.entry(key("y"), ""), nil),
				tx.Set(percolator.Cell{Table: "index/word", Row: "zzz", Column: column}, []byte("1")))
		}, percolator.WithIndexUpkeep(info)))
		r, err := ix.Check(ctx, Pace{Rows: 1})
		require.NoError(t, err)
		require.False(t, r.Matches())
		require.Equal(t, 2, r.Missing)
		again, err := ix.Check(ctx, Pace{})
		require.NoError(t, err)
		require.Equal(t, r, again, "it has changed nothing")
		_, err = ix.Repair(ctx, Pace{Rows: 1})
		require.NoError(t, err)
		require.Equal(t, 3, matches(t, ix).Entries)
		require.Equal(t, []string{"2"}, has(t, db, ix, "b"))
	}
}

// TestUnsteadyValues has values that are others each time.
func TestUnsteadyValues(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	require.NoError(t, put(ctx, db, "1", "a"))
	n := 0
	ix, err := New(db, "word", words, func(string, string) ([]keys.Key, error) { n++; return []keys.Key{key(fmt.Sprint(n))}, nil }, Options{})
	require.NoError(t, err)
	_, err = ix.Build(ctx, Pace{})
	require.ErrorIs(t, err, ErrMismatch)
}

// TestFaults has processes that write, each transaction until it is answered, while calls fail, get lost, arrive late or twice, and processes
// die; and one that builds.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	for _, unique := range []bool{false, true} {
		inner := memstore.New()
		atend.Do(t, func() { _ = inner.Close() })
		var faults, commits, refused atomic.Int64
		var building atomic.Bool
		building.Store(true)
		var group errgroup.Group
		for process := range 4 {
			random := rand.New(rand.NewPCG(seed, uint64(process))) //nolint:gosec // as above
			group.Go(func() error {
				for n := 0; n < 100 || process > 0 && building.Load(); {
					store := faultstore.New(inner, faultstore.Options{KeepOpen: true, Seed: random.Uint64() | 1})
					db, err := percolator.New(t.Context(), store, settings, percolator.WithSessionLease(50*time.Millisecond), percolator.WithLockExpiry(50*time.Millisecond), percolator.WithStorePatience(0))
					if err != nil {
						return err
					}
					ix, err := New(db, "word", words, eachWord, Options{Unique: unique})
					if err != nil {
						return err
					}
					store.SetRates(faultstore.Rates{LoseReply: 0.03, Fail: 0.02, Late: 0.02, Twice: 0.02, CrashClient: 0.003})
					for failures := 0; failures < 20 && (n < 100 || process > 0 && building.Load()); {
						if process == 0 {
							if _, err = ix.Build(t.Context(), Pace{Rows: 5}); err == nil {
								n = 100
								building.Store(false)
							}
						} else {
							err = put(t.Context(), db, fmt.Sprint(random.IntN(30)), fmt.Sprintf("w%d", random.IntN(60)))
						}
						switch {
						case errors.Is(err, ErrNotUnique):
							refused.Add(1)
							n++
						case err != nil:
							failures++
						default:
							commits.Add(1)
							n, failures = n+1, 0
						}
					}
					for kind := faultstore.Fail; kind <= faultstore.Twice; kind++ {
						faults.Add(int64(store.Count(kind)))
					}
					store.SetRates(faultstore.Rates{})
					store.DeliverLate()
					_ = db.Close(t.Context())
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
		t.Logf("%d faults, %d commits, %d refused", faults.Load(), commits.Load(), refused.Load())
		require.Positive(t, faults.Load())
		db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)
		ix := wordIndex(t, db, Options{Unique: unique})
		r := matches(t, ix)
		require.Equal(t, r.Rows, r.Entries)
		require.Positive(t, r.Rows)
	}
}

// counted counts the rows that scans pass.
type counted struct {
	*memstore.Store
	passed atomic.Int64
}

func (s *counted) Abilities() rowstore.Abilities { return rowstore.Abilities{OracleProvider: s.Store} }

func (s *counted) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, r) {
			s.passed.Add(1)
			if !yield(row, err) {
				return
			}
		}
	}
}

// TestDropPassesRowsOnce: the steps of Drop do not go over what the steps before have deleted.
func TestDropPassesRowsOnce(t *testing.T) {
	t.Parallel()
	ctx, store := t.Context(), &counted{Store: memstore.New()}
	db := everystore.Over(t, store, settings)
	built(t, db, Options{})
	const entries = 300
	require.NoError(t, put(ctx, db, "1", manyWords(entries)))
	store.passed.Store(0)
	require.NoError(t, Drop(ctx, db, "word", Pace{Rows: 5}))
	require.Less(t, store.passed.Load(), int64(4*entries), "of %d entries", entries)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "index/word"}) {
			require.NoError(t, err)
			require.Fail(t, "an entry is left", "%q", row.Key)
		}
		return nil
	}))
}
