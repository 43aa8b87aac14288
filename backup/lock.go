package backup

import (
	"errors"
	"fmt"
	"os"
)

// fileLock is the file of an incomplete backup, which lockFile has taken for one call.
type fileLock struct {
	f    *os.File // nil where there are no locks
	path string
}

// named tells whether the file still has its name: somebody may remove it at any time, and another call make one of the same name.
func (l *fileLock) named() (bool, error) {
	at, err := os.Stat(l.path)
	if err == nil && l.f != nil {
		var mine os.FileInfo
		if mine, err = l.f.Stat(); err == nil {
			return os.SameFile(mine, at), nil
		}
	}
	if err == nil {
		return true, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return false, fmt.Errorf("backup: looking at the file: %w", err)
}

// drop removes a file in which nothing was written yet: it is no backup that goes on. One of the same name that is another's stays.
func (l *fileLock) drop() {
	if l.f == nil {
		return
	}
	at, err := l.f.Stat()
	if err != nil || at.Size() > 0 {
		return
	}
	if named, err := l.named(); err == nil && named {
		_ = os.Remove(l.path)
	}
}

func (l *fileLock) release() {
	if l.f != nil {
		_ = l.f.Close()
	}
}
