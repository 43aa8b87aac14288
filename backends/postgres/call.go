package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// query is a statement of this package, and the name under which it is prepared.
type query struct {
	sql, name string
	formats   []int16 // of its parameters
	ready     *query  // for sessions that have the settings of functions; may be nil
}

// queries are the statements of one schema.
type queries struct {
	apply                                                                    []query // by shape
	general, point, drawn, picks, check, scan, scanPoint, slots, draw, flush query
	step                                                                     query // a draw on a connection that knows the bound
	tables, sample, push, probe, sessions                                    query
}

func newQueries(n names) queries {
	statement := func(sql string) query {
		sql = n.expand(sql)
		return query{sql: sql, name: "percolator_" + strconv.FormatUint(hash("statement", sql), 36), formats: binary1}
	}
	params := functionParameters()
	of := func(function string) string {
		return "{{schema}}." + function + "(" + strings.Join(params[function], ", ") + ")"
	}
	call := func(function string) query { return statement("SELECT * FROM " + of(function)) }
	either := func(function string) query {
		q, ready := call(function), call(function+readySuffix)
		q.ready = &ready
		return q
	}
	checks := func(set string) query {
		return statement("SELECT * FROM " + of("read_any"+set) + `
			UNION ALL SELECT -1, 0::smallint, NULL, NULL, pg_catalog.convert_to({{schema}}.incarnation_id(), 'UTF8')`)
	}
	check, ready := checks(""), checks(readySuffix)
	check.ready = &ready
	q := queries{
		general:   either("apply_general"),
		point:     either("read_point"),
		drawn:     either("snapshot_point"),
		picks:     either("read_any"),
		check:     check,
		scan:      call("scan_page"),
		scanPoint: either("scan_point"),
		slots:     call("scan_slots"),
		draw:      call("draw"),
		step:      statement(stepSQL),
		flush:     statement("SELECT 1 FROM (SELECT {{schema}}.flush()) f"),
		// A subquery that calls a volatile function is evaluated, so a standby does not answer.
		tables:   statement("SELECT " + of("next_table") + " FROM (SELECT {{schema}}.guard()) g"),
		sample:   call("sample_keys"),
		push:     statement(pushSQL),
		probe:    statement(probeSQL),
		sessions: statement(countSQL),
	}
	q.sample.formats = []int16{1, 0}
	for _, s := range shapes {
		q.apply = append(q.apply, either("apply_"+s.name))
	}
	return q
}

// functionParameters lists what the calls of the store's functions have between the parentheses, as "p_n => $1". The names tell the functions from others of
// the same name, with parameters of other types: to a parameter whose type is not known yet, Postgres prefers a text. They are
// the same in each schema, and are found once: all functions are written out for it.
var functionParameters = sync.OnceValue(func() map[string][]string {
	n, all := newNames("any"), map[string][]string{}
	signature := regexp.MustCompile(`CREATE FUNCTION ` + regexp.QuoteMeta(n.schema) + `\.([a-z_]+)\(([^)]*)\)`)
	for _, m := range signature.FindAllStringSubmatch(n.functions(), -1) {
		var calls []string
		for p := range strings.SplitSeq(m[2], ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(p), " "); strings.HasPrefix(name, "p_") {
				calls = append(calls, name+" => $"+strconv.Itoa(len(calls)+1))
			}
		}
		all[m[1]] = calls
	}
	return all
})

var binary1 = []int16{1}

// run sends one statement as one transaction in one round trip and gives each line
// of the answer to line. The transaction is read committed, whatever the defaults
// are. With write, an error matches ErrAmbiguous unless it is certain that
// nothing happened.
// begin, which may be nil, is called first, and again when the statement is sent again.
func (s *plainStore) run(ctx context.Context, q query, params [][]byte, write bool, begin func(), line func(f *fields)) error {
	return s.runOn(ctx, func(*pgconn.PgConn) (query, [][]byte) { return q, params }, write, begin, line, nil)
}

// runOn is run with a statement that choose names once the connection is known. With
// drawn, which may be nil, a draw follows in a transaction of its own, and drawn gets the first
// of at most step timestamps, or 0 where that could not be had.
func (s *plainStore) runOn(ctx context.Context, choose func(*pgconn.PgConn) (query, [][]byte), write bool, begin func(),
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

// confirm waits for the standbys once more, after a write for which the server stopped waiting. It
// flushes: the flush comes after the write in the log, so once a standby has it, it has the write. It does so on the connection of the write:
// another one may lead to a standby by now that was promoted, and does not have it.
func (s *plainStore) confirm(ctx context.Context, c *pgx.Conn) error {
	s.unconfirmed.Add(1)
	flush := func(*pgconn.PgConn) (query, [][]byte) { return s.q.flush, nil }
	err := s.tryOn(ctx, c, flush, false, func(*fields) {}, nil)
	if err == nil && warned(c.PgConn()) {
		err = errUnconfirmed
	}
	if err != nil {
		if errors.Is(err, rowstore.ErrUnavailable) {
			err = errors.New(err.Error()) // the flush had no effect; the write has
		}
		return fmt.Errorf("%w: %w: %w", rowstore.ErrAmbiguous, errUnconfirmed, err)
	}
	return nil
}

// noticeKey is where a connection's custom data says that the server warned.
const noticeKey = "percolator unconfirmed"

// OnNotice tells stores about a server's notice. Set [pgx.ConnConfig.OnNotice] of a pool for
// [New] to it, or call it from your own function, with all notices. A server that stops waiting for a
// synchronous standby, and commits nevertheless, says so in a warning only; by this
// function the store hears it. [Open] sets it by itself. It may be called concurrently
// for different connections.
func OnNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Code == plainWarning || n.Code == adminShutdown {
		c.CustomData()[noticeKey] = true
	}
}

