package explore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// gate is a client's way to one store.
type gate struct {
	c     *Client
	inner *memstore.Store
}

// named tells whether the names of a table's rows tell nobody anything: those of sessions, members and hints.
func named(table string) bool {
	return table == format.TableSessions || table == format.TableMembers || table == format.TableHints
}

func rowLabel(table, row string) string {
	return strings.ReplaceAll(table, "\x00", "^") + "/" + row
}

// Read implements rowstore.Store: each row is read by itself.
func (g *gate) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows := answers[rowstore.Row]{list: make([]rowstore.Row, len(reads))}
	r := &request{}
	var names []string
	for i, rd := range reads {
		name := rowLabel(rd.Table, rd.Row)
		if named(rd.Table) {
			name = rowLabel(rd.Table, "*")
		}
		names = append(names, name)
		r.parts = append(r.parts, part{label: name, touches: readTouches(&rd), may: g.mayRead(rd.Table, rd.Row), do: func() {
			got, err := g.inner.Read(context.Background(), []rowstore.RowRead{rd})
			if err != nil {
				got = []rowstore.Row{{Err: err}}
			}
			rows.set(i, got[0])
		}})
	}
	slices.Sort(names)
	r.label = "read " + strings.Join(names, " ")
	err := g.c.call(ctx, r)
	return rows.all(), err
}

// answers are those of the parts of a call. A part may be done again, or late, when the client
// goes on with what it has got.
type answers[A any] struct {
	mu   sync.Mutex
	list []A
}

func (a *answers[A]) set(i int, answer A) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list[i] = answer
}

func (a *answers[A]) all() []A {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// Apply implements rowstore.Store: each row is changed by itself.
func (g *gate) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	done := answers[rowstore.Outcome]{list: make([]rowstore.Outcome, len(muts))}
	r := &request{write: true}
	var names []string
	for i := range muts {
		m := clone(muts[i])
		name := what(&m) + rowLabel(m.Table, m.Row)
		if named(m.Table) {
			name = "renew " + rowLabel(m.Table, "*")
		}
		names = append(names, name)
		r.parts = append(r.parts, part{label: name, touches: g.durable(changeTouches(&m), !opts.Deferred), do: func() {
			got, err := g.inner.Apply(context.Background(), []rowstore.Mutation{m}, opts)
			if err != nil {
				got = []rowstore.Outcome{{Err: err}}
			}
			done.set(i, got[0])
			if got[0].Applied {
				g.c.w.history.noteWrites(&m, 0)
			}
		}})
	}
	slices.Sort(names)
	r.label = strings.Join(names, " ")
	err := g.c.call(ctx, r)
	outs := done.all()
	if err != nil {
		return outs, err
	}
	refused := slices.ContainsFunc(outs, func(o rowstore.Outcome) bool { return !o.Applied })
	if opts.AssignTimestamp && g.c.id%2 == 1 && !refused {
		// Every other client gets its commit timestamp with its prewrites, as from a
		// store that saves a round trip by it.
		ts, err := g.Oracle().Draw(ctx, len(muts))
		for i := range outs {
			if err == nil {
				outs[i].Timestamp = ts + oracle.Timestamp(i) //nolint:gosec // a small number
			}
		}
	}
	return outs, nil
}

// durable adds what a call has to do with batches that a crash may lose: an
// undeferred one makes those before it durable.
func (g *gate) durable(touches []touch, flushes bool) []touch {
	if g.c.w.program.Budget.Crash > 0 {
		touches = append(touches, touch{durableTable, fmt.Sprintf("%p", g.inner), flushes})
	}
	return touches
}

// clone keeps a mutation for later than its caller does.
func clone(m rowstore.Mutation) rowstore.Mutation {
	m.Conditions = slices.Clone(m.Conditions)
	m.Edits = slices.Clone(m.Edits)
	return m
}

// what names a mutation for people.
func what(m *rowstore.Mutation) string {
	puts := map[rowstore.Family]bool{}
	for _, e := range m.Edits {
		if e.Kind == rowstore.DoPut {
			puts[e.Family] = true
		}
	}
	if changesUse(m) {
		return "use "
	}
	present := slices.ContainsFunc(m.Conditions, func(c rowstore.Condition) bool { return c.Kind == rowstore.IfPresent })
	switch {
	case puts[rowstore.Lock] && present:
		return "heartbeat "
	case puts[rowstore.Lock]:
		return "prewrite "
	case puts[rowstore.Write] && present:
		return "commit "
	case present:
		return "unlock "
	case puts[rowstore.Mark]:
		return "fence "
	case puts[rowstore.Notify]:
		return "notify "
	}
	return "change "
}

