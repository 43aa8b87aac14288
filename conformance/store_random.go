package conformance

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func randomTests() []test {
	return []test{
		{"RandomCallsAgainstMemory", Random, randomCallsAgainstMemory},
		{"RandomRowsAreLinearizable", Random, randomRowsAreLinearizable},
	}
}

// randomCallsAgainstMemory runs the same calls on the store and on the reference,
// and compares each answer. Names are few, so that calls meet each other. All
// checks use one store, each a name space of its own within it.
func randomCallsAgainstMemory(t testing.TB, e *env) {
	h := e.harness(t)
	limit := int64(e.n(100, 20))
	var checks atomic.Int64
	failed := false
	rapid.Check(t, func(rt *rapid.T) {
		// rapid's own flag counts up to 100; a smaller scale stops working before.
		// What failed must be seen through, since rapid runs it again to shrink it.
		n := checks.Add(1)
		if !failed && n > limit {
			return
		}
		failed = true
		runModel(rt, h, fmt.Sprintf("%d!", n))
		failed = false
	})
	t.Logf("%d sequences of calls", min(checks.Load(), limit))
}

// modelRun is one sequence of calls on a store and on the reference.
type modelRun struct {
	h      *harness
	model  *memstore.Store
	prefix string
	// The incarnations of the two.
	is, modelIs string
}

var (
	modelTables  = []string{"t", "t\x00"}
	modelRows    = []string{"a", "a\x00", "b", "\xff", "r"}
	modelColumns = []string{"c", "c\x00", "d"}
	modelStamps  = []rowstore.Timestamp{1, 2, 3, 4, 5, 6, oracle.Max}
)

func runModel(t *rapid.T, h *harness, prefix string) {
	r := &modelRun{h: h, model: memstore.New(), prefix: prefix}
	defer func() { _ = r.model.Close() }()
	r.is, r.modelIs = incarnation(t, h.ctx, h.s), incarnation(t, h.ctx, r.model)
	actions := map[string]func(*rapid.T){
		"apply":  r.apply,
		"apply2": r.apply, // more often than the others
		"apply3": r.apply,
		"read":   r.read,
		"scan":   r.scan,
		"":       func(*rapid.T) {},
	}
	if g, ok := rowstore.Unwrap[rowstore.Grouper](h.s); ok {
		actions["group"] = func(t *rapid.T) { r.group(t, g) }
	}
	t.Repeat(actions)
	for _, table := range modelTables {
		s := rowstore.ScanRange{Table: prefix + table, Selectors: everything()}
		want, err := collect(h.ctx, r.model, s)
		require.NoError(t, err)
		got, err := collect(h.ctx, h.s, s)
		require.NoError(t, err)
		require.Equal(t, want, got, "all of table %q at the end", table)
	}
}

func incarnation(t *rapid.T, ctx context.Context, s rowstore.Store) string { //nolint:revive // t first, as everywhere
	out, err := s.Apply(ctx, []rowstore.Mutation{mut("none", nil)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	return out[0].Incarnation
}

func (r *modelRun) stamp(t *rapid.T, label string) rowstore.Timestamp {
	return rapid.SampledFrom(modelStamps).Draw(t, label)
}

// bound is a timestamp of a range or a condition, which may be 0.
func (r *modelRun) bound(t *rapid.T, label string) rowstore.Timestamp {
	return rapid.SampledFrom(append([]rowstore.Timestamp{0, 7, oracle.Max - 1}, modelStamps...)).Draw(t, label)
}

func (r *modelRun) picks(t *rapid.T) []rowstore.Selector {
	picks := make([]rowstore.Selector, rapid.IntRange(1, 4).Draw(t, "picks"))
	for i := range picks {
		picks[i] = rowstore.Selector{
			Family: rapid.SampledFrom(families).Draw(t, "family"),
			Column: rapid.SampledFrom(append([]string{rowstore.AllColumns}, modelColumns...)).Draw(t, "column"),
			Limit:  rapid.IntRange(0, 2).Draw(t, "limit"),
			From:   r.bound(t, "from"), To: oracle.Max,
		}
		if rapid.Bool().Draw(t, "bounded") {
			picks[i].To = r.bound(t, "to")
		} else {
			picks[i].From = 0
		}
	}
	return picks
}

// mutation draws a mutation that keeps the rules of the contract. It keeps also those
// that Check does not enforce: a Lock is put only under Absent{Lock} or at its own
// timestamp, and Data never changes its value.
func (r *modelRun) mutation(t *rapid.T, table, row string) rowstore.Mutation {
	m := rowstore.Mutation{Table: r.prefix + table, Row: row}
	for range rapid.IntRange(0, 3).Draw(t, "conditions") {
		m.Conditions = append(m.Conditions, r.condition(t))
	}
	for range rapid.IntRange(0, 5).Draw(t, "edits") {
		e := r.edit(t)
		next := append(slices.Clone(m.Edits), e)
		if rowstore.CheckBatch([]rowstore.Mutation{{Table: "t", Row: "r", Edits: next}}) != nil {
			continue // it does not go with an edit before it
		}
		m.Edits = next
		if e.Kind != rowstore.DoPut || e.Family != rowstore.Lock {
			continue
		}
		rows, err := r.model.Read(r.h.ctx, []rowstore.RowRead{{Table: m.Table, Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Lock, Column: e.Column, To: oracle.Max}}}})
		require.NoError(t, err)
		if len(rows[0].Versions) == 0 || rows[0].Versions[0].TS != e.TS {
			m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Lock, e.Column, 0))
		}
	}
	return m
}

