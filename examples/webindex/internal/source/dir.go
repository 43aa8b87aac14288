package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
)

// Dir is a tree of HTML files. The URL of a page is the file URL of its absolute
// path, so that relative links between the files lead from page to page; a file
// named index.html has the URL of its directory.
type Dir struct {
	root    string
	base    string // URL of root
	skipBad bool
	files   []dirFile
}

type dirFile struct{ path, url string }

// NewDir makes a source of the files under root whose names end in .html, .htm
// or .xhtml, in any case. Symbolic links below root are not followed. A root that
// does not exist, or is no directory, is an error. With skipBad, malformed files
// are left out and described in the Summary; otherwise the first one is an error
// of Prepare.
func NewDir(root string, skipBad bool) (*Dir, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", root, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", root, unwrapPath(err))
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("directory %s: it is not a directory", root)
	}
	base := fileURL(abs)
	if !strings.HasSuffix(base, "/") {
		base += "/"
	}
	return &Dir{root: abs, base: base, skipBad: skipBad}, nil
}

// unwrapPath takes the operation and the path off, which the caller names.
func unwrapPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func fileURL(abs string) string {
	p := filepath.ToSlash(abs)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: p}).String()
}

// ID implements Source.
func (d *Dir) ID() string { return "dir:" + d.base }

// Complete implements Source.
func (d *Dir) Complete() bool { return true }

// Prepare implements Source.
func (d *Dir) Prepare(ctx context.Context) (Summary, error) {
	sum := Summary{Ignored: make(map[string]int)}
	if err := d.walk(ctx, &sum); err != nil {
		return Summary{}, err
	}

	var mu sync.Mutex
	broken := make(map[string]error)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, f := range d.files {
		g.Go(func() error {
			p, err := f.read(gctx)
			if err == nil {
				err = check(p)
			}
			if err == nil {
				return nil
			}
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			mu.Lock()
			defer mu.Unlock()
			broken[f.path] = err
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Summary{}, err
	}
	kept := d.files[:0]
	for _, f := range d.files { // in the order of the walk, so that the first error is always the same
		if err := broken[f.path]; err == nil {
			kept = append(kept, f)
		} else if err := d.bad(&sum, f.path, err); err != nil {
			return Summary{}, err
		}
	}
	d.files = kept
	if len(d.files) == 0 {
		return Summary{}, fmt.Errorf("directory %s: there is no HTML file in it (%d others)", d.root, sum.Ignored["not an HTML file"])
	}
	sum.Pages = len(d.files)
	return sum, nil
}

// walk lists the HTML files below the root.
func (d *Dir) walk(ctx context.Context, sum *Summary) error {
	seen := make(map[string]string) // URL -> path
	// The separator makes a root that is a symbolic link be followed.
	return filepath.WalkDir(d.root+string(filepath.Separator), func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("directory %s: %w", d.root, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.IsDir():
			return nil
		case !isHTML(e.Name()):
			sum.Ignored["not an HTML file"]++
			return nil
		case !e.Type().IsRegular():
			sum.Ignored["not a regular file"]++
			return nil
		}
		u, err := page.Normalize(fileURL(path))
		if err == nil {
			if other, twice := seen[u]; twice {
				err = fmt.Errorf("it has the same URL as %s", other)
			}
		}
		if err != nil {
			return d.bad(sum, path, err)
		}
		seen[u] = path
		d.files = append(d.files, dirFile{path: path, url: u})
		return nil
	})
}

func (d *Dir) bad(sum *Summary, path string, err error) error {
	if !d.skipBad {
		return fmt.Errorf("file %s: %w", path, unwrapPath(err))
	}
	sum.Bad = append(sum.Bad, fmt.Sprintf("file %s: %v", path, unwrapPath(err)))
	return nil
}

// Items implements Source.
func (d *Dir) Items(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for f := range slices.Values(d.files) {
			if ctx.Err() != nil {
				yield(Item{}, context.Cause(ctx))
				return
			}
			read := func(ctx context.Context) (Page, error) {
				p, err := f.read(ctx)
				if err != nil {
					return Page{}, fmt.Errorf("file %s: %w", f.path, unwrapPath(err))
				}
				return p, nil
			}
			if !yield(Item{URL: f.url, Read: read}, nil) {
				return
			}
		}
	}
}

func (f dirFile) read(ctx context.Context) (Page, error) {
	if err := ctx.Err(); err != nil {
		return Page{}, context.Cause(ctx)
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return Page{}, err
	}
	if info.Size() > page.MaxBody {
		return Page{}, fmt.Errorf("%w: %d bytes, the limit is %d", page.ErrTooLarge, info.Size(), page.MaxBody)
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return Page{}, err
	}
	body, err := page.Decode(data, "")
	if err != nil {
		return Page{}, err
	}
	return Page{URL: f.url, Body: body}, nil
}

func isHTML(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".html", ".htm", ".xhtml":
		return true
	default:
		return false
	}
}
