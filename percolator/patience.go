package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// patientStore repeats calls, and parts of calls, that failed because a server was away
// for a moment. They ended with rowstore.ErrUnavailable and certainly had no effect. It
// is the one place that does so, for every backend. A call that may have had an effect
// (ErrAmbiguous) is left to the protocol above. patientStore is a Decorator and has the
// optional abilities of the store.
type patientStore struct {
	rowstore.Store
	abilities rowstore.Abilities
	patience  time.Duration
	clock     Clock
	rand      *random
}

// awayWait are the waits between two attempts.
var awayWait = Backoff{Min: 5 * time.Millisecond, Max: 500 * time.Millisecond}

// attempts counts the attempts of one call.
type attempts struct {
	s     *patientStore
	n     int
	since time.Time
}

// wait waits before the next attempt after err. It returns nil to try again; otherwise
// it returns the error that the call ends with.
func (p *attempts) wait(ctx context.Context, err error) error {
	if !hadNoEffect(err) || p.s.patience <= 0 {
		return err
	}
	now := p.s.clock.Now()
	if p.n == 0 {
		p.since = now
	}
	if away := now.Sub(p.since); away >= p.s.patience {
		return fmt.Errorf("giving up after %v and %d attempts: %w", away, p.n+1, err)
	}
	if serr := p.s.clock.Sleep(ctx, awayWait.wait(p.n, p.s.rand)); serr != nil {
		return fmt.Errorf("%w, after %w", serr, err)
	}
	p.n++
	return nil
}

// hadNoEffect reports whether a call failed only because a server was away. A store
// whose error also matches ErrAmbiguous breaks its contract; such a call counts as
// ambiguous.
func hadNoEffect(err error) bool {
	return errors.Is(err, rowstore.ErrUnavailable) && !errors.Is(err, rowstore.ErrAmbiguous)
}

// mayAskAgain reports whether a change whose repetition does no harm should be sent again: its reply was lost. A store that denied
// access in the middle of a call would do so for ever.
func mayAskAgain(err error) bool {
	return errors.Is(err, rowstore.ErrAmbiguous) && !errors.Is(err, rowstore.ErrDenied)
}

// repeat calls f until it does not answer ErrUnavailable, or patience ends.
func repeat[T any](ctx context.Context, s *patientStore, f func() (T, error)) (T, error) {
	p := attempts{s: s}
	for {
		t, err := f()
		if err == nil {
			return t, nil
		}
		if err = p.wait(ctx, err); err != nil {
			return t, err
		}
	}
}

// repeatParts calls f for all parts, and again for those that failed alone with
// ErrUnavailable. failed points to a part's error. whole means that one call did all
// parts.
func repeatParts[P, A any](ctx context.Context, s *patientStore, parts []P, f func([]P) ([]A, error), failed func(*A) *error) (answers []A, whole bool, err error) {
	p := attempts{s: s}
	answers, err = repeat(ctx, s, func() ([]A, error) { return f(parts) })
	if err != nil {
		return nil, false, err
	}
	for whole = true; ; whole = false {
		var again []int
		var away error
		for i := range answers {
			if e := *failed(&answers[i]); hadNoEffect(e) {
				again, away = append(again, i), e
			}
		}
		if len(again) == 0 {
			return answers, whole, nil
		}
		if werr := p.wait(ctx, away); werr != nil {
			for _, i := range again {
				*failed(&answers[i]) = werr
			}
			return answers, whole, nil
		}
		some := make([]P, len(again))
		for j, i := range again {
			some[j] = parts[i]
		}
		got, err := f(some)
		for j, i := range again {
			if err != nil {
				*failed(&answers[i]) = err
			} else {
				answers[i] = got[j]
			}
		}
	}
}

// Read implements rowstore.Store.
func (s *patientStore) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, _, err := repeatParts(ctx, s, reads,
		func(reads []rowstore.RowRead) ([]rowstore.Row, error) { return s.Store.Read(ctx, reads) },
		func(r *rowstore.Row) *error { return &r.Err })
	return rows, err
}

// Apply implements rowstore.Store.
func (s *patientStore) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs, whole, err := repeatParts(ctx, s, muts,
		func(muts []rowstore.Mutation) ([]rowstore.Outcome, error) { return s.Store.Apply(ctx, muts, opts) },
		func(o *rowstore.Outcome) *error { return &o.Err })
	if !whole {
		// A timestamp that came with one part was drawn before the others were applied.
		for i := range outs {
			outs[i].Timestamp = 0
		}
	}
	return outs, err
}

// Scan implements rowstore.Store. After an error it continues behind the last row that
// was visited.
func (s *patientStore) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		p, left, last := attempts{s: s}, r, ""
		for {
			var away error
			for row, err := range s.Store.Scan(ctx, left) {
				if err != nil {
					away = err
					break
				}
				p.n, last = 0, row.Row
				if !yield(row, nil) {
					return
				}
				if left.Limit > 0 {
					if left.Limit--; left.Limit == 0 {
						return
					}
				}
			}
			if away == nil {
				return
			}
			if err := p.wait(ctx, away); err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			switch {
			case last == "":
			case r.Reverse:
				left.To = last
			default:
				left.From = last + "\x00"
				left.Slots = slotsFrom(left.Slots, rowstore.Slot(r.Table, last))
			}
		}
	}
}

