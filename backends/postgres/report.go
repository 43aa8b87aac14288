package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sampleSQL cuts a table by a sample of the pages of all tables: some thousands of
// cells, whatever their number. The boundaries are the quantiles of the sample.
const sampleSQL = `SELECT DISTINCT k FROM (
	SELECT unnest(percentile_disc($2::float8[]) WITHIN GROUP (ORDER BY c.key)) AS k
	FROM {{schema}}.cell c TABLESAMPLE SYSTEM (
		(SELECT least(100, 100.0 * 300 / greatest(1, pg_relation_size('{{schema_literal}}.cell') / current_setting('block_size')::bigint)))
	) WHERE c.tab = $1::bytea) s
	WHERE k > (SELECT c.key FROM {{schema}}.cell c WHERE c.tab = $1::bytea ORDER BY c.key LIMIT 1)
	ORDER BY k`

// Split implements rowstore.Splitter.
func (s *store) Split(ctx context.Context, table string, n int) ([]string, error) {
	ctx, done, err := s.enter(ctx, "split")
	if err != nil {
		return nil, err
	}
	defer done()
	if table == "" {
		return nil, fmt.Errorf("postgres: split: %w: the table's name is empty", rowstore.ErrInvalid)
	}
	if n < 1 {
		return nil, fmt.Errorf("postgres: split: %w: into %d parts", rowstore.ErrInvalid, n)
	}
	if n == 1 || len(table) > maxTable {
		return nil, nil
	}
	n = min(n, 4096) // more than the sample could tell apart
	fractions := []byte("{")
	for i := 1; i < n; i++ {
		if i > 1 {
			fractions = append(fractions, ',')
		}
		fractions = fmt.Appendf(fractions, "%.9f", float64(i)/float64(n))
	}
	fractions = append(fractions, '}')
	var keys []string
	begin := func() { keys = nil }
	err = s.run(ctx, s.q.sample, [][]byte{[]byte(table), fractions}, false, begin, func(f *fields) {
		keys = append(keys, string(f.values[0]))
	})
	if err != nil {
		return nil, s.fail("split", err)
	}
	return keys, nil
}

// Report implements rowstore.Reporter.
func (s *store) Report(ctx context.Context) (rowstore.Report, error) {
	ctx, done, err := s.enter(ctx, "report")
	if err != nil {
		return rowstore.Report{}, err
	}
	defer done()
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return rowstore.Report{}, s.fail("report", fmt.Errorf("connecting: %w", err))
	}
	defer c.Release()
	results, err := c.Conn().PgConn().Exec(ctx, `SELECT current_setting('server_version'), current_setting('fsync'),
		current_setting('full_page_writes'), current_setting('autovacuum'), current_setting('synchronous_standby_names'),
		(SELECT count(*) FROM pg_stat_replication)`).ReadAll()
	if err != nil {
		return rowstore.Report{}, s.fail("report", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 6 {
		return rowstore.Report{}, s.fail("report", errors.New("the server's answer makes no sense"))
	}
	row := results[0].Rows[0]
	r := rowstore.Report{Backend: "postgres", Version: string(row[0]), Features: []rowstore.Feature{
		{Name: "groups", Supported: true, Reason: "all rows of a transaction commit together"},
		{Name: "one-phase commit", Reason: "a timestamp drawn in a transaction is known before its rows are"},
		{Name: "deferred durability", Supported: true, Reason: "synchronous_commit is set for each transaction"},
		{Name: "oracle", Supported: true, Reason: "a sequence below a durable bound"},
		{Name: "split", Supported: true, Reason: "by a sample of the table's pages"},
		{Name: "wake", Supported: s.listen != nil},
		{Name: "prepared statements", Supported: !s.unprepared.Load()},
	}}
	if s.listen == nil {
		r.Features[5].Reason = "the connection goes through a pooler; give a direct one with the parameter listen"
	}
	if s.unprepared.Load() {
		r.Features[6].Reason = "a pooler is in between, or default_query_exec_mode says so"
	}
	for i, w := range []string{
		1: "fsync is off: a crash of the operating system can destroy the database.",
		2: "full_page_writes is off: a crash of the operating system can destroy pages.",
		3: "autovacuum is off: the tables grow without end unless something else vacuums them.",
	} {
		if w != "" && string(row[i]) == "off" {
			r.Warnings = append(r.Warnings, w)
		}
	}
	if string(row[5]) != "0" && len(row[4]) == 0 {
		r.Warnings = append(r.Warnings, "The server has standbys and waits for none of them (synchronous_standby_names is empty): "+
			"a failover can lose transactions that were committed.")
	}
	return r, nil
}
