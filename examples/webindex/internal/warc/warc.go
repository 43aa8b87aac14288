// Package warc reads web archives in the WARC format, versions 1.0 and 1.1
// (ISO 28500), plain or compressed with gzip, one member for each record or
// otherwise.
//
// It is strict: what breaks the format is an error that says where. An archive
// that was cut off in the middle is such an error.
package warc

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// ErrMalformed is matched, with errors.Is, by every error about the format.
var ErrMalformed = errors.New("malformed WARC")

// Error says where an archive breaks the format. It matches ErrMalformed.
type Error struct {
	// File is the name that NewReader was given.
	File string
	// Record counts the records from 1.
	Record int
	// Offset is where the record begins in the file. In a compressed file it is
	// where the gzip member begins that holds the record's first byte.
	Offset int64
	// Err says what is wrong.
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: %s: record %d at offset %d: %v", ErrMalformed, e.File, e.Record, e.Offset, e.Err)
}

// Is makes errors.Is(err, ErrMalformed) hold.
func (e *Error) Is(target error) bool { return target == ErrMalformed }

func (e *Error) Unwrap() error { return e.Err }

const (
	maxLine    = 64 << 10
	maxHeaders = 1000
)

// Record is one record of an archive.
type Record struct {
	// Type is WARC-Type: "response", "resource", "revisit", ...
	Type string
	// TargetURI is WARC-Target-URI, without the angle brackets that some writers
	// put around it; empty where the record has none.
	TargetURI string
	// Date is WARC-Date.
	Date time.Time
	// Length is the number of bytes of the block.
	Length int64
	// Block reads the record's content, until the next call of Reader.Next.
	Block io.Reader
	// Number and Offset are as in Error.
	Number int
	Offset int64

	header map[string]string
}

// Get returns a header field by its name, in any case; "" where there is none.
func (r *Record) Get(name string) string { return r.header[strings.ToLower(name)] }

// Reader reads the records of an archive in order. It is for one goroutine.
type Reader struct {
	file   string
	in     *stream
	br     *bufio.Reader // over in
	block  *io.LimitedReader
	number int
	offset int64 // of the current record
	err    error
}

// NewReader reads the archive in r. name stands in errors. Whether the archive
// is compressed is found out from its first bytes, not from its name.
func NewReader(r io.Reader, name string) (*Reader, error) {
	raw := &counter{br: bufio.NewReaderSize(r, 64<<10)}
	magic, err := raw.br.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	in := &stream{raw: raw, compressed: len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b}
	return &Reader{file: name, in: in, br: bufio.NewReaderSize(in, 64<<10)}, nil
}

// Next returns the next record, or io.EOF after the last one. It passes over what
// was not read of the block before. After an error it returns that error again.
func (r *Reader) Next() (*Record, error) {
	if r.err != nil {
		return nil, r.err
	}
	rec, err := r.next()
	if err != nil {
		if err != io.EOF { //nolint:errorlint // next returns exactly io.EOF at a clean end
			err = &Error{File: r.file, Record: max(r.number, 1), Offset: r.offset, Err: err}
		}
		r.err = err
		return nil, err
	}
	return rec, nil
}

func (r *Reader) next() (*Record, error) {
	if r.block != nil {
		if err := r.endBlock(); err != nil {
			return nil, err
		}
	}
	if _, err := r.br.Peek(1); err != nil && r.number > 0 {
		if err == io.EOF { //nolint:errorlint // the only clean end; io.ErrUnexpectedEOF and wrapped ones are not
			return nil, io.EOF
		}
		return nil, fmt.Errorf("after the block: %w", err)
	}
	r.number++
	r.offset = r.in.position(r.in.n - int64(r.br.Buffered()))

	version, err := r.line()
	switch {
	case err != nil:
		return nil, inside(err, "the version line")
	case version != "WARC/1.0" && version != "WARC/1.1":
		return nil, fmt.Errorf("begins with %.40q, want WARC/1.0 or WARC/1.1", version)
	}
	header, err := r.header()
	if err != nil {
		return nil, err
	}
	rec := &Record{header: header, Type: strings.ToLower(header["warc-type"]), Number: r.number, Offset: r.offset}
	for _, name := range []string{"WARC-Type", "WARC-Record-ID", "WARC-Date", "Content-Length"} {
		if header[strings.ToLower(name)] == "" {
			return nil, fmt.Errorf("the field %s is missing", name)
		}
	}
	rec.TargetURI = header["warc-target-uri"]
	if strings.HasPrefix(rec.TargetURI, "<") && strings.HasSuffix(rec.TargetURI, ">") {
		rec.TargetURI = rec.TargetURI[1 : len(rec.TargetURI)-1]
	}
	// 1.1 allows fractions of a second, which this layout takes too.
	if rec.Date, err = time.Parse(time.RFC3339, header["warc-date"]); err != nil {
		return nil, fmt.Errorf("WARC-Date: %w", err)
	}
	length, err := strconv.ParseUint(header["content-length"], 10, 63)
	if err != nil {
		return nil, fmt.Errorf("Content-Length: %w", err)
	}
	rec.Length = int64(length) //nolint:gosec // 63 bits
	r.block = &io.LimitedReader{R: r.br, N: rec.Length}
	rec.Block = &blockReader{r: r, block: r.block}
	return rec, nil
}

