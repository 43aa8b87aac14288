package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const longestSecret = 64 << 10

// secret reads a file with a secret. Its errors do not show the path: that may be a secret in the wrong place.
func secret(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("the path after ${file: is not absolute")
	}
	// A pipe that nobody writes to would hold up the opening without this flag. It does nothing to a regular file.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // whoever writes the configuration names the file
	if err != nil {
		return "", unreadable(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	switch info, err := file.Stat(); {
	case err != nil:
		return "", unreadable(err)
	case info.IsDir():
		return "", errors.New("what ${file: names is a directory")
	case !info.Mode().IsRegular():
		return "", errors.New("what ${file: names is a pipe or a device; name a regular file, or a link to one")
	}
	b, err := io.ReadAll(io.LimitReader(file, longestSecret+1))
	if err != nil {
		return "", unreadable(err)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case len(b) > longestSecret:
		return "", fmt.Errorf("the file that ${file: names is longer than %d bytes", longestSecret)
	case s == "":
		return "", errors.New("the file that ${file: names is empty")
	}
	return s, nil
}

func unreadable(err error) error {
	if at := new(fs.PathError); errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("reading the file that ${file: names: %w", err)
}
