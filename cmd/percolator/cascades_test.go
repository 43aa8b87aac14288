package main

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

func TestCascades(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	require.Equal(t, exitNoStore, ask(t, url, "cascades").status)
	require.Equal(t, exitNoStore, ask(t, url, "cascades", "track").status)
	db, err := percolator.Open(t.Context(), url, percolator.WithSettings(percolator.Settings{
		CatalogLease: 100 * time.Millisecond, MaxTxnAge: time.Minute, Retention: time.Hour,
	}))
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	tracked := func(args ...string) admin.Cascades {
		t.Helper()
		a := ask(t, url, append([]string{"cascades", "--json"}, args...)...)
		require.Equal(t, exitOK, a.status, a.err)
		var c admin.Cascades
		require.NoError(t, json.Unmarshal([]byte(a.out), &c), a.out)
		return c
	}
	for range 2 { // a look changes nothing
		require.False(t, tracked().Tracked)
		require.Contains(t, ask(t, url, "cascades").out, "cascades are not tracked")
	}
	require.Equal(t, exitUsage, ask(t, url, "cascades", "track", "more").status)
	require.False(t, tracked("status").Tracked)

	a := ask(t, url, "cascades", "track")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "cascades are tracked since ")
	c := tracked()
	require.True(t, c.Tracked)
	require.NotZero(t, c.From)
	require.Equal(t, c.From, tracked("track").From, "once and for all")
}
