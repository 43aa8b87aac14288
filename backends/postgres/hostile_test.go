package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// hostileSQL makes, as a role that may create in public, everything that a name without
// a schema could be taken for: each function of the system with the same types, and those of any type with
// the types that are used here; each operator of the system, and each on two different types that the system has
// no operator for, so that ours would be the better match; types and tables. All of it raises an error that
// the test knows. The system refuses some of them; they are left out.
const hostileSQL = `
SET search_path = pg_catalog;
SET ROLE %[1]s;
CREATE FUNCTION public.ran() RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION 'hostile code ran'; END $f$;
DO $do$
DECLARE
	plain text[] := '{boolean,bytea,smallint,integer,bigint,double precision,numeric,text,name,oid,regclass}';
	lists text[] := '{bytea[],integer[],bigint[],text[]}';
	a text; b text; o text; f record; made bigint := 0;
BEGIN
	-- Functions: exact copies, and any type made concrete.
	FOR f IN SELECT DISTINCT p.proname, pg_get_function_identity_arguments(p.oid) AS args, p.pronargs FROM pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a') AND NOT p.proretset AND p.pronargs <= 4 AND p.provariadic = 0
		AND NOT EXISTS (SELECT FROM unnest(p.proargtypes::oid[]) t WHERE format_type(t, NULL) <> ALL (plain || lists))
	LOOP
		BEGIN
			EXECUTE format('CREATE FUNCTION public.%%I(%%s) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile code ran: %%s''; END $f$',
				f.proname, f.args, f.proname);
			made := made + 1;
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOREACH o IN ARRAY '{unnest,cardinality,array_agg,min,max,count,array_length,array_append,array_cat,length,octet_length,nextval,setval,pg_relation_size,convert_to,substr,greatest}'::text[] LOOP
		FOREACH a IN ARRAY plain || lists LOOP
			BEGIN
				EXECUTE format('CREATE FUNCTION public.%%I(%%s) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile code ran: %%s''; END $f$', o, a, o);
				made := made + 1;
			EXCEPTION WHEN OTHERS THEN NULL;
			END;
		END LOOP;
	END LOOP;
	-- Operators of every pair of types.
	FOREACH a IN ARRAY plain || lists LOOP
		FOREACH b IN ARRAY plain || lists LOOP
			EXECUTE format('CREATE FUNCTION public.trap(%%s, %%s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile code ran: an operator of %%s and %%s''; END $f$', a, b, a, b);
			FOREACH o IN ARRAY '{=,<>,<,<=,>,>=,||,+,-,*,/,&,|,<<}'::text[] LOOP
				EXECUTE format('CREATE OPERATOR public.%%s (LEFTARG = %%s, RIGHTARG = %%s, FUNCTION = public.trap)', o, a, b);
				made := made + 1;
			END LOOP;
		END LOOP;
	END LOOP;
	FOREACH a IN ARRAY '{bytea,text,name,record,regclass,regprocedure,regnamespace,int2,int4,int8,float8,bool,oid}'::text[] LOOP
		EXECUTE format('CREATE DOMAIN public.%%I AS pg_catalog.int4 CHECK (public.ran() IS NULL)', a);
	END LOOP;
	FOREACH a IN ARRAY '{pg_class,pg_proc,pg_namespace,pg_stat_replication,meta,cell,past,data,notify,oracle,incarnation,clock}'::text[] LOOP
		EXECUTE format('CREATE VIEW public.%%I AS SELECT public.ran() AS version', a);
	END LOOP;
	IF made < 2000 THEN
		RAISE EXCEPTION 'only %% were made', made;
	END IF;
END $do$;
RESET ROLE;
`

