package format

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func collected() Collected {
	return Collected{
		All: 5, Tables: []CollectedTable{{[]byte("q"), 7}},
		Whole: Publication{SafePoint: 5, Points: 3, Revision: 2, Cleans: 4, Until: 9, Left: 10, Tries: 1}, Short: Publication{SafePoint: 5, Points: 8},
	}
}

// What was collected counts only beside the very safe points that it is said of.
func TestCollected(t *testing.T) {
	t.Parallel()
	c := collected()
	b, err := c.Encode()
	require.NoError(t, err)
	require.Equal(t, "\x01"+`{"all":5,"tables":[{"table":"cQ==","collected":7}],"whole":{"safepoint":5,"points":3,"revision":2,"cleans":4,"until":9,"left":10,"tries":1},"short":{"safepoint":5,"points":8}}`, string(b))
	back, err := DecodeCollected(b)
	require.NoError(t, err)
	require.Equal(t, c, back)
	require.Equal(t, []Timestamp{7, 5}, []Timestamp{c.Of("q"), c.Of("other")})
	require.Equal(t, Timestamp(5), c.Point(5))
	require.Equal(t, Timestamp(6), c.Point(6), "an older program has published")
	for version, want := range map[Timestamp]Timestamp{3: 7, 8: 7, 9: 11} {
		require.Equal(t, want, c.TablePoint(TableSafePoint{Name: []byte("q"), SafePoint: 11}, version).SafePoint)
	}
	for name, text := range map[string]string{
		"nothing": "", "version": "\x00{}", "no JSON": "\x01{", "nameless": "\x01" + `{"tables":[{}]}`, "tries": "\x01" + `{"short":{"tries":-1}}`,
		"twice": "\x01" + `{"tables":[{"table":"dA=="},{"table":"dA=="}]}`, "no time": "\x01" + `{"whole":{"left":18446744073709551615}}`,
	} {
		_, err := DecodeCollected([]byte(text))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	_, err = DecodeCollected([]byte("\x02{}"))
	require.ErrorIs(t, err, rowstore.ErrFormat)
}