// Tables implements rowstore.Store.
func (s *patientStore) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		tables, err := repeat(ctx, s, func() (tables []string, err error) {
			for t, err := range s.Store.Tables(ctx) {
				if err != nil {
					return tables, err // these are there, whatever was in the way
				}
				tables = append(tables, t)
			}
			return tables, nil
		})
		for _, t := range tables {
			if !yield(t, nil) {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// Abilities implements rowstore.Decorator.
func (s *patientStore) Abilities() rowstore.Abilities { return s.abilities }

// treatment says which abilities are patient too. Crash is for tests, which have the store
// itself.
func (s *patientStore) treatment() rowstore.Treatment {
	return rowstore.Treatment{
		Grouper:         func(g rowstore.Grouper) rowstore.Grouper { return patientGrouper{g, s} },
		Deferrer:        func(d rowstore.Deferrer) rowstore.Deferrer { return patientDeferrer{d, s} },
		OracleProvider:  func(p rowstore.OracleProvider) rowstore.OracleProvider { return patientOracle{p.Oracle(), s} },
		SnapshotReader:  func(r rowstore.SnapshotReader) rowstore.SnapshotReader { return patientSnapshotReader{r, s} },
		Splitter:        rowstore.Pass[rowstore.Splitter],
		Waker:           rowstore.Pass[rowstore.Waker],
		Limiter:         rowstore.Pass[rowstore.Limiter],
		SlotScanner:     rowstore.Pass[rowstore.SlotScanner],
		SnapshotScanner: rowstore.Pass[rowstore.SnapshotScanner],
		Sharder:         rowstore.Pass[rowstore.Sharder],
		Placer:          s.patientPlacer,
		Reporter:        func(r rowstore.Reporter) rowstore.Reporter { return patientReporter{r, s} },
		Crasher:         rowstore.Hide[rowstore.Crasher],
	}
}

type patientGrouper struct {
	rowstore.Grouper
	s *patientStore
}

// Group implements rowstore.Grouper.
func (g patientGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	outs, _, err := repeatParts(ctx, g.s, groups,
		func(groups []rowstore.Group) ([]rowstore.GroupOutcome, error) { return g.Grouper.Group(ctx, groups) },
		func(o *rowstore.GroupOutcome) *error { return &o.Err })
	return outs, err
}

type patientDeferrer struct {
	rowstore.Deferrer
	s *patientStore
}

// Flush implements rowstore.Deferrer.
func (d patientDeferrer) Flush(ctx context.Context) error {
	_, err := repeat(ctx, d.s, func() (struct{}, error) { return struct{}{}, d.Deferrer.Flush(ctx) })
	return err
}

type patientSnapshotReader struct {
	inner rowstore.SnapshotReader
	s     *patientStore
}

// ReadSnapshot implements rowstore.SnapshotReader. An ask that is repeated gets a new
// timestamp.
func (d patientSnapshotReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	answers, _, err := repeatParts(ctx, d.s, asks,
		func(asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
			answers, err := d.inner.ReadSnapshot(ctx, asks)
			for i := range answers {
				a := &answers[i]
				if j := slices.IndexFunc(a.Rows, func(r rowstore.Row) bool { return errors.Is(r.Err, rowstore.ErrUnavailable) }); a.Err == nil && j >= 0 {
					a.Err = a.Rows[j].Err
				}
			}
			return answers, err
		},
		func(a *rowstore.SnapshotRows) *error { return &a.Err })
	return answers, err
}

// patientPlacer is patient for what a StrayFinder reads. Any other Placer asks no server.
func (s *patientStore) patientPlacer(p rowstore.Placer) rowstore.Placer {
	if finder, ok := p.(rowstore.StrayFinder); ok {
		return patientStrayFinder{finder, s}
	}
	return p
}

type patientStrayFinder struct {
	rowstore.StrayFinder
	s *patientStore
}

// Strays implements rowstore.StrayFinder.
func (f patientStrayFinder) Strays(ctx context.Context, read rowstore.RowRead) ([]string, error) {
	return repeat(ctx, f.s, func() ([]string, error) { return f.StrayFinder.Strays(ctx, read) })
}

type patientReporter struct {
	inner rowstore.Reporter
	s     *patientStore
}

// Report implements rowstore.Reporter.
func (r patientReporter) Report(ctx context.Context) (rowstore.Report, error) {
	return repeat(ctx, r.s, func() (rowstore.Report, error) { return r.inner.Report(ctx) })
}

// patientOracle wraps an oracle, the store's or another.
type patientOracle struct {
	inner oracle.Oracle
	s     *patientStore
}

// Oracle implements rowstore.OracleProvider.
func (o patientOracle) Oracle() oracle.Oracle { return o }

// Draw implements oracle.Oracle.
func (o patientOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	return repeat(ctx, o.s, func() (Timestamp, error) { return o.inner.Draw(ctx, n) })
}
