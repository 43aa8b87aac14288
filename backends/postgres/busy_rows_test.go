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
		outs, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil {
			return nil, nil, err
		}
		for i := range outs {
			if outs[i].Err == nil && !outs[i].Applied {
				return nil, nil, fmt.Errorf("not applied: %+v", outs[i])
			}
		}
		return outs[0].Err, outs[1].Err, nil
	},
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
			n := newNames(schema)
			openTest(t, with(direct, "schema", schema))
			// The patience is short here, and each statement that waits says so.
			shorter := replaceAll(t, patience+"\n\t\tPERFORM pg_advisory_xact_lock(", "PERFORM set_config('lock_timeout', '300ms', true); RAISE NOTICE 'it waits'; PERFORM pg_advisory_xact_lock(")
			sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions+shorter(n.functions())))
			waits := 0
			s := openWatched(ctx, t, direct, schema, func(n *pgconn.Notice) {
				if n.Message == "it waits" {
					waits++
				}
			})
			draw(ctx, t, s) // the connection knows the bound
			holder := connect(ctx, t, direct)
			occupy(ctx, t, holder, schema, "busy", "busy2")
			var groups []rowstore.Group
			for _, row := range tc.rows {
				groups = append(groups, rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
					Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil)},
				}}})
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
