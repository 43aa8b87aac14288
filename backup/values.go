package backup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
)

// Format is how values are written.
type Format string

// The formats. A line of JSONLines is an object with the members table, row, column and value. CSV has these four fields, and a first
// line that names them. Names and values are in the form of admin.Bytes, so both hold any bytes.
const (
	JSONLines Format = "jsonl"
	CSV       Format = "csv"
)

// fields are the names of the fields.
var fields = []string{"table", "row", "column", "value"}

// value is a line.
type value struct {
	Table  *admin.Bytes `json:"table"`
	Row    *admin.Bytes `json:"row"`
	Column *admin.Bytes `json:"column"`
	Value  *admin.Bytes `json:"value"`
}

func (f Format) check() error {
	if f != JSONLines && f != CSV {
		return invalid("the format is %q; it is %s or %s", string(f), JSONLines, CSV)
	}
	return nil
}

// ExportOptions of Export. The zero value exports everything, as JSON lines.
type ExportOptions struct {
	Format Format // empty means JSONLines
	// Tables are those that are exported, in this order. None means all.
	Tables []string
	// Progress is told of cells, four times a second and at the end. Nil tells nobody.
	Progress func(Progress)
}

// Export writes the values of cells to w, a cell in each line, as they are at one snapshot: values alone, without history, timestamps, timers, or
// what observers have done. It returns the number of cells, also of those that were written before an error.
//
// History is kept for the export by a hold of the name "export " and random digits, as Write does it, so it may take longer than the retention of the
// database, or of a table. The hold is released at the end, and ends by itself ten minutes after a process died; a database with holds is one that older programs refuse, see DB.Hold. Where the store takes no hold, because it is full or allows no writes,
// the snapshot lasts as long as the retention.
//
// Errors: percolator.ErrInvalid for a bad format, and if the database has as many holds as it can have; percolator.ErrSnapshotTooOld if the hold could not be renewed in time, there was none and it took longer than the retention, or
// rows were erased meanwhile; those of the database, of w and of ctx.
func Export(ctx context.Context, db *percolator.DB, w io.Writer, opts ExportOptions) (cells int64, err error) {
	if db == nil || w == nil {
		return 0, invalid("Export needs a database and a writer")
	}
	if opts.Format == "" {
		opts.Format = JSONLines
	}
	if err := opts.Format.check(); err != nil {
		return 0, err
	}
	out := newLines(w, opts.Format)
	tell := teller{to: opts.Progress}
	err = exportTables(ctx, db, opts.Tables, func(c percolator.Cell, v []byte, done float64) error {
		if err := out.write(c, v); err != nil {
			return fmt.Errorf("backup: writing the export: %w", err)
		}
		cells++
		tell.progress(0, cells, 0, done)
		return nil
	})
	if ferr := out.flush(); err == nil && ferr != nil {
		err = fmt.Errorf("backup: writing the export: %w", ferr)
	}
	if err == nil {
		tell.end(0, cells, 0)
	}
	return cells, err
}

// exportHold is for how long an export's hold stands after its process died.
const exportHold = 10 * time.Minute

// exportTables visits all cells of some tables, of all if none is named, at one snapshot, those of a row by their columns.
func exportTables(ctx context.Context, db *percolator.DB, tables []string, each func(c percolator.Cell, v []byte, done float64) error) error {
	hold, err := db.Hold(ctx, "export "+newID(), 0, exportHold)
	switch {
	case errors.Is(err, percolator.ErrFull), errors.Is(err, percolator.ErrDenied): // what is there can be read all the same
		return exportSnapshot(ctx, db, tables, each)
	case err != nil:
		return fmt.Errorf("backup: %w", err)
	}
	holding, stop := renewing(ctx, hold, exportHold, percolator.ErrSnapshotTooOld, nil)
	err = exportSnapshot(holding, db, tables, each, percolator.WithAsOfTimestamp(hold.At()))
	if cause := context.Cause(holding); err != nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseFor)
	defer cancel()
	_ = hold.Release(ctx) // one that was not released ends by itself, and what was exported is good
	return err
}

