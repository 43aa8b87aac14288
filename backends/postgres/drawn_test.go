package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// waysToRead are all ways to learn of a write of the row a. Each returns the timestamp that it read at, which is the
// given one or a later one, and that of the newest write, or notification, up to there.
var waysToRead = map[string]func(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error){
	"Point": func(ctx context.Context, s *Store, at rowstore.Timestamp) (_, _ rowstore.Timestamp, err error) {
		return readAt(ctx, s, at, "c", 0)
	},
	"Picks": func(ctx context.Context, s *Store, at rowstore.Timestamp) (_, _ rowstore.Timestamp, err error) {
		return readAt(ctx, s, at, "", 0)
	},
	"ManyRows": func(ctx context.Context, s *Store, at rowstore.Timestamp) (_, _ rowstore.Timestamp, err error) {
		return readAt(ctx, s, at, "c", maxReadRows)
	},
	"Snapshot":  readSnapshotOf,
	"Check":     checkAt,
	"Scan":      scanAt,
	"ScanPoint": scanPointAt,
	"ScanDrawn": scanDrawnAt,
	"Slots":     slotsAt,
}

func newest(r *rowstore.Row, f rowstore.Family) rowstore.Timestamp {
	if v := r.Newest(f, "c"); v != nil {
		return v.TS
	}
	return 0
}

func readAt(ctx context.Context, s *Store, at rowstore.Timestamp, column string, more int) (ts, seen rowstore.Timestamp, err error) {
	reads := []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: column, To: at, Limit: 1}}}}
	for i := range more {
		reads = append(reads, rowstore.RowRead{Table: "t", Row: fmt.Sprint("more", i), Selectors: reads[0].Selectors})
	}
	rows, err := s.Read(ctx, reads)
	if err == nil {
		err = rows[0].Err
	}
	if err != nil {
		return 0, 0, err
	}
	return at, newest(&rows[0], rowstore.Write), nil
}

func readSnapshotOf(ctx context.Context, s *Store, _ rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	answers, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
	}}}}})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		return 0, 0, err
	}
	return answers[0].TS, newest(&answers[0].Rows[0], rowstore.Write), nil
}

func checkAt(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)}}}, rowstore.ApplyOptions{})
	if err != nil {
		return 0, 0, err
	}
	return at, out[0].Broke.TS, nil
}

func scanOf(ctx context.Context, s *Store, r rowstore.ScanRange, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	r.Table = "t"
	for row, err := range s.Scan(ctx, r) {
		if err != nil {
			return 0, 0, err
		}
		if row.Row == "a" {
			seen = newest(&row, r.Selectors[0].Family)
		}
	}
	return at, seen, nil
}

// scanAt asks for more than scan_point has.
func scanAt(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	return scanOf(ctx, s, rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 2}}}, at)
}

func scanPointAt(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	return scanOf(ctx, s, rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}}, at)
}

// scanDrawnAt draws its timestamp itself.
func scanDrawnAt(ctx context.Context, s *Store, _ rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	at := &rowstore.ScanSnapshot{}
	r := rowstore.ScanRange{Snapshot: at, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1}}}
	_, seen, err = scanOf(ctx, s, r, 0)
	return at.Start, seen, err
}

func slotsAt(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
	all := []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}
	return scanOf(ctx, s, rowstore.ScanRange{Slots: all, Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: at}}}, at)
}

