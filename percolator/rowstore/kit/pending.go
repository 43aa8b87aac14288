package kit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Pending holds readers back from rows whose commit timestamp is being drawn. A store whose
// readers do not wait for writers by themselves needs it to offer groups with
// AssignTimestamp.
//
// The danger is this. A group draws the timestamp 7, and its changes are not visible yet. A
// reader draws 8 and reads the old state: it misses a commit below its snapshot, and no
// lock warns it. So the writer calls [Pending.Hold] before it draws, and releases the rows
// once its changes are visible, or will never be. A reader calls [Pending.Rows] or
// [Pending.Range] before it takes its view of the rows. Who has drawn a greater timestamp
// did so after the rows were held, so it waits until the changes are there. A reader waits
// only for writers that came before it.
//
// The zero Pending is ready, and must not be copied. All methods may be called
// concurrently.
type Pending struct {
	count atomic.Int32 // of holds, so that readers mostly take no lock
	mu    sync.Mutex
	holds map[*hold]struct{}
}

type rowName struct{ table, row string }

type hold struct {
	rows     map[rowName]struct{}
	released chan struct{}
}

// Hold holds the rows of all mutations of the groups with AssignTimestamp, until the function that it
// returns is called; to call that again does nothing. Rows may be held by several callers
// at once.
func (p *Pending) Hold(groups ...rowstore.Group) (release func()) {
	h := &hold{rows: map[rowName]struct{}{}, released: make(chan struct{})}
	for i := range groups {
		if !groups[i].AssignTimestamp {
			continue
		}
		for j := range groups[i].Mutations {
			m := &groups[i].Mutations[j]
			h.rows[rowName{m.Table, m.Row}] = struct{}{}
		}
	}
	if len(h.rows) == 0 {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds == nil {
		p.holds = map[*hold]struct{}{}
	}
	p.holds[h] = struct{}{}
	p.count.Add(1)
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.holds, h)
		p.count.Add(-1)
		close(h.released)
	})
}

// Rows checks the reads (rowstore.CheckReads), and then waits until no row of them is held by a
// writer that held it when the call began. It returns the context's error if ctx ends first.
func (p *Pending) Rows(ctx context.Context, reads []rowstore.RowRead) error {
	if err := rowstore.CheckReads(reads); err != nil {
		return err
	}
	return p.wait(ctx, func(h *hold) bool {
		for i := range reads {
			if _, ok := h.rows[rowName{reads[i].Table, reads[i].Row}]; ok {
				return true
			}
		}
		return false
	})
}

// Range is Rows for the rows of a scan, which it checks by rowstore.CheckScan. A scan that
// reads a page at a time calls it before each page.
func (p *Pending) Range(ctx context.Context, s rowstore.ScanRange) error {
	if err := rowstore.CheckScan(s); err != nil {
		return err
	}
	return p.wait(ctx, func(h *hold) bool {
		for r := range h.rows {
			if r.table != s.Table {
				continue
			}
			if len(s.Slots) > 0 {
				slot := rowstore.Slot(r.table, r.row)
				if slices.ContainsFunc(s.Slots, func(in rowstore.SlotRange) bool { return in.First <= slot && slot <= in.Last }) {
					return true
				}
			} else if r.row >= s.From && (s.To == "" || r.row < s.To) {
				return true
			}
		}
		return false
	})
}

func (p *Pending) wait(ctx context.Context, concerns func(*hold) bool) error {
	if p.count.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	var before []*hold
	for h := range p.holds {
		if concerns(h) {
			before = append(before, h)
		}
	}
	p.mu.Unlock()
	for _, h := range before {
		select {
		case <-h.released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