// Where others may create in a schema on the search path, which is the default of Postgres 14, none
// of what they make there is ever run or read by this package, whatever the search path is.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	u, err := url.Parse(direct)
	require.NoError(t, err)
	database := fmt.Sprintf("hostile%d", schemas.Add(1))
	sqlDo(t, direct, "CREATE DATABASE "+database)
	atend.Do(t, func() {
		sqlDo(t, direct, "DROP DATABASE "+database+" WITH (FORCE)")
		sqlDo(t, direct, "DROP ROLE "+database)
	})
	u.Path = "/" + database
	there := u.String()
	sqlDo(t, there, "CREATE ROLE "+database+"; GRANT CREATE, USAGE ON SCHEMA public TO "+database)
	sqlDo(t, there, fmt.Sprintf(hostileSQL, database))
	// The trap works: each of these is taken for the hostile thing.
	for _, trap := range []string{
		"SELECT 1.5::float8 * 2",
		"SELECT nextval('x')",
		"SELECT * FROM cell",
		"SET search_path = public, pg_catalog; SELECT 1 = 1",
		"SET search_path = public, pg_catalog; SELECT length('x'::pg_catalog.bytea)",
	} {
		c := connect(ctx, t, there)
		_, err := c.PgConn().Exec(ctx, trap).ReadAll()
		require.Error(t, err, trap)
		require.True(t, strings.Contains(err.Error(), "hostile code ran") || strings.Contains(err.Error(), "nextval"), "%s: %v", trap, err)
	}
	for name, params := range map[string][]string{
		"DefaultPath":  nil,
		"HostileFirst": {"search_path", "public, pg_catalog", "default_query_exec_mode", "exec"},
		"Explicit":     {"search_path", "public, pg_catalog", "default_transaction_isolation", "serializable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t) // it may wait long for its turn
			schema := "store " + name
			announced := hears(ctx, t, there, schema)
			s := openTest(t, with(there, append([]string{"schema", schema, "track_functions", "all"}, params...)...))
			everyCall(ctx, t, s, there)
			announced(s, "t")
			require.NoError(t, s.Close())
			requireAllCalled(t, there, schema)
			// An older schema is migrated there too.
			for version, sql := range map[int]string{1: schemaOf1, 2: schemaOf2, 3: schemaOf3, 4: schemaOf4, 5: schemaOf5, 6: schemaOf6} {
				n := newNames(fmt.Sprint(schema, version))
				sqlDo(t, there, "SET search_path = pg_catalog; CREATE SCHEMA "+n.schema+";"+n.expand(sql)+
					n.expand(noteOf(version)))
				old := openTest(t, with(there, append([]string{"schema", fmt.Sprint(schema, version)}, params...)...))
				everyCall(ctx, t, old, there)
			}
			// No function relies on the caller's path. Those of ready sessions refuse one that is another.
			refuseStrangers(ctx, t, there, schema)
			loose := sqlDo(t, there, "SET search_path = pg_catalog; SELECT string_agg(proname, ' ') FROM pg_proc WHERE pronamespace = "+
				literal(newNames(schema).schema)+"::regnamespace AND proname NOT LIKE '%"+readySuffix+"' AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(proconfig, '{}'))")
			require.Empty(t, loose)
		})
	}
}

// noteOf puts a notification into a schema of a version.
func noteOf(version int) string {
	if version < 5 {
		return "INSERT INTO {{schema}}.notify (tab, key, col, ts) VALUES ('t', 'b', 'c', 1)"
	}
	return fmt.Sprintf("INSERT INTO {{schema}}.notify (tab, key, col, ts, slot) VALUES ('t', 'b', 'c', 1, %d)", rowstore.Slot("t", "b"))
}

// refuseStrangers calls each function for ready sessions under hostile search paths. It looks no name up, not those of its
// variables' types either, before it has refused.
func refuseStrangers(ctx context.Context, t *testing.T, dsn, schema string) {
	t.Helper()
	calls := sqlDo(t, dsn, "SET search_path = pg_catalog; SELECT string_agg(format('SELECT * FROM %s.%I(%s)', p.pronamespace::regnamespace, p.proname, "+
		"(SELECT string_agg('NULL::pg_catalog.' || typname, ', ' ORDER BY i) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a(o, i) JOIN pg_type y ON y.oid = o)), E'\n') "+
		"FROM pg_proc p WHERE p.pronamespace = "+literal(newNames(schema).schema)+"::regnamespace AND p.proname LIKE '%"+readySuffix+"'")
	all := strings.Split(calls, "\n")
	require.Len(t, all, len(shapes)+5)
	for _, path := range []string{"public, pg_catalog", "pg_catalog", "pg_catalog, pg_temp, public", "''"} {
		c := connect(ctx, t, dsn) // what one call leaves in the session, the others do not look at: each is of another function
		for _, call := range all {
			_, err := c.PgConn().Exec(ctx, "SET search_path = "+path+";"+call).ReadAll()
			require.Equal(t, sessionChanged, sqlState(err), "%s: %v", call, err)
		}
	}
}