// warned tells whether the server warned since it was asked last.
func warned(c *pgconn.PgConn) bool {
	_, ok := c.CustomData()[noticeKey]
	if ok {
		delete(c.CustomData(), noticeKey)
	}
	return ok
}

// adapt tells whether the statement may be sent again: it only read, or the error proves
// that it did nothing and that another attempt may succeed. It learns from some errors how
// statements have to be sent here.
func (s *plainStore) adapt(err error, write bool) bool {
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
	case notReadCommitted:
		s.explicit.Store(true)
		return true
	case serialization, deadlock, sessionChanged:
		return true
	}
	return !write && severe(pg)
}

// unreadable returns the error of a statement that was run, and whose answer could not be read.
func unreadable(bad error, write bool) error {
	if bad != nil && write {
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, bad)
	}
	return bad
}

// try sends the statement once. If the server stopped waiting for its standbys and committed, the error of a write that they do not confirm
// either matches errUnconfirmed.
func (s *plainStore) try(ctx context.Context, choose func(*pgconn.PgConn) (query, [][]byte), write bool,
	line func(f *fields), drawn *oracle.Timestamp,
) (err error) {
	acquiring := ctx
	if write {
		acquiring = context.WithValue(ctx, writing{}, true)
	}
	c, err := acquire(acquiring, s.pool)
	if err != nil {
		return err
	}
	defer func() { s.release(ctx, c, err) }()
	_ = warned(c.Conn().PgConn()) // of something before
	err = s.tryOn(ctx, c.Conn(), choose, write, line, drawn)
	if sqlState(err) == sessionChanged {
		distrust(c.Conn().PgConn())
	}
	switch {
	case err != nil || !warned(c.Conn().PgConn()):
	case write:
		err = s.confirm(ctx, c.Conn())
	default:
		return errUnconfirmed
	}
	return cancelled(ctx, err)
}

// acquire takes a connection of the pool. A hook of the program's may have begun a
// transaction there. What the store sent would be a part of it, and be lost when the pool
// throws the connection away.
func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, connecting(ctx, err)
	}
	if status := c.Conn().PgConn().TxStatus(); status != 'I' {
		c.Release() // which closes the connection
		return nil, fmt.Errorf("%w: the pool handed out a connection inside a transaction; its hooks must not begin one", rowstore.ErrInvalid)
	}
	return c, nil
}

func (s *plainStore) tryOn(ctx context.Context, c *pgx.Conn, choose func(*pgconn.PgConn) (query, [][]byte), write bool,
	line func(f *fields), drawn *oracle.Timestamp,
) error {
	pg := c.PgConn()
	q, params := choose(pg)
	q = q.on(pg)
	var sd *pgconn.StatementDescription
	if !s.unprepared.Load() {
		// Nothing is executed by this, so its errors are certain.
		var err error
		if sd, err = c.Prepare(ctx, q.name, q.sql); err != nil {
			return classify(err, false)
		}
	}
	if s.explicit.Load() {
		return s.tryExplicit(ctx, pg, q, sd, params, write, line)
	}
	if drawn != nil {
		if *drawn = 0; sd != nil && !s.pooler {
			d := s.drawOn(pg, step, false)
			if then, err := c.Prepare(ctx, d.q.name, d.q.sql); err == nil {
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
	return unreadable(bad, write)
}

// thenDraw sends a statement and a draw together, as two transactions: the server begins
// the second when the first has ended. A draw that fails does not fail the statement.
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
	return unreadable(bad, write)
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
		return nil, fmt.Errorf("the server's answer is a %T, where rows were expected", results)
	}
	bad = readLines(rr, line)
	if _, err := rr.Close(); err != nil {
		return nil, err
	}
	if results, err = pipe.GetResults(); err != nil {
		return nil, err
	}
	if _, ok := results.(*pgconn.PipelineSync); !ok {
		return nil, fmt.Errorf("the server's answer is a %T, where the end of the transaction was expected", results)
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
func (s *plainStore) tryExplicit(ctx context.Context, pg *pgconn.PgConn, q query, sd *pgconn.StatementDescription,
	params [][]byte, write bool, line func(f *fields),
) error {
	wasClosed := pg.IsClosed()
	b := &pgconn.Batch{}
	b.ExecParams("BEGIN ISOLATION LEVEL READ COMMITTED", nil, nil, nil, nil)
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
		if !wasClosed && errors.Is(err, pgconn.ErrConnClosed) {
			err = sentError{err} // that is all that pgx says of a connection which broke under the batch
		}
		return classify(err, write)
	}
	if !committed {
		return errors.New("the server answered COMMIT by a rollback")
	}
	return unreadable(bad, write)
}
