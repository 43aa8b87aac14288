package tikvtest

import (
	"bytes"
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
		ctx := t.Context()
		key := rapid.Custom(func(r *rapid.T) []byte {
			return rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 0xff}), 1, 10).Draw(r, "key")
		})
		value := rapid.SampledFrom([][]byte{{}, {0}, []byte("a"), []byte("b"), bytes.Repeat([]byte("long"), 100)})
		model := map[string][]byte{}
		rapid.Check(t, func(r *rapid.T) {
			sorted := func(from, to []byte) (keys []string) {
				for k := range maps.Keys(model) {
					if k >= string(from) && (to == nil || k < string(to)) {
						keys = append(keys, k)
					}
				}
				slices.Sort(keys)
				return keys
			}
			compare := func(want []string, keys, values [][]byte, err error) {
				require.NoError(r, err)
				require.Len(r, keys, len(want))
				for i, k := range want {
					require.Equal(r, k, string(keys[i]))
					if values != nil {
						require.Equal(r, model[k], values[i])
					}
				}
			}
			for range 12 {
				switch rapid.IntRange(0, 8).Draw(r, "command") {
				case 0:
					k := key.Draw(r, "k")
					got, err := kv.Get(ctx, k)
					require.NoError(r, err)
					require.Equal(r, model[string(k)], got)
				case 1:
					k, v := key.Draw(r, "k"), value.Draw(r, "v")
					require.NoError(r, kv.Put(ctx, k, v))
					model[string(k)] = v
				case 2:
					k := key.Draw(r, "k")
					require.NoError(r, kv.Delete(ctx, k))
					delete(model, string(k))
				case 3:
					keys := rapid.SliceOfNDistinct(key, 1, 6, func(k []byte) string { return string(k) }).Draw(r, "keys")
					var values [][]byte
					for range keys {
						values = append(values, value.Draw(r, "v"))
					}
					require.NoError(r, kv.BatchPut(ctx, keys, values))
					for i, k := range keys {
						model[string(k)] = values[i]
					}
				case 4:
					keys := rapid.SliceOfNDistinct(key, 1, 6, func(k []byte) string { return string(k) }).Draw(r, "keys")
					got, err := kv.BatchGet(ctx, keys)
					require.NoError(r, err)
					for i, k := range keys {
						require.Equal(r, model[string(k)], got[i], "%q", k)
					}
				case 5:
					keys := rapid.SliceOfNDistinct(key, 1, 6, func(k []byte) string { return string(k) }).Draw(r, "keys")
					require.NoError(r, kv.BatchDelete(ctx, keys))
					for _, k := range keys {
						delete(model, string(k))
					}
				case 6:
					k, v, expected := key.Draw(r, "k"), value.Draw(r, "v"), value.Draw(r, "expected")
					if rapid.Bool().Draw(r, "as it is") {
						expected = model[string(k)]
					}
					have := model[string(k)]
					want := (have == nil) == (expected == nil) && bytes.Equal(have, expected)
					old, ok, err := kv.CompareAndSwap(ctx, k, expected, v)
					require.NoError(r, err)
					require.Equal(r, want, ok)
					require.Equal(r, have, old)
					if ok {
						model[string(k)] = v
					}
				case 7:
					from, to, limit := key.Draw(r, "from"), key.Draw(r, "to"), rapid.IntRange(1, 10).Draw(r, "limit")
					want := sorted(from, to)
					if rapid.Bool().Draw(r, "keys alone") {
						keys, values, err := kv.Scan(ctx, from, to, limit, rawkv.ScanKeyOnly())
						compare(want[:min(limit, len(want))], keys, nil, err)
						for _, v := range values {
							require.Empty(r, v)
						}
						break
					}
					keys, values, err := kv.Scan(ctx, from, to, limit)
					compare(want[:min(limit, len(want))], keys, values, err)
				case 8:
					from, to, limit := key.Draw(r, "from"), key.Draw(r, "to"), rapid.IntRange(1, 10).Draw(r, "limit")
					want := sorted(from, to)
					slices.Reverse(want)
					keys, values, err := kv.ReverseScan(ctx, to, from, limit)
					compare(want[:min(limit, len(want))], keys, values, err)
				}
			}
		})
	})
}
