package percolatetest

import (
	"context"
	"fmt"
	"iter"
	"runtime"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// shared is the store as one process has it: its Close leaves it to the others.
type shared struct{ *memstore.Store }

// Close implements rowstore.Store.
func (shared) Close() error { return nil }

// gate is a process's way to the store. It stops an actor where a transaction takes its
// snapshot and where it commits, until the schedule lets it go on. Everything else passes.
type gate struct {
	shared
	w      *world
	client *actor // nil for the process of the observers, which is Setup's too
}

// actorKey finds the actor in the context of a client or of a run.
type actorKey struct{}

// actor returns whose call it is; nil for nobody's whom the schedule knows. The context says it, because a run may use the
// database of any process. A client need not pass its context on: its process is its own.
func (g *gate) actor(ctx context.Context) *actor {
	if a, ok := ctx.Value(actorKey{}).(*actor); ok {
		return a
	}
	return g.client
}

// snapshot stops where a transaction takes its snapshot, and returns whose it is. One that nobody is known to make, while the
// schedule is under way, is an error: it would meet the others in one order only.
func (g *gate) snapshot(ctx context.Context) *actor {
	a := g.actor(ctx)
	switch {
	case a != nil:
		a.snapshot()
	case g.w.inOrder.Load():
		g.w.stray.Store(true)
	}
	return a
}

// Abilities implements rowstore.Decorator. Notifications are looked for past the gate, so it
// needs no push.
func (g *gate) Abilities() rowstore.Abilities {
	return rowstore.Abilities{Grouper: g, Deferrer: g.Store, OracleProvider: g.Store, SnapshotReader: g}
}

// begins is called when a transaction draws its start timestamp without a read.
func (g *gate) begins(ctx context.Context) {
	g.snapshot(ctx)
}

// ReadSnapshot implements rowstore.SnapshotReader: the first read of a transaction.
func (g *gate) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	a := g.snapshot(ctx)
	answers, err := g.Store.ReadSnapshot(ctx, asks)
	if err == nil && a != nil {
		for i := range answers {
			g.w.noteRows(asks[i].Reads, answers[i].Rows)
		}
	}
	return answers, err
}

// Read implements rowstore.Store.
func (g *gate) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	a := g.actor(ctx)
	if a != nil && a.blind.Swap(false) {
		return nil, fmt.Errorf("percolatetest: the outcome is kept from the client: %w", rowstore.ErrClosed)
	}
	rows, err := g.Store.Read(ctx, reads)
	if err == nil && a != nil {
		g.w.noteRows(reads, rows)
	}
	return rows, err
}

// Scan implements rowstore.Store.
func (g *gate) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	a := g.actor(ctx)
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range g.Store.Scan(ctx, s) {
			if err == nil && a != nil {
				g.w.noteRows(nil, []rowstore.Row{row})
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// Apply implements rowstore.Store. The first prewrite of a transaction stands for its commit.
func (g *gate) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	a := g.actor(ctx)
	if a == nil || !commits(muts) {
		return g.Store.Apply(ctx, muts, opts)
	}
	a.commit(muts, false)
	return g.Store.Apply(ctx, muts, opts)
}

// Group implements rowstore.Grouper. A group of which the transaction is the whole is its
// commit.
func (g *gate) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	a := g.actor(ctx)
	if a == nil || len(groups) != 1 || !commits(groups[0].Mutations) {
		return g.Store.Group(ctx, groups)
	}
	muts := groups[0].Mutations
	verdict := a.commit(muts, groups[0].AssignTimestamp)
	switch verdict {
	case conflict:
		return g.refuse(ctx, muts)
	case lostBefore:
		a.blind.Store(true)
		return nil, fmt.Errorf("percolatetest: the request was lost: %w", rowstore.ErrAmbiguous)
	default:
	}
	outs, err := g.Store.Group(ctx, groups)
	if err == nil && outs[0].Applied {
		g.w.changed = true
	} else if err == nil {
		g.w.note("refused: %v is in the way", percolator.Cell{Table: muts[outs[0].Failed].Table, Row: muts[outs[0].Failed].Row, Column: outs[0].Outcome.Broke.Column})
	}
	switch verdict {
	case lostAfter:
		a.blind.Store(true)
		return nil, fmt.Errorf("percolatetest: the reply was lost: %w", rowstore.ErrAmbiguous)
	case diesAfter:
		runtime.Goexit()
	default:
	}
	return outs, err
}

// refuse answers a commit as if another transaction had just written the first cell that the
// commit has a condition on.
func (g *gate) refuse(ctx context.Context, muts []rowstore.Mutation) ([]rowstore.GroupOutcome, error) {
	at, err := g.Oracle().Draw(ctx, 1)
	if err != nil {
		return nil, err
	}
	i, j := firstCondition(muts)
	broke := rowstore.Version{Family: rowstore.Write, Column: muts[i].Conditions[j].Column, TS: at}
	return []rowstore.GroupOutcome{{Failed: i, Outcome: rowstore.Outcome{Failed: j, Broke: broke}}}, nil
}

