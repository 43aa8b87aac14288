package postgres

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			s, err := OpenURL(ctx, with(direct, "schema", schema, "pool_max_conns", "2"))
			if err == nil {
				err = s.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, "1", sqlDo(t, direct, "SELECT count(*) FROM "+pgx.Identifier{schema}.Sanitize()+".meta"))
}

var (
	//go:embed testdata/schema_1.sql
	schemaOf1 string
	//go:embed testdata/schema_2.sql
	schemaOf2 string
	//go:embed testdata/schema_3.sql
	schemaOf3 string
	//go:embed testdata/schema_4.sql
	schemaOf4 string
	//go:embed testdata/schema_5.sql
	schemaOf5 string
	//go:embed testdata/schema_6.sql
	schemaOf6 string
)

// dataOf1 is written by a program that knew version 1: ten rows with all that a row can have.
const dataOf1 = `
		INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts)
		SELECT 't', ('r' || i)::bytea, 'c', nullif(i % 3, 0) * 100, CASE i % 3 WHEN 0 THEN NULL ELSE 'lock'::bytea END, 50 + i, ('w' || i)::bytea, nullif(i % 2, 0) * 7
		FROM generate_series(0, 9) i;
		INSERT INTO {{schema}}.old (tab, key, col, ts, val)
		SELECT 't', ('r' || i)::bytea, 'c', 10 * j + i, CASE j WHEN 2 THEN NULL ELSE ('o' || i || j)::bytea END FROM generate_series(0, 9) i, generate_series(1, 3) j;
		INSERT INTO {{schema}}.data VALUES ('t', 'r1', 'c', 5, 'long');
		INSERT INTO {{schema}}.notify VALUES ('t', 'r2', 'c', 6, 'note');`

// versionsOf1 are the versions of a row of dataOf1, newest first.
func versionsOf1(i int) []rowstore.Version {
	ts := rowstore.Timestamp(i) //nolint:gosec // small
	version := func(f rowstore.Family, ts rowstore.Timestamp, value string) rowstore.Version {
		v := rowstore.Version{Family: f, Column: "c", TS: ts}
		if value != "" {
			v.Value = []byte(value)
		}
		return v
	}
	var want []rowstore.Version
	if i%3 != 0 {
		want = append(want, version(rowstore.Lock, ts%3*100, "lock"))
	}
	want = append(want, version(rowstore.Write, 50+ts, fmt.Sprint("w", i)), version(rowstore.Write, 30+ts, fmt.Sprintf("o%d3", i)),
		version(rowstore.Write, 20+ts, ""), version(rowstore.Write, 10+ts, fmt.Sprintf("o%d1", i)))
	if i == 1 {
		want = append(want, version(rowstore.Data, 5, "long"))
	}
	if i%2 != 0 {
		want = append(want, version(rowstore.Mark, 7, ""))
	}
	if i == 2 {
		want = append(want, version(rowstore.Notify, 6, "note"))
	}
	return want
}

