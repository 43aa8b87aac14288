package percolator

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// damagedRows is a damagedStore in which damaged rows can be neither read nor, if refuses is true, written.
type damagedRows struct {
	*damagedStore
	onlyReads  bool // scans show them
	onlyWrites bool // so do reads
	refuses    bool
	byRow      bool // a read all of whose rows cannot be read fails for each
	whole      bool // a call that would write one fails as a whole
	breaks     bool // a call that would write one is broken off there, and ambiguous: so does Redis at a key of another kind
	servers    bool // rows are on two servers, by their last bytes: one that breaks off does so alone
	// refusedOnly is a row that can be read, and not be written.
	refusedOnly string
	applies     atomic.Int64 // calls that wrote, or tried
}

func (s *damagedRows) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if s.onlyReads || s.onlyWrites {
		return s.Store.Scan(ctx, r)
	}
	return s.damagedStore.Scan(ctx, r)
}

func (s *damagedRows) failed(row string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows[row] {
		return fmt.Errorf("%w: a row of a test", s.kind)
	}
	return nil
}

func (s *damagedRows) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, err := s.Store.Read(ctx, reads)
	if s.onlyWrites {
		return rows, err
	}
	bad := 0
	for i := range rows {
		if err := s.failed(reads[i].Row); err != nil {
			rows[i] = rowstore.Row{Table: reads[i].Table, Row: reads[i].Row, Err: err}
			bad++
		}
	}
	if bad > 0 && bad == len(rows) && !s.byRow {
		return nil, rows[0].Err // so does Redis
	}
	return rows, err
}

func (s *damagedRows) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	answers, err := s.Store.ReadSnapshot(ctx, asks)
	if s.onlyWrites {
		return answers, err
	}
	for i := range answers {
		for j := range answers[i].Rows {
			if err := s.failed(asks[i].Reads[j].Row); err != nil {
				answers[i].Rows[j] = rowstore.Row{Table: asks[i].Reads[j].Table, Row: asks[i].Reads[j].Row, Err: err}
			}
		}
	}
	return answers, err
}

func (s *damagedRows) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if !s.refuses && !s.breaks {
		return s.Store.Apply(ctx, muts, opts)
	}
	s.applies.Add(1)
	outs := make([]rowstore.Outcome, len(muts))
	if s.servers {
		return outs, s.applyBy(ctx, muts, opts, outs)
	}
	for i := range muts {
		if outs[i].Err = s.failed(muts[i].Row); outs[i].Err != nil {
			if s.whole {
				return nil, outs[i].Err
			}
			if s.breaks {
				return nil, fmt.Errorf("%w: a key of another kind", rowstore.ErrAmbiguous)
			}
			continue
		}
		one, err := s.Store.Apply(ctx, muts[i:i+1], opts)
		if err != nil {
			return nil, err
		}
		outs[i] = one[0]
	}
	return outs, nil
}

// applyBy is Apply on several servers.
func (s *damagedRows) applyBy(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions, outs []rowstore.Outcome) error {
	server := func(i int) byte { return muts[i].Row[len(muts[i].Row)-1] % 2 }
	var broken [2]bool
	for i := range muts {
		broken[server(i)] = broken[server(i)] || s.failed(muts[i].Row) != nil || muts[i].Row == s.refusedOnly
	}
	for i := range muts {
		if broken[server(i)] {
			outs[i].Err = fmt.Errorf("%w: a server broke off", rowstore.ErrAmbiguous)
			continue
		}
		one, err := s.Store.Apply(ctx, muts[i:i+1], opts)
		if err != nil {
			return err
		}
		outs[i] = one[0]
	}
	return nil
}

func (s *damagedRows) damage(rows ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range rows {
		s.rows[row] = true
	}
}

func (s *damagedRows) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rows)
}
