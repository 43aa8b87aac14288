package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pages scans page by page: it returns the keys, the number of statements, and the most lines that one looked at.
func pages(ctx context.Context, s *plainStore, r rowstore.ScanRange) (rows []string, statements, widest int, err error) {
	lo, hi := r.From, afterAll
	if r.To != "" {
		hi = r.To
	}
	look, ask := firstLook, scanAsk{r, new(bool)}
	read := s.page
	if p, ok := newPointScan(s, ask); ok {
		read = p.page
	}
	for {
		page, err := read(ctx, ask, lo, hi, maxPage, look)
		if err != nil {
			return nil, 0, 0, err
		}
		statements++
		widest = max(widest, look)
		for _, row := range page.rows {
			rows = append(rows, row.Row)
		}
		if page.end {
			return rows, statements, widest, nil
		}
		from := &lo
		if r.Reverse {
			from = &hi
		}
		if *from == page.next {
			look *= 2
		} else {
			look = firstLook
		}
		*from = page.next
	}
}

// A page of a scan looks at a bounded number of lines, whether anything in them matches or not, so a long
// scan gets to its end where statements may only be short. The lines are counted, and not the time.
func TestScanLooksAtBoundedLines(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_wal_size": "4GB"})
	const lines = 300_000
	s := openTest(t, with(server.URL, "schema", "bounds", "coalesce", "off"))
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO bounds.cell (tab, key, col, write_ts, lock_ts)
		SELECT 't', ('r' || lpad(i::text, 8, '0'))::bytea, 'c', 5, CASE WHEN i IN (1, 150000, %d) THEN 7 END FROM generate_series(1, %[1]d) i`, lines))
	for _, reverse := range []bool{false, true} {
		r := rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}}
		rows, statements, widest, err := pages(ctx, s.plain, r)
		require.NoError(t, err)
		require.Len(t, rows, 3)
		require.Equal(t, firstLook, widest)
		require.GreaterOrEqual(t, statements, lines/firstLook)
		n := 0
		for row, err := range s.Scan(ctx, r) {
			require.NoError(t, err)
			require.Equal(t, rows[n], row.Row)
			n++
		}
		require.Equal(t, 3, n)
	}
	for _, reverse := range []bool{false, true} {
		r := rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "none", To: oracle.Max, Limit: 1}}}
		rows, statements, widest, err := pages(ctx, s.plain, r)
		require.NoError(t, err)
		require.Empty(t, rows)
		require.Equal(t, firstLook, widest)
		require.GreaterOrEqual(t, statements, lines/firstLook)
	}
}

// A scan of a few rows looks at few lines of a large table, whatever the planner knows of it, and sorts nothing.
func TestScanPointLooksAtFewLines(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off", "max_wal_size": "4GB", "min_parallel_index_scan_size": "0", "min_parallel_table_scan_size": "0", "parallel_setup_cost": "0", "parallel_tuple_cost": "0", "random_page_cost": "10000", "effective_cache_size": "8kB"})
	for _, analyzed := range []bool{false, true} {
		for _, mode := range []string{"cache_statement", "exec"} {
			schema := fmt.Sprintf("few_%v_%s", analyzed, mode)
			s := openTest(t, with(server.URL, "schema", schema, "coalesce", "off", "default_query_exec_mode", mode))
			sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO %s.cell (tab, key, col, write_ts)
				SELECT 't', ('r' || lpad(i::text, 8, '0'))::bytea, 'c', 5 FROM generate_series(1, 20000) i`, schema))
			if analyzed {
				sqlDo(t, server.URL, "VACUUM ANALYZE "+schema+".cell")
			}
			before := looked(t, server.URL, schema)
			found := 0
			for _, reverse := range []bool{false, true} {
				for _, column := range []string{"c", rowstore.AllColumns} {
					r := rowstore.ScanRange{Table: "t", From: "r00010000", Reverse: reverse, Limit: 10, Selectors: []rowstore.Selector{
						{Family: rowstore.Lock, Column: column, To: oracle.Max}, {Family: rowstore.Write, Column: column, To: oracle.Max, Limit: 1},
					}}
					for _, err := range s.Scan(ctx, r) {
						require.NoError(t, err)
						found++
					}
				}
			}
			require.Equal(t, 40, found)
			require.NoError(t, s.Close()) // a session's counters are sent when it ends
			require.Eventually(t, func() bool { return looked(t, server.URL, schema) > before }, testWait, testSettle)
			require.Less(t, looked(t, server.URL, schema)-before, 4*firstPage*linesOfRow+100)
		}
	}
}

// A scan of few rows looks at few more lines than it needs: also one that begins at a row of many columns, or has pages that
// end for their bytes.
func TestScanPointLooksAtWhatItNeeds(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off", "max_wal_size": "4GB"})
	for name, c := range map[string]struct {
		fill        string
		limit, most int
	}{
		"Wide":  {`SELECT 't', ('r' || lpad(i::text, 8, '0'))::bytea, ('c' || j)::bytea, 5, 'v'::bytea FROM generate_series(1, 200) i, generate_series(1, 100) j`, 1, 1_000},
		"Large": {`SELECT 't', ('r' || lpad(i::text, 8, '0'))::bytea, 'c', 5, CASE WHEN i <= 300 THEN decode(repeat('ab', 40000), 'hex') END FROM generate_series(1, 20000) i`, 300, 14_000},
	} {
		for _, reverse := range []bool{false, true} {
			schema := fmt.Sprint("needs_", strings.ToLower(name), reverse)
			s := openTest(t, with(server.URL, "schema", schema, "coalesce", "off"))
			sqlDo(t, server.URL, "INSERT INTO "+schema+".cell (tab, key, col, write_ts, write_val) "+c.fill)
			r := rowstore.ScanRange{Table: "t", From: "r00000001", Reverse: reverse, Limit: c.limit, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max, Limit: 1}}}
			if reverse {
				r.To = fmt.Sprintf("r%08d\x00", c.limit)
			}
			before, found := looked(t, server.URL, schema), 0
			for _, err := range s.Scan(ctx, r) {
				require.NoError(t, err)
				found++
			}
			require.Equal(t, c.limit, found)
			require.NoError(t, s.Close()) // a session's counters are sent when it ends
			require.Eventually(t, func() bool { return looked(t, server.URL, schema) > before }, testWait, testSettle)
			require.Less(t, looked(t, server.URL, schema)-before, c.most, "%s, in reverse %v", name, reverse)
		}
	}
}

