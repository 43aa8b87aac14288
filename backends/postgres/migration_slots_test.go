package postgres

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// note is a line of the table notify.
type note struct {
	tab, key, col string
	ts            int64
	val           []byte
}

// notesOf4 are notifications as a program of version 4 leaves them: names of every kind of bytes and the greatest
// lengths, several of a row, and more than two pages of the migration.
func notesOf4(r *rand.Rand) (notes []note) {
	keys := []string{"\x00", "\x00\x00", "\xff", "\xff\xff\x00", "'\\", strings.Repeat("\xff", maxRow), strings.Repeat("\x00", maxRow), "plain"}
	for i := range 2*fillPage + 100 {
		keys = append(keys, fmt.Sprintf("%c%d\x00%c", byte(r.UintN(256)), i, byte(r.UintN(256))))
	}
	for i, key := range keys {
		notes = append(notes, note{"t", key, "c", 5, nil})
		if i%3 == 0 {
			notes = append(notes, note{"t", key, strings.Repeat("d", maxColumn), 7, bytes.Repeat([]byte{1}, i%50)})
		}
		if i%100 == 0 {
			notes = append(notes, note{strings.Repeat("\xfe", maxTable), key, "c", 9, []byte("x")}, note{"\x00u", key, "c", 9, nil})
		}
	}
	for i := range fillPage + 100 {
		notes = append(notes, note{"t", "wide", "c", int64(i + 1), nil})
	}
	random := func(n int) string { // it cannot be compressed to fit into an index
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		return string(b)
	}
	notes = append(notes, note{random(maxTable), random(maxRow), random(maxColumn), int64(oracle.Max), nil})
	return notes
}

// storeOf4 makes a schema as a program of version 4 left it.
func storeOf4(ctx context.Context, t *testing.T, direct, schema string, notes []note) names {
	t.Helper()
	n := newNames(schema)
	sqlDo(t, direct, "CREATE SCHEMA "+n.schema+";"+n.expand(schemaOf4))
	_, err := connect(ctx, t, direct).CopyFrom(ctx, pgx.Identifier{schema, "notify"}, []string{"tab", "key", "col", "ts", "val"},
		pgx.CopyFromSlice(len(notes), func(i int) ([]any, error) {
			return []any{[]byte(notes[i].tab), []byte(notes[i].key), []byte(notes[i].col), notes[i].ts, notes[i].val}, nil
		}))
	require.NoError(t, err)
	return n
}

// requireNotes requires that a store has these notifications, by scans of slots and in the order of rows, and no others.
func requireNotes(ctx context.Context, t *testing.T, s rowstore.Store, notes []note) {
	t.Helper()
	want := map[string]int{}
	tables := map[string]int{}
	for _, n := range notes {
		want[fmt.Sprintf("%q %q %q %d %x", n.tab, n.key, n.col, n.ts, n.val)]++
		tables[n.tab]++
	}
	for _, slots := range [][]rowstore.SlotRange{nil, {{First: 0, Last: 30_000}, {First: 30_001, Last: rowstore.Slots - 1}}} {
		got := map[string]int{}
		for table := range tables {
			last := -1
			for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: table, Slots: slots, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
				require.NoError(t, err)
				for _, v := range row.Versions {
					got[fmt.Sprintf("%q %q %q %d %x", table, row.Row, v.Column, v.TS, v.Value)]++
				}
				if slots != nil {
					require.GreaterOrEqual(t, int(rowstore.Slot(table, row.Row)), last)
					last = int(rowstore.Slot(table, row.Row))
				}
			}
		}
		require.Equal(t, want, got)
	}
}

