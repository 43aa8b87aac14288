package rowstore_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// gate is a Store whose calls stand still until the test answers them. It hands
// each one to the test through calls.
type gate struct {
	rs.Store // the rest: Scan, Tables, Close
	calls    chan *gateCall
}

// gateCall is one call of a gate under way.
type gateCall struct {
	ctx    context.Context
	reads  []rs.RowRead
	muts   []rs.Mutation
	opts   rs.ApplyOptions
	groups []rs.Group
	drawn  int // timestamps asked for
	answer chan gateAnswer
}

type gateAnswer struct {
	rows   []rs.Row
	outs   []rs.Outcome
	groups []rs.GroupOutcome
	first  rs.Timestamp
	err    error
}

func newGate(s rs.Store) *gate { return &gate{Store: s, calls: make(chan *gateCall)} }

func (g *gate) pass(c *gateCall) gateAnswer {
	c.answer = make(chan gateAnswer)
	g.calls <- c
	return <-c.answer
}

func (g *gate) Read(ctx context.Context, reads []rs.RowRead) ([]rs.Row, error) {
	a := g.pass(&gateCall{ctx: ctx, reads: reads})
	return a.rows, a.err
}

func (g *gate) Apply(ctx context.Context, muts []rs.Mutation, opts rs.ApplyOptions) ([]rs.Outcome, error) {
	a := g.pass(&gateCall{ctx: ctx, muts: muts, opts: opts})
	return a.outs, a.err
}

func (g *gate) Group(ctx context.Context, groups []rs.Group) ([]rs.GroupOutcome, error) {
	a := g.pass(&gateCall{ctx: ctx, groups: groups})
	return a.groups, a.err
}

func (g *gate) Scan(ctx context.Context, s rs.ScanRange) iter.Seq2[rs.Row, error] {
	return g.Store.Scan(ctx, s)
}

func (g *gate) Oracle() oracle.Oracle { return gateOracle{g} }

type gateOracle struct{ g *gate }

func (o gateOracle) Draw(ctx context.Context, n int) (rs.Timestamp, error) {
	a := o.g.pass(&gateCall{ctx: ctx, drawn: n})
	return a.first, a.err
}

func (g *gate) GroupKey(table, row string) string { return "all" }
func (g *gate) Draws(string) bool                 { return true }

// next is the next call that reaches the gate; there must be one.
func (g *gate) next(t testing.TB) *gateCall {
	t.Helper()
	select {
	case c := <-g.calls:
		return c
	default:
		require.FailNow(t, "no call reached the store")
		return nil
	}
}

// none checks that no call stands at the gate.
func (g *gate) none(t testing.TB) {
	t.Helper()
	select {
	case c := <-g.calls:
		require.FailNow(t, "a call reached the store", "rows %v", c.rowNames())
	default:
	}
}

// rowNames lists the rows that a call names.
func (c *gateCall) rowNames() []string {
	var names []string
	for _, r := range c.reads {
		names = append(names, r.Row)
	}
	for _, m := range c.muts {
		names = append(names, m.Row)
	}
	for _, g := range c.groups {
		for _, m := range g.Mutations {
			names = append(names, m.Row)
		}
	}
	return names
}

// ok answers a call as a store would that finds a version of value "row" in each
// row, and applies everything.
func (c *gateCall) ok() {
	var a gateAnswer
	for _, r := range c.reads {
		a.rows = append(a.rows, rs.Row{Table: r.Table, Row: r.Row, Versions: []rs.Version{{Family: rs.Write, Column: "c", TS: 1, Value: []byte(r.Row)}}})
	}
	for _, m := range c.muts {
		a.outs = append(a.outs, rs.Outcome{Applied: true, Incarnation: m.Row})
	}
	for _, g := range c.groups {
		a.groups = append(a.groups, rs.GroupOutcome{Applied: true, Incarnation: g.Mutations[0].Row})
	}
	c.answer <- a
}

func (c *gateCall) fail(err error) { c.answer <- gateAnswer{err: err} }

// reply is what became of a call that a test made in a goroutine.
type reply struct {
	names []string // of the rows that the answers are about, in order
	errs  []error  // of the rows
	err   error    // of the call
	done  bool
}

// asker is a way to make a call about some rows: a read, an apply or a group.
type asker func(ctx context.Context, s rs.Store, rows ...string) reply

func askRead(ctx context.Context, s rs.Store, rows ...string) reply {
	var reads []rs.RowRead
	for _, r := range rows {
		reads = append(reads, rs.RowRead{Table: "t", Row: r, Picks: everything})
	}
	got, err := s.Read(ctx, reads)
	out := reply{err: err, done: true}
	for _, r := range got {
		out.names, out.errs = append(out.names, r.Row), append(out.errs, r.Err)
	}
	return out
}

func mutations(rows ...string) []rs.Mutation {
	var muts []rs.Mutation
	for _, r := range rows {
		muts = append(muts, rs.Mutation{
			Table: "t", Row: r, Conditions: []rs.Condition{rs.Absent(rs.Lock, "c", 0)},
			Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, []byte(r))},
		})
	}
	return muts
}

func askApplyWith(opts rs.ApplyOptions) asker {
	return func(ctx context.Context, s rs.Store, rows ...string) reply {
		got, err := s.Apply(ctx, mutations(rows...), opts)
		out := reply{err: err, done: true}
		for _, o := range got {
			out.names, out.errs = append(out.names, o.Incarnation), append(out.errs, o.Err)
		}
		return out
	}
}

// askGroup makes one group of each row.
func askGroup(ctx context.Context, s rs.Store, rows ...string) reply {
	var groups []rs.Group
	for _, r := range rows {
		groups = append(groups, rs.Group{Mutations: mutations(r)})
	}
	g, ok := rs.Unwrap[rs.Grouper](s)
	if !ok {
		panic("no Grouper")
	}
	got, err := g.Group(ctx, groups)
	out := reply{err: err, done: true}
	for _, o := range got {
		out.names, out.errs = append(out.names, o.Incarnation), append(out.errs, o.Err)
	}
	return out
}

var askers = map[string]asker{"Read": askRead, "Apply": askApplyWith(rs.ApplyOptions{}), "Group": askGroup}
