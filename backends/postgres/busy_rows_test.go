package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// occupy holds the locks of rows, as a commit that hangs does, until the connection rolls back.
func occupy(ctx context.Context, t *testing.T, holder *pgx.Conn, schema string, rows ...string) {
	t.Helper()
	n := newNames(schema)
	sql := "BEGIN; SELECT pg_current_xact_id()"
	for _, row := range rows {
		sql += fmt.Sprintf("; SELECT pg_advisory_xact_lock(%d)", n.rowLock("t", row))
	}
	require.NoError(t, exec(ctx, holder, sql))
}

// pointOf and rangeOf read a row in the two ways: the newest write of its column alone, or all of its writes.
func pointOf(row string, at rowstore.Timestamp) rowstore.RowRead {
	return rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: at, Limit: 1}}}
}

func rangeOf(row string) rowstore.RowRead {
	return rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: oracle.Max}}}
}

// callsOfTwo ask for the row busy, and for the row free, in one call. They say what became of each.
var callsOfTwo = map[string]func(ctx context.Context, s *plainStore) (busy, free error, err error){
	"Points": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		return errsOf(s.Read(ctx, []rowstore.RowRead{pointOf("busy", oracle.Max), pointOf("free", oracle.Max)}))
	},
	"Picks": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		return errsOf(s.Read(ctx, []rowstore.RowRead{rangeOf("busy"), rangeOf("free")}))
	},
	"Both": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		return errsOf(s.Read(ctx, []rowstore.RowRead{pointOf("busy", oracle.Max), rangeOf("free")}))
	},
	"Snapshot": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		var asks []rowstore.SnapshotRead
		for _, row := range []string{"busy", "free"} {
			asks = append(asks, rowstore.SnapshotRead{Reads: []rowstore.RowRead{pointOf(row, rowstore.AssignedTimestamp)}})
		}
		answers, err := s.ReadSnapshot(ctx, asks)
		if err != nil {
			return nil, nil, err
		}
		for i := range answers {
			if err := hasWrite(answers[i].Rows...); answers[i].Err == nil && err != nil {
				return nil, nil, err
			}
		}
		return answers[0].Err, answers[1].Err, nil
	},
	"Conditions": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		var muts []rowstore.Mutation
		for _, row := range []string{"busy", "free"} {
			muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}})
		}
		return errsOfApply(s.Apply(ctx, muts, rowstore.ApplyOptions{}))
	},
	"Conditions beside a write": func(ctx context.Context, s *plainStore) (busy, free error, err error) {
		return errsOfApply(s.Apply(ctx, []rowstore.Mutation{
			{Table: "t", Row: "busy", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}}, put("free", 5),
		}, rowstore.ApplyOptions{}))
	},
}

// errsOfApply returns the failures of two mutations.
func errsOfApply(outs []rowstore.Outcome, err error) (first, second, _ error) {
	if err != nil {
		return nil, nil, err
	}
	for i := range outs {
		if outs[i].Err == nil && !outs[i].Applied {
			return nil, nil, fmt.Errorf("not applied: %+v", outs[i])
		}
	}
	return outs[0].Err, outs[1].Err, nil
}

// errsOf returns the failures of two rows.
func errsOf(rows []rowstore.Row, err error) (first, second, _ error) {
	if err == nil {
		err = hasWrite(rows...)
	}
	if err != nil {
		return nil, nil, err
	}
	return rows[0].Err, rows[1].Err, nil
}

// hasWrite returns an error if a row that did not fail has no write.
func hasWrite(rows ...rowstore.Row) error {
	for i := range rows {
		if rows[i].Err == nil && len(rows[i].Versions) != 1 {
			return fmt.Errorf("the row %s has %+v", rows[i].Row, rows[i].Versions)
		}
	}
	return nil
}

// A row whose commit hangs holds up its own readers. Others, whose calls were merged with theirs, are answered soon, and
// the failure is the row's alone. A call of one caller waits on meanwhile.
func TestBusyRowOfAnotherCaller(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, call := range callsOfTwo {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			app := newNames(schema).channel
			s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", app)).plain
			_, err := s.Apply(ctx, []rowstore.Mutation{put("busy", 5), put("free", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			draw(ctx, t, s) // a connection knows the bound
			holder := connect(ctx, t, direct)
			occupy(ctx, t, holder, schema, "busy")

			type answer struct{ busy, free, err error }
			lone := make(chan answer, 1)
			ended := make(chan error, 1)
			go func() {
				var a answer
				a.busy, a.free, a.err = call(ctx, s)
				lone <- a
				ended <- a.err
			}()
			waitsForLock(ctx, t, connect(ctx, t, direct), app, ended)
			busy, free, err := call(context.WithValue(ctx, contexts.MergedKey{}, true), s)
			require.NoError(t, err)
			require.NoError(t, free)
			require.ErrorIs(t, busy, rowstore.ErrUnavailable)
			require.ErrorIs(t, busy, errLocked)
			require.Empty(t, lone)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.Equal(t, answer{}, <-lone)
		})
	}
}

// openImpatient opens a store of one connection whose waits for the locks of rows are short. It counts the statements that wait.
func openImpatient(ctx context.Context, t *testing.T, direct, schema string, waits *int) *Store {
	t.Helper()
	n := newNames(schema)
	openTest(t, with(direct, "schema", schema))
	const short = "PERFORM set_config('lock_timeout', '300ms', true); RAISE NOTICE 'it waits';"
	shorter := replaceAll(t, patience+"\n\t\tPERFORM pg_advisory_xact_lock(", short+"PERFORM pg_advisory_xact_lock(",
		"PERFORM set_config('lock_timeout', CASE p_settle WHEN 2 THEN '10s' ELSE '500ms' END, true);", short)
	sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions+shorter(n.functions())))
	return openWatched(ctx, t, direct, schema, func(n *pgconn.Notice) {
		if n.Message == "it waits" {
			*waits++
		}
	})
}