// Every notification of version 4 is found by the slot of its row, also when several processes migrate at once, and
// whoever might use the table may still.
func TestMigrationFrom4(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	notes := notesOf4(rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // a test
	schema, made := fresh(t, direct), fresh(t, direct)
	n := storeOf4(ctx, t, direct, schema, notes)
	role := fmt.Sprintf("heir%d", schemas.Add(1))
	atend.Do(t, func() { sqlDo(t, direct, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	sqlDo(t, direct, "CREATE ROLE "+role+n.expand("; GRANT INSERT ON {{schema}}.notify TO "+role))
	var wg sync.WaitGroup
	errs := make([]error, 4)
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
	s := openTest(t, with(direct, "schema", schema))
	requireNotes(ctx, t, s, notes)
	openTest(t, with(direct, "schema", made))
	require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
	require.Equal(t, fmt.Sprint(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
	require.Equal(t, "t", sqlDo(t, direct, n.expand("SET search_path TO {{schema}}; SELECT has_table_privilege('"+role+"', 'notify', 'INSERT')")))
	requireOtherCalls(t, direct, n, schemaOf4)
	// What the migration made is found by the changes of a program of today.
	out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "plain", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", 5)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "plain", Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max}}}})
	require.NoError(t, err)
	require.Empty(t, rows[0].Versions)
}

// Behind a pooler, and with settings of the session that keep the planner from what is right, all notifications get their slots too.
func TestMigrationFrom4AnySession(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	var notes []note
	for i := range fillPage + fillPage/2 {
		notes = append(notes, note{"t", fmt.Sprintf("r%d", i), "c", 5, nil})
	}
	open := map[string]func(schema string) (*Store, error){
		"pooler": func(schema string) (*Store, error) { return OpenURL(ctx, with(bouncer, "schema", schema)) },
		"session": func(schema string) (*Store, error) {
			return New(ctx, strangePool(t, direct, ""), Options{Schema: schema})
		},
	}
	for name, open := range open {
		schema := fresh(t, direct)
		storeOf4(ctx, t, direct, schema, notes)
		s, err := open(schema)
		require.NoError(t, err, name)
		requireNotes(ctx, t, s, notes)
		require.NoError(t, s.Close())
	}
}

// A migration whose server process dies at any step leaves the store of version 4 as it was, and the next Open makes
// all of it.
func TestMigrationFrom4Interrupted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	notes := notesOf4(rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // a test
	schema := fresh(t, direct)
	n := storeOf4(ctx, t, direct, schema, notes)
	layout := schemaLayout(t, direct, schema)
	// The process ends itself at the next line that the counter names.
	tools := newNames(fresh(t, direct))
	sqlDo(t, direct, tools.expand(`CREATE SCHEMA {{schema}}; CREATE SEQUENCE {{schema}}.filled; CREATE TABLE {{schema}}.stop (at bigint); INSERT INTO {{schema}}.stop VALUES (0);
		CREATE FUNCTION {{schema}}.die() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
			IF nextval(E'{{schema_literal}}.filled'::regclass) = (SELECT at FROM {{schema}}.stop) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
			RETURN new;
		END $f$;`)+n.expand("CREATE TRIGGER die BEFORE UPDATE ON {{schema}}.notify FOR EACH ROW EXECUTE FUNCTION "+tools.schema+".die()"))
	for _, at := range []int{1, fillPage + fillPage/2, len(notes)} {
		sqlDo(t, direct, tools.expand(fmt.Sprintf("SELECT setval(E'{{schema_literal}}.filled'::regclass, 1, false); UPDATE {{schema}}.stop SET at = %d", at)))
		_, err := OpenURL(ctx, with(direct, "schema", schema, "pool_max_conns", "2"))
		require.Error(t, err, "line %d", at)
		require.Equal(t, "t", sqlDo(t, direct, tools.expand("SELECT last_value >= at FROM {{schema}}.filled, {{schema}}.stop")), "it got to line %d", at)
		require.Equal(t, layout, schemaLayout(t, direct, schema))
		require.Equal(t, "4", sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
		require.Equal(t, fmt.Sprint(len(notes)), sqlDo(t, direct, n.expand("SELECT count(*) FROM {{schema}}.notify")))
	}
	// One that is cancelled by its caller, too.
	ending, cancel := context.WithCancel(ctx)
	blocker := connect(ctx, t, direct)
	require.NoError(t, exec(ctx, blocker, n.expand("BEGIN; LOCK TABLE {{schema}}.notify IN ACCESS SHARE MODE")))
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if sqlDo(t, direct, "SELECT count(*) > 0 FROM pg_locks WHERE relation = "+literal(n.schema+".notify")+"::regclass AND NOT granted") == "t" {
				return
			}
		}
	}()
	_, err := OpenURL(ending, with(direct, "schema", schema))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, exec(ctx, blocker, "ROLLBACK"))
	require.Equal(t, "4", sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))

	sqlDo(t, direct, n.expand("DROP TRIGGER die ON {{schema}}.notify"))
	requireNotes(ctx, t, openTest(t, with(direct, "schema", schema)), notes)
}

// callsOf4 are what a program of version 4 sends.
var callsOf4 = map[string]string{
	"commit": `SELECT * FROM {{schema}}.apply_commit(false, 0, NULL, NULL, '{1}', '{t}', '{r}', '{c}', '{7}', '{9}', '{w}', false,
		4, '{1}', '{4}', '{t}', '{r}', '{c}', '{9}', '{n}')`,
	"notify": `SELECT * FROM {{schema}}.apply_any(true, 0, NULL, NULL, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', false,
		4, '{1}', '{4}', '{t}', '{r}', '{c}', '{9}', '{n}')`,
	"general": `SELECT * FROM {{schema}}.apply_general(false, '{t}', '{r}', '{c}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{1}', '{1}', '{1}', '{5}', '{9}', '{0}', '{n}')`,
	"read":    `SELECT * FROM {{schema}}.read_any(32, '{1}', '{t}', '{r}', '{5}', '{c}', '{0}', '{99}', '{NULL}')`,
	"scan":    `SELECT * FROM {{schema}}.scan_page('t', '', '\x7f', false, 10, 10, 1000, false, 32, '{5}', '{NULL}', '{0}', '{99}', '{NULL}')`,
}

// A program of version 4 that still runs gets errors where it reads or writes what has moved, and writes nothing.
func TestProgramOf4StillRuns(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	n := storeOf4(ctx, t, direct, schema, nil)
	lock := n.expand("INSERT INTO {{schema}}.cell (tab, key, col, lock_ts) VALUES ('t', 'r', 'c', 7)")
	content := n.expand("SELECT (SELECT string_agg(c::text, ';') FROM {{schema}}.cell c) || '|' || coalesce((SELECT string_agg(n::text, ';') FROM {{schema}}.notify n), '')")
	running := connect(ctx, t, direct)
	for name, call := range callsOf4 {
		sqlDo(t, direct, n.expand("TRUNCATE {{schema}}.cell, {{schema}}.notify;")+lock)
		_, err := running.Prepare(ctx, name, n.expand(call))
		require.NoError(t, err)
		before := sqlDo(t, direct, content)
		require.NoError(t, running.PgConn().ExecPrepared(ctx, name, nil, nil, nil).Read().Err, name)
		if name != "read" && name != "scan" {
			require.NotEqual(t, before, sqlDo(t, direct, content), "it worked with version 4")
		}
	}
	sqlDo(t, direct, n.expand("TRUNCATE {{schema}}.cell, {{schema}}.notify;")+lock)
	// One call is under way: the migration waits for it, and finds what it wrote.
	holder, late := connect(ctx, t, direct), connect(ctx, t, direct)
	require.NoError(t, exec(ctx, holder, n.expand("BEGIN; SELECT FROM {{schema}}.cell FOR UPDATE")))
	waited := make(chan error, 1)
	go func() { waited <- exec(ctx, late, n.expand(callsOf4["commit"])) }()
	require.Eventually(t, func() bool {
		return sqlDo(t, direct, fmt.Sprintf("SELECT count(*) > 0 FROM pg_locks WHERE pid = %d AND NOT granted", late.PgConn().PID())) == "t"
	}, testWait, testTick)
	opened := make(chan error, 1)
	go func() {
		s, err := OpenURL(ctx, with(direct, "schema", schema))
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	require.Eventually(t, func() bool {
		return sqlDo(t, direct, "SELECT count(*) > 0 FROM pg_locks WHERE relation = "+literal(n.schema+".cell")+"::regclass AND NOT granted") == "t"
	}, testWait, testTick)
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
	require.NoError(t, <-waited)
	require.NoError(t, <-opened)
	s := openTest(t, with(direct, "schema", schema))
	before := sqlDo(t, direct, content)
	for name, call := range callsOf4 {
		require.Equal(t, undefinedFunction, sqlState(running.PgConn().ExecPrepared(ctx, name, nil, nil, nil).Read().Err), name)
		require.Equal(t, undefinedFunction, sqlState(exec(ctx, connect(ctx, t, direct), n.expand(call))), name)
	}
	require.Equal(t, before, sqlDo(t, direct, content), "nothing was written")
	require.NoError(t, exec(ctx, late, n.expand("SELECT * FROM {{schema}}.draw(1, 1000, 1000)")), "timestamps are drawn as before")
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, To: oracle.Max}, {Family: rowstore.Write, To: oracle.Max}, {Family: rowstore.Notify, To: oracle.Max},
	}}})
	require.NoError(t, err)
	require.Nil(t, rows[0].Newest(rowstore.Lock, "c"), "the call under way was a commit")
	require.NotNil(t, rows[0].Newest(rowstore.Write, "c"))
	require.NotNil(t, rows[0].Newest(rowstore.Notify, "c"))
}

