package pebble

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// groupKey is the key of every row: one batch may change any.
const groupKey = "pebble"

// GroupKey implements rowstore.Grouper: all rows may share a group.
func (s *Store) GroupKey(string, string) string { return groupKey }

// AssignsTimestamps implements rowstore.Grouper. A reader waits for the stripes of a group
// that has its timestamp already, and a scan waits for the gate. So no reader with a
// greater timestamp misses the group's writes.
func (s *Store) AssignsTimestamps(key string) bool { return key == groupKey }

// Group implements rowstore.Grouper.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if err := kit.CheckGroup(s, s.Limits(), groups); err != nil {
		return nil, fmt.Errorf("pebble: %w", err)
	}
	if err := s.enter(ctx, "group"); err != nil {
		return nil, err
	}
	defer s.leave()
	outs := make([]rowstore.GroupOutcome, len(groups))
	w := s.newWork()
	defer w.done()
	var waits waitList
	wrote := false
	for i := range groups {
		one, err := s.group(ctx, w, &groups[i], &outs[i], &waits)
		if err != nil {
			return nil, diskError(wrote, err)
		}
		wrote = wrote || one
		w.reset()
	}
	if err := waits.wait(ctx); err != nil {
		return nil, diskError(wrote, err)
	}
	return outs, nil
}

// group runs one group. It waits for its turn, and for a durable bound of the oracle, while it holds nothing: the bound needs a
// turn too.
func (s *Store) group(ctx context.Context, w *work, g *rowstore.Group, out *rowstore.GroupOutcome, waits *waitList) (wrote bool, err error) {
	for {
		if err := s.syncs.turn(ctx); err != nil {
			return false, err
		}
		wrote, drawn := s.tryGroup(w, g, out, waits)
		if wrote {
			return true, nil
		}
		s.syncs.over()
		if drawn {
			return false, nil
		}
		if err := s.oracle.Ensure(ctx, 1); err != nil {
			out.Err = drawError(err)
			return false, nil
		}
		w.reset()
	}
}

func drawError(err error) error {
	return fmt.Errorf("pebble: draw the timestamp of a group: %w", err)
}

// tryGroup runs one group, which has its turn. If the oracle would have to wait for its timestamp, it changes nothing, and drawn is false.
func (s *Store) tryGroup(w *work, g *rowstore.Group, out *rowstore.GroupOutcome, waits *waitList) (wrote, drawn bool) {
	for i := range g.Mutations {
		w.begin(&g.Mutations[i])
	}
	w.lock()
	defer w.unlock()
	defer func() { w.shows(waits, wrote) }()
	if !w.checkGroup(g, out) {
		return false, true
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	var ts rowstore.Timestamp
	if g.AssignTimestamp {
		var err error
		if ts, drawn, err = s.oracle.TryDraw(1); err != nil {
			out.Err = drawError(err)
			return false, true
		}
		if !drawn {
			return false, false
		}
		if g.NotAfter != 0 && ts > g.NotAfter {
			out.TooLate = true
			return false, true
		}
	}
	batch := s.db.NewBatch()
	for i := range g.Mutations {
		m := &g.Mutations[i]
		if err := w.edit(batch, i, m, ts); err != nil {
			_ = batch.Close()
			out.Err = rowError(m, err)
			return false, true
		}
	}
	if batch.Empty() {
		_ = batch.Close()
		out.Applied, out.Commit = true, ts
		return false, true
	}
	if err := s.room.take(batch.Len()); err != nil {
		_ = batch.Close()
		out.Err = fmt.Errorf("pebble: %w", err)
		return false, true
	}
	out.Applied, out.Commit = true, ts
	s.notes.edit(w.notes)
	c := s.commit(batch)
	w.written(c)
	waits.add(c)
	s.hub.Tell(w.news.Take()...)
	return true, true
}

// checkGroup checks the conditions of a group and reads the heads that it changes. If
// the group cannot be applied, out says why.
func (w *work) checkGroup(g *rowstore.Group, out *rowstore.GroupOutcome) bool {
	for i := range g.Mutations {
		m := &g.Mutations[i]
		failed, broke, err := w.check(i, m)
		if err != nil {
			out.Err = rowError(m, err)
			return false
		}
		if failed >= 0 {
			out.Failed, out.Outcome = i, rowstore.Outcome{Failed: failed, Broke: broke}
			return false
		}
	}
	size := 0
	for i := range g.Mutations {
		m := &g.Mutations[i]
		err := w.prepare(i, m)
		if err == nil {
			err = w.fits(i, m, size)
			size += mutationSize(m) + w.muts[i].size
		}
		if err != nil {
			out.Err = rowError(m, err)
			return false
		}
	}
	return true
}

// rowError says which row an error is about.
func rowError(m *rowstore.Mutation, err error) error {
	return fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)
}
