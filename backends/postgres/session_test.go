package postgres

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

// isReady tells whether the store trusts the session of its only connection, and so calls the functions without clauses.
func isReady(ctx context.Context, t *testing.T, s *Store) bool {
	t.Helper()
	c, err := s.plain.pool.Acquire(ctx)
	require.NoError(t, err)
	defer c.Release()
	return s.plain.q.point.on(c.Conn().PgConn()).name != s.plain.q.point.name
}

// Only sessions of a pool that the store has made are trusted, and only where nothing is between.
func TestReadySessions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	schema := fresh(t, direct)

	require.True(t, isReady(ctx, t, openTest(t, with(direct, "schema", schema, "pool_max_conns", "1", "search_path", "public"))))
	require.False(t, isReady(ctx, t, openTest(t, with(bouncer, "schema", schema, "pool_max_conns", "1"))))
	for setting, usual := range map[string]string{"search_path": `"$user", public`, "plan_cache_mode": "auto", "enable_seqscan": "on"} {
		require.Equal(t, usual, sqlDo(t, bouncer, "SHOW "+setting), "what a pooler hands on is as it was")
	}
	own, err := New(ctx, ownPool(t, direct, nil), Options{Schema: schema})
	require.NoError(t, err)
	defer func() { require.NoError(t, own.Close()) }()
	require.False(t, isReady(ctx, t, own))
}

// A session that loses its settings, however that may come, is noticed before it does anything, and every call works.
func TestSessionThatChanges(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, sql := range map[string]string{
		"Path":    "SET search_path = nowhere, public",
		"Discard": "DISCARD ALL",
		"Reset":   "RESET ALL",
		"Strange": strangeSettings,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "pool_max_conns", "1"))
			everyCall(ctx, t, s, direct) // everything is prepared and planned
			sqlDo(t, direct, newNames(schema).expand("TRUNCATE {{schema}}.cell, {{schema}}.past, {{schema}}.data, {{schema}}.notify"))
			require.True(t, isReady(ctx, t, s))
			c, err := s.plain.pool.Acquire(ctx)
			require.NoError(t, err)
			err = exec(ctx, c.Conn(), sql)
			c.Release()
			require.NoError(t, err)
			everyCall(ctx, t, s, direct)
			require.False(t, isReady(ctx, t, s))
		})
	}
}
