package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSecretsFromFiles has passwords in files, as orchestrators mount them.
func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	parse := func(password string) (*File, error) {
		return Parse([]byte("stores:\n  main: {scheme: redis, addresses: ['db.example:6379'], user: app, password: '"+password+"'}\n"), env)
	}
	for name, c := range map[string]struct{ content, want string }{
		"plain":               {"s3:cr/et@$x", "s3:cr/et@$x"},
		"line":                {"secret\n", "secret"},
		"line of Windows":     {"secret\r\n", "secret"},
		"two lines":           {"secret\n\n", "secret\n"},
		"spaces are its own":  {" secret ", " secret "},
		"looks like a string": {"${PASSWORD}", "${PASSWORD}"},
	} {
		f, err := parse("${file:" + write(name, c.content) + "}")
		require.NoError(t, err, name)
		require.Equal(t, c.want, f.Stores["main"].Password, name)
	}
	f, err := parse("a ${file:" + write("part", "b") + "} c ${EMPTY}$$")
	require.NoError(t, err)
	require.Equal(t, "a b c $", f.Stores["main"].Password)

	// Orchestrators mount a secret as a link to a link.
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Symlink(to, path))
		return path
	}
	write("secret", "mounted")
	link("..data", dir)
	f, err = parse("${file:" + link("db", filepath.Join("..data", "secret")) + "}")
	require.NoError(t, err)
	require.Equal(t, "mounted", f.Stores["main"].Password)

	pipe := filepath.Join(dir, "hidden pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for name, c := range map[string]struct{ path, want string }{
		"pipe":      {pipe, "a pipe or a device"},
		"to a pipe": {link("hidden link", pipe), "a pipe or a device"},
		"device":    {"/dev/zero", "a pipe or a device"},
		"terminal":  {"/dev/tty", ""},
		"relative":  {"hidden", "not absolute"},
		"empty":     {write("empty", ""), "is empty"},
		"line only": {write("line", "\n"), "is empty"},
		"long":      {write("hidden long", strings.Repeat("x", longestSecret+1)), "longer than 65536 bytes"},
		"directory": {dir, "is a directory"},
		"no path":   {"", "not absolute"},
		"missing":   {filepath.Join(dir, "hidden"), "no such file"},
	} {
		_, err := parse("${file:" + c.path + "}")
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorContains(t, err, "stores.main", name)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "hidden", name)
	}
	_, err = parse("${file:" + filepath.Join(dir, "hidden") + "}")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
