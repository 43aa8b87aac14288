package rowstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// step makes a mutation of so many conditions and edits.
func step(row string, conditions, edits int) rs.Mutation {
	m := rs.Mutation{Table: "t", Row: row}
	for i := range conditions {
		m.Conditions = append(m.Conditions, rs.Absent(rs.Lock, fmt.Sprintf("c%02d", i), 0))
	}
	for i := range edits {
		m.Edits = append(m.Edits, rs.Put(rs.Write, fmt.Sprintf("c%02d", i), 1, []byte("value")))
	}
	return m
}

func TestSizeOf(t *testing.T) {
	t.Parallel()
	m := step("row", 2, 3)
	require.Equal(t, rs.StepSize{Operations: 5, Bytes: 1 + 3 + 2*3 + 3*(3+5)}, rs.SizeOf(&m))
}

// TestLimitsOfAStep holds a Memory, and every wrapper over it, to limits of one atomic
// step: a mutation by itself, and all of a group together.
func TestLimitsOfAStep(t *testing.T) {
	t.Parallel()
	for _, limits := range []rs.Limits{{Operations: 4}, {Bytes: 40}} {
		open := map[string]func(*rs.Memory) rs.Store{"memory": func(m *rs.Memory) rs.Store { return m }}
		for name, w := range wrappers {
			open[name] = func(m *rs.Memory) rs.Store { return w.wrap(t, m) }
		}
		for name, open := range open {
			t.Run(fmt.Sprintf("%s/%+v", name, limits), func(t *testing.T) {
				t.Parallel()
				m := rs.NewMemory(rs.WithLimits(limits))
				s := open(m)
				l, ok := rs.Unwrap[rs.Limiter](s)
				require.True(t, ok)
				require.Equal(t, limits, l.Limits())
				g, ok := rs.Unwrap[rs.Grouper](s)
				require.True(t, ok)

				_, err := s.Apply(t.Context(), []rs.Mutation{step("a", 1, 1), step("b", 0, 5)}, rs.ApplyOptions{})
				require.ErrorIs(t, err, rs.ErrTooLarge)
				_, err = g.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{step("a", 1, 1)}}, {Mutations: []rs.Mutation{step("b", 1, 2), step("c", 1, 2)}}})
				require.ErrorIs(t, err, rs.ErrTooLarge)
				for name, err := range m.Tables(t.Context()) {
					require.NoError(t, err)
					require.Empty(t, name, "nothing is written")
				}
				// The limit itself, and batches of any number of steps.
				out, err := s.Apply(t.Context(), []rs.Mutation{step("a", 1, 3), step("b", 1, 3), step("c", 1, 3)}, rs.ApplyOptions{})
				require.NoError(t, err)
				require.Len(t, out, 3)
				groups, err := g.Group(t.Context(), []rs.Group{
					{Mutations: []rs.Mutation{step("d", 1, 1), step("e", 1, 1)}}, {Mutations: []rs.Mutation{step("f", 1, 1), step("g", 1, 1)}},
				})
				require.NoError(t, err)
				require.True(t, groups[0].Applied && groups[1].Applied)
				require.NoError(t, s.Close())
			})
		}
	}
}

// What two stores have in common is the tightest of each limit, and what is over that of
// its own store alone is refused before another store is sent anything.
func TestRouterLimitsOfAStep(t *testing.T) {
	t.Parallel()
	main, other := rs.NewMemory(rs.WithLimits(rs.Limits{Operations: 9, Bytes: 500})), rs.NewMemory(rs.WithLimits(rs.Limits{Operations: 4, Bytes: 900}))
	r := newRouter(t, rs.RouterConfig{
		Stores: map[string]rs.Store{"main": main, "other": other}, Tables: map[string]string{"u": "other"}, Authoritative: "main",
	})
	l, _ := rs.Unwrap[rs.Limiter](r)
	require.Equal(t, rs.Limits{Operations: 4, Bytes: 500}, l.Limits())
	g, _ := rs.Unwrap[rs.Grouper](r)
	elsewhere := func(m rs.Mutation) rs.Mutation {
		m.Table = "u"
		return m
	}
	_, err := r.Apply(t.Context(), []rs.Mutation{step("a", 0, 5), elsewhere(step("a", 0, 5))}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	_, err = g.Group(t.Context(), []rs.Group{
		{Mutations: []rs.Mutation{step("a", 1, 2), step("b", 1, 2)}}, {Mutations: []rs.Mutation{elsewhere(step("a", 1, 2)), elsewhere(step("b", 1, 2))}},
	})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	for name, err := range r.Tables(t.Context()) {
		require.NoError(t, err)
		require.Empty(t, name, "nothing is written")
	}
	out, err := r.Apply(t.Context(), []rs.Mutation{step("a", 0, 5), elsewhere(step("a", 0, 4))}, rs.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied && out[1].Applied)
	require.NoError(t, r.Close())
}

func TestRouterNamesShards(t *testing.T) {
	t.Parallel()
	r := newRouter(t, rs.RouterConfig{
		Stores: map[string]rs.Store{"main": rs.NewMemory(), "cluster": sharded{newGate(rs.NewMemory())}},
		Tables: map[string]string{"u": "cluster"}, Authoritative: "main",
	})
	s, ok := rs.Unwrap[rs.Sharder](rs.Coalesce(r, rs.CoalesceOptions{}))
	require.True(t, ok)
	require.Equal(t, s.Shard("t", "a"), s.Shard("t", "b"))
	require.Equal(t, s.Shard("u", "a1"), s.Shard("u", "a2"))
	names := map[string]bool{s.Shard("t", "a"): true, s.Shard("u", "a"): true, s.Shard("u", "b"): true}
	require.Len(t, names, 3)
	require.NoError(t, r.Close())
}
