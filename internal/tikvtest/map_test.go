package tikvtest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/rawkv"
	"pgregory.net/rapid"
)

// TestAgainstMap compares random commands with a map, while the regions change under
// them.
func TestAgainstMap(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *Cluster, kv *rawkv.Client) {
		c.Churn(t, 7, 0)
		m := mapped{ctx: t.Context(), kv: kv, model: map[string][]byte{}}
		commands := []func(*rapid.T){m.get, m.put, m.remove, m.putMany, m.getMany, m.removeMany, m.swap, m.scan, m.reverseScan}
		rapid.Check(t, func(r *rapid.T) {
			for range 12 {
				commands[rapid.IntRange(0, len(commands)-1).Draw(r, "command")](r)
			}
		})
	})
}

// mapped is a client, and a map of what it has written. Each method makes one command.
type mapped struct {
	ctx   context.Context
	kv    *rawkv.Client
	model map[string][]byte
}

var (
	mapKey = newMapKey()
	// It has a generator of its own: who draws a slice gives its generator a name, which others that draw from it would race with.
	mapKeys  = rapid.SliceOfNDistinct(newMapKey(), 1, 6, func(k []byte) string { return string(k) })
	mapValue = rapid.SampledFrom([][]byte{{}, {0}, []byte("a"), []byte("b"), bytes.Repeat([]byte("long"), 100)})
)

func newMapKey() *rapid.Generator[[]byte] {
	return rapid.Custom(func(r *rapid.T) []byte {
		return rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 0xff}), 1, 10).Draw(r, "key")
	})
}

// sorted lists the keys of a range.
func (m *mapped) sorted(from, to []byte) (keys []string) {
	for k := range maps.Keys(m.model) {
		if k >= string(from) && (to == nil || k < string(to)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// compare holds the answer of a scan to the keys that it must have, and their values
// unless those are nil.
func (m *mapped) compare(r *rapid.T, want []string, keys, values [][]byte, err error) {
	require.NoError(r, err)
	require.Len(r, keys, len(want))
	for i, k := range want {
		require.Equal(r, k, string(keys[i]))
		if values != nil {
			require.Equal(r, m.model[k], values[i])
		}
	}
}

// get reads a key.
func (m *mapped) get(r *rapid.T) {
	k := mapKey.Draw(r, "k")
	got, err := m.kv.Get(m.ctx, k)
	require.NoError(r, err)
	require.Equal(r, m.model[string(k)], got)
}

// put writes a key.
func (m *mapped) put(r *rapid.T) {
	k, v := mapKey.Draw(r, "k"), mapValue.Draw(r, "v")
	require.NoError(r, m.kv.Put(m.ctx, k, v))
	m.model[string(k)] = v
}

// remove deletes a key.
func (m *mapped) remove(r *rapid.T) {
	k := mapKey.Draw(r, "k")
	require.NoError(r, m.kv.Delete(m.ctx, k))
	delete(m.model, string(k))
}

// putMany writes several keys.
func (m *mapped) putMany(r *rapid.T) {
	keys := mapKeys.Draw(r, "keys")
	var values [][]byte
	for range keys {
		values = append(values, mapValue.Draw(r, "v"))
	}
	require.NoError(r, m.kv.BatchPut(m.ctx, keys, values))
	for i, k := range keys {
		m.model[string(k)] = values[i]
	}
}

// getMany reads several keys.
func (m *mapped) getMany(r *rapid.T) {
	keys := mapKeys.Draw(r, "keys")
	got, err := m.kv.BatchGet(m.ctx, keys)
	require.NoError(r, err)
	for i, k := range keys {
		require.Equal(r, m.model[string(k)], got[i], "%q", k)
	}
}

// removeMany deletes several keys.
func (m *mapped) removeMany(r *rapid.T) {
	keys := mapKeys.Draw(r, "keys")
	require.NoError(r, m.kv.BatchDelete(m.ctx, keys))
	for _, k := range keys {
		delete(m.model, string(k))
	}
}

// swap changes a key if it is as expected.
func (m *mapped) swap(r *rapid.T) {
	k, v, expected := mapKey.Draw(r, "k"), mapValue.Draw(r, "v"), mapValue.Draw(r, "expected")
	if rapid.Bool().Draw(r, "as it is") {
		expected = m.model[string(k)]
	}
	have := m.model[string(k)]
	want := (have == nil) == (expected == nil) && bytes.Equal(have, expected)
	old, ok, err := m.kv.CompareAndSwap(m.ctx, k, expected, v)
	require.NoError(r, err)
	require.Equal(r, want, ok)
	require.Equal(r, have, old)
	if ok {
		m.model[string(k)] = v
	}
}

// scan reads a range, or its keys alone.
func (m *mapped) scan(r *rapid.T) {
	from, to, limit := mapKey.Draw(r, "from"), mapKey.Draw(r, "to"), rapid.IntRange(1, 10).Draw(r, "limit")
	want := m.sorted(from, to)
	if rapid.Bool().Draw(r, "keys alone") {
		keys, values, err := m.kv.Scan(m.ctx, from, to, limit, rawkv.ScanKeyOnly())
		m.compare(r, want[:min(limit, len(want))], keys, nil, err)
		for _, v := range values {
			require.Empty(r, v)
		}
		return
	}
	keys, values, err := m.kv.Scan(m.ctx, from, to, limit)
	m.compare(r, want[:min(limit, len(want))], keys, values, err)
}

// reverseScan reads a range from its end.
func (m *mapped) reverseScan(r *rapid.T) {
	from, to, limit := mapKey.Draw(r, "from"), mapKey.Draw(r, "to"), rapid.IntRange(1, 10).Draw(r, "limit")
	want := m.sorted(from, to)
	slices.Reverse(want)
	keys, values, err := m.kv.ReverseScan(m.ctx, to, from, limit)
	m.compare(r, want[:min(limit, len(want))], keys, values, err)
}