// Programs of version 4 notify rows while another one migrates. What they were told is done is found.
func TestMigrationFrom4UnderWay(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	var notes []note
	for i := range fillPage + 10 {
		notes = append(notes, note{"t", fmt.Sprintf("old%d", i), "c", 5, nil})
	}
	n := storeOf4(ctx, t, direct, schema, notes)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var calls atomic.Int64
	states := map[string]int{}
	for w := range 3 {
		conn := connect(ctx, t, direct)
		wg.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("r%d-%d", w, i%50)
				err := exec(ctx, conn, n.expand(fmt.Sprintf(`SELECT * FROM {{schema}}.apply_general(true, '{t}', '{%s}', '{c}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{1}', '{1}', '{1}', '{5}', '{%d}', '{0}', '{NULL}')`, key, i+1)))
				mu.Lock()
				if err == nil {
					notes = append(notes, note{"t", key, "c", int64(i + 1), nil})
				} else {
					states[sqlState(err)]++
				}
				mu.Unlock()
				if err != nil {
					return
				}
				calls.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return calls.Load() > 100 }, testWait, testTick)
	s := openTest(t, with(direct, "schema", schema))
	wg.Wait()
	for state := range states {
		require.Contains(t, []string{undefinedFunction, "42P10", "23502"}, state, "no function, no such key, no slot")
	}
	requireNotes(ctx, t, s, notes)
}