// requireAllCalled fails if a function of a schema was not called by any session that has ended. Its sessions
// had track_functions set. Functions in SQL are not counted where they become a part of what calls them.
func requireAllCalled(t *testing.T, dsn, schema string) {
	t.Helper()
	left := ""
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(testTick) { // a session tells its counts when it ends
		left = sqlDo(t, dsn, "SET search_path = pg_catalog; SELECT coalesce(string_agg(name, ' '), '') FROM (SELECT regexp_replace(p.proname, '"+readySuffix+"$', '') AS name "+
			"FROM pg_proc p LEFT JOIN pg_stat_user_functions f ON f.funcid = p.oid JOIN pg_language l ON l.oid = p.prolang "+
			"WHERE p.pronamespace = "+literal(newNames(schema).schema)+"::regnamespace AND l.lanname = 'plpgsql' GROUP BY 1 HAVING coalesce(sum(f.calls), 0) = 0) x")
		if left == "" {
			return
		}
	}
	require.Empty(t, left, "functions that nobody called")
}

// everyCall makes each kind of call that the store has, which is empty. Some it makes a second time, beside an open transaction that
// has a number: then a read makes sure that no commit in one phase is missing. dsn is for that.
func everyCall(ctx context.Context, t *testing.T, s rowstore.Store, dsn string) {
	t.Helper()
	for range 5 { // steps of the sequence, and the function
		draw(ctx, t, s)
	}
	everyWrite(ctx, t, s)
	everyDrawn(ctx, t, s)
	everyRead(ctx, t, s)
	beside := connect(ctx, t, dsn)
	require.NoError(t, exec(ctx, beside, "BEGIN; SELECT pg_catalog.pg_current_xact_id()"))
	everyDrawn(ctx, t, s)
	everyRead(ctx, t, s)
	require.NoError(t, exec(ctx, beside, "ROLLBACK"))
	f, _ := rowstore.Unwrap[rowstore.Deferrer](s)
	require.NoError(t, f.Flush(ctx))
	p, _ := rowstore.Unwrap[rowstore.Splitter](s)
	_, err := p.Split(ctx, "t", 4)
	require.NoError(t, err)
	r, _ := rowstore.Unwrap[rowstore.Reporter](s)
	_, err = r.Report(ctx)
	require.NoError(t, err)
	w, _ := rowstore.Unwrap[rowstore.Waker](s)
	listening, stop := context.WithCancel(ctx)
	require.ErrorIs(t, w.Listen(listening, func(rowstore.Wake) { stop() }), context.Canceled)
}

// everyWrite makes edits of every kind, each with what it meets.
func everyWrite(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	long := make([]byte, 100)
	var muts []rowstore.Mutation
	for ts := rowstore.Timestamp(10); ts < 20; ts++ {
		m := put("a", ts)
		m.Edits[0].Value = long
		muts = append(muts, m)
	}
	muts = append(muts,
		rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "c", 1, 12)}},
		rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Write, "c", 19)}}, // the newest
		put("a", 15), // below the newest
		prewrite("a", 30), commit("a", 30, 31),
		rowstore.Mutation{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Notify, "c", 0)}, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Notify, "c", 32, nil), rowstore.Put(rowstore.Data, "c", 32, long), rowstore.Put(rowstore.Mark, "c", 33, nil),
		}},
		rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.Delete(rowstore.Notify, "c", 32), rowstore.Delete(rowstore.Data, "c", 32), rowstore.Put(rowstore.Notify, "c", 34, nil), rowstore.Put(rowstore.Data, "c", 34, nil),
		}},
		rowstore.Mutation{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.AbsentAt("c", 5)}},
		rowstore.Mutation{Table: "t", Row: "b", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 34, nil)}},
	)
	for ts := rowstore.Timestamp(10); ts < 14; ts++ { // short ones stay in the cell
		muts = append(muts, rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "s", ts, nil)}})
	}
	muts = append(muts, rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "s", 1, 11)}})
	for i, m := range muts {
		out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: i%2 == 0, AssignTimestamp: i%3 == 0})
		require.NoError(t, err, "mutation %d", i)
		require.True(t, out[0].Applied, "mutation %d: %+v", i, out[0])
	}
	out, err := s.Apply(ctx, []rowstore.Mutation{prewrite("a", 20), prewrite("new", 40)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.False(t, out[0].Applied)
	require.True(t, out[1].Applied)
	g, _ := rowstore.Unwrap[rowstore.Grouper](s)
	groups, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{prewrite("g1", 40), prewrite("g2", 40)}}})
	require.NoError(t, err)
	require.True(t, groups[0].Applied)
}