// firstCondition finds the first condition that a write of another transaction breaks; -1 for
// none.
func firstCondition(muts []rowstore.Mutation) (mutation, condition int) {
	for i := range muts {
		for j := range muts[i].Conditions {
			if c := &muts[i].Conditions[j]; c.Kind == rowstore.IfAbsent && c.Family == rowstore.Write {
				return i, j
			}
		}
	}
	return -1, -1
}

// commits tells whether mutations are a step of a commit of a user's transaction, or of a run.
func commits(muts []rowstore.Mutation) bool {
	for i := range muts {
		if !format.Transactional(muts[i].Table) {
			continue
		}
		for _, e := range muts[i].Edits {
			if e.Kind == rowstore.DoPut && (e.Family == rowstore.Write || e.Family == rowstore.Lock || e.Family == rowstore.Notify ||
				e.Family == rowstore.Mark && e.TS == rowstore.AssignedTimestamp) {
				return true
			}
		}
	}
	return false
}

// startOf returns the start timestamp of the transaction that mutations belong to; 0 if they
// do not tell, because they only notify.
func startOf(muts []rowstore.Mutation) percolator.Timestamp {
	for i := range muts {
		for _, e := range muts[i].Edits {
			if e.Kind != rowstore.DoPut {
				continue
			}
			switch e.Family {
			case rowstore.Lock:
				return e.TS
			case rowstore.Write:
				if w, err := format.DecodeWrite(e.Value); err == nil {
					return w.Start
				}
			case rowstore.Mark:
				if start, err := format.DecodeMark(e.Value); err == nil {
					return start
				}
			default:
			}
		}
	}
	return 0
}

// note adds a line about what the last choice came to.
func (w *world) note(text string, args ...any) {
	if w.verbose {
		w.notesMu.Lock()
		defer w.notesMu.Unlock()
		w.notes = append(w.notes, fmt.Sprintf(text, args...))
	}
}

// noteRows notes what was read of users' cells. reads is nil for a scan.
func (w *world) noteRows(reads []rowstore.RowRead, rows []rowstore.Row) {
	if !w.verbose {
		return
	}
	for i := range rows {
		row, found := &rows[i], map[string]bool{}
		for _, v := range row.Versions {
			c, ok := userCell(row.Table, row.Row, v.Column)
			if !ok || v.Family != rowstore.Write || found[v.Column] {
				continue
			}
			found[v.Column] = true
			w.note("reads %v = %s", c, valueOf(v.Value, nil))
		}
		if reads == nil {
			continue
		}
		for _, p := range reads[i].Selectors {
			if c, ok := userCell(reads[i].Table, reads[i].Row, p.Column); ok && p.Family == rowstore.Write && p.Column != rowstore.AllColumns && !found[p.Column] {
				found[p.Column] = true
				w.note("reads %v: nothing", c)
			}
		}
	}
}

// noteWrites notes what a commit writes into users' cells.
func (w *world) noteWrites(muts []rowstore.Mutation) {
	if !w.verbose {
		return
	}
	for i := range muts {
		m := &muts[i]
		for _, e := range m.Edits {
			c, ok := userCell(m.Table, m.Row, e.Column)
			if !ok || e.Kind != rowstore.DoPut {
				continue
			}
			switch e.Family {
			case rowstore.Write:
				w.note("writes %v = %s", c, valueOf(e.Value, longOf(m, e.Column)))
			case rowstore.Lock:
				w.note("writes %v", c)
			case rowstore.Mark:
				w.note("locks %v", c)
			case rowstore.Notify:
				if k, err := format.DecodeNotification(e.Value); err == nil && k == format.NotifyWeak {
					w.note("notifies %v", c)
				}
			default:
			}
		}
	}
}

// longOf returns the long value that a mutation puts into a column.
func longOf(m *rowstore.Mutation, column string) []byte {
	for _, e := range m.Edits {
		if e.Kind == rowstore.DoPut && e.Family == rowstore.Data && e.Column == column {
			return e.Value
		}
	}
	return nil
}

// userCell returns the user's names of a stored cell; ok is false for a cell of the library's.
func userCell(table, row, column string) (c percolator.Cell, ok bool) {
	t, ok := format.Unescape(table)
	if !ok {
		return c, false
	}
	col, ok := format.Unescape(column)
	return percolator.Cell{Table: t, Row: row, Column: col}, ok
}

// mostShown bounds how much of a value a schedule shows.
const mostShown = 64

// valueOf shows a stored write.
func valueOf(stored, long []byte) string {
	w, err := format.DecodeWrite(stored)
	switch {
	case err != nil:
		return err.Error()
	case w.Kind == format.KindDelete:
		return "nothing (deleted)"
	case w.Long && long == nil:
		return "a long value"
	case w.Long:
		w.Value = long
	}
	if len(w.Value) > mostShown {
		return fmt.Sprintf("%q... (%d bytes)", w.Value[:mostShown], len(w.Value))
	}
	return fmt.Sprintf("%q", w.Value)
}