// overtaken has somebody read the row a, by read, after a group has drawn its timestamp and before its transaction ends, and
// tells whether that reader missed the group's write though it read at a later timestamp. change, which may be nil, breaks the functions
// of the schema; params are of the reader's URL; at is the later timestamp, 0 for one that is drawn.
func overtaken(ctx context.Context, t *testing.T, direct string, change func(sql string) string, params []string, at rowstore.Timestamp,
	read func(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error),
) bool {
	t.Helper()
	schema := fresh(t, direct)
	n := newNames(schema)
	writer := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", n.channel))
	if change != nil {
		broken := change(n.functions())
		require.False(t, n.functions() == broken)
		sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions+broken))
	}
	reader := openTest(t, with(direct, append(params, "schema", schema, "coalesce", "off", "application_name", n.channel+"r")...))
	if params != nil {
		reader.plain.explicit.Store(false) // what the reader finds out of its session is a part of what is broken
	}
	out, err := writer.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)

	draw(ctx, t, writer) // so that no other transaction ends after this one has begun

	// The group waits for the cell, with its timestamp drawn.
	holder, watcher := connect(ctx, t, direct), connect(ctx, t, direct)
	require.NoError(t, exec(ctx, holder, n.expand("BEGIN; SELECT 1 FROM {{schema}}.cell FOR UPDATE")))
	var commit rowstore.Timestamp
	grouped := make(chan error, 1)
	go func() {
		out, err := writer.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("new")), rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil),
		}}}}})
		if err == nil && !out[0].Applied {
			err = fmt.Errorf("not applied: %+v", out[0])
		}
		if err == nil {
			commit = out[0].Commit
		}
		grouped <- err
	}()
	waitsForLock(ctx, t, watcher, n.channel, grouped)
	if at == 0 {
		at = draw(ctx, t, writer)
	}
	var ts, seen rowstore.Timestamp
	done := make(chan error, 1)
	go func() {
		var err error
		ts, seen, err = read(ctx, reader, at)
		done <- err
	}()
	waitsForLock(ctx, t, watcher, n.channel+"r", done)
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
	require.NoError(t, <-grouped)
	require.NoError(t, <-done)
	require.Less(t, commit, ts, "the group drew first")
	return seen != commit
}

// A reader with a later timestamp waits for a group that has drawn its own and has not ended, however it reads and whatever
// functions its session calls.
func TestReadersWaitForDraws(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, read := range waysToRead {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.False(t, overtaken(testContext(t), t, direct, nil, nil, 0, read))
		})
	}
}

// replaceAll is a change of the functions' text that must find what it replaces.
func replaceAll(t *testing.T, pairs ...string) func(string) string {
	return func(sql string) string {
		for i := 0; i < len(pairs); i += 2 {
			require.True(t, strings.Contains(sql, pairs[i]), pairs[i])
			sql = strings.ReplaceAll(sql, pairs[i], pairs[i+1])
		}
		return sql
	}
}

