package percolator

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestStoredCell(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 1, 'a', 'p', 0xff}), 1, 8).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		c := Cell{name.Draw(t, "table"), name.Draw(t, "row"), name.Draw(t, "column")}
		require.Equal(t, c, c.stored().public())
		require.Equal(t, c.Row, c.stored().Row)
	})
}

func TestCellString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "t/r/c", Cell{"t", "r", "c"}.String())
	require.Equal(t, `"a/b"/"\x00"/"é"`, Cell{"a/b", "\x00", "é"}.String())
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{'a', '/', '"', '\\', 0, 0xff}), 1, 4).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a := Cell{name.Draw(t, "t1"), name.Draw(t, "r1"), name.Draw(t, "c1")}
		b := Cell{name.Draw(t, "t2"), name.Draw(t, "r2"), name.Draw(t, "c2")}
		require.Equal(t, a == b, a.String() == b.String())
	})
}
