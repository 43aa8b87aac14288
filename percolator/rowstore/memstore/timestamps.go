package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Oracle implements OracleProvider.
func (m *Store) Oracle() oracle.Oracle { return storeOracle{m} }

type storeOracle struct{ m *Store }

func (o storeOracle) Draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("memory: draw of %d timestamps: %w", n, rowstore.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("memory: draw: %w", err)
	}
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	if o.m.closed {
		return 0, fmt.Errorf("memory: draw: %w (%w)", oracle.ErrClosed, rowstore.ErrClosed)
	}
	return o.m.draw(n)
}

func (m *Store) draw(n int) (rowstore.Timestamp, error) {
	first := max(m.drawn+1, oracle.FromTime(m.clock()))
	last := first + rowstore.Timestamp(n) - 1
	if last > oracle.Max || last < first {
		return 0, fmt.Errorf("memory: draw of %d timestamps: the greatest timestamp is reached", n)
	}
	m.drawn = last
	return first, nil
}

// ReadSnapshot implements SnapshotReader.
func (m *Store) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if err := rowstore.CheckSnapshotReads(asks); err != nil {
		return nil, fmt.Errorf("memory: read snapshot: %w", err)
	}
	if err := m.enter(ctx, "read snapshot"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	answers := make([]rowstore.SnapshotRows, len(asks))
	for i := range asks {
		ts, err := m.draw(1)
		if err != nil {
			return nil, err
		}
		answers[i] = rowstore.SnapshotRows{TS: ts, Rows: m.read(asks[i].At(ts))}
	}
	return answers, nil
}

// snapshot draws the timestamp of a scan, if it is to be drawn, and tells the latest one.
func (m *Store) snapshot(s *rowstore.ScanRange) error {
	if s.Snapshot == nil {
		return nil
	}
	if s.Snapshot.Start == 0 {
		ts, err := m.draw(1)
		if err != nil {
			return err
		}
		s.Snapshot.Start = ts
	}
	s.Snapshot.Latest = m.drawn
	if slices.ContainsFunc(s.Selectors, func(p rowstore.Selector) bool { return p.To == rowstore.AssignedTimestamp }) {
		s.Selectors = s.At(s.Snapshot.Start)
	}
	return nil
}
