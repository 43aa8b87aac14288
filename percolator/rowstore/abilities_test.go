package rowstore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// ability is one optional interface of the seam.
type ability struct {
	has func(rs.Store) bool
	// with gives a store that has this ability and no other.
	with func(rs.Store, *rs.Memory) rs.Store
}

func has[T any](s rs.Store) bool {
	_, ok := rs.Unwrap[T](s)
	return ok
}

// sharder and placer give a Memory what it has no use for.
type sharder struct{}

func (sharder) Shard(string, string) string { return "shard" }

type placer struct{}

func (placer) Authoritative(string) bool { return true }

// abilities are all optional interfaces. TestAbilitiesAreAllKnown fails when one of the
// package is missing here.
var abilities = map[string]ability{
	"Grouper": {has[rs.Grouper], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Grouper
		}{s, m}
	}},
	"Deferrer": {has[rs.Deferrer], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Deferrer
		}{s, m}
	}},
	"OracleProvider": {has[rs.OracleProvider], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.OracleProvider
		}{s, m}
	}},
	"DrawReader": {has[rs.DrawReader], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.DrawReader
		}{s, m}
	}},
	"Splitter": {has[rs.Splitter], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Splitter
		}{s, m}
	}},
	"Waker": {has[rs.Waker], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Waker
		}{s, m}
	}},
	"Limiter": {has[rs.Limiter], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Limiter
		}{s, m}
	}},
	"Sharder": {has[rs.Sharder], func(s rs.Store, _ *rs.Memory) rs.Store {
		return struct {
			rs.Store
			sharder
		}{s, sharder{}}
	}},
	"Reporter": {has[rs.Reporter], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Reporter
		}{s, m}
	}},
	"Placer": {has[rs.Placer], func(s rs.Store, _ *rs.Memory) rs.Store {
		return struct {
			rs.Store
			placer
		}{s, placer{}}
	}},
	"Crasher": {has[rs.Crasher], func(s rs.Store, m *rs.Memory) rs.Store {
		return struct {
			rs.Store
			rs.Crasher
		}{s, m}
	}},
}

// treatment is what a wrapper does with an ability of the store beneath.
type treatment string

const (
	passed  treatment = "as it is"               // the store's own
	changed treatment = "with its own behaviour" // calls go through the wrapper
	always  treatment = "always"                 // the wrapper has it whether the store has or not
)

// wrappers says how each wrapper treats each ability. TestWrappersTreatEveryAbility holds
// them to it.
var wrappers = map[string]struct {
	wrap   func(t *testing.T, s rs.Store) rs.Store
	treats map[string]treatment
}{
	"coalescer": {func(_ *testing.T, s rs.Store) rs.Store { return rs.Coalesce(s, rs.CoalesceOptions{}) }, map[string]treatment{
		"Grouper": changed, "Deferrer": passed, "OracleProvider": changed, "DrawReader": changed, "Splitter": passed, "Waker": passed,
		"Limiter": passed, "Sharder": passed, "Reporter": changed, "Placer": passed, "Crasher": passed,
	}},
	"Router": {func(t *testing.T, s rs.Store) rs.Store {
		return newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"main": s}})
	}, map[string]treatment{
		"Grouper": changed, "Deferrer": changed, "OracleProvider": passed, "DrawReader": changed, "Splitter": changed, "Waker": changed,
		"Limiter": changed, "Sharder": always, "Reporter": changed, "Placer": always, "Crasher": changed,
	}},
	"instrumented": {func(t *testing.T, s rs.Store) rs.Store {
		in, err := rs.Instrument(s, rs.InstrumentOptions{})
		require.NoError(t, err)
		return in
	}, map[string]treatment{
		"Grouper": changed, "Deferrer": changed, "OracleProvider": changed, "DrawReader": changed, "Splitter": passed, "Waker": passed,
		"Limiter": passed, "Sharder": passed, "Reporter": passed, "Placer": passed, "Crasher": passed,
	}},
	"Faulty": {func(_ *testing.T, s rs.Store) rs.Store { return rs.NewFaulty(s, rs.FaultyOptions{}) }, map[string]treatment{
		"Grouper": changed, "Deferrer": changed, "OracleProvider": changed, "DrawReader": changed, "Splitter": changed, "Waker": changed,
		"Limiter": passed, "Sharder": passed, "Reporter": passed, "Placer": passed, "Crasher": passed,
	}},
}