// What makes readers wait is needed, each part of it: without it, the same test finds a reader that misses a write.
func TestReadersThatDoNotWait(t *testing.T) {
	t.Parallel()
	const try = trySQL
	stable := func(sql string) string {
		for _, f := range []string{"read_point", "read_any", "scan_page", "scan_point", "scan_slots"} {
			for _, set := range []string{"", readySuffix} {
				if (f == "scan_page" || f == "scan_slots") && set != "" {
					continue
				}
				sql += "DO $do$ BEGIN EXECUTE (SELECT string_agg('ALTER FUNCTION ' || p.oid::regprocedure || ' STABLE', ';') FROM pg_proc p WHERE p.pronamespace = E'{{schema_literal}}'::regnamespace AND p.proname = '" +
					f + set + "'); END $do$;"
			}
		}
		return sql
	}
	for name, broken := range map[string]struct {
		change func(*testing.T) func(string) string
		params []string
		ways   []string
	}{
		"NoLocks": {func(t *testing.T) func(string) string { return replaceAll(t, try, "NULL;") }, nil, []string{"Point", "Picks", "Snapshot", "Check"}},
		"DrawBeforeLocks": {func(t *testing.T) func(string) string {
			return replaceAll(t, ownRowsSQL, "NULL;", "\n\t\tIF v_last <= v_bound - (", "PERFORM 1 FROM {{schema}}.cell FOR UPDATE; "+ownRowsSQL+" IF v_last <= v_bound - (")
		}, nil, []string{"Point", "Picks", "Snapshot", "Check"}},
		"NoLocksOfTheWriter": {func(t *testing.T) func(string) string {
			return replaceAll(t, "CASE WHEN u.own THEN pg_advisory_xact_lock(u.l) IS NULL ELSE", "CASE WHEN false THEN false ELSE")
		}, nil, []string{"Point", "Picks", "Snapshot", "Check"}},
		"LockAndReadInOneStatement": {func(t *testing.T) func(string) string {
			return replaceAll(t, try, "NULL;", "WHERE v_busy IS NULL OR u.lock <> ALL (v_busy);", "WHERE pg_advisory_xact_lock_shared(u.lock) IS NOT NULL;",
				"WHERE v_busy IS NULL OR u.lock <> ALL (v_busy)\n", "WHERE pg_advisory_xact_lock_shared(u.lock) IS NOT NULL\n")
		}, nil, []string{"Point", "Picks", "Check"}},
		"NobodyInFlight": {func(t *testing.T) func(string) string { return replaceAll(t, inFlightSQL, "false") }, nil, []string{"Point", "Picks", "Snapshot", "Check", "ManyRows", "ScanPoint", "ScanDrawn"}},
		"NoBarrier": {func(t *testing.T) func(string) string {
			return replaceAll(t, "IF p_settle = 3 THEN", "IF p_settle = 4 THEN")
		}, nil, []string{"Scan", "ScanPoint", "ScanDrawn", "Slots", "ManyRows"}},
		"NoNameOfTheWriter": {func(t *testing.T) func(string) string {
			return replaceAll(t, "| (pg_current_xact_id()::text::bigint & 4294967295)", "| ((pg_current_xact_id()::text::bigint + 1000000) & 4294967295)")
		}, nil, []string{"Scan", "ScanPoint", "ScanDrawn", "Slots", "ManyRows"}},
		"Stable": {func(*testing.T) func(string) string { return stable }, nil, []string{"Point", "Picks", "Scan", "ScanPoint", "ScanDrawn", "Slots", "ManyRows"}},
		"RepeatableRead": {func(t *testing.T) func(string) string {
			return replaceAll(t, "current_setting('transaction_isolation') <> 'read committed'", "current_setting('transaction_isolation') = 'none'")
		}, []string{"default_transaction_isolation", "repeatable read"}, []string{"Point", "Picks", "Scan", "ScanPoint", "ScanDrawn", "Slots", "ManyRows"}},
	} {
		// Two of them, so that in a few runs each has its turn: they show what TestNoReaderIsOvertaken would find.
		for _, i := range rand.Perm(len(broken.ways))[:2] {
			way := broken.ways[i]
			t.Run(name+way, func(t *testing.T) {
				t.Parallel()
				require.True(t, overtaken(testContext(t), t, testserver.Postgres(t), broken.change(t), broken.params, 0, waysToRead[way]))
			})
		}
	}
}

// The snapshot alone does not list a transaction whose number is above those of all that have ended. Nobody else uses this
// server, and nothing is drawn meanwhile, which may end a transaction with a number.
func TestBarrierKnowsTheNewest(t *testing.T) {
	t.Parallel()
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off"})
	ctx := testContext(t)
	xipAlone := replaceAll(t, "|| ARRAY(SELECT generate_series(v_xmax, v_xmax + age(pg_snapshot_xmax(v_snap)::xid) - 1))", "")
	for _, way := range []string{"Scan", "ScanPoint"} {
		require.True(t, overtaken(ctx, t, server.URL, xipAlone, nil, oracle.Max, waysToRead[way]), way)
		require.False(t, overtaken(ctx, t, server.URL, nil, nil, oracle.Max, waysToRead[way]), way)
	}
	noneListed := replaceAll(t, inFlightSQL, "pg_snapshot_xmin(pg_current_snapshot()) <> pg_snapshot_xmax(pg_current_snapshot())")
	for _, way := range []string{"Point", "Picks", "ManyRows", "ScanPoint"} {
		require.True(t, overtaken(ctx, t, server.URL, noneListed, nil, oracle.Max, waysToRead[way]), way)
		require.False(t, overtaken(ctx, t, server.URL, nil, nil, oracle.Max, waysToRead[way]), way)
	}
}

