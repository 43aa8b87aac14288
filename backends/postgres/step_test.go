package postgres

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A step of a sequence that is behind the clock sets it forward. While somebody else draws it cannot; then it takes the next
// step of what there is, and waits for nobody, unless the sequence is far behind.
func TestStepWhileOthersDraw(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	openTest(t, with(direct, "schema", schema))
	n := newNames(schema)
	connect := func() *pgx.Conn {
		c, err := pgx.Connect(ctx, direct)
		require.NoError(t, err)
		atend.Do(t, func() { _ = c.Close(context.WithoutCancel(ctx)) })
		return c
	}
	one, two := connect(), connect()
	const hour = int64(3_600_000 << oracle.LogicalBits)
	clock := func(what string) string {
		return n.expand(strings.ReplaceAll(what, "CLOCK", "E'{{schema_literal}}.clock'::regclass"))
	}
	// behind sets the sequence back by some hours, and returns what it is then.
	behind := func(hours int64) (at int64) {
		require.NoError(t, one.QueryRow(ctx, clock("SELECT setval(CLOCK, "+nowSQL+" - $1::bigint)"), hours*hour).Scan(&at))
		return at
	}
	const lag = hour
	step := func() (last *int64) {
		sql := n.expand("SELECT " + stepFrom("$1::bigint", "$2::bigint"))
		require.NoError(t, one.QueryRow(ctx, sql, lag, int64(oracle.Max)).Scan(&last))
		return last
	}

	at := behind(0)
	require.Equal(t, at+4096, *step(), "it is not behind")
	at = behind(5)
	require.Greater(t, *step(), at+4*hour, "nobody draws, so it is set forward")

	tx, err := two.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	_, err = tx.Exec(ctx, n.expand("SELECT pg_advisory_xact_lock_shared('{{clock_lock}}'::bigint)"))
	require.NoError(t, err)
	at = behind(5)
	require.Equal(t, at+4096, *step(), "somebody draws: the next step")
	behind(2 * mostLags)
	require.Nil(t, step(), "it is too far behind")
	require.NoError(t, tx.Rollback(ctx))
	require.Greater(t, *step(), at+hour)
}

// From version 7 on the functions have the same parameters: a program that works goes on while another one migrates.
func TestMigrationFrom7(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema, made := fresh(t, direct), fresh(t, direct)
	n := newNames(schema)
	running := openTest(t, with(direct, "schema", schema))
	write := func(s rowstore.Store, row string) {
		outs, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 7, []byte("v"))}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.True(t, outs[0].Applied)
	}
	write(running, "before")
	sqlDo(t, direct, n.expand("UPDATE {{schema}}.meta SET version = 7; DROP FUNCTION {{schema}}.next_table; DROP FUNCTION {{schema}}.scan_point"))
	next := openTest(t, with(direct, "schema", schema))
	require.Equal(t, strconv.Itoa(schemaVersion), sqlDo(t, direct, n.expand("SELECT version FROM {{schema}}.meta")))
	openTest(t, with(direct, "schema", made))
	require.Equal(t, schemaLayout(t, direct, made), schemaLayout(t, direct, schema))
	write(running, "after")
	for _, s := range []rowstore.Store{running, next} {
		found := 0
		all := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max}}
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: all}) {
			require.NoError(t, err)
			found++
		}
		require.Equal(t, 2, found)
	}
}
