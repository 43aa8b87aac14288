//go:build !linux

package config

import "os"

// openFile opens a file to read, and hangs while nobody writes to it, if it is a pipe.
func openFile(path string) (*os.File, error) {
	return os.Open(path) //nolint:gosec // the caller names the file
}

func await(*os.File) error { return nil }