// A stranger with thousands of savepoints, each of which has a number, makes a scan look for the names of those that have drawn, and not
// for all of the numbers.
func TestBarrierAmongSavepoints(t *testing.T) {
	t.Parallel()
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off"})
	ctx := testContext(t)
	read := scanAt
	scan := func(ctx context.Context, s *Store, at rowstore.Timestamp) (ts, seen rowstore.Timestamp, err error) {
		err = exec(ctx, connect(ctx, t, server.URL), `BEGIN; CREATE TEMP TABLE saved (i integer);
			DO $do$ BEGIN FOR i IN 1 .. 5000 LOOP BEGIN INSERT INTO saved VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $do$`)
		if err != nil {
			return 0, 0, err
		}
		return read(ctx, s, at)
	}
	require.False(t, overtaken(ctx, t, server.URL, nil, nil, oracle.Max, scan))
	for _, broken := range []string{"l.granted", "l.objsubid = 1", "l.mode = 'ExclusiveLock'"} {
		require.True(t, overtaken(ctx, t, server.URL, replaceAll(t, broken, "NOT "+broken), nil, oracle.Max, scan), broken)
	}
	read = scanPointAt
	require.False(t, overtaken(ctx, t, server.URL, nil, nil, oracle.Max, scan))
}

// A row that a group only judges stays as it was judged up to the group's timestamp: the group waits for one that has drawn before
// and has still to write that row. Without the shared lock it does not.
func TestJudgedRowsWaitForDraws(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	const judged = "ELSE pg_advisory_xact_lock_shared(u.l) IS NULL END"
	for name, change := range map[string]func(string) string{"Whole": nil, "NoLockOfJudgedRows": replaceAll(t, judged, "ELSE false END")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			n := newNames(schema)
			s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", n.channel))
			if change != nil {
				sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions+change(n.functions())))
			}
			judge := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", n.channel+"j"))
			_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5), put("x", 5), put("y", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			holder, watcher := connect(ctx, t, direct), connect(ctx, t, direct)
			require.NoError(t, exec(ctx, holder, n.expand("BEGIN; SELECT 1 FROM {{schema}}.cell WHERE key = 'a' FOR UPDATE")))
			// It has drawn, waits for the row a, and writes x after that.
			wrote := make(chan error, 1)
			go func() { wrote <- writeDrawn(ctx, s, "a", "x") }()
			waitsForLock(ctx, t, watcher, n.channel, wrote)
			var out rowstore.GroupOutcome
			done := make(chan error, 1)
			go func() {
				outs, err := judge.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{
					{Table: "t", Row: "y", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("v"))}},
					{Table: "t", Row: "x", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 6)}},
				}}})
				if err == nil {
					out = outs[0]
				}
				done <- err
			}()
			waitsForLock(ctx, t, watcher, n.channel+"j", done)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.NoError(t, <-wrote)
			require.NoError(t, <-done)
			rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "x", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}}})
			require.NoError(t, err)
			unseen := out.Applied && newest(&rows[0], rowstore.Write) < out.Commit
			require.Equal(t, change != nil, unseen, "%+v", out)
		})
	}
}

// drawnView is what somebody saw of a row at a timestamp: its newest write, 0 for none.
type drawnView struct {
	row      string
	at, seen rowstore.Timestamp
}

