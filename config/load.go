package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Load reads and checks a file. It opens nothing else. The file may be a pipe, as a shell makes of a
// program that decrypts it; Load waits until somebody has written it. Errors that match ErrInvalid name
// the file and, where they can, line and column; they hold no value of the
// environment.
func Load(path string) (*File, error) { return load(context.Background(), path) }

func load(ctx context.Context, path string) (*File, error) {
	b, err := read(ctx, path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(b, os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return f, nil
}

// read reads a file, or gives up when ctx ends: a pipe hangs until somebody writes to it. Another goroutine reads. On Linux it ends with
// ctx; elsewhere the opening of a pipe has no end of its own, and the goroutine stays in it until somebody opens the pipe to write.
func read(ctx context.Context, path string) ([]byte, error) {
	type content struct {
		bytes []byte
		err   error
	}
	done := make(chan content, 1)
	ended := func() ([]byte, error) {
		return nil, fmt.Errorf("config: reading %s: %w", filepath.Base(path), ctx.Err())
	}
	if ctx.Err() != nil {
		return ended()
	}
	go func() {
		b, err := readFile(ctx, path)
		done <- content{b, err}
	}()
	select {
	case c := <-done:
		if c.err != nil && ctx.Err() != nil { // the end of ctx is why it ended
			return ended()
		}
		return c.bytes, c.err
	case <-ctx.Done():
		return ended()
	}
}

func readFile(ctx context.Context, path string) ([]byte, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	// A regular file has no deadlines, and needs none.
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	if err := await(file); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(file, longestFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("config: %w", err)
	case len(b) > longestFile:
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), errLong)
	}
	return b, nil
}

// Parse does what Load does, for the content of a file and any source of environment
// variables; nil has none.
func Parse(content []byte, env func(name string) (string, bool)) (*File, error) {
	var f File
	if err := decode(content, &f); err != nil {
		return nil, err
	}
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	if err := f.expand(env); err != nil {
		return nil, err
	}
	return &f, f.check()
}

// expand puts what variables and files hold into the strings of the stores. It runs
// after parsing, so that a value is never taken for YAML.
func (f *File) expand(env func(string) (string, bool)) error {
	e := expansion{env: env, room: mostExpanded}
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		s := f.Stores[name]
		for _, p := range []*string{&s.URL, &s.Scheme, &s.Path, &s.User, &s.Password} {
			if err := e.expand(p); err != nil {
				return fmt.Errorf("%w: stores.%s: %w", ErrInvalid, shown(name), err)
			}
		}
		for i := range s.Addresses {
			if err := e.expand(&s.Addresses[i]); err != nil {
				return fmt.Errorf("%w: stores.%s.addresses: %w", ErrInvalid, shown(name), err)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(s.Parameters)) {
			v := s.Parameters[k]
			if err := e.expand(&v); err != nil {
				return fmt.Errorf("%w: stores.%s.parameters.%s: %w", ErrInvalid, shown(name), shown(k), err)
			}
			s.Parameters[k] = v
		}
		f.Stores[name] = s
	}
	return nil
}

// expansion puts values into strings.
type expansion struct {
	env  func(string) (string, bool)
	room int // how many bytes more the values may bring in, since a short name may stand for a long text often
}

func (e *expansion) expand(s *string) error {
	var b strings.Builder
	for rest := *s; ; {
		before, after, found := strings.Cut(rest, "$")
		b.WriteString(before)
		switch {
		case !found:
			*s = b.String()
			return nil
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			rest = after[1:]
		case strings.HasPrefix(after, "{"):
			name, tail, closed := strings.Cut(after[1:], "}")
			if !closed || name == "" {
				return errors.New("a ${ without a name and a }; write $$ for a $ that stands for itself")
			}
			v, err := value(name, e.env)
			if err != nil {
				return err
			}
			if e.room -= len(v); e.room < 0 {
				return fmt.Errorf("what variables and files stand for is longer than %d bytes in all", mostExpanded)
			}
			b.WriteString(v)
			rest = tail
		default:
			return errors.New("a $ that is neither ${NAME}, ${file:PATH} nor $$; write $$ for a $ that stands for itself")
		}
	}
}

// value is what ${name} stands for.
func value(name string, env func(string) (string, bool)) (string, error) {
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		return secret(path)
	}
	v, ok := env(name)
	switch {
	case ok:
		return v, nil
	case !variable.MatchString(name):
		return "", errors.New("an environment variable, whose name is not shown, is not set: for a $ that stands for itself write $$")
	}
	return "", fmt.Errorf("the environment variable %s is not set; set it, or write $$ for a $ that stands for itself", name)
}