// The data of a program that knew version 1 is all there after the migration, also
// when several processes migrate at once, and whoever might use it may still.
func TestMigrationFrom1(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema, made := fresh(t, direct), fresh(t, direct)
	n := newNames(schema)
	sqlDo(t, direct, "CREATE SCHEMA "+n.schema)
	sqlDo(t, direct, n.expand(schemaOf1))
	role := fmt.Sprintf("heir%d", schemas.Add(1))
	atend.Do(t, func() { sqlDo(t, direct, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	sqlDo(t, direct, "CREATE ROLE "+role)
	sqlDo(t, direct, n.expand("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO "+role))
	sqlDo(t, direct, n.expand(dataOf1))
	_, err := OpenURL(ctx, with(direct, "schema", schema, "asis", "true"))
	require.ErrorIs(t, err, rowstore.ErrFormat)

	var wg sync.WaitGroup
	stores := make([]rowstore.Store, 4)
	for i := range stores {
		wg.Go(func() {
			if s, err := OpenURL(ctx, with(direct, "schema", schema, "pool_max_conns", "2")); err == nil {
				stores[i] = s
			} else {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		if s == nil {
			t.FailNow()
		}
		defer func() { require.NoError(t, s.Close()) }()
	}
	s := stores[0]
	all := []rowstore.Selector{
		{Family: rowstore.Lock, To: oracle.Max},
		{Family: rowstore.Write, To: oracle.Max},
		{Family: rowstore.Data, To: oracle.Max},
		{Family: rowstore.Mark, To: oracle.Max},
		{Family: rowstore.Notify, To: oracle.Max},
	}
	for i := range 10 {
		row := fmt.Sprint("r", i)
		ts := rowstore.Timestamp(i) //nolint:gosec // small
		rows, err := s.Read(ctx, []rowstore.RowRead{
			{Table: "t", Row: row, Selectors: all},
			{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: 29 + ts, Limit: 1}}},
		})
		require.NoError(t, err)
		require.Equal(t, versionsOf1(i), rows[0].Versions)
		require.Equal(t, 20+ts, rows[1].Newest(rowstore.Write, "c").TS)
	}

	// Both schemas are the same to the last column.
	openTest(t, with(direct, "schema", made))
	require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
	require.Equal(t, fmt.Sprint(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
	require.Equal(t, "t", sqlDo(t, direct, n.expand("SET search_path TO {{schema}}; SELECT has_table_privilege('"+role+"', 'past', 'INSERT')")))
}

// schemaLayout describes the tables, columns, functions and constraints of a schema.
func schemaLayout(t testing.TB, direct, schema string) string {
	t.Helper()
	return sqlDo(t, direct, `SELECT string_agg(x, E'\n' ORDER BY x) FROM (
			SELECT concat_ws(' ', c.relname, c.relkind, c.relpersistence, c.reloptions::text, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
			FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind <> 'i'
			WHERE c.relnamespace = `+literal(pgx.Identifier{schema}.Sanitize())+`::regnamespace
			UNION ALL
			SELECT concat_ws(' ', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.provolatile, p.proconfig::text)
			FROM pg_proc p WHERE p.pronamespace = `+literal(pgx.Identifier{schema}.Sanitize())+`::regnamespace
			UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = `+literal(pgx.Identifier{schema}.Sanitize())+`::regnamespace) l(x)`)
}

// All but the notifications of version 2 is where it was. A program of version 2 that still runs gets errors and
// does nothing.
func TestMigrationFrom2(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema, made := fresh(t, direct), fresh(t, direct)
	n := newNames(schema)
	sqlDo(t, direct, "CREATE SCHEMA "+n.schema)
	sqlDo(t, direct, n.expand(schemaOf2))
	sqlDo(t, direct, n.expand(`INSERT INTO {{schema}}.cell (tab, key, col, write_ts, write_val) VALUES ('t', 'r', 'c', 50, 'w')`))
	s := openTest(t, with(direct, "schema", schema))
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.NoError(t, err)
	require.Equal(t, []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: 50, Value: []byte("w")}}, rows[0].Versions)
	openTest(t, with(direct, "schema", made))
	require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
	require.Equal(t, fmt.Sprint(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
	requireOtherCalls(t, direct, n, schemaOf2)
}

// requireOtherCalls requires that the functions by which an older version reads and writes are not there any more as
// it called them: its readers would miss what is committed in one phase.
func requireOtherCalls(t *testing.T, direct string, n names, old string) {
	t.Helper()
	before := newNames(fresh(t, direct))
	sqlDo(t, direct, "CREATE SCHEMA "+before.schema+";"+before.expand(old))
	const calls = `SELECT string_agg(p.proname || ' ' || p.proargtypes::text, ',' ORDER BY p.proname) FROM pg_proc p
		WHERE p.pronamespace = E'{{schema_literal}}'::regnamespace AND p.proname ~ '^(apply|read|scan|snapshot)_'`
	were := strings.Split(sqlDo(t, direct, before.expand(calls)), ",")
	require.GreaterOrEqual(t, len(were), 7)
	are := strings.Split(sqlDo(t, direct, n.expand(calls)), ",")
	for _, call := range were {
		require.NotContains(t, are, call)
	}
}

// The session that migrates may have any settings. A program of version 3 that still runs reads nothing and writes
// nothing any more.
func TestMigrationFrom3(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema, made := fresh(t, direct), fresh(t, direct)
	n := newNames(schema)
	sqlDo(t, direct, "CREATE SCHEMA "+n.schema)
	sqlDo(t, direct, n.expand(schemaOf3))
	sqlDo(t, direct, n.expand(`INSERT INTO {{schema}}.cell (tab, key, col, write_ts, write_val) VALUES ('t', 'r', 'c', 50, 'w')`))
	running := connect(ctx, t, direct)
	probe := n.expand("SELECT * FROM {{schema}}.read_point('{t}', '{r}', '{c}', '{60}')")
	require.NoError(t, exec(ctx, running, probe), "it has planned the functions of version 3")
	s, err := New(ctx, strangePool(t, direct, "SET quote_all_identifiers = off"), Options{Schema: schema})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.Equal(t, undefinedFunction, sqlState(exec(ctx, running, probe)))
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.NoError(t, err)
	require.Equal(t, []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: 50, Value: []byte("w")}}, rows[0].Versions)
	openTest(t, with(direct, "schema", made))
	require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
	requireOtherCalls(t, direct, n, schemaOf3)
	require.Equal(t, fmt.Sprint(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
}

func TestNewerSchema(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s, err := OpenURL(ctx, with(direct, "schema", schema))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	sqlDo(t, direct, "UPDATE "+pgx.Identifier{schema}.Sanitize()+".meta SET version = 99")
	_, err = OpenURL(ctx, with(direct, "schema", schema))
	require.ErrorContains(t, err, "version 99")
	require.ErrorIs(t, err, rowstore.ErrFormat)
}

// A schema that somebody else uses is left alone, and one that does not make sense too.
func TestOtherSchemas(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	for what, want := range map[string]error{
		"TABLE {{schema}}.meta (name text)":                 rowstore.ErrFormat,
		"VIEW {{schema}}.meta AS SELECT 'one' AS version":   rowstore.ErrFormat,
		"TABLE {{schema}}.meta (version int)":               rowstore.ErrCorrupt,
		"TABLE {{schema}}.cell (prisoner text)":             rowstore.ErrFormat,
		"VIEW {{schema}}.data AS SELECT 'theirs' AS theirs": rowstore.ErrFormat,
	} {
		schema := fresh(t, direct)
		n := newNames(schema)
		sqlDo(t, direct, n.expand("CREATE SCHEMA {{schema}}; CREATE "+what))
		layout := schemaLayout(t, direct, schema)
		_, err := OpenURL(ctx, with(direct, "schema", schema))
		require.ErrorIs(t, err, want, what)
		require.Equal(t, layout, schemaLayout(t, direct, schema), "nothing was changed")
	}
}

// The tables of versions 5 and 6 are those of today, and what a program of such a version left is all there.
func TestMigrationOfFunctionsAlone(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for version, sql := range map[int]string{5: schemaOf5, 6: schemaOf6} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema, made := fresh(t, direct), fresh(t, direct)
			n := newNames(schema)
			sqlDo(t, direct, "CREATE SCHEMA "+n.schema+";"+n.expand(sql))
			sqlDo(t, direct, n.expand("INSERT INTO {{schema}}.cell (tab, key, col, write_ts, write_val) VALUES ('t', 'a', 'c', 7, 'v'); "+noteOf(version)))
			s := openTest(t, with(direct, "schema", schema))
			openTest(t, with(direct, "schema", made))
			require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
			require.Equal(t, fmt.Sprint(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
			requireOtherCalls(t, direct, n, sql)
			rows, err := s.Read(ctx, []rowstore.RowRead{
				{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}},
				{Table: "t", Row: "b", Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max}}},
			})
			require.NoError(t, err)
			require.Equal(t, []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: 7, Value: []byte("v")}}, rows[0].Versions)
			require.Equal(t, []rowstore.Version{{Family: rowstore.Notify, Column: "c", TS: 1}}, rows[1].Versions)
		})
	}
}

