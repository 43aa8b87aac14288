package kit

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TimestampThenRead does in two calls what a rowstore.SnapshotReader does in one: it draws a
// timestamp from o for each ask, then reads from s. A SnapshotReader answers in this way
// what it cannot do in one call. Its answers say Apart.
func TimestampThenRead(ctx context.Context, o oracle.Oracle, s rowstore.Store, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if err := rowstore.CheckSnapshotReads(asks); err != nil {
		return nil, err
	}
	if len(asks) == 0 {
		return nil, ctx.Err()
	}
	first, err := o.Draw(ctx, len(asks))
	if err != nil {
		return nil, fmt.Errorf("drawing %d timestamps: %w", len(asks), err)
	}
	var reads []rowstore.RowRead
	answers := make([]rowstore.SnapshotRows, len(asks))
	for i := range asks {
		answers[i].TS, answers[i].Apart = first+rowstore.Timestamp(i), true
		reads = append(reads, asks[i].At(answers[i].TS)...)
	}
	rows, err := s.Read(ctx, reads)
	if err != nil {
		return nil, err
	}
	for i := range asks {
		n := len(asks[i].Reads)
		answers[i].Rows, rows = rows[:n:n], rows[n:]
	}
	return answers, nil
}

// TimestampThenScan returns what a rowstore.SnapshotScanner scans where it cannot do all in one call: the range r at its snapshot,
// whose timestamp it draws from o if it has none. The scan then cannot tell how old its rows are.
func TimestampThenScan(ctx context.Context, o oracle.Oracle, r rowstore.ScanRange) (rowstore.ScanRange, error) {
	s := r.Snapshot
	r.Snapshot = nil
	if s.Start == 0 {
		start, err := o.Draw(ctx, 1)
		if err != nil {
			return r, fmt.Errorf("drawing a timestamp: %w", err)
		}
		s.Start = start
	}
	s.Latest = 0
	r.Selectors = r.At(s.Start)
	return r, nil
}
