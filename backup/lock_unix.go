//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package backup

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile takes the file of an incomplete backup for this call alone, until it is released; a process that dies releases it too. A second
// backup of the same path must not write into a file that the first one may complete at any time, nor may the first go on in what the second has
// completed. The error matches ErrInUse if another call has it. Where the file system has no such locks, nothing is locked.
func lockFile(path string) (*fileLock, error) {
	f, _, err := openRegular(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	l := &fileLock{f: f, path: path}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); { //nolint:gosec // a descriptor
	case errors.Is(err, syscall.EWOULDBLOCK):
		l.release()
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	case err != nil:
		return l, nil //nolint:nilerr // no locks here
	}
	// The call that had it before may have given the file its name just now.
	switch named, err := l.named(); {
	case err != nil:
		l.release()
		return nil, err
	case !named:
		l.release()
		return nil, fmt.Errorf("%w, and has just ended: %s", ErrInUse, path)
	}
	return l, nil
}
