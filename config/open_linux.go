package config

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openFile opens a file to read. A pipe is opened at once, too, and awaited instead, since no deadline ends an opening: see await.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the caller names the file
}

// await waits until somebody has written to a pipe, or opened it and gone, or until the deadline of file. Before that a read of a pipe
// that was opened so would find its end.
func await(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor is small
		return n > 0 || err != nil
	})
}
