package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pointsToWait are all places where a group that draws waits for somebody: the SQL makes it wait there, in a transaction of
// the holder's that is open until it ends.
var pointsToWait = map[string]func(n names) string{
	"Name": func(n names) string {
		return `SELECT pg_advisory_xact_lock_shared(` + strconv.FormatInt(n.xacts, 10) + ` | ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + i) & 4294967295))
			FROM generate_series(0, 3000) i`
	},
	"Row": func(n names) string {
		return "SELECT pg_advisory_xact_lock(" + strconv.FormatInt(n.rowLock("t", "a"), 10) + ")"
	},
	"Judged": func(n names) string {
		return "SELECT pg_advisory_xact_lock(" + strconv.FormatInt(n.rowLock("t", "b"), 10) + ")"
	},
	"Oracle": func(n names) string { return "SELECT pg_advisory_xact_lock(" + strconv.FormatInt(n.clock, 10) + ")" },
	"Line":   func(n names) string { return n.expand("SELECT 1 FROM {{schema}}.cell FOR UPDATE") },
}

// groupAt writes the row a, and judges the row b, which was not written.
func groupAt(ctx context.Context, s *Store) (rowstore.GroupOutcome, error) {
	out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{
		{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("new"))}},
		{Table: "t", Row: "b", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)}},
	}}})
	if err == nil {
		err = out[0].Err
	}
	if err != nil {
		return rowstore.GroupOutcome{}, err
	}
	return out[0], nil
}

// A group that is ended wherever it may wait leaves nothing: no write and no lock. So nobody else waits, and
// draws go on even while others wait for the group.
func TestDrawnGroupEnds(t *testing.T) {
	t.Parallel()
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off"})
	ends := map[string]func(ctx context.Context, watcher *pgx.Conn, app string, cancel func()) error{
		"Context": func(_ context.Context, _ *pgx.Conn, _ string, cancel func()) error { cancel(); return nil },
	}
	for _, f := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		ends[f] = func(ctx context.Context, watcher *pgx.Conn, app string, _ func()) error {
			_, err := watcher.Exec(ctx, "SELECT "+f+"(pid) FROM pg_stat_activity WHERE application_name = $1", app)
			return err
		}
	}
	for point, hold := range pointsToWait {
		for how, end := range ends {
			t.Run(point+how, func(t *testing.T) {
				t.Parallel()
				ctx := testContext(t)
				schema := fresh(t, server.URL)
				n := newNames(schema)
				s := openTest(t, with(server.URL, "schema", schema, "coalesce", "off", "application_name", n.channel))
				out, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
				require.NoError(t, err)
				require.True(t, out[0].Applied)
				holder, watcher := connect(ctx, t, server.URL), connect(ctx, t, server.URL)
				require.NoError(t, exec(ctx, holder, "BEGIN; "+hold(n)))
				bounded, cancel := context.WithCancel(ctx)
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					_, err := groupAt(bounded, s)
					ended <- err
				}()
				waitsForLock(ctx, t, watcher, n.channel, ended)
				for err := error(nil); err == nil; {
					require.NoError(t, end(ctx, watcher, n.channel, cancel))
					select {
					case err = <-ended:
						require.Error(t, err)
					case <-time.After(testTick): // it draws again
					}
				}
				requireNoAdvisoryLocks(ctx, t, watcher, n.channel)
				require.NoError(t, exec(ctx, holder, "ROLLBACK"))

				group, err := groupAt(ctx, s)
				require.NoError(t, err)
				require.True(t, group.Applied)
				rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max}}}})
				require.NoError(t, err)
				require.Len(t, rows[0].Versions, 2)
				require.Equal(t, group.Commit, rows[0].Versions[0].TS)
			})
		}
	}
}

// requireNoAdvisoryLocks waits until a program holds no advisory lock, and waits for none.
func requireNoAdvisoryLocks(ctx context.Context, t *testing.T, watcher *pgx.Conn, app string) {
	t.Helper()
	eventually(ctx, t, func() error {
		var locks string
		err := watcher.QueryRow(ctx, "SELECT coalesce(string_agg(concat_ws(' ', l.mode, l.granted, a.pid, a.query), '; '), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid) "+
			"WHERE l.locktype = 'advisory' AND a.application_name = $1", app).Scan(&locks)
		if err == nil && locks != "" {
			err = errors.New("these are left: " + locks)
		}
		return err
	})
}

// The oracle's lock does not last as long as the group: also those draws go on that need it for themselves.
func TestDrawsWhileAGroupWaits(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	n := newNames(schema)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", n.channel))
	_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	holder, watcher := connect(ctx, t, direct), connect(ctx, t, direct)
	require.NoError(t, exec(ctx, holder, "BEGIN; "+pointsToWait["Line"](n)))
	grouped := make(chan error, 1)
	go func() {
		_, err := groupAt(ctx, s)
		grouped <- err
	}()
	waitsForLock(ctx, t, watcher, n.channel, grouped)
	drew := make(chan error, 1)
	go func() {
		_, err := s.Oracle().Draw(ctx, 2*step) // more than a step, so under the exclusive lock
		drew <- err
	}()
	select {
	case err := <-drew:
		require.NoError(t, err)
	case <-ctx.Done():
		require.Fail(t, "a draw waits for a group")
	}
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
	require.NoError(t, <-grouped)
}

