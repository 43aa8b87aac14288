package rowstore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/otelstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// wrappers says how each wrapper treats each ability. TestWrappersTreatEveryAbility holds
// them to it.
var wrappers = map[string]struct {
	wrap   func(t testing.TB, s rs.Store) rs.Store
	treats map[string]conformance.Treated
}{
	"coalesce": {func(_ testing.TB, s rs.Store) rs.Store { return coalesce.New(s, coalesce.Options{}) }, map[string]conformance.Treated{
		"Grouper": conformance.Changed, "Deferrer": conformance.Passed, "OracleProvider": conformance.Changed,
		"SnapshotReader": conformance.Changed, "Splitter": conformance.Passed, "Waker": conformance.Passed,
		"SlotScanner": conformance.Passed, "SnapshotScanner": conformance.Passed, "Limiter": conformance.Passed, "Sharder": conformance.Passed, "Placer": conformance.Passed,
		"Reporter": conformance.Changed, "Crasher": conformance.Passed,
	}},
	"router": {func(t testing.TB, s rs.Store) rs.Store {
		r, err := router.New(router.Config{Stores: map[string]rs.Store{"main": s}})
		require.NoError(t, err)
		return r
	}, map[string]conformance.Treated{
		"Grouper": conformance.Changed, "Deferrer": conformance.Changed, "OracleProvider": conformance.Passed,
		"SnapshotReader": conformance.Changed, "Splitter": conformance.Changed, "Waker": conformance.Changed,
		"SlotScanner": conformance.Passed, "SnapshotScanner": conformance.Passed, "Limiter": conformance.Changed, "Sharder": conformance.Always, "Placer": conformance.Always,
		"Reporter": conformance.Changed, "Crasher": conformance.Changed,
	}},
	"otelstore": {func(t testing.TB, s rs.Store) rs.Store {
		in, err := otelstore.New(s, otelstore.Options{})
		require.NoError(t, err)
		return in
	}, map[string]conformance.Treated{
		"Grouper": conformance.Changed, "Deferrer": conformance.Changed, "OracleProvider": conformance.Changed,
		"SnapshotReader": conformance.Changed, "Splitter": conformance.Passed, "Waker": conformance.Passed,
		"SlotScanner": conformance.Passed, "SnapshotScanner": conformance.Passed, "Limiter": conformance.Passed, "Sharder": conformance.Passed, "Placer": conformance.Passed,
		"Reporter": conformance.Passed, "Crasher": conformance.Passed,
	}},
	"faultstore": {func(_ testing.TB, s rs.Store) rs.Store { return faultstore.New(s, faultstore.Options{}) }, map[string]conformance.Treated{
		"Grouper": conformance.Changed, "Deferrer": conformance.Changed, "OracleProvider": conformance.Changed,
		"SnapshotReader": conformance.Changed, "Splitter": conformance.Changed, "Waker": conformance.Changed,
		"SlotScanner": conformance.Passed, "SnapshotScanner": conformance.Passed, "Limiter": conformance.Passed, "Sharder": conformance.Passed, "Placer": conformance.Passed,
		"Reporter": conformance.Passed, "Crasher": conformance.Passed,
	}},
}

func TestWrappersTreatEveryAbility(t *testing.T) {
	t.Parallel()
	for name, w := range wrappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RunWrapper(t, w.wrap, w.treats)
			_, ok := rs.Unwrap[interface{ NobodyKnowsThis() }](w.wrap(t, struct {
				rs.Store
				unknownAbility
			}{memstore.New(), unknownAbility{}}))
			require.False(t, ok, "a Decorator offers no ability that it does not know")
		})
	}
}

type unknownAbility struct{}

func (unknownAbility) NobodyKnowsThis() {}

type (
	sharder struct{}
	placer  struct{}
)

func (sharder) Shard(string, string) string { return "shard" }
func (placer) Authoritative(string) bool    { return true }

// everything is a store that has every ability itself.
type everything struct {
	*memstore.Store
	sharder
	placer
}

// passAll passes every ability; none is missing here, or Of panics.
var passAll = rs.Treatment{
	Grouper:         rs.Pass[rs.Grouper],
	Deferrer:        rs.Pass[rs.Deferrer],
	OracleProvider:  rs.Pass[rs.OracleProvider],
	SnapshotReader:  rs.Pass[rs.SnapshotReader],
	Splitter:        rs.Pass[rs.Splitter],
	SlotScanner:     rs.Pass[rs.SlotScanner],
	SnapshotScanner: rs.Pass[rs.SnapshotScanner],
	Waker:           rs.Pass[rs.Waker],
	Limiter:         rs.Pass[rs.Limiter],
	Sharder:         rs.Pass[rs.Sharder],
	Placer:          rs.Pass[rs.Placer],
	Reporter:        rs.Pass[rs.Reporter],
	Crasher:         rs.Pass[rs.Crasher],
}

