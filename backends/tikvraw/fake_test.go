package tikvraw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/google/btree"
	"github.com/stretchr/testify/require"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// fakeData is what stands in for the cluster: the keys, which several fakes share as
// processes do. Regions are cut at splits.
type fakeData struct {
	mu     sync.Mutex
	tree   *btree.BTreeG[pair]
	splits [][]byte
	tso    int64
	stuck  bool // the timestamps do not follow the clock
}

func newFakeData() *fakeData {
	return &fakeData{tree: btree.NewG(16, func(a, b pair) bool { return bytes.Compare(a.key, b.key) < 0 })}
}

// fakeRaw is one process's way to fakeData, with the semantics of a real server.
// before runs ahead of each call and may fail it; after runs when it took effect and
// may fail it too: then the answer is lost.
type fakeRaw struct {
	*fakeData
	before, after func(call string, key []byte) error
	calls         map[string]int // guarded by fakeData.mu
}

func (d *fakeData) client() *fakeRaw {
	return &fakeRaw{fakeData: d, calls: map[string]int{}}
}

func (f *fakeRaw) do(ctx context.Context, call string, key []byte, run func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.before != nil {
		if err := f.before(call, key); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.calls[call]++
	run()
	f.mu.Unlock()
	if f.after != nil {
		if err := f.after(call, key); err != nil {
			return lostReplyError{err}
		}
	}
	return nil
}

func (f *fakeRaw) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		n += c
	}
	return n
}

// counted returns the calls since the last time.
func (f *fakeRaw) counted() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = map[string]int{}
	return c
}

func (d *fakeData) lookup(key []byte) []byte {
	if p, ok := d.tree.Get(pair{key: key}); ok {
		return bytes.Clone(p.value)
	}
	return nil
}

func (d *fakeData) store(key, value []byte) {
	d.tree.ReplaceOrInsert(pair{bytes.Clone(key), append([]byte{}, value...)})
}

// dump returns all pairs.
func (d *fakeData) dump() []pair {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []pair
	d.tree.Ascend(func(p pair) bool { all = append(all, p); return true })
	return all
}

func (f *fakeRaw) get(ctx context.Context, key []byte) (v []byte, err error) {
	err = f.do(ctx, "get", key, func() { v = f.lookup(key) })
	return v, err
}

// lostReplyError is the error of a call that took effect.
type lostReplyError struct{ error }

func (l lostReplyError) Unwrap() error { return l.error }

func (f *fakeRaw) batchGet(ctx context.Context, keys [][]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := f.do(ctx, "batchGet", keys[0], func() {
		for i, k := range keys {
			out[i] = f.lookup(k)
		}
	})
	return out, err
}

func (f *fakeRaw) put(ctx context.Context, key, value []byte) error {
	return f.do(ctx, "put", key, func() { f.store(key, value) })
}

func (f *fakeRaw) batchPut(ctx context.Context, keys, values [][]byte) error {
	return f.do(ctx, "batchPut", keys[0], func() {
		for i, k := range keys {
			f.store(k, values[i])
		}
	})
}

func (f *fakeRaw) delete(ctx context.Context, key []byte) error {
	return f.do(ctx, "delete", key, func() { f.tree.Delete(pair{key: key}) })
}

func (f *fakeRaw) batchDelete(ctx context.Context, keys [][]byte) error {
	return f.do(ctx, "batchDelete", keys[0], func() {
		for _, k := range keys {
			f.tree.Delete(pair{key: k})
		}
	})
}

func (f *fakeRaw) scan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error) {
	var out []pair
	err := f.do(ctx, "scan", from, func() {
		f.tree.AscendRange(pair{key: from}, pair{key: to}, func(p pair) bool {
			if len(out) == limit {
				return false
			}
			out = append(out, copyOf(p, keysOnly))
			return true
		})
	})
	return out, err
}

func (f *fakeRaw) reverseScan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error) {
	var out []pair
	err := f.do(ctx, "reverseScan", to, func() {
		f.tree.DescendLessOrEqual(pair{key: to}, func(p pair) bool {
			if bytes.Compare(p.key, from) < 0 || len(out) == limit {
				return false
			}
			if bytes.Compare(p.key, to) < 0 {
				out = append(out, copyOf(p, keysOnly))
			}
			return true
		})
	})
	return out, err
}

func copyOf(p pair, keysOnly bool) pair {
	out := pair{key: bytes.Clone(p.key)}
	if !keysOnly {
		out.value = append([]byte{}, p.value...)
	}
	return out
}

func (f *fakeRaw) cas(ctx context.Context, key, old, value []byte) (met []byte, swapped bool, err error) {
	err = f.do(ctx, "cas", key, func() {
		met = f.lookup(key)
		if swapped = bytes.Equal(met, old) && (met == nil) == (old == nil); swapped {
			f.store(key, value)
		}
	})
	var lost lostReplyError
	if errors.As(err, &lost) {
		err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
	}
	if err != nil {
		return nil, false, err
	}
	return met, swapped, nil
}

func (f *fakeRaw) boundaries(ctx context.Context, from, to []byte) (out [][]byte, err error) {
	err = f.do(ctx, "boundaries", from, func() {
		for _, k := range f.splits {
			if bytes.Compare(k, from) > 0 && bytes.Compare(k, to) < 0 {
				out = append(out, bytes.Clone(k))
			}
		}
	})
	sort.Slice(out, func(i, j int) bool { return bytes.Compare(out[i], out[j]) < 0 })
	return out, err
}

func (f *fakeRaw) shard([]byte) string { return "" }

func (f *fakeRaw) close() error { return nil }

// GetTSAsync makes fakeData the PD as well.
func (f *fakeRaw) GetTSAsync(ctx context.Context) pd.TSFuture { return fakeFuture{f, ctx} }

type fakeFuture struct {
	f   *fakeRaw
	ctx context.Context
}

func (t fakeFuture) Wait() (physical, logical int64, err error) {
	err = t.f.do(t.ctx, "tso", nil, func() {
		// Milliseconds move on in steps, as PD's do.
		if t.f.tso++; !t.f.stuck {
			t.f.tso = max(t.f.tso, time.Now().UnixMilli()/50*50<<18)
		}
		physical, logical = t.f.tso>>18, t.f.tso&(1<<18-1)
	})
	return physical, logical, err
}

// small makes every bound of a row's parts small, so that ordinary tests cross them.
func small(o Options) Options {
	o.sizes.head, o.sizes.chunk, o.sizes.names = 400, 600, 200
	return o
}

// openFake opens a store over f. It is not closed here.
func openFake(t testing.TB, f *fakeRaw, o Options) *Store {
	t.Helper()
	o = o.counted()
	require.NoError(t, o.complete())
	s := newStore(f, o)
	s.drawFrom = f
	require.NoError(t, s.open(context.Background(), context.Background()))
	return s
}

// fakeStore opens a store over new data, and closes it after the test.
func fakeStore(t testing.TB, o Options) (*Store, *fakeRaw) {
	t.Helper()
	f := newFakeData().client()
	s := openFake(t, f, o)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s, f
}
