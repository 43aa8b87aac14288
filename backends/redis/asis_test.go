package redis

import (
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Stores that are taken as they are.

// Whoever takes a store as it is gets in where the server takes no writes, and finds what is there.
func TestAsIsOfAFullServer(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	apply(t, bare(t, url), put("r", 1, "v"))
	c := admin(t, url)
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	o, err := ParseURL(url)
	require.NoError(t, err)
	_, err = Open(t.Context(), o)
	require.ErrorIs(t, err, rowstore.ErrFull)
	o.AsIs = true
	look := func() {
		t.Helper()
		s, err := Open(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, "v", newest(t, s, "r"))
		require.NoError(t, s.Close())
	}
	look()
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	// min-replicas-to-write stands for every reason to refuse writes.
	require.NoError(t, c.ConfigSet(t.Context(), "min-replicas-to-write", "3").Err())
	look()
}

// A store that is taken as it is has members in the index of version 1, which a program of that version left there late. They
// stay where they are.
func TestAsIsMovesNothing(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.Redis(t))
	c := admin(t, url)
	prefix := version1(t, c, url)
	s := bare(t, url)
	before := findsAll(t, s, "t")
	_, err := writeAs1(t.Context(), c, s, false, "t", "late", rowstore.Put(rowstore.Notify, "c", 9, nil))
	require.NoError(t, err)
	old := oldIndexes(t, c, prefix)
	require.NotEmpty(t, old)
	o, err := ParseURL(url)
	require.NoError(t, err)
	o.AsIs = true
	looking, err := Open(t.Context(), o)
	require.NoError(t, err)
	for _, slots := range [][]rowstore.SlotRange{everySlot(), nil} {
		require.Len(t, scanKeys(t, looking, rowstore.ScanRange{Table: "t", Slots: slots}), before)
	}
	require.Equal(t, old, oldIndexes(t, c, prefix))
	require.NoError(t, looking.Close())
	require.Contains(t, scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: everySlot()}), "late")
}

// requireHalfDone opens a store of version 1 as it is, and checks that the error tells whether a migration has begun, which it returns.
func requireHalfDone(t testing.TB, url string, c *goredis.Client) bool {
	t.Helper()
	o, err := ParseURL(url)
	require.NoError(t, err)
	o.AsIs = true
	_, err = Open(t.Context(), o)
	var layout *rowstore.LayoutError
	require.ErrorAs(t, err, &layout)
	raised := c.StrLen(t.Context(), "{"+o.Prefix+":0}o").Val() == 62
	require.Equal(t, raised, layout.HalfDone)
	require.Equal(t, 1, layout.Stored)
	return raised
}
