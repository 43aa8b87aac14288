package rowstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestSizeOf(t *testing.T) {
	t.Parallel()
	m := storetest.Step("row", 2, 3)
	require.Equal(t, rs.StepSize{Operations: 5, Bytes: 1 + 3 + 2*3 + 3*(3+5)}, rs.SizeOf(&m))
}

// TestLimitsOfAStep holds a memstore.Store, and every wrapper over it, to limits of one atomic
// step: a mutation by itself, and all of a group together.
func TestLimitsOfAStep(t *testing.T) {
	t.Parallel()
	for _, limits := range []rs.Limits{{Operations: 4}, {Bytes: 40}} {
		open := map[string]func(*memstore.Store) rs.Store{"memory": func(m *memstore.Store) rs.Store { return m }}
		for name, w := range wrappers {
			open[name] = func(m *memstore.Store) rs.Store { return w.wrap(t, m) }
		}
		for name, open := range open {
			t.Run(fmt.Sprintf("%s/%+v", name, limits), func(t *testing.T) {
				t.Parallel()
				m := memstore.New(memstore.WithLimits(limits))
				s := open(m)
				l, ok := rs.Unwrap[rs.Limiter](s)
				require.True(t, ok)
				require.Equal(t, limits, l.Limits())
				g, ok := rs.Unwrap[rs.Grouper](s)
				require.True(t, ok)

				_, err := s.Apply(t.Context(), []rs.Mutation{storetest.Step("a", 1, 1), storetest.Step("b", 0, 5)}, rs.ApplyOptions{})
				require.ErrorIs(t, err, rs.ErrTooLarge)
				_, err = g.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{storetest.Step("a", 1, 1)}}, {Mutations: []rs.Mutation{storetest.Step("b", 1, 2), storetest.Step("c", 1, 2)}}})
				require.ErrorIs(t, err, rs.ErrTooLarge)
				for name, err := range m.Tables(t.Context()) {
					require.NoError(t, err)
					require.Empty(t, name, "nothing is written")
				}
				// The limit itself, and batches of any number of steps.
				out, err := s.Apply(t.Context(), []rs.Mutation{storetest.Step("a", 1, 3), storetest.Step("b", 1, 3), storetest.Step("c", 1, 3)}, rs.ApplyOptions{})
				require.NoError(t, err)
				require.Len(t, out, 3)
				groups, err := g.Group(t.Context(), []rs.Group{
					{Mutations: []rs.Mutation{storetest.Step("d", 1, 1), storetest.Step("e", 1, 1)}}, {Mutations: []rs.Mutation{storetest.Step("f", 1, 1), storetest.Step("g", 1, 1)}},
				})
				require.NoError(t, err)
				require.True(t, groups[0].Applied && groups[1].Applied)
				require.NoError(t, s.Close())
			})
		}
	}
}
