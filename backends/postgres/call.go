package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// errStandby says that the server follows another. It is an error of a call that
// did nothing.
var errStandby = errors.New("the server is a standby")

// query is a statement of this package, and the name under which it is prepared.
type query struct {
	sql, name string
	formats   []int16 // of its parameters
}

// queries are the statements of one schema.
type queries struct {
	apply                                           []query // by shape
	general, point, picks, check, scan, draw, flush query
	step                                            query // a draw on a connection that knows the bound
	tables, sample                                  query
}

func newQueries(n names) queries {
	statement := func(sql string) query {
		sql = n.expand(sql)
		return query{sql, "percolator_" + strconv.FormatUint(hash("statement", sql), 36), binary1}
	}
	call := func(function string, params int) query {
		sql := "SELECT * FROM {{schema}}." + function + "("
		for i := range params {
			if i > 0 {
				sql += ", "
			}
			sql += "$" + strconv.Itoa(i+1)
		}
		return statement(sql + ")")
	}
	q := queries{
		general: call("apply_general", 20),
		point:   call("read_point", 4),
		picks:   call("read_any", 9),
		check: statement(`SELECT * FROM {{schema}}.read_any($1, $2, $3, $4, $5, $6, $7, $8, $9)
			UNION ALL SELECT -1, 0::smallint, NULL, NULL, convert_to({{schema}}.incarnation_id(), 'UTF8')`),
		scan:   call("scan_page", 11),
		draw:   call("draw", 3),
		step:   statement(stepSQL),
		flush:  statement("SELECT 1 FROM (SELECT {{schema}}.flush()) f"),
		tables: statement(tablesSQL),
		sample: statement(sampleSQL),
	}
	q.sample.formats = []int16{1, 0}
	for _, s := range shapes {
		q.apply = append(q.apply, call("apply_"+s.name, 18+len(s.cols)))
	}
	return q
}

var binary1 = []int16{1}

// run sends one statement as one transaction in one round trip and gives each line
// of the answer to line. The transaction is read committed, whatever the defaults
// are. With write, an error matches ErrAmbiguous unless it is certain that
// nothing happened.
// begin, which may be nil, is called first, and again when the statement is sent again.
func (s *store) run(ctx context.Context, q query, params [][]byte, write bool, begin func(), line func(f *fields)) error {
	return s.runOn(ctx, func(*pgconn.PgConn) (query, [][]byte) { return q, params }, write, begin, line, nil)
}

// runOn is run with a statement that choose names once the connection is known. With
// drawn, which may be nil, a draw follows in a transaction of its own, and drawn gets the first
// of at most step timestamps, or 0 where that could not be had.
func (s *store) runOn(ctx context.Context, choose func(*pgconn.PgConn) (query, [][]byte), write bool, begin func(),
	line func(f *fields), drawn *oracle.Timestamp,
) error {
	for attempt := 0; ; attempt++ {
		if begin != nil {
			begin()
		}
		err := s.try(ctx, choose, write, line, drawn)
		if err == nil {
			return nil
		}
		if attempt >= 8 || ctx.Err() != nil || !s.adapt(err, write) {
			return err
		}
	}
}

// adapt tells whether the statement may be sent again: the error proves that it did
// nothing and is one that passes, or it only read. It learns from some errors how
// statements have to be sent here.
func (s *store) adapt(err error, write bool) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		// A connection that broke, often one that was idle while the server restarted.
		return !write && !errors.Is(err, rowstore.ErrClosed) && isBroken(err)
	}
	if errors.Is(err, rowstore.ErrAmbiguous) {
		return false
	}
	switch pg.Code {
	case noSuchStatement, duplicateStatement:
		s.unprepared.Store(true)
		return true
	case notReadCommitted, readOnly:
		s.explicit.Store(true)
		return true
	case serialization, deadlock:
		return true
	}
	return !write && severe(pg)
}

// brokenError marks a failure of the connection, rather than of the statement.
type brokenError struct{ error }

func (b brokenError) Unwrap() error { return b.error }

func isBroken(err error) bool {
	var b brokenError
	return errors.As(err, &b)
}

// severe tells whether the server ended the connection with this error.
func severe(pg *pgconn.PgError) bool {
	s := pg.SeverityUnlocalized
	if s == "" {
		s = pg.Severity
	}
	return s == "FATAL" || s == "PANIC"
}

// classify says what an error means that came after the statement was given to the
// connection. An error that the server sent means that it rolled back, but for
// those that end the connection: a shutdown can come when the commit is in the log
// already and only waits for a standby.
func classify(err error, write bool) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !severe(pg) {
		if pg.Code == onStandby {
			return fmt.Errorf("%w: %w", errStandby, err)
		}
		return err
	}
	if pg == nil {
		err = brokenError{err}
	}
	if !write || pgconn.SafeToRetry(err) {
		return err
	}
	return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
}

