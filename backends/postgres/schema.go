package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// schemaVersion is the newest version of the schema that this package knows, and
// the one that it works with.
const schemaVersion = 10

// minServer is the oldest server version that will do, as server_version_num has it.
const minServer = 140000

var (
	//go:embed schema_tables.sql
	schemaTables string
	//go:embed schema_functions.sql
	schemaFunctions string
	//go:embed schema_reads.sql
	schemaReads string
	//go:embed schema_apply.sql
	schemaApply string
	//go:embed schema_general.sql
	schemaGeneral string
	//go:embed schema_from_1.sql
	schemaFrom1 string
)

// pastLimit is the length in bytes at which the older writes inside a cell move to
// the table past. A longer one makes each update copy more, a shorter one makes
// more entries of an index. It is part of the schema: with another one, what is in
// both places would be mistaken for what is in the cell alone.
const pastLimit = 256

// bundleFamily stands for a bundle of older writes where answers have a family.
const bundleFamily = 100

// functionPath stands at every function: nothing outside of the system's own schema is
// looked up, whatever the caller's search path is, but for what is named with its schema. Temporary
// objects, which are looked for first where they are not named, come last.
const functionPath = `SET search_path = pg_catalog, pg_temp`

// functionSettings stand at every function that joins lists with the tables. The
// planner does not know how long a list is; whatever it guesses, probing the index
// for each element in order is right, and keeps the order in which rows are locked.
//
// They do not decide which side of a nested loop is the inner one, and a plan outlives the size of the
// tables that it was made for. So a join leaves no choice either: where it can, the
// table is in a LATERAL subquery with OFFSET 0; an UPDATE or DELETE says tab = ANY (ARRAY[u.tab]),
// which an index can answer and no sort order is useful for, so that the planner does not
// even think of walking through the whole index.
const functionSettings = functionPath + ` SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off ` +
	`SET jit = off SET plan_cache_mode = force_generic_plan`

// giveWay makes every wait for a lock that follows a short one, which ends in an error. It stands where locks
// are already held that are not before all others in the order of locks.
const giveWay = `PERFORM set_config('lock_timeout', '20ms', true);`

// waitForLocks undoes a lock_timeout of the session. It stands where waiting for a lock is how
// clients take their turns; the caller's context bounds the wait.
const waitForLocks = `IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;`

// names are what the SQL of a schema is written with.
type names struct {
	schema  string // quoted
	literal string // quoted, within an E'' literal
	channel string // of notifications
	clock   int64  // the advisory lock of the oracle
	// clockKey names the bound that a connection knows, among its custom data.
	clockKey string
	migrate  int64  // the advisory lock of migrations
	body     string // the tags of literals with the schema's name inside: of functions,
	do       string // and of statements
	rows     int64  // the class of the advisory locks of rows, in the upper half
	xacts    int64  // that of transactions
}

func newNames(schema string) names {
	quoted := pgx.Identifier{schema}.Sanitize()
	return names{
		schema:  quoted,
		literal: escapeLiteral(quoted),
		channel: "percolator_" + strconv.FormatUint(hash("channel", schema), 36),
		clock:   int64(hash("clock", schema)),   //nolint:gosec // any number will do
		migrate: int64(hash("migrate", schema)), //nolint:gosec // any number will do

		clockKey: "percolator clock " + schema,
		body:     tag("body", schema),
		do:       tag("do", schema),
		rows:     lockClass("rows", schema),
		xacts:    lockClass("transactions", schema),
	}
}

// tag is a tag of a dollar-quoted literal, by its name as the SQL has it, that a schema's name does not contain: there it would end the literal.
func tag(name, schema string) string {
	tag := "$" + name + "$"
	for strings.Contains(schema, tag) {
		name += "_"
		tag = "$" + name + "$"
	}
	return tag
}

func hash(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte("percolator\x00" + p + "\x00"))
	}
	return h.Sum64()
}