// What a user sets for lock_timeout ends no wait of a group that draws, nor of those that wait for it.
func TestLockTimeoutOfDraws(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for way, read := range waysToRead {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			require.False(t, overtaken(testContext(t), t, direct, nil, []string{"lock_timeout", "1ms"}, 0, read))
		})
	}
	for point, hold := range pointsToWait {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			n := newNames(schema)
			s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "lock_timeout", "1ms", "application_name", n.channel))
			_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			holder := connect(ctx, t, direct)
			require.NoError(t, exec(ctx, holder, "BEGIN; "+hold(n)))
			grouped := make(chan error, 1)
			var out rowstore.GroupOutcome
			go func() {
				var err error
				out, err = groupAt(ctx, s)
				grouped <- err
			}()
			waitsForLock(ctx, t, connect(ctx, t, direct), n.channel, grouped)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.NoError(t, <-grouped)
			require.True(t, out.Applied)
		})
	}
}

// Where the server's table of locks is full, transactions commit in two phases, whole, and large reads go on.
func TestLockTableFull(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_locks_per_transaction": "10", "max_connections": "20", "autovacuum": "off"})
	s := openTest(t, with(server.URL, "schema", "full", "pool_max_conns", "4"))
	db, err := percolator.New(ctx, s)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	const rows, room = 200, 60
	write := func(value string) {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for i := range rows {
				if err := tx.Set(percolator.Cell{Table: "t", Row: fmt.Sprint(i), Column: "c"}, []byte(value)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	write("one")
	before := db.Stats()
	require.EqualValues(t, 1, before.OnePhase)

	// The number of a transaction has readers take locks.
	holder := connect(ctx, t, server.URL)
	require.NoError(t, exec(ctx, connect(ctx, t, server.URL), "BEGIN; SELECT pg_current_xact_id()"))
	err = exec(ctx, holder, "SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i")
	require.Equal(t, outOfMemory, sqlState(err))
	require.NoError(t, exec(ctx, holder, fmt.Sprintf("SELECT pg_advisory_unlock(i) FROM generate_series(1, %d) i", room)))
	write("two")
	after := db.Stats()
	require.Equal(t, before.OnePhase, after.OnePhase)
	require.Equal(t, before.Group+before.TwoPhase+1, after.Group+after.TwoPhase)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		var cells []percolator.Cell
		for i := range rows {
			cells = append(cells, percolator.Cell{Table: "t", Row: fmt.Sprint(i), Column: "c"})
		}
		values, err := tx.GetMany(ctx, cells...)
		require.NoError(t, err)
		require.Len(t, values, rows)
		for _, v := range values {
			require.Equal(t, "two", string(v))
		}
		return nil
	}))
}

// A group that waits for a standby for ever makes those wait that read its rows, as long as their contexts say, and
// nobody else.
func TestStandbyHangs(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"autovacuum": "off"})
	before := openTest(t, with(server.URL, "schema", "hangs"))
	_, err := before.Apply(ctx, []rowstore.Mutation{put("a", 5), put("other", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	// To raise the bound of the oracle would wait for the standby too.
	draw(ctx, t, before)
	sqlDo(t, server.URL, "UPDATE hangs.oracle SET bound = bound + (86400000::bigint << 18)")
	s := openTest(t, with(server.URL, "schema", "hangs", "coalesce", "off", "application_name", "hangs"))
	setStandbys(ctx, t, server.URL, "nobody")
	grouped := make(chan error, 1)
	go func() { grouped <- writeDrawn(ctx, s, "a") }()
	waitsForStandby(t, server.URL)

	const at = oracle.Max
	of := func(row string) []rowstore.RowRead {
		return []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}}}
	}
	rows, err := s.Read(ctx, of("other"))
	require.NoError(t, err)
	require.EqualValues(t, 5, newest(&rows[0], rowstore.Write))
	watcher := connect(ctx, t, server.URL)
	for name, read := range waysToRead {
		bounded, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			_, _, err := read(bounded, s, at)
			done <- err
		}()
		waitsForLock(ctx, t, watcher, "hangs", done)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled, name)
		eventually(ctx, t, func() error {
			var waiting int
			err := watcher.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waiting)
			if err == nil && waiting > 0 {
				err = fmt.Errorf("%s: %d wait", name, waiting)
			}
			return err
		})
	}
	setStandbys(ctx, t, server.URL, "")
	require.NoError(t, <-grouped)
	rows, err = s.Read(ctx, of("a"))
	require.NoError(t, err)
	require.Greater(t, newest(&rows[0], rowstore.Write), rowstore.Timestamp(5))
}