func (r *modelRun) condition(t *rapid.T) rowstore.Condition {
	column := rapid.SampledFrom(modelColumns).Draw(t, "column")
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		return rowstore.SameIncarnation(rapid.SampledFrom([]string{"current", "other"}).Draw(t, "incarnation"))
	case 1, 2:
		return rowstore.AbsentAt(column, r.bound(t, "at"))
	case 3, 4:
		return rowstore.Present(column, r.bound(t, "at"))
	default:
		return rowstore.Absent(rapid.SampledFrom(conditional).Draw(t, "family"), column, r.bound(t, "from"))
	}
}

func (r *modelRun) edit(t *rapid.T) rowstore.Edit {
	f := rapid.SampledFrom(families).Draw(t, "family")
	column := rapid.SampledFrom(modelColumns).Draw(t, "column")
	switch rapid.IntRange(0, 6).Draw(t, "edit") {
	case 0:
		return rowstore.DeleteRange(f, column, r.bound(t, "from"), r.bound(t, "to"))
	case 1, 2:
		return rowstore.Delete(f, column, r.stamp(t, "at"))
	}
	ts := r.stamp(t, "at")
	value := rapid.SampledFrom([]string{"", "v", "w", "\x00", strings.Repeat("long", 80)}).Draw(t, "value")
	if f == rowstore.Data {
		value = fmt.Sprintf("data of %s at %d", column, ts)
	}
	return write(ver(f, column, ts, value))
}

// with returns m with the incarnation that "current" and "other" stand for.
func with(m rowstore.Mutation, current string) rowstore.Mutation {
	m.Conditions = slices.Clone(m.Conditions)
	for i, c := range m.Conditions {
		if c.Kind != rowstore.IfIncarnation {
			continue
		}
		m.Conditions[i].Incarnation = current
		if c.Incarnation == "other" {
			m.Conditions[i].Incarnation = current + "'"
		}
	}
	return m
}

func (r *modelRun) batch(t *rapid.T) []rowstore.Mutation {
	type place struct{ table, row string }
	var places []place
	for _, table := range modelTables {
		for _, row := range modelRows {
			places = append(places, place{table, row})
		}
	}
	places = rapid.Permutation(places).Draw(t, "rows")[:rapid.IntRange(1, 5).Draw(t, "how many")]
	var muts []rowstore.Mutation
	for _, p := range places {
		muts = append(muts, r.mutation(t, p.table, p.row))
	}
	return muts
}

func (r *modelRun) apply(t *rapid.T) {
	muts := r.batch(t)
	mine, theirs := make([]rowstore.Mutation, len(muts)), make([]rowstore.Mutation, len(muts))
	for i, m := range muts {
		mine[i], theirs[i] = with(m, r.is), with(m, r.modelIs)
	}
	opts := rowstore.ApplyOptions{Deferred: rapid.Bool().Draw(t, "deferred")}
	want, err := r.model.Apply(r.h.ctx, theirs, opts)
	require.NoError(t, err)
	got, err := r.h.s.Apply(r.h.ctx, mine, opts)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, bare(want[i]), bare(got[i]), "outcome %d, of %+v", i, muts[i])
	}
}

// bare is an outcome as it is the same of every store.
func bare(o rowstore.Outcome) rowstore.Outcome {
	o.Incarnation = ""
	o.Broke = norm1(o.Broke)
	if o.Applied || o.Err != nil {
		o.Failed = 0
	}
	return o
}