// expand fills in a piece of SQL. More pairs may be given, as with
// strings.NewReplacer, and may themselves contain the names.
func (n names) expand(sql string, pairs ...string) string {
	if len(pairs) > 0 {
		sql = strings.NewReplacer(pairs...).Replace(sql)
	}
	return strings.NewReplacer(
		"$body$", n.body, "$do$", n.do, "{{schema}}", n.schema, "{{schema_literal}}", n.literal, "{{channel}}", n.channel,
		"{{clock_lock}}", strconv.FormatInt(n.clock, 10), "{{transactions}}", strconv.FormatInt(n.xacts, 10), "{{transactions_class}}", strconv.FormatUint(uint64(n.xacts)>>32, 10), "{{settings}}", functionSettings, "{{path}}", functionPath, "{{give_way}}", giveWay, "{{wait}}", waitForLocks,
		"{{own_functions}}", strings.Join(ownFunctions, ","), "{{bare_functions}}", strings.Join(bareFunctions, ","),
		"{{past_limit}}", strconv.Itoa(pastLimit), "{{bundle}}", strconv.Itoa(bundleFamily), "{{few}}", strconv.Itoa(fewReads),
	).Replace(sql)
}

// creation returns the SQL that makes the newest version where there is none.
func (n names) creation() string {
	return n.expand(schemaTables) + n.functions() + n.expand("INSERT INTO {{schema}}.meta (version) VALUES ("+strconv.Itoa(schemaVersion)+");")
}

// ownFunctions are the functions of all versions, by name. The schema may have others, of another application, also with these names and
// other parameters: those of a store begin with p_, and the functions of a store without any are bareFunctions.
var ownFunctions = []string{
	"apply_any", "apply_any_ready", "apply_commit", "apply_commit_ready", "apply_general", "apply_general_ready", "apply_one", "apply_one_ready",
	"apply_prewrite", "apply_prewrite_ready", "draw", "durability", "flush", "guard", "incarnation_id", "next_table", "past_cut", "past_entries",
	"past_entry", "past_lowest", "past_put", "past_without", "read_any", "read_any_ready", "read_point", "read_point_ready", "sample_keys",
	"scan_keys", "scan_page", "scan_point", "scan_point_ready", "scan_slots", "snapshot_point", "snapshot_point_ready",
}

var bareFunctions = []string{"flush", "guard", "incarnation_id"}

// dropFunctions removes the store's functions of whatever version, which hold no state. A program of that version that
// still runs gets errors from now on where they are made with other parameters (errOtherVersion). So a version
// that an older program must not write to has other parameters in every function that writes.
const dropFunctions = `DO $do$ DECLARE f regprocedure; BEGIN
	FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace = E'{{schema_literal}}'::regnamespace AND p.prokind = 'f' AND p.proname = ANY ('{{{own_functions}}}')
		AND CASE p.pronargs WHEN 0 THEN p.proname = ANY ('{{{bare_functions}}}') ELSE (SELECT pg_catalog.bool_and(pg_catalog.left(a, 2) = 'p_') FROM pg_catalog.unnest(p.proargnames[1:p.pronargs]) a) END LOOP
		EXECUTE 'DROP FUNCTION ' || f;
	END LOOP;
END $do$;
`

// functions returns the SQL that makes the functions.
func (n names) functions() string {
	var sql strings.Builder
	sql.WriteString(n.expand(schemaFunctions,
		"{{entry_of_params}}", entry("p_ts", "p_val"),
		"{{barrier}}", barrierSQL, "{{barrier_vars}}", barrierVars,
		"{{scan_cell}}", scanKeys("cell", cellMatches, cellSize),
		"{{scan_data}}", scanKeys("data", sideMatches(3), sideSize),
		"{{slot_matches}}", sideMatches(5), "{{slot_size}}", sideSize))
	for _, set := range [][]string{
		{"{{set}}", "", "{{session}}", ""},
		{"{{set}}", readySuffix, "{{session}}", sessionIsReady, "{{settings}}", ""},
	} {
		step := stepFrom("p_lag", "v_bound")
		set = append(set, "{{step}}", step, "{{step_alone}}", strings.ReplaceAll(stepAloneSQL, "{{step}}", step), "{{own}}", strings.ReplaceAll(ownSQL, "{{step}}", step), "{{settle}}", settleSQL,
			"{{own_params}}", ownParams, "{{own_vars}}", ownVars, "{{settle_vars}}", "v_busy  bigint[];\n\t"+barrierVars, "{{points}}", pointSQL,
			"{{in_flight}}", inFlightSQL, "{{barrier}}", barrierSQL, "{{barrier_vars}}", barrierVars, "{{range}}", rangeSQL(""), "{{range_desc}}", rangeSQL(" DESC"), "{{clock}}", clockSQL, "{{bound}}", boundSQL, "{{first}}", firstSQL, "{{draw_vars}}", ownVars)
		sql.WriteString(n.expand(schemaReads, set...))
		for _, s := range shapes {
			sql.WriteString(n.expand(strings.NewReplacer(s.pairs()...).Replace(schemaApply), set...))
		}
		sql.WriteString(n.expand(schemaGeneral, set...))
	}
	return sql.String()
}