// A call of version 6 that is under way, and has not drawn yet when the migration ends, does not read: a commit in one phase
// may have drawn before it.
func TestMigrationFrom6MeetsACall(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	n := newNames(schema)
	sqlDo(t, direct, "CREATE SCHEMA "+n.schema+";"+n.expand(schemaOf6))
	sqlDo(t, direct, n.expand("INSERT INTO {{schema}}.cell (tab, key, col, write_ts, write_val) VALUES ('t', 'a', 'c', 7, 'v')"))
	call := n.expand(`SELECT * FROM {{schema}}.snapshot_point(9e18::bigint, 0, 9e18::bigint, '{0}', '{t}', '{a}', '{c}', '{NULL}')`)
	running, holder, watcher := connect(ctx, t, with(direct, "application_name", n.channel)), connect(ctx, t, direct), connect(ctx, t, direct)
	require.NoError(t, exec(ctx, running, "SELECT nextval("+n.expand(clockSQL)+"); "+call), "it has planned the function of version 6")
	require.NoError(t, exec(ctx, holder, n.expand("SELECT pg_advisory_lock("+clockLockSQL+")")))
	called := make(chan error, 1)
	go func() { called <- exec(ctx, running, call) }()
	waitsForLock(ctx, t, watcher, n.channel, called)
	migrating := connect(ctx, t, direct)
	require.NoError(t, migrate(ctx, migrating, schema, n, false))
	require.NoError(t, exec(ctx, holder, n.expand("SELECT pg_advisory_unlock("+clockLockSQL+")")))
	require.Equal(t, undefinedColumn, sqlState(<-called))
}
