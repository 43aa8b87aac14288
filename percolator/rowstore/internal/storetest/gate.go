// Package storetest is what the tests of the packages around rowstore share.
package storetest

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// Gate is a Store whose calls stand still until the test answers them. It hands
// each one to the test through calls.
type Gate struct {
	rs.Store // the rest: Scan, Tables, Close
	Calls    chan *GateCall
}

// GateCall is one call of a gate under way.
type GateCall struct {
	Ctx        context.Context
	Reads      []rs.RowRead
	Muts       []rs.Mutation
	Opts       rs.ApplyOptions
	Groups     []rs.Group
	Timestamps int // timestamps asked for
	Answer     chan GateAnswer
}

// GateAnswer is what a call of a gate returns.
type GateAnswer struct {
	Rows   []rs.Row
	Outs   []rs.Outcome
	Groups []rs.GroupOutcome
	First  rs.Timestamp
	Err    error
}

// NewGate returns a gate; what does not stop at it goes to s.
func NewGate(s rs.Store) *Gate { return &Gate{Store: s, Calls: make(chan *GateCall)} }

// Pass hands a call to the test and waits for the answer.
func (g *Gate) Pass(c *GateCall) GateAnswer {
	c.Answer = make(chan GateAnswer)
	g.Calls <- c
	return <-c.Answer
}

// Read implements Store.
func (g *Gate) Read(ctx context.Context, reads []rs.RowRead) ([]rs.Row, error) {
	a := g.Pass(&GateCall{Ctx: ctx, Reads: reads})
	return a.Rows, a.Err
}

// Apply implements Store.
func (g *Gate) Apply(ctx context.Context, muts []rs.Mutation, opts rs.ApplyOptions) ([]rs.Outcome, error) {
	a := g.Pass(&GateCall{Ctx: ctx, Muts: muts, Opts: opts})
	return a.Outs, a.Err
}

// Group implements Grouper.
func (g *Gate) Group(ctx context.Context, groups []rs.Group) ([]rs.GroupOutcome, error) {
	a := g.Pass(&GateCall{Ctx: ctx, Groups: groups})
	return a.Groups, a.Err
}

// Scan implements Store. It does not stop.
func (g *Gate) Scan(ctx context.Context, s rs.ScanRange) iter.Seq2[rs.Row, error] {
	return g.Store.Scan(ctx, s)
}

// Oracle implements OracleProvider.
func (g *Gate) Oracle() oracle.Oracle { return gateOracle{g} }

type gateOracle struct{ g *Gate }

func (o gateOracle) Draw(ctx context.Context, n int) (rs.Timestamp, error) {
	a := o.g.Pass(&GateCall{Ctx: ctx, Timestamps: n})
	return a.First, a.Err
}

// GroupKey implements Grouper: any rows may share a group.
func (g *Gate) GroupKey(table, row string) string { return "all" }

// AssignsTimestamps implements Grouper.
func (g *Gate) AssignsTimestamps(string) bool { return true }

// Next is the next call that reaches the gate; there must be one.
func (g *Gate) Next(t testing.TB) *GateCall {
	t.Helper()
	select {
	case c := <-g.Calls:
		return c
	default:
		require.FailNow(t, "no call reached the store")
		return nil
	}
}

// None checks that no call stands at the gate.
func (g *Gate) None(t testing.TB) {
	t.Helper()
	select {
	case c := <-g.Calls:
		require.FailNow(t, "a call reached the store", "rows %v", c.RowNames())
	default:
	}
}

// RowNames lists the rows that a call names.
func (c *GateCall) RowNames() []string {
	var names []string
	for _, r := range c.Reads {
		names = append(names, r.Row)
	}
	for _, m := range c.Muts {
		names = append(names, m.Row)
	}
	for _, g := range c.Groups {
		for _, m := range g.Mutations {
			names = append(names, m.Row)
		}
	}
	return names
}

// OK answers a call as a store would that finds a version of value "row" in each
// row, and applies everything.
func (c *GateCall) OK() {
	var a GateAnswer
	for _, r := range c.Reads {
		a.Rows = append(a.Rows, rs.Row{Table: r.Table, Row: r.Row, Versions: []rs.Version{{Family: rs.Write, Column: "c", TS: 1, Value: []byte(r.Row)}}})
	}
	for _, m := range c.Muts {
		a.Outs = append(a.Outs, rs.Outcome{Applied: true, Incarnation: m.Row})
	}
	for _, g := range c.Groups {
		a.Groups = append(a.Groups, rs.GroupOutcome{Applied: true, Incarnation: g.Mutations[0].Row})
	}
	c.Answer <- a
}

// Finish is OK, and returns when every goroutine of the bubble stands still.
func (c *GateCall) Finish() {
	c.OK()
	synctest.Wait()
}

// Fail answers a call with an error.
func (c *GateCall) Fail(err error) { c.Answer <- GateAnswer{Err: err} }

// Reply is what became of a call that a test made in a goroutine.
type Reply struct {
	Names []string // of the rows that the answers are about, in order
	Errs  []error  // of the rows
	Err   error    // of the call
	Done  bool
}

// Asker is a way to make a call about some rows: a read, an apply or a group.
type Asker func(ctx context.Context, s rs.Store, rows ...string) Reply

// AskRead reads every row.
func AskRead(ctx context.Context, s rs.Store, rows ...string) Reply {
	var reads []rs.RowRead
	for _, r := range rows {
		reads = append(reads, rs.RowRead{Table: "t", Row: r, Selectors: Everything})
	}
	got, err := s.Read(ctx, reads)
	out := Reply{Err: err, Done: true}
	for _, r := range got {
		out.Names, out.Errs = append(out.Names, r.Row), append(out.Errs, r.Err)
	}
	return out
}

// Mutations makes a mutation of each row, which needs it unlocked.
func Mutations(rows ...string) []rs.Mutation {
	var muts []rs.Mutation
	for _, r := range rows {
		muts = append(muts, rs.Mutation{
			Table: "t", Row: r, Conditions: []rs.Condition{rs.Absent(rs.Lock, "c", 0)},
			Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, []byte(r))},
		})
	}
	return muts
}

// AskApplyWith applies a mutation to every row.
func AskApplyWith(opts rs.ApplyOptions) Asker {
	return func(ctx context.Context, s rs.Store, rows ...string) Reply {
		got, err := s.Apply(ctx, Mutations(rows...), opts)
		out := Reply{Err: err, Done: true}
		for _, o := range got {
			out.Names, out.Errs = append(out.Names, o.Incarnation), append(out.Errs, o.Err)
		}
		return out
	}
}

// AskGroup makes one group of each row.
func AskGroup(ctx context.Context, s rs.Store, rows ...string) Reply {
	var groups []rs.Group
	for _, r := range rows {
		groups = append(groups, rs.Group{Mutations: Mutations(r)})
	}
	g, ok := rs.Unwrap[rs.Grouper](s)
	if !ok {
		panic("no Grouper")
	}
	got, err := g.Group(ctx, groups)
	out := Reply{Err: err, Done: true}
	for _, o := range got {
		out.Names, out.Errs = append(out.Names, o.Incarnation), append(out.Errs, o.Err)
	}
	return out
}

// Askers are the kinds of calls that a store of several rows has.
var Askers = map[string]Asker{"Read": AskRead, "Apply": AskApplyWith(rs.ApplyOptions{}), "Group": AskGroup}
