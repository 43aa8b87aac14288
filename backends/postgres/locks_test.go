package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Clients that edit all families of the same rows in random orders do not deadlock, one by one or in groups that draw
// their timestamps or do not, beside reads and scans of the same rows.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"deadlock_timeout": "200ms"})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const clients, calls, keys, batch = 4, 60, 60, 40
	var wg sync.WaitGroup
	errs := make([]error, clients)
	applied := make([]int, clients)
	openTest(t, with(server.URL, "schema", "deadlocks"))
	for c := range clients {
		s := openTest(t, with(server.URL, "schema", "deadlocks", "coalesce", "off"))
		r := rand.New(rand.NewPCG(seed, uint64(c))) //nolint:gosec // a test
		wg.Go(func() {
			for range calls {
				if c%2 == 1 {
					n, err := groupBesideReads(ctx, s, r, keys)
					if err != nil {
						errs[c] = err
						return
					}
					applied[c] += n
					continue
				}
				out, err := s.Apply(ctx, randomEdits(r, keys, batch), rowstore.ApplyOptions{Deferred: r.IntN(2) == 0})
				if err != nil {
					errs[c] = err
					return
				}
				for _, o := range out {
					if o.Err != nil {
						errs[c] = o.Err
						return
					}
					if o.Applied {
						applied[c]++
					}
				}
			}
		})
	}
	wg.Wait()
	for c := range clients {
		require.NoError(t, errs[c])
		require.Greater(t, applied[c], calls*(1-c%2)) // of groups few apply
	}
	// The statistics of a session are complete when it has ended.
	require.Eventually(t, func() bool {
		return sqlDo(t, server.URL, "SELECT sum(xact_commit) > 100 FROM pg_stat_database") == "t"
	}, testWait, testTick)
	require.Equal(t, "0", sqlDo(t, server.URL, "SELECT sum(deadlocks) FROM pg_stat_database"))
}

// groupBesideReads makes a group of a few rows, which draws its timestamp every other time, and reads and scans at a timestamp
// that it draws. It returns how many groups were applied.
func groupBesideReads(ctx context.Context, s *Store, r *rand.Rand, keys int) (applied int, err error) {
	g := rowstore.Group{Mutations: randomEdits(r, keys, 2+r.IntN(6)), AssignTimestamp: r.IntN(2) == 0}
	if g.AssignTimestamp {
		for i := range g.Mutations {
			g.Mutations[i].Edits = append(g.Mutations[i].Edits, rowstore.Put(rowstore.Write, "d", rowstore.AssignedTimestamp, []byte("v")))
		}
	}
	grouper, _ := rowstore.Unwrap[rowstore.Grouper](s)
	out, err := grouper.Group(ctx, []rowstore.Group{g})
	if err != nil {
		return 0, err
	}
	if out[0].Applied {
		applied++
	}
	if out[0].Err != nil {
		return applied, out[0].Err
	}
	var reads []rowstore.RowRead
	for _, k := range r.Perm(keys)[:8] {
		reads = append(reads, rowstore.RowRead{Table: "t", Row: fmt.Sprint("row", k), Selectors: []rowstore.Selector{
			{Family: rowstore.Lock, Column: "c", To: oracle.Max}, {Family: rowstore.Write, Column: "d", To: rowstore.AssignedTimestamp, Limit: 1},
		}})
	}
	reader, _ := rowstore.Unwrap[rowstore.SnapshotReader](s)
	if _, err := reader.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: reads}}); err != nil {
		return applied, err
	}
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Limit: 10, Reverse: r.IntN(2) == 0, Snapshot: &rowstore.ScanSnapshot{}, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, To: oracle.Max}, {Family: rowstore.Write, To: rowstore.AssignedTimestamp, Limit: 1},
	}}) {
		if err != nil {
			return applied, err
		}
	}
	return applied, nil
}

// randomEdits edits rows in a random order: notifications and long values alone, together, and with
// the cell, put or deleted at few timestamps, so that clients meet at the same versions.
func randomEdits(r *rand.Rand, keys, n int) []rowstore.Mutation {
	muts := make([]rowstore.Mutation, 0, n)
	for _, k := range r.Perm(keys)[:n] {
		ts := rowstore.Timestamp(1 + r.IntN(3)) //nolint:gosec // small
		side := func(f rowstore.Family) rowstore.Edit {
			if r.IntN(2) == 0 {
				return rowstore.Put(f, "c", ts, []byte("v"))
			}
			return rowstore.Delete(f, "c", ts)
		}
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint("row", k)}
		switch r.IntN(6) {
		case 0, 1:
			m.Edits = []rowstore.Edit{side(rowstore.Notify)}
		case 2:
			m.Edits = []rowstore.Edit{side(rowstore.Data)}
		case 3:
			m.Edits = []rowstore.Edit{side(rowstore.Notify), side(rowstore.Data)}
		case 4:
			m.Edits = []rowstore.Edit{rowstore.Put(rowstore.Lock, "c", ts, nil), side(rowstore.Data)}
			m.Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}
		default:
			m.Edits = []rowstore.Edit{rowstore.Delete(rowstore.Lock, "c", ts), side(rowstore.Notify)}
		}
		muts = append(muts, m)
	}
	return muts
}