// decorated is a Decorator whose abilities a test chooses.
type decorated struct {
	rs.Store
	abilities rs.Abilities
}

func (d decorated) Abilities() rs.Abilities { return d.abilities }

// has tells for each ability whether Unwrap finds it.
var has = map[string]func(rs.Store) bool{
	"Grouper":         finds[rs.Grouper],
	"Deferrer":        finds[rs.Deferrer],
	"OracleProvider":  finds[rs.OracleProvider],
	"SnapshotReader":  finds[rs.SnapshotReader],
	"Splitter":        finds[rs.Splitter],
	"SlotScanner":     finds[rs.SlotScanner],
	"SnapshotScanner": finds[rs.SnapshotScanner],
	"Waker":           finds[rs.Waker],
	"Limiter":         finds[rs.Limiter],
	"Sharder":         finds[rs.Sharder],
	"Placer":          finds[rs.Placer],
	"Reporter":        finds[rs.Reporter],
	"Crasher":         finds[rs.Crasher],
}

func finds[T any](s rs.Store) bool {
	_, ok := rs.Unwrap[T](s)
	return ok
}

// TestAbilitiesAreComplete goes through the fields of Abilities: AbilitiesOf, Unwrap and
// Treatment must know each of them.
func TestAbilitiesAreComplete(t *testing.T) {
	t.Parallel()
	fields, treatment := reflect.TypeFor[rs.Abilities](), reflect.TypeFor[rs.Treatment]()
	require.Equal(t, fields.NumField(), treatment.NumField())
	require.Len(t, has, fields.NumField())
	s := everything{Store: memstore.New()}
	all := rs.AbilitiesOf(s)
	require.Equal(t, all, passAll.Of(s))
	require.Zero(t, rs.AbilitiesOf(nil))
	require.Zero(t, passAll.Of(decorated{Store: s}))
	for i := range fields.NumField() {
		f := fields.Field(i)
		require.Equal(t, f.Type.Name(), f.Name, "a field has the name of its interface")
		require.Equal(t, f.Name, treatment.Field(i).Name)
		require.False(t, reflect.ValueOf(all).Field(i).IsNil(), "AbilitiesOf does not look for %s", f.Name)
		require.True(t, has[f.Name](s))
		require.True(t, has[f.Name](decorated{s, all}), "Unwrap does not find %s of a Decorator", f.Name)
		require.False(t, has[f.Name](decorated{Store: s}), "Unwrap looks through a Decorator for %s", f.Name)

		one := decorated{Store: s}
		reflect.ValueOf(&one.abilities).Elem().Field(i).Set(reflect.ValueOf(all).Field(i))
		require.Equal(t, one.abilities, passAll.Of(one), "Treatment mistakes %s", f.Name)

		forgets := passAll
		reflect.ValueOf(&forgets).Elem().Field(i).SetZero()
		require.PanicsWithValue(t, "rowstore: a wrapper does not say how it treats "+f.Name, func() { forgets.Of(decorated{Store: s}) })
	}
	hides := passAll
	hides.Grouper = rs.Hide[rs.Grouper]
	require.Nil(t, hides.Of(s).Grouper)
	require.NotNil(t, hides.Of(s).Deferrer)
}

func TestAbilitiesOfAllocatesNothing(t *testing.T) {
	m := memstore.New()
	s := decorated{m, rs.AbilitiesOf(m)}
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = rs.AbilitiesOf(m) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = rs.AbilitiesOf(&s) }))
}

// TestAbilitiesAreAllKnown reads the package: an interface that is added to it is either
// an ability, with a field in Abilities, or none, which is said here. And it reads the
// packages below: each one with a Decorator is in the table of wrappers.
func TestAbilitiesAreAllKnown(t *testing.T) {
	t.Parallel()
	none := []string{"Store", "Wrapper", "Decorator", "Wakers", "StrayFinder"}
	own, err := filepath.Glob("*.go")
	require.NoError(t, err)
	below, err := filepath.Glob("*/*.go")
	require.NoError(t, err)
	var interfaces, decorators []string
	for _, name := range slices.Concat(own, below) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() && f.Name.Name == "rowstore" {
						if _, ok := s.Type.(*ast.InterfaceType); ok {
							interfaces = append(interfaces, s.Name.Name)
						}
					}
				}
			case *ast.FuncDecl:
				if d.Name.Name == "Abilities" && d.Recv != nil {
					decorators = append(decorators, f.Name.Name)
				}
			}
		}
	}
	var abilities []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[rs.Abilities]()) {
		abilities = append(abilities, f.Name)
	}
	require.ElementsMatch(t, slices.Concat(none, abilities), interfaces,
		"every exported interface of the package is an ability, with a field in Abilities, or is named here as none")
	var tested []string
	for name := range wrappers {
		tested = append(tested, name)
	}
	require.ElementsMatch(t, tested, decorators, "every package with a Decorator is in the table of wrappers")
}
