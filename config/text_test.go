package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextIsTakenAsWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0123", "1.10", "0x10", "0o17", "1_000", "1e3", "+5", "-0", "true", "False", "no", ".inf", "-.Inf", ".nan", "1:30", "2024-01-02",
		"a b", "a+b", "a%20b", "a&b=c", "1.0.0", "00", "12345678901234567890123",
	} {
		for _, written := range []string{text, "'" + text + "'", `"` + text + `"`} {
			f, err := Parse([]byte("stores:\n  a:\n    scheme: redis\n    password: "+written+"\n    parameters: {k: "+written+"}\n"+
				"    addresses: ["+written+"]\ntables:\n  "+text+": a\n"), env)
			require.NoError(t, err, written)
			require.Equal(t, text, f.Stores["a"].Password, written)
			require.Equal(t, text, f.Stores["a"].Parameters["k"], written)
			require.Equal(t, []string{text}, f.Stores["a"].Addresses, written)
			require.Equal(t, map[string]string{text: "a"}, f.Tables)
		}
	}
	f, err := Parse([]byte("stores:\n  a: {url: 'redis://h', password: !!str 0123}\n"), env)
	require.NoError(t, err)
	require.Equal(t, "0123", f.Stores["a"].Password)
	f, err = Parse([]byte("stores:\n  a: &one\n    url: 'memory:'\n    password:\n  b: *one\n  c:\n    url: |-\n      memory:\nauthoritative: a\n"), env)
	require.NoError(t, err)
	require.Equal(t, Store{URL: "memory:"}, f.Stores["a"])
	require.Equal(t, f.Stores["a"], f.Stores["b"])
	require.Equal(t, "memory:", f.Stores["c"].URL)
}

func TestWhatIsNoTextIsRefused(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"stores:\n  a:\n    url: 'memory:'\n    password: ~\n":                  "[4:15] null is no text",
		"stores:\n  a:\n    url: 'memory:'\n    password: null\n":               "[4:15] null is no text",
		"stores:\n  a:\n    url: ['memory:']\n":                                 "[3:10] not a text",
		"stores:\n  a: {url: 'memory:'}\n---\nstores:\n  b: {url: 'memory:'}\n": "[4:7] a second YAML document",
		"stores:\n  a: {url: 'memory:'}\n---\nx\n":                              "a second YAML document",
		"stores:\n  a: {url: 'memory:'}\n  a: {url: 'memory:'}\n":               "[3:3]",
		"stores:\n  a: {url: 'memory:'}\nlimits: {row: 0x10}\n":                 "[3:15] not a number",
		"stores:\n  a: {url: 'memory:'}\nlimits: {row: 010}\n":                  "[3:15] not a number",
		"stores:\n  a: {url: 'memory:'}\nlimits: {row: '10'}\n":                 "[3:15] not a number",
		"stores:\n  a: {url: 'memory:'}\ntelemetry: {metrics: yes}\n":           "[3:22] neither true nor false",
		"stores:\n  a: {url: 'memory:'}\nsession_lease: 5\n":                    "[3:16] it is not a duration",
		"stores:\n  a: &x {url: 'memory:'}\n  b: {<<: *x}\nauthoritative: a\n":  "[3:7] merge keys",
		"stores:\n  a: *x\n":                   "[2:6] an alias of no anchor",
		"stores: &x\n  a: *x\n":                "[2:3] no such key",
		"stores:\n  a: {url: !!binary aGk=}\n": "[2:12] a tag",
		// A password that begins so would be empty.
		"stores:\n  a:\n    password: &abc\n    url: 'redis://h'\n":   "[3:15] an anchor of nothing",
		"stores:\n  a:\n    url: 'redis://h'\n    password: !!str\n":  "[4:15] a tag of nothing",
		"stores:\n  a: &x\n  b: {url: 'memory:'}\nauthoritative: b\n": "an anchor of nothing",
	} {
		_, err := Parse([]byte(file), env)
		require.ErrorIs(t, err, ErrInvalid, file)
		require.ErrorContains(t, err, want, file)
	}
	// A document needs no marker, and may have one, and an end.
	for _, file := range []string{"---\nstores:\n  a: {url: 'memory:'}\n", "stores:\n  a: {url: 'memory:'}\n---\n", "stores:\n  a: {url: 'memory:'}\n...\n", "# a comment\n---\nstores:\n  a: {url: 'memory:'}\n"} {
		f, err := Parse([]byte(file), env)
		require.NoError(t, err, file)
		require.Len(t, f.Stores, 1, file)
	}
}