// endBlock reads what is left of the block, and the two line ends after it.
func (r *Reader) endBlock() error {
	left := r.block.N
	if _, err := io.Copy(io.Discard, r.block); err != nil {
		return fmt.Errorf("inside the block: %w", err)
	}
	if r.block.N > 0 {
		return fmt.Errorf("inside the block: %d of its last %d bytes are missing: %w", r.block.N, left, io.ErrUnexpectedEOF)
	}
	r.block = nil
	for range 2 {
		end, err := r.line()
		if err != nil {
			return inside(err, "the two line ends after the block")
		}
		if end != "" {
			return fmt.Errorf("the block is not followed by two line ends but by %.40q (is Content-Length wrong?)", end)
		}
	}
	return nil
}

// header reads the named fields up to the empty line.
func (r *Reader) header() (map[string]string, error) {
	header := make(map[string]string)
	last := ""
	for n := 0; ; n++ {
		line, err := r.line()
		if err != nil {
			return nil, inside(err, "the header")
		}
		if line == "" {
			return header, nil
		}
		if n >= maxHeaders {
			return nil, fmt.Errorf("the header has more than %d lines", maxHeaders)
		}
		if line[0] == ' ' || line[0] == '\t' { // a folded line
			if last == "" {
				return nil, errors.New("the header begins with a continuation line")
			}
			header[last] += " " + strings.TrimSpace(line)
			if len(header[last]) > maxLine {
				return nil, fmt.Errorf("the field %.40q is longer than %d bytes", last, maxLine)
			}
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, fmt.Errorf("the header line %.40q is not of the form name: value", line)
		}
		last = strings.ToLower(name)
		if _, again := header[last]; again && (last == "content-length" || last == "warc-type") {
			return nil, fmt.Errorf("the field %.40s is there twice", name)
		}
		header[last] = strings.TrimSpace(value)
	}
}

// line reads one line and takes its end off.
func (r *Reader) line() (string, error) {
	b, err := r.br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", fmt.Errorf("a line is longer than %d bytes", maxLine)
	case errors.Is(err, io.EOF):
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	return strings.TrimSuffix(string(b[:len(b)-1]), "\r"), nil
}

func inside(err error, what string) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends inside %s: %w", what, err)
	}
	return fmt.Errorf("inside %s: %w", what, err)
}

// blockReader reads a block, and turns an end of the file inside it into an
// error that says where.
type blockReader struct {
	r     *Reader
	block *io.LimitedReader
}

func (b *blockReader) Read(p []byte) (int, error) {
	if b.r.block != b.block {
		return 0, errors.New("warc: the block was read after the next record")
	}
	n, err := b.block.Read(p)
	if err == nil || (errors.Is(err, io.EOF) && b.block.N == 0) {
		return n, err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, &Error{File: b.r.file, Record: b.r.number, Offset: b.r.offset, Err: inside(err, "the block")}
}

// counter counts the bytes of the file that were consumed. It is an
// io.ByteReader, so that gzip takes no byte beyond a member.
type counter struct {
	br *bufio.Reader
	n  int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.br.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counter) ReadByte() (byte, error) {
	b, err := c.br.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

// stream is the archive without its compression. It remembers where in the file
// each gzip member began, because its reader is ahead of the records.
type stream struct {
	raw        *counter
	compressed bool
	gz         *gzip.Reader
	inMember   bool
	n          int64 // bytes delivered
	members    []member
}

type member struct{ at, file int64 }

func (s *stream) Read(p []byte) (int, error) {
	if !s.compressed {
		n, err := s.raw.Read(p)
		s.n += int64(n)
		return n, err
	}
	for {
		if !s.inMember {
			if err := s.nextMember(); err != nil {
				return 0, err
			}
		}
		n, err := s.gz.Read(p)
		s.n += int64(n)
		if errors.Is(err, io.EOF) { // of the member
			s.inMember = false
			err = nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			if err != nil {
				err = fmt.Errorf("gzip: %w", err)
			}
			return n, err
		}
	}
}

func (s *stream) nextMember() error {
	if _, err := s.raw.br.Peek(1); err != nil {
		return err
	}
	s.members = append(s.members, member{at: s.n, file: s.raw.n})
	var err error
	if s.gz == nil {
		s.gz, err = gzip.NewReader(s.raw)
	} else {
		err = s.gz.Reset(s.raw)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("gzip member at offset %d: %w", s.members[len(s.members)-1].file, err)
	}
	s.gz.Multistream(false)
	s.inMember = true
	return nil
}

// position gives the place in the file of the byte at offset n of the stream. It
// is asked for ascending n.
func (s *stream) position(n int64) int64 {
	if !s.compressed {
		return n
	}
	for len(s.members) > 1 && s.members[1].at <= n {
		s.members = s.members[1:]
	}
	if len(s.members) == 0 {
		return 0
	}
	return s.members[0].file
}