// The plans of all statements go by the index, for each element of a list alone, also when they were
// made while the tables had a line or none; so they stay right when the tables have grown.
func TestPlansDoNotDependOnStatistics(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	quoted := pgx.Identifier{schema}.Sanitize()
	var mu sync.Mutex
	var plans []string
	s := openWatched(ctx, t, direct, schema, func(n *pgconn.Notice) {
		if strings.Contains(n.Message, "plan:") {
			mu.Lock()
			plans = append(plans, n.Message)
			mu.Unlock()
		}
	})
	// One line in each table, which the statistics know.
	everyCall(ctx, t, s, direct)
	sqlDo(t, direct, "DELETE FROM "+quoted+".cell WHERE key <> 'a'")
	sqlDo(t, direct, "VACUUM ANALYZE "+quoted+".cell, "+quoted+".past, "+quoted+".data, "+quoted+".notify")
	mu.Lock()
	first := plans
	plans = nil
	mu.Unlock()
	// Every function is planned now, while the tables are small.
	fill(ctx, t, s, 200)
	sqlDo(t, direct, "DELETE FROM "+quoted+".cell; DELETE FROM "+quoted+".past; DELETE FROM "+quoted+".data; DELETE FROM "+quoted+".notify")
	everyCall(ctx, t, s, direct)
	mu.Lock()
	defer mu.Unlock()
	// The function that raises the oracle's bound is not called twice so soon.
	requireAllPlanned(t, direct, schema, plans, "draw")
	requireAllPlanned(t, direct, schema, first)
	seen, bySlots := 0, 0
	for _, plan := range plans {
		if strings.Contains(plan, "p_first[v_at:]") {
			bySlots++
			require.Contains(t, plan, "Index Scan using notify_pkey")
			require.Regexp(t, `Index Cond: .*tab = .*slot <= .*ROW\(slot, key\) >= `, plan)
		}
		if strings.Contains(plan, "LIMIT p_look") {
			require.NotContains(t, plan, "Sort Key", "a page would look at all of its lines")
		}
		lines := strings.Split(plan, "\n")
		for i, line := range lines {
			for _, table := range []string{"cell", "past", "data", "notify"} {
				if !strings.Contains(line, " on "+table) && !strings.Contains(line, " on "+quoted+"."+table) || !strings.Contains(line, "Scan") {
					continue
				}
				seen++
				require.NotContains(t, line, "Seq Scan", plan)
				if strings.Contains(line, "Index") && !strings.Contains(line, "Bitmap Heap") {
					require.Less(t, i+1, len(lines), plan)
					require.Contains(t, lines[i+1], "Index Cond", plan)
				}
			}
		}
	}
	require.Positive(t, bySlots)
	require.Greater(t, seen, 5, "too few plans were seen: %q", plans)
}

// requireAllPlanned fails if no plan is of a statement that calls a function of a schema, or of one inside of it. Functions in SQL become a
// part of what calls them.
func requireAllPlanned(t *testing.T, dsn, schema string, plans []string, without ...string) {
	t.Helper()
	planned := map[string]bool{}
	for _, name := range without {
		planned[name] = true
	}
	for _, plan := range plans {
		for _, m := range regexp.MustCompile(`(?i)\.(\w+)\s?\(`).FindAllStringSubmatch(plan, -1) {
			planned[strings.TrimSuffix(m[1], readySuffix)] = true
		}
	}
	all := sqlDo(t, dsn, "SELECT string_agg(DISTINCT regexp_replace(p.proname, '"+readySuffix+"$', ''), ' ') FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "+
		"WHERE p.pronamespace = "+literal(newNames(schema).schema)+"::regnamespace AND l.lanname = 'plpgsql'")
	for _, name := range strings.Fields(all) {
		require.True(t, planned[name], "no plan is of a statement that calls %s", name)
	}
}

// What a batch looks at does not grow with a table that nobody analyzed.
func TestPlansAfterGrowth(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off"})
	s := openTest(t, with(server.URL, "schema", "growth", "coalesce", "off", "pool_max_conns", "1"))
	sqlDo(t, server.URL, "ANALYZE growth.cell, growth.past, growth.data, growth.notify")
	fill(ctx, t, s, 200)
	sqlDo(t, server.URL, "VACUUM ANALYZE growth.cell")
	fill(ctx, t, s, 200) // planned with statistics of 200 lines
	sqlDo(t, server.URL, `INSERT INTO growth.cell (tab, key, col, write_ts) SELECT 't', ('x' || i)::bytea, 'c', 1 FROM generate_series(1, 30000) i`)
	read := func() int {
		var n int
		_, err := fmt.Sscan(sqlDo(t, server.URL, "SELECT pg_stat_force_next_flush(); SELECT idx_tup_read + 0 FROM pg_stat_user_indexes WHERE schemaname = 'growth' AND indexrelname = 'cell_pkey'"), &n)
		require.NoError(t, err)
		return n
	}
	// The session's own counters are sent when it is idle for a while, or ends.
	settle := func() int {
		last := -1
		require.Eventually(t, func() bool {
			n := read()
			same := n == last
			last = n
			return same
		}, testWait, testSettle)
		return last
	}
	before := settle()
	fill(ctx, t, s, 200)
	require.NoError(t, s.Close())
	require.Less(t, settle()-before, 20_000, "lines of the index that were read for four batches of 200 rows")
}
