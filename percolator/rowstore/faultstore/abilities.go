package faultstore

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// Abilities implements Decorator.
func (f *Store) Abilities() rowstore.Abilities { return f.abilities }

// treatment lets every call that can fail at the database pass through the faults.
func (f *Store) treatment() rowstore.Treatment {
	return rowstore.Treatment{
		Grouper:         func(g rowstore.Grouper) rowstore.Grouper { return faultyGrouper{g, f} },
		Deferrer:        func(d rowstore.Deferrer) rowstore.Deferrer { return faultyDeferrer{d, f} },
		OracleProvider:  func(p rowstore.OracleProvider) rowstore.OracleProvider { return faultyOracle{p.Oracle(), f} },
		SnapshotReader:  func(r rowstore.SnapshotReader) rowstore.SnapshotReader { return faultySnapshotReader{r, f} },
		Splitter:        func(s rowstore.Splitter) rowstore.Splitter { return faultySplitter{s, f} },
		Waker:           func(w rowstore.Waker) rowstore.Waker { return f.faultyWaker(w) },
		Limiter:         rowstore.Pass[rowstore.Limiter],
		SlotScanner:     rowstore.Pass[rowstore.SlotScanner],
		SnapshotScanner: rowstore.Pass[rowstore.SnapshotScanner],
		Sharder:         rowstore.Pass[rowstore.Sharder],
		Placer:          f.faultyPlacer,
		Reporter:        rowstore.Pass[rowstore.Reporter],
		Crasher:         rowstore.Pass[rowstore.Crasher],
	}
}

type faultyGrouper struct {
	rowstore.Grouper
	f *Store
}

func (g faultyGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return spoil(ctx, g.f, &Call{Kind: CallGroup, Groups: groups}, groups, spoilKind[rowstore.Group, rowstore.GroupOutcome]{
		send:   g.Grouper.Group,
		note:   func(c *Call, outs []rowstore.GroupOutcome) { c.GroupOutcomes = outs },
		keep:   arena.KeepGroups,
		failed: func(err error) rowstore.GroupOutcome { return rowstore.GroupOutcome{Err: err} },
	})
}

type faultyDeferrer struct {
	inner rowstore.Deferrer
	f     *Store
}

func (d faultyDeferrer) Flush(ctx context.Context) error {
	call := &Call{Kind: CallFlush}
	fault, err := d.f.begin(ctx, call)
	if err != nil {
		return err
	}
	return d.f.end(ctx, call, fault, d.inner.Flush(ctx))
}

// faultyOracle is both the ability and the oracle.
type faultyOracle struct {
	inner oracle.Oracle
	f     *Store
}

func (o faultyOracle) Oracle() oracle.Oracle { return o }

func (o faultyOracle) Draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	call := &Call{Kind: CallDraw, N: n}
	fault, err := o.f.begin(ctx, call)
	if err != nil {
		return 0, err
	}
	ts, err := o.inner.Draw(ctx, n)
	call.Timestamp = ts
	if err := o.f.end(ctx, call, fault, err); err != nil {
		return 0, err
	}
	return ts, nil
}

type faultySnapshotReader struct {
	inner rowstore.SnapshotReader
	f     *Store
}

func (d faultySnapshotReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	call := &Call{Kind: CallReadSnapshot, Asks: asks}
	fault, err := d.f.begin(ctx, call)
	if err != nil {
		return nil, err
	}
	answers, err := d.inner.ReadSnapshot(ctx, asks)
	call.Answers = answers
	if err := d.f.end(ctx, call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == FailRow || fault.Kind == LoseRow {
		answers[fault.row(len(answers))] = rowstore.SnapshotRows{Err: failure(call, fault, "one failed")}
	}
	return answers, nil
}

// faultyPlacer puts faults over the reads of a StrayFinder. Any other Placer asks no server.
func (f *Store) faultyPlacer(p rowstore.Placer) rowstore.Placer {
	if finder, ok := p.(rowstore.StrayFinder); ok {
		return faultyStrayFinder{finder, f}
	}
	return p
}

type faultyStrayFinder struct {
	rowstore.StrayFinder
	f *Store
}

// Strays implements rowstore.StrayFinder, as a call that reads.
func (s faultyStrayFinder) Strays(ctx context.Context, read rowstore.RowRead) ([]string, error) {
	call := &Call{Kind: CallRead, Reads: []rowstore.RowRead{read}}
	fault, err := s.f.begin(ctx, call)
	if err != nil {
		return nil, err
	}
	names, err := s.StrayFinder.Strays(ctx, read)
	if err := s.f.end(ctx, call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == FailRow || fault.Kind == LoseRow {
		return nil, failure(call, fault, "the row failed")
	}
	return names, nil
}

type faultySplitter struct {
	inner rowstore.Splitter
	f     *Store
}

func (s faultySplitter) Split(ctx context.Context, table string, n int) ([]string, error) {
	call := &Call{Kind: CallSplit, Range: rowstore.ScanRange{Table: table}, N: n}
	fault, err := s.f.begin(ctx, call)
	if err != nil {
		return nil, err
	}
	keys, err := s.inner.Split(ctx, table, n)
	if err := s.f.end(ctx, call, fault, err); err != nil {
		return nil, err
	}
	return keys, nil
}

// faultyWaker puts faults over a Waker, or over each of several.
func (f *Store) faultyWaker(w rowstore.Waker) rowstore.Waker {
	several, ok := w.(rowstore.Wakers)
	if !ok {
		return faultyWaker{w, f}
	}
	var all []rowstore.Waker
	for _, one := range several.Wakers() {
		all = append(all, faultyWaker{one, f})
	}
	return faultyWakers{faultyWaker{w, f}, all}
}

type faultyWakers struct {
	faultyWaker // of all together
	all         []rowstore.Waker
}

// Wakers implements rowstore.Wakers.
func (w faultyWakers) Wakers() []rowstore.Waker { return slices.Clone(w.all) }

type faultyWaker struct {
	inner rowstore.Waker
	f     *Store
}

func (w faultyWaker) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	call := &Call{Kind: CallListen}
	fault, err := w.f.begin(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return w.f.end(ctx, call, fault, w.inner.Listen(ctx, wake))
}