func (r *modelRun) group(t *rapid.T, g rowstore.Grouper) {
	var groups []rowstore.Group
	for _, m := range r.batch(t) {
		k := g.GroupKey(m.Table, m.Row)
		if k == "" {
			continue
		}
		last := len(groups) - 1
		if last >= 0 && g.GroupKey(groups[last].Mutations[0].Table, groups[last].Mutations[0].Row) == k && rapid.Bool().Draw(t, "same group") {
			groups[last].Mutations = append(groups[last].Mutations, m)
		} else {
			groups = append(groups, rowstore.Group{Mutations: []rowstore.Mutation{m}})
		}
	}
	mine, theirs := make([]rowstore.Group, len(groups)), make([]rowstore.Group, len(groups))
	single := make([][]rowstore.Outcome, len(groups)) // of each mutation's conditions alone
	for i := range groups {
		for _, m := range groups[i].Mutations {
			mine[i].Mutations = append(mine[i].Mutations, with(m, r.is))
			theirs[i].Mutations = append(theirs[i].Mutations, with(m, r.modelIs))
			check := with(m, r.modelIs)
			check.Edits = nil
			out, err := r.model.Apply(r.h.ctx, []rowstore.Mutation{check}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			single[i] = append(single[i], out[0])
		}
	}
	want, err := r.model.Group(r.h.ctx, theirs)
	require.NoError(t, err)
	got, err := g.Group(r.h.ctx, mine)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.NoError(t, got[i].Err)
		require.Equal(t, want[i].Applied, got[i].Applied, "group %d of %+v", i, groups)
		if !want[i].Applied {
			require.Less(t, got[i].Failed, len(single[i]))
			require.Equal(t, bare(single[i][got[i].Failed]), bare(got[i].Outcome), "the mutation that failed of group %d of %+v", i, groups)
		}
	}
}

func (r *modelRun) read(t *rapid.T) {
	reads := make([]rowstore.RowRead, rapid.IntRange(1, 4).Draw(t, "reads"))
	for i := range reads {
		reads[i] = rowstore.RowRead{
			Table: r.prefix + rapid.SampledFrom(modelTables).Draw(t, "table"), Row: rapid.SampledFrom(modelRows).Draw(t, "row"), Selectors: r.picks(t),
		}
	}
	want, err := r.model.Read(r.h.ctx, reads)
	require.NoError(t, err)
	got, err := r.h.s.Read(r.h.ctx, reads)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		want[i].Versions, got[i].Versions = norm(want[i].Versions), norm(got[i].Versions)
		require.Equal(t, want[i], got[i], "%+v", reads[i])
	}
}

func (r *modelRun) scan(t *rapid.T) {
	bounds := append([]string{"", "aa"}, modelRows...)
	s := rowstore.ScanRange{
		Table: r.prefix + rapid.SampledFrom(modelTables).Draw(t, "table"),
		From:  rapid.SampledFrom(bounds).Draw(t, "from"), To: rapid.SampledFrom(bounds).Draw(t, "to"),
		Reverse: rapid.Bool().Draw(t, "reverse"), Limit: rapid.IntRange(0, 3).Draw(t, "limit"), Selectors: r.picks(t),
	}
	want, err := collect(r.h.ctx, r.model, s)
	require.NoError(t, err)
	got, err := collect(r.h.ctx, r.h.s, s)
	require.NoError(t, err)
	require.Equal(t, want, got, "%+v", s)
}

