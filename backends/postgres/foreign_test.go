package postgres

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestOwnFunctions looks for functions of any version that a migration would leave behind.
func TestOwnFunctions(t *testing.T) {
	t.Parallel()
	created := regexp.MustCompile(`CREATE FUNCTION [^ (]*\.([a-z_]+)\(\s*([a-z_]*)`)
	n := newNames("s")
	found := 0
	for _, sql := range []string{schemaOf1, schemaOf2, schemaOf3, schemaOf4, schemaOf5, schemaOf6, n.creation()} {
		for _, f := range created.FindAllStringSubmatch(sql, -1) {
			require.Contains(t, ownFunctions, f[1])
			if f[2] == "" {
				require.Contains(t, bareFunctions, f[1])
			} else {
				require.Regexp(t, "^p_", f[2])
			}
			found++
		}
	}
	require.Greater(t, found, 100)
}

// A schema may have tables and functions of another application beside the store. Neither making, using nor migrating the store
// touches them.
func TestBesideAnotherApplication(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, stored := range map[string]string{"new": "", "version 1": schemaOf1, "version 6": schemaOf6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t) // from when the subtest runs: it may have waited for minutes
			schema := fresh(t, direct)
			quoted := pgx.Identifier{schema}.Sanitize()
			sqlDo(t, direct, fmt.Sprintf(`CREATE SCHEMA %[1]s; CREATE TABLE %[1]s.invoice (id integer PRIMARY KEY, sum integer);
				INSERT INTO %[1]s.invoice VALUES (1, 100); CREATE FUNCTION %[1]s.total() RETURNS bigint LANGUAGE sql AS 'SELECT sum(sum) FROM %[2]s.invoice';
				CREATE PROCEDURE %[1]s.pay() LANGUAGE sql AS 'SELECT 1'; CREATE AGGREGATE %[1]s.product(integer) (sfunc = int4mul, stype = integer);
				CREATE FUNCTION %[1]s.flush(account integer) RETURNS integer LANGUAGE sql AS 'SELECT account';
				CREATE FUNCTION %[1]s.draw() RETURNS integer LANGUAGE sql AS 'SELECT 8';
				CREATE FUNCTION %[1]s.draw(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $1';
				CREATE FUNCTION %[1]s.next_table(name text) RETURNS text LANGUAGE sql AS 'SELECT $1';
				CREATE FUNCTION %[1]s.guard(text, OUT p_who text) LANGUAGE sql AS 'SELECT $1'`,
				quoted, strings.ReplaceAll(quoted, "'", "''")))
			if stored != "" {
				sqlDo(t, direct, newNames(schema).expand(stored))
			}
			s := openTest(t, with(direct, "schema", schema))
			db, err := percolator.New(ctx, s)
			require.NoError(t, err)
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				return tx.Set(percolator.Cell{Table: "t", Row: "r", Column: "c"}, []byte("v"))
			}))
			tables := 0
			for table, err := range s.Tables(ctx) {
				require.NoError(t, err)
				if table == "t" {
					tables++
				}
			}
			require.Equal(t, 1, tables)
			require.NoError(t, db.Close(ctx))
			require.Equal(t, "100", sqlDo(t, direct, "SELECT "+quoted+".total()"))
			sqlDo(t, direct, "CALL "+quoted+".pay()")
			for call, want := range map[string]string{"flush(7)": "7", "draw()": "8", "guard('x')": "x"} {
				require.Equal(t, want, sqlDo(t, direct, "SELECT "+quoted+"."+call))
			}
			require.Equal(t, "6", sqlDo(t, direct, "SELECT "+quoted+".product(i) FROM generate_series(1, 3) i"))
		})
	}
}

// What has a name that a store needs is another application's, and is left as it is.
func TestNamesOfAnotherApplication(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, sql := range map[string]string{
		"table":          "CREATE TABLE %[1]s.data (x integer)",
		"sequence":       "CREATE SEQUENCE %[1]s.clock",
		"type":           "CREATE TYPE %[1]s.cell AS (x integer)",
		"function":       "CREATE FUNCTION %[1]s.flush() RETURNS void LANGUAGE sql AS ''",
		"version":        "CREATE TABLE %[1]s.meta (version integer); INSERT INTO %[1]s.meta VALUES (3)",
		"this version":   fmt.Sprintf("CREATE TABLE %%[1]s.meta (version integer); INSERT INTO %%[1]s.meta VALUES (%d)", schemaVersion),
		"other versions": "CREATE TABLE %[1]s.meta (version text); INSERT INTO %[1]s.meta VALUES ('1.0'), ('1.1')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t) // from when the subtest runs: it may have waited for minutes
			schema := fresh(t, direct)
			quoted := pgx.Identifier{schema}.Sanitize()
			sqlDo(t, direct, "CREATE SCHEMA "+quoted+"; "+fmt.Sprintf(sql, quoted))
			things := `SELECT string_agg(n, ',') FROM (SELECT relname::text AS n FROM pg_class WHERE relnamespace = ` + literal(quoted) + `::regnamespace
				UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = ` + literal(quoted) + `::regnamespace ORDER BY 1) x`
			before := sqlDo(t, direct, things)
			_, err := OpenURL(ctx, with(direct, "schema", schema))
			require.ErrorIs(t, err, rowstore.ErrForeign)
			require.ErrorContains(t, err, "use another schema")
			require.Equal(t, before, sqlDo(t, direct, things))
		})
	}
}
