package rowstore

import (
	"context"
	"slices"
)

// SnapshotRead asks for a timestamp, and for reads at it.
type SnapshotRead struct {
	// Reads may say AssignedTimestamp in place of a selector's To: the timestamp that
	// is drawn. There is at least one. A call may name a row more than once.
	Reads []RowRead
}

// SnapshotRows is the answer to a SnapshotRead.
type SnapshotRows struct {
	// TS is the timestamp.
	TS Timestamp
	// Rows answer the reads, in order.
	Rows []Row
	// Apart says that the rows were read by a second request, sent when the timestamp
	// had come back. Any time may lie between the two, for instance when the process was
	// suspended. If one request asked for both, Apart is false.
	Apart bool
	// Err is the failure of this answer alone, which then has neither timestamp nor rows.
	Err error
}

// SnapshotReader is the optional ability to draw timestamps of the store's own oracle and
// read at them in one round trip: the start of a transaction with its first read. Offer
// it only if the result is as good as that of a Draw followed by a Read: each view of a
// row is from a moment after its timestamp was drawn. Without this ability the caller
// makes the two calls.
type SnapshotReader interface {
	// ReadSnapshot gives each ask a timestamp of its own and answers its reads, in order.
	// An error means that there are no answers; timestamps may have been used up.
	ReadSnapshot(ctx context.Context, asks []SnapshotRead) ([]SnapshotRows, error)
}

// At returns the reads with ts in place of AssignedTimestamp.
func (d *SnapshotRead) At(ts Timestamp) []RowRead {
	n := 0
	for i := range d.Reads {
		n += len(d.Reads[i].Selectors)
	}
	selectors := make([]Selector, 0, n)
	reads := make([]RowRead, len(d.Reads))
	for i, r := range d.Reads {
		from := len(selectors)
		for _, p := range r.Selectors {
			if p.To == AssignedTimestamp {
				p.To = ts
			}
			selectors = append(selectors, p)
		}
		r.Selectors = selectors[from:len(selectors):len(selectors)]
		reads[i] = r
	}
	return reads
}

// ScanSnapshot is what a scan and its caller tell each other about time, by the timestamps of the store's own oracle.
type ScanSnapshot struct {
	// Start stands in for AssignedTimestamp in a Selector's To. If it is 0, the scan draws it, and sets it
	// before it visits a row, or ends without an error. Each view of a row is of a moment after Start was drawn.
	Start Timestamp
	// Latest tells how old the rows are: each timestamp that had been drawn before any of the rows visited so far was read,
	// or before it was seen that there are no others between them, is at or below Latest. The scan sets it before it
	// visits a row, and before it ends without an error. 0 means that the scan cannot tell.
	Latest Timestamp
}

// At returns the selectors with ts in place of AssignedTimestamp.
func (s *ScanRange) At(ts Timestamp) []Selector {
	selectors := slices.Clone(s.Selectors)
	for i := range selectors {
		if p := &selectors[i]; p.To == AssignedTimestamp {
			p.To = ts
		}
	}
	return selectors
}

// SnapshotScanner marks a store whose Scan takes [ScanRange.Snapshot], so that a short scan, the start
// timestamp of its transaction, and the proof that nothing which it needs was collected meanwhile, are one round trip. Offer it only if the
// result is as good as that of a Draw before the scan, and one after it. Without this ability the caller draws.
type SnapshotScanner interface {
	// ScansSnapshots does nothing.
	ScansSnapshots()
}