// randomRowsAreLinearizable runs random reads and mutations of one row from
// several goroutines, and looks for an order of them, within the times of the
// calls, that explains every answer.
func randomRowsAreLinearizable(t testing.TB, e *env) {
	h := e.harness(t)
	rng := seeded(t)
	group := grouper(h.s)
	const workers, steps = 3, 8 // few, since the search is exponential in what overlaps
	for round := range e.n(80, 20) {
		row := key(round)
		var clock atomic.Int64
		histories := make([][]porcupine.Operation, workers)
		var g errgroup.Group
		for w := range workers {
			rng := fork(rng)
			g.Go(func() error {
				for range steps {
					op := anyRowOp(rng, row, w)
					// A change in one step and one in several meet in each row.
					op.grouped = !op.read && rng.IntN(3) == 0 && group != nil && group.GroupKey("t", row) != ""
					call := clock.Add(1)
					var answer rowAnswer
					if op.read {
						r, err := read1(h, row, everything()...)
						if err != nil {
							return err
						}
						answer.versions = norm(r.Versions)
					} else {
						change := apply1
						if op.grouped {
							change = group1
						}
						out, err := change(h, op.m)
						if err != nil {
							return err
						}
						answer.outcome = bare(out)
					}
					histories[w] = append(histories[w], porcupine.Operation{ClientId: w, Input: op, Output: answer, Call: call, Return: clock.Add(1)})
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		history := slices.Concat(histories...)
		if !porcupine.CheckOperations(rowModel, history) {
			slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, o := range history {
				t.Logf("%d: [%d, %d] %+v -> %+v", o.ClientId, o.Call, o.Return, o.Input, o.Output)
			}
			t.Fatalf("no order of these calls on row %q explains their answers", row)
		}
	}
}

// anyRowOp is a random call on a row, of columns "c" and "d" and few timestamps.
func anyRowOp(rng *rand.Rand, row string, worker int) rowOp {
	if rng.IntN(5) < 2 {
		return rowOp{read: true}
	}
	column := []string{"c", "d"}[rng.IntN(2)]
	ts := rowstore.Timestamp(1 + rng.IntN(4)) //nolint:gosec // positive
	value := fmt.Sprint(worker, rng.IntN(2))
	ops := []rowstore.Mutation{
		mut(row, when(rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Lock, "d", 0), rowstore.Absent(rowstore.Mark, column, ts)),
			write(ver(rowstore.Lock, "c", ts, value)), write(ver(rowstore.Lock, "d", ts, value))),
		mut(row, when(rowstore.Present(column, ts)), rowstore.Delete(rowstore.Lock, column, ts), write(ver(rowstore.Write, column, ts+1, value))),
		mut(row, when(rowstore.Absent(rowstore.Write, column, ts)), write(ver(rowstore.Write, column, ts, value)), write(ver(rowstore.Notify, "c", ts, value))),
		mut(row, nil, rowstore.DeleteRange(rowstore.Write, column, ts, ts+1), rowstore.Delete(rowstore.Notify, "c", ts)),
		mut(row, when(rowstore.AbsentAt(column, ts)), rowstore.Put(rowstore.Mark, column, ts, []byte(value))),
		mut(row, when(rowstore.Absent(rowstore.Notify, "c", ts), rowstore.Absent(rowstore.Mark, column, ts))),
	}
	return rowOp{m: ops[rng.IntN(len(ops))]}
}

type rowOp struct {
	read    bool
	grouped bool
	m       rowstore.Mutation
}

type rowAnswer struct {
	versions []rowstore.Version
	outcome  rowstore.Outcome
}

// rowModel is a row as the sequential specification: its state is the sorted
// versions.
var rowModel = porcupine.Model{
	Init: func() any { return []rowstore.Version{} },
	Step: func(state, input, output any) (bool, any) {
		row, op, answer := state.([]rowstore.Version), input.(rowOp), output.(rowAnswer)
		if op.read {
			return equalVersions(row, answer.versions), state
		}
		out, next := stepRow(row, op.m)
		same := out.Applied == answer.outcome.Applied && out.Failed == answer.outcome.Failed &&
			equalVersions([]rowstore.Version{out.Broke}, []rowstore.Version{answer.outcome.Broke})
		return same, next
	},
	Equal: func(a, b any) bool { return equalVersions(a.([]rowstore.Version), b.([]rowstore.Version)) },
}

func equalVersions(a, b []rowstore.Version) bool {
	return slices.EqualFunc(a, b, func(x, y rowstore.Version) bool {
		return rowstore.CompareVersions(x, y) == 0 && string(x.Value) == string(y.Value)
	})
}

// stepRow says what a mutation does to a row: the contract, as a function.
func stepRow(row []rowstore.Version, m rowstore.Mutation) (rowstore.Outcome, []rowstore.Version) {
	for i, c := range m.Conditions {
		var broke *rowstore.Version
		for j := range row { // newest first
			v := &row[j]
			if v.Family != c.Family || v.Column != c.Column || broke != nil {
				continue
			}
			if c.Kind == rowstore.IfAbsent && v.TS >= c.TS || c.Kind != rowstore.IfAbsent && v.TS == c.TS {
				broke = v
			}
		}
		switch {
		case c.Kind == rowstore.IfPresent && broke == nil:
			return rowstore.Outcome{Failed: i}, row
		case c.Kind != rowstore.IfPresent && broke != nil:
			return rowstore.Outcome{Failed: i, Broke: *broke}, row
		}
	}
	next := slices.Clone(row)
	for _, e := range m.Edits {
		to := e.TS
		if e.Kind == rowstore.DoDeleteRange {
			to = e.To
		}
		if e.Kind == rowstore.DoPut && e.Family == rowstore.Mark {
			if slices.ContainsFunc(next, func(v rowstore.Version) bool { return v.Family == e.Family && v.Column == e.Column && v.TS > e.TS }) {
				continue
			}
			e.TS = 0
		}
		next = slices.DeleteFunc(next, func(v rowstore.Version) bool {
			return v.Family == e.Family && v.Column == e.Column && v.TS >= e.TS && v.TS <= to
		})
		if e.Kind == rowstore.DoPut {
			next = append(next, norm1(rowstore.Version{Family: e.Family, Column: e.Column, TS: to, Value: e.Value}))
		}
	}
	slices.SortFunc(next, rowstore.CompareVersions)
	return rowstore.Outcome{Applied: true}, next
}