// exportSnapshot visits the cells in one transaction. The tables are listed when it has its snapshot: one that is made later has nothing in it.
func exportSnapshot(ctx context.Context, db *percolator.DB, tables []string, each func(c percolator.Cell, v []byte, done float64) error, opts ...percolator.TxnOption) error {
	tx, err := db.Begin(ctx, opts...)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if len(tables) == 0 {
		if tables, err = userTables(ctx, db); err != nil {
			return err
		}
	}
	for i, t := range tables {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: t}) {
			if err != nil {
				return fmt.Errorf("backup: reading table %q: %w", t, err)
			}
			for _, column := range slices.Sorted(maps.Keys(row.Columns)) {
				if err := each(percolator.Cell{Table: t, Row: row.Key, Column: column}, row.Columns[column], float64(i)/float64(len(tables))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func userTables(ctx context.Context, db *percolator.DB) (tables []string, err error) {
	for stored, err := range db.Store().Tables(ctx) {
		if err != nil {
			return nil, fmt.Errorf("backup: listing the tables: %w", err)
		}
		if name, ok := format.Unescape(stored); ok {
			tables = append(tables, name)
		}
	}
	slices.Sort(tables)
	return tables, nil
}

// lines writes values.
type lines struct {
	w   *bufio.Writer
	csv *csv.Writer
	j   *json.Encoder
	err error
}

func newLines(w io.Writer, f Format) *lines {
	l := &lines{w: bufio.NewWriterSize(w, 1<<16)}
	if f == CSV {
		l.csv = csv.NewWriter(l.w)
		l.err = l.csv.Write(fields)
		return l
	}
	l.j = json.NewEncoder(l.w)
	l.j.SetEscapeHTML(false)
	return l
}

func (l *lines) write(c percolator.Cell, v []byte) error {
	if l.err != nil {
		return l.err
	}
	n, val := admin.CellOf(c), admin.Bytes(v)
	if l.csv != nil {
		return l.csv.Write([]string{n.Table.String(), n.Row.String(), n.Column.String(), val.String()})
	}
	return l.j.Encode(value{&n.Table, &n.Row, &n.Column, &val})
}

func (l *lines) flush() error {
	if l.csv != nil {
		if l.csv.Flush(); l.csv.Error() != nil {
			return l.csv.Error()
		}
	}
	return l.w.Flush()
}

// source reads lines of values.
type source struct {
	r     *bufio.Reader
	f     Format
	most  int64 // bytes of a line
	lines int64 // that were read
}

// mostLine is how long a line can be whose cell the database takes, in bytes. An escaped byte has three, and one that JSON writes as \u0001 has six.
func mostLine(l percolator.Limits) int64 {
	return 6*(int64(l.Table)+int64(l.Row)+int64(l.Column)+int64(l.Value)) + 1<<10
}

// next returns the next cell, or io.EOF, and its number, from 1 on. It looks at ctx before each line. Empty lines count and are left out. The form of CSV has no
// line ends inside quotes, since what cannot be printed is escaped.
func (s *source) next(ctx context.Context) (c percolator.Cell, v []byte, line int64, err error) {
	for {
		if err := ctx.Err(); err != nil { // lines that are left out, or empty, come to no other look at it
			return c, nil, s.lines + 1, err
		}
		text, err := s.line()
		if err != nil {
			return c, nil, s.lines, err
		}
		if s.lines == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // spreadsheets begin a file with it
			header := false
			if s.f == CSV {
				if header, err = isHeader(text); err != nil {
					return c, nil, s.lines, err
				}
			}
			if header {
				continue
			}
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		parse := parseJSON
		if s.f == CSV {
			parse = parseCSV
		}
		c, v, err = parse(text)
		return c, v, s.lines, err
	}
}

// errHeader is of a file, and not of one line that a call may begin behind.
var errHeader = errors.New("the header")

// isHeader tells whether the first line of CSV names the fields. One that names them otherwise is an error: taken for values, it would be written as a cell,
// and so would every value into the wrong place.
func isHeader(text []byte) (bool, error) {
	got, err := csv.NewReader(bytes.NewReader(text)).Read()
	if err != nil || len(got) != len(fields) {
		return false, nil //nolint:nilerr // what is wrong with it is said of it as a line of values
	}
	if slices.Equal(got, fields) {
		return true, nil
	}
	names := slices.Clone(got)
	for i := range names {
		names[i] = strings.ToLower(strings.TrimSpace(names[i]))
	}
	known := slices.Clone(fields)
	slices.Sort(names)
	slices.Sort(known)
	if slices.Equal(names, known) {
		return false, fmt.Errorf("%w: %w", errHeader, invalid("it names the fields otherwise than %s: %s", strings.Join(fields, ","), text))
	}
	return false, nil
}

// line returns the next line without its end. One that is too long is read to its end all the same: what is behind it are other lines.
func (s *source) line() ([]byte, error) {
	var all []byte
	for size := int64(0); ; {
		part, err := s.r.ReadSlice('\n')
		if size += int64(len(part)); size <= s.most {
			all = append(all, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && errors.Is(err, io.EOF) && size == 0:
			return nil, io.EOF
		}
		s.lines++
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("reading it: %w", err)
		}
		if size > s.most {
			return nil, invalid("it has %d bytes, and with the limits of this database no line has more than %d", size, s.most)
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(all, []byte("\n")), []byte("\r")), nil
	}
}

func parseJSON(text []byte) (c percolator.Cell, v []byte, err error) {
	var x value
	if !utf8.Valid(text) { // package json would put U+FFFD in the place of such bytes
		return c, nil, invalid("it has bytes that are no UTF-8; write each of them as %%XX, as an export does")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&x); err != nil {
		return c, nil, invalid("it is no JSON object of a cell: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, nil, invalid("something follows the JSON object")
	}
	if halfSurrogate(text) { // the same
		return c, nil, invalid("it has a \\u escape of half a surrogate pair, which is no character; write bytes that are no UTF-8 as %%XX, as an export does")
	}
	if x.Table == nil || x.Row == nil || x.Column == nil || x.Value == nil {
		return c, nil, invalid("it lacks one of %s", strings.Join(fields, ", "))
	}
	return percolator.Cell{Table: string(*x.Table), Row: string(*x.Row), Column: string(*x.Column)}, []byte(*x.Value), nil
}

// halfSurrogate tells whether a JSON text escapes one half of a surrogate pair without the other.
func halfSurrogate(text []byte) bool {
	escaped := func(at int) rune { // what an escape by four digits at a place stands for, -1 if none is there
		if !bytes.HasPrefix(text[min(at, len(text)):], []byte(`\u`)) || at+6 > len(text) {
			return -1
		}
		r, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 32)
		if err != nil {
			return -1
		}
		return rune(r) //nolint:gosec // four digits
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if r := escaped(i); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, escaped(i+6)) == utf8.RuneError {
				return true
			}
			i += 6
		}
		i++ // what is escaped begins no escape
	}
	return false
}

func parseCSV(text []byte) (c percolator.Cell, v []byte, err error) {
	r := csv.NewReader(bytes.NewReader(text))
	r.FieldsPerRecord = len(fields)
	got, err := r.Read()
	if err != nil {
		return c, nil, invalid("it is no line of CSV with %d fields: %v", len(fields), err)
	}
	for i, to := range []*string{&c.Table, &c.Row, &c.Column} {
		if *to, err = admin.ParseBytes(got[i]); err != nil {
			return c, nil, err
		}
	}
	s, err := admin.ParseBytes(got[3])
	return c, []byte(s), err
}
