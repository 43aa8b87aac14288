package conformance

import (
	"context"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// broken is a store in memory with a fault in some of its calls.
type broken struct {
	*memstore.Store
	apply    func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error)
	read     func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error)
	scan     func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error]
	tables   func(ctx context.Context) iter.Seq2[string, error]
	snapshot func(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error)
	group    func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error)
	listen   func(ctx context.Context, wake func(rowstore.Wake)) error
	draw     func(ctx context.Context, n int) (oracle.Timestamp, error)
	split    func(ctx context.Context, table string, n int) ([]string, error)
	flush    func(ctx context.Context) error
	report   func(ctx context.Context) (rowstore.Report, error)
	crash    func()
	close    func() error
	limits   *rowstore.Limits
}

func (b *broken) Limits() rowstore.Limits {
	if b.limits != nil {
		return *b.limits
	}
	return b.Store.Limits()
}

func (b *broken) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if b.apply != nil {
		return b.apply(ctx, muts, opts)
	}
	return b.Store.Apply(ctx, muts, opts)
}

func (b *broken) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if b.read != nil {
		return b.read(ctx, reads)
	}
	return b.Store.Read(ctx, reads)
}

func (b *broken) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if b.snapshot != nil {
		return b.snapshot(ctx, asks)
	}
	return b.Store.ReadSnapshot(ctx, asks)
}

func (b *broken) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if b.scan != nil {
		return b.scan(ctx, s)
	}
	return b.Store.Scan(ctx, s)
}

func (b *broken) Tables(ctx context.Context) iter.Seq2[string, error] {
	if b.tables != nil {
		return b.tables(ctx)
	}
	return b.Store.Tables(ctx)
}

func (b *broken) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if b.group != nil {
		return b.group(ctx, groups)
	}
	return b.Store.Group(ctx, groups)
}

func (b *broken) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	if b.listen != nil {
		return b.listen(ctx, wake)
	}
	return b.Store.Listen(ctx, wake)
}

func (b *broken) Oracle() oracle.Oracle {
	if b.draw != nil {
		return drawFunc(b.draw)
	}
	return b.Store.Oracle()
}

type drawFunc func(ctx context.Context, n int) (oracle.Timestamp, error)

func (f drawFunc) Draw(ctx context.Context, n int) (oracle.Timestamp, error) { return f(ctx, n) }

func (b *broken) Split(ctx context.Context, table string, n int) ([]string, error) {
	if b.split != nil {
		return b.split(ctx, table, n)
	}
	return b.Store.Split(ctx, table, n)
}

func (b *broken) Flush(ctx context.Context) error {
	if b.flush != nil {
		return b.flush(ctx)
	}
	return b.Store.Flush(ctx)
}

func (b *broken) Report(ctx context.Context) (rowstore.Report, error) {
	if b.report != nil {
		return b.report(ctx)
	}
	return b.Store.Report(ctx)
}

func (b *broken) Crash() {
	if b.crash != nil {
		b.crash()
		return
	}
	b.Store.Crash()
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Store.Close()
}

// eachMutation rewrites the mutations of every Apply and Group.
func (b *broken) eachMutation(change func(m rowstore.Mutation) rowstore.Mutation) {
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		changed := make([]rowstore.Mutation, len(muts))
		for i := range muts {
			changed[i] = change(muts[i])
		}
		return b.Store.Apply(ctx, changed, opts)
	}
}

// eachCondition rewrites conditions.
func (b *broken) eachCondition(change func(c rowstore.Condition) rowstore.Condition) {
	b.eachMutation(func(m rowstore.Mutation) rowstore.Mutation {
		m.Conditions = slices.Clone(m.Conditions)
		for i := range m.Conditions {
			m.Conditions[i] = change(m.Conditions[i])
		}
		return m
	})
}

// eachEdit rewrites edits, or drops them.
func (b *broken) eachEdit(change func(e rowstore.Edit) (rowstore.Edit, bool)) {
	b.eachMutation(func(m rowstore.Mutation) rowstore.Mutation {
		var edits []rowstore.Edit
		for _, e := range m.Edits {
			if e, keep := change(e); keep {
				edits = append(edits, e)
			}
		}
		m.Edits = edits
		return m
	})
}

// eachOutcome changes outcomes.
func (b *broken) eachOutcome(change func(m rowstore.Mutation, o *rowstore.Outcome)) {
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		out, err := b.Store.Apply(ctx, muts, opts)
		for i := range out {
			change(muts[i], &out[i])
		}
		return out, err
	}
}

// eachScan rewrites the rows of scans; nil drops one.
func (b *broken) eachScan(change func(s rowstore.ScanRange, n int, r rowstore.Row) []rowstore.Row) {
	b.scan = func(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
		return func(yield func(rowstore.Row, error) bool) {
			n := 0
			for r, err := range b.Store.Scan(ctx, s) {
				rows := []rowstore.Row{r}
				if err == nil {
					rows = change(s, n, r)
				}
				n++
				for _, r := range rows {
					if !yield(r, err) {
						return
					}
				}
			}
		}
	}
}
