package source

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/examples/webindex/internal/warc"
)

// Warc is one or more web archives. Its pages are the HTML responses with status
// 200, and the HTML resources; a response 404 or 410 says that the page is gone.
// Where a URL was captured several times, the latest capture counts.
type Warc struct {
	files   []string
	skipBad bool
	latest  map[string]capture
	bad     map[place]bool
}

// place is where a capture stands.
type place struct{ file, record int }

type capture struct {
	place
	date time.Time
}

// NewWarc makes a source of archives. A file that cannot be opened is an error.
// A file that breaks the WARC format is an error of Prepare; so is a capture that
// is malformed in itself (its HTTP, its URL or its HTML), unless skipBad leaves
// it out.
func NewWarc(files []string, skipBad bool) (*Warc, error) {
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", name, unwrapPath(err))
		}
		if info.IsDir() {
			return nil, fmt.Errorf("archive %s: it is a directory", name)
		}
	}
	return &Warc{files: files, skipBad: skipBad}, nil
}

// ID implements Source.
func (w *Warc) ID() string { return "warc" }

// Complete implements Source. An archive holds what a crawl met, so a page that
// it lacks may well exist.
func (w *Warc) Complete() bool { return false }

// Prepare implements Source.
func (w *Warc) Prepare(ctx context.Context) (Summary, error) {
	sum := Summary{Ignored: make(map[string]int)}
	w.latest = make(map[string]capture)
	w.bad = make(map[place]bool)
	for i, name := range w.files {
		err := w.each(ctx, i, func(rec *warc.Record) error {
			p, ignored, err := readCapture(rec)
			if err == nil && ignored == "" {
				err = check(p)
			}
			switch {
			case errors.Is(err, warc.ErrMalformed):
				return err
			case err != nil:
				err = captureError(name, rec, err)
				if !w.skipBad {
					return err
				}
				sum.Bad = append(sum.Bad, err.Error())
				w.bad[place{i, rec.Number}] = true
			case ignored != "":
				sum.Ignored[ignored]++
			default:
				if had, ok := w.latest[p.URL]; !ok || !p.Fetched.Before(had.date) {
					w.latest[p.URL] = capture{place{i, rec.Number}, p.Fetched}
				}
			}
			return nil
		})
		if err != nil {
			return Summary{}, err
		}
	}
	sum.Pages = len(w.latest)
	return sum, nil
}

func captureError(file string, rec *warc.Record, err error) error {
	return fmt.Errorf("%s: record %d at offset %d (%.200q): %w", file, rec.Number, rec.Offset, rec.TargetURI, err)
}

// errStop ends each early without a failure.
var errStop = errors.New("stop")

// Items implements Source.
func (w *Warc) Items(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for i, name := range w.files {
			err := w.each(ctx, i, func(rec *warc.Record) error {
				if w.bad[place{i, rec.Number}] {
					return nil
				}
				p, ignored, err := readCapture(rec)
				if err != nil {
					return captureError(name, rec, err)
				}
				if ignored != "" || w.latest[p.URL].place != (place{i, rec.Number}) {
					return nil
				}
				if !yield(Item{URL: p.URL, Read: func(context.Context) (Page, error) { return p, nil }}, nil) {
					return errStop
				}
				return nil
			})
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(Item{}, err)
				return
			}
		}
	}
}

// each calls fn for every record of a file.
func (w *Warc) each(ctx context.Context, file int, fn func(rec *warc.Record) error) error {
	f, err := os.Open(w.files[file])
	if err != nil {
		return fmt.Errorf("archive %s: %w", w.files[file], unwrapPath(err))
	}
	defer func() { _ = f.Close() }()
	r, err := warc.NewReader(f, w.files[file])
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		rec, err := r.Next()
		if err == io.EOF { //nolint:errorlint // the reader returns exactly io.EOF at the end
			return nil
		}
		if err == nil {
			err = fn(rec)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// readCapture takes the page out of a record. ignored says why a record is no
// page.
func readCapture(rec *warc.Record) (p Page, ignored string, err error) {
	switch rec.Type {
	case "response", "resource":
	default:
		return Page{}, "a record of type " + rec.Type, nil
	}
	scheme, _, _ := strings.Cut(rec.TargetURI, ":")
	switch strings.ToLower(scheme) {
	case "http", "https", "file":
	default:
		return Page{}, "not of http, https or file", nil // DNS answers and the like
	}
	contentType, body := rec.Get("Content-Type"), rec.Block
	status := http.StatusOK
	if rec.Type == "response" {
		if t, _, _ := mime.ParseMediaType(contentType); t != "application/http" {
			return Page{}, "a response that is not HTTP", nil
		}
		resp, err := http.ReadResponse(bufio.NewReader(rec.Block), nil)
		if err != nil {
			return Page{}, "", fmt.Errorf("malformed HTTP response: %w", err)
		}
		defer func() { _ = resp.Body.Close() }()
		status, contentType, body = resp.StatusCode, resp.Header.Get("Content-Type"), resp.Body
		if status == http.StatusOK && isHTMLType(contentType) {
			if body, ignored, err = decompress(resp); ignored != "" || err != nil {
				return Page{}, ignored, err
			}
		}
	}
	gone := status == http.StatusNotFound || status == http.StatusGone
	switch {
	case !gone && status != http.StatusOK:
		return Page{}, "a status that is neither 200 nor 404 nor 410", nil
	case !gone && !isHTMLType(contentType):
		return Page{}, "not HTML", nil
	}
	p = Page{Gone: gone, Fetched: rec.Date}
	if p.URL, err = page.Normalize(rec.TargetURI); err != nil {
		return Page{}, "", err
	}
	if gone {
		return p, "", nil
	}
	data, err := io.ReadAll(io.LimitReader(body, page.MaxBody+1))
	if err != nil {
		// A crawler that cut a page off says so in WARC-Truncated.
		if rec.Get("WARC-Truncated") == "" || errors.Is(err, warc.ErrMalformed) {
			return Page{}, "", fmt.Errorf("malformed HTTP body: %w", err)
		}
	}
	p.Body, err = page.Decode(data, contentType)
	return p, "", err
}

func isHTMLType(contentType string) bool {
	t, _, _ := mime.ParseMediaType(contentType)
	return t == "text/html" || t == "application/xhtml+xml"
}

func decompress(resp *http.Response) (body io.Reader, ignored string, err error) {
	switch enc := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		return resp.Body, "", nil
	case "gzip", "x-gzip":
		body, err = gzip.NewReader(resp.Body)
	case "deflate": // zlib by the standard, without its header by some servers
		br := bufio.NewReader(resp.Body)
		if head, _ := br.Peek(2); len(head) == 2 && head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
			body, err = zlib.NewReader(br)
		} else {
			body = flate.NewReader(br)
		}
	default:
		return nil, "content encoding " + enc, nil
	}
	if errors.Is(err, io.EOF) {
		return bytes.NewReader(nil), "", nil // an empty body
	}
	if err != nil {
		return nil, "", fmt.Errorf("malformed HTTP body: %w", err)
	}
	return body, "", nil
}
