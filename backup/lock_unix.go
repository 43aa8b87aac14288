//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package backup

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile takes the file of an incomplete backup for this call alone, until release is called; a process that dies releases it too. A second
// backup of the same path must not write into a file that the first one may complete at any time, nor may the first go on in what the second has
// completed. The error matches ErrInUse if another call has it. Where the file system has no such locks, nothing is locked.
func lockFile(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the caller names the file
	if err != nil {
		return nil, fmt.Errorf("backup: opening the file: %w", err)
	}
	release = func() { _ = f.Close() }
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); { //nolint:gosec // a descriptor
	case errors.Is(err, syscall.EWOULDBLOCK):
		release()
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	case err != nil:
		return release, nil //nolint:nilerr // no locks here
	}
	// The call that had it before may have given the file its name just now.
	mine, err := f.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = os.Stat(path); err == nil && os.SameFile(mine, named) {
			return release, nil
		}
	}
	release()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("backup: looking at the file: %w", err)
	}
	return nil, fmt.Errorf("%w, and has just ended: %s", ErrInUse, path)
}