// nappingFunctions are the functions with naps where a race would need one: after the draw, before the commit, and before a
// read begins.
func nappingFunctions(n names) string {
	const nap = "PERFORM pg_sleep(random() * 0.004);"
	sql := n.functions()
	sql = strings.ReplaceAll(sql, "PERFORM set_config('lock_timeout', '0', true);\n\t\tv_bound", "PERFORM set_config('lock_timeout', '0', true); "+nap+"\n\t\tv_bound")
	sql = strings.ReplaceAll(sql, "IF v_last <= v_bound - (", nap+" IF v_last <= v_bound - (")
	sql = strings.ReplaceAll(sql, "IF v_done IS NULL AND NOT p_deferred THEN", nap+" IF v_done IS NULL AND NOT p_deferred THEN")
	return strings.ReplaceAll(sql, "IF p_settle = 1 THEN", nap+" IF p_settle = 1 THEN")
}

// Committers and readers of several stores, in every way of reaching the server. Each view of a row at a timestamp is held to the
// history that is left at the end.
func TestNoReaderIsOvertaken(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	schema := fresh(t, direct)
	n := newNames(schema)
	stores := []*Store{openTest(t, with(direct, "schema", schema))}
	sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions)+nappingFunctions(n))
	stores = append(stores, openTest(t, with(direct, "schema", schema, "coalesce", "off")), openTest(t, with(bouncer, "schema", schema, "coalesce", "off")),
		openTest(t, with(direct, "schema", schema, "default_transaction_isolation", "serializable")))
	own, err := New(ctx, ownPool(t, direct, nil), Options{Schema: schema})
	require.NoError(t, err)
	defer func() { require.NoError(t, own.Close()) }()
	stores = append(stores, own)

	rows := []string{"a", "b", "c", "d", "e"}
	const rounds, readers = 60, 3
	var writing sync.WaitGroup
	var g errgroup.Group
	var ended atomic.Bool
	var mu sync.Mutex
	var views []drawnView
	for i, s := range stores {
		writing.Add(1)
		g.Go(func() error {
			defer writing.Done()
			for round := range rounds {
				if err := writeDrawn(ctx, s, rows[(i+round)%len(rows)], rows[(i+2*round+1)%len(rows)]); err != nil {
					return err
				}
			}
			return nil
		})
		for r := range readers {
			g.Go(func() error {
				for round := r; !ended.Load(); round++ {
					seen, err := viewRows(ctx, s, rows, round)
					if err != nil {
						return err
					}
					mu.Lock()
					views = append(views, seen...)
					mu.Unlock()
				}
				return nil
			})
		}
	}
	go func() {
		writing.Wait()
		ended.Store(true)
	}()
	require.NoError(t, g.Wait())
	requireHistory(ctx, t, stores[0], rows, views, rounds*len(stores))
}

// requireHistory holds views of rows to their history, which has so many writes.
func requireHistory(ctx context.Context, t *testing.T, s *Store, rows []string, views []drawnView, least int) {
	t.Helper()
	history := map[string][]rowstore.Timestamp{}
	writes := 0
	for _, row := range rows {
		all, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max}}}})
		require.NoError(t, err)
		for _, v := range all[0].Versions {
			history[row] = append(history[row], v.TS)
		}
		writes += len(history[row])
	}
	require.GreaterOrEqual(t, writes, least, "every group that was applied has left a write")
	require.Greater(t, len(views), least)
	for _, v := range views {
		var want rowstore.Timestamp
		for _, ts := range history[v.row] {
			if ts <= v.at {
				want = ts
				break
			}
		}
		require.Equal(t, want, v.seen, "the row %s at %d", v.row, v.at)
	}
}

// writeDrawn writes rows, which may be one, at a timestamp that their group draws.
func writeDrawn(ctx context.Context, s *Store, rows ...string) error {
	var muts []rowstore.Mutation
	for i, row := range rows {
		if i > 0 && row == rows[0] {
			continue
		}
		muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("v"))}})
	}
	out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: muts}})
	if err == nil {
		err = out[0].Err
	}
	if err == nil && !out[0].Applied {
		err = fmt.Errorf("not applied: %+v", out[0])
	}
	return err
}

