//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package backup

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// hookedDisk calls hook before each write.
type hookedDisk struct {
	diskFile
	hook func()
}

func (d *hookedDisk) Write(b []byte) (int, error) {
	d.hook()
	return d.diskFile.Write(b)
}

// hookedWrite backs a shop up, and calls hook before the fourth write into the incomplete file.
func hookedWrite(t *testing.T, s *shop, path string, hook func(file string)) error {
	t.Helper()
	writes := 0
	_, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(file string) (diskFile, error) {
		f, err := openDisk(file)
		return &hookedDisk{f, func() {
			if writes++; writes == 4 {
				hook(file)
			}
		}}, err
	}})
	require.Greater(t, writes, 4)
	return err
}

// TestRemovedWhileItIsWritten has somebody remove the incomplete file, and make another one of its name. That one must not pass for the backup.
func TestRemovedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	for name, again := range map[string]bool{"removed": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "backup")
			err := hookedWrite(t, s, path, func(file string) {
				assert.NoError(t, os.Remove(file))
				if again {
					assert.NoError(t, os.WriteFile(file, []byte("another's"), 0o600))
				}
			})
			require.ErrorContains(t, err, "removed")
			require.NoFileExists(t, path)
			if again {
				b, err := os.ReadFile(path + Incomplete)
				require.NoError(t, err)
				require.Equal(t, "another's", string(b))
			}
		})
	}
}

// TestTwoOfOnePath begins a second backup of a path, as cron does while the first one is slow. It is refused, and does the first no harm.
func TestTwoOfOnePath(t *testing.T) {
	t.Parallel()
	s, _, file, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, hookedWrite(t, s, path, func(file string) {
		_, err := Write(t.Context(), s.db, strings.TrimSuffix(file, Incomplete), Options{blockBytes: small})
		assert.ErrorIs(t, err, ErrInUse)
		assert.ErrorIs(t, err, percolator.ErrInvalid)
		assert.ErrorContains(t, err, file)
	}))
	require.NoFileExists(t, path+Incomplete)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, file, 0o600))
	require.Equal(t, contents(t, other), contents(t, path))
}

// TestFailureBeforeTheFirstByte: a call that has written nothing leaves no file, which would pass for a backup that goes on.
func TestFailureBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := Write(ended, s.db, path, Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, path+Incomplete)
	_, err = Write(t.Context(), s.db, path, Options{disk: func(string) (diskFile, error) { return nil, os.ErrPermission }})
	require.ErrorIs(t, err, os.ErrPermission)
	require.NoFileExists(t, path+Incomplete)
	_, err = Peek(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ErrIncomplete)
}
