package conformance

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Treated says what a wrapper does with an ability of the store beneath it.
type Treated uint8

const (
	// Passed: the wrapper offers the store's own.
	Passed Treated = iota + 1
	// Changed: if the store has the ability, the wrapper offers one of its own.
	Changed
	// Hidden: the wrapper does not offer the ability.
	Hidden
	// Always: the wrapper offers one of its own, whether or not the store has the ability.
	Always
)

// RunWrapper checks that a wrapper of stores treats each ability as you say, by the name of
// its field in [rowstore.Abilities]. It checks the wrapper over a store that has the
// ability, over one that has no other, over one that has none, and through a
// [rowstore.Wrapper]. It fails if you say nothing about an ability, so it finds an ability
// that the wrapper does not know yet. Over a store of several [rowstore.Wakers], a wrapper that offers
// a Waker must keep them apart, and one that offers a Placer must keep its [rowstore.StrayFinder].
//
// wrap returns the wrapper over a store. RunWrapper calls it many times, and closes no
// wrapper.
func RunWrapper(t *testing.T, wrap func(t testing.TB, s rowstore.Store) rowstore.Store, treats map[string]Treated) {
	t.Helper()
	known := reflect.TypeFor[rowstore.Abilities]()
	var names []string
	for i := range known.NumField() {
		names = append(names, known.Field(i).Name)
	}
	require.ElementsMatch(t, names, slices.Collect(maps.Keys(treats)), "say how the wrapper treats each ability, and no others")
	all := everyAbility()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			only := able{Store: memstore.New()}
			reflect.ValueOf(&only.abilities).Elem().FieldByName(name).Set(reflect.ValueOf(all).FieldByName(name))
			for _, under := range []func(rowstore.Store) rowstore.Store{
				func(s rowstore.Store) rowstore.Store { return s },
				func(s rowstore.Store) rowstore.Store { return seenThrough{s} },
			} {
				got := rowstore.AbilitiesOf(wrap(t, under(able{memstore.New(), all})))
				requireTreated(t, got, all, name, treats[name])
				got = rowstore.AbilitiesOf(wrap(t, under(only)))
				requireTreated(t, got, all, name, treats[name])
				for _, other := range names {
					if other != name && treats[other] != Always {
						require.True(t, field(got, other).IsNil(), "%s over a store that has %s alone", other, name)
					}
				}
				got = rowstore.AbilitiesOf(wrap(t, under(able{Store: memstore.New()})))
				require.Equal(t, treats[name] != Always, field(got, name).IsNil(), "%s over a store that has no ability", name)
			}
		})
	}
	t.Run("several Wakers", func(t *testing.T) {
		t.Parallel()
		one := all.Waker
		several := able{Store: memstore.New(), abilities: rowstore.Abilities{Waker: &severalWakers{one, []rowstore.Waker{one, one}}}}
		if got := rowstore.AbilitiesOf(wrap(t, several)).Waker; got != nil {
			require.Len(t, rowstore.WakersOf(got), 2, "one that fails takes the others away")
		}
	})
	t.Run("Placer that finds strays", func(t *testing.T) {
		t.Parallel()
		finds := able{Store: memstore.New(), abilities: rowstore.Abilities{Placer: strayFinder{all.Placer}}}
		w := wrap(t, finds)
		if rowstore.AbilitiesOf(w).Placer != nil {
			names, err := rowstore.Strays(t.Context(), w, rowstore.RowRead{Table: "t", Row: "r"})
			require.NoError(t, err)
			require.NotEmpty(t, names, "a second database would be made beside one in another store")
		}
	})
}

type strayFinder struct{ rowstore.Placer }

func (strayFinder) Strays(context.Context, rowstore.RowRead) ([]string, error) {
	return []string{"stray"}, nil
}

// severalWakers is a Waker of several.
type severalWakers struct {
	rowstore.Waker
	all []rowstore.Waker
}

func (w *severalWakers) Wakers() []rowstore.Waker { return w.all }

func requireTreated(t testing.TB, got, all rowstore.Abilities, name string, how Treated) {
	t.Helper()
	have, of := field(got, name), field(all, name)
	if how == Hidden {
		require.True(t, have.IsNil(), "%s is hidden", name)
		return
	}
	require.False(t, have.IsNil(), "the wrapper lacks %s, which the store has", name)
	require.Equal(t, how == Passed, have.Interface() == of.Interface(), "%s is the store's own", name)
}

func field(a rowstore.Abilities, name string) reflect.Value {
	return reflect.ValueOf(a).FieldByName(name)
}

// able is a store with the abilities that a test gives it.
type able struct {
	rowstore.Store
	abilities rowstore.Abilities
}

func (a able) Abilities() rowstore.Abilities { return a.abilities }

// seenThrough is a Wrapper.
type seenThrough struct{ rowstore.Store }

func (s seenThrough) Unwrap() rowstore.Store { return s.Store }

// everyAbility returns an implementation of each ability.
func everyAbility() rowstore.Abilities {
	a := rowstore.AbilitiesOf(memstore.New())
	a.Sharder, a.Placer = oneShard{}, onePlace{}
	return a
}

type oneShard struct{}

func (oneShard) Shard(string, string) string { return "shard" }

type onePlace struct{}

func (onePlace) Authoritative(string) bool { return true }
