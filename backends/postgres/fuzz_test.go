package postgres

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// FuzzSplitURL takes this package's parameters out of URLs: none is left, every other
// one is, and what is wrong is said without the password.
func FuzzSplitURL(f *testing.F) {
	const secret = "S3cr3tPassw0rd"
	for _, s := range []string{
		"postgres://u:" + secret + "@h:5432/db?schema=s&sslmode=disable", "postgres://h/db?password=" + secret + "&max_batch=x", "postgres://h/db?coalesce=" + secret,
		"postgres://h?listen=postgres%3A%2F%2Fu%3A" + secret + "%40h&max_in_flight=2", "postgres://u:" + secret + "@h?a=%zz", "host=h user=u", "", "?", "?&&=&a",
		"postgres://u:p%40" + secret + "@h?password=%3F&password=b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		a, opts, err := splitURL(raw)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrInvalid)
			base, query, _ := strings.Cut(raw, "?")
			if strings.Count(base, secret) == 1 && !strings.Contains(query, secret) {
				require.NotContains(t, scrub(err, a.secrets).Error(), secret)
			}
			return
		}
		_, before, _ := strings.Cut(raw, "?")
		_, after, _ := strings.Cut(a.url, "?")
		want, _, err := parameters(before)
		require.NoError(t, err)
		for _, own := range []string{"schema", "listen", "coalesce", "max_batch", "max_in_flight"} {
			delete(want, own)
		}
		got, _, err := parameters(after)
		require.NoError(t, err)
		require.Equal(t, want, got)
		if c := opts.Coalesce; c != nil {
			require.GreaterOrEqual(t, c.MaxBatch, 0)
			require.GreaterOrEqual(t, c.MaxInFlight, 0)
		}
	})
}

// FuzzLine decodes lines of answers, and the bundles of writes in them.
func FuzzLine(f *testing.F) {
	bundle := []byte("\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x01v\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00")
	f.Add([]byte{0, 2}, "c", []byte{0, 0, 0, 0, 0, 0, 0, 7}, []byte("value"), uint64(8))
	f.Add([]byte{0, bundleFamily}, "c", []byte{0, 0, 0, 0, 0, 0, 0, 7}, bundle, uint64(6))
	f.Add([]byte{0, bundleFamily}, "c", []byte(nil), bundle[:20], uint64(1<<63))
	f.Add([]byte{0}, "", []byte{1}, []byte("\x00\x00\x00\x00\x00\x00\x00\x09\xff\xff\xff\xff"), uint64(0))
	f.Fuzz(func(t *testing.T, family []byte, column string, ts, value []byte, at uint64) {
		line := fields{values: [][]byte{family, []byte(column), ts, value}}
		vs := appendVersions(nil, &line, 0)
		size := 0
		for _, v := range vs {
			require.Equal(t, column, v.Column)
			size += len(v.Value)
		}
		require.LessOrEqual(t, size, len(value))
		if line.err == nil && len(family) == 2 && family[0] == 0 && family[1] != bundleFamily {
			require.Len(t, vs, 1)
			require.Equal(t, string(value), string(vs[0].Value))
		}

		line = fields{values: [][]byte{value}}
		v, ok := newestUpTo(&line, 0, rowstore.Timestamp(at))
		if ok {
			require.LessOrEqual(t, uint64(v.TS), at)
			require.LessOrEqual(t, len(v.Value)+bundleHead, len(value))
		}
	})
}