// viewRows reads rows in one of the ways. It passes over those that a commit holds for longer than others may wait for them: nobody has seen anything there.
func viewRows(ctx context.Context, s *Store, rows []string, round int) (views []drawnView, err error) {
	row := rows[round%len(rows)]
	if round%3 == 0 {
		answers, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
		}}}}})
		if err == nil {
			err = answers[0].Err
		}
		if errors.Is(err, rowstore.ErrUnavailable) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []drawnView{{row, answers[0].TS, newest(&answers[0].Rows[0], rowstore.Write)}}, nil
	}
	at, err := s.Oracle().Draw(ctx, 1)
	if err != nil {
		return nil, err
	}
	pick := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}
	if round%3 == 1 {
		var reads []rowstore.RowRead
		for _, row := range rows {
			reads = append(reads, rowstore.RowRead{Table: "t", Row: row, Selectors: pick})
		}
		got, err := s.Read(ctx, reads)
		if err != nil {
			return nil, err
		}
		for i := range got {
			switch err := got[i].Err; {
			case errors.Is(err, rowstore.ErrUnavailable):
				continue
			case err != nil:
				return nil, err
			}
			views = append(views, drawnView{rows[i], at, newest(&got[i], rowstore.Write)})
		}
		return views, nil
	}
	found := map[string]rowstore.Timestamp{}
	for r, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: pick}) {
		if err != nil {
			return nil, err
		}
		found[r.Row] = newest(&r, rowstore.Write)
	}
	for _, row := range rows {
		views = append(views, drawnView{row, at, found[row]})
	}
	return views, nil
}

// A group with more rows than the server has locks for is refused, certainly undone, and can be done in another way.
func TestGroupTooLargeToDraw(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct)))
	var rows []string
	for i := range maxOwnRows + 1 {
		rows = append(rows, fmt.Sprint("r", i))
	}
	err := writeDrawn(ctx, s, rows...)
	require.ErrorIs(t, err, rowstore.ErrTooLarge)
	require.False(t, errors.Is(err, rowstore.ErrAmbiguous))
	require.NoError(t, writeDrawn(ctx, s, rows[1:]...))
}

// Of two groups that draw their timestamps together one is done, and the other has to wait for a cell, and is cancelled then. Each is told what became
// of it.
func TestOneOfTwoDrawnGroupsFails(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	name := fresh(t, direct)
	quoted := pgx.Identifier{name}.Sanitize()
	s := openTest(t, with(direct, "schema", name, "coalesce", "off"))
	other, err := pgx.Connect(ctx, direct)
	require.NoError(t, err)
	defer func() { _ = other.Close(context.WithoutCancel(ctx)) }()
	_, err = other.Exec(ctx, "BEGIN; INSERT INTO "+quoted+".cell (tab, key, col, write_ts, write_val) VALUES ('t', 'b', 'c', 7, '')")
	require.NoError(t, err)
	type told struct {
		outs []rowstore.GroupOutcome
		err  error
	}
	answer := make(chan told, 1)
	go func() {
		outs, err := s.Group(ctx, []rowstore.Group{
			{AssignTimestamp: true, Mutations: []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("v"))}}}},
			{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
				Table: "t", Row: "b", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)},
				Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, []byte("n"))},
			}}},
		})
		answer <- told{outs, err}
	}()
	cancelled := "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, " + literal(quoted) + ") > 0"
	var got told
	for waits := true; waits; {
		sqlDo(t, direct, cancelled)
		select {
		case got = <-answer:
			waits = false
		case <-time.After(testTick):
		}
	}
	require.NoError(t, got.err)
	require.True(t, got.outs[0].Applied)
	require.Error(t, got.outs[1].Err)
	require.NotErrorIs(t, got.outs[1].Err, rowstore.ErrAmbiguous)
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, 1)
	require.Equal(t, got.outs[0].Commit, rows[0].Versions[0].TS)
}
