package pebble

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// FuzzParseURL reads URLs of stores.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"memory:", "memory:?cache=64MB", "memory:x", "pebble:/data?memtable=1gib&mustexist=true", "pebble:///data", "pebble://host/data", "pebble:",
		"pebble:d?cache=9223372036854775807", "pebble:d?cache=8589934592G", "pebble:d?cache=-1", "pebble:d?cache=%zz", "pebble:d?x=1", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		o, err := ParseURL(raw)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrInvalid)
			return
		}
		require.GreaterOrEqual(t, o.CacheSize, int64(0))
		require.GreaterOrEqual(t, o.MemTableSize, int64(0))
	})
}
