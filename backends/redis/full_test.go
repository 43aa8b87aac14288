package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Servers that have no memory left, or no room on their disk.

func TestMaxMemory(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, map[string]string{"maxmemory-policy": "noeviction"})
	url := with(t, srv.URL)
	s := bare(t, url)
	c := admin(t, url)
	ctx := context.Background()
	for i := range 50 {
		apply(t, s, put("r", rowstore.Timestamp(i+1), strings.Repeat("x", 100)))
	}
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1mb").Err())
	err := tryApply(ctx, s, put("r", 100, "more"))
	require.ErrorContains(t, err, "maxmemory")
	require.ErrorIs(t, err, rowstore.ErrFull)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	groups, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{put("a", 1, "x"), put("b", 1, "x")}, AssignTimestamp: false}})
	if err == nil {
		err = groups[0].Err
	}
	require.ErrorContains(t, err, "maxmemory")
	// Collecting history frees memory and goes on, also beside a refused write.
	out, err := s.Apply(ctx, []rowstore.Mutation{
		{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "c", 0, 49)}},
		put("other", 1, "x"),
	}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.ErrorContains(t, out[1].Err, "maxmemory")
	require.Equal(t, strings.Repeat("x", 100), newest(t, s, "r"), "reads go on")
	require.Empty(t, newest(t, s, "other"))
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	apply(t, s, put("other", 1, "now"))
	require.Equal(t, "now", newest(t, s, "other"))
}

// Transactions read from a server without memory, also past a lock that a dead one has left.
func TestReadsOfAFullServer(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	s, err := OpenURL(t.Context(), url)
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), s, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(t, err)
	cell := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell, []byte("v")) }))
	c := admin(t, url)
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for range 3 {
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			v, err := tx.Get(t.Context(), cell)
			require.Equal(t, "v", string(v))
			if err != nil {
				return err
			}
			for row, err := range tx.Scan(t.Context(), percolator.Range{Table: "t"}) {
				require.NoError(t, err)
				require.Equal(t, "r", row.Key)
			}
			return nil
		}))
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error { // begins with a scan
			for _, err := range tx.Scan(t.Context(), percolator.Range{Table: "t"}) {
				require.NoError(t, err)
			}
			return nil
		}))
	}
	err = db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell, []byte("w")) })
	require.ErrorIs(t, err, rowstore.ErrFull)
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, db.Close(t.Context()))
}

// A transaction was committed, and a lock of it is left: readers of a server without memory roll it forward. One that had its locks when the
// memory ran out can still commit.
func TestLocksOfAFullServer(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	s, err := OpenURL(t.Context(), url)
	require.NoError(t, err)
	faults := faultstore.New(s, faultstore.Options{})
	db, err := percolator.New(t.Context(), faults, coretest.WithoutGroups(), percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(t, err)
	one, other := percolator.Cell{Table: "t", Row: "a", Column: "c"}, percolator.Cell{Table: "t", Row: "b", Column: "c"}
	both := func(value string) error {
		return db.Update(t.Context(), func(tx *percolator.Txn) error {
			return errors.Join(tx.Set(one, []byte(value)), tx.Set(other, []byte(value)))
		})
	}
	require.NoError(t, both("v"))
	// The last lock goes in the background, and must not be what the rules below strike.
	require.Eventually(t, func() bool {
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "b", Selectors: []rowstore.Selector{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: maxTS}}}})
		return err == nil && len(rows[0].Versions) == 0
	}, time.Minute, time.Millisecond)
	c := admin(t, url)
	unlocks := func(row string) func(*faultstore.Call) bool {
		return func(c *faultstore.Call) bool {
			return slices.ContainsFunc(c.Muts, func(m rowstore.Mutation) bool {
				return m.Row == row && slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool { return e.Kind == rowstore.DoDelete && e.Family == rowstore.Lock })
			})
		}
	}
	full := faults.AddRule(faultstore.Rule{Match: unlocks("a"), Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
		assert.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
		return faultstore.Fault{}
	}})
	left := faults.AddRule(faultstore.Rule{Match: unlocks("b"), Fault: faultstore.Fault{Kind: faultstore.Fail}})
	require.NoError(t, both(strings.Repeat("w", 300)))
	require.Equal(t, 1, full.Struck())
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		v, err := tx.Get(t.Context(), other)
		require.Len(t, v, 300)
		return err
	}))
	require.Equal(t, 1, left.Struck())
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, db.Close(t.Context()))
}

// A server that cannot write its append-only file refuses changes for certain, and goes
// on reading.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no", "enable-protected-configs": "yes", "auto-aof-rewrite-percentage": "0"})
	if srv.SmallDisk == "" {
		t.Skip("only a server in a container has a small disk")
	}
	url := with(t, srv.URL)
	c := admin(t, url)
	ctx := t.Context()
	require.NoError(t, c.ConfigSet(ctx, "dir", srv.SmallDisk).Err())
	require.NoError(t, c.ConfigSet(ctx, "appendonly", "yes").Err())
	s := bare(t, url)
	var err error
	row := func(i int) string { return fmt.Sprint("r", i) }
	wrote := 0
	for ; err == nil && wrote < 1000; wrote++ {
		err = tryApply(ctx, s, put(row(wrote), 1, strings.Repeat("x", 100_000)))
	}
	require.ErrorContains(t, err, "MISCONF")
	require.ErrorContains(t, err, "cannot persist")
	require.ErrorIs(t, err, rowstore.ErrFull)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	last := row(wrote - 1)
	require.Empty(t, newest(t, s, last), "nothing of what was refused is there")
	require.NotEmpty(t, newest(t, s, row(0)), "reads go on")
	groups, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{put(last, 1, "x"), put("other", 1, "x")}}})
	if err == nil {
		err = groups[0].Err
	}
	require.ErrorContains(t, err, "MISCONF")
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	require.Empty(t, newest(t, s, "other"))
	// However the administrator helps, the same store goes on.
	require.NoError(t, c.ConfigSet(ctx, "appendonly", "no").Err())
	apply(t, s, put(last, 1, "now"))
	require.Equal(t, "now", newest(t, s, last))
}
