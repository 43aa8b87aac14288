package kit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestParams(t *testing.T) {
	t.Parallel()
	p := kit.ParseParams("s=%20x&a=1&a=2&w=fast&b=on&c=false&i=-3&d=1500ms&z=64KB")
	require.Equal(t, " x", p.String("s", "def"))
	require.Equal(t, []string{"1", "2"}, p.Strings("a"))
	require.Equal(t, "fast", p.OneOf("w", "slow", "slow", "fast"))
	require.True(t, p.Bool("b", false))
	require.False(t, p.Bool("c", true))
	require.Equal(t, -3, p.Int("i", 0, -5, 5))
	require.Equal(t, 1500*time.Millisecond, p.Duration("d", 0))
	require.Equal(t, int64(64<<10), p.Size("z", 0))
	// Those that are not there.
	require.Equal(t, "def", p.String("none", "def"))
	require.Nil(t, p.Strings("none"))
	require.Equal(t, "slow", p.OneOf("none", "slow", "slow", "fast"))
	require.True(t, p.Bool("none", true))
	require.Equal(t, 9, p.Int("none", 9, 0, 5))
	require.Equal(t, time.Second, p.Duration("none", time.Second))
	require.Equal(t, int64(7), p.Size("none", 7))
	require.NoError(t, p.Err())
}

func TestParamsErrors(t *testing.T) {
	t.Parallel()
	read := func(query string) error {
		p := kit.ParseParams(query)
		p.String("s", "")
		p.OneOf("w", "slow", "slow", "fast")
		p.Bool("b", false)
		p.Int("i", 0, 1, 5)
		p.Duration("d", 0)
		p.Size("z", 0)
		return p.Err()
	}
	require.NoError(t, read(""))
	for query, want := range map[string]string{
		"s=secret&s=secret": "the parameter s is not there once",
		"w=secret":          "the parameter w is not one of slow, fast",
		"b=secret":          "the parameter b is not true or false",
		"i=secret":          "the parameter i is not a whole number from 1 to 5",
		"i=0":               "the parameter i is not a whole number from 1 to 5",
		"d=-1s":             "the parameter d is not a time such as 500ms or 3s",
		"d=secret":          "the parameter d is not a time such as 500ms or 3s",
		"z=0":               "the parameter z is not a size such as 64MB",
		"z=5XB":             "the parameter z is not a size such as 64MB",
		"z=9999999999GB":    "the parameter z is not a size such as 64MB",
		"z=\xff\xfe":        "the parameter z is not a size such as 64MB",
		"secret=1":          "the URL has an unknown parameter (known: b, d, i, s, w, z)",
		"s=%zzsecret":       "the URL's parameters are not well encoded",
	} {
		err := read(query)
		require.ErrorIs(t, err, rowstore.ErrInvalid, query)
		require.Contains(t, err.Error(), want, query)
		require.NotContains(t, err.Error(), "secret", query)
	}
	require.ErrorContains(t, kit.ParseParams("x=1").Err(), "the store takes none")
}

// TestParamsBounds reads the first and the last value that will do, and their neighbours.
func TestParamsBounds(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"i=1": "", "i=5": "", "i=0": "i", "i=6": "i", "i=1.5": "i", "i=": "i",
		"d=1ns": "", "d=0": "d", "d=0s": "d", "d=5": "d",
		"b=on": "", "b=off": "", "b=0": "", "b=": "b", "b=ON": "b",
		"z=1": "", "z=-1": "z", "z=": "z", "z=KB": "z", "z=4294967296GB": "", "z=4294967297GB": "z",
		"w=": "w", "many=1&many=2": "",
	} {
		p := kit.ParseParams(query)
		p.OneOf("w", "slow", "slow", "fast")
		p.Bool("b", false)
		p.Int("i", 3, 1, 5)
		p.Duration("d", time.Second)
		p.Size("z", 1)
		p.Strings("many")
		err := p.Err()
		if want == "" {
			require.NoError(t, err, query)
		} else {
			require.ErrorContains(t, err, "the parameter "+want+" is not", query)
		}
	}
	require.False(t, kit.ParseParams("b=off").Bool("b", true))
	for query, want := range map[string]int64{
		"5": 5, "5B": 5, "5b": 5, "5K": 5 << 10, "5kb": 5 << 10, "5KiB": 5 << 10, "5M": 5 << 20, "5MB": 5 << 20, "5mib": 5 << 20,
		"5G": 5 << 30, "5GB": 5 << 30, "5GiB": 5 << 30, "5T": 5 << 40, "5TB": 5 << 40, "5TiB": 5 << 40,
	} {
		require.Equal(t, want, kit.ParseParams("z="+query).Size("z", 0), query)
	}
	// The first thing that is wrong is told, by a method that is called before another.
	p := kit.ParseParams("b=x&i=x&unknown=1")
	p.Int("i", 0, 1, 5)
	p.Bool("b", false)
	require.ErrorContains(t, p.Err(), "the parameter i is not")
	// What will not do is replaced by the default, so that nothing follows from it.
	require.Equal(t, 7, kit.ParseParams("i=9").Int("i", 7, 1, 5))
	require.Equal(t, time.Second, kit.ParseParams("d=-1s").Duration("d", time.Second))
}

func ExampleParams() {
	p := kit.ParseParams("cache=64MB&mustexist=yes")
	cache := p.Size("cache", 0)
	p.Bool("mustexist", false)
	fmt.Println(cache, p.Err())
	// Output: 67108864 invalid argument: the parameter mustexist is not true or false
}