// A program of today learns from every call that a newer one has made the functions otherwise, and writes nothing.
func TestSchemaMovesOn(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	for _, mode := range []string{"cache_statement", "exec"} {
		schema := fresh(t, direct)
		n := newNames(schema)
		s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "default_query_exec_mode", mode))
		everyCall(ctx, t, s, direct)
		sqlDo(t, direct, n.expand(dropFunctions+fmt.Sprint("UPDATE {{schema}}.meta SET version = ", schemaVersion+1)))
		content := n.expand("SELECT (SELECT string_agg(c::text, ';') FROM {{schema}}.cell c) || '|' || (SELECT string_agg(n::text, ';') FROM {{schema}}.notify n)")
		before := sqlDo(t, direct, content)
		for name, m := range map[string]rowstore.Mutation{
			"prewrite": prewrite("z", 90), "put": put("z", 90),
			"notify":  {Table: "t", Row: "z", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 90, nil)}},
			"general": {Table: "t", Row: "z", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Notify, "c", 0)}, Edits: put("z", 90).Edits},
			"check":   {Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.AbsentAt("c", 5)}},
		} {
			_, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			require.ErrorIs(t, err, rowstore.ErrFormat, name)
			require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
			require.NotErrorIs(t, err, rowstore.ErrUnavailable, name)
		}
		g, _ := rowstore.Unwrap[rowstore.Grouper](s)
		_, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{prewrite("z", 90)}}})
		require.ErrorIs(t, err, rowstore.ErrFormat)
		for _, r := range []rowstore.ScanRange{{}, {Slots: []rowstore.SlotRange{{First: 0, Last: 5}}}} {
			r.Table, r.Selectors = "t", []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
			for _, err := range s.Scan(ctx, r) {
				require.ErrorIs(t, err, rowstore.ErrFormat)
			}
		}
		require.Equal(t, before, sqlDo(t, direct, content))
		_, err = OpenURL(ctx, with(direct, "schema", schema))
		require.ErrorIs(t, err, rowstore.ErrFormat)
	}
}
