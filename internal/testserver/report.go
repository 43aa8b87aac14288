package testserver

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// ran holds what Ran was told, by kind.
var ran struct {
	sync.Mutex
	lines []string
}

// Ran notes what tests of a kind of store ran against ("tikv", "client-go's mock
// cluster"). `make test` prints the notes of every package at the end of the run,
// each once: a suite that ran against less than one might think says so.
func Ran(kind, against string) {
	line := kind + ": " + against
	ran.Lock()
	defer ran.Unlock()
	if !slices.Contains(ran.lines, line) {
		ran.lines = append(ran.lines, line)
	}
}

// writeReport puts the notes of this package into a file of its own in the directory
// that PERCOLATOR_TEST_REPORT names. It stays there while go test answers from its
// cache, which is why it is not written with package os: a test that is seen to
// write a file of the module is not cached.
func writeReport() error {
	dir := os.Getenv("PERCOLATOR_TEST_REPORT")
	ran.Lock()
	defer ran.Unlock()
	if dir == "" || len(ran.lines) == 0 {
		return nil
	}
	name := filepath.Base(os.Args[0])
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		name = strings.ReplaceAll(info.Path, "/", "_")
	}
	slices.Sort(ran.lines)
	text := []byte(strings.Join(ran.lines, "\n") + "\n")
	fd, err := syscall.Open(filepath.Join(dir, name), syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return errors.New("testserver: note what ran: " + err.Error())
	}
	_, err = syscall.Write(fd, text)
	return errors.Join(err, syscall.Close(fd))
}
