package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
)

// Info is what Verify finds.
type Info struct {
	ID       string
	Snapshot percolator.Timestamp // Snapshot.Time is when the backup began
	Rows     int64
	Cells    int64
	Bytes    int64

	checked checked // what Restore needs to know of the whole file
}

// Verify reads all of a backup, and checks it: that it is complete, and every byte as it was written. It needs no database.
// progress may be nil; see Options.
//
// Errors: ErrIncomplete, ErrDamaged, percolator.ErrFormat if the file is no backup or a newer version of this library wrote it,
// percolator.ErrInvalid for what is no regular file, as a pipe, those of the file and of ctx.
func Verify(ctx context.Context, path string, progress func(Progress)) (Info, error) {
	c, err := check(ctx, path, progress)
	if err != nil {
		return Info{}, err
	}
	return Info{ID: c.head.ID, Snapshot: c.head.Snapshot, Rows: c.end.Rows, Cells: c.end.Cells, Bytes: c.bytes, checked: c}, nil
}

// Peek reads the beginning of a backup, to tell soon that a file is none. Rows and Cells of the Info are 0. Errors are those of Verify,
// without what only the rest of the file shows.
func Peek(path string) (Info, error) {
	f, size, err := openFile(path)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = f.Close() }()
	r, err := newReader(f)
	if err != nil {
		return Info{}, err
	}
	defer r.close()
	h, err := r.begin()
	if err == nil {
		_, err = h.catalog()
	}
	if err != nil {
		return Info{}, err
	}
	return Info{ID: h.ID, Snapshot: h.Snapshot, Bytes: size}, nil
}

// checked is a file that is as it was written.
type checked struct {
	head    head
	catalog format.Catalog
	end     ending
	bytes   int64
	last    sum // of the whole file
}

// catalog decodes the catalog of a backup.
func (h *head) catalog() (format.Catalog, error) {
	c, err := format.DecodeCatalog(h.Catalog)
	if err != nil {
		return c, fmt.Errorf("backup: %w", err)
	}
	return c, nil
}

// openFile opens a backup, and tells its size.
func openFile(path string) (*os.File, int64, error) {
	f, info, err := openRegular(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		if _, ierr := os.Lstat(path + Incomplete); ierr == nil {
			return nil, 0, fmt.Errorf("%w: there is %s alone: its backup was cut off; back up to %s again, and it goes on from there", ErrIncomplete, path+Incomplete, path)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func check(ctx context.Context, path string, progress func(Progress)) (checked, error) {
	var c checked
	f, size, err := openFile(path)
	if err != nil {
		return c, err
	}
	defer func() { _ = f.Close() }()
	c.bytes = size
	tell := teller{to: progress}
	err = c.read(f, func(h blockHead, at int64) error {
		tell.progress(h.rows, h.cells, at, float64(at)/float64(max(size, 1)))
		return ctx.Err()
	})
	return c, err
}

// read reads a whole backup and checks that it decodes.
func (c *checked) read(f io.Reader, each func(h blockHead, at int64) error) error {
	r, err := newReader(f)
	if err != nil {
		return err
	}
	defer r.close()
	if c.head, err = r.begin(); err != nil {
		return err
	}
	if c.catalog, err = c.head.catalog(); err != nil {
		return err
	}
	for {
		kind, b, err := r.next()
		if err != nil {
			return err
		}
		switch kind {
		case frameEnd:
			c.last = r.last
			c.end, err = decodeEnding(b)
			return err
		case frameData:
			h, _, err := decodeBlock(b)
			if err != nil {
				return err
			}
			if err := each(h, r.at); err != nil {
				return err
			}
		default:
			return r.damaged()
		}
	}
}