// pastSQL is the SQL of the bundle with the newest write at or below a timestamp, for a line c whose newest one is above it.
const pastSQL = `CASE WHEN c.write_ts > {{ts}} THEN
			CASE WHEN c.past_oldest <= {{ts}} THEN c.past
			ELSE (
				SELECT o.vals FROM {{schema}}.past o
				WHERE o.tab = {{tab}} AND o.key = c.key AND o.col = c.col AND o.lo <= {{ts}}
				ORDER BY o.lo DESC LIMIT 1
			) END
		END`

func pastAt(tab, ts string) string {
	return strings.NewReplacer("{{tab}}", tab, "{{ts}}", ts).Replace(pastSQL)
}

// pointSQL is the SQL of a read of single columns, at the timestamps p_ts.
var pointSQL = `SELECT u.i::integer, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
		` + pastAt("u.tab", "u.ts") + `
	FROM unnest(p_tab, p_key, p_col, p_ts, p_lock) WITH ORDINALITY AS u(tab, key, col, ts, lock, i)
	CROSS JOIN LATERAL (
		SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
	) c
	WHERE v_busy IS NULL OR u.lock <> ALL (v_busy);
	IF v_busy IS NOT NULL THEN
		RETURN QUERY SELECT -u.i::integer, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bytea
		FROM unnest(p_lock) WITH ORDINALITY AS u(lock, i) WHERE u.lock = ANY (v_busy);
	END IF;`

// rangeSQL is the SQL of a scan of single columns, at the timestamp p_ts, in an order of keys.
func rangeSQL(order string) string {
	by := "c.key" + order + ", c.col" + order
	return `SELECT c.key, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
			` + pastAt("p_tab", "p_ts") + `, c.col, CASE WHEN c.n = p_look OR c.bytes > p_bytes THEN c.n END
		FROM (
			SELECT c.*, row_number() OVER w AS n, sum(c.own) OVER w AS bytes FROM (
				SELECT c.*, 64 + coalesce(octet_length(c.lock_val), 0) + coalesce(octet_length(c.mark_val), 0) + coalesce(octet_length(c.write_val), 0) +
					CASE WHEN c.write_ts > p_ts THEN coalesce(octet_length(c.past), 0) ELSE 0 END AS own
				FROM {{schema}}.cell c WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY ` + by + ` LIMIT p_look
			) c WINDOW w AS (ORDER BY ` + by + ` ROWS UNBOUNDED PRECEDING)
		) c
		WHERE c.bytes - c.own <= p_bytes AND (p_cols IS NULL OR c.col = ANY (p_cols) OR c.n = p_look OR c.bytes > p_bytes)
		LIMIT p_n;`
}

// entry is the SQL of one write as it stands in a bundle.
func entry(ts, val string) string {
	return `int8send(` + ts + `) || int4send(coalesce(length(` + val + `), 0)) || coalesce(` + val + `, '')`
}

// cellMatches asks of the older writes in the table past only for the newest bundle that may match:
// bundles do not overlap.
const cellMatches = `EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE (p.col IS NULL OR p.col = c.col) AND CASE p.fam
		WHEN 1 THEN c.lock_ts BETWEEN p.lo AND p.hi
		WHEN 4 THEN c.mark_ts BETWEEN p.lo AND p.hi
		WHEN 2 THEN c.write_ts >= p.lo AND p.lo <= p.hi AND (c.write_ts <= p.hi OR c.past_oldest <= p.hi OR
			(SELECT o.hi FROM {{schema}}.past o WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= p.hi
				ORDER BY o.lo DESC LIMIT 1) >= p.lo)
		ELSE false END OFFSET 0)`

func sideMatches(family int) string {
	return `EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE p.fam = ` + strconv.Itoa(family) + ` AND (p.col IS NULL OR p.col = c.col) AND c.ts BETWEEN p.lo AND p.hi OFFSET 0)`
}

