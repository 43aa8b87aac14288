package backup

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openRegular opens the file of a backup, and tells what it is. A backup is read more than once, also while it is written, so a pipe will not do. One that nobody writes to would hold
// up the opening without the flag, which does nothing to a regular file.
func openRegular(path string, flag int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600) //nolint:gosec // the caller names the file
	if err != nil {
		// A folder cannot be opened to write, nor a socket at all.
		if info, serr := os.Stat(path); serr == nil && !info.Mode().IsRegular() {
			return nil, nil, irregular(path)
		}
		return nil, nil, fmt.Errorf("backup: opening the file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("backup: looking at the file: %w", err)
	}
	if !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, nil, irregular(path)
	}
	return f, info, nil
}

func irregular(path string) error {
	return invalid("%s is no regular file, as a pipe, a device or a folder is none: a backup is read more than once", path)
}