// looked is how many lines of the cells' index were read.
func looked(t *testing.T, url, schema string) (n int) {
	t.Helper()
	_, err := fmt.Sscan(sqlDo(t, url, "SELECT idx_tup_read + 0 FROM pg_stat_user_indexes WHERE schemaname = '"+schema+"' AND indexrelname = 'cell_pkey'"), &n)
	require.NoError(t, err)
	return n
}

// Pages are bounded in bytes too, and have a row at least.
func TestScanPagesHaveBoundedBytes(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct), "coalesce", "off"))
	var muts []rowstore.Mutation
	for i := range 20 {
		m := put(fmt.Sprintf("r%02d", i), 5)
		m.Edits[0].Value = make([]byte, pageBytes/4)
		if i == 7 {
			m.Edits[0].Value = make([]byte, 2*pageBytes)
		}
		if i%2 == 0 {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, "d", 5, make([]byte, pageBytes/4)))
		}
		muts = append(muts, m)
	}
	_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: true})
	require.NoError(t, err)
	for _, reverse := range []bool{false, true} {
		for _, picks := range [][]rowstore.Selector{
			{{Family: rowstore.Write, To: oracle.Max}},
			{{Family: rowstore.Write, To: oracle.Max}, {Family: rowstore.Data, To: oracle.Max}},
			{{Family: rowstore.Write, To: oracle.Max, Limit: 1}},
			{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}},
		} {
			rows, statements, _, err := pages(ctx, s.plain, rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: picks})
			require.NoError(t, err)
			require.Len(t, rows, 20)
			least := 7
			if picks[0].Limit == 1 {
				least = 6 // scan_point takes the row along that goes beyond a page
			}
			require.GreaterOrEqual(t, statements, least)
			for i := 1; i < len(rows); i++ {
				require.Equal(t, reverse, rows[i] < rows[i-1])
			}
		}
	}
}

// A row of 10,000 columns with 100 versions each is written, read, scanned and collected, each call within the
// time that a statement may take here, which is very much less than one for each version would.
func TestWideAndDeepRow(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_wal_size": "4GB"})
	s := openTest(t, with(server.URL, "schema", "wide", "statement_timeout", "10000", "coalesce", "off"))
	const columns, bundles, each = 10_000, 9, 11
	// Versions 1 to 99 in bundles, as commits leave them, and 100 in the cell.
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO wide.cell (tab, key, col, write_ts, write_val)
		SELECT 't', 'wide', ('c' || lpad(i::text, 5, '0'))::bytea, 100, 'newest' FROM generate_series(1, %d) i`, columns))
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO wide.past (tab, key, col, lo, hi, vals)
		SELECT 't', 'wide', ('c' || lpad(i::text, 5, '0'))::bytea, b * %[3]d + 1, b * %[3]d + %[3]d, v.vals
		FROM generate_series(0, %[2]d - 1) b CROSS JOIN LATERAL (
			SELECT string_agg(int8send(ts) || int4send(3) || 'old'::bytea, '' ORDER BY ts DESC) AS vals FROM generate_series(b * %[3]d + 1, b * %[3]d + %[3]d) ts) v
		CROSS JOIN generate_series(1, %[1]d) i`, columns, bundles, each))
	column := func(i int) string { return fmt.Sprintf("c%05d", i) }
	read := func(p rowstore.Selector) []rowstore.Version {
		rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "wide", Selectors: []rowstore.Selector{p}}})
		require.NoError(t, err)
		return rows[0].Versions
	}
	require.Len(t, read(rowstore.Selector{Family: rowstore.Write, To: 50, Limit: 1}), columns)
	require.Len(t, read(rowstore.Selector{Family: rowstore.Write, Column: column(77), To: oracle.Max}), 100)
	require.Len(t, read(rowstore.Selector{Family: rowstore.Write, Column: column(77), From: 40, To: 60}), 21)
	for _, reverse := range []bool{false, true} {
		n := 0
		for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 50, Limit: 1}}}) {
			require.NoError(t, err)
			require.Len(t, row.Versions, columns)
			n++
		}
		require.Equal(t, 1, n)
		// Nothing in it matches, and the row is wider than a page looks.
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}}) {
			t.Fatal("there is no lock", err)
		}
	}
	var m rowstore.Mutation
	for i := 1; i <= columns; i++ {
		one := prewrite("wide", 200)
		one.Conditions[0].Column, one.Conditions[1].Column, one.Conditions[2].Column, one.Edits[0].Column = column(i), column(i), column(i), column(i)
		m.Table, m.Row = "t", "wide"
		m.Conditions, m.Edits = append(m.Conditions, one.Conditions...), append(m.Edits, one.Edits...)
	}
	out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: true})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	for from := 1; from <= columns; from += 1000 {
		m := rowstore.Mutation{Table: "t", Row: "wide"}
		for i := from; i < from+1000; i++ {
			m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Write, column(i), 0, 95))
		}
		out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
	}
	require.Len(t, read(rowstore.Selector{Family: rowstore.Write, To: oracle.Max}), 5*columns)
}