// Group implements rowstore.Grouper.
func (g *gate) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	done := answers[rowstore.GroupOutcome]{list: make([]rowstore.GroupOutcome, len(groups))}
	r := &request{write: true}
	var names []string
	for i := range groups {
		gr := groups[i]
		gr.Mutations = slices.Clone(gr.Mutations)
		var touches []touch
		var rows []string
		for j := range gr.Mutations {
			gr.Mutations[j] = clone(gr.Mutations[j])
			m := &gr.Mutations[j]
			touches = append(touches, touch{m.Table, m.Row, true})
			rows = append(rows, rowLabel(m.Table, m.Row))
		}
		if gr.AssignTimestamp {
			touches = append(touches, touch{oracleTable, "", true})
		}
		slices.Sort(rows)
		name := "group " + strings.Join(rows, " ")
		names = append(names, name)
		tell := func(got rowstore.GroupOutcome) {
			done.set(i, got)
			for j := range gr.Mutations {
				if got.Applied {
					g.c.w.history.noteWrites(&gr.Mutations[j], got.Commit)
				}
			}
		}
		if gr.AssignTimestamp && g.c.w.program.Drawn {
			r.parts = append(r.parts, g.drawnParts(gr, name, touches, tell)...)
			continue
		}
		r.parts = append(r.parts, part{label: name, touches: g.durable(touches, true), do: func() {
			got, err := g.inner.Group(context.Background(), []rowstore.Group{gr})
			if err != nil {
				got = []rowstore.GroupOutcome{{Err: err}}
			}
			tell(got[0])
		}})
	}
	slices.Sort(names)
	r.label = strings.Join(names, " ")
	err := g.c.call(ctx, r)
	return done.all(), err
}

// GroupKey implements rowstore.Grouper.
func (g *gate) GroupKey(table, row string) string { return g.inner.GroupKey(table, row) }

// AssignsTimestamps implements rowstore.Grouper.
func (g *gate) AssignsTimestamps(key string) bool { return g.inner.AssignsTimestamps(key) }

// Scan implements rowstore.Store: each row is visited by itself.
func (g *gate) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if s.Snapshot != nil && s.Snapshot.Start == 0 {
			ts, err := g.Oracle().Draw(ctx, 1)
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			s.Snapshot.Start = ts
		}
		limit := s.Limit
		for n := 0; limit == 0 || n < limit; n++ {
			var row rowstore.Row
			var err error
			found := false
			s.Limit = 1
			name := rowLabel(s.Table, s.From)
			if named(s.Table) {
				name = rowLabel(s.Table, "*")
			}
			r := &request{label: "scan " + name, scans: !format.Reserved(s.Table)}
			touches := []touch{{table: s.Table}}
			if s.Snapshot != nil {
				touches = append(touches, touch{table: oracleTable}) // it tells the last timestamp
			}
			r.parts = []part{{touches: touches, do: func() {
				row, err, found = rowstore.Row{}, nil, false
				for row, err = range g.inner.Scan(context.Background(), s) {
					found = true
					break
				}
			}}}
			if g.c.w.program.Drawn {
				note, may := g.behindThose(s.Table)
				r.parts[0].may = may
				r.parts = append([]part{note}, r.parts...)
			}
			if cerr := g.c.call(ctx, r); cerr != nil {
				err = cerr
			}
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if !found || !yield(row, nil) {
				return
			}
			if s.Reverse {
				s.To = row.Row
			} else {
				s.From = row.Row + "\x00"
			}
		}
	}
}

// Tables implements rowstore.Store.
func (g *gate) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := g.c.call(ctx, &request{label: "tables", parts: []part{{touches: []touch{{}}, do: func() {}}}}); err != nil {
			yield("", err)
			return
		}
		g.inner.Tables(context.WithoutCancel(ctx))(yield)
	}
}

// Close implements rowstore.Store; the store goes on.
func (g *gate) Close() error { return nil }

// Flush implements rowstore.Deferrer.
func (g *gate) Flush(ctx context.Context) error {
	var err error
	if cerr := g.c.call(ctx, &request{label: "flush", write: true, parts: []part{{touches: g.durable(nil, true), do: func() { err = g.inner.Flush(context.Background()) }}}}); cerr != nil {
		return cerr
	}
	return err
}

// Oracle implements rowstore.OracleProvider.
func (g *gate) Oracle() oracle.Oracle { return gateOracle{g} }

type gateOracle struct{ g *gate }

func (o gateOracle) Draw(ctx context.Context, n int) (ts oracle.Timestamp, err error) {
	r := &request{label: "draw", parts: []part{{touches: []touch{{oracleTable, "", true}}, do: func() {
		ts, err = o.g.inner.Oracle().Draw(context.Background(), n)
	}}}}
	if cerr := o.g.c.call(ctx, r); cerr != nil {
		return 0, cerr
	}
	return ts, err
}

// ReadSnapshot implements rowstore.SnapshotReader: in steps, as it is allowed to be.
func (g *gate) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	answers := make([]rowstore.SnapshotRows, len(asks))
	for i := range asks {
		ts, err := g.Oracle().Draw(ctx, 1)
		if err != nil {
			return nil, err
		}
		rows, err := g.Read(ctx, asks[i].At(ts))
		if err != nil {
			return nil, err
		}
		answers[i] = rowstore.SnapshotRows{TS: ts, Rows: rows}
	}
	return answers, nil
}

// ScansSnapshots implements rowstore.SnapshotScanner: Scan draws in a step of its own.
func (g *gate) ScansSnapshots() {}

// Abilities implements rowstore.Decorator. What an ability hides from the explorer it cannot
// explore, so there are no others.
func (g *gate) Abilities() rowstore.Abilities {
	return rowstore.Abilities{Grouper: g, Deferrer: g, OracleProvider: g, SnapshotReader: g, SnapshotScanner: g}
}
