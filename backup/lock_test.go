//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package backup

import (
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

// TestRemovedWhileItIsWritten has somebody remove the incomplete file, and make another one of its name. That one must not pass for the backup.
func TestRemovedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	for name, again := range map[string]bool{"removed": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "backup")
			writes := 0
			_, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
				f, err := openDisk(path)
				return &hookedDisk{f, func() {
					if writes++; writes == 4 {
						assert.NoError(t, os.Remove(path))
						if again {
							assert.NoError(t, os.WriteFile(path, []byte("another's"), 0o600))
						}
					}
				}}, err
			}})
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
	writes := 0
	_, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
		f, err := openDisk(path)
		return &hookedDisk{f, func() {
			if writes++; writes == 4 {
				_, err := Write(t.Context(), s.db, strings.TrimSuffix(path, Incomplete), Options{blockBytes: small})
				assert.ErrorIs(t, err, ErrInUse)
				assert.ErrorIs(t, err, percolator.ErrInvalid)
				assert.ErrorContains(t, err, path)
			}
		}}, err
	}})
	require.NoError(t, err)
	require.Greater(t, writes, 4)
	require.NoFileExists(t, path+Incomplete)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, file, 0o600))
	require.Equal(t, contents(t, other), contents(t, path))
}