// secretFiles have a secret in every place where one may stand: SECRET stands for it.
var secretFiles = []string{
	"stores:\n  main:\n    url: redis://user:SECRET@host:6379/0?prefix=a\n    parameters: {pool: 3}\nsession_lease: 5s\n",
	"stores:\n  main:\n    url: \"nowhere://user:SECRET@host:6379/0?password=SECRET\"\n",
	"stores:\n  main:\n    url: nowhere://host:6379\n    user: shop\n    password: SECRET\n",
	"stores:\n  main: {url: 'nowhere://host:6379', password: 'SECRET'}\n",
	"stores:\n  main:\n    scheme: nowhere\n    addresses: [\"user:SECRET@host:1\", \"SECRET@host:2\"]\n    path: SECRET\n    parameters:\n      password: SECRET\n      listen: postgres://u:SECRET@h/d\n",
	"stores:\n  main:\n    url: nowhere://u:${PW}@host\n    parameters: {password: '${PW}'}\n",
	"stores:\n  main:\n    url: ${PW}\n",
	"stores:\n  main:\n    url: SECRET@host:6379\n  other: {url: 'memory:'}\nauthoritative: other\n",
	"stores:\n  main:\n    url: 'nowhere://host'\n    user: SECRET\n    password: |\n      SECRET\n",
}

// TestErrorsShowNoSecret spoils files at every place in many ways, and looks for any part
// of the secret in what is said about them.
func TestErrorsShowNoSecret(t *testing.T) {
	t.Parallel()
	failed, opened := 0, 0
	// What stands before a secret, or behind it, is the same file for each of them: it is
	// judged once, unless the file asks for the secret.
	judged := map[string]bool{}
	for _, secret := range []string{"hunter2PASS", "hun:ter2#PA@SS", "h%zzunter2 PASS", "hunter2$PASS", "hunter${PaSS", "hunter2${PaSS}x", "hunter2[PASS]{x", "'hunter2\"PASS", "hunter2?PASS=1&x"} {
		asked := false
		lookup := func(name string) (string, bool) {
			asked = true
			return secret, name == "PW"
		}
		judge := func(file string) {
			if judged[file] {
				return
			}
			asked = false
			f, err := Parse([]byte(file), lookup)
			judged[file] = !asked
			if err == nil {
				var s interface{ Close() error }
				if s, err = f.OpenStore(t.Context()); err == nil {
					require.NoError(t, s.Close())
					return
				}
				opened++
			}
			failed++
			for _, part := range []string{"hunt", "unter", "PASS", "PaSS", "ter2"} {
				if strings.Contains(err.Error(), part) {
					require.FailNow(t, "an error shows a part of the secret", "%v\nin\n%s", err, file)
				}
			}
			require.False(t, errors.Is(err, ErrInvalid) && strings.Contains(err.Error(), "\n"), "an error of one line: %q", err)
		}
		for _, file := range secretFiles {
			file = strings.ReplaceAll(file, "SECRET", secret)
			judge(file)
			for i := range file {
				judge(file[:i])              // cut off
				judge(file[i:])              // its beginning lost
				judge(file[:i] + file[i+1:]) // a byte missing
				for j, more := range []string{"\t", "\n", " ", ":", ": ", "\"", "'", "{", "}", "[", "]", ",", "@", "/", "?", "#", "&", "*", "!", "|", "%", "$", "${", "~", "---\n", "\x00", "\xff"} {
					if (i+j)%4 == 0 || !testing.Short() && (i+j)%2 == 0 {
						judge(file[:i] + more + file[i:])
					}
				}
			}
			lines := strings.SplitAfter(file, "\n")
			for i := range lines { // indented wrongly, or standing alone
				judge(strings.Join(lines[:i], "") + "  " + strings.Join(lines[i:], ""))
				judge(strings.Join(lines[:i], "") + strings.TrimLeft(lines[i], " ") + strings.Join(lines[i+1:], ""))
				judge(lines[i])
				judge(fmt.Sprintf("%s: x\n%s", strings.TrimSpace(lines[i]), file))
			}
		}
	}
	t.Logf("%d errors, %d of them on opening", failed, opened)
	require.Greater(t, failed, 1000)
	require.Greater(t, opened, 100)
}
