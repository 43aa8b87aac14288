package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What the parser of YAML would change without a word is refused.
func TestTextThatTheParserChanges(t *testing.T) {
	t.Parallel()
	parse := func(password string) (string, error) {
		f, err := Parse([]byte("stores:\n  main:\n    scheme: redis\n    addresses: [\"h:1\"]\n    password: "+password+"\n"),
			func(string) (string, bool) { return "", false })
		if err != nil {
			return "", err
		}
		return f.Stores["main"].Password, nil
	}
	for _, bad := range []string{"a\tb", "a \t b", "x # c\n    user: a\tb", "\xff\xfe", "\"a\xe9\"", "x # \xff"} {
		_, err := parse(bad)
		require.ErrorIs(t, err, ErrInvalid, "%q", bad)
		require.ErrorContains(t, err, ": [", "%q", bad)
	}
	for text, want := range map[string]string{
		"\"a\tb\"": "a\tb", "'a\tb'": "a\tb", "\tab": "ab", "ab\t": "ab", "ab\t# c": "ab", "\"aé\"": "aé", "|-\n      a\tb": "a\tb",
	} {
		got, err := parse(text)
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
}

// A parameter that would be lost, or of which only one of two values would count, is refused.
func TestParametersBesideAURL(t *testing.T) {
	t.Parallel()
	for _, s := range []Store{
		{URL: "redis://h/0#x", Parameters: map[string]string{"prefix": "a"}},
		{URL: "redis://h/0?prefix=s3cr3t", Parameters: map[string]string{"prefix": "a"}},
		{URL: "redis://h/0?x=1&pre%66ix", Parameters: map[string]string{"prefix": "a"}},
	} {
		_, err := s.url()
		require.Error(t, err, s.URL)
		require.NotContains(t, err.Error(), "s3cr3t")
	}
	u, err := (&Store{URL: "redis://h/0?x=1", Parameters: map[string]string{"prefix": "a"}}).url()
	require.NoError(t, err)
	require.Equal(t, "redis://h/0?x=1&prefix=a", u)
}
