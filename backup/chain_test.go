package backup

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
)

// TestFromStoreToStore backs up and restores from each backend to the next one, and compares everything. At the end of the
// chain a worker runs what was outstanding at its beginning.
func TestFromStoreToStore(t *testing.T) {
	t.Parallel()
	urls := []func() string{
		func() string { return "memory:" },
		func() string { return everystore.With(testserver.Redis(t), "prefix=chain") },
		func() string { return everystore.With(testserver.Postgres(t), "schema=chain") },
		func() string { return everystore.With(tikvtest.New(t, tikvtest.Options{}).URL(), "prefix=chain") },
		func() string { return "pebble:" + filepath.Join(t.TempDir(), "data") },
	}
	s := openShop(t, urls[0]())
	outstanding := s.fill(t, time.Now().Add(2*time.Second))
	first := backedUp(t, s.db, Options{blockBytes: 500})
	s.close(t)
	want := contents(t, first)
	require.Greater(t, len(want), 80)
	path := first
	for _, url := range urls[1:] {
		u := url()
		s = restored(t, u, path)
		path = backedUp(t, s.db, Options{})
		require.Equal(t, want, contents(t, path), u)
	}
	s.finish(t, outstanding)
}

// TestAgainAndAgain takes the way from and to a Pebble store alone.
func TestAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := openShop(t, "pebble:"+filepath.Join(t.TempDir(), "data"))
	outstanding := s.fill(t, time.Now().Add(time.Second))
	path := backedUp(t, s.db, Options{blockBytes: 500})
	s.close(t)
	s = restored(t, "memory:", path)
	require.Equal(t, contents(t, path), contents(t, backedUp(t, s.db, Options{})))
	s.finish(t, outstanding)
}
