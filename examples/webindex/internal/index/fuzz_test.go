package index

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
)

// FuzzDecode decodes the stored values: garbage is an error, and what is taken can be
// worked with.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "12\nterm\t1\t2\n", "12\nterm\t1\n", "-400\n", "9223372036854775807\na\t9223372036854775807\t1", "term\t17\n", "http://a/\tb\tc\n", "loaded hash 12", "loaded hash", "x\x00ffff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if words, terms, err := decodeTerms(b); err == nil {
			for term, n := range terms {
				w := weight(n, 0, words)
				require.True(t, w >= 1 && w <= 2200, "%q weighs %d", term, w)
			}
			p := &page.Page{Words: words, Terms: terms}
			again, termsAgain, err := decodeTerms(encodeTerms(p))
			require.NoError(t, err)
			require.Equal(t, words, again)
			require.Equal(t, terms, termsAgain)
		} else {
			require.ErrorIs(t, err, errStored)
		}
		if weights, err := decodeWeights(b); err == nil {
			for term := range weights {
				require.NotContains(t, term, "\t")
			}
		} else {
			require.ErrorIs(t, err, errStored)
		}
		for target, anchors := range decodeLinks(b) {
			require.NotContains(t, target, "\t")
			require.NotContains(t, anchors, "\n")
			require.Equal(t, anchors, strings.Join(splitAnchors([]byte(anchors)), "\t"))
		}
		if _, _, err := decodeChange(string(b), b); err != nil {
			require.ErrorIs(t, err, errStored)
		}
	})
}