func TestWrappersTreatEveryAbility(t *testing.T) {
	t.Parallel()
	for name, w := range wrappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, slices.Sorted(maps.Keys(abilities)), slices.Sorted(maps.Keys(w.treats)), "a treatment for each ability")
			m := rs.NewMemory()
			for of, a := range abilities {
				for _, under := range []func(rs.Store) rs.Store{
					func(s rs.Store) rs.Store { return s },
					func(s rs.Store) rs.Store { return transparent{s} },
				} {
					require.True(t, a.has(under(a.with(plain{m}, m))))
					require.True(t, a.has(w.wrap(t, under(a.with(plain{m}, m)))), "%s of a store that has it: %s", of, w.treats[of])
					require.Equal(t, w.treats[of] == always, a.has(w.wrap(t, under(plain{m}))), "%s of a store that has none", of)
					for other, b := range abilities {
						if other != of && w.treats[other] != always {
							require.False(t, b.has(w.wrap(t, under(a.with(plain{m}, m)))), "%s of a store that has %s alone", other, of)
						}
					}
				}
			}
			require.False(t, has[interface{ NobodyKnowsThis() }](w.wrap(t, struct {
				rs.Store
				unknownAbility
			}{m, unknownAbility{}})), "a Decorator offers no ability that it does not know")
		})
	}
}

type unknownAbility struct{}

func (unknownAbility) NobodyKnowsThis() {}

// TestAbilitiesAreAllKnown reads the package: an interface that is added to it is either
// an ability, which every wrapper must say something about, or none, which is said here.
func TestAbilitiesAreAllKnown(t *testing.T) {
	t.Parallel()
	none := []string{"Store", "Wrapper", "Decorator"}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var interfaces, decorators []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() {
						if _, ok := s.Type.(*ast.InterfaceType); ok {
							interfaces = append(interfaces, s.Name.Name)
						}
					}
				}
			case *ast.FuncDecl:
				if d.Name.Name == "Offer" && d.Recv != nil {
					if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
						decorators = append(decorators, star.X.(*ast.Ident).Name)
					}
				}
			}
		}
	}
	require.ElementsMatch(t, slices.Concat(none, slices.Collect(maps.Keys(abilities))), interfaces,
		"every exported interface of the package is an ability or none: say which, and how each wrapper treats it")
	require.ElementsMatch(t, slices.Collect(maps.Keys(wrappers)), decorators, "every Decorator of the package is in the table of wrappers")
}

// What passes through a Faulty is spoiled there, with the timestamp and the rows alike.
func TestFaultySpoilsDrawReads(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	var next rs.Fault
	var seen []rs.CallKind
	f := rs.NewFaulty(m, rs.FaultyOptions{OnCall: func(c rs.Call) rs.Fault {
		seen = append(seen, c.Kind)
		require.Len(t, c.Asks, 2)
		return next
	}})
	d, ok := rs.Unwrap[rs.DrawReader](f)
	require.True(t, ok)
	ask := rs.DrawRead{Reads: []rs.RowRead{{Table: "t", Row: "r", Picks: []rs.Pick{{Family: rs.Write, Column: "c", To: rs.Drawn}}}}}
	asks := []rs.DrawRead{ask, ask}

	answers, err := d.DrawRead(t.Context(), asks)
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.Less(t, answers[0].TS, answers[1].TS)
	for _, fault := range []rs.Fault{{Kind: rs.Fail}, {Kind: rs.LoseReply}, {Kind: rs.LoseReply, Applied: true}} {
		next = fault
		_, err = d.DrawRead(t.Context(), asks)
		require.ErrorIs(t, err, rs.ErrInjected)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, "nothing was to be changed")
	}
	next = rs.Fault{Kind: rs.FailRow, Row: 1}
	answers, err = d.DrawRead(t.Context(), asks)
	require.NoError(t, err)
	require.NoError(t, answers[0].Err)
	require.ErrorIs(t, answers[1].Err, rs.ErrInjected)
	require.Zero(t, answers[1].TS)
	require.Empty(t, answers[1].Rows)
	require.Equal(t, 1, f.Count(rs.FailRow, rs.CallDrawRead))
	require.Contains(t, f.String(), "draw and read")
	require.Len(t, seen, 5)
	f.CrashClient()
	_, err = d.DrawRead(t.Context(), asks)
	require.ErrorIs(t, err, rs.ErrInjected)
	require.NoError(t, f.Close())
}
