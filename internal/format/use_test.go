package format

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func FuzzDecodeUse(f *testing.F) {
	fuzz(f, [][]byte{Use{Revision: 7}.Encode(), Use{Revision: 7, Condemned: true}.Encode(), nil}, DecodeUse, Use.Encode)
}

func TestUse(t *testing.T) {
	t.Parallel()
	for want, u := range map[string]Use{
		"\x01\x00\x00\x00\x00\x00\x00\x00\x01\x02": {Revision: 0x0102},
		"\x01\x01\x7f\xff\xff\xff\xff\xff\xff\xff": {Revision: oracle.Max, Condemned: true},
	} {
		require.Equal(t, want, string(u.Encode()))
		got, err := DecodeUse([]byte(want))
		require.NoError(t, err)
		require.Equal(t, u, got)
	}
	for name, b := range map[string]string{
		"nothing": "", "version": "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "short": "\x01\x00\x00\x00\x00\x00\x00\x00\x01",
		"long": "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00", "flags": "\x01\x02\x00\x00\x00\x00\x00\x00\x00\x01",
		"no revision": "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", "beyond all": "\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		_, err := DecodeUse([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	_, err := DecodeUse([]byte("\x02anything"))
	require.ErrorIs(t, err, rowstore.ErrFormat)
}
