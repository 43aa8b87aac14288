package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// inTime does what may hang whatever its context says, but does not wait for it for longer than the command may take: Pebble hangs on a full disk when it is opened,
// and a FIFO until somebody writes to it.
func inTime[T any](ctx context.Context, what string, open func() (T, error)) (T, error) {
	type opening struct {
		opened T
		err    error
	}
	opened := make(chan opening, 1)
	go func() {
		x, err := open()
		opened <- opening{x, err}
	}()
	select {
	case o := <-opened:
		return o.opened, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-opened: // what it says is better than what we know
		return o.opened, o.err
	case <-time.After(time.Second): // the process ends soon, and with it the opening
		var none T
		return none, fmt.Errorf("%s: it has not opened in time: %w", what, ctx.Err())
	}
}

// openInput opens a file that is read from. One that cannot be opened is a mistake in the arguments.
func openInput(ctx context.Context, path string) (*os.File, error) {
	f, err := inTime(ctx, "opening the file", func() (*os.File, error) {
		f, err := os.Open(path) //nolint:gosec // the user names the file
		if err != nil {
			return nil, err
		}
		// The first read of a folder fails, too, but as the error of a read, which is none in the arguments.
		if info, err := f.Stat(); err == nil && info.IsDir() {
			_ = f.Close()
			return nil, fmt.Errorf("%s is a folder", path)
		}
		return f, nil
	})
	if err != nil && !errors.Is(err, ctx.Err()) {
		err = usageError{fmt.Errorf("opening the file: %w", err)}
	}
	return f, err
}

// untilDone returns a reader of in whose reads end when ctx does: a terminal, or a pipe that nobody closes, may hang for ever, and no context ends that.
// Another goroutine reads in. It stays until in returns, and what it has read then is lost, so nobody else may read in afterwards. ctx must end
// when nobody reads any more.
func untilDone(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // without an error it is the end
	}()
	return r
}