func (s *store) try(ctx context.Context, choose func(*pgconn.PgConn) (query, [][]byte), write bool,
	line func(f *fields), drawn *oracle.Timestamp,
) error {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer c.Release()
	pg := c.Conn().PgConn()
	q, params := choose(pg)
	var sd *pgconn.StatementDescription
	if !s.unprepared.Load() {
		// Nothing is executed by this, so its errors are certain.
		if sd, err = c.Conn().Prepare(ctx, q.name, q.sql); err != nil {
			var p *pgconn.PgError
			if !errors.As(err, &p) {
				return brokenError{err}
			}
			return err
		}
	}
	if s.explicit.Load() {
		return s.tryExplicit(ctx, pg, q, sd, params, write, line)
	}
	if drawn != nil {
		if *drawn = 0; sd != nil && !s.pooler {
			d := s.drawOn(pg, step, false)
			if then, err := c.Conn().Prepare(ctx, d.q.name, d.q.sql); err == nil {
				return thenDraw(ctx, pg, sd, params, q.formats, write, line, then, d, drawn)
			}
		}
	}
	var rr *pgconn.ResultReader
	if sd != nil {
		rr = pg.ExecStatement(ctx, sd, params, q.formats, binary1)
	} else {
		rr = pg.ExecParams(ctx, q.sql, params, nil, q.formats, binary1)
	}
	bad := readLines(rr, line)
	if _, err := rr.Close(); err != nil {
		return classify(err, write)
	}
	return bad
}

// thenDraw sends a statement and a draw together, as two transactions: the server
// begins the second when the first has ended. What becomes of the draw is no concern
// of the statement.
func thenDraw(ctx context.Context, pg *pgconn.PgConn, sd *pgconn.StatementDescription, params [][]byte, formats []int16,
	write bool, line func(f *fields), then *pgconn.StatementDescription, d statedDraw, drawn *oracle.Timestamp,
) error {
	pipe := pg.StartPipeline(ctx)
	pipe.SendQueryStatement(sd, params, formats, binary1)
	pipe.SendPipelineSync()
	pipe.SendQueryStatement(then, d.params, binary1, binary1)
	err := pipe.Sync()
	var bad error
	if err == nil {
		bad, err = readResult(pipe, line)
	}
	if err != nil {
		_ = pipe.Close() // it has nothing to add
		return classify(err, write)
	}
	if drawBad, err := readResult(pipe, func(f *fields) { *drawn = d.first(f) }); drawBad != nil || err != nil {
		*drawn = 0
	}
	if pipe.Close() != nil {
		*drawn = 0
	}
	return bad
}

// readResult reads the lines of one statement of a pipeline, and the end of its
// transaction. bad is as that of readLines.
func readResult(pipe *pgconn.Pipeline, line func(f *fields)) (bad, err error) {
	results, err := pipe.GetResults()
	if err != nil {
		return nil, err
	}
	rr, ok := results.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("the server's answer is %T", results)
	}
	bad = readLines(rr, line)
	if _, err := rr.Close(); err != nil {
		return nil, err
	}
	if results, err = pipe.GetResults(); err != nil {
		return nil, err
	}
	if _, ok := results.(*pgconn.PipelineSync); !ok {
		return nil, fmt.Errorf("the server's answer is %T, and not the end of a transaction", results)
	}
	return bad, nil
}

func readLines(rr *pgconn.ResultReader, line func(f *fields)) error {
	f := fields{}
	for rr.NextRow() {
		f.values = rr.Values()
		line(&f)
	}
	return f.err
}

// tryExplicit sends BEGIN, the statement and COMMIT together.
func (s *store) tryExplicit(ctx context.Context, pg *pgconn.PgConn, q query, sd *pgconn.StatementDescription,
	params [][]byte, write bool, line func(f *fields),
) error {
	b := &pgconn.Batch{}
	b.ExecParams("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", nil, nil, nil, nil)
	if sd != nil {
		b.ExecStatement(sd, params, q.formats, binary1)
	} else {
		b.ExecParams(q.sql, params, nil, q.formats, binary1)
	}
	b.ExecParams("COMMIT", nil, nil, nil, nil)
	mrr := pg.ExecBatch(ctx, b)
	var bad error
	committed := false
	for i := 0; mrr.NextResult(); i++ {
		rr := mrr.ResultReader()
		if i == 1 {
			bad = readLines(rr, line)
		}
		tag, err := rr.Close()
		committed = i == 2 && err == nil && tag.String() == "COMMIT"
	}
	if err := mrr.Close(); err != nil {
		if !pg.IsClosed() && pg.TxStatus() != 'I' {
			// It has failed, so this changes nothing but the state of the connection.
			_, _ = pg.Exec(ctx, "ROLLBACK").ReadAll()
		}
		return classify(err, write)
	}
	if !committed {
		return errors.New("the server rolled the transaction back")
	}
	return bad
}
