package shown

import (
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                             "",
		"plain 100% é\n\tline":         "plain 100% é\n\tline",
		"\x1b]0;x\x07":                 "%1B]0;x%07",
		"\u202e\u009b\r":               "%E2%80%AE%C2%9B%0D",
		"\xff\ufffd":                   "%FF\ufffd",
		"a no-break\u00a0space stays?": "a no-break%C2%A0space stays?",
	} {
		require.Equal(t, want, Text(in), "%q", in)
	}
	require.Equal(t, "a%62", Escape("ab", func(at int, r rune) bool { return at == 0 && r == 'a' }))
}

func TestCount(t *testing.T) {
	t.Parallel()
	require.Equal(t, "7", Count(7, false))
	require.Equal(t, "7+", Count(7, true))
}

// FuzzText has nothing left that is not printed, however damaged the text is.
func FuzzText(f *testing.F) {
	f.Add("\xff\x1b[2J\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		out := Text(s)
		require.True(t, utf8.ValidString(out))
		for _, r := range out {
			require.True(t, r == '\n' || r == '\t' || unicode.IsPrint(r), "%q", out)
		}
	})
}
