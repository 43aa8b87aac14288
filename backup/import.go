package backup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/percolate-go/percolate/percolator"
)

// ImportOptions of Import. The zero value works.
type ImportOptions struct {
	Format Format // empty means JSONLines
	// After is how many lines are left out: those that an earlier Import has written. It returned the number.
	After int64
	// Batch is how many cells a transaction writes, at most; 0 means 500. It is fewer where the database's Limits, or those of its store, do not take as many.
	Batch int
	// Progress is told of cells, four times a second and at the end. Nil tells nobody.
	Progress func(Progress)
}

// batchValues is how many bytes of values a transaction of Import writes, about.
const batchValues = 1 << 20

// Import writes the cells that Export has written, or that are in the same form: in new transactions, a batch of lines in each, in their order. So they get
// new timestamps, and observers run. What the cells hold is replaced. Lines that are empty are left out.
//
// It returns the number of the last line whose batch was committed, also with an error. Give it as After to go on from there: a
// line that is written twice gets the same value again. If the outcome of a batch is not known, that batch does not count.
//
// A bad line gives an error that matches percolator.ErrInvalid or percolator.ErrTooLarge and names the line; nothing of its batch is written. Lines that are too many or too large
// for one transaction together are written in smaller batches. A column with an
// index that this program does not keep gives percolator.ErrIndexed. Other errors: those of the database, of in and of ctx. Import looks at ctx before each line; a read of in that
// hangs is waited for, so in must heed ctx where that can be.
func Import(ctx context.Context, db *percolator.DB, in io.Reader, opts ImportOptions) (line int64, err error) {
	if db == nil || in == nil {
		return opts.After, invalid("Import needs a database and a reader")
	}
	if opts.Format == "" {
		opts.Format = JSONLines
	}
	if err := opts.Format.check(); err != nil {
		return opts.After, err
	}
	if opts.Batch == 0 {
		opts.Batch = 500
	}
	if opts.Batch < 0 || opts.After < 0 {
		return max(opts.After, 0), invalid("Batch and After are not negative")
	}
	opts.Batch = min(opts.Batch, db.Limits().Cells)
	m := &importer{db: db, opts: opts, most: opts.Batch, line: opts.After, tell: teller{to: opts.Progress}, named: map[percolator.Cell]int{}}
	s := &source{r: bufio.NewReaderSize(in, 1<<16), f: opts.Format, most: mostLine(db.Limits())}
	for {
		c, v, n, err := s.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if n <= opts.After && err == nil {
			continue
		}
		if err != nil {
			if n <= opts.After && errors.Is(err, percolator.ErrInvalid) && !errors.Is(err, errHeader) {
				continue
			}
			return m.line, fmt.Errorf("backup: line %d: %w", n, err)
		}
		if err := m.add(ctx, written{c, v, n}); err != nil {
			return m.line, err
		}
	}
	if err := m.flush(ctx); err != nil {
		return m.line, err
	}
	m.line = max(m.line, s.lines)
	m.tell.end(0, m.cells, 0)
	return m.line, nil
}

// written is a line that is to be written.
type written struct {
	cell  percolator.Cell
	value []byte
	line  int64
}

// importer is an Import under way.
type importer struct {
	db    *percolator.DB
	opts  ImportOptions
	tell  teller
	batch []written
	named map[percolator.Cell]int
	bytes int
	most  int   // lines that a transaction takes, as far as it is known
	line  int64 // the last one that was committed
	cells int64
}

func (m *importer) add(ctx context.Context, w written) error {
	if _, twice := m.named[w.cell]; twice || len(m.batch) >= m.opts.Batch || m.bytes > batchValues {
		if err := m.flush(ctx); err != nil {
			return err
		}
	}
	m.named[w.cell] = len(m.batch)
	m.batch = append(m.batch, w)
	m.bytes += len(w.value)
	return nil
}

// flush commits the batch, in parts if a transaction does not take all of it.
func (m *importer) flush(ctx context.Context) error {
	for left := m.batch; len(left) > 0; {
		part := left[:min(m.most, len(left))]
		err := m.commit(ctx, part)
		if len(part) > 1 && errors.Is(err, percolator.ErrTooLarge) && !errors.Is(err, percolator.ErrUndetermined) && !errors.As(err, new(lineError)) {
			m.most = len(part) / 2
			continue
		}
		if err != nil {
			return fmt.Errorf("backup: importing %s, of which nothing is written: %w", span(part), m.doubt(err))
		}
		// What did not fit may have been a few large values, or what an index has of them.
		m.most = min(m.most+m.most/8+1, m.opts.Batch)
		left = left[len(part):]
		m.line = part[len(part)-1].line
		m.cells += int64(len(part))
		m.tell.progress(0, m.cells, 0, 0)
	}
	m.batch, m.bytes = slices.Delete(m.batch, 0, len(m.batch)), 0
	clear(m.named)
	return nil
}

// span names lines.
func span(part []written) string {
	if len(part) == 1 {
		return fmt.Sprintf("line %d", part[0].line)
	}
	return fmt.Sprintf("lines %d to %d", part[0].line, part[len(part)-1].line)
}

// commit writes lines in one transaction.
func (m *importer) commit(ctx context.Context, part []written) error {
	return m.db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range part {
			if err := tx.Set(part[i].cell, part[i].value); err != nil {
				return m.blame(ctx, &part[i], err)
			}
		}
		return nil
	})
}

// blame returns the error of a line as a lineError, unless a transaction takes the line that has nothing else.
func (m *importer) blame(ctx context.Context, w *written, err error) error {
	if errors.Is(err, percolator.ErrTooLarge) {
		alone, berr := m.db.Begin(ctx)
		if berr != nil {
			return berr
		}
		defer func() { _ = alone.Rollback(ctx) }()
		if alone.Set(w.cell, w.value) == nil {
			return err
		}
	}
	return lineError{w.line, err}
}

// lineError is that of a line that no transaction takes.
type lineError struct {
	line int64
	err  error
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e lineError) Unwrap() error { return e.err }

// doubt says so if it is not known whether the batch was committed.
func (m *importer) doubt(err error) error {
	if errors.Is(err, percolator.ErrUndetermined) {
		return fmt.Errorf("or all of it: %w", err)
	}
	return err
}