// drawnGroup writes a row at a timestamp that it draws.
func drawnGroup(row string) rowstore.Group {
	return rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
		Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil)},
	}}}
}

// A group that draws its timestamp waits for a busy row once, as long as any may. Of several groups in a call, that one
// fails alone.
func TestBusyRowOfADrawnGroup(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, tc := range map[string]struct {
		rows  []string
		waits int // for the locks of rows
	}{
		"alone":               {[]string{"busy"}, 1},
		"beside another":      {[]string{"busy", "free"}, 2},
		"all of them":         {[]string{"busy", "busy2"}, 1},
		"of several that are": {[]string{"free", "busy", "free2", "busy2"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			waits := 0
			s := openImpatient(ctx, t, direct, schema, &waits)
			draw(ctx, t, s) // the connection knows the bound
			holder := connect(ctx, t, direct)
			occupy(ctx, t, holder, schema, "busy", "busy2")
			var groups []rowstore.Group
			for _, row := range tc.rows {
				groups = append(groups, drawnGroup(row))
			}
			outs, err := s.Group(ctx, groups)
			if err != nil {
				outs = make([]rowstore.GroupOutcome, len(groups))
				for i := range outs {
					outs[i].Err = err
				}
			}
			for i, row := range tc.rows {
				if strings.HasPrefix(row, "free") {
					require.NoError(t, outs[i].Err)
					require.True(t, outs[i].Applied)
					continue
				}
				require.ErrorIs(t, outs[i].Err, rowstore.ErrUnavailable)
				require.ErrorIs(t, outs[i].Err, errLocked)
				require.NotErrorIs(t, outs[i].Err, rowstore.ErrAmbiguous)
			}
			require.Equal(t, tc.waits, waits)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.NoError(t, writeDrawn(ctx, s, "busy"))
		})
	}
}

// A group whose row is busy says so also where those beside it fail for something else.
func TestBusyRowBesideAFailure(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	waits := 0
	s := openImpatient(ctx, t, direct, schema, &waits)
	draw(ctx, t, s) // the connection knows the bound
	in := pgx.Identifier{schema}.Sanitize()
	sqlDo(t, direct, fmt.Sprintf(`CREATE FUNCTION %[1]s.full() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN RAISE 'full' USING ERRCODE = '%[2]s'; END $f$;
		CREATE TRIGGER "full" BEFORE INSERT OR UPDATE ON %[1]s.cell FOR EACH ROW EXECUTE FUNCTION %[1]s.full()`, in, diskFull))
	holder := connect(ctx, t, direct)
	occupy(ctx, t, holder, schema, "busy")
	asks := rowstore.Group{Mutations: []rowstore.Mutation{{Table: "t", Row: "asked", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}}}}
	outs, err := s.Group(ctx, []rowstore.Group{drawnGroup("busy"), drawnGroup("free"), asks})
	require.NoError(t, err)
	require.ErrorIs(t, outs[0].Err, errLocked)
	require.NotErrorIs(t, outs[0].Err, rowstore.ErrFull)
	require.ErrorIs(t, outs[1].Err, rowstore.ErrFull)
	require.NotErrorIs(t, outs[1].Err, errLocked)
	require.NoError(t, outs[2].Err)
	require.True(t, outs[2].Applied)
	require.Equal(t, 2, waits, "both statements came to the locks")
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
}

// A snapshot with a busy row fails as a whole, and says nothing else. So does a call with no other rows.
func TestSnapshotOfBusyRows(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	waits := 0
	s := openImpatient(ctx, t, direct, schema, &waits)
	_, err := s.Apply(ctx, []rowstore.Mutation{put("busy", 5), put("busy2", 5), put("free", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	draw(ctx, t, s) // the connection knows the bound
	holder := connect(ctx, t, direct)
	occupy(ctx, t, holder, schema, "busy", "busy2")
	ask := func(row string) rowstore.RowRead { return pointOf(row, rowstore.AssignedTimestamp) }
	wide := func(row string) rowstore.RowRead { // which no statement that draws can answer
		r := ask(row)
		r.Selectors[0].Limit = 2
		return r
	}

	_, err = s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{ask("busy"), ask("busy2")}}})
	require.ErrorIs(t, err, errLocked)
	for name, reads := range map[string][]rowstore.RowRead{
		"two of them beside another row": {ask("busy"), ask("free"), ask("busy2")},
		"one that comes first":           {wide("busy"), wide("free")},
		"one that comes last":            {wide("free"), wide("busy")},
	} {
		answers, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: reads}, {Reads: []rowstore.RowRead{wide("free")}}})
		require.NoError(t, err, name)
		require.ErrorIs(t, answers[0].Err, errLocked, name)
		require.Equal(t, rowstore.SnapshotRows{Err: answers[0].Err}, answers[0], name)
		require.NoError(t, answers[1].Err)
		require.True(t, answers[1].Apart)
		require.NoError(t, hasWrite(answers[1].Rows...))
	}
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
	require.Equal(t, 4, waits)
}
