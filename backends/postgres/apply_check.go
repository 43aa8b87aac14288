package postgres

import (
	"context"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// check answers tasks that only ask, from one view of each row. among says that the call has other tasks.
func (s *plainStore) check(ctx context.Context, ts []*task, deferred, among bool) error {
	reads := make([]rowstore.RowRead, len(ts))
	which := make([]int, len(ts))
	for i, t := range ts {
		which[i] = i
		m := &t.muts[0]
		reads[i] = rowstore.RowRead{Table: m.Table, Row: m.Row}
		for j := range m.Conditions {
			c := &m.Conditions[j]
			switch {
			case c.Kind == rowstore.IfIncarnation:
			case c.Kind == rowstore.IfAbsent:
				reads[i].Selectors = append(reads[i].Selectors, rowstore.Selector{Family: c.Family, Column: c.Column, From: c.TS, To: oracle.Max, Limit: 1})
			default:
				reads[i].Selectors = append(reads[i].Selectors, rowstore.Selector{Family: c.Family, Column: c.Column, From: c.TS, To: c.TS})
			}
		}
	}
	rows := make([]rowstore.Row, len(ts))
	inc := ""
	err := s.settled(ctx, reads, which, among, func(i int, err error) { ts[i].err = err }, func(which []int, settle int) ([]int, error) {
		return s.readPicks(ctx, s.q.check, reads, which, rows, &inc, settle)
	})
	if err != nil {
		return err
	}
	if !deferred {
		// What was deferred before is durable when an undeferred batch returns.
		if err := s.run(ctx, s.q.flush, nil, false, nil, func(*fields) {}); err != nil {
			return err
		}
	}
	for i, t := range ts {
		if t.err != nil {
			continue
		}
		newest := func(family rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
			if from == to {
				return rows[i].At(family, column, from), nil
			}
			if v := rows[i].Newest(family, column); v != nil && v.TS >= from {
				return v, nil
			}
			return nil, nil //nolint:nilnil // as kit.Judge wants it
		}
		out, err := kit.Judge(&t.muts[0], inc, newest)
		if err != nil {
			return err
		}
		t.done, t.applied, t.inc = true, out.Applied, inc
		if !out.Applied {
			t.out = rowstore.Outcome{Failed: out.Failed, Broke: out.Broke}
		}
	}
	return nil
}
