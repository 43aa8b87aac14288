package percolator

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzStoredName takes stored names apart: every name is a user's or the library's own,
// never both, and is put together again as it was.
func FuzzStoredName(f *testing.F) {
	for _, s := range []string{"", "a", "\x00", "\x00\x00", "\x00\x00a", tableCatalog, ackColumn("observer", "column"), parkedColumn("o", "\x00\x00c"), "\x00a\x00", "\x00a\xff\xffx"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		name, ok := unescape(stored)
		require.Equal(t, !ok, reserved(stored))
		if ok {
			require.Equal(t, stored, escape(name))
		}
		prefix, observer, column, ok := splitOwnColumn(stored)
		if !ok {
			return
		}
		require.True(t, reserved(stored))
		require.Equal(t, stored, ownColumn(prefix, observer, column))
	})
}