// everyDrawn commits in one phase: groups that apply and that do not, which cells decide or columns that are not compiled.
func everyDrawn(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	g, _ := rowstore.Unwrap[rowstore.Grouper](s)
	start := draw(ctx, t, s)
	one := rowstore.Mutation{Table: "t", Row: "a", Conditions: []rowstore.Condition{
		rowstore.Absent(rowstore.Write, "d", start), rowstore.Absent(rowstore.Lock, "d", 0), rowstore.Absent(rowstore.Mark, "d", start),
	}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "d", rowstore.AssignedTimestamp, []byte("drawn"))}}
	judged := rowstore.Mutation{Table: "t", Row: "b", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "d", start)}}
	general := rowstore.Mutation{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.AbsentAt("c", 5)}, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, "e", rowstore.AssignedTimestamp, make([]byte, 100)), rowstore.Put(rowstore.Data, "e", rowstore.AssignedTimestamp, nil),
		rowstore.Delete(rowstore.Data, "e", rowstore.AssignedTimestamp-1),
	}}
	locked := rowstore.Mutation{Table: "t", Row: "new", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}}
	for i, muts := range [][]rowstore.Mutation{{one}, {one, judged}, {general}, {one, locked}, {general, locked}} {
		out, err := g.Group(ctx, []rowstore.Group{{Mutations: muts, AssignTimestamp: true}})
		require.NoError(t, err, "group %d", i)
		// The second one meets what the first one wrote.
		require.Equal(t, i == 0 || i == 2, out[0].Applied, "group %d: %+v", i, out[0])
	}
}

// everyPoint scans for locks and the newest writes, as nearly every scan of the core does.
func everyPoint(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	for _, column := range []string{rowstore.AllColumns, "c"} {
		for _, reverse := range []bool{false, true} {
			for _, start := range []rowstore.Timestamp{0, rowstore.AssignedTimestamp, 35} {
				r := rowstore.ScanRange{Table: "t", Reverse: reverse}
				to := start
				switch start {
				case 0: // of no snapshot
					to = oracle.Max
				case rowstore.AssignedTimestamp: // the first page draws it
					r.Snapshot = &rowstore.ScanSnapshot{}
				default:
					r.Snapshot = &rowstore.ScanSnapshot{Start: start}
				}
				r.Selectors = []rowstore.Selector{{Family: rowstore.Lock, Column: column, To: oracle.Max}, {Family: rowstore.Write, Column: column, To: to, Limit: 1}}
				n := 0
				for _, err := range s.Scan(ctx, r) {
					require.NoError(t, err)
					n++
				}
				require.Equal(t, 4, n, "column %q, at %d, reverse %v", column, start, reverse)
			}
		}
	}
}

// everyRead reads in every way what everyWrite wrote.
func everyRead(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	var all []rowstore.Selector
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		all = append(all, rowstore.Selector{Family: f, To: oracle.Max}, rowstore.Selector{Family: f, Column: "c", To: oracle.Max, Limit: 2})
	}
	point := []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: oracle.Max}, {Family: rowstore.Write, Column: "c", To: 16, Limit: 1}}
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: all}, {Table: "t", Row: "a", Selectors: point}})
	require.NoError(t, err)
	require.NotEmpty(t, rows[0].Versions)
	require.NotEmpty(t, rows[1].Versions)
	d, _ := rowstore.Unwrap[rowstore.SnapshotReader](s)
	drawn, err := d.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
	}}}}})
	require.NoError(t, err)
	require.NotEmpty(t, drawn[0].Rows[0].Versions)
	for _, reverse := range []bool{false, true} {
		n := 0
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: all, Reverse: reverse}) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 5, n)
	}
	everyPoint(ctx, t, s)
	notify := []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
	for i, r := range []rowstore.ScanRange{
		{Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}},
		{Slots: []rowstore.SlotRange{{First: 0, Last: 9}, {First: 10, Last: rowstore.Slots - 1}}, From: "\x00", Limit: 2},
		{},
		{Reverse: true},
	} {
		r.Table, r.Selectors = "t", notify
		n := 0
		for _, err := range s.Scan(ctx, r) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 2, n, "scan %d", i)
	}
	for table, err := range s.Tables(ctx) {
		require.NoError(t, err)
		require.Equal(t, "t", table)
	}
}