// cellSize and sideSize are what a line adds to a page, in bytes, roughly.
const (
	cellSize = `64 + coalesce(octet_length(c.lock_val), 0) + coalesce(octet_length(c.write_val), 0) + coalesce(octet_length(c.mark_val), 0) +
		coalesce(octet_length(c.past), 0) + CASE WHEN p_deep THEN (SELECT coalesce(sum(octet_length(o.vals)), 0) FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col) ELSE 0 END`
	sideSize = `64 + coalesce(octet_length(c.val), 0)`
)

// scanKeys is the SQL that adds the next keys of a table that match to v_keys, and their sizes to v_sizes,
// and moves v_stop, where the page ends at the latest. The line that is the last one that may be
// looked at comes along, so that it is known where that was. Every step keeps the order of the index, and says so
// to the planner, so nothing is sorted, and no line is looked at after p_n keys were found.
func scanKeys(table, matches, size string) string {
	one := func(order string) string {
		return `SELECT array_agg(k.key), array_agg(k.m), array_agg(k.size), max(k.n) INTO t_keys, t_m, t_sizes, t_last FROM (
			SELECT g.key, bool_or(g.m) AS m, sum(g.size)::bigint AS size, max(g.n) AS n FROM (
				SELECT x.key, x.m, x.size, row_number() OVER (ORDER BY x.key ` + order + ` ROWS UNBOUNDED PRECEDING) AS n FROM (
					SELECT c.key, ` + matches + ` AS m, ` + size + ` AS size FROM {{schema}}.` + table + ` c
					WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY c.key ` + order + ` LIMIT p_look
				) x
			) g GROUP BY g.key HAVING bool_or(g.m) OR max(g.n) = p_look ORDER BY g.key ` + order + ` LIMIT p_n
		) k;`
	}
	return "IF p_reverse THEN\n" + one("DESC") + "\nELSE\n" + one("ASC") + "\nEND IF;" + `
		t_n := coalesce(cardinality(t_keys), 0);
		IF t_n = p_n OR t_last = p_look THEN
			t_stop := CASE WHEN t_m[t_n] <> p_reverse THEN t_keys[t_n] || decode('00', 'hex') ELSE t_keys[t_n] END;
			IF NOT t_m[t_n] THEN
				t_n := t_n - 1;
			END IF;
			v_stop := CASE WHEN p_reverse THEN greatest(v_stop, t_stop) ELSE least(v_stop, t_stop) END;
		END IF;
		v_keys := v_keys || t_keys[1:t_n];
		v_sizes := v_sizes || t_sizes[1:t_n];`
}

// undefinedTable and the others are the SQLSTATEs that this package tells apart.
const (
	undefinedTable     = "42P01"
	undefinedColumn    = "42703"
	undefinedFunction  = "42883"
	duplicateTable     = "42P07"
	duplicateObject    = "42710"
	duplicateFunction  = "42723"
	invalidSchema      = "3F000"
	noDatabase         = "3D000"
	unknownSetting     = "42704"
	invalidSetting     = "22023"
	noPrivilege        = "42501"
	wrongPassword      = "28P01"
	notAdmitted        = "28000" // by pg_hba.conf
	noSuchStatement    = "26000"
	duplicateStatement = "42P05"
	serialization      = "40001"
	deadlock           = "40P01"
	readOnly           = "25006"
	uniqueViolation    = "23505"
	lockNotAvailable   = "55P03"
	queryCanceled      = "57014"
	diskFull           = "53100"
	outOfMemory        = "53200"
	tooManyConnections = "53300"
	plainWarning       = "01000"
	adminShutdown      = "57P01"
	systemError        = "58000" // what some poolers say of a server that they lost
	completionUnknown  = "40003" // what a pooler, or a server of another make, may say of a commit
	notReadCommitted   = "PC001" // raised by this package's functions
	partialGroup       = "PC002" // likewise
	onStandby          = "PC003" // likewise
	sessionChanged     = "PC004" // likewise
)

// migrate brings the schema to schemaVersion, and makes it where there is none.
// Several processes may do so at once: one does the work, the others wait for it. With asIs
// it does neither.
func migrate(ctx context.Context, conn *pgx.Conn, schema string, n names, asIs bool) error {
	version, err := storedVersion(ctx, conn, n)
	if err != nil {
		return err
	}
	if version == schemaVersion {
		return nil
	}
	switch {
	case version > schemaVersion:
		return layoutError(schema, version)
	case asIs && version == 0:
		return fmt.Errorf("%w in the schema %q", rowstore.ErrNoStore, schema)
	case asIs:
		return layoutError(schema, version)
	}
	// The administrator's default of the isolation counts for nothing here either.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// A transaction's lock and settings, since behind a pooler a session is not ours.
	sql := fmt.Sprintf("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock('%d'::bigint)", n.migrate)
	if err := exec(ctx, conn, sql); err != nil {
		return err
	}
	// A savepoint: asking for the version fails when there is no table.
	if err := exec(ctx, conn, "SAVEPOINT version"); err != nil {
		return err
	}
	version, err = storedVersion(ctx, conn, n)
	if err != nil {
		return err
	}
	if version > schemaVersion {
		return layoutError(schema, version)
	}
	if version == schemaVersion {
		return nil // another process did it meanwhile
	}
	if err := exec(ctx, conn, "ROLLBACK TO SAVEPOINT version"); err != nil {
		return err
	}
	if version > 0 {
		err := n.migration(ctx, conn, version)
		if sqlState(err) == noPrivilege {
			err = fmt.Errorf("%w: the role that owns the schema can migrate it, with percolator migrate run", err)
		}
		if err != nil {
			return fmt.Errorf("migrating the schema %q from version %d to version %d: %w", schema, version, schemaVersion, err)
		}
	} else if err := create(ctx, conn, schema, n); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// create makes the schema where there is none.
func create(ctx context.Context, conn *pgx.Conn, schema string, n names) error {
	// Not IF NOT EXISTS, which asks for the right to make schemas even when it has
	// nothing to make.
	sql := "DO " + n.do + " BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = " + literal(schema) +
		") THEN CREATE SCHEMA " + n.schema + "; END IF; END " + n.do
	if err := exec(ctx, conn, sql); err != nil {
		return fmt.Errorf("creating the schema %q: %w", schema, err)
	}
	if err := exec(ctx, conn, n.creation()); err != nil {
		switch sqlState(err) {
		case duplicateTable, duplicateObject, duplicateFunction:
			return fmt.Errorf("%w: the schema %q has a table, a type or a function with a name that a store needs: use another schema (%w)", rowstore.ErrForeign, schema, err)
		}
		return fmt.Errorf("making the tables of the schema %q: %w", schema, err)
	}
	return nil
}

// storedVersion reads the version of the schema, 0 when there is none.
func storedVersion(ctx context.Context, conn *pgx.Conn, n names) (int, error) {
	results, err := conn.PgConn().Exec(ctx, n.expand("SELECT version, pg_catalog.to_regclass(E'{{schema_literal}}.cell') IS NOT NULL FROM {{schema}}.meta")).ReadAll()
	if err != nil {
		switch sqlState(err) {
		case undefinedTable, invalidSchema:
			return 0, nil
		case undefinedColumn:
			return 0, fmt.Errorf("%w: the schema has a table meta without a column version, which is not a store's: use another schema (%w)", rowstore.ErrForeign, err)
		}
		return 0, fmt.Errorf("reading the version of the schema: %w", err)
	}
	if len(results) == 1 && len(results[0].Rows) > 0 && string(results[0].Rows[0][1]) != "t" {
		return 0, fmt.Errorf("%w: the schema has a table meta and no table cell, so it is not a store's: use another schema", rowstore.ErrForeign)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, fmt.Errorf("%w: the schema's table meta does not hold one line", rowstore.ErrCorrupt)
	}
	version, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil || version < 1 {
		return 0, fmt.Errorf("%w: the schema's table meta has the version %q, which is no version of a store: use another schema", rowstore.ErrForeign, results[0].Rows[0][0])
	}
	return version, nil
}

func layoutError(schema string, version int) error {
	return &rowstore.LayoutError{Store: fmt.Sprintf("the schema %q", schema), Stored: version, Known: schemaVersion}
}

// exec runs statements without arguments and without prepared statements.
func exec(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// literal quotes a string for SQL.
func literal(s string) string {
	return "E'" + escapeLiteral(s) + "'"
}

// escapeLiteral escapes a string for the inside of an E” literal, which means the same whatever
// a session has set for standard_conforming_strings and backslash_quote.
func escapeLiteral(s string) string { return strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) }
